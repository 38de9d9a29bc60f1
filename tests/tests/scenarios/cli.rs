//! The command line, against a daemon and against the store itself.

use mcp_taskd_tests::daemon::{Site, id_of};
use mcp_taskd_tests::wait::until;
use serde_json::{Value, json};

use crate::{fake, site};

/// Commands on a site: with `--url` they ask a daemon, without it they open the store.
struct Commands<'a> {
    site: &'a Site,
    url: Option<String>,
}

impl Commands<'_> {
    async fn run(&self, arguments: &[&str]) -> mcp_taskd_tests::daemon::Output {
        let mut all = arguments.to_vec();
        if let Some(url) = &self.url {
            all.extend(["--url", url]);
        }
        self.site.run(&all).await
    }

    async fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.extend(["--output", "json"]);
        let text = self.run(&all).await.success();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    async fn submit(&self, script: &Value) -> String {
        let arguments = json!({ "script": script }).to_string();
        let command = ["tasks", "submit", "--server", "s", "--task", "report", "--arguments", &arguments];
        id_of(&self.json(&command).await)
    }

    async fn status(&self, id: &str) -> String {
        self.json(&["tasks", "get", id]).await["status"].as_str().unwrap().to_owned()
    }

    async fn watched(&self, id: &str) -> (Option<i32>, String) {
        let output = self.run(&["tasks", "watch", id]).await;
        (output.code, output.stdout)
    }
}

/// Everything that a daemon must be there for, but not by `--url`.
async fn everything(commands: &Commands<'_>) {
    let completed = commands.submit(&json!({"polls": 1, "poll_after_seconds": 0.3})).await;
    let failed = commands.submit(&json!({"polls": 1, "end": "failed"})).await;
    let cancelled = commands.submit(&json!({"end": "never"})).await;
    let (code, said) = commands.watched(&completed).await;
    assert_eq!(code, Some(0), "completed: {said}");
    assert!(said.lines().last().unwrap().contains("completed"), "{said}");
    assert_eq!(commands.watched(&failed).await.0, Some(2), "failed");
    let cancel = ["tasks", "cancel", &cancelled];
    let (watched, requested) = tokio::join!(commands.watched(&cancelled), commands.json(&cancel));
    assert_eq!(requested["cancel_requested"], true);
    assert_eq!(watched.0, Some(3), "cancelled: {}", watched.1);
    assert_eq!(commands.status(&cancelled).await, "cancelled");

    answered(commands).await;
    let asked = 1;
    let listed = commands.json(&["tasks", "list"]).await;
    let ids: Vec<_> = listed.as_array().unwrap().iter().map(id_of).collect();
    assert_eq!(ids[asked..asked + 3], [cancelled.clone(), failed.clone(), completed.clone()], "newest first");
    let failures = commands.json(&["tasks", "list", "--status", "failed", "--limit", "1"]).await;
    assert_eq!((failures.as_array().map(Vec::len), id_of(&failures[0])), (Some(1), failed.clone()));
    assert_eq!(commands.json(&["tasks", "list", "--user", "nobody"]).await, json!([]));
    let table = commands.run(&["tasks", "list"]).await.success();
    assert!(table.contains(&completed) && table.lines().next().unwrap().starts_with("TASK"), "{table}");

    let workers = commands.json(&["workers", "list"]).await;
    let live = workers.as_array().unwrap().iter().filter(|worker| worker["live"] == true && worker["polls"] == true);
    assert_eq!(live.count(), 1, "{workers}");

    let events = commands.run(&["events", "list", "--output", "jsonl"]).await.success();
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for event in &events {
        let keys: Vec<_> = event.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys.join(" "), "sequence task_id kind status created_at");
    }
    assert!(events.windows(2).all(|pair| pair[0]["sequence"].as_i64() < pair[1]["sequence"].as_i64()));
    let of = |id: &str| -> Vec<_> {
        events.iter().filter(|event| event["task_id"] == *id).filter_map(|event| event["kind"].as_str()).collect()
    };
    assert_eq!(of(&completed), ["submitted", "working", "completed"]);
    assert_eq!(of(&failed), ["submitted", "working", "failed"]);
    assert_eq!(of(&cancelled).last(), Some(&"cancelled"));

    let nowhere = commands.run(&["tasks", "get", "mcp-task-none"]).await;
    assert_eq!((nowhere.code, nowhere.stdout.as_str()), (Some(1), ""));
    assert!(nowhere.stderr.contains("mcp-task-none"), "{}", nowhere.stderr);
    assert_eq!(commands.run(&["tasks", "submit", "--server", "s", "--task", "nothing"]).await.code, Some(1));
}

/// A task that asks says so to who watches it, and goes on when it is answered; nothing else takes an answer.
async fn answered(commands: &Commands<'_>) {
    let asking = commands.submit(&json!({"polls": 1, "ask_input": true})).await;
    let answer = async {
        until("it asks", || async { commands.status(&asking).await == "input_required" }).await;
        let other = commands.run(&["tasks", "input", &asking, "1", "--user", "nobody"]).await;
        assert_eq!((other.code, other.stdout.as_str()), (Some(1), ""), "another user's: {}", other.stderr);
        let row = commands.json(&["tasks", "input", &asking, r#"{"quarter": "q3"}"#]).await;
        assert_eq!(id_of(&row), asking);
    };
    let ((code, said), ()) = tokio::join!(commands.watched(&asking), answer);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(r#"input_required: {"question":"Which quarter?"}"#), "{said}");
    let ended = commands.run(&["tasks", "input", &asking, "1"]).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    assert!(ended.stderr.contains("does not wait for input"), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_asks_a_daemon_and_watch_ends_as_the_task_did() {
    let fake = fake().await;
    let site = site().server("s", &fake.url);
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    everything(&Commands { site: &site, url: Some(daemon.api.url.clone()) }).await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_opens_the_store_itself_and_a_daemon_beside_it_polls_158() {
    let fake = fake().await;
    let site = site().server("s", &fake.url);
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    everything(&Commands { site: &site, url: None }).await;
    assert_eq!(daemon.api.workers().await.unwrap().len(), 1, "short-lived processes leave nothing behind");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_submitted_while_nobody_polls_waits_for_who_does_144_158() {
    let fake = fake().await;
    let site = site().server("s", &fake.url);
    let commands = Commands { site: &site, url: None };
    let completed = commands.submit(&json!({"polls": 0})).await;
    let cancelled = commands.submit(&json!({"end": "never"})).await;
    commands.json(&["tasks", "cancel", &cancelled]).await;
    let row = commands.json(&["tasks", "get", &cancelled]).await;
    assert_eq!((&row["status"], &row["cancel_requested"]), (&json!("submitted"), &json!(true)), "{row}");
    assert_eq!(commands.json(&["workers", "list"]).await, json!([]));
    assert!(fake.state.core.truths().iter().all(|truth| truth.polls + truth.cancels == 0));

    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    until("both end", || async {
        commands.status(&completed).await == "completed" && commands.status(&cancelled).await == "cancelled"
    })
    .await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_not_there_is_exit_69() {
    let site = site();
    let port = mcp_taskd_tests::daemon::free_port();
    let output = site.run(&["tasks", "list", "--url", &format!("http://127.0.0.1:{port}")]).await;
    assert_eq!((output.code, output.stdout.as_str()), (Some(69), ""), "{}", output.stderr);
}
