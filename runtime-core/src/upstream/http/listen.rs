//! The stream on which a Streamable HTTP server says things of its own accord: open only while somebody wants to know.

use std::ops::ControlFlow;
use std::sync::Weak;
use std::sync::atomic::Ordering;

use reqwest::Response;
use tokio::time::Instant;

use super::{Inner, Session, wire};
use crate::upstream::changes::Changes;
use crate::upstream::jsonrpc::{self, Era, LIST_CHANGED, Message};
use crate::upstream::pace::Pace;
use crate::upstream::sse::SseParser;

/// Most of an event that is kept: notices are small.
const EVENT_MAX_BYTES: usize = 1 << 20;

/// Listens until the session is gone or the server shows that it has no such stream.
pub(super) async fn listen(upstream: Weak<Inner>, session: Weak<Session>, changes: Changes) {
    let mut pace = Pace::default();
    let mut first = true;
    while let Some(opening) = open(&upstream, &session) {
        let began = Instant::now();
        match opening.await {
            Ok(response) if response.status().is_success() && wire::is_event_stream(response.headers()) => {
                if !std::mem::take(&mut first) {
                    // Whatever the server said since the last stream broke was missed.
                    changes.heard(LIST_CHANGED);
                }
                follow(response, &upstream, &session, &changes).await;
            }
            // 405, or whatever else a server without the stream answers.
            Ok(response) if !response.status().is_server_error() => {
                if !first {
                    // It was there: the server has forgotten the session, and may be another one by now.
                    changes.heard(LIST_CHANGED);
                }
                return tracing::debug!(status = %response.status(), "no stream of notices is offered");
            }
            Ok(_) | Err(_) => {}
        }
        pace.pause(began).await;
    }
}

/// The request for the stream; holds neither server nor session.
fn open(
    upstream: &Weak<Inner>,
    session: &Weak<Session>,
) -> Option<impl Future<Output = Result<Response, crate::upstream::CallError>> + Send + use<>> {
    let (upstream, session) = (upstream.upgrade()?, session.upgrade()?);
    let headers = session.headers.clone();
    Some(match session.era {
        Era::Legacy => futures_util::future::Either::Left(upstream.target.stream(headers)),
        Era::Modern => {
            let mut headers = headers;
            headers.insert("mcp-method", http::HeaderValue::from_static(jsonrpc::LISTEN));
            let id = upstream.next_id.fetch_add(1, Ordering::Relaxed);
            let body = jsonrpc::listen(id);
            futures_util::future::Either::Right(upstream.target.post(upstream.target.url.clone(), headers, body))
        }
    })
}

async fn follow(mut response: Response, upstream: &Weak<Inner>, session: &Weak<Session>, changes: &Changes) {
    let mut parser = SseParser::default();
    while let Ok(Some(chunk)) = response.chunk().await {
        let _ = parser.feed::<()>(&chunk, |event| {
            for message in std::str::from_utf8(event.data).map(Message::read_all).unwrap_or_default() {
                let Some(said) = message.aside() else { continue };
                match (said.id, upstream.upgrade().zip(session.upgrade())) {
                    (Some(id), Some((upstream, session))) => {
                        upstream.notify(&session, jsonrpc::answer(id, said.method));
                    }
                    (Some(_), None) => {}
                    (None, _) => changes.heard(said.method),
                }
            }
            ControlFlow::Continue(())
        });
        if parser.held() > EVENT_MAX_BYTES {
            return;
        }
    }
}
