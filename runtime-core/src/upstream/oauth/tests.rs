//! What the tests of this room share.

use serde_json::Value;

use crate::config::{Environment, Extensions, OAuth};

/// A configuration of `client_credentials`, changed by `change`.
pub(super) fn config(change: &Value) -> OAuth {
    let mut oauth = serde_json::json!({"token_url": "http://127.0.0.1:9/token", "client_id": "id",
        "client_secret": "secret"});
    oauth.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let document = serde_json::json!({"mcpServers": {"s": {"type": "http", "url": "http://h/mcp", "oauth": oauth}}});
    let path = std::path::Path::new("e.json");
    let mut loaded = Extensions::parse(&document.to_string(), path, &Environment::default()).unwrap();
    loaded.servers.swap_remove("s").unwrap().oauth.unwrap()
}
