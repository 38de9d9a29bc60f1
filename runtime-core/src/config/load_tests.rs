//! Where settings come from, and what is wrong with them.

use std::fs;

use secrecy::ExposeSecret as _;

use super::super::schema::Kind;
use super::*;

/// Loads `yaml` as `config.yaml` of a folder of its own.
fn load_with(yaml: &str, environment: &[(&str, &str)], overrides: &[(&str, &str)]) -> Result<Loaded, String> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.yaml"), yaml).unwrap();
    Settings::load(&LoadOptions {
        path: None,
        directory: folder.path().to_owned(),
        environment: environment.iter().copied().collect(),
        overrides: overrides.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
    })
    .map_err(|error| error.0)
}

fn load(yaml: &str) -> Result<Loaded, String> {
    load_with(yaml, &[], &[])
}

fn refused(yaml: &str) -> String {
    load(yaml).expect_err(yaml)
}

#[test]
fn nothing_at_all_is_fine() {
    let folder = tempfile::tempdir().unwrap();
    let options = LoadOptions { directory: folder.path().to_owned(), ..LoadOptions::default() };
    let loaded = Settings::load(&options).unwrap();
    assert_eq!((loaded.path, loaded.warnings), (None, Vec::new()));
    assert_eq!(loaded.settings.database.backend, Backend::Sqlite);
    assert!(loaded.settings.server.listen.ip().is_loopback());
    assert_eq!(loaded.settings.mcp_tasks.lease_seconds, 120);
}

#[test]
fn flags_win_over_environment_over_file_over_defaults() {
    let yaml = "mcp_tasks: { lease_seconds: 10, poll_interval_seconds: 2, max_held: 7 }\n";
    let environment = [("MCP_TASKD__MCP_TASKS__LEASE_SECONDS", "20"), ("MCP_TASKD__MCP_TASKS__MAX_HELD", "8")];
    let loaded = load_with(yaml, &environment, &[("mcp_tasks.lease_seconds", "30")]).unwrap();
    let tasks = loaded.settings.mcp_tasks;
    assert_eq!((tasks.lease_seconds, tasks.max_held, tasks.poll_interval_seconds), (30, 8, 2));
    assert_eq!(tasks.max_concurrent_polls, 8);
}

#[test]
fn a_named_file_has_to_exist_76() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("nowhere.yaml");
    let mut options = LoadOptions { path: Some(missing.clone()), ..LoadOptions::default() };
    let error = Settings::load(&options).unwrap_err().0;
    assert!(error.contains("--config") && error.contains("nowhere.yaml"), "{error}");
    options.path = None;
    options.environment = [("MCP_TASKD_CONFIG", missing.to_str().unwrap())].into_iter().collect();
    assert!(Settings::load(&options).unwrap_err().0.contains("$MCP_TASKD_CONFIG"));
    fs::write(&missing, "mcp_tasks: { lease_seconds: 9 }").unwrap();
    assert_eq!(Settings::load(&options).unwrap().settings.mcp_tasks.lease_seconds, 9);
}

#[test]
fn an_unknown_key_names_line_column_and_the_nearest_key() {
    let error = refused("server:\n  listen: 127.0.0.1:1\nmcp_tasks:\n  lease_secnds: 30\n");
    assert!(error.contains("line 4, column 3"), "{error}");
    assert!(error.contains("mcp_tasks.lease_secnds") && error.contains("did you mean lease_seconds?"), "{error}");
    let error = load_with("", &[("MCP_TASKD__MCP_TASKS__LEASE_SECOND", "1")], &[]).unwrap_err();
    assert!(
        error.contains("MCP_TASKD__MCP_TASKS__LEASE_SECOND") && error.contains("mcp_tasks.lease_seconds"),
        "{error}"
    );
    assert!(load_with("", &[], &[("nonsense", "1")]).unwrap_err().contains("nonsense"));
}

#[test]
fn another_programs_sections_are_warnings_and_misspelt_ones_errors() {
    let loaded = load("models:\n  - name: x\nlog_level: info\n").unwrap();
    assert_eq!(loaded.warnings.len(), 2);
    assert!(loaded.warnings[0].contains("models") && loaded.warnings[0].contains("line 1"));
    let error = refused("mcp_task:\n  enabled: true\n");
    assert!(error.contains("did you mean mcp_tasks?"), "{error}");
    assert!(refused("databse: {}\n").contains("database"));
}

