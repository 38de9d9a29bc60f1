//! Starting: what is refused, and what needs no configuration at all (invariant 10).

use mcp_taskd_tests::daemon::{Daemon, Output, Site};
use mcp_taskd_tests::postgres;
use mcp_taskd_tests::wait::until;
use serde_json::json;

use crate::{PROGRAM, fake, site};

/// A server that is not there: nothing is asked before the configuration is known to be usable.
fn with_tasks() -> Site {
    site().server("s", "http://127.0.0.1:9/mcp")
}

#[track_caller]
fn refuses(output: &Output, code: i32, names: &[&str]) {
    assert_eq!(output.code, Some(code), "{}", output.stderr);
    assert_eq!(output.stdout, "", "diagnostics go to standard error");
    for name in names {
        assert!(output.stderr.contains(name), "{name} is not named in {}", output.stderr);
    }
}

#[tokio::test]
async fn a_configuration_that_cannot_be_used_is_exit_78_and_names_the_key_30_31() {
    let serve = &["serve"][..];
    let unknown = site().set("mcp_tasks.poll_intervall_seconds", 3).run(serve).await;
    refuses(&unknown, 78, &["line ", "mcp_tasks.poll_intervall_seconds", "poll_interval_seconds?"]);
    let out_of_range = site().set("mcp_tasks.lease_seconds", 4).run(serve).await;
    refuses(&out_of_range, 78, &["mcp_tasks.lease_seconds", "from 5 to 3600"]);
    let disabled = with_tasks().set("mcp_tasks.enabled", false).run(serve).await;
    refuses(&disabled, 78, &["mcpServers.s.task_toolsets", "mcp_tasks.enabled=true"]);
    let memory = with_tasks().set("database.backend", "memory").run(serve).await;
    refuses(&memory, 78, &["database.backend", "sqlite or postgres"]);
    let open = site().set("server.listen", "0.0.0.0:8787").run(serve).await;
    refuses(&open, 78, &["server.listen", "auth.mode", "loopback"]);
    let no_url = site().set("database.backend", "postgres").run(serve).await;
    refuses(&no_url, 78, &["database.postgres_url", "DATABASE_URL"]);
    let unusable = site().server_with("s", "", false, json!({"type": "carrier-pigeon"})).run(serve).await;
    refuses(&unusable, 78, &["mcpServers.s"]);
}

#[tokio::test]
async fn a_file_that_was_named_and_is_not_there_is_exit_78() {
    let site = site();
    let output = site.run_in(site.path(), &["serve", "--config", "nowhere.yaml"]).await;
    refuses(&output, 78, &["--config", "nowhere.yaml"]);
    let output = site.run_in(site.path(), &["serve", "--extensions-config", "nowhere.json"]).await;
    refuses(&output, 78, &["--extensions-config", "nowhere.json"]);
}

#[tokio::test]
async fn a_wrong_command_line_is_exit_64() {
    let site = site();
    for wrong in [&["fly"][..], &["serve", "--role", "king"], &["tasks", "get"], &["--set", "x"]] {
        refuses(&site.run_in(site.path(), wrong).await, 64, &[]);
    }
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refuses(
        &site().set("server.listen", address.as_str()).run(&["serve"]).await,
        1,
        &["--set server.listen=", &address],
    );
}

#[tokio::test]
async fn an_old_schema_is_exit_78_and_names_the_command_that_helps_157() {
    let database = postgres::database().await;
    let site = with_tasks().postgres(database.url());
    refuses(&site.run(&["serve"]).await, 78, &["migrate up"]);
    assert_eq!(site.run(&["migrate", "status"]).await.code, Some(1));
    site.migrate().await;
    assert_eq!(site.run(&["migrate", "status"]).await.code, Some(0));
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    daemon.stop().await;
}

/// The store is waited for; whoever started the daemon need not wait with it.
#[tokio::test]
async fn a_start_that_waits_for_its_store_can_be_interrupted() {
    let site = with_tasks().postgres("postgres://nobody@127.0.0.1:9/nothing");
    let mut daemon = site.daemon("taskd");
    daemon.spawn();
    until("it waits", || async { daemon.log().contains("the store cannot be reached") }).await;
    daemon.sigterm();
    assert_eq!(daemon.wait().await.code(), Some(1));
    assert!(!daemon.log().contains("nobody@"), "an address may hold a password");
}

#[tokio::test]
async fn nothing_has_to_be_configured() {
    let site = site();
    let folder = site.path().join("a/b/home");
    std::fs::create_dir_all(&folder).unwrap();
    let mut daemon = Daemon::unconfigured(PROGRAM, &folder);
    daemon.start().await;
    assert!(daemon.api.tasks().await.unwrap().is_empty());
    assert_eq!(daemon.api.workers().await.unwrap().len(), 1);
    daemon.stop().await;
    assert!(folder.join(".mcp-taskd/mcp-taskd.sqlite3").is_file());
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [".mcp-taskd"], "everything lies in one folder");
}

/// The first request may come with the first probe.
#[tokio::test]
async fn a_server_that_is_not_there_holds_up_no_start() {
    let live = fake().await;
    let site = with_tasks().server("live", &live.url);
    let mut daemon = site.daemon("taskd");
    let took = daemon.start().await;
    eprintln!("ready after {took:?}");
    daemon.api.submit("live", &json!({"polls": 1}), None).await.unwrap();
    daemon.stop().await;
}
