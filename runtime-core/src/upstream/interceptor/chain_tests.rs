//! What interceptors do to calls.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, header};
use serde_json::json;

use super::super::Interceptors;
use super::*;
use crate::upstream::{Method, Scope};

/// A server that answers with what it was sent, and scrubs nothing.
#[derive(Default)]
struct Echo {
    calls: AtomicUsize,
    fails: bool,
}

#[async_trait]
impl Upstream for Echo {
    async fn call_tool(&self, call: ToolCall<'_>) -> Result<Box<RawValue>, CallError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let headers: Vec<_> =
            call.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        let deadline = call.deadline.map(|deadline| deadline.as_millis() as u64);
        let sent = json!({"tool": call.tool, "headers": headers, "deadline_ms": deadline});
        if self.fails {
            return Err(CallError::new(CallErrorKind::Transport, sent.to_string()));
        }
        Ok(serde_json::value::to_raw_value(&sent).unwrap())
    }

    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError> {
        Ok(Vec::new())
    }

    async fn close(&self) {}
}

type Behaviour = dyn Fn(Call<'_>) -> Result<Verdict, Failed> + Send + Sync;

/// An interceptor with one behaviour.
struct Test {
    does: Box<Behaviour>,
    hangs: bool,
    on_error: OnError,
    arguments: bool,
}

impl Test {
    fn new(does: impl Fn(Call<'_>) -> Result<Verdict, Failed> + Send + Sync + 'static) -> Self {
        Self { does: Box::new(does), hangs: false, on_error: OnError::Deny, arguments: false }
    }

    fn adding(name: &'static str, value: &'static str) -> Self {
        Self::new(move |_| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            Ok(Verdict::Pass(headers))
        })
    }

    fn skipped(self) -> Self {
        Self { on_error: OnError::Skip, ..self }
    }
}

#[async_trait]
impl Interceptor for Test {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn wants_arguments(&self) -> bool {
        self.arguments
    }

    fn on_error(&self) -> OnError {
        self.on_error
    }

    async fn before_call(&self, call: Call<'_>) -> Result<Verdict, Failed> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        (self.does)(call)
    }
}

struct Setup {
    echo: Arc<Echo>,
    chain: SharedUpstream,
}

fn setup(echo: Echo, interceptors: impl IntoIterator<Item = Test>) -> Setup {
    let echo = Arc::new(echo);
    let inner: SharedUpstream = Arc::<Echo>::clone(&echo);
    let interceptors = interceptors.into_iter().map(|test| Arc::new(test) as Arc<dyn Interceptor>).collect();
    Setup { chain: Chain::wrap("s", inner, interceptors), echo }
}

impl Setup {
    async fn call(&self, deadline: Option<Duration>) -> Result<serde_json::Value, CallError> {
        self.call_with(&[], deadline).await
    }

    async fn call_with(
        &self,
        headers: &[(HeaderName, HeaderValue)],
        deadline: Option<Duration>,
    ) -> Result<serde_json::Value, CallError> {
        let arguments = RawValue::from_string(r#"{"a":1}"#.to_owned()).unwrap();
        let scope = Scope { user_id: "ada".into(), thread_id: "t1".into() };
        let call = ToolCall {
            method: Method::Call,
            tool: "echo",
            arguments: &arguments,
            meta: &[],
            headers,
            scope: &scope,
            task: None,
            deadline,
        };
        let answer = self.chain.call_tool(call).await?;
        Ok(serde_json::from_str(answer.get()).unwrap())
    }
}

#[tokio::test]
async fn headers_are_added_in_order_and_the_later_one_counts_127() {
    let setup =
        setup(Echo::default(), [Test::adding("x-a", "first"), Test::adding("x-b", "b"), Test::adding("x-a", "last")]);
    let sent = setup.call(None).await.unwrap();
    assert_eq!(sent["headers"], json!(["x-a: last", "x-b: b"]));
}

#[tokio::test]
async fn what_the_call_itself_came_with_wins_over_interceptors_122() {
    let own = [(HeaderName::from_static("x-a"), HeaderValue::from_static("own"))];
    let setup = setup(Echo::default(), [Test::adding("x-a", "theirs"), Test::adding("x-b", "b")]);
    let sent = setup.call_with(&own, None).await.unwrap();
    assert_eq!(sent["headers"], json!(["x-a: own", "x-b: b"]));
}

#[tokio::test]
async fn an_interceptor_sees_the_call_and_its_arguments_only_when_it_asks_139() {
    let looks = |arguments: bool| Test {
        arguments,
        ..Test::new(move |call| {
            assert_eq!((call.server, call.tool, call.user_id, call.thread_id), ("s", "echo", "ada", "t1"));
            assert_eq!(call.arguments.map(RawValue::get), arguments.then_some(r#"{"a":1}"#));
            Ok(Verdict::Pass(HeaderMap::new()))
        })
    };
    setup(Echo::default(), [looks(false), looks(true)]).call(None).await.unwrap();
}

#[tokio::test]
async fn a_refused_call_is_not_sent_and_says_who_refused_139() {
    let refuses = Test::new(|_| Ok(Verdict::Refuse("not today".into())));
    let setup = setup(Echo::default(), [refuses, Test::new(|_| panic!("must not be asked any more"))]);
    let error = setup.call(None).await.unwrap_err();
    assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Intercepted, false));
    assert!(error.message.contains("gate") && error.message.contains("not today"), "{error}");
    assert_eq!(setup.echo.calls.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_panics_or_hangs_denies_or_is_skipped_139() {
    let broken = || {
        [
            Test::new(|_| Err(Failed("no connection".into()))),
            Test::new(|_| panic!("forgotten case")),
            Test { hangs: true, ..Test::new(|_| unreachable!()) },
        ]
    };
    for test in broken() {
        let setup = setup(Echo::default(), [test]);
        let error = setup.call(None).await.unwrap_err();
        assert_eq!(error.kind, CallErrorKind::Intercepted, "{error}");
        assert!(error.message.contains("gate"), "{error}");
        assert_eq!(setup.echo.calls.load(Ordering::Relaxed), 0);
    }
    let all = broken().into_iter().map(Test::skipped).chain([Test::adding("x-a", "1")]);
    assert_eq!(setup(Echo::default(), all).call(None).await.unwrap()["headers"], json!(["x-a: 1"]));
}

#[tokio::test]
async fn a_header_of_the_protocols_own_refuses_the_call_even_where_errors_are_skipped_121() {
    let setup = setup(Echo::default(), [Test::adding("mcp-session-id", "x").skipped()]);
    let error = setup.call(None).await.unwrap_err();
    assert!(error.message.contains("mcp-session-id"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_interceptors_take_is_part_of_the_calls_own_time() {
    let slow = || Test { hangs: true, ..Test::new(|_| unreachable!()) }.skipped();
    let sent = setup(Echo::default(), [slow()]).call(Some(Duration::from_secs(8))).await.unwrap();
    assert_eq!(sent["deadline_ms"], 3_000, "5 s went to the interceptor");
    let setup = setup(Echo::default(), [slow()]);
    let error = setup.call(Some(Duration::from_secs(2))).await.unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Intercepted);
    assert_eq!(setup.echo.calls.load(Ordering::Relaxed), 0, "nothing was left for the call");
}

#[tokio::test]
async fn what_was_added_is_taken_out_of_errors_and_of_what_the_server_says_148() {
    let setup = setup(
        Echo { fails: true, ..Echo::default() },
        [Test::adding(header::AUTHORIZATION.as_str(), "Bearer hunter2")],
    );
    let error = setup.call(None).await.unwrap_err();
    assert!(!error.message.contains("hunter2") && error.message.contains("***"), "{error}");
    assert_eq!(setup.chain.scrub("the key hunter2 is no good"), "the key *** is no good");
}

#[test]
fn without_interceptors_nothing_stands_between_and_builders_run_once_a_server_127() {
    let built = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&built);
    let interceptors = Interceptors::default().with(move |server| {
        counted.fetch_add(1, Ordering::Relaxed);
        (server == "a").then(|| Arc::new(Test::adding("x-a", "1")) as Arc<dyn Interceptor>)
    });
    assert_eq!(interceptors.of("a").count(), 1);
    assert_eq!(interceptors.of("b").count(), 0);
    assert_eq!(built.load(Ordering::Relaxed), 2);
    let echo: SharedUpstream = Arc::new(Echo::default());
    assert!(Arc::ptr_eq(&Chain::wrap("s", Arc::clone(&echo), Vec::new()), &echo));
}
