//! One request and its answer: what is read from the wire, within bounds, and what a failure means.

use std::ops::ControlFlow;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderMap, StatusCode, header};
use reqwest::Response;
use serde_json::value::RawValue;

use crate::clock::{Clock as _, SystemClock};
use crate::task::limits::clip;
use crate::upstream::jsonrpc::{Aside, Message, RpcError};
use crate::upstream::sse::SseParser;
use crate::upstream::{CallError, CallErrorKind};

/// Largest answer that is read, in bytes on the wire.
pub const BODY_MAX_BYTES: usize = 16 << 20;
/// Most of an HTTP error's body that is read for its text.
const ERROR_BODY_MAX_BYTES: usize = 16 << 10;
/// How much of an HTTP error's text is shown.
const ERROR_TEXT_MAX_CHARS: usize = 200;
/// How long the end of an answer is waited for when what counts has been read, so that the connection can be used again.
const DRAIN: Duration = Duration::from_secs(1);

/// How a request failed.
#[derive(Debug)]
pub(in crate::upstream) enum Failure {
    /// Finally.
    Call(CallError),
    /// With a JSON-RPC error.
    Rpc(RpcError),
    /// The server does not know the session, so it has not done anything; a new one may help.
    SessionLost(CallError),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl Failure {
    pub(in crate::upstream) fn into_error(self) -> CallError {
        match self {
            Self::Call(error) | Self::SessionLost(error) => error,
            Self::Rpc(error) => error.into_call_error(),
        }
    }
}

/// The result that answers the request `id`. `aside` gets what else the server says meanwhile.
pub(super) async fn read_answer(
    response: Response,
    id: u64,
    aside: impl FnMut(Aside<'_>),
) -> Result<Box<RawValue>, Failure> {
    let status = response.status();
    if !status.is_success() {
        return Err(read_error(response, status).await);
    }
    if response.content_length().is_some_and(|length| length > BODY_MAX_BYTES as u64) {
        return Err(too_large().into());
    }
    if is_event_stream(response.headers()) {
        from_events(response, id, aside).await
    } else {
        from_body(response, id).await
    }
}

/// Whether the content is a stream of events.
pub(in crate::upstream) fn is_event_stream(headers: &HeaderMap) -> bool {
    is(headers, "text/event-stream")
}

/// Whether the content is of this type, whatever its parameters.
fn is(headers: &HeaderMap, kind: &str) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.as_bytes().get(..kind.len()))
        .is_some_and(|start| start.eq_ignore_ascii_case(kind.as_bytes()))
}

async fn from_body(mut response: Response, id: u64) -> Result<Box<RawValue>, Failure> {
    let body = collect(&mut response, BODY_MAX_BYTES).await?.ok_or_else(too_large)?;
    let text = std::str::from_utf8(&body).map_err(|_| protocol("the answer is no UTF-8 text"))?;
    for message in Message::read_all(text) {
        if message.answers(id) {
            return result(&message);
        }
    }
    let what = if text.trim().is_empty() {
        "the answer is empty"
    } else if serde_json::from_str::<&RawValue>(text).is_err() {
        "the answer is not JSON"
    } else {
        "no answer has the request's id"
    };
    Err(protocol(what).into())
}

