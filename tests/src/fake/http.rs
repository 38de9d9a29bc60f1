//! The fake server over HTTP, with faults.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use axum::serve::ListenerExt as _;
use http::{HeaderMap, StatusCode, header};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::gate::Gates;
use super::http_sse::{event, stream_of};
use super::oauth::guarded;
use super::tools::{Core, Incoming, SharedCore, message, names, tool_error};
use super::{Era, FakeOptions};

/// What goes wrong, switched at run time. Faults hit `tools/call` and `tasks/*` only, unless `everywhere` is set.
#[derive(Debug, Default)]
pub struct Faults {
    /// Every method, `initialize` included.
    pub everywhere: AtomicBool,
    /// Milliseconds before an answer.
    pub latency_ms: AtomicU64,
    /// No answer at all.
    pub hang: AtomicBool,
    /// An HTTP error status instead of an answer; 0 is none.
    pub status: AtomicU16,
    /// `Retry-After` seconds with that status; 0 is none.
    pub retry_after: AtomicU64,
    /// Tools answer `isError`.
    pub is_error: AtomicBool,
    /// Answers carry another request's id.
    pub wrong_id: AtomicBool,
    /// Bodies that are not JSON.
    pub garbage: AtomicBool,
    /// Answers padded to this many bytes.
    pub huge_bytes: AtomicU64,
    /// The connection is dropped in the middle of an answer.
    pub drop_connection: AtomicBool,
    /// Errors repeat the `Authorization` header.
    pub echo_credentials: AtomicBool,
    /// Event streams begin with a ping of the server's.
    pub ping: AtomicBool,
    /// Event streams begin with a notice that the tools have changed.
    pub change: AtomicBool,
    /// Calls are executed, then answered with the HTTP error or dropped (instead of not executed at all).
    pub after_execution: AtomicBool,
}

/// A tool call that arrived.
#[derive(Debug, Clone)]
pub struct Called {
    /// When it did.
    pub at: Instant,
    /// The tool, or the method of a request about a native task.
    pub tool: String,
    /// The task that it names.
    pub task_id: Option<String>,
    /// `traceparent` in `_meta`.
    pub traceparent: Option<String>,
    /// The request's headers.
    pub headers: HeaderMap,
    /// Who called, where the header [`CALLER`] says so.
    pub caller: Option<String>,
}

impl Called {
    /// Whether it asks how a task stands.
    pub fn is_poll(&self) -> bool {
        matches!(self.tool.as_str(), "get_report_status" | "tasks/get")
    }
}

/// The header that tells callers apart.
pub const CALLER: &str = "x-daemon";

/// The server's state: the core's tasks and counters, faults, sessions.
#[derive(Debug)]
pub struct FakeState {
    /// Tasks, counters, tools.
    pub core: SharedCore,
    /// What goes wrong.
    pub faults: Faults,
    /// Calls that are held, where [`FakeOptions::journal`] asks for a journal.
    pub gates: Gates,
    options: FakeOptions,
    journal: Mutex<Vec<Called>>,
    /// Sessions of an older generation are unknown.
    generation: AtomicU64,
    next_session: AtomicU64,
    era: Mutex<Era>,
    /// Where clients listen for notices.
    listeners: Mutex<Vec<mpsc::UnboundedSender<Bytes>>>,
}

impl FakeState {
    fn listeners(&self) -> std::sync::MutexGuard<'_, Vec<mpsc::UnboundedSender<Bytes>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn era(&self) -> Era {
        *self.era.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes over to another protocol and forgets all sessions, as a server does that is renewed.
    pub fn renew(&self, era: Era) {
        *self.era.lock().unwrap_or_else(PoisonError::into_inner) = era;
        self.expire_sessions();
    }

    /// How many clients listen for notices.
    pub fn listening(&self) -> usize {
        self.listeners().iter().filter(|listener| !listener.is_closed()).count()
    }

