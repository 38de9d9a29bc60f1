//! How long the calls of a task may take (BEHAVIOURS 109).

use std::path::Path;
use std::time::Duration;

use mcp_taskd_core::driver::Routes;
use mcp_taskd_core::upstream::{Options, build};
use serde_json::json;

use super::setup::extensions;

#[tokio::test]
async fn task_calls_have_a_limit_of_their_own_on_every_transport_109() {
    let toolset = json!({"name": "r", "submit_tool": "a", "status_tool": "b", "cancel_tool": "c"});
    let transports = [
        json!({"command": "sh"}),
        json!({"type": "http", "url": "http://127.0.0.1:9/mcp"}),
        json!({"type": "sse", "url": "http://127.0.0.1:9/sse"}),
    ];
    for mut server in transports {
        server["task_toolsets"] = json!([toolset]);
        for (configured, submit, status) in [(json!(null), 45_000, 30_000), (json!(2.5), 2_500, 2_500)] {
            server["tool_call_timeout"] = configured;
            let extensions = extensions(&json!({"s": server}));
            let upstreams = build(&extensions, &Options::new(Path::new("unused"))).unwrap();
            let known =
                extensions.servers.values().map(|config| (config.clone(), upstreams.find("s").unwrap().clone()));
            let routes = Routes::new(known, 8);
            let route = routes.find("s").unwrap();
            let limits = [route.submit_deadline, route.call_deadline].map(|limit| limit.as_millis());
            assert_eq!(limits, [submit, status], "{server}");
            assert_eq!(
                extensions.servers["s"].session_init_timeout,
                Some(Duration::from_mins(1)),
                "apart from the start"
            );
        }
    }
}
