//! Child processes that misbehave before, during and after their greeting: an error of theirs, and nobody else's (28, 105, 108).

use std::time::{Duration, Instant};

use mcp_taskd_core::upstream::CallErrorKind;
use serde_json::{Value, json};

use super::setup::{call, until};
use super::stdio::{Server, definition, runs};

const PATIENT: Option<Duration> = Some(Duration::from_secs(20));

/// A server of protocol 2025-11-25 that runs `first` at its start, `greeted` when it was greeted, and `listed` to list.
fn script(first: &str, greeted: &str, listed: &str) -> Value {
    let script = format!(
        r#"{first}
        say() {{ printf '{{"jsonrpc":"2.0","id":%s,%s}}\n' "$id" "$1"; }}
        while read -r line; do id=${{line#*\"id\":}}; id=${{id%%,*}}; case "$line" in
            *server/discover*) say '"error":{{"code":-32601,"message":"?"}}';;
            *initialize\"*) say '"result":{{}}'; {greeted};;
            *tools/list*) {listed};;
            *tools/call*) say '"result":{{"content":[],"structuredContent":{{"pid":'$$'}}}}';;
        esac; done"#
    );
    json!({"command": "sh", "args": ["-c", script], "session_init_timeout": 20})
}

const ONE_TOOL: &str = r#"say '"result":{"tools":[{"name":"x","inputSchema":{}}]}'"#;

#[tokio::test]
async fn garbage_before_the_greeting_and_a_slow_one_are_waited_for() {
    // What people's start scripts print.
    let first = r#"echo 'Starting up ...'; echo; printf '\377\376\n{"half": \n'; sleep 2"#;
    let server = Server::new(&script(first, ":", ONE_TOOL), 4);
    assert_eq!(server.upstream().list_tools().await.unwrap().len(), 1);
    call(server.upstream(), "x", &json!({}), PATIENT).await.unwrap();
    server.upstreams.close().await;
}

#[tokio::test]
async fn one_that_exits_right_after_its_greeting_fails_with_its_last_words() {
    let server = Server::new(&script("", "echo 'no licence left' >&2; exit 9", ":"), 4);
    let error = server.upstream().list_tools().await.unwrap_err();
    assert!(error.message.contains("exit status: 9") && error.message.contains("no licence left"), "{error}");
    let error = call(server.upstream(), "x", &json!({}), PATIENT).await.unwrap_err();
    assert!(error.message.contains("ended"), "{error}");
    server.upstreams.close().await;
}

#[tokio::test]
async fn a_list_of_ten_megabytes_is_taken_and_one_beyond_the_cap_is_refused_28() {
    let listed = |megabytes: usize| {
        let padding = format!("head -c {megabytes}000000 /dev/zero | tr '\\0' x");
        format!(
            r#"printf '{{"id":%s,"result":{{"tools":[{{"name":"x","inputSchema":{{}},"description":"' $id; {padding}; echo '"}}]}}}}'"#
        )
    };
    let server = Server::new(&script("", ":", &listed(10)), 4);
    let tools = server.upstream().list_tools().await.unwrap();
    assert!(tools.len() == 1 && tools[0].get().len() > 10_000_000);
    server.upstreams.close().await;
    let server = Server::new(&script("", ":", &listed(20)), 4);
    let error = server.upstream().list_tools().await.unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Protocol, "{error}");
    server.upstreams.close().await;
}

#[tokio::test]
async fn a_list_that_goes_in_circles_or_has_no_end_is_cut_28() {
    let circle = r#"case "$line" in
        *\"cursor\":\"a\"*) next=b;; *) next=a;; esac
        say '"result":{"tools":[{"name":"x","inputSchema":{}}],"nextCursor":"'$next'"}'"#;
    let server = Server::new(&script("", ":", circle), 4);
    assert_eq!(server.upstream().list_tools().await.unwrap().len(), 3);
    server.upstreams.close().await;
    let endless = r#"n=$((n+1)); say '"result":{"tools":[],"nextCursor":"'$n'"}'"#;
    let server = Server::new(&script("n=0", ":", endless), 4);
    let error = server.upstream().list_tools().await.unwrap_err();
    assert!(error.message.contains("200 pages"), "{error}");
    server.upstreams.close().await;
}

#[tokio::test]
async fn one_that_gives_up_a_call_fails_that_call_alone() {
    let gives_up = r#"case "$line" in *\"give-up\"*)
        printf '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}\n' "$id"; continue;; esac"#;
    let mut server = script("", ":", ONE_TOOL);
    let text = server["args"][1].as_str().unwrap().replace("*tools/call*) ", &format!("*tools/call*) {gives_up}\n"));
    server["args"][1] = text.into();
    let server = Server::new(&server, 4);
    let pid = server.place("ada").await["pid"].as_u64().unwrap();
    let error = call(server.upstream(), "give-up", &json!({}), PATIENT).await.unwrap_err();
    assert!(error.kind == CallErrorKind::Transport && error.maybe_executed, "{error}");
    assert_eq!(server.place("ada").await["pid"].as_u64(), Some(pid), "the same process goes on");
    server.upstreams.close().await;
}

#[tokio::test]
async fn what_is_closed_while_it_starts_does_not_come_back_103() {
    let folder = tempfile::tempdir().unwrap();
    let started = folder.path().join("started");
    let first = format!("echo $$ >> {}; sleep 1", started.display());
    let server = Server::new(&script(&first, ":", ONE_TOOL), 4);
    let upstream = server.upstream().clone();
    let calling = tokio::spawn(async move { call(&upstream, "x", &json!({}), PATIENT).await });
    let pids = || std::fs::read_to_string(&started).unwrap_or_default();
    until("it starts", || !pids().is_empty()).await;
    server.upstreams.close().await;
    let error = calling.await.unwrap().unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Connect, false), "{error}");
    until("its process is gone", || pids().lines().all(|pid| !runs(pid.parse().unwrap()))).await;
}

#[tokio::test]
async fn closing_ends_one_server_and_leaves_the_others_alone_103() {
    let state = tempfile::tempdir().unwrap();
    let both = super::setup::upstreams_in(&json!({"a": definition(&[]), "b": definition(&[])}), state.path(), 8);
    let pid = async |name: &str| {
        let place = call(both.find(name).unwrap(), "where", &json!({}), PATIENT).await.unwrap();
        place["structuredContent"]["pid"].as_u64().unwrap()
    };
    let (a, b) = (pid("a").await, pid("b").await);
    both.find("a").unwrap().close().await;
    assert!(!runs(a) && runs(b));
    assert_eq!(pid("b").await, b);
    both.close().await;
    assert!(!runs(b));
}

#[tokio::test]
async fn one_limit_covers_start_greeting_and_list_and_null_is_none_81_108() {
    let mut silent = script("sleep 1", ":", ":");
    silent["session_init_timeout"] = json!(2.5);
    let server = Server::new(&silent, 4);
    let started = Instant::now();
    let error = server.upstream().list_tools().await.unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Timeout, "{error}");
    assert!(error.message.contains("tools/list") && error.message.contains("2.5s"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(6), "the start was part of it: {:?}", started.elapsed());
    server.upstreams.close().await;
    let mut slow = script("sleep 2", ":", ONE_TOOL);
    slow["session_init_timeout"] = Value::Null;
    let server = Server::new(&slow, 4);
    assert_eq!(server.upstream().list_tools().await.unwrap().len(), 1);
    server.upstreams.close().await;
}
