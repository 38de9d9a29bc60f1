//! `config.yaml`, and the variables that override it.

use mcp_taskd_core::config::{LoadOptions, Settings};

/// Variables that an input may set, its first line being the value.
const OVERRIDES: &[&str] = &[
    "MCP_TASKD__SERVER__LISTEN",
    "MCP_TASKD__MCP_TASKS__POLL_INTERVAL_SECONDS",
    "MCP_TASKD__DATABASE__BACKEND",
    "MCP_TASKD__DATABASE__POSTGRES_URL",
    "MCP_TASKD__AUTH__MODE",
    "MCP_TASKD__GATEWAY__ON_MISSING_TOOL",
    "MCP_TASKD__LOG__LEVEL",
    "MCP_TASKD__",
    "MCP_TASKD__A__B",
];

#[test]
fn settings_are_read_within_their_ranges_or_refused_without_showing_a_secret() {
    let folder = tempfile::tempdir().unwrap();
    super::fuzz("settings", |bytes, choice| {
        let text = String::from_utf8_lossy(bytes);
        std::fs::write(folder.path().join("config.yaml"), &*text).unwrap();
        let mut variables = vec![("SECRET".to_owned(), super::SECRET.to_owned())];
        if let Some(name) = OVERRIDES.get(usize::from(choice) % (2 * OVERRIDES.len())) {
            let value = text.lines().next().unwrap_or_default().split_once(':').map_or("", |(_, value)| value.trim());
            // A process's environment holds no U+0000.
            variables.push(((*name).to_owned(), value.replace('\0', "")));
        }
        let options = LoadOptions {
            directory: folder.path().to_owned(),
            environment: variables.into_iter().collect(),
            ..LoadOptions::default()
        };
        match Settings::load(&options) {
            Err(error) => {
                super::keeps_secret(&error.0);
                assert_eq!(Settings::load(&options).unwrap_err(), error, "the verdict is the same");
            }
            Ok(loaded) => {
                loaded.warnings.iter().for_each(|warning| super::keeps_secret(warning));
                super::keeps_secret(&format!("{:?}", loaded.settings.database));
                let tasks = &loaded.settings.mcp_tasks;
                assert!((1..=300).contains(&tasks.poll_interval_seconds));
                assert!((5..=3_600).contains(&tasks.lease_seconds));
                assert!((1_024..=10_485_760).contains(&tasks.max_result_bytes));
            }
        }
    });
}
