//! The catalogue of a process whose extensions file is edited (BEHAVIOURS 33, 94–97; invariant 7).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use mcp_taskd_core::catalog::{Live, LiveOptions, ResetScope};
use mcp_taskd_core::clock::SystemClock;
use mcp_taskd_core::config::{Settings, Source};
use mcp_taskd_core::store::SharedState;
use mcp_taskd_core::store::memory::MemoryStore;
use mcp_taskd_core::upstream::{Factory, Options};
use mcp_taskd_tests::fake::{FakeOptions, FakeServer};
use mcp_taskd_tests::wait;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::setup::{call, until};
use super::stdio::runs;

struct Site {
    live: Arc<Live>,
    file: PathBuf,
    folder: tempfile::TempDir,
}

impl Site {
    /// A process that starts with these servers.
    fn new(servers: &Value) -> Self {
        Self::sharing(servers, None)
    }

    fn sharing(servers: &Value, shared: Option<Arc<dyn SharedState>>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("extensions_config.json");
        std::fs::write(&file, json!({"mcpServers": servers}).to_string()).expect("writes");
        let source = Source { directory: folder.path().to_owned(), ..Source::default() };
        let extensions = source.load().expect("usable");
        let factory = Factory::new(&Options::new(folder.path())).expect("clients");
        let options = LiveOptions { source, settings: Settings::default(), shared };
        let live = Live::new(&extensions, factory, options, &prometheus::Registry::new()).expect("usable");
        Self { live: Arc::new(live), file, folder }
    }

    fn write(&self, servers: &Value) {
        std::fs::write(&self.file, json!({"mcpServers": servers}).to_string()).expect("writes");
    }

    async fn names(&self) -> Vec<String> {
        self.live.view().await.tools.iter().map(|tool| tool.name.clone()).collect()
    }

    fn error(&self) -> String {
        self.live.last_reload().error.unwrap_or_default()
    }
}

async fn fake() -> FakeServer {
    FakeServer::start(FakeOptions::default()).await
}

fn plain(url: &str) -> Value {
    json!({"type": "http", "url": url, "session_init_timeout": 20})
}

fn with_tasks(url: &str) -> Value {
    let mut server = plain(url);
    server["task_toolsets"] = json!([{"name": "report", "submit_tool": "submit_report",
        "status_tool": "get_report_status", "cancel_tool": "cancel_report", "input_tool": "send_report_input"}]);
    server
}

/// How often a server was discovered: its list has two pages.
fn lists(fake: &FakeServer) -> u64 {
    fake.state.core.counters.lists.load(Relaxed) / 2
}

#[tokio::test]
async fn an_edit_is_in_effect_with_the_next_lookup_and_asks_only_whom_it_concerns_94_95() {
    let (one, two) = (fake().await, fake().await);
    let site = Site::new(&json!({"one": plain(&one.url)}));
    let first = site.names().await;
    assert!(first.iter().all(|name| name.starts_with("one_")), "{first:?}");

    site.write(&json!({"two": plain(&two.url), "one": plain(&one.url)}));
    let both = site.names().await;
    assert!(both[0].starts_with("two_") && both.len() == 2 * first.len(), "in the file's order: {both:?}");
    assert_eq!((lists(&one), lists(&two)), (1, 1), "the unchanged one is not asked");

    let mut described = plain(&two.url);
    described["routing"] = json!({"mode": "prefer", "priority": 7});
    let session = one.state.core.counters.initializes.load(Relaxed) + two.state.core.counters.initializes.load(Relaxed);
    site.write(&json!({"two": described, "one": plain(&one.url), "skipped": {"type": "http"}}));
    let view = site.live.view().await;
    assert!(view.tools.iter().any(|tool| tool.server == "two" && tool.routing.priority == 7));
    assert_eq!((lists(&one), lists(&two)), (1, 2));
    let now = one.state.core.counters.initializes.load(Relaxed) + two.state.core.counters.initializes.load(Relaxed);
    assert_eq!(now, session, "what only agents see costs no connection");
    site.live.close().await;
}

