use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use mcp_taskd_core::upstream::{CallErrorKind, Scope, SharedUpstream, Upstreams};
use mcp_taskd_tests::wait;
use serde_json::{Value, json};

use super::setup::{call, call_as, scope, until, upstreams_in};

const PATIENT: Option<Duration> = Some(Duration::from_secs(10));

pub(crate) fn definition(more: &[&str]) -> Value {
    let args: Vec<&str> = ["--stdio"].into_iter().chain(more.iter().copied()).collect();
    json!({"command": env!("CARGO_BIN_EXE_fake-mcp"), "args": args, "env": {"FAKE_MARKER": "marked-and-secret"}})
}

pub(crate) struct Server {
    pub(crate) upstreams: Upstreams,
    state: tempfile::TempDir,
}

impl Server {
    pub(crate) fn new(definition: &Value, sessions: usize) -> Self {
        let state = tempfile::tempdir().unwrap();
        Self { upstreams: upstreams_in(&json!({"s": definition}), state.path(), sessions), state }
    }

    pub(crate) fn upstream(&self) -> &SharedUpstream {
        self.upstreams.find("s").unwrap()
    }

    pub(crate) async fn place(&self, user: &str) -> Value {
        let answer = call_as(self.upstream(), &scope(user), "where", &json!({}), PATIENT).await.unwrap();
        answer["structuredContent"].clone()
    }
}

/// Whether a process runs; one that has ended and was not collected by its parent does not.
pub(crate) fn runs(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[tokio::test]
async fn tasks_work_in_every_era_and_the_verdict_is_kept() {
    for era in ["legacy", "modern", "silent"] {
        let server = Server::new(&definition(&["--era", era]), 8);
        let upstream = server.upstream();
        let submitted = call(upstream, "submit_report", &json!({}), PATIENT).await.unwrap();
        let arguments = json!({"task_id": submitted["structuredContent"]["task_id"]});
        let polled = call(upstream, "get_report_status", &arguments, PATIENT).await.unwrap();
        assert_eq!(polled["structuredContent"]["status"], "completed", "{era}");
        let started = Instant::now();
        server.place("bob").await;
        assert!(started.elapsed() < Duration::from_millis(900), "{era}: no second probe");
        assert_eq!(upstream.list_tools().await.unwrap().len(), 5);
        server.upstreams.close().await;
    }
}

#[tokio::test]
async fn a_scope_has_one_process_and_its_own_workspace_102_104_156() {
    let server = Server::new(&definition(&[]), 8);
    let (a, b) = tokio::join!(server.place("ada"), server.place("ada"));
    assert_eq!(a["pid"], b["pid"], "concurrent first calls share one creation");
    let other = server.place("bob").await;
    assert_ne!(a["pid"], other["pid"]);
    assert_ne!(a["cwd"], other["cwd"]);
    let thread = Scope { thread_id: "another".into(), ..scope("ada") };
    let another = call_as(server.upstream(), &thread, "where", &json!({}), PATIENT).await.unwrap();
    let another = &another["structuredContent"];
    assert!(a["pid"] != another["pid"] && a["cwd"] != another["cwd"], "each thread of a user has its own");
    let workspaces = server.state.path().canonicalize().unwrap().join("workspaces");
    let cwd = Path::new(a["cwd"].as_str().unwrap());
    assert_eq!(cwd.parent(), Some(workspaces.as_path()));
    assert!(a["tmpdir"].as_str().unwrap().ends_with("/.mcp/tmp"));
    assert_eq!(a["marker"], "marked-and-secret");
    server.upstreams.close().await;
}

#[tokio::test]
async fn a_configured_directory_and_tmpdir_win_82_104() {
    let folder = tempfile::tempdir().unwrap();
    let mut definition = definition(&[]);
    definition["cwd"] = folder.path().to_str().unwrap().into();
    definition["env"]["TMPDIR"] = "/tmp".into();
    let server = Server::new(&definition, 8);
    let place = server.place("ada").await;
    assert_eq!(Path::new(place["cwd"].as_str().unwrap()), folder.path().canonicalize().unwrap());
    assert_eq!(place["tmpdir"], "/tmp");
    server.upstreams.close().await;
}

#[tokio::test]
async fn a_crash_in_mid_call_is_that_calls_error_and_the_next_call_starts_afresh_105() {
    let server = Server::new(&definition(&[]), 8);
    let before = server.place("ada").await;
    let error = call(server.upstream(), "crash", &json!({}), PATIENT).await.unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Transport, true), "{}", error.message);
    for said in ["exit status: 17", "the disk is full, ***"] {
        assert!(error.message.contains(said), "{said}: {}", error.message);
    }
    assert_ne!(server.place("ada").await["pid"], before["pid"]);
    server.upstreams.close().await;
}

#[tokio::test]
async fn a_crash_evicts_that_very_session_only_105() {
    let server = Server::new(&definition(&[]), 8);
    let (ada, bob) = (server.place("ada").await, server.place("bob").await);
    call_as(server.upstream(), &scope("ada"), "crash", &json!({}), PATIENT).await.unwrap_err();
    assert_eq!(server.place("bob").await["pid"], bob["pid"]);
    assert_ne!(server.place("ada").await["pid"], ada["pid"]);
    server.upstreams.close().await;
}

