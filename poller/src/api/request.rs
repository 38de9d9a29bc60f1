//! What happens around every request: its id, its metrics, and the body of its error.

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};

use super::Api;
use super::problem::Problem;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_ID_CHARS: usize = 128;
/// The gateway's path: its errors have a form of their own.
pub const GATEWAY: &str = "/mcp";

/// Marks an error response that has the body it should have.
#[derive(Debug, Clone, Copy)]
pub struct AsItIs;

/// Gives a request its id, writes the problem that its handler left, and counts it.
pub async fn observe(State(api): State<Api>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(request.headers());
    let method = method_label(request.method());
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_owned();

    let mut response = next.run(request).await;
    let failed = response.status().is_client_error() || response.status().is_server_error();
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        response = problem.finish(&id);
    } else if failed && route != GATEWAY && !is_finished(&response) {
        let allow = response.headers_mut().remove(header::ALLOW);
        response = Problem { allow, ..Problem::from_status(response.status()) }.finish(&id);
    }
    if let Ok(value) = HeaderValue::try_from(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let (code, took) = (response.status().as_u16(), started.elapsed());
    api.daemon.metrics.record_http(method, &route, code, took);
    tracing::debug!(request_id = %id, method, route, code, took_ms = took.as_millis() as u64, "request");
    response
}

/// The caller's id where it can be used, else a fresh one.
fn request_id(headers: &HeaderMap) -> String {
    headers
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok())
        .filter(|id| !id.is_empty() && id.len() <= MAX_ID_CHARS && id.bytes().all(|byte| byte.is_ascii_graphic()))
        .map_or_else(|| uuid::Uuid::new_v4().simple().to_string(), str::to_owned)
}

/// A method as a label, of which there are few.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        _ => "other",
    }
}

fn is_finished(response: &Response) -> bool {
    if response.extensions().get::<AsItIs>().is_some() {
        return true;
    }
    let media_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    media_type.is_some_and(|media_type| media_type.contains("json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usable_request_id_is_kept_and_another_is_replaced() {
        let id = |value: &'static [u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(value).unwrap());
            request_id(&headers)
        };
        assert_eq!(id(b"abc-1"), "abc-1");
        assert_eq!(id(b"a b").len(), 32);
        assert_eq!(id(b"").len(), 32);
        assert_eq!(id(b"\xff").len(), 32);
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}
