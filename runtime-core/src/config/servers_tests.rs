//! Servers and toolsets, read and refused.

use std::fs;
use std::time::Duration;

use secrecy::ExposeSecret as _;
use serde_json::json;

use super::super::Transport;
use super::*;

fn parse_with(document: &Value, environment: &[(&str, &str)]) -> Result<Extensions, String> {
    let environment = environment.iter().copied().collect();
    Extensions::parse(&document.to_string(), Path::new("e.json"), &environment).map_err(|error| error.0)
}

fn one(server: &Value) -> Result<Extensions, String> {
    parse_with(&json!({"mcpServers": {"s": server}}), &[])
}

fn toolset() -> Value {
    json!({"name": "r", "submit_tool": "a", "status_tool": "b", "cancel_tool": "c"})
}

fn with_toolsets(toolsets: &Value) -> Result<Extensions, String> {
    one(&json!({"type": "http", "url": "http://h/mcp", "task_toolsets": toolsets}))
}

#[test]
fn the_file_is_looked_for_in_order_76_142() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let write = |path: &str, name: &str| {
        let path = folder.path().join(path);
        fs::write(&path, json!({"mcpServers": {name: {"command": "x"}}}).to_string()).unwrap();
        path
    };
    let load = |explicit: Option<&Path>, environment: &[(&str, &str)]| {
        let environment = environment.iter().copied().collect();
        Extensions::load(explicit, &environment, &inner).map(|loaded| loaded.servers.keys().next().cloned())
    };
    assert_eq!(load(None, &[]).unwrap(), None, "nothing found is an empty configuration");
    for (path, name) in [
        ("mcp_config.json", "d"),
        ("inner/mcp_config.json", "c"),
        ("extensions_config.json", "b"),
        ("inner/extensions_config.json", "a"),
    ] {
        write(path, name);
        assert_eq!(load(None, &[]).unwrap().as_deref(), Some(name));
    }
    let (theirs, ours, flag) = (write("t.json", "theirs"), write("o.json", "ours"), write("f.json", "flag"));
    let theirs = ("DEER_FLOW_EXTENSIONS_CONFIG_PATH", theirs.to_str().unwrap());
    let ours = ("MCP_TASKD_EXTENSIONS_CONFIG_PATH", ours.to_str().unwrap());
    assert_eq!(load(None, &[theirs]).unwrap().as_deref(), Some("theirs"));
    assert_eq!(load(None, &[theirs, ours]).unwrap().as_deref(), Some("ours"));
    assert_eq!(load(Some(&flag), &[ours]).unwrap().as_deref(), Some("flag"));
    let missing = load(None, &[("DEER_FLOW_EXTENSIONS_CONFIG_PATH", "/nowhere.json")]).unwrap_err().0;
    assert!(missing.contains("$DEER_FLOW_EXTENSIONS_CONFIG_PATH") && missing.contains("/nowhere.json"), "{missing}");
    assert!(load(Some(Path::new("/nowhere.json")), &[]).unwrap_err().0.contains("--extensions-config"));
}

#[test]
fn broken_json_names_path_line_and_column_76() {
    let text = "{\n  \"mcpServers\": {\"s\": {\"headers\": {\"A\": \"hunter2\" \"B\"}}}\n}";
    let error = Extensions::parse(text, Path::new("e.json"), &Environment::default()).unwrap_err().0;
    assert!(error.contains("e.json, line 2, column"), "{error}");
    assert!(!error.contains("hunter2"));
    assert!(parse_with(&json!([]), &[]).unwrap_err().contains("e.json"));
}

