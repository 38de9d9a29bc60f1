//! A Rust agent with the task runtime inside, without the daemon:
//!
//! ```console
//! cargo run -p mcp-taskd-core --example embed -- extensions_config.json reports report '{"title": "q3"}'
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, HeaderName, HeaderValue};
use mcp_taskd_core::config::{Environment, Extensions, Secrets, TaskSettings};
use mcp_taskd_core::runtime::{Process, Runtime};
use mcp_taskd_core::service::{Access, Submit};
use mcp_taskd_core::store::sql::SqlStore;
use mcp_taskd_core::upstream::interceptor::{Call, Failed, Interceptor, Interceptors, Verdict};
use mcp_taskd_core::upstream::{self, Options};
use serde_json::value::RawValue;

/// Tells each server on whose behalf it is called.
struct OnBehalf;

#[async_trait]
impl Interceptor for OnBehalf {
    fn name(&self) -> &'static str {
        "on-behalf"
    }

    async fn before_call(&self, call: Call<'_>) -> Result<Verdict, Failed> {
        let user = HeaderValue::from_str(call.user_id).map_err(|_| Failed("the user's id fits no header".into()))?;
        Ok(Verdict::Pass(HeaderMap::from_iter([(HeaderName::from_static("x-on-behalf-of"), user)])))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |what: &str| arguments.next().ok_or_else(|| format!("missing argument: {what}"));
    let (file, server, task) = (next("configuration file")?, next("server")?, next("task")?);
    let body = RawValue::from_string(next("arguments as JSON")?)?;

    // Where tasks live, and which servers there are.
    let state_dir = std::env::temp_dir().join("mcp-taskd-embedded");
    std::fs::create_dir_all(&state_dir)?;
    let store = SqlStore::connect_sqlite(state_dir.join("tasks.sqlite3")).await?;
    store.migrate().await?;
    let extensions = Extensions::load(Some(Path::new(&file)), &Environment::of_process(), Path::new("."))?;
    // Every call to a server passes the program's own interceptors; each server gets instances of its own.
    let interceptors = Interceptors::default().with(|_server| Some(Arc::new(OnBehalf)));
    let upstreams = upstream::build(&extensions, &Options { interceptors, ..Options::new(&state_dir) })?;
    let servers = extensions
        .servers
        .values()
        .filter_map(|config| Some((config.clone(), Arc::clone(upstreams.find(&config.name)?))));

    let process = Process { role: "embedded".into(), polls: true, state_dir };
    let registry = prometheus::Registry::new();
    let runtime = Runtime::start(&TaskSettings::default(), process, Arc::new(store), servers, &registry).await?;

    let submit = Submit {
        user_id: "me".into(),
        thread_id: "main".into(),
        server,
        task,
        arguments: body,
        run_id: None,
        tool_call_id: None,
        idempotency_key: None,
        secrets: Secrets::default(),
    };
    let mut task = runtime.service().submit(submit).await?.task;
    println!("{} {}", task.id, task.status);
    while !task.status.is_terminal() {
        task = runtime.service().get(&Access::default(), &task.id, Duration::from_secs(60)).await?;
        println!("{} {}", task.id, task.status);
    }
    println!("{}", task.outcome.result.as_ref().map_or("no result", |json| json.as_str()));

    runtime.shutdown(Duration::from_secs(10)).await;
    upstreams.close().await;
    Ok(())
}
