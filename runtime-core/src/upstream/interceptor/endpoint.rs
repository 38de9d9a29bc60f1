//! An interceptor of the operator's: an HTTP endpoint that is asked before each call (BEHAVIOURS 139).
//!
//! It gets `POST {"server", "tool", "user_id", "thread_id"}`, with `"arguments"` where the configuration asks for them,
//! and answers 2xx with an empty body, `{"headers": {"Name": "value"}}` or `{"refuse": "why"}`. Anything else is a failure.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use reqwest::{Body, Client, Response, Url};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Call, Failed, Interceptor, Verdict};
use crate::config::{ConfigError, HttpInterceptor, OnError, is_legal_header_value};
use crate::upstream::http::{Clients, cause};

/// Largest answer that is read, in bytes.
const ANSWER_MAX_BYTES: usize = 64 << 10;

/// One server's instance of a configured endpoint.
pub(in crate::upstream) struct Endpoint {
    config: HttpInterceptor,
    client: Client,
    url: Url,
    headers: HeaderMap,
}

#[derive(Serialize)]
struct Question<'a> {
    server: &'a str,
    tool: &'a str,
    user_id: &'a str,
    thread_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a RawValue>,
}

/// Unknown members are refused: a misspelt refusal must not pass for consent.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Answer {
    headers: BTreeMap<String, String>,
    refuse: Option<String>,
}

impl Endpoint {
    /// Connects to nothing yet.
    pub(in crate::upstream) fn new(config: &HttpInterceptor, clients: &Clients) -> Result<Self, ConfigError> {
        let wrong = || ConfigError(format!("mcpInterceptors: the url of {:?} is not usable", config.name));
        let url: Url = config.url.parse().map_err(|_| wrong())?;
        let client = clients.of(&url);
        // The builder turns a user and a password in the URL into a header.
        let template = client.post(url).build().map_err(|_| wrong())?;
        let mut headers = template.headers().clone();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        Ok(Self { config: config.clone(), client, url: template.url().clone(), headers })
    }

    async fn post(&self, question: &Question<'_>) -> Result<Response, Failed> {
        let mut request = reqwest::Request::new(Method::POST, self.url.clone());
        *request.headers_mut() = self.headers.clone();
        let body = serde_json::to_vec(question).map_err(|_| Failed("the call cannot be described".to_owned()))?;
        *request.body_mut() = Some(Body::from(body));
        let response = self.client.execute(request).await.map_err(|error| Failed(cause(&error)))?;
        // What an endpoint says of its errors may repeat what it was going to add.
        let status = response.status();
        if status.is_success() { Ok(response) } else { Err(Failed(format!("HTTP {status}"))) }
    }
}

#[async_trait]
impl Interceptor for Endpoint {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn wants_arguments(&self) -> bool {
        self.config.arguments
    }

    fn timeout(&self) -> Duration {
        self.config.timeout
    }

    fn on_error(&self) -> OnError {
        self.config.on_error
    }

    async fn before_call(&self, call: Call<'_>) -> Result<Verdict, Failed> {
        let Call { server, tool, user_id, thread_id, arguments } = call;
        let mut response = self.post(&Question { server, tool, user_id, thread_id, arguments }).await?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| Failed(cause(&error)))? {
            if body.len() + chunk.len() > ANSWER_MAX_BYTES {
                return Err(Failed(format!("its answer is larger than {ANSWER_MAX_BYTES} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        verdict(&body)
    }
}

/// What an answer means. Nothing of it is shown but a refusal and the names of headers.
fn verdict(body: &[u8]) -> Result<Verdict, Failed> {
    let body = body.trim_ascii();
    if body.is_empty() {
        return Ok(Verdict::Pass(HeaderMap::new()));
    }
    // A list could be read as the members in their order.
    let answer: Option<Answer> = body.starts_with(b"{").then(|| serde_json::from_slice(body).ok()).flatten();
    let answer =
        answer.ok_or_else(|| Failed("its answer is neither {\"headers\": {…}} nor {\"refuse\": \"…\"}".to_owned()))?;
    if let Some(why) = answer.refuse {
        return Ok(Verdict::Refuse(why));
    }
    let mut headers = HeaderMap::with_capacity(answer.headers.len());
    for (name, value) in answer.headers {
        let Ok(header) = name.parse::<HeaderName>() else {
            return Ok(Verdict::Refuse(format!("it added a header with the impossible name {name:?}")));
        };
        // Judged here, since a value that is no header value cannot be handed on (121).
        let value = HeaderValue::from_str(&value).ok().filter(|_| is_legal_header_value(&value));
        let Some(value) = value else {
            return Ok(Verdict::Refuse(format!(
                "it added a value of the header {header} that cannot be sent (not shown)"
            )));
        };
        headers.insert(header, value);
    }
    Ok(Verdict::Pass(headers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_adds_headers_or_refuses_and_anything_else_is_a_failure_139() {
        assert_eq!(verdict(b" \n"), Ok(Verdict::Pass(HeaderMap::new())));
        assert_eq!(verdict(b"{}"), Ok(Verdict::Pass(HeaderMap::new())));
        let Ok(Verdict::Pass(headers)) = verdict(br#"{"headers":{"X-Tenant":"acme"}}"#) else { panic!("refused") };
        assert_eq!(headers["x-tenant"], "acme");
        assert_eq!(verdict(br#"{"refuse":"not today"}"#), Ok(Verdict::Refuse("not today".into())));
        assert_eq!(verdict(br#"{"refuse":"no","headers":{"A":"b"}}"#), Ok(Verdict::Refuse("no".into())));
        for odd in [&b"[]"[..], br#"{"deny":true}"#, br#"{"headers":{"A":1}}"#, b"ok", br#"{"refuse":true}"#] {
            assert!(verdict(odd).is_err(), "{}", String::from_utf8_lossy(odd));
        }
    }

    #[test]
    fn a_value_that_cannot_be_sent_refuses_the_call_and_is_not_shown_121() {
        for body in [r#"{"headers":{"X-Key":"hunter2\n"}}"#, r#"{"headers":{"X-Key":" hunter2"}}"#] {
            let Ok(Verdict::Refuse(why)) = verdict(body.as_bytes()) else { panic!("{body}") };
            assert!(why.contains("x-key") && !why.contains("hunter2"), "{why}");
        }
        assert!(matches!(verdict(br#"{"headers":{"a b":"v"}}"#), Ok(Verdict::Refuse(_))));
    }
}
