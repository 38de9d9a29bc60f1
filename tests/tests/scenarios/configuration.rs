//! Daemons whose extensions file is changed while they run, by hand and over the API (BEHAVIOURS 33, 86–97).

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mcp_taskd_tests::daemon::{Api, ApiError, Site, has_ended, id_of};
use mcp_taskd_tests::fake::FakeServer;
use mcp_taskd_tests::postgres;
use mcp_taskd_tests::wait::until;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{fake, site};

const CONFIG: &str = "/api/mcp/config";

async fn ask(api: &Api, method: Method, path: &str, body: Option<&Value>) -> Value {
    api.request(method, path, body, None).await.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names of the tools that agents see.
async fn tools(api: &Api) -> Vec<String> {
    let catalogue = ask(api, Method::GET, "/api/mcp/tools", None).await;
    let tools = catalogue["tools"].as_array().expect("tools").iter();
    tools.map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
}

async fn sees(api: &Api, tool: &str) -> bool {
    tools(api).await.iter().any(|name| name == tool)
}

fn document(site: &Site) -> Value {
    let text = std::fs::read_to_string(site.path().join("extensions_config.json")).expect("the file");
    serde_json::from_str(&text).expect("JSON")
}

/// Edits the file as an editor does: the whole of it, in place.
fn edit(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("extensions_config.json");
    let mut document: Value = serde_json::from_str(&std::fs::read_to_string(&path).expect("the file")).expect("JSON");
    change(&mut document);
    std::fs::write(path, format!("{document:#}\n")).expect("writes");
}

/// The detail of a check of `/readyz?verbose`, where it is a warning.
async fn warning(api: &Api, name: &str) -> Option<String> {
    let report = ask(api, Method::GET, "/readyz?verbose", None).await;
    let check = report["checks"].as_array()?.iter().find(|check| check["name"] == name)?.clone();
    (check["status"] == "warning").then(|| check["detail"].as_str().unwrap_or_default().to_owned())
}

fn discoveries(fake: &FakeServer) -> u64 {
    fake.state.core.counters.lists.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_follow_a_shared_file_and_a_reset_92_94_97() {
    let database = postgres::database().await;
    let (reports, more) = (fake().await, fake().await);
    let site = site().postgres(database.url()).server("reports", &reports.url);
    site.migrate().await;
    let (mut first, mut second) = (site.daemon("first"), site.daemon("second"));
    tokio::join!(first.start(), second.start());
    for daemon in [&first, &second] {
        assert!(sees(&daemon.api, "reports_echo").await && !sees(&daemon.api, "more_echo").await);
    }

    // By hand: in effect with the next call, everywhere.
    let plain = json!({"type": "http", "url": more.url, "headers": {"X-Key": "hunter2"}});
    edit(site.path(), |document| document["mcpServers"]["more"] = plain.clone());
    for daemon in [&first, &second] {
        assert!(sees(&daemon.api, "more_echo").await);
    }
    // Over the API of one: the other has it with its next call too.
    let shown = ask(&first.api, Method::GET, CONFIG, None).await;
    assert_eq!(shown["mcp_servers"]["more"]["headers"]["X-Key"], "***");
    let mut change = shown.clone();
    change["mcp_servers"]["more"]["tool_name_prefix"] = json!(false);
    ask(&first.api, Method::PUT, CONFIG, Some(&change)).await;
    assert_eq!(document(&site)["mcpServers"]["more"]["headers"]["X-Key"], "hunter2");
    for daemon in [&first, &second] {
        assert!(sees(&daemon.api, "echo").await && !sees(&daemon.api, "more_echo").await);
    }
    ask(&second.api, Method::PATCH, CONFIG, Some(&json!({"server_name": "more", "enabled": false}))).await;
    for daemon in [&first, &second] {
        assert!(!sees(&daemon.api, "echo").await && sees(&daemon.api, "reports_echo").await);
    }

    // A reset at one makes the other ask again as well, by itself.
    let before = discoveries(&reports);
    let answer = ask(&first.api, Method::POST, "/api/mcp/cache/reset", Some(&json!({}))).await;
    assert_eq!((&answer["success"], &answer["scope"]), (&json!(true), &json!("shared_config")));
    // Two pages for each of the two.
    until("both have asked again", || async { discoveries(&reports) >= before + 4 }).await;
    for daemon in [&mut first, &mut second] {
        assert_eq!(daemon.api.count("config_last_reload_successful", &[]).await, 1);
        daemon.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_from_two_replicas_at_once_are_all_kept_92() {
    let fake = fake().await;
    let site = site().server("reports", &fake.url);
    let (mut first, mut second) = (site.daemon_in("first", "state"), site.daemon_in("second", "state"));
    tokio::join!(first.start(), second.start());
    let put = |api: Api, name: String| {
        let server = json!({"type": "http", "url": fake.url, "enabled": false});
        let body = json!({"server_name": name, "server": server});
        async move { ask(&api, Method::PUT, "/api/mcp/config/server", Some(&body)).await }
    };
    let edits = (0..10).flat_map(|at| {
        [put(first.api.clone(), format!("first-{at}")), put(second.api.clone(), format!("second-{at}"))]
    });
    futures_util::future::join_all(edits).await;
    assert_eq!(document(&site)["mcpServers"].as_object().unwrap().len(), 21);
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_polled_on_as_they_were_started_until_a_restart_33() {
    let (old, new) = (fake().await, fake().await);
    let site = site().server("reports", &old.url);
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    let id =
        id_of(&daemon.api.submit("reports", &json!({"end": "never", "poll_after_seconds": 0.2}), None).await.unwrap());

    edit(site.path(), |document| document["mcpServers"]["reports"]["url"] = json!(new.url));
    // Nobody asks: the daemon notices by itself.
    until("it says that a restart is needed", || async {
        warning(&daemon.api, "configuration")
            .await
            .is_some_and(|why| why.contains("restart") && why.contains("reports"))
    })
    .await;
    assert_eq!(daemon.api.count("config_last_reload_successful", &[]).await, 0);
    assert!(sees(&daemon.api, "reports_submit_report").await);
    let polls = |fake: &FakeServer| fake.state.core.truths().iter().map(|truth| truth.polls).sum::<u64>();
    let before = polls(&old);
    until("it is polled where it was started", || async { polls(&old) >= before + 3 }).await;
    assert_eq!(discoveries(&new) + new.state.core.counters.requests.load(Ordering::Relaxed), 0);

    // The API says so before it writes anything.
    edit(site.path(), |document| document["mcpServers"]["reports"]["url"] = json!(old.url));
    until("all is well again", || async { warning(&daemon.api, "configuration").await.is_none() }).await;
    let refused = daemon.api.request(Method::DELETE, "/api/mcp/config/server/reports", None, None).await;
    let Err(ApiError::Refused(409, problem)) = refused else { panic!("{refused:?}") };
    assert_eq!(problem["code"], "restart_required");
    let described = json!({"server_name": "reports", "server": {"type": "http", "url": old.url, "description": "d"}});
    ask(&daemon.api, Method::PUT, "/api/mcp/config/server", Some(&described)).await;
    assert!(document(&site)["mcpServers"]["reports"]["task_toolsets"].is_array(), "what was left out stays");
    daemon.api.cancel(&id).await.unwrap();
    until("it is cancelled", || async { has_ended(&daemon.api.task(&id).await.unwrap()) }).await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_comes_and_goes_while_the_daemon_runs_and_its_process_with_it_95_96() {
    let site = site();
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    assert_eq!(tools(&daemon.api).await, Vec::<String>::new());
    let marker = site.path().join("running");
    // A server that says when it runs: its working directory has a file while it does.
    let script =
        format!("touch {0}; trap 'rm -f {0}' EXIT; {1} --stdio", marker.display(), env!("CARGO_BIN_EXE_fake-mcp"));
    edit(site.path(), |document| {
        document["mcpServers"]["child"] = json!({"command": "sh", "args": ["-c", script]});
    });
    assert!(sees(&daemon.api, "child_echo").await);
    // A call brings its own session up, which stays until the server goes.
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "child_echo", "arguments": {"a": 1}}});
    let response = reqwest::Client::builder()
        .no_proxy()
        .build()
        .unwrap()
        .post(format!("{}/mcp", daemon.api.url))
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2025-11-25")
        .json(&call)
        .send()
        .await
        .unwrap();
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["result"]["structuredContent"], json!({"a": 1}), "{answer}");
    assert!(marker.exists());
    ask(&daemon.api, Method::DELETE, "/api/mcp/config/server/child", None).await;
    until("its process has ended", || async { !marker.exists() }).await;
    assert!(tools(&daemon.api).await.is_empty());
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_edit_keeps_what_was_there_and_a_good_one_ends_it_94() {
    let fake = fake().await;
    let site = site().server("reports", &fake.url);
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    assert!(sees(&daemon.api, "reports_echo").await);
    let path = site.path().join("extensions_config.json");
    let good = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &good[..good.len() / 2]).unwrap();
    assert!(sees(&daemon.api, "reports_echo").await);
    let catalogue = ask(&daemon.api, Method::GET, "/api/mcp/tools", None).await;
    assert!(catalogue["problems"].to_string().contains("extensions_config.json"), "{catalogue}");
    assert!(warning(&daemon.api, "configuration").await.unwrap().contains("line"));
    assert_eq!(daemon.api.count("config_last_reload_successful", &[]).await, 0);
    std::fs::write(&path, &good).unwrap();
    until("it is noticed without being asked for", || async {
        daemon.api.count("config_last_reload_successful", &[]).await == 1
    })
    .await;
    let log = daemon.log();
    assert_eq!(log.matches("the extensions file cannot be used").count(), 1, "logged once:\n{log}");
    tokio::time::timeout(Duration::from_secs(30), daemon.stop()).await.unwrap();
}