#[test]
fn every_range_is_checked_and_named_30() {
    for key in schema::KEYS {
        let Kind::Integer(min, max) = key.kind else { continue };
        let at = |value: i64| load_with("", &[], &[(key.path, &value.to_string())]);
        assert!(at(min).is_ok() && at(max).is_ok(), "{}", key.path);
        for bad in [min - 1, max + 1] {
            let error = at(bad).unwrap_err();
            let named = error.contains(key.path)
                && error.contains(&format!("{min} to {max}"))
                && error.contains(&format!("not {bad}"));
            assert!(named, "{error}");
        }
        let (section, name) = key.path.split_once('.').unwrap();
        for bad in ["5.5", "\"7\"", "true", "[7]", "1e1", "999999999999999999999"] {
            let error = refused(&format!("{section}: {{ {name}: {bad} }}"));
            assert!(error.contains(key.path) && error.contains("line 1"), "{error}");
        }
        assert_eq!(load(&format!("{section}: {{ {name}: null }}")).is_ok(), key.nullable, "{}", key.path);
    }
}

#[test]
fn other_values_have_their_kinds_too() {
    for (yaml, named) in [
        ("mcp_tasks: { enabled: 1 }", "true or false"),
        ("database: { backend: mysql }", "memory, sqlite, postgres"),
        ("server: { listen: here }", "127.0.0.1:8787"),
        ("gateway: { on_missing_tool: ignore }", "fail_all, hide_server"),
        ("guardrails: { provider: { config: { denied_tools: a } } }", "list of texts"),
        ("server: 5", "server is no mapping"),
        ("- a", "no mapping"),
        ("webhooks: {}", "webhooks must be a list"),
        ("mcp_tasks: { enabled: true, enabled: false }", "line 1"),
    ] {
        let error = refused(yaml);
        assert!(error.contains(named), "{yaml}: {error}");
    }
    let names = [("MCP_TASKD__GUARDRAILS__PROVIDER__CONFIG__DENIED_TOOLS", "[a, b]")];
    let loaded = load_with("", &names, &[]).unwrap();
    assert_eq!(loaded.settings.guardrails.provider.config.denied_tools, ["a", "b"]);
}

#[test]
fn whole_values_come_from_the_environment_77() {
    let yaml = "mcp_tasks: { lease_seconds: $LEASE }\nserver: { state_dir: $DIR }\nguardrails: { provider: { config: { denied_tools: [$T, \"a $T\"] } } }\n";
    let loaded = load_with(yaml, &[("LEASE", "44"), ("DIR", "/d"), ("T", "x")], &[]).unwrap();
    assert_eq!(loaded.settings.mcp_tasks.lease_seconds, 44);
    assert_eq!(loaded.settings.guardrails.provider.config.denied_tools, ["x", "a $T"]);
    let loaded = load("database: { sqlite_dir: $NOWHERE }").unwrap();
    assert_eq!(loaded.settings.database.sqlite_dir, None);
    assert!(loaded.warnings[0].contains("database.sqlite_dir") && loaded.warnings[0].contains("NOWHERE"));
    assert!(refused("mcp_tasks: { lease_seconds: $NOWHERE }").contains("mcp_tasks.lease_seconds"));
}

