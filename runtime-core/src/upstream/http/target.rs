//! Where a server's requests go, and what every one of them carries.

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use reqwest::{Body, Client, Response, Url};
use secrecy::{ExposeSecret as _, SecretString};

use super::{Clients, Reach, wire};
use crate::config::ConfigError;
use crate::upstream::CallError;
use crate::upstream::oauth::Source;
use crate::upstream::scrub::Scrubber;

/// A server's URL, the client that reaches it, and its static headers.
#[derive(Debug, Clone)]
pub(in crate::upstream) struct Target {
    client: Client,
    pub(in crate::upstream) url: Url,
    /// Of every POST; what the protocol needs comes on top.
    pub(in crate::upstream) headers: HeaderMap,
    /// What `Authorization` says where a request brings none of its own.
    tokens: Option<Source>,
}

impl Target {
    /// A target, and what takes its credentials out of texts.
    pub(in crate::upstream) fn new(
        server: &str,
        url: &str,
        static_headers: &[(String, SecretString)],
        (clients, reach): (&Clients, Reach),
    ) -> Result<(Self, Scrubber), ConfigError> {
        let wrong = |what: &str| ConfigError(format!("mcpServers.{server}.{what}"));
        let url: Url = url.parse().map_err(|_| wrong("url is not usable"))?;
        let client = clients.within(reach, &url).ok_or_else(|| wrong("url has an address that is not public"))?;
        // The builder turns a user and a password in the URL into a header.
        let template = client.post(url).build().map_err(|_| wrong("url is not usable"))?;
        let url = template.url().clone();
        let mut headers = template.headers().clone();
        for (name, value) in static_headers {
            let name: HeaderName = name.parse().map_err(|_| wrong("headers have an impossible name"))?;
            let mut value = HeaderValue::from_str(value.expose_secret())
                .map_err(|_| wrong(&format!("headers.{name} cannot be sent")))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        headers
            .entry(header::USER_AGENT)
            .or_insert(HeaderValue::from_static(concat!("mcp-taskd/", env!("CARGO_PKG_VERSION"))));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        let query: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let sent = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap_or_default()));
        let scrubber = Scrubber::new(sent.chain(query.iter().map(|(name, value)| (name.as_str(), value.as_str()))));
        Ok((Self { client, url, headers, tokens: None }, scrubber))
    }

    /// The same with a token on every request, in place of a static header (122).
    pub(in crate::upstream) fn with_tokens(mut self, tokens: Source) -> Self {
        self.headers.remove(header::AUTHORIZATION);
        self.tokens = Some(tokens);
        self
    }

    /// Sees to it that there is a token for a request with these headers of its own, before the request's time begins.
    pub(in crate::upstream) async fn authorize(&self, own: &[(HeaderName, HeaderValue)]) -> Result<(), CallError> {
        // A caller's credential takes the token's place (122).
        let has_own = self.headers.contains_key(header::AUTHORIZATION)
            || own.iter().any(|(name, _)| name == header::AUTHORIZATION);
        match &self.tokens {
            Some(tokens) if !has_own => tokens.token().await.map(drop),
            _ => Ok(()),
        }
    }

    /// The same with `credential` in place of headers of that name, whatever their case (122), and what takes it out of texts.
    pub(in crate::upstream) fn with_credential(mut self, credential: &[(HeaderName, HeaderValue)]) -> (Self, Scrubber) {
        for (name, value) in credential {
            self.headers.insert(name, value.clone());
        }
        let sent = credential.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap_or_default()));
        (self, Scrubber::new(sent))
    }

    /// Sends a message to `url`; the answer is still to be read.
    pub(in crate::upstream) fn post(
        &self,
        url: Url,
        headers: HeaderMap,
        body: Vec<u8>,
    ) -> impl Future<Output = Result<Response, CallError>> + Send + use<> {
        let mut request = reqwest::Request::new(Method::POST, url);
        *request.headers_mut() = headers;
        *request.body_mut() = Some(Body::from(body));
        self.execute(request)
    }

    /// Opens the event stream that a server sends on its own.
    pub(in crate::upstream) fn stream(
        &self,
        mut headers: HeaderMap,
    ) -> impl Future<Output = Result<Response, CallError>> + Send + use<> {
        headers.remove(header::CONTENT_TYPE);
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        let mut request = reqwest::Request::new(Method::GET, self.url.clone());
        *request.headers_mut() = headers;
        self.execute(request)
    }

    /// Ends a session.
    pub(super) fn delete(
        &self,
        headers: HeaderMap,
    ) -> impl Future<Output = Result<Response, CallError>> + Send + use<> {
        let mut request = reqwest::Request::new(Method::DELETE, self.url.clone());
        *request.headers_mut() = headers;
        self.execute(request)
    }

    fn execute(&self, request: reqwest::Request) -> impl Future<Output = Result<Response, CallError>> + Send + use<> {
        let (client, tokens) = (self.client.clone(), self.tokens.clone());
        async move {
            match tokens {
                Some(tokens) if !request.headers().contains_key(header::AUTHORIZATION) => {
                    Box::pin(authorized(&client, &tokens, request)).await
                }
                _ => sent(&client, request).await,
            }
        }
    }
}

async fn sent(client: &Client, request: reqwest::Request) -> Result<Response, CallError> {
    client.execute(request).await.map_err(|error| wire::not_sent(&error))
}

/// Sends a request with a token. Where the server refuses that with a 401 it has not looked at the request, whatever it is:
/// it is sent once more, with another token.
async fn authorized(client: &Client, tokens: &Source, mut request: reqwest::Request) -> Result<Response, CallError> {
    // A call that may wait for a fresh token has done so (`authorize`): here one that has not ended is good enough.
    let token = match tokens.held() {
        Some(token) => token,
        None => tokens.token().await?,
    };
    let again = request.try_clone();
    request.headers_mut().insert(header::AUTHORIZATION, token.header.clone());
    let response = sent(client, request).await?;
    if response.status() != StatusCode::UNAUTHORIZED {
        tokens.accept(&token);
        return Ok(response);
    }
    let Some(mut again) = again else { return Ok(response) };
    let Some(renewed) = tokens.renewed(&token).await else { return Ok(response) };
    let token = renewed?;
    wire::drain(response);
    again.headers_mut().insert(header::AUTHORIZATION, token.header.clone());
    let response = sent(client, again).await?;
    if response.status() != StatusCode::UNAUTHORIZED {
        tokens.accept(&token);
    }
    Ok(response)
}
