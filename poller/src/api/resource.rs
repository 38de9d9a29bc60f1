//! Protected-resource metadata for MCP clients (RFC 9728): open to all, since it says how to come in.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::{HeaderMap, StatusCode, Uri};

use super::Api;
use super::problem::Problem;
use super::thread::json;
use crate::auth::METADATA_PATH;

/// The document under its plain name and with any resource's path behind it: a proxy may have put the gateway below a path.
pub fn routes(api: Api) -> Router {
    Router::new()
        .route(METADATA_PATH, get(metadata))
        .route(&format!("{METADATA_PATH}/{{*resource}}"), get(metadata))
        .with_state(api)
}

async fn metadata(State(api): State<Api>, uri: Uri, headers: HeaderMap) -> Result<Response, Problem> {
    let authenticator = &api.daemon.authenticator;
    if authenticator.is_open() {
        return Err(Problem::not_found());
    }
    let document = authenticator.resource().metadata(&uri, &headers);
    document
        .map(|document| json(StatusCode::OK, &document))
        .ok_or_else(|| Problem::invalid("the Host header cannot be used"))
}
