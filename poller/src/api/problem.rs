//! The one place that turns errors into HTTP: problem details (RFC 9457).

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use mcp_taskd_core::service::ServiceError;
use mcp_taskd_core::store::StoreError;
use mcp_taskd_core::task::limits::{PUBLIC_ERROR_MAX_CHARS, clip};
use schemars::JsonSchema;
use serde::Serialize;

use crate::auth::Denied;

/// The media type of [`Problem`].
pub const CONTENT_TYPE: &str = "application/problem+json";

/// An error as a client sees it. The body is written by [`Problem::finish`], which knows the request's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The status.
    pub status: StatusCode,
    /// A word for programs.
    pub code: &'static str,
    /// A sentence for people.
    pub detail: String,
    /// The task that a submit of unknown outcome left.
    pub task_id: Option<String>,
    /// The methods that a resource does have.
    pub allow: Option<HeaderValue>,
    /// Where the caller was not let in.
    pub refusal: Option<Box<Refusal>>,
}

/// A caller who was not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub denied: Denied,
    /// How to come in.
    pub challenge: Option<HeaderValue>,
}

/// A problem's body (RFC 9457).
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub struct ProblemBody<'a> {
    /// `urn:mcp-taskd:problem:` and the code.
    r#type: String,
    title: &'a str,
    status: u16,
    /// A sentence for people, at most 500 characters.
    detail: String,
    /// A word for programs.
    code: &'a str,
    /// What the log calls the request; also in `X-Request-Id`.
    request_id: &'a str,
    /// The task that a submit of unknown outcome left.
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<&'a str>,
}

impl Problem {
    /// A problem.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), task_id: None, allow: None, refusal: None }
    }

    /// A request that cannot be used; `detail` names the field.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request", detail)
    }

    /// A body above the bound.
    pub fn too_large(limit_bytes: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "payload_too_large",
            format!("the request body may have at most {limit_bytes} bytes"),
        )
    }

    /// A resource that is not there.
    pub fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "there is nothing at this path")
    }

    /// Something that went wrong here.
    pub fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "internal error")
    }

    /// What an error response without a problem of its own means: routers and extractors make some.
    pub fn from_status(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND => Self::not_found(),
            StatusCode::METHOD_NOT_ALLOWED => {
                Self::new(status, "method_not_allowed", "this path does not have this method")
            }
            StatusCode::PAYLOAD_TOO_LARGE => Self::new(status, "payload_too_large", "the request body is too large"),
            status if status.is_client_error() => Self::new(status, "invalid_request", "the request cannot be used"),
            status => Self::new(status, "internal", "internal error"),
        }
    }

    /// The response, with the request's id in it.
    pub fn finish(&self, request_id: &str) -> Response {
        let body = ProblemBody {
            r#type: format!("urn:mcp-taskd:problem:{}", self.code),
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: clip(&self.detail, PUBLIC_ERROR_MAX_CHARS),
            code: self.code,
            request_id,
            task_id: self.task_id.as_deref(),
        };
        let body = crate::view::raw(&body).get().to_owned();
        let mut response =
            (self.status, [(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE))], body).into_response();
        if let Some(allow) = &self.allow {
            response.headers_mut().insert(header::ALLOW, allow.clone());
        }
        if let Some(refusal) = &self.refusal {
            if let Some(challenge) = &refusal.challenge {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge.clone());
            }
            if let Denied::Limited(wait) = refusal.denied {
                response.headers_mut().insert(header::RETRY_AFTER, wait.as_secs().saturating_add(1).into());
            }
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        response
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<ServiceError> for Problem {
    fn from(error: ServiceError) -> Self {
        let detail = error.to_string();
        let (status, code) = match &error {
            ServiceError::NotFound(_) => (StatusCode::NOT_FOUND, "not_found"),
            ServiceError::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
            ServiceError::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_request"),
            ServiceError::Refused(_) => (StatusCode::BAD_GATEWAY, "submit_refused"),
            ServiceError::OutcomeUnknown { .. } => (StatusCode::GATEWAY_TIMEOUT, "submit_outcome_unknown"),
            ServiceError::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
            ServiceError::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable"),
            ServiceError::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        };
        let task_id = match error {
            ServiceError::OutcomeUnknown { task_id, .. } => Some(task_id),
            _ => None,
        };
        Self { task_id, ..Self::new(status, code, detail) }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        // The text may name tables and columns: for the log, not for clients.
        tracing::warn!(%error, kind = error.kind.as_str(), "the store refused a read");
        Self::from(if error.is_transient() { ServiceError::Unavailable } else { ServiceError::Internal })
    }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        let (status, code) = match denied {
            Denied::Invalid(_) | Denied::Repeated(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_request"),
            Denied::Host => (StatusCode::FORBIDDEN, "host_not_allowed"),
            Denied::Origin | Denied::ForeignOrigin => (StatusCode::FORBIDDEN, "origin_not_allowed"),
            Denied::Scope(_) => (StatusCode::FORBIDDEN, "missing_scope"),
            Denied::Unauthenticated(_) => (StatusCode::UNAUTHORIZED, "unauthenticated"),
            Denied::OtherUser => (StatusCode::FORBIDDEN, "other_user"),
            Denied::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "auth_unavailable"),
            Denied::Limited(_) => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
        };
        let detail = denied.to_string();
        Self { refusal: Some(Box::new(Refusal { denied, challenge: None })), ..Self::new(status, code, detail) }
    }
}

/// Answers what no route answers.
pub async fn fallback(_: Request) -> Problem {
    Problem::not_found()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_problem_has_the_members_of_rfc_9457_and_the_requests_id() {
        let unknown = ServiceError::OutcomeUnknown { task_id: "mcp-task-1".into(), message: "no answer".into() };
        let response = Problem::from(unknown).finish("req-1");
        assert_eq!(response.status(), 504);
        assert_eq!(response.headers()["content-type"], CONTENT_TYPE);
        let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        assert_eq!(
            std::str::from_utf8(&body).unwrap(),
            r#"{"type":"urn:mcp-taskd:problem:submit_outcome_unknown","title":"Gateway Timeout","status":504,"detail":"no answer","code":"submit_outcome_unknown","request_id":"req-1","task_id":"mcp-task-1"}"#
        );
    }

    #[test]
    fn every_service_error_has_its_status() {
        let status = |error: ServiceError| Problem::from(error).status.as_u16();
        assert_eq!(status(ServiceError::NotFound("x".into())), 404);
        assert_eq!(status(ServiceError::Conflict("x".into())), 409);
        assert_eq!(status(ServiceError::Invalid("x".into())), 422);
        assert_eq!(status(ServiceError::Refused("x".into())), 502);
        assert_eq!(status(ServiceError::Draining), 503);
        assert_eq!(status(ServiceError::Unavailable), 503);
        assert_eq!(status(ServiceError::Internal), 500);
    }

    #[test]
    fn a_stores_own_words_stay_in_the_log_141() {
        let error = StoreError::new(mcp_taskd_core::store::StoreErrorKind::Corrupt, "find", "mcp_tasks.status: xyz");
        assert!(!Problem::from(error).detail.contains("mcp_tasks"));
    }
}