#[test]
fn references_are_whole_strings_at_any_depth_77() {
    let server = json!({"type": "http", "url": "$URL", "headers": {"A": "$KEY", "B": "Bearer $KEY", "C": "$NONE"},
        "session_init_timeout": "$LIMIT"});
    let document = json!({"mcpServers": {"s": server}});
    let loaded = parse_with(&document, &[("URL", "http://h/mcp"), ("KEY", "k"), ("LIMIT", "2.5")]).unwrap();
    let Transport::Http { url, headers } = &loaded.servers["s"].transport else { panic!() };
    assert_eq!(url, "http://h/mcp");
    let values: Vec<_> = headers.iter().map(|(_, value)| value.expose_secret()).collect();
    assert_eq!(values, ["k", "Bearer $KEY", ""]);
    assert_eq!(loaded.servers["s"].session_init_timeout, Some(Duration::from_millis(2_500)));
    assert_eq!(loaded.warnings.len(), 1);
    assert!(loaded.warnings[0].contains("mcpServers.s.headers.C") && loaded.warnings[0].contains("NONE"));
    assert_eq!(loaded.json()["mcpServers"]["s"]["url"], "$URL", "what is shown is the file, not the environment");
}

#[test]
fn type_wins_over_transport_and_stdio_is_the_default_78() {
    let kind = |server: Value| match one(&server).unwrap().servers.swap_remove("s").map(|server| server.transport) {
        Some(Transport::Stdio { .. }) => "stdio",
        Some(Transport::Http { .. }) => "http",
        Some(Transport::Sse { .. }) => "sse",
        None => "skipped",
    };
    let (command, url) = ("x", "http://h/mcp");
    assert_eq!(kind(json!({"command": command})), "stdio");
    assert_eq!(kind(json!({"transport": "http", "url": url})), "http");
    assert_eq!(kind(json!({"transport": "http", "type": "sse", "url": url})), "sse");
    assert_eq!(kind(json!({"type": "pigeon", "url": url})), "skipped");
}

#[test]
fn a_server_that_cannot_be_used_for_want_of_a_variable_says_so() {
    let toolsets = json!([{"name": "r", "submit_tool": "a", "status_tool": "b", "cancel_tool": "c"}]);
    let skipped = json!({"mcpServers": {"s": {"type": "http", "url": "$NOWHERE"}}}).to_string();
    let skipped = Extensions::parse(&skipped, Path::new("e.json"), &Environment::default()).unwrap();
    assert!(skipped.warnings[0].contains("s.url") && skipped.warnings[0].contains("NOWHERE"), "{:?}", skipped.warnings);
    let refused =
        json!({"mcpServers": {"s": {"type": "http", "url": "$NOWHERE", "task_toolsets": toolsets}}}).to_string();
    let error = Extensions::parse(&refused, Path::new("e.json"), &Environment::default()).unwrap_err();
    assert!(error.0.contains("task_toolsets") && error.0.contains("NOWHERE"), "{error}");
}

#[test]
fn an_unusable_server_is_skipped_and_one_with_tasks_refused_32_79_121() {
    for server in [
        json!({}),
        json!({"command": ""}),
        json!({"type": "http"}),
        json!({"type": "sse"}),
        json!({"type": "http", "url": "ftp://h"}),
        json!({"type": "sse", "url": "/sse"}),
        json!({"type": "sse", "url": "http://h/sse", "headers": {"A": " hunter2"}}),
        json!({"type": "pigeon"}),
        json!({"type": "http", "url": "http://h", "headers": {"A": "hunter2\n"}}),
        json!({"type": "http", "url": "http://h", "headers": {"A b": "x"}}),
        json!({"command": "x", "env": {"A": 1}}),
    ] {
        let loaded = parse_with(&json!({"mcpServers": {"s": server, "t": {"command": "x"}}}), &[]).unwrap();
        assert_eq!(loaded.servers.keys().collect::<Vec<_>>(), ["t"], "others load");
        assert!(loaded.warnings.iter().any(|warning| warning.contains("mcpServers.s is skipped")), "{server}");
        assert!(!format!("{loaded:?}").contains("hunter2"));
        let mut tasks = server.clone();
        tasks["task_toolsets"] = json!([toolset()]);
        let error = one(&tasks).unwrap_err();
        assert!(
            error.contains("mcpServers.s") && error.contains("task_toolsets") && !error.contains("hunter2"),
            "{error}"
        );
        tasks["enabled"] = false.into();
        assert!(one(&tasks).is_ok(), "not while it is disabled");
    }
}