    /// Sends a message to all who listen.
    pub fn say(&self, message: &str) {
        for listener in self.listeners().iter() {
            let _ = listener.send(event("message", message));
        }
    }

    /// Ends the streams of all who listen.
    pub fn drop_listeners(&self) {
        self.listeners().clear();
    }

    fn listen(&self) -> Response {
        let (sender, events) = mpsc::unbounded_channel();
        self.listeners().push(sender);
        self.core.counters.listens.fetch_add(1, Ordering::Relaxed);
        stream_of(events)
    }

    /// Forgets all sessions, as a restart does.
    pub fn expire_sessions(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// The tool calls that arrived so far, where [`FakeOptions::journal`] asks for them.
    pub fn journal(&self) -> Vec<Called> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds a tool call to the journal, where there is one.
    fn note(&self, incoming: &Incoming<'_>, headers: &HeaderMap, method: &str) -> Option<Called> {
        if !self.options.journal {
            return None;
        }
        let params: serde_json::Value =
            incoming.params.and_then(|params| serde_json::from_str(params.get()).ok()).unwrap_or_default();
        let called = Called {
            at: Instant::now(),
            tool: params["name"].as_str().unwrap_or(method).to_owned(),
            task_id: params["arguments"]["task_id"].as_str().or(params["taskId"].as_str()).map(str::to_owned),
            traceparent: params["_meta"]["traceparent"].as_str().map(str::to_owned),
            headers: headers.clone(),
            caller: headers.get(CALLER).and_then(|caller| caller.to_str().ok()).map(str::to_owned),
        };
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).push(called.clone());
        Some(called)
    }

    fn knows(&self, session: &str) -> bool {
        let generation = session.strip_prefix("session-").and_then(|rest| rest.split('-').next());
        generation.and_then(|text| text.parse().ok()) == Some(self.generation.load(Ordering::Acquire))
    }
}

/// A running fake server; it ends when dropped.
#[derive(Debug)]
pub struct FakeServer {
    /// Its endpoint.
    pub url: String,
    /// Its state.
    pub state: Arc<FakeState>,
    serving: tokio::task::JoinHandle<()>,
}

