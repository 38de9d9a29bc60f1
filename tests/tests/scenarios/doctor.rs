//! The commands that look for what is wrong: `doctor`, `check-config`, `events replay`.

use mcp_taskd_tests::daemon::{free_port, has_ended, id_of};
use mcp_taskd_tests::wait::until;
use serde_json::{Value, json};

use crate::{fake, site};

const SECRET: &str = "hunter2-of-the-server";

fn status<'a>(checks: &'a Value, name: &str) -> &'a str {
    let check = checks.as_array().unwrap().iter().find(|check| check["check"] == name);
    check.unwrap_or_else(|| panic!("no {name} in {checks}"))["status"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doctor_finds_all_well_beside_a_daemon_and_its_bundle_holds_no_secret() {
    let fake = fake().await;
    let site = site().server_with("s", &fake.url, false, json!({"headers": {"X-Api-Key": SECRET}}));
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    let checks: Value = serde_json::from_str(&site.run(&["doctor", "--output", "json"]).await.success()).unwrap();
    for name in ["configuration", "store", "schema", "clocks", "workers", "tasks", "server s"] {
        assert_eq!(status(&checks, name), "ok", "{checks}");
    }
    let table = site.run(&["doctor"]).await.success();
    assert!(table.starts_with("CHECK") && table.contains("server s"), "{table}");
    let bundle = site.run(&["doctor", "--bundle"]).await.success();
    assert!(!bundle.contains(SECRET), "{bundle}");
    let bundle: Value = serde_json::from_str(&bundle).unwrap();
    assert_eq!(bundle["configuration"]["extensions_config"]["mcpServers"]["s"]["headers"]["X-Api-Key"], "***");
    assert_eq!((bundle["workers"].as_array().map(Vec::len), &bundle["stats"]["active"]), (Some(1), &json!(0)));
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doctor_names_what_is_wrong_and_exits_accordingly() {
    let away = format!("http://127.0.0.1:{}/mcp", free_port());
    let site = site().server("s", &away);
    site.migrate().await;
    let output = site.run(&["doctor", "--output", "json"]).await;
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    let checks: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((status(&checks, "server s"), status(&checks, "workers")), ("failed", "warning"), "{checks}");

    let postgres = crate::site().postgres(&format!("postgres://u:{SECRET}@127.0.0.1:{}/d", free_port()));
    let output = postgres.run(&["doctor", "--output", "json"]).await;
    assert_eq!(output.code, Some(69), "{}{}", output.stdout, output.stderr);
    assert!(!format!("{}{}", output.stdout, output.stderr).contains(SECRET));

    let output = crate::site().set("mcp_tasks.lease_secnds", 9).run(&["doctor", "--output", "json"]).await;
    assert_eq!(output.code, Some(78));
    assert!(output.stdout.contains("did you mean lease_seconds?"), "{}", output.stdout);
}

#[tokio::test]
async fn check_config_shows_each_mistake_with_its_line_and_no_secret() {
    let site = site().set("mcp_tasks.lease_secnds", 9).set("mcp_tasks.max_held", 0).server_with(
        "s",
        "http://127.0.0.1:1/mcp",
        false,
        json!({"enabled": SECRET}),
    );
    let output = site.run(&["check-config"]).await;
    assert_eq!((output.code, output.stdout.as_str()), (Some(78), ""));
    for said in [
        "unknown key mcp_tasks.lease_secnds; did you mean lease_seconds?",
        "mcp_tasks.max_held must be an integer from 1 to 1000000, not 0",
        "mcpServers.s.enabled must be true or false",
        "\"enabled\": …",
        "| ",
        "^",
    ] {
        assert!(output.stderr.contains(said), "{said}: {}", output.stderr);
    }
    assert!(!output.stderr.contains(SECRET), "{}", output.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_sends_events_again_from_where_it_is_told_to() {
    let fake = fake().await;
    let site = site().server("s", &fake.url);
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    for _ in 0..2 {
        let id = id_of(&daemon.api.submit("s", &json!({"polls": 0}), None).await.unwrap());
        until("the end", async || has_ended(&daemon.api.task(&id).await.unwrap())).await;
    }
    let all = site.run(&["events", "list", "--output", "jsonl"]).await.success();
    let lines: Vec<&str> = all.lines().collect();
    let sequence = |line: &str| serde_json::from_str::<Value>(line).unwrap()["sequence"].to_string();
    assert_eq!(site.run(&["events", "replay"]).await.success(), all);
    assert_eq!(site.run(&["events", "replay", "--url", &daemon.api.url]).await.success(), all);
    let (from, to) = (sequence(lines[1]), sequence(lines[2]));
    let some = site.run(&["events", "replay", "--from", &from, "--to", &to]).await.success();
    assert_eq!(some.lines().collect::<Vec<_>>(), lines[1..=2]);
    assert_eq!(site.run(&["events", "replay", "--to", "1", "--follow"]).await.code, Some(64));
    daemon.stop().await;
}