#[test]
fn the_postgres_url_is_needed_only_where_it_is_used() {
    let loaded = load("database: { postgres_url: $DATABASE_URL }").unwrap();
    assert_eq!(loaded.warnings, Vec::<String>::new());
    for yaml in ["database: { backend: postgres, postgres_url: $DATABASE_URL }", "database: { backend: postgres }"] {
        let error = refused(yaml);
        assert!(error.contains("database.postgres_url") && error.contains("DATABASE_URL"), "{error}");
        let loaded = load_with(yaml, &[("DATABASE_URL", "postgres://u:pw@h/d")], &[]).unwrap();
        assert_eq!(loaded.settings.database.postgres_url.unwrap().expose_secret(), "postgres://u:pw@h/d");
    }
    for other in ["mysql://u:hunter2@h/d", "hunter2"] {
        let error = load(&format!("database: {{ backend: postgres, postgres_url: '{other}' }}")).unwrap_err();
        assert!(error.contains("line 1") && error.contains("must begin with postgres://"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
        assert!(load(&format!("database: {{ postgres_url: '{other}' }}")).is_ok(), "it is not used");
    }
}

#[test]
fn secrets_can_come_from_files_and_are_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("url");
    fs::write(&file, "postgres://u:hunter2@h/d\n").unwrap();
    let yaml = format!("database: {{ backend: postgres, postgres_url_file: {} }}", file.display());
    let loaded = load(&yaml).unwrap();
    assert_eq!(loaded.settings.database.postgres_url.as_ref().unwrap().expose_secret(), "postgres://u:hunter2@h/d");
    assert!(!format!("{loaded:?}").contains("hunter2"));
    assert_eq!(loaded.settings.json()["database"]["postgres_url"], "***");
    let both = format!("database: {{ postgres_url: x, postgres_url_file: {} }}", file.display());
    assert!(refused(&both).contains("not both"));
    let missing = load_with("", &[("MCP_TASKD__DATABASE__POSTGRES_URL_FILE", "/nowhere/x")], &[]).unwrap_err();
    assert!(missing.contains("database.postgres_url_file") && missing.contains("/nowhere/x"), "{missing}");
}

#[test]
fn without_authentication_only_loopback_is_listened_on() {
    let error = refused("server: { listen: 0.0.0.0:8787 }");
    assert!(error.contains("auth.mode") && error.contains("server.listen") && error.contains("0.0.0.0"), "{error}");
    assert!(load("server: { listen: \"[::1]:80\" }").is_ok());
    assert!(load("server: { listen: 0.0.0.0:1 }\nauth: { mode: api_key }").is_ok());
}

#[test]
fn the_documented_example_loads() {
    let yaml = r"
server:    { state_dir: .mcp-taskd, listen: 127.0.0.1:8787, admin_listen: null, shutdown_grace_seconds: 30 }
database:  { backend: sqlite, sqlite_dir: null, postgres_url: $DATABASE_URL, max_connections: 10 }
mcp_tasks:
  enabled: true
  max_task_age_seconds: null
  retention_days: 30
tool_search: { enabled: false, auto_promote_top_k: 3 }
guardrails:  { enabled: false, provider: { use: allowlist, config: { denied_tools: [], allowed_tools: null } } }
gateway:     { builtin_tools: true, on_missing_tool: fail_all }
auth:        { mode: none }
deployment:  { multi_instance: false }
webhooks:    []
";
    let loaded = load(yaml).unwrap();
    assert_eq!(loaded.warnings, Vec::<String>::new());
    let mut shown = loaded.settings.json();
    let defaults = Settings::default().json();
    assert_eq!(shown["mcp_tasks"].take(), defaults["mcp_tasks"]);
}

#[test]
fn what_a_variable_holds_is_not_shown_where_it_does_not_fit_37() {
    let secret = [("SECRET", "postgres://u:hunter2@h/d")];
    for yaml in [
        "server: {listen: $SECRET}",
        "database: {backend: $SECRET}",
        "mcp_tasks: {poll_interval_seconds: $SECRET}",
        "database: {postgres_url_file: $SECRET}",
    ] {
        let error = load_with(yaml, &secret, &[]).unwrap_err();
        assert!(error.contains("config.yaml") && !error.contains("hunter2"), "{error}");
    }
    // The secret where its file belongs.
    let error = load_with("", &[("MCP_TASKD__DATABASE__POSTGRES_URL_FILE", "postgres://u:hunter2@h/d")], &[]);
    let error = error.unwrap_err();
    assert!(error.contains("postgres_url_file") && !error.contains("hunter2"), "{error}");
}

#[test]
fn everything_that_is_wrong_is_told_at_once_with_its_line() {
    let yaml = "server:\n  listen: here\nmcp_tasks:\n  lease_secnds: 30 # hunter2\n  max_held: 0\n";
    let error = load_with(yaml, &[("MCP_TASKD__MCP_TASKS__ENABLED", "perhaps")], &[]).unwrap_err();
    let lines: Vec<_> = error.lines().filter(|line| !line.starts_with(' ')).collect();
    assert_eq!(lines.len(), 4, "{error}");
    for (named, shown) in [
        ("line 4, column 3: unknown key mcp_tasks.lease_secnds", "    4 |   lease_secnds: …"),
        ("line 2, column 3: server.listen must be", "    2 |   listen: …"),
        ("line 5, column 3: mcp_tasks.max_held must be an integer", "    5 |   max_held: 0"),
        ("ENABLED: mcp_tasks.enabled must be true or false", "      |   ^"),
    ] {
        assert!(error.contains(named) && error.contains(shown), "{named}: {error}");
    }
    assert!(!error.contains("hunter2"), "{error}");
    let broken = refused("a: [hunter2\n");
    assert!(broken.contains("not usable as YAML") && broken.contains(" | ") && !broken.contains("hunter2"), "{broken}");
}