#[tokio::test]
async fn a_server_that_crashes_again_and_again_is_started_ever_more_rarely() {
    let server = Server::new(&definition(&[]), 8);
    let mut refused = None;
    for _ in 0..20 {
        let error = call(server.upstream(), "crash", &json!({}), PATIENT).await.unwrap_err();
        if error.kind == CallErrorKind::Connect {
            refused = Some(error);
            break;
        }
    }
    let error = refused.expect("a start that was held back");
    assert!(!error.maybe_executed && error.retry_after.is_some());
    assert!(error.message.contains("the disk is full") && error.message.contains("not started again yet"), "{error}");
    // Others are not held back by one scope's crashes, and it works again by itself.
    server.place("bob").await;
    wait::until("it is started again", || async {
        call(server.upstream(), "where", &json!({}), PATIENT).await.is_ok()
    })
    .await;
    server.upstreams.close().await;
}

#[tokio::test]
async fn a_program_that_cannot_start_is_not_tried_by_every_call() {
    let folder = tempfile::tempdir().unwrap();
    let starts = folder.path().join("starts");
    let script = format!("echo start >> {}; echo no licence >&2; exit 3", starts.display());
    let server = Server::new(&json!({"command": "sh", "args": ["-c", script]}), 300);
    for user in 0..50 {
        let error = call_as(server.upstream(), &scope(&user.to_string()), "x", &json!({}), PATIENT).await.unwrap_err();
        assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Connect, false));
        assert!(error.message.contains("no licence"), "{}", error.message);
    }
    let starts = std::fs::read_to_string(&starts).unwrap().lines().count();
    // Each attempt may start it twice, once for each kind of protocol.
    assert!(starts <= 30, "{starts} starts for 50 calls");
}

#[tokio::test]
async fn floods_and_garbage_are_read_past_28() {
    let server = Server::new(&definition(&[]), 8);
    let before = server.place("ada").await;
    for tool in ["complain", "babble", "complain"] {
        call(server.upstream(), tool, &json!({}), PATIENT).await.unwrap();
    }
    assert_eq!(server.place("ada").await["pid"], before["pid"]);
    server.upstreams.close().await;
}

#[tokio::test]
async fn a_notice_of_changed_tools_is_passed_on() {
    let server = Server::new(&definition(&[]), 8);
    let mut changes = server.upstream().changes();
    server.place("ada").await;
    assert!(!changes.has_changed().unwrap());
    call(server.upstream(), "change", &json!({}), PATIENT).await.unwrap();
    until("the notice", || changes.has_changed().unwrap()).await;
    assert_eq!(*changes.borrow_and_update(), 1);
    server.upstreams.close().await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_relative_program_is_found_from_the_daemons_directory_82() {
    let here = std::env::current_dir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_fake-mcp"));
    let up = "../".repeat(here.components().count() - 1);
    let relative = format!("{up}{}", program.strip_prefix("/").unwrap().display());
    let server = Server::new(&json!({"command": relative, "args": ["--stdio"]}), 8);
    assert_eq!(server.upstream().list_tools().await.unwrap().len(), 5, "discovery");
    server.place("ada").await;
    server.upstreams.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_scopes_leave_as_many_processes_as_are_allowed_29_102() {
    const SCOPES: usize = 300;
    const ALLOWED: usize = 256;
    let server = Server::new(&definition(&[]), ALLOWED);
    let mut pids = Vec::new();
    for users in (0..SCOPES).collect::<Vec<_>>().chunks(10) {
        let names: Vec<_> = users.iter().map(ToString::to_string).collect();
        let places = join_all(names.iter().map(|name| server.place(name))).await;
        pids.extend(places.iter().map(|place| place["pid"].as_u64().unwrap()));
    }
    let running = || pids.iter().filter(|pid| runs(**pid)).count();
    until("the sessions used longest ago ended", || running() == ALLOWED).await;
    assert!(pids[SCOPES - ALLOWED..].iter().all(|pid| runs(*pid)), "the youngest stay");
    server.upstreams.close().await;
    assert_eq!(running(), 0);
}

#[tokio::test]
async fn a_timeout_neither_ends_the_session_nor_other_calls_105() {
    let server = Server::new(&definition(&[]), 8);
    let before = server.place("ada").await;
    let started = Instant::now();
    let error = call(server.upstream(), "hang", &json!({}), Some(Duration::from_millis(100))).await.unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Timeout, true));
    assert!(started.elapsed() < Duration::from_millis(600));
    assert_eq!(server.place("ada").await["pid"], before["pid"]);
    server.upstreams.close().await;
}

#[tokio::test]
async fn grandchildren_are_gone_after_close() {
    let server = Server::new(&definition(&[]), 8);
    let pid = server.place("ada").await["pid"].as_u64().unwrap();
    let answer = call(server.upstream(), "grandchild", &json!({}), PATIENT).await.unwrap();
    let grandchild = answer["structuredContent"]["pid"].as_u64().unwrap();
    assert!(runs(pid) && runs(grandchild));
    server.upstreams.close().await;
    assert!(!runs(pid));
    until("the grandchild ended", || !runs(grandchild)).await;
}

