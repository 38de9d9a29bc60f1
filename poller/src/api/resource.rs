//! Protected-resource metadata for MCP clients (RFC 9728): open to all, since it says how to come in.

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode, Uri};
use serde_json::{Map, Value};

use super::Api;
use super::openapi::{Operation, Routes};
use super::problem::Problem;
use super::thread::json;
use crate::auth::METADATA_PATH;

/// The document under its plain name and with any resource's path behind it: a proxy may have put the gateway below a path.
pub fn routes(routes: Routes) -> Routes {
    let described = |id| {
        Operation::bare(id, "information", "How MCP clients come in (RFC 9728)")
            .about("Where `auth.mode` is `none` there is nothing to say.")
            .answers::<Map<String, Value>>(200, "The metadata of this protected resource.")
            .problem(404, &["not_found"])
            .problem(422, &["invalid_request"])
    };
    routes.get(METADATA_PATH, metadata, described("getResourceMetadata")).get(
        &format!("{METADATA_PATH}/{{*resource}}"),
        metadata,
        described("getResourceMetadataOfPath"),
    )
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
