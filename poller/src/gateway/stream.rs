//! The stream that a client of a protocol with sessions opens by GET: it is told there that the tools have changed.
//!
//! A session is a name that clients give back, nothing more: any replica takes any, also after a restart, and forgets
//! with it only which deferred tools it was shown.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use rmcp::model::ProtocolVersion;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Gateway;
use super::caller::{Caller, SESSION_HEADER};
use crate::api::problem::Problem;
use crate::auth::Denied;

const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The message that the tools have changed.
const LIST_CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

/// `GET /mcp`.
pub async fn open(State(gateway): State<Gateway>, request: Request) -> Response {
    if is_modern(request.headers()) {
        return not_allowed("POST");
    }
    let accept = request.headers().get_all(header::ACCEPT).iter();
    let mut accept = accept.filter_map(|value| value.to_str().ok());
    if !accept.any(|accept| accept.contains("text/event-stream") || accept.contains("*/*")) {
        return refused(StatusCode::NOT_ACCEPTABLE, "the client must accept text/event-stream");
    }
    let (parts, _) = request.into_parts();
    let caller = match Caller::of_http(&parts) {
        Ok(caller) => caller,
        Err(denied) => return denied_as(denied),
    };
    let Some(changes) = gateway.changes(caller.place()) else {
        return refused(StatusCode::TOO_MANY_REQUESTS, "too many streams are open");
    };
    let events = stream::unfold(changes, |mut changes| async move {
        changes.next().await?;
        Some((Ok::<_, Infallible>(Event::default().data(LIST_CHANGED)), changes))
    });
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// `DELETE /mcp`: what the session was shown is forgotten. Its name stays as good as any, so that nobody is told that it has
/// ended.
pub async fn close(State(gateway): State<Gateway>, request: Request) -> Response {
    if is_modern(request.headers()) {
        return not_allowed("POST");
    }
    let (parts, _) = request.into_parts();
    match Caller::of_http(&parts) {
        Ok(caller) => {
            if let Some(search) = gateway.search.as_ref().filter(|_| parts.headers.contains_key(SESSION_HEADER)) {
                search.promotions.forget(&caller.place());
            }
            not_allowed("GET, POST")
        }
        Err(denied) => denied_as(denied),
    }
}

/// Names the session in the answer to `initialize`.
pub fn name_session(body: &str, headers: &mut HeaderMap) {
    #[derive(Deserialize)]
    struct Answer {
        result: Initialized,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Initialized {
        protocol_version: Option<IgnoredAny>,
        server_info: Option<IgnoredAny>,
    }
    // Results of tools travel inside a carrier's string, so that none is taken for a greeting.
    if !body.contains("\"protocolVersion\"") {
        return;
    }
    let answer = serde_json::from_str::<Answer>(body).map(|answer| answer.result);
    if answer.is_ok_and(|result| result.protocol_version.is_some() && result.server_info.is_some()) {
        let id = uuid::Uuid::new_v4().simple().to_string();
        if let Ok(id) = HeaderValue::try_from(id) {
            headers.insert(HeaderName::from_static(SESSION_HEADER), id);
        }
    }
}

/// From 2026-07-28 on there are neither sessions nor this stream.
pub fn is_modern(headers: &HeaderMap) -> bool {
    let version = headers.get("mcp-protocol-version").and_then(|value| value.to_str().ok());
    version.is_some_and(|version| version >= ProtocolVersion::V_2026_07_28.as_str())
}

fn not_allowed(allowed: &'static str) -> Response {
    let mut response = refused(StatusCode::METHOD_NOT_ALLOWED, "not in this version of the protocol, or not here");
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}

fn denied_as(denied: Denied) -> Response {
    let text = denied.to_string();
    refused(Problem::from(denied).status, &text)
}

/// A refusal in plain words; the rim makes a JSON-RPC error of it.
fn refused(status: StatusCode, text: &str) -> Response {
    let mut response = Response::new(Body::from(text.to_owned()));
    *response.status_mut() = status;
    response
}
