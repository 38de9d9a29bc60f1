//! Request bodies: bounded, read leniently in form and strictly in content.

use std::collections::BTreeMap;

use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequest, Request};
use http::{HeaderMap, header};
use mcp_taskd_core::config::Secrets;
use mcp_taskd_core::task::Json;
use mcp_taskd_core::task::json::JsonError;
use schemars::JsonSchema;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::problem::Problem;
use crate::auth::{header_id, is_valid_id};

/// The largest body that is read.
pub const MAX_BODY_BYTES: usize = 4 << 20;

type Object = BTreeMap<String, Box<RawValue>>;

/// A JSON object's members, as text.
#[derive(Debug)]
pub struct Body(Object);

impl<S: Sync> FromRequest<S> for Body {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        Self::parse(&read(request).await?)
    }
}

/// The whole of a body, within the bound.
pub(super) async fn read(request: Request) -> Result<Bytes, Problem> {
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: usize| length > MAX_BODY_BYTES) {
        return Err(Problem::too_large(MAX_BODY_BYTES));
    }
    to_bytes(request.into_body(), MAX_BODY_BYTES).await.map_err(|error| body_error(&error))
}

fn body_error(error: &axum::Error) -> Problem {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = source {
        if error.to_string() == "length limit exceeded" {
            return Problem::too_large(MAX_BODY_BYTES);
        }
        source = error.source();
    }
    Problem::new(http::StatusCode::BAD_REQUEST, "invalid_request", "the request body ended early")
}

impl Body {
    fn parse(bytes: &Bytes) -> Result<Self, Problem> {
        let text = std::str::from_utf8(bytes).map_err(|_| Problem::invalid("the body must be UTF-8"))?;
        serde_json::from_str(text).map(Self).map_err(|error| {
            Problem::invalid(format!(
                "the body must be a JSON object; it is not at line {}, column {}",
                error.line(),
                error.column()
            ))
        })
    }

    /// What a submit says.
    pub fn submit(self) -> Result<SubmitBody, Problem> {
        let Self(body) = self;
        if let Some(unknown) = body.keys().find(|key| !FIELDS.contains(&key.as_str())) {
            return Err(Problem::invalid(format!(
                "{unknown:?} is not a field of a submit; there are {}",
                FIELDS.join(", ")
            )));
        }
        refuse_auth_token(&body, "")?;
        let mut request_secrets = Secrets::default();
        if let Some(config) = member(&body, "config", "config")? {
            refuse_auth_token(&config, "config.")?;
            if let Some(context) = member(&config, "context", "config.context")?
                && let Some(secrets) = context.get("secrets").filter(|secrets| !is_null(secrets))
            {
                request_secrets = read_secrets(secrets)
                    .ok_or_else(|| Problem::invalid("config.context.secrets must be an object of strings"))?;
            }
        }
        Ok(SubmitBody {
            server: text(&body, "server")?.ok_or_else(|| Problem::invalid("server is missing"))?,
            task: text(&body, "task")?.ok_or_else(|| Problem::invalid("task is missing"))?,
            arguments: arguments(body.get("arguments").map(|raw| &**raw))?,
            run_id: text(&body, "run_id")?,
            tool_call_id: text(&body, "tool_call_id")?,
            secrets: request_secrets,
        })
    }

    /// The `input` member: any JSON.
    pub fn input(mut self) -> Result<Box<RawValue>, Problem> {
        let input = self.0.remove("input").ok_or_else(|| Problem::invalid("input is missing"))?;
        if let Some(unknown) = self.0.keys().next() {
            return Err(Problem::invalid(format!("{unknown:?} is not a field here; there is only input")));
        }
        compact(&input, "input")
    }
}

const FIELDS: [&str; 7] = ["server", "task", "arguments", "run_id", "tool_call_id", "config", "metadata"];

/// What a submit's body may hold, for the API's description; [`Body::submit`] reads it so that numbers stay exact.
#[derive(JsonSchema)]
#[schemars(rename = "Submit", deny_unknown_fields)]
#[expect(dead_code, reason = "its fields are read by the schema")]
pub struct SubmitDocument {
    /// The MCP server, by its name in the configuration.
    #[schemars(length(min = 1, max = 255))]
    server: String,
    /// The task, as the server's toolset calls it.
    #[schemars(length(min = 1, max = 255))]
    task: String,
    /// What the submit tool is called with.
    arguments: Option<Map<String, Value>>,
    #[schemars(length(min = 1, max = 255))]
    run_id: Option<String>,
    #[schemars(length(min = 1, max = 255))]
    tool_call_id: Option<String>,
    config: Option<ConfigDocument>,
    /// Ignored; `auth_token` in it is refused.
    metadata: Option<Map<String, Value>>,
}

