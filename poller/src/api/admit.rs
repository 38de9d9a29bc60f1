//! The door: who calls is found out before any handler, and told how to come in where that fails.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderValue, Uri, header};
use secrecy::SecretString;

use super::Api;
use super::problem::Problem;
use super::request::GATEWAY;
use crate::auth::{Authenticator, Call, Denied, Scope};

/// How often an open stream's credential is looked at again; with what a verified key counts for, within what is promised of a
/// revocation.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Lets a request in, as its caller, or refuses it.
pub async fn admit(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let authenticator = Arc::clone(&api.daemon.authenticator);
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_owned();
    let address = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
    let call = Call { uri: request.uri(), headers: request.headers(), address, route: &route };
    let admitted = authenticator.admit(&call).await.and_then(|admitted| {
        // Every method of the gateway is about the caller's own tasks.
        if route == GATEWAY {
            admitted.identity.require(Scope::Tasks)?;
        }
        Ok(admitted)
    });
    let (uri, headers) = (request.uri().clone(), named(request.headers()));
    let (mut response, credential) = match admitted {
        Ok(admitted) => {
            request.extensions_mut().insert(admitted.identity);
            (next.run(request).await, admitted.credential)
        }
        Err(denied) => (Problem::from(denied).into_response(), None),
    };
    if let Some(problem) = response.extensions_mut().get_mut::<Problem>() {
        challenge(problem, &authenticator, &uri, &headers);
    }
    match credential {
        Some(credential) if is_stream(&response) => while_admitted(response, authenticator, credential),
        _ => response,
    }
}

/// The headers that say how this server is called.
fn named(headers: &HeaderMap) -> HeaderMap {
    let names = [header::HOST.as_str(), "x-forwarded-proto"];
    let pairs = names.into_iter().filter_map(|name| Some((name.parse().ok()?, headers.get(name)?.clone())));
    pairs.collect()
}

/// Adds to a refusal how to come in, wherever it was decided.
fn challenge(problem: &mut Problem, authenticator: &Authenticator, uri: &Uri, headers: &HeaderMap) {
    let Some(refusal) = &mut problem.refusal else { return };
    if matches!(refusal.denied, Denied::Scope(_)) {
        authenticator.note_missing_scope();
    }
    let challenge = authenticator.resource().challenge(&refusal.denied, uri, headers);
    refusal.challenge = challenge.and_then(|challenge| HeaderValue::try_from(challenge).ok());
}

fn is_stream(response: &Response) -> bool {
    let media_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    media_type.is_some_and(|media_type| media_type.starts_with("text/event-stream"))
}

/// The same stream, which ends when its caller would not be let in any more.
fn while_admitted(response: Response, authenticator: Arc<Authenticator>, credential: SecretString) -> Response {
    let (parts, body) = response.into_parts();
    let refused = async move {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if !authenticator.still_admits(&credential).await {
                return;
            }
        }
    };
    Response::from_parts(parts, Body::from_stream(body.into_data_stream().take_until(Box::pin(refused))))
}