#[tokio::test]
async fn the_pool_is_bounded_and_lets_the_oldest_go_29_102() {
    let server = Server::new(&definition(&[]), 2);
    let mut pids = Vec::new();
    for user in ["a", "b", "c", "d"] {
        pids.push(server.place(user).await["pid"].as_u64().unwrap());
    }
    until("the first two ended", || !runs(pids[0]) && !runs(pids[1])).await;
    assert!(runs(pids[2]) && runs(pids[3]));
    server.upstreams.close().await;
    assert!(!runs(pids[2]) && !runs(pids[3]));
}

#[tokio::test]
async fn a_refresh_waits_for_calls_under_way_97() {
    let server = Server::new(&definition(&[]), 4);
    let before = server.place("ada").await["pid"].as_u64().unwrap();
    let hanging = {
        let upstream = server.upstream().clone();
        tokio::spawn(async move { call(&upstream, "hang", &json!({}), Some(Duration::from_millis(400))).await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.upstream().refresh().await;
    assert_ne!(server.place("ada").await["pid"].as_u64(), Some(before));
    assert!(runs(before));
    assert_eq!(hanging.await.unwrap().unwrap_err().kind, CallErrorKind::Timeout);
    until("the old session ended", || !runs(before)).await;
    server.upstreams.close().await;
}

#[tokio::test]
async fn what_cannot_be_started_or_never_answers_is_not_executed_108() {
    let server = Server::new(&json!({"command": "/nowhere/at-all"}), 4);
    let error = call(server.upstream(), "x", &json!({}), PATIENT).await.unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Connect, false));
    assert!(error.message.contains("/nowhere/at-all"), "{}", error.message);
    let mute = json!({"command": "sleep", "args": ["600"], "session_init_timeout": 1.5});
    let server = Server::new(&mute, 4);
    let started = Instant::now();
    let arguments = json!({});
    let calls = join_all((0..5).map(|_| call(server.upstream(), "x", &arguments, PATIENT))).await;
    assert!(started.elapsed() < Duration::from_secs(3), "one attempt for all: {:?}", started.elapsed());
    assert!(calls.into_iter().all(|call| call.unwrap_err().kind == CallErrorKind::Connect));
    server.upstreams.close().await;
    let ends = Server::new(&json!({"command": "true"}), 4);
    let error = call(ends.upstream(), "x", &json!({}), PATIENT).await.unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Connect, false), "{}", error.message);
}

#[tokio::test]
async fn a_program_that_was_renewed_is_asked_again_what_it_speaks() {
    let folder = tempfile::tempdir().unwrap();
    let era = folder.path().join("era");
    let script = format!("exec \"$1\" --stdio --era \"$(cat {})\"", era.display());
    let command = json!({"command": "sh", "args": ["-c", script, "sh", env!("CARGO_BIN_EXE_fake-mcp")]});
    let server = Server::new(&command, 8);
    for spoken in ["legacy", "modern", "legacy", "modern"] {
        std::fs::write(&era, spoken).unwrap();
        server.place("ada").await;
        server.upstream().refresh().await;
    }
    server.upstreams.close().await;
}

#[tokio::test]
async fn a_server_that_stops_listening_is_replaced() {
    let script = r#"while read -r line; do id=${line#*\"id\":}; id=${id%%,*}; case "$line" in
        *server/discover*) echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"error\":{\"code\":-32601,\"message\":\"?\"}}";;
        *initialize\"*) echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{}}";;
        *tools/call*) echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{\"structuredContent\":{\"pid\":$$}}}"
            exec 0<&-; sleep 600;;
        esac; done"#;
    let server = Server::new(&json!({"command": "sh", "args": ["-c", script]}), 4);
    let deaf = server.place("ada").await["pid"].as_u64().unwrap();
    until("it is deaf", || !Path::new(&format!("/proc/{deaf}/fd/0")).exists()).await;
    let error = call(server.upstream(), "where", &json!({}), PATIENT).await.unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Transport, true), "{}", error.message);
    assert_ne!(server.place("ada").await["pid"].as_u64(), Some(deaf));
    until("the deaf one is gone", || !runs(deaf)).await;
    server.upstreams.close().await;
}

#[tokio::test]
async fn a_server_that_ignores_its_end_is_killed() {
    let script = r#"trap '' TERM; while read -r line; do case "$line" in
        *server/discover*) echo '{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"?"}}';;
        *initialize\"*) echo '{"jsonrpc":"2.0","id":2,"result":{}}';;
        *tools/call*) echo "{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{\"structuredContent\":{\"pid\":$$}}}";;
        esac; done; while :; do sleep 1; done"#;
    let server = Server::new(&json!({"command": "sh", "args": ["-c", script]}), 4);
    let pid = server.place("ada").await["pid"].as_u64().unwrap();
    assert!(runs(pid));
    let started = Instant::now();
    server.upstreams.close().await;
    assert!(!runs(pid));
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
}