async fn from_events(
    mut response: Response,
    id: u64,
    mut aside: impl FnMut(Aside<'_>),
) -> Result<Box<RawValue>, Failure> {
    let mut parser = SseParser::default();
    let mut size = 0;
    while let Some(chunk) = response.chunk().await.map_err(|error| broken(&error))? {
        size += chunk.len();
        if size > BODY_MAX_BYTES {
            return Err(too_large().into());
        }
        let flow = parser.feed(&chunk, |event| {
            let Ok(text) = std::str::from_utf8(event.data) else { return ControlFlow::Continue(()) };
            for message in Message::read_all(text) {
                if message.answers(id) {
                    return ControlFlow::Break(result(&message));
                }
                if let Some(said) = message.aside() {
                    aside(said);
                }
            }
            ControlFlow::Continue(())
        });
        if let ControlFlow::Break(result) = flow {
            drain(response);
            return result;
        }
    }
    Err(protocol("the event stream ended without an answer").into())
}

fn result(message: &Message<'_>) -> Result<Box<RawValue>, Failure> {
    match (message.result, message.error) {
        (_, Some(error)) => {
            let error = RpcError::read(error);
            // Some servers say with HTTP 200 that they do not know the session.
            Err(if error.code == -32_001 && is_session_text(&error.message) {
                Failure::SessionLost(CallError { maybe_executed: false, ..error.into_call_error() })
            } else {
                Failure::Rpc(error)
            })
        }
        (Some(result), None) => Ok(result.to_owned()),
        (None, None) => Err(protocol("the answer has neither result nor error").into()),
    }
}

/// Reads an answer to its end in the background: dropping it would close its connection.
pub(in crate::upstream) fn drain(mut response: Response) {
    match response.chunk().now_or_never() {
        Some(Ok(None) | Err(_)) => {}
        Some(Ok(Some(_))) | None => {
            tokio::spawn(tokio::time::timeout(DRAIN, async move {
                let mut left = ERROR_BODY_MAX_BYTES;
                while let Ok(Some(chunk)) = response.chunk().await {
                    left = left.saturating_sub(chunk.len());
                    if left == 0 {
                        break;
                    }
                }
            }));
        }
    }
}

/// The whole body, or `None` where it is larger than `max`.
async fn collect(response: &mut Response, max: usize) -> Result<Option<Bytes>, CallError> {
    let Some(first) = response.chunk().await.map_err(|error| broken(&error))? else { return Ok(Some(Bytes::new())) };
    let Some(second) = response.chunk().await.map_err(|error| broken(&error))? else {
        // The usual case: nothing is copied.
        return Ok((first.len() <= max).then_some(first));
    };
    let mut body =
        Vec::with_capacity((first.len() + second.len()).max(response.content_length().unwrap_or(0) as usize));
    body.extend_from_slice(&first);
    let mut next = Some(second);
    while let Some(chunk) = next {
        if body.len() + chunk.len() > max {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
        next = response.chunk().await.map_err(|error| broken(&error))?;
    }
    Ok(Some(body.into()))
}

/// What an answer means whose status is no success.
pub(in crate::upstream) async fn read_error(mut response: Response, status: StatusCode) -> Failure {
    let retry_after = retry_after(response.headers(), SystemClock.now_ms());
    let html = is(response.headers(), "text/html");
    let body = collect(&mut response, ERROR_BODY_MAX_BYTES).await.ok().flatten().unwrap_or_default();
    let text = String::from_utf8_lossy(&body);
    let rpc = Message::read_all(&text).into_iter().find_map(|message| message.error).map(RpcError::read);
    let said = rpc.as_ref().map_or(if html { "" } else { text.trim() }, |error| error.message.trim());
    let session_text = is_session_text(said);
    let mut message = format!("HTTP {status}");
    if !said.is_empty() {
        message.push_str(": ");
        message.push_str(&clip(&said.split_whitespace().collect::<Vec<_>>().join(" "), ERROR_TEXT_MAX_CHARS));
    }
    let kind = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => CallErrorKind::Auth,
        _ => CallErrorKind::Transport,
    };
    let mut error = CallError { retry_after, ..CallError::new(kind, message) };
    // What a server or a gateway refuses with a 4xx it has not begun; a redirect it has not even looked at.
    error.maybe_executed = !(status.is_client_error() || status.is_redirection())
        || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT);
    match (status, rpc) {
        (StatusCode::BAD_REQUEST, Some(rpc)) if matches!(rpc.code, -32_022..=-32_020) => Failure::Rpc(rpc),
        (StatusCode::NOT_FOUND, rpc) if rpc.as_ref().is_none_or(|rpc| rpc.code != -32_601) => {
            Failure::SessionLost(error)
        }
        (StatusCode::BAD_REQUEST, _) if session_text => Failure::SessionLost(error),
        (status, Some(rpc))
            if status.is_client_error() && kind == CallErrorKind::Transport && retry_after.is_none() =>
        {
            Failure::Rpc(rpc)
        }
        _ => Failure::Call(error),
    }
}

/// Whether an error's text is about a session that is not there.
fn is_session_text(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("session") || text.contains("not initialized")
}

/// `Retry-After` as seconds or a date (135).
pub fn retry_after(headers: &HeaderMap, now_ms: i64) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let at = httpdate::parse_http_date(text).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(at.saturating_sub(Duration::from_millis(now_ms.max(0).unsigned_abs())))
}

/// The failure of sending a request, or of reading its answer's head.
pub(super) fn not_sent(error: &reqwest::Error) -> CallError {
    if error.is_connect() {
        return CallError::new(CallErrorKind::Connect, format!("the server cannot be reached: {}", cause(error)));
    }
    broken(error)
}

pub(in crate::upstream) fn broken(error: &reqwest::Error) -> CallError {
    CallError::new(CallErrorKind::Transport, format!("the connection broke: {}", cause(error)))
}

/// The innermost reason of an error: the outer ones repeat the URL, which may hold a secret.
pub fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    clip(&innermost.to_string(), ERROR_TEXT_MAX_CHARS)
}

fn protocol(what: &str) -> CallError {
    CallError::new(CallErrorKind::Protocol, what.to_owned())
}

fn too_large() -> CallError {
    protocol(&format!("the answer is larger than {BODY_MAX_BYTES} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date_135() {
        let read = |value: &str, now_ms| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, value.parse().unwrap());
            retry_after(&headers, now_ms)
        };
        assert_eq!(read("120", 0), Some(Duration::from_mins(2)));
        assert_eq!(read(&"9".repeat(40), 0), Some(Duration::from_secs(u64::MAX)), "clamped by whoever schedules");
        let date = "Wed, 21 Oct 2015 07:28:00 GMT";
        assert_eq!(read(date, 1_445_412_450_000), Some(Duration::from_secs(30)));
        assert_eq!(read(date, 1_445_412_999_000), Some(Duration::ZERO));
        for bad in ["soon", "-1", "1.5", ""] {
            assert_eq!(read(bad, 0), None, "{bad}");
        }
    }
}
