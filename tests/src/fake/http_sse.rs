//! The fake server over the legacy HTTP+SSE transport, with faults of its own.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use futures_util::stream;
use http::{HeaderMap, StatusCode, header};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::FakeOptions;
use super::oauth::guarded;
use super::tools::{Core, Incoming, SharedCore, message};

/// What the endpoint event says.
#[derive(Debug, Clone, Default)]
pub enum Endpoint {
    /// The path of the messages, with the session.
    #[default]
    Usual,
    /// This text.
    Text(String),
    /// Nothing: there is no such event.
    Missing,
}

/// What goes wrong, switched at run time.
#[derive(Debug, Default)]
pub struct SseFaults {
    /// The endpoint event.
    pub endpoint: Mutex<Endpoint>,
    /// The stream is refused with this status; 0 is none.
    pub stream_status: AtomicU16,
    /// Posted calls are refused with this status; 0 is none.
    pub post_status: AtomicU16,
    /// `Retry-After` seconds with a refusal; 0 is none.
    pub retry_after: AtomicU64,
    /// Calls are taken and never answered.
    pub mute: AtomicBool,
    /// Answers come twice.
    pub twice: AtomicBool,
    /// Calls are answered first, and acknowledged after this many milliseconds.
    pub late_acknowledgement_ms: AtomicU64,
    /// An event without an end is sent instead of an answer.
    pub endless_event: AtomicBool,
    /// The stream ends when a call arrives, after it was executed.
    pub drop_on_call: AtomicBool,
    /// Answers come in pieces of a few bytes.
    pub drip: AtomicBool,
}

/// The server's state.
#[derive(Debug, Default)]
pub struct SseState {
    /// Tasks, counters, tools.
    pub core: SharedCore,
    /// What goes wrong.
    pub faults: SseFaults,
    /// Streams opened so far.
    pub streams: AtomicU64,
    /// The `Authorization` headers that came, stream and messages alike.
    pub credentials: Mutex<Vec<String>>,
    sessions: Mutex<HashMap<String, mpsc::UnboundedSender<Bytes>>>,
}

impl SseState {
    fn sessions(&self) -> MutexGuard<'_, HashMap<String, mpsc::UnboundedSender<Bytes>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Streams that clients hold open.
    pub fn open_streams(&self) -> usize {
        self.sessions().values().filter(|session| !session.is_closed()).count()
    }

    /// Ends every stream, as a restart does.
    pub fn drop_streams(&self) {
        self.sessions().clear();
    }

    /// Forgets the sessions and keeps their streams open.
    pub fn forget_sessions(&self) {
        let mut sessions = self.sessions();
        let forgotten: Vec<_> = sessions.drain().collect();
        sessions.extend(forgotten.into_iter().map(|(id, session)| (format!("forgotten-{id}"), session)));
    }

    /// Sends a message on every stream.
    pub fn say(&self, message: &str) {
        for session in self.sessions().values() {
            let _ = session.send(event("message", message));
        }
    }

    fn note(&self, headers: &HeaderMap) {
        if let Some(value) = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()) {
            self.credentials.lock().unwrap_or_else(PoisonError::into_inner).push(value.to_owned());
        }
    }

    fn refusal(&self, status: &AtomicU16) -> Option<Response> {
        let status = status.load(Ordering::Relaxed);
        if status == 0 {
            return None;
        }
        let mut response = Response::builder().status(status).header(header::LOCATION, "/elsewhere");
        let seconds = self.faults.retry_after.load(Ordering::Relaxed);
        if seconds > 0 {
            response = response.header(header::RETRY_AFTER, seconds);
        }
        Some(response.body(Body::from("refused on purpose")).expect("a valid response"))
    }
}

/// A running fake server; it ends when dropped.
#[derive(Debug)]
pub struct FakeSse {
    /// The address of its stream.
    pub url: String,
    /// Its state.
    pub state: Arc<SseState>,
    serving: tokio::task::JoinHandle<()>,
}

