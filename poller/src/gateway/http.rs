//! The gateway over Streamable HTTP.
//!
//! Every request stands alone: no session binds a client to a replica, and what a session is named after a restart is as
//! good as before, in either era.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use rmcp::model::ErrorCode;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use super::native::{self, Fold};
use super::{Gateway, exact, sse, stream};
use crate::api::body::MAX_BODY_BYTES;
use crate::lifecycle::Shutdown;

/// The header that names the method, from 2026-07-28 on.
const METHOD_HEADER: &str = "mcp-method";
/// The header that names what the request is about.
const NAME_HEADER: &str = "mcp-name";

/// The route of the gateway.
pub fn routes(gateway: Gateway, shutdown: &Shutdown) -> Router {
    let local =
        ["http://localhost:*", "https://localhost:*", "http://127.0.0.1:*", "https://127.0.0.1:*", "http://[::1]:*"];
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_cancellation_token(shutdown.hard().clone());
    // The door has judged Host and Origin already; where credentials count, names other than this machine's are good.
    let config = if gateway.daemon.authenticator.is_open() {
        config
            .with_allowed_hosts(["localhost", "127.0.0.1", "::1"])
            .with_allowed_origins(local)
            .enforce_origin_validation()
    } else {
        config.disable_allowed_hosts().disable_allowed_origins()
    };
    let served = gateway.clone();
    let service =
        StreamableHttpService::new(move || Ok(served.clone()), Arc::new(NeverSessionManager::default()), config);
    let methods = get(stream::open).delete(stream::close).post_service(service);
    Router::new().route("/mcp", methods).with_state(gateway).layer(middleware::from_fn(restore))
}

/// Puts the exact results into JSON answers, and JSON into refusals that rmcp words as plain text.
async fn restore(request: Request, next: Next) -> Response {
    let json_sent = is_json(request.headers());
    let (request, streams) = match folded(request).await {
        Ok(folded) => folded,
        Err(response) => return refusal(response, json_sent).await,
    };
    let response = next.run(request).await;
    if response.status().is_client_error() && !response.headers().contains_key(header::CONTENT_TYPE) {
        return refusal(response, json_sent).await;
    }
    let media_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if !media_type.is_some_and(|media_type| media_type.starts_with("application/json")) {
        return if streams { response.map(sse::restore) } else { response };
    }
    let (mut parts, body) = response.into_parts();
    // The body is whole and in memory already: rmcp made it of one message.
    let Ok(bytes) = to_bytes(body, usize::MAX).await else { return Response::from_parts(parts, Body::empty()) };
    let Ok(text) = std::str::from_utf8(&bytes) else { return Response::from_parts(parts, Body::from(bytes)) };
    stream::name_session(text, &mut parts.headers);
    match exact::restore(text) {
        Some(text) => {
            parts.headers.remove(header::CONTENT_LENGTH);
            Response::from_parts(parts, Body::from(text))
        }
        None => Response::from_parts(parts, Body::from(bytes)),
    }
}

/// The request as rmcp understands it, and whether its answer may be a stream with exact results.
async fn folded(request: Request) -> Result<(Request, bool), Response> {
    if request.method() != Method::POST {
        return Ok((request, false));
    }
    let (mut parts, body) = request.into_parts();
    let bytes = to_bytes(body, MAX_BODY_BYTES).await.map_err(|_| {
        let mut response = Response::new(Body::from("the message is too large, or was cut off"));
        *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
        response
    })?;
    let Fold { message, method, task, streams } = native::fold(&bytes, stream::is_modern(&parts.headers));
    // The header has to name the method still; one that named another must go on doing so.
    if let Some(method) = method.as_deref().filter(|method| {
        parts.headers.get(METHOD_HEADER).is_some_and(|named| named.as_bytes() == native::unfolded(method).as_bytes())
    }) && let Ok(method) = HeaderValue::try_from(method)
    {
        parts.headers.insert(METHOD_HEADER, method);
    }
    // Any replica has any task: there is nothing to route, and common clients leave the header out.
    if let Some(task) = task.and_then(|task| HeaderValue::try_from(task).ok()) {
        parts.headers.entry(NAME_HEADER).or_insert(task);
    }
    let body = match message {
        Some(message) => {
            parts.headers.insert(header::CONTENT_LENGTH, message.len().into());
            Body::from(message)
        }
        None => Body::from(bytes),
    };
    Ok((Request::from_parts(parts, body), streams))
}

fn is_json(headers: &HeaderMap) -> bool {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    media_type.is_some_and(|media_type| media_type.trim_start().to_ascii_lowercase().starts_with("application/json"))
}

/// A refusal as a JSON-RPC error without an id, as the transport's specification has it. A body of the right media type
/// that is no message is a bad request, not an unsupported media type.
async fn refusal(response: Response, json_sent: bool) -> Response {
    let (mut parts, body) = response.into_parts();
    let text = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let text = if text.trim().is_empty() { parts.status.canonical_reason().unwrap_or_default() } else { text.trim() };
    let mut code = ErrorCode::INVALID_REQUEST;
    if parts.status == StatusCode::UNSUPPORTED_MEDIA_TYPE && json_sent {
        parts.status = StatusCode::BAD_REQUEST;
        if !text.contains("unrecognized JSON-RPC message") {
            code = ErrorCode::PARSE_ERROR;
        }
    }
    let error = serde_json::json!({"jsonrpc": "2.0", "error": {"code": code, "message": text}});
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Response::from_parts(parts, Body::from(error.to_string()))
}