impl FakeServer {
    /// Starts a server on a loopback port.
    pub async fn start(options: FakeOptions) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", options.port)).await.expect("a loopback port");
        let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
        let core = Arc::new(Core { script: options.script.clone(), tools: options.tools.clone(), ..Core::default() });
        let state = Arc::new(FakeState {
            core,
            faults: Faults::default(),
            era: Mutex::new(options.era),
            gates: Gates::default(),
            options,
            journal: Mutex::default(),
            generation: AtomicU64::new(1),
            next_session: AtomicU64::new(1),
            listeners: Mutex::default(),
        });
        let counted = Arc::clone(&state);
        let listener = listener.tap_io(move |io| {
            counted.core.counters.connections.fetch_add(1, Ordering::Relaxed);
            let _ = io.set_nodelay(true);
        });
        let routes = Router::new().route("/mcp", post(receive).delete(end).get(listen)).with_state(Arc::clone(&state));
        let routes = guarded(routes, state.options.authority.clone());
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, routes).await;
        });
        Self { url, state, serving }
    }

    /// Serves until the process ends.
    pub async fn wait(&mut self) {
        let _ = (&mut self.serving).await;
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn listen(State(state): State<Arc<FakeState>>, headers: HeaderMap) -> Response {
    let session = headers.get("mcp-session-id").and_then(|value| value.to_str().ok());
    match state.era() {
        Era::Legacy if session.is_some_and(|session| state.knows(session)) => state.listen(),
        Era::Legacy => plain(StatusCode::NOT_FOUND, "Session not found"),
        _ => plain(StatusCode::METHOD_NOT_ALLOWED, ""),
    }
}

async fn end(State(state): State<Arc<FakeState>>) -> StatusCode {
    state.core.counters.deletes.fetch_add(1, Ordering::Relaxed);
    StatusCode::NO_CONTENT
}

async fn receive(State(state): State<Arc<FakeState>>, headers: HeaderMap, body: Bytes) -> Response {
    let counters = &state.core.counters;
    counters.requests.fetch_add(1, Ordering::Relaxed);
    let Ok(incoming) = serde_json::from_slice::<Incoming<'_>>(&body) else {
        return plain(StatusCode::BAD_REQUEST, "not JSON-RPC");
    };
    let (Some(id), Some(method)) = (incoming.id, incoming.method.as_deref()) else {
        match incoming.method.as_deref() {
            Some("notifications/cancelled") => counters.cancellations.fetch_add(1, Ordering::Relaxed),
            None => counters.pongs.fetch_add(1, Ordering::Relaxed),
            Some(_) => 0,
        };
        return plain(StatusCode::ACCEPTED, "");
    };
    if method == "server/discover" {
        counters.discovers.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(refusal) = refuse(&state, &headers, &incoming, method, id.get()).await {
        return refusal;
    }
    if method == "subscriptions/listen" && state.era() == Era::Modern {
        return state.listen();
    }
    let is_call = method == "tools/call" || method.starts_with("tasks/");
    let called = if is_call { state.note(&incoming, &headers, method) } else { None };
    if let Some(called) = &called {
        state.gates.pass(called, false).await;
    }
    let faulty = is_call || state.faults.everywhere.load(Ordering::Relaxed);
    let executed_first = state.faults.after_execution.load(Ordering::Relaxed);
    if faulty
        && !executed_first
        && let Some(fault) = fault(&state, &headers).await
    {
        return fault;
    }
    let result = state.core.dispatch(method, incoming.params);
    if let Some(called) = &called {
        state.gates.pass(called, true).await;
    }
    if faulty
        && executed_first
        && let Some(fault) = fault(&state, &headers).await
    {
        return fault;
    }
    let mut text = if faulty { spoiled(&state, id.get(), result) } else { message(id.get(), result) };
    let mut answer = Response::builder();
    if method == "initialize" && state.era() == Era::Legacy {
        let number = state.next_session.fetch_add(1, Ordering::Relaxed);
        let generation = state.generation.load(Ordering::Acquire);
        answer = answer.header("mcp-session-id", format!("session-{generation}-{number}"));
    }
    let kind = if state.options.sse {
        let ping = if state.faults.ping.load(Ordering::Relaxed) {
            "data: {\"jsonrpc\":\"2.0\",\"id\":\"p1\",\"method\":\"ping\"}\n\n"
        } else {
            ""
        };
        let change = if state.faults.change.load(Ordering::Relaxed) {
            "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n"
        } else {
            ""
        };
        let progress = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "working"}});
        text = format!(
            ": hello\n\n{ping}{change}event: message\ndata: {progress}\n\nevent: message\nid: 1\ndata: {text}\n\n"
        );
        "text/event-stream"
    } else {
        "application/json"
    };
    answer.header(header::CONTENT_TYPE, kind).body(Body::from(text)).expect("a valid response")
}