impl FakeSse {
    /// Starts a server on a loopback port; of the options the era and `sse` mean nothing here.
    pub async fn start(options: FakeOptions) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", options.port)).await.expect("a loopback port");
        let url = format!("http://{}/sse", listener.local_addr().expect("an address"));
        let core = Arc::new(Core { script: options.script, tools: options.tools, ..Core::default() });
        let state = Arc::new(SseState { core, ..SseState::default() });
        let routes =
            Router::new().route("/sse", get(open)).route("/messages", post(receive)).with_state(Arc::clone(&state));
        let routes = guarded(routes, options.authority);
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

impl Drop for FakeSse {
    fn drop(&mut self) {
        self.serving.abort();
        self.state.drop_streams();
    }
}

/// An event's text.
pub(super) fn event(name: &str, data: &str) -> Bytes {
    format!("event: {name}\r\ndata: {data}\r\n\r\n").into()
}

/// A stream of what is sent on the channel; it ends when the sender goes.
pub(super) fn stream_of(events: mpsc::UnboundedReceiver<Bytes>) -> Response {
    let body = stream::unfold(events, async |mut events| Some((Ok::<_, Infallible>(events.recv().await?), events)));
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(body)).into_response()
}

async fn open(State(state): State<Arc<SseState>>, headers: HeaderMap) -> Response {
    state.note(&headers);
    let number = state.streams.fetch_add(1, Ordering::Relaxed);
    if let Some(refusal) = state.refusal(&state.faults.stream_status) {
        return refusal;
    }
    let id = format!("session-{number}");
    let endpoint = state.faults.endpoint.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (sender, events) = mpsc::unbounded_channel();
    let _ = sender.send(Bytes::from_static(b": hello\r\n\r\n"));
    match endpoint {
        Endpoint::Usual => drop(sender.send(event("endpoint", &format!("/messages?session={id}")))),
        Endpoint::Text(text) => drop(sender.send(event("endpoint", &text))),
        Endpoint::Missing => {}
    }
    state.sessions().insert(id, sender);
    stream_of(events)
}

async fn receive(
    State(state): State<Arc<SseState>>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let (core, faults) = (&state.core, &state.faults);
    state.note(&headers);
    core.counters.requests.fetch_add(1, Ordering::Relaxed);
    let Ok(incoming) = serde_json::from_slice::<Incoming<'_>>(&body) else {
        return (StatusCode::BAD_REQUEST, "not JSON-RPC").into_response();
    };
    let id = query.get("session").cloned().unwrap_or_default();
    let Some(session) = state.sessions().get(&id).cloned() else {
        return (StatusCode::NOT_FOUND, "Could not find session").into_response();
    };
    let (Some(request), Some(method)) = (incoming.id, incoming.method.as_deref()) else {
        match incoming.method.as_deref() {
            Some("notifications/cancelled") => core.counters.cancellations.fetch_add(1, Ordering::Relaxed),
            None => core.counters.pongs.fetch_add(1, Ordering::Relaxed),
            Some(_) => 0,
        };
        return (StatusCode::ACCEPTED, "Accepted").into_response();
    };
    let faulty = method == "tools/call";
    if faulty && let Some(refusal) = state.refusal(&faults.post_status) {
        return refusal;
    }
    let answer = event("message", &message(request.get(), core.dispatch(method, incoming.params)));
    if faulty && faults.drop_on_call.load(Ordering::Relaxed) {
        state.sessions().remove(&id);
        drop(session);
        return (StatusCode::ACCEPTED, "Accepted").into_response();
    }
    if faulty && faults.endless_event.load(Ordering::Relaxed) {
        tokio::spawn(async move {
            let chunk = Bytes::from(vec![b'x'; 64 << 10]);
            while session.send(chunk.clone()).is_ok() {
                tokio::task::yield_now().await;
            }
        });
    } else if !(faulty && faults.mute.load(Ordering::Relaxed)) {
        let times = if faulty && faults.twice.load(Ordering::Relaxed) { 2 } else { 1 };
        // Sent without a pause: pieces of two answers must not mix.
        let pieces = if faults.drip.load(Ordering::Relaxed) { 7 } else { answer.len() };
        for _ in 0..times {
            for piece in answer.chunks(pieces) {
                let _ = session.send(answer.slice_ref(piece));
            }
        }
    }
    let late = faults.late_acknowledgement_ms.load(Ordering::Relaxed);
    if faulty && late > 0 {
        tokio::time::sleep(Duration::from_millis(late)).await;
    }
    (StatusCode::ACCEPTED, "Accepted").into_response()
}