/// The caller's configuration of a submit.
#[derive(JsonSchema)]
#[schemars(rename = "SubmitConfig")]
#[expect(dead_code, reason = "its fields are read by the schema")]
pub struct ConfigDocument {
    context: Option<ContextDocument>,
    /// Ignored; `auth_token` in it is refused.
    metadata: Option<Map<String, Value>>,
}

/// What goes with the call, and is kept nowhere.
#[derive(JsonSchema)]
#[schemars(rename = "SubmitContext")]
#[expect(dead_code, reason = "its fields are read by the schema")]
pub struct ContextDocument {
    /// For servers that take headers from the context.
    secrets: Option<BTreeMap<String, String>>,
}

/// An answer to `input_required`, for the API's description.
#[derive(JsonSchema)]
#[schemars(rename = "Input", deny_unknown_fields)]
#[expect(dead_code, reason = "its fields are read by the schema")]
pub struct InputDocument {
    /// Any JSON.
    input: Value,
}

/// The body of a submit.
#[derive(Debug)]
pub struct SubmitBody {
    /// The server.
    pub server: String,
    /// The toolset.
    pub task: String,
    /// An object.
    pub arguments: Box<RawValue>,
    /// The caller's run.
    pub run_id: Option<String>,
    /// The caller's tool call.
    pub tool_call_id: Option<String>,
    /// For a server that takes headers from there.
    pub secrets: Secrets,
}

/// An object of strings as secrets.
pub fn read_secrets(raw: &RawValue) -> Option<Secrets> {
    serde_json::from_str::<BTreeMap<String, String>>(raw.get()).ok().map(Secrets::from_iter)
}

/// The `Idempotency-Key`, where there is one (155).
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    Ok(header_id(headers, "idempotency-key", "Idempotency-Key")?)
}

fn arguments(raw: Option<&RawValue>) -> Result<Box<RawValue>, Problem> {
    match raw.filter(|raw| !is_null(raw)) {
        None => compact(&RawValue::from_string("{}".into()).map_err(|_| Problem::internal())?, "arguments"),
        Some(raw) if raw.get().starts_with('{') => compact(raw, "arguments"),
        Some(_) => Err(Problem::invalid("arguments must be an object")),
    }
}

/// The same document without white space, within the bound on depth.
fn compact(raw: &RawValue, name: &str) -> Result<Box<RawValue>, Problem> {
    let json = Json::parse(raw.get()).map_err(|error| match error {
        JsonError::TooDeep => Problem::invalid(format!("{name} is nested too deeply")),
        JsonError::Invalid => Problem::invalid(format!("{name} is not valid JSON text")),
    })?;
    RawValue::from_string(json.as_str().to_owned()).map_err(|_| Problem::internal())
}

fn text(body: &Object, name: &str) -> Result<Option<String>, Problem> {
    let Some(raw) = body.get(name).filter(|raw| !is_null(raw)) else { return Ok(None) };
    let text: String =
        serde_json::from_str(raw.get()).map_err(|_| Problem::invalid(format!("{name} must be a string")))?;
    if is_valid_id(&text) {
        Ok(Some(text))
    } else {
        Err(Problem::invalid(format!("{name} must be 1 to 255 characters without control characters")))
    }
}

fn member(object: &Object, name: &str, shown: &str) -> Result<Option<Object>, Problem> {
    let Some(raw) = object.get(name).filter(|raw| !is_null(raw)) else { return Ok(None) };
    serde_json::from_str(raw.get()).map(Some).map_err(|_| Problem::invalid(format!("{shown} must be an object")))
}

/// A credential travels in `config.context.secrets` or not at all: metadata is stored and logged by others.
fn refuse_auth_token(object: &Object, path: &str) -> Result<(), Problem> {
    let metadata = member(object, "metadata", &format!("{path}metadata"))?;
    if metadata.is_some_and(|metadata| metadata.contains_key("auth_token")) {
        return Err(Problem::new(
            http::StatusCode::UNPROCESSABLE_ENTITY,
            "credential_in_metadata",
            format!("{path}metadata.auth_token must not be sent; put secrets into config.context.secrets"),
        ));
    }
    Ok(())
}

