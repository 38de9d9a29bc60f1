//! `/openapi.json`, and a viewer of it that needs nothing from elsewhere.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, header};

use super::{Operation, Routes};
use crate::api::document;

/// The page may run its own script, have its own style, and ask this daemon; nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());

/// The routes of this room.
pub fn routes(routes: Routes) -> Routes {
    let described = |id, summary, media_type| {
        Operation::bare(id, "information", summary).answers_text(200, "The text.", media_type)
    };
    routes
        .get(
            "/openapi.json",
            openapi,
            Operation::bare("getOpenApi", "information", "This document")
                .answers::<serde_json::Map<String, serde_json::Value>>(200, "The document."),
        )
        .get("/docs", page, described("getDocs", "This document, to read", "text/html"))
        .get("/docs/viewer.js", script, described("getDocsScript", "The script of `/docs`", "text/javascript"))
        .get("/docs/viewer.css", style, described("getDocsStyle", "The style of `/docs`", "text/css"))
}

async fn openapi() -> Response {
    asset("application/json", DOCUMENT.as_str())
}

async fn page() -> Response {
    asset("text/html; charset=utf-8", include_str!("viewer/page.html"))
}

async fn script() -> Response {
    asset("text/javascript; charset=utf-8", include_str!("viewer/viewer.js"))
}

async fn style() -> Response {
    asset("text/css; charset=utf-8", include_str!("viewer/viewer.css"))
}

fn asset(media_type: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(media_type)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    ];
    (headers, text).into_response()
}
