//! Daemons before servers behind OAuth: restarts in the middle of a chain, and what is refused (BEHAVIOURS 113, 116; invariant 9).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mcp_taskd_tests::daemon::{Daemon, Site, has_ended};
use mcp_taskd_tests::fake::{FakeAuthority, FakeOptions, FakeServer};
use mcp_taskd_tests::postgres;
use mcp_taskd_tests::wait::until;
use reqwest::Method;
use serde_json::json;

use crate::site;

async fn behind(authority: &FakeAuthority) -> FakeServer {
    let authority = Some(Arc::clone(&authority.state));
    FakeServer::start(FakeOptions { authority, journal: true, ..FakeOptions::default() }).await
}

/// Everything that lies below a folder.
fn contents(folder: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        all.extend(if path.is_dir() { contents(&path) } else { std::fs::read(path).unwrap_or_default() });
    }
    all
}

async fn all_end(daemon: &Daemon, count: usize) {
    until("every task is completed", || async {
        let tasks = daemon.api.tasks().await.unwrap_or_default();
        tasks.len() == count && tasks.iter().all(|task| has_ended(task) && task["status"] == "completed")
    })
    .await;
}

/// Tokens that are due every second, a daemon that is killed again and again, and tasks that notice nothing of either.
async fn tasks_survive(site: Site, authority: &FakeAuthority) {
    const TASKS: usize = 10;
    authority.state.lifetime.store(61, Relaxed);
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    daemon.api.submit_many("s", &json!({"polls": 12}), TASKS).await;
    for _ in 0..3 {
        let before = authority.state.count();
        until("the token is refreshed", || async { authority.state.count() > before }).await;
        // A refresh is over in a moment: the answer is stored, or was not yet sent for.
        until("a poll has the new token", || async {
            let seen = authority.state.seen();
            seen.last().is_some_and(|(_, value)| value.contains(&format!("access-{}-", authority.state.count())))
        })
        .await;
        daemon.kill9().await;
        daemon.start().await;
    }
    all_end(&daemon, TASKS).await;
    assert_eq!(authority.state.reuses.load(Relaxed), 0, "no refresh token was used twice");
    daemon.stop().await;
    let (log, kept) = (daemon.log(), contents(&site.path().join("taskd")));
    let (data, has) = (site.path().join("data"), |all: &[u8], text: &str| {
        all.windows(text.len()).any(|part| part == text.as_bytes())
    });
    let data = if data.exists() { contents(&data) } else { Vec::new() };
    for token in authority.state.tokens() {
        assert!(!log.contains(&token) && !has(&kept, &token) && !has(&data, &token), "{token}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_daemon_continues_its_chain_of_tokens_on_sqlite_116() {
    let authority = FakeAuthority::start().await;
    let server = behind(&authority).await;
    let oauth = authority.chain("the-seed-of-sqlite");
    tasks_survive(site().server_with("s", &server.url, false, json!({"oauth": oauth})), &authority).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_daemon_continues_its_chain_of_tokens_on_postgres_116() {
    let (authority, database) = (FakeAuthority::start().await, postgres::database().await);
    let server = behind(&authority).await;
    let oauth = authority.chain("the-seed-of-postgres");
    let site = site().postgres(database.url()).server_with("s", &server.url, false, json!({"oauth": oauth}));
    site.migrate().await;
    tasks_survive(site, &authority).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_token_leaves_the_others_alone_and_tells_why_114() {
    let (authority, other) = (FakeAuthority::start().await, FakeAuthority::start().await);
    let (failing, healthy) = (behind(&authority).await, behind(&other).await);
    authority.state.faults.status.store(503, Relaxed);
    let site = site().server_with("failing", &failing.url, false, json!({"oauth": authority.client()})).server_with(
        "healthy",
        &healthy.url,
        false,
        json!({"oauth": other.client()}),
    );
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    let catalogue = daemon.api.request(Method::GET, "/api/mcp/tools", None, None).await.unwrap();
    let problems = catalogue["problems"].to_string();
    assert!(problems.contains("failing") && problems.contains("OAuth"), "{catalogue}");
    assert!(catalogue["tools"].as_array().is_some_and(|tools| !tools.is_empty()), "{catalogue}");
    let refused = daemon.api.submit("failing", &json!({}), None).await.unwrap_err();
    assert!(refused.to_string().contains("OAuth for the server"), "{refused}");
    assert_eq!(daemon.api.tasks().await.unwrap().len(), 0, "what was never sent leaves no task");
    daemon.api.submit_many("healthy", &json!({"polls": 1}), 3).await;
    all_end(&daemon, 3).await;
    let counted = daemon.api.count("oauth_refreshes_total", &[("server", "failing"), ("outcome", "unreachable")]).await;
    assert!(counted >= 1);
    daemon.stop().await;
}

#[tokio::test]
async fn several_instances_without_a_shared_key_do_not_start_116() {
    let oauth =
        json!({"token_url": "http://127.0.0.1:9/token", "grant_type": "refresh_token", "refresh_token": "hunter2"});
    let site = site()
        .server_with("s", "http://127.0.0.1:9/mcp", false, json!({"oauth": oauth}))
        .set("deployment.multi_instance", true);
    let output = site.run(&["serve"]).await;
    assert_eq!(output.code, Some(78), "{}", output.stderr);
    for named in ["deployment.multi_instance", "mcpServers.s.oauth", "MCP_TASKD_CREDENTIALS_KEY"] {
        assert!(output.stderr.contains(named), "{}", output.stderr);
    }
    assert!(!output.stderr.contains("hunter2"));
    let mut command = site.command(&["check-config"]);
    command.env("MCP_TASKD_CREDENTIALS_KEY", "hunter2-hunter2-hunter2");
    let output = mcp_taskd_tests::daemon::finish(command, "").await;
    assert!(!output.stderr.contains("hunter2"));
    output.success();
}