#[test]
fn unknown_keys_are_kept_and_warned_about_80() {
    let loaded = one(&json!({"command": "x", "disabled": true, "oauth": {"enabled": false, "odd": 1}})).unwrap();
    assert_eq!(loaded.warnings.len(), 1);
    assert!(loaded.warnings[0].contains("mcpServers.s.disabled"));
    assert_eq!(loaded.servers["s"].definition.expose()["disabled"], true);
    let error = one(&json!({"command": "x", "routing": {"mode": "prefer", "weight": 1}})).unwrap_err();
    assert!(error.contains("mcpServers.s.routing") && error.contains("weight"), "{error}");
}

#[test]
fn timeouts_are_positive_and_finite_or_null_81() {
    let server = |timeouts: Value| {
        let mut server = json!({"command": "x"});
        server.as_object_mut().unwrap().extend(timeouts.as_object().unwrap().clone());
        one(&server).map(|loaded| {
            let server = &loaded.servers["s"];
            (server.session_init_timeout, server.tool_call_timeout)
        })
    };
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(server(json!({})).unwrap(), (seconds(60), None));
    assert_eq!(server(json!({"session_init_timeout": null, "tool_call_timeout": null})).unwrap(), (None, None));
    assert_eq!(server(json!({"session_init_timeout": 5, "tool_call_timeout": 7})).unwrap(), (seconds(5), seconds(7)));
    for key in ["session_init_timeout", "tool_call_timeout"] {
        for bad in
            [json!(0), json!(-1), json!("NaN"), json!("inf"), json!(1e300), json!(true), json!("soon"), json!([])]
        {
            let error = server(json!({key: bad})).unwrap_err();
            assert!(error.contains(&format!("mcpServers.s.{key}")), "{error}");
        }
    }
}

#[test]
fn a_call_limit_that_ordinary_tools_ignore_is_warned_about_109() {
    let warnings = |server: &Value| one(server).unwrap().warnings;
    for kind in ["http", "sse"] {
        let warnings = warnings(&json!({"type": kind, "url": "http://h/mcp", "tool_call_timeout": 7}));
        assert!(warnings.len() == 1 && warnings[0].contains("mcpServers.s.tool_call_timeout"), "{warnings:?}");
    }
    for quiet in [
        json!({"command": "x", "tool_call_timeout": 7}),
        json!({"type": "http", "url": "http://h/mcp", "tool_call_timeout": null}),
        json!({"type": "http", "url": "http://h/mcp", "tool_call_timeout": 7, "enabled": false}),
    ] {
        assert!(warnings(&quiet).is_empty(), "{quiet}");
    }
}

#[test]
fn an_empty_working_directory_is_none_82() {
    let cwd = |value: Value| match &one(&json!({"command": "x", "cwd": value})).unwrap().servers["s"].transport {
        Transport::Stdio { cwd, .. } => cwd.clone(),
        _ => panic!(),
    };
    assert_eq!(cwd(json!("/d")), Some("/d".into()));
    assert_eq!((cwd(json!("")), cwd(json!(null)), cwd(json!("$UNSET"))), (None, None, None));
}