/// What the era refuses.
async fn refuse(
    state: &FakeState,
    headers: &HeaderMap,
    incoming: &Incoming<'_>,
    method: &str,
    id: &str,
) -> Option<Response> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let error = |status: StatusCode, code: i64, text: &str| {
        let body = json!({"jsonrpc": "2.0", "id": null, "error": {"code": code, "message": text}}).to_string();
        let response = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
        Some(response.body(Body::from(body)).expect("a valid response"))
    };
    match state.era() {
        Era::Modern => {
            if header("mcp-protocol-version") != Some("2026-07-28") {
                return error(StatusCode::BAD_REQUEST, -32_022, "Unsupported protocol version");
            }
            let named = names(method, incoming.params);
            if header("mcp-method") != Some(method) || named.is_some_and(|name| header("mcp-name") != Some(&name)) {
                return error(StatusCode::BAD_REQUEST, -32_020, "Header mismatch");
            }
            if method == "tools/call" && !state.core.mirrored(incoming.params, |name| header(name).map(str::to_owned)) {
                state.core.counters.mismatches.fetch_add(1, Ordering::Relaxed);
                return error(StatusCode::BAD_REQUEST, -32_020, "Header mismatch");
            }
            None
        }
        Era::Stateless | Era::Legacy | Era::Silent if method == "server/discover" => match state.era() {
            Era::Silent => std::future::pending().await,
            Era::Stateless => {
                let text = message(id, Err(super::tools::Refusal(-32_601, "Method not found".to_owned())));
                let response = Response::builder().header(header::CONTENT_TYPE, "application/json");
                Some(response.body(Body::from(text)).expect("a valid response"))
            }
            _ => error(StatusCode::BAD_REQUEST, -32_000, "Bad Request: No valid session ID provided"),
        },
        Era::Stateless | Era::Silent => None,
        Era::Legacy if method == "initialize" => None,
        Era::Legacy => match header("mcp-session-id") {
            None => error(StatusCode::BAD_REQUEST, -32_000, "Bad Request: No valid session ID provided"),
            Some(session) if !state.knows(session) => error(StatusCode::NOT_FOUND, -32_001, "Session not found"),
            Some(_) => None,
        },
    }
}

/// What the faults answer instead.
async fn fault(state: &FakeState, headers: &HeaderMap) -> Option<Response> {
    let faults = &state.faults;
    let latency = faults.latency_ms.load(Ordering::Relaxed);
    if latency > 0 {
        tokio::time::sleep(Duration::from_millis(latency)).await;
    }
    if faults.hang.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
    let status = faults.status.load(Ordering::Relaxed);
    if status > 0 {
        let said = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let text = if faults.echo_credentials.load(Ordering::Relaxed) { said } else { "faulty on purpose" };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = Response::builder().status(status).header(header::CONTENT_TYPE, "text/plain");
        let seconds = faults.retry_after.load(Ordering::Relaxed);
        if seconds > 0 {
            response = response.header(header::RETRY_AFTER, seconds);
        }
        return Some(response.body(Body::from(text.to_owned())).expect("a valid response"));
    }
    if faults.garbage.load(Ordering::Relaxed) {
        return Some(plain(StatusCode::OK, "{\"jsonrpc\": nonsense"));
    }
    if faults.drop_connection.load(Ordering::Relaxed) {
        let broken = futures_util::stream::iter([
            Ok(Bytes::from_static(b"{\"jsonrpc\"")),
            Err(std::io::Error::other("dropped on purpose")),
        ]);
        let response = Response::builder().header(header::CONTENT_TYPE, "application/json");
        return Some(response.body(Body::from_stream(broken)).expect("a valid response"));
    }
    let huge = faults.huge_bytes.load(Ordering::Relaxed);
    if huge > 0 {
        // Streamed, so that no length gives it away.
        let chunk = Bytes::from(vec![b' '; 64 << 10]);
        let chunks = huge.div_ceil(64 << 10) as usize;
        let body = futures_util::stream::iter((0..chunks).map(move |_| Ok::<_, Infallible>(chunk.clone())));
        let response = Response::builder().header(header::CONTENT_TYPE, "application/json");
        return Some(response.body(Body::from_stream(body)).expect("a valid response"));
    }
    None
}

fn spoiled(state: &FakeState, id: &str, result: Result<String, super::tools::Refusal>) -> String {
    if state.faults.is_error.load(Ordering::Relaxed) {
        return message(id, Ok(tool_error("the tool is out of order")));
    }
    if state.faults.wrong_id.load(Ordering::Relaxed) {
        return message("987654321", result);
    }
    message(id, result)
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "text/plain")
        .body(Body::from(text))
        .expect("a valid response")
}
