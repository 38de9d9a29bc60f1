//! Asking a token endpoint (BEHAVIOURS 111).

use std::time::Duration;

use http::{HeaderValue, header};
use reqwest::{Body, Client, Response, Url};
use secrecy::ExposeSecret as _;
use tokio::time::timeout;

use super::answer::{self, Granted};
use super::failure::{Failure, Reason};
use crate::clock::{Clock as _, SystemClock};
use crate::config::{ConfigError, Grant, OAuth};
use crate::upstream::http::{Clients, cause, retry_after};

/// Longest wait for the answer's head, and then for each part of its body.
const STEP_TIMEOUT: Duration = Duration::from_secs(15);
/// When a request is given up that keeps sending (116). Not sooner: an answer may hold the only token that continues a chain.
pub(super) const TOTAL_TIMEOUT: Duration = Duration::from_mins(2);
/// Largest answer that is read.
const BODY_MAX_BYTES: usize = 1 << 20;

/// One server's token endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    client: Client,
    url: Url,
}

impl Endpoint {
    pub(super) fn new(server: &str, config: &OAuth, clients: &Clients) -> Result<Self, ConfigError> {
        let wrong = || ConfigError(format!("mcpServers.{server}.oauth.token_url is not usable"));
        let url: Url = config.token_url.parse().map_err(|_| wrong())?;
        Ok(Self { client: clients.of(&url), url })
    }

    /// Asks for tokens, with `refresh_token` where the grant is of that kind.
    pub(super) async fn ask(&self, config: &OAuth, refresh_token: Option<&str>) -> Result<Granted, Failure> {
        // The builder turns a user and a password in the URL into a header.
        let template = self.client.post(self.url.clone()).build();
        let mut request = template.map_err(|_| Failure::new(Reason::Refused, "oauth.token_url is not usable"))?;
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        *request.body_mut() = Some(Body::from(form(config, refresh_token)));
        let asking = timeout(TOTAL_TIMEOUT, self.exchange(request, config)).await;
        asking.unwrap_or_else(|_| Err(silent(TOTAL_TIMEOUT)))
    }

    async fn exchange(&self, request: reqwest::Request, config: &OAuth) -> Result<Granted, Failure> {
        let sent = timeout(STEP_TIMEOUT, self.client.execute(request)).await;
        let mut response = sent.map_err(|_| silent(STEP_TIMEOUT))?.map_err(|error| {
            let what = format!("the token endpoint cannot be reached: {}", cause(&error));
            Failure { lost: !error.is_connect(), ..Failure::new(Reason::Unreachable, what) }
        })?;
        let status = response.status();
        let later = retry_after(response.headers(), SystemClock.now_ms());
        let body = collect(&mut response).await?;
        answer::read(status, &body, config).map_err(|failure| Failure { retry_after: later, ..failure })
    }
}

async fn collect(response: &mut Response) -> Result<Vec<u8>, Failure> {
    let lost = |what: String| Failure { lost: true, ..Failure::new(Reason::Unreachable, what) };
    let mut body = Vec::new();
    loop {
        match timeout(STEP_TIMEOUT, response.chunk()).await {
            Ok(Ok(Some(chunk))) if body.len() + chunk.len() <= BODY_MAX_BYTES => body.extend_from_slice(&chunk),
            Ok(Ok(Some(_))) => {
                return Err(lost(format!("the token endpoint's answer is larger than {BODY_MAX_BYTES} bytes")));
            }
            Ok(Ok(None)) => return Ok(body),
            Ok(Err(error)) => return Err(lost(format!("the token endpoint's answer broke off: {}", cause(&error)))),
            Err(_) => return Err(silent(STEP_TIMEOUT)),
        }
    }
}

fn silent(limit: Duration) -> Failure {
    let what = format!("the token endpoint did not answer within {limit:?}");
    Failure { lost: true, ..Failure::new(Reason::Unreachable, what) }
}

/// The request's body: what is reserved takes the place of further parameters of that name.
fn form(config: &OAuth, refresh_token: Option<&str>) -> String {
    let secret = config.client_secret.as_ref().map(|secret| secret.expose_secret());
    let reserved = [
        ("grant_type", Some(config.grant.as_str())),
        ("client_id", config.client_id.as_deref()),
        ("client_secret", secret),
        ("refresh_token", refresh_token.filter(|_| matches!(config.grant, Grant::RefreshToken(_)))),
        ("scope", config.scope.as_deref()),
        ("audience", config.audience.as_deref()),
    ];
    let is_reserved = |name: &str| reserved.iter().any(|(known, value)| *known == name && value.is_some());
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(reserved.iter().filter_map(|(name, value)| Some((*name, (*value)?))));
    for (name, value) in config.extra_token_params.iter().filter(|(name, _)| !is_reserved(name)) {
        form.append_pair(name, value.expose_secret());
    }
    form.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::config;
    use super::*;

    #[test]
    fn reserved_fields_take_the_place_of_further_parameters_111() {
        let extra =
            json!({"grant_type": "password", "client_secret": "other", "resource": "a b&c", "audience": "kept"});
        let all = config(&json!({"scope": "x y", "extra_token_params": extra}));
        assert_eq!(
            form(&all, None),
            "grant_type=client_credentials&client_id=id&client_secret=secret&scope=x+y&resource=a+b%26c&audience=kept"
        );
        let refresh = config(&json!({"grant_type": "refresh_token", "refresh_token": "seed", "client_id": null,
            "client_secret": null, "extra_token_params": {"refresh_token": "other"}}));
        assert_eq!(form(&refresh, Some("r+1")), "grant_type=refresh_token&refresh_token=r%2B1");
    }
}