#[test]
fn toolsets_are_checked_24_36_37() {
    let loaded = with_toolsets(&json!([toolset()])).unwrap();
    assert!(loaded.servers["s"].has_toolsets());
    assert_eq!(loaded.servers["s"].toolsets[0].input_tool, None);
    let with = |change: Value| {
        let mut toolset = toolset();
        toolset.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        with_toolsets(&json!([toolset]))
    };
    for (change, named) in [
        (json!({"submit_tol": "x"}), "did you mean submit_tool?"),
        (json!({"name": ""}), "task_toolsets[0].name"),
        (json!({"name": "  "}), "task_toolsets[0].name"),
        (json!({"name": "n".repeat(256)}), "255"),
        (json!({"status_tool": ""}), "task_toolsets[0].status_tool"),
        (json!({"cancel_tool": null}), "task_toolsets[0].cancel_tool"),
        (json!({"input_tool": 5}), "task_toolsets[0].input_tool"),
        (json!({"idempotent_submit": "yes"}), "task_toolsets[0].idempotent_submit"),
        (json!({"status_tool": "a"}), "uses the tool a twice"),
        (json!({"input_tool": "c"}), "uses the tool c twice"),
    ] {
        let error = with(change).unwrap_err();
        assert!(error.contains("mcpServers.s") && error.contains(named), "{error}");
    }
    assert!(with(json!({"name": "ü".repeat(255), "input_tool": "d", "idempotent_submit": true})).is_ok());
    let other = json!({"name": "q", "submit_tool": "d", "status_tool": "e", "cancel_tool": "b"});
    assert!(with_toolsets(&json!([toolset(), other])).unwrap_err().contains("uses the tool b twice"), "across groups");
    assert!(with_toolsets(&json!([toolset(), toolset()])).unwrap_err().contains("named r"));
    assert!(with_toolsets(&json!({})).unwrap_err().contains("list"));
}

#[test]
fn a_native_toolset_names_its_submit_tool_alone_36_37() {
    let with = |more: Value| {
        let mut toolset = json!({"name": "render", "submit_tool": "render_video", "driver": "native"});
        toolset.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        with_toolsets(&json!([toolset, self::toolset()]))
    };
    let loaded = with(json!({"idempotent_submit": true, "input_tool": null})).unwrap();
    let toolsets = &loaded.servers["s"].toolsets;
    assert_eq!(toolsets.iter().map(crate::task::Toolset::driver).collect::<Vec<_>>(), ["native", "tools"]);
    assert_eq!(toolsets[0].tools().collect::<Vec<_>>(), ["render_video"]);
    assert_eq!(toolsets[1].hidden_tools().collect::<Vec<_>>(), ["b", "c"]);
    for (more, named) in [
        (json!({"status_tool": "x"}), "task_toolsets[0].status_tool has no place beside driver \"native\""),
        (json!({"cancel_tool": "x"}), "task_toolsets[0].cancel_tool has no place"),
        (json!({"input_tool": "x"}), "task_toolsets[0].input_tool has no place"),
        (json!({"driver": "nativ"}), "task_toolsets[0].driver must be \"tools\" or \"native\""),
        (json!({"driver": 1}), "task_toolsets[0].driver must be"),
        (json!({"driver": "tools"}), "task_toolsets[0].status_tool must be a text"),
        (json!({"driver": null}), "task_toolsets[0].status_tool must be a text"),
        (json!({"submit_tool": "b"}), "uses the tool b twice"),
    ] {
        let error = with(more).unwrap_err();
        assert!(error.contains("mcpServers.s") && error.contains(named), "{error}");
    }
    let mut named = toolset();
    named["driver"] = "tools".into();
    assert!(with_toolsets(&json!([named])).is_ok(), "the default may be written out");
}

#[test]
fn a_server_with_tasks_has_a_short_name_24() {
    let named = |name: &str, toolsets: &Value| {
        parse_with(&json!({"mcpServers": {name: {"command": "x", "task_toolsets": toolsets}}}), &[])
    };
    assert!(named(&"n".repeat(128), &json!([toolset()])).is_ok());
    assert!(named(&"n".repeat(129), &json!([toolset()])).unwrap_err().contains("128"));
    assert!(named(" ", &json!([toolset()])).is_err());
    assert!(named(&"n".repeat(300), &json!([])).is_ok(), "without tasks any name is good");
}

#[test]
fn two_servers_may_use_the_same_tools_37() {
    let server = json!({"command": "x", "task_toolsets": [toolset()]});
    assert!(parse_with(&json!({"mcpServers": {"s": server, "t": server}}), &[]).is_ok());
}

