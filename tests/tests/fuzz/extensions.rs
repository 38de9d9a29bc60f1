//! `extensions_config.json`.

use std::path::Path;

use mcp_taskd_core::config::{Environment, Extensions};
use serde_json::Value;

#[test]
fn a_file_of_servers_is_read_or_refused_without_showing_a_secret() {
    let environment: Environment = [("SECRET", super::SECRET)].into_iter().collect();
    super::fuzz("extensions", |bytes, _| {
        let text = String::from_utf8_lossy(bytes);
        let read = || Extensions::parse(&text, Path::new("extensions_config.json"), &environment);
        let loaded = match read() {
            Ok(loaded) => loaded,
            Err(error) => {
                assert!(error.0.starts_with("extensions_config.json"), "{error}");
                assert_eq!(read().unwrap_err(), error, "the verdict is the same");
                if !names_tools_by_it(&text) {
                    super::keeps_secret(&error.0);
                }
                return;
            }
        };
        loaded.warnings.iter().for_each(|warning| super::keeps_secret(warning));
        super::keeps_secret(&loaded.json().to_string());
        for (name, server) in &loaded.servers {
            assert_eq!(name, &server.name);
            assert_eq!(server.digest().len(), 64);
            assert!(server.max_concurrent_calls.is_none_or(|calls| (1..=4_096).contains(&calls)));
            let set = [server.session_init_timeout, server.tool_call_timeout];
            assert!(set.into_iter().flatten().all(|timeout| !timeout.is_zero()), "{set:?}");
        }
        // The document is the file's, unknown keys and all (80, 83).
        let document: Value = serde_json::from_str(text.trim_start_matches('\u{feff}')).unwrap();
        assert_eq!(loaded.document.expose(), &document);
        let again = loaded.document.expose().to_string();
        let again = Extensions::parse(&again, Path::new("extensions_config.json"), &environment).unwrap();
        assert_eq!(again.document, loaded.document, "written and read again it says the same");
        assert!(again.servers.keys().eq(loaded.servers.keys()));
    });
}

/// Names of tasks and tools are no secrets: messages show them, even where a variable holds them.
fn names_tools_by_it(text: &str) -> bool {
    let document: Value = serde_json::from_str(text.trim_start_matches('\u{feff}')).unwrap_or_default();
    let servers = document["mcpServers"].as_object().into_iter().flat_map(|servers| servers.values());
    servers.into_iter().any(|server| server["task_toolsets"].to_string().contains("$SECRET"))
}
