use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use mcp_taskd_core::catalog::{Catalog, View};
use mcp_taskd_core::config::Settings;
use mcp_taskd_core::upstream::{CallError, Options, SharedUpstream, ToolCall, Upstream, Upstreams, build};
use mcp_taskd_tests::fake::{Era, FakeOptions, FakeServer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::setup::{extensions, until};
use mcp_taskd_tests::wait;

fn catalogue(servers: &Value) -> Catalog {
    catalogue_with(servers, &Settings::default())
}

fn catalogue_with(servers: &Value, settings: &Settings) -> Catalog {
    let extensions = extensions(servers);
    let upstreams = build(&extensions, &Options::new("unused")).unwrap();
    Catalog::new(&extensions, &upstreams, settings)
}

fn names(view: &View) -> Vec<&str> {
    view.tools.iter().map(|tool| tool.name.as_str()).collect()
}

fn with_tasks(url: &str) -> Value {
    json!({"type": "http", "url": url, "session_init_timeout": 2, "task_toolsets": [{
        "name": "report", "submit_tool": "submit_report", "status_tool": "get_report_status",
        "cancel_tool": "cancel_report", "input_tool": "send_report_input",
    }]})
}

#[tokio::test]
async fn servers_are_asked_once_and_again_after_a_reset_94_97() {
    let fake = FakeServer::start(FakeOptions::default()).await;
    let catalogue = catalogue(&json!({"reports": with_tasks(&fake.url)}));
    let view = catalogue.view().await;
    assert_eq!(names(&view), ["reports_submit_report", "reports_echo"], "{:?}", view.problems);
    let echo = view.find("reports_echo").unwrap();
    assert!(echo.definition.get().starts_with(r#"{"zeta":1,"name":"reports_echo","#), "keys keep their order");
    let lists = fake.state.core.counters.lists.load(Relaxed);
    catalogue.view().await;
    assert_eq!(fake.state.core.counters.lists.load(Relaxed), lists);
    catalogue.reset().await;
    catalogue.view().await;
    assert!(fake.state.core.counters.lists.load(Relaxed) > lists);
}

#[tokio::test]
async fn a_hung_server_delays_only_the_first_view_and_returns_by_itself_99() {
    let good = FakeServer::start(FakeOptions::default()).await;
    let bad = FakeServer::start(FakeOptions { era: Era::Stateless, ..FakeOptions::default() }).await;
    bad.state.faults.everywhere.store(true, Relaxed);
    bad.state.faults.hang.store(true, Relaxed);
    let mut hung = with_tasks(&bad.url);
    hung["session_init_timeout"] = json!(0.4);
    let catalogue = catalogue(&json!({"bad": hung, "good": with_tasks(&good.url)}));
    let started = Instant::now();
    let view = catalogue.view().await;
    assert!(started.elapsed() < Duration::from_millis(1_500));
    assert_eq!(names(&view), ["good_submit_report", "good_echo"]);
    assert!(view.problems.iter().any(|problem| problem.contains("server bad")), "{:?}", view.problems);
    let started = Instant::now();
    catalogue.view().await;
    assert!(started.elapsed() < Duration::from_millis(100), "from the cache");
    bad.state.faults.hang.store(false, Relaxed);
    wait::until("it is asked again", || async { catalogue.view().await.find("bad_echo").is_some() }).await;
    assert_eq!(catalogue.view().await.tools.len(), 4, "back without a reset");
}

#[tokio::test]
async fn concurrent_first_views_ask_once_and_a_caller_may_go_away() {
    let fake = FakeServer::start(FakeOptions::default()).await;
    fake.state.faults.everywhere.store(true, Relaxed);
    fake.state.faults.latency_ms.store(50, Relaxed);
    let catalogue = std::sync::Arc::new(catalogue(&json!({"r": with_tasks(&fake.url)})));
    let early = tokio::spawn({
        let catalogue = catalogue.clone();
        async move { catalogue.view().await }
    });
    until("a request", || fake.state.core.counters.requests.load(Relaxed) > 0).await;
    early.abort();
    let (a, b) = tokio::join!(catalogue.view(), catalogue.view());
    assert_eq!((a.tools.len(), b.tools.len()), (2, 2), "{:?}", a.problems);
    assert_eq!(fake.state.core.counters.initializes.load(Relaxed), 1);
}

#[tokio::test]
async fn what_was_asked_before_a_reset_is_discarded_and_asked_again_96() {
    let fake = FakeServer::start(FakeOptions { era: Era::Stateless, ..FakeOptions::default() }).await;
    fake.state.faults.everywhere.store(true, Relaxed);
    fake.state.faults.latency_ms.store(200, Relaxed);
    let catalogue = std::sync::Arc::new(catalogue(&json!({"r": with_tasks(&fake.url)})));
    let viewing = tokio::spawn({
        let catalogue = catalogue.clone();
        async move { catalogue.view().await }
    });
    until("a request", || fake.state.core.counters.requests.load(Relaxed) > 0).await;
    catalogue.reset().await;
    assert_eq!(names(&viewing.await.unwrap()), ["r_submit_report", "r_echo"]);
    // Two pages each time.
    until("both", || fake.state.core.counters.lists.load(Relaxed) == 4).await;
}

#[tokio::test]
async fn listeners_hear_of_a_server_that_is_back_and_nothing_of_a_reset_that_changes_nothing() {
    let good = FakeServer::start(FakeOptions::default()).await;
    let bad = FakeServer::start(FakeOptions { era: Era::Stateless, ..FakeOptions::default() }).await;
    bad.state.faults.everywhere.store(true, Relaxed);
    bad.state.faults.status.store(500, Relaxed);
    let catalogue = catalogue(&json!({"bad": with_tasks(&bad.url), "good": with_tasks(&good.url)}));
    let mut changes = catalogue.changes();
    catalogue.reset().await;
    catalogue.view().await;
    assert!(!changes.has_changed().unwrap(), "nobody had been shown anything before");
    bad.state.faults.status.store(0, Relaxed);
    let heard = async {
        // What failed is asked again when somebody looks.
        let mut look = tokio::time::interval(Duration::from_millis(50));
        loop {
            tokio::select! {
                changed = changes.changed() => return changed.unwrap(),
                _ = look.tick() => drop(catalogue.view().await),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), heard).await.expect("the server is back");
    assert_eq!(catalogue.view().await.tools.len(), 4);
    catalogue.reset().await;
    catalogue.view().await;
    assert!(!changes.has_changed().unwrap(), "the same tools as before: nobody has to list them again");
}

#[tokio::test]
async fn a_submit_by_task_name_asks_the_guardrail_for_the_visible_name_130() {
    let mut settings = Settings::default();
    settings.guardrails.enabled = true;
    settings.guardrails.provider.config.denied_tools = vec!["a_submit_report".into(), "submit_report".into()];
    let mut plain = with_tasks("http://127.0.0.1:9/mcp");
    plain["tool_name_prefix"] = json!(false);
    let prefixed = with_tasks("http://127.0.0.1:9/mcp");
    let catalogue = catalogue_with(&json!({"a": prefixed.clone(), "b": prefixed, "c": plain}), &settings);
    let allowed: Vec<_> = ["a", "b", "c"].iter().map(|server| catalogue.allows_submit(server, "report")).collect();
    assert_eq!(allowed, [false, true, false], "no server was asked");
    assert!(catalogue.allows_submit("nobody", "report"), "what is not configured is another error");
}

/// A server that lists what it is told to, and says when that changes.
struct Changing {
    tools: std::sync::Mutex<Vec<&'static str>>,
    changes: tokio::sync::watch::Sender<u64>,
    lists: std::sync::atomic::AtomicUsize,
}

#[async_trait::async_trait]
impl Upstream for Changing {
    async fn call_tool(&self, _: ToolCall<'_>) -> Result<Box<RawValue>, CallError> {
        unreachable!("nothing is called")
    }

    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError> {
        self.lists.fetch_add(1, Relaxed);
        let tools = self.tools.lock().unwrap().clone();
        let tool = |name| serde_json::value::to_raw_value(&json!({"name": name, "inputSchema": {}})).unwrap();
        Ok(tools.into_iter().map(tool).collect())
    }

    fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.changes.subscribe()
    }

    async fn close(&self) {}
}

#[tokio::test]
async fn a_server_that_says_that_its_tools_changed_is_listed_again_but_not_in_a_tight_loop_98() {
    let server = std::sync::Arc::new(Changing {
        tools: vec!["a"].into(),
        changes: tokio::sync::watch::Sender::new(0),
        lists: 0.into(),
    });
    let shared: SharedUpstream = server.clone();
    let upstreams: Upstreams = [("s".to_owned(), shared)].into_iter().collect();
    let extensions = extensions(&json!({"s": {"type": "http", "url": "http://127.0.0.1:9/mcp"}}));
    let catalogue = Catalog::new(&extensions, &upstreams, &Settings::default());
    let mut changes = catalogue.changes();
    let view = catalogue.view().await;
    assert_eq!(names(&view), ["s_a"]);
    until("somebody listens", || server.changes.receiver_count() == 1).await;
    *server.tools.lock().unwrap() = vec!["a", "b"];
    for _ in 0..100 {
        server.changes.send_modify(|changes| *changes += 1);
    }
    tokio::time::timeout(Duration::from_secs(20), changes.changed()).await.expect("agents are told").unwrap();
    let view = catalogue.view().await;
    assert_eq!(names(&view), ["s_a", "s_b"]);
    for _ in 0..100 {
        server.changes.send_modify(|changes| *changes += 1);
        tokio::task::yield_now().await;
    }
    assert!(server.lists.load(Relaxed) <= 3, "a hundred notices are one");
    drop(catalogue);
    until("nobody listens any more", || server.changes.receiver_count() == 0).await;
}