#[test]
fn interceptors_are_a_text_or_a_list_127_139() {
    let of = |value: Value| parse_with(&json!({"mcpInterceptors": value}), &[]);
    let loaded = of(json!("pkg.auth:build")).unwrap();
    assert_eq!(loaded.interceptors, [Interceptor::Python("pkg.auth:build".into())]);
    assert!(loaded.warnings[0].contains("pkg.auth:build"));
    let loaded = of(json!([{"name": "gate", "url": "http://h"}])).unwrap();
    assert!(matches!(&loaded.interceptors[0], Interceptor::Http(http) if http.name == "gate"));
    assert!(of(json!([5])).is_err());
    let error = of(json!(["a:b", {"name": "gate", "url": "http://h", "on_error": "x"}])).unwrap_err();
    assert!(error.contains("mcpInterceptors[1].on_error"), "{error}");
    let twice = json!([{"name": "gate", "url": "http://h"}, {"name": "gate", "url": "http://i"}]);
    assert!(of(twice).unwrap_err().contains("mcpInterceptors[1].name"));
}

#[test]
fn static_secrets_never_reach_debug_output() {
    let loaded = parse_with(
        &json!({"mcpServers": {
            "s": {"command": "x", "env": {"T": "hunter2"}, "token": "hunter2"},
            "h": {"type": "http", "url": "http://h", "headers": {"T": "hunter2"}},
        }}),
        &[],
    )
    .unwrap();
    assert!(!format!("{loaded:?}").contains("hunter2"));
    assert!(!loaded.json().to_string().contains("hunter2"));
}

#[test]
fn what_a_variable_holds_is_not_shown_where_it_does_not_fit_37() {
    let document = json!({
        "mcpServers": {"a": {"type": "$SECRET", "url": "http://h"}},
        "mcpInterceptors": ["$SECRET", "pkg.auth:build"],
    });
    let loaded = parse_with(&document, &[("SECRET", "hunter2")]).unwrap();
    let warnings = loaded.warnings.join("\n");
    assert!(warnings.contains("mcpServers.a is skipped: its type is unknown"), "{warnings}");
    assert!(warnings.contains("pkg.auth:build") && !warnings.contains("hunter2"), "{warnings}");
}

#[test]
fn everything_that_is_wrong_with_servers_is_told_at_once_where_it_stands() {
    let text = "{\n  \"mcpServers\": {\n    \"a\": {\n      \"command\": \"x\",\n      \"env\": {\"K\": \"hunter2\"}, \"enabled\": \"yes\"\n    },\n\
                \"b\": {\"command\": \"x\", \"task_toolsets\": [{\"nme\": \"hunter2\"}]}\n  }\n}";
    let error = Extensions::parse(text, Path::new("e.json"), &Environment::default()).unwrap_err();
    let summary = error.summary();
    assert!(summary.contains("e.json, line 5, column 32: mcpServers.a.enabled must be true or false"), "{summary}");
    assert!(
        summary.contains("e.json, line 7, column 42: mcpServers.b.task_toolsets[0] has the unknown key nme"),
        "{summary}"
    );
    assert!(error.0.contains("    5 |       \"env\": {\"K\": …}, \"enabled\": …"), "{error}");
    assert!(!error.0.contains("hunter2"), "{error}");
}

#[test]
fn a_misspelt_key_has_the_one_that_was_meant_in_its_warning() {
    let loaded = one(&json!({"command": "x", "tool_call_timout": 5})).unwrap();
    assert!(loaded.warnings[0].ends_with("; did you mean tool_call_timeout?"), "{:?}", loaded.warnings);
    let loaded = parse_with(&json!({"mcpServer": {}}), &[]).unwrap();
    assert!(loaded.warnings[0].ends_with("; did you mean mcpServers?"), "{:?}", loaded.warnings);
}