fn is_null(raw: &RawValue) -> bool {
    raw.get() == "null"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submit(text: &str) -> Result<SubmitBody, Problem> {
        Body::parse(&Bytes::copy_from_slice(text.as_bytes()))?.submit()
    }

    #[test]
    fn arguments_keep_their_digits_and_lose_their_white_space_151() {
        let body = submit(r#"{"server":"s","task":"t","arguments":{ "n" : 1.10, "b": 2 },"run_id":null}"#).unwrap();
        assert_eq!(body.arguments.get(), r#"{"n":1.10,"b":2}"#);
        assert_eq!((body.run_id, body.tool_call_id), (None, None));
        assert_eq!(submit(r#"{"server":"s","task":"t"}"#).unwrap().arguments.get(), "{}");
    }

    #[test]
    fn a_wrong_body_is_422_and_names_the_field() {
        for (text, named) in [
            ("[]", "object"),
            ("{", "object"),
            (r#"{"task":"t"}"#, "server"),
            (r#"{"server":"s"}"#, "task"),
            (r#"{"server":"","task":"t"}"#, "server"),
            (r#"{"server":1,"task":"t"}"#, "server"),
            (r#"{"server":"s","task":"t","arguments":[]}"#, "arguments"),
            (r#"{"server":"s","task":"t","argument":{}}"#, "argument"),
            (r#"{"server":"s","task":"t","run_id":5}"#, "run_id"),
            (r#"{"server":"s","task":"t","tool_call_id":"a\u0000"}"#, "tool_call_id"),
            (r#"{"server":"s","task":"t","config":[]}"#, "config"),
            (r#"{"server":"s","task":"t","config":{"context":1}}"#, "config.context"),
            (r#"{"server":"s","task":"t","config":{"context":{"secrets":{"a":1}}}}"#, "config.context.secrets"),
            (r#"{"server":"s","task":"t","metadata":{"auth_token":"x"}}"#, "metadata.auth_token"),
            (r#"{"server":"s","task":"t","config":{"metadata":{"auth_token":"x"}}}"#, "config.metadata.auth_token"),
        ] {
            let problem = submit(text).unwrap_err();
            assert_eq!(problem.status, 422, "{text}");
            assert!(problem.detail.contains(named), "{text}: {}", problem.detail);
        }
        let deep = format!(r#"{{"server":"s","task":"t","arguments":{{"a":{}{}}}}}"#, "[".repeat(200), "]".repeat(200));
        assert!(submit(&deep).unwrap_err().detail.contains("arguments"));
    }

    #[test]
    fn the_description_of_a_submit_has_the_fields_that_are_read() {
        let schema = schemars::schema_for!(SubmitDocument).to_value();
        let described: std::collections::BTreeSet<_> =
            schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(described, FIELDS.into_iter().collect());
    }

    #[test]
    fn secrets_are_accepted_in_their_place() {
        let text = r#"{"server":"s","task":"t","config":{"context":{"secrets":{"k":"v"},"other":1},"x":2},"metadata":{"a":1}}"#;
        assert!(submit(text).is_ok());
    }

    #[test]
    fn an_input_may_be_any_json_but_must_be_there() {
        let input = |text: &'static str| Body::parse(&Bytes::from_static(text.as_bytes())).and_then(Body::input);
        assert_eq!(input(r#"{"input":null}"#).unwrap().get(), "null");
        assert_eq!(input(r#"{"input":{"a" : 1}}"#).unwrap().get(), r#"{"a":1}"#);
        assert!(input("{}").unwrap_err().detail.contains("input"));
        assert!(input(r#"{"input":1,"inputs":2}"#).unwrap_err().detail.contains("inputs"));
    }

    #[test]
    fn an_idempotency_key_is_checked_155() {
        let key = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("idempotency-key", value.parse().unwrap());
            idempotency_key(&headers)
        };
        assert_eq!(key("k-1").unwrap().as_deref(), Some("k-1"));
        assert_eq!(key("").unwrap_err().status, 422);
        assert_eq!(key(&"k".repeat(256)).unwrap_err().status, 422);
        assert_eq!(idempotency_key(&HeaderMap::new()).unwrap(), None);
    }
}