#[tokio::test]
async fn edits_of_the_same_size_with_an_older_time_are_seen_94() {
    let fake = fake().await;
    let site = Site::new(&json!({"a": plain(&fake.url)}));
    assert!(site.names().await[0].starts_with("a_"));
    for name in ["b", "c", "d"] {
        site.write(&json!({name: plain(&fake.url)}));
        let file = std::fs::File::options().write(true).open(&site.file).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
        assert!(site.names().await[0].starts_with(&format!("{name}_")));
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_used_or_is_gone_changes_nothing_and_says_so_94_96() {
    let (one, two) = (fake().await, fake().await);
    let site = Site::new(&json!({"s": plain(&one.url)}));
    let good = site.names().await;
    std::fs::write(&site.file, r#"{"mcpServers": {"s": {"headers": {"A": "hunter2" }"#).unwrap();
    assert_eq!(site.names().await, good);
    assert!(site.error().contains("line 1") && !site.error().contains("hunter2"), "{}", site.error());
    site.write(&json!({"s": {"type": "http", "url": one.url, "oauth": {"grant_type": "hunter2"}}}));
    assert_eq!(site.names().await, good);
    assert!(site.error().contains("mcpServers.s.oauth"), "{}", site.error());
    std::fs::write(&site.file, b"\xff").unwrap();
    assert_eq!(site.names().await, good);
    assert!(site.error().contains("UTF-8"), "{}", site.error());
    std::fs::remove_file(&site.file).unwrap();
    assert_eq!(site.names().await, good);
    assert!(site.error().contains("gone"), "{}", site.error());
    site.write(&json!({"s": plain(&one.url)}));
    assert_eq!(site.names().await, good);
    assert_eq!((site.error().as_str(), lists(&one)), ("", 1), "as it was");
    // Another place that wins from now on.
    std::fs::remove_file(&site.file).unwrap();
    let other = site.folder.path().join("mcp_config.json");
    std::fs::write(other, json!({"mcpServers": {"t": plain(&two.url)}}).to_string()).unwrap();
    assert!(site.names().await[0].starts_with("t_"));
}

#[tokio::test]
async fn a_call_under_way_ends_in_peace_and_then_the_old_connection_is_closed_96() {
    let (old, new) = (fake().await, fake().await);
    let site = Site::new(&json!({"s": plain(&old.url), "stays": plain(&new.url)}));
    site.names().await;
    old.state.faults.everywhere.store(true, Relaxed);
    old.state.faults.latency_ms.store(1_500, Relaxed);
    let upstream = site.live.upstream("s").unwrap();
    let before = old.state.core.counters.requests.load(Relaxed);
    let under_way = tokio::spawn(async move { call(&upstream, "echo", &json!({"text": "hi"}), None).await });
    until("the call is on its way", || old.state.core.counters.requests.load(Relaxed) > before).await;

    site.write(&json!({"s": plain(&new.url), "stays": plain(&new.url)}));
    site.names().await;
    let tending = CancellationToken::new();
    let running = tokio::spawn({
        let (live, tending) = (Arc::clone(&site.live), tending.clone());
        async move { live.run(&tending).await }
    });
    call(&site.live.upstream("s").unwrap(), "echo", &json!({"text": "new"}), None).await.unwrap();
    assert!(under_way.await.unwrap().is_ok());
    old.state.faults.latency_ms.store(0, Relaxed);
    until("the old session is ended", || old.state.core.counters.deletes.load(Relaxed) == 1).await;
    assert_eq!(new.state.core.counters.deletes.load(Relaxed), 0);

    // The last servers go: so do their connections, and agents see nothing.
    site.write(&json!({"s": {"type": "http", "url": new.url, "enabled": false}}));
    assert!(site.names().await.is_empty());
    until("all sessions are ended", || new.state.core.counters.deletes.load(Relaxed) == 2).await;
    tending.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn a_changed_server_that_hangs_does_not_delay_the_others_tools() {
    let (good, hung) = (fake().await, fake().await);
    let site = Site::new(&json!({"good": plain(&good.url), "other": plain(&good.url)}));
    site.names().await;
    hung.state.faults.everywhere.store(true, Relaxed);
    hung.state.faults.hang.store(true, Relaxed);
    site.write(&json!({"good": plain(&good.url), "other": plain(&hung.url)}));
    let found = tokio::time::timeout(Duration::from_secs(5), site.live.find("good_echo")).await;
    assert!(found.expect("at once").is_some());
    // Set right while the discovery still hangs: what it would bring is not waited for (96).
    let listing = tokio::spawn({
        let live = Arc::clone(&site.live);
        async move { live.view().await }
    });
    site.write(&json!({"good": plain(&good.url)}));
    let view = tokio::time::timeout(Duration::from_secs(5), site.live.view()).await.expect("no waiting");
    assert!(view.problems.is_empty() && view.tools.iter().all(|tool| tool.server == "good"));
    listing.await.unwrap();
}

#[tokio::test]
async fn what_running_tasks_depend_on_stays_until_a_restart_33() {
    let (old, new) = (fake().await, fake().await);
    let site = Site::new(&json!({"tasks": with_tasks(&old.url), "plain": plain(&old.url)}));
    let before = site.names().await;
    site.write(&json!({"tasks": with_tasks(&new.url), "plain": plain(&new.url)}));
    assert_eq!(site.names().await, before);
    assert!(site.error().contains("mcpServers.tasks") && site.error().contains("restart"), "{}", site.error());
    assert_eq!(lists(&new), 0, "nothing of it is in effect");
    let mut described = with_tasks(&old.url);
    described["tool_name_prefix"] = json!(false);
    site.write(&json!({"tasks": described, "plain": plain(&new.url)}));
    let names = site.names().await;
    assert!(names.contains(&"submit_report".to_owned()) && site.error().is_empty(), "{names:?} {}", site.error());
    assert_eq!(lists(&new), 1);
}

#[tokio::test]
async fn a_reset_anywhere_has_every_process_ask_again_97() {
    let fake = fake().await;
    let store = Arc::new(MemoryStore::new(Arc::new(SystemClock)));
    let servers = json!({"s": plain(&fake.url)});
    let (here, there) = (Site::sharing(&servers, Some(store.clone())), Site::sharing(&servers, Some(store)));
    here.names().await;
    there.names().await;
    assert_eq!(lists(&fake), 2);
    assert_eq!(here.live.reset(ResetScope::Process).await.unwrap(), ResetScope::Process);
    here.names().await;
    assert_eq!(lists(&fake), 3);
    assert_eq!(here.live.reset(ResetScope::SharedConfig).await.unwrap(), ResetScope::SharedConfig);
    wait::until("the other one asks again", || async {
        there.names().await;
        lists(&fake) == 4
    })
    .await;
    here.names().await;
    assert_eq!(lists(&fake), 5, "each once");
}

/// Of two servers with the same name, the one that is gone must not take the other one's sessions with it (103).
#[tokio::test]
async fn a_child_server_that_is_replaced_ends_and_the_new_one_keeps_its_sessions_95_96() {
    let child = |marker: &str| json!({"s": {"command": env!("CARGO_BIN_EXE_fake-mcp"), "args": ["--stdio"], "env": {"FAKE_MARKER": marker}}});
    let pid = |upstream| async move {
        let place = call(&upstream, "where", &json!({}), None).await.expect("an answer");
        place["structuredContent"]["pid"].as_u64().expect("a process id")
    };
    let site = Site::new(&child("a"));
    let old = site.live.upstream("s").unwrap();
    let old_pid = pid(Arc::clone(&old)).await;
    site.write(&child("b"));
    site.names().await;
    let new_pid = pid(site.live.upstream("s").unwrap()).await;
    assert_ne!(old_pid, new_pid);
    // A caller that took it before still has it, and may call it once more.
    let again = pid(Arc::clone(&old)).await;
    drop(old);
    let tending = CancellationToken::new();
    let running = tokio::spawn({
        let (live, tending) = (Arc::clone(&site.live), tending.clone());
        async move { live.run(&tending).await }
    });
    until("the old one's processes have ended", || !runs(old_pid) && !runs(again)).await;
    assert_eq!(pid(site.live.upstream("s").unwrap()).await, new_pid, "the same session");
    tending.cancel();
    running.await.unwrap();
    site.live.close().await;
    assert!(!runs(new_pid));
}
