//! What a token endpoint's answer means: pure (BEHAVIOURS 110, 112, 117).

use std::time::Duration;

use secrecy::SecretString;
use serde_json::{Map, Value};

use super::failure::{Failure, Reason};
use crate::config::{OAuth, is_legal_header_value};
use crate::task::limits::clip;

/// How long a token is taken to be good for whose answer does not say, or says it oddly.
const DEFAULT_LIFETIME: Duration = Duration::from_hours(1);
/// No token is taken to be good for longer.
const MAX_LIFETIME_SECONDS: f64 = 10.0 * 365.0 * 86_400.0;
/// How much of what an endpoint says of an error is shown.
const DESCRIPTION_MAX_CHARS: usize = 200;

/// Tokens that were granted.
#[derive(Debug)]
pub(super) struct Granted {
    /// `<type> <token>`, which can be sent as a header.
    pub(super) authorization: SecretString,
    /// The refresh token that takes the place of the one that was used, where there is another.
    pub(super) refresh_token: Option<SecretString>,
    pub(super) lifetime: Duration,
}

/// Reads an answer of HTTP `status`. No text quotes a token.
pub(super) fn read(status: http::StatusCode, body: &[u8], config: &OAuth) -> Result<Granted, Failure> {
    let members = match serde_json::from_slice::<Value>(body) {
        Ok(Value::Object(members)) => members,
        _ if status.is_success() => return Err(unusable("is no JSON object")),
        _ => Map::new(),
    };
    let error = members.get("error").and_then(Value::as_str);
    // Some say with 200 that they refuse.
    if !status.is_success() || (error.is_some() && !members.contains_key(&config.token_field)) {
        return Err(refusal(status, error, &members));
    }
    let text = |key: &str| members.get(key).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
    let Some(token) = text(&config.token_field) else {
        return Err(unusable("has no access token in the member that oauth.token_field names"));
    };
    let kind = text(&config.token_type_field).unwrap_or(&config.default_token_type);
    let authorization = format!("{kind} {token}");
    if !is_legal_header_value(&authorization) {
        return Err(unusable("has a token or a type that cannot be sent as a header (not shown)"));
    }
    Ok(Granted {
        authorization: authorization.into(),
        refresh_token: text("refresh_token").map(Into::into),
        lifetime: lifetime(members.get(&config.expires_in_field)),
    })
}

/// Seconds as a number or a text; at least one.
fn lifetime(expires_in: Option<&Value>) -> Duration {
    let seconds = match expires_in {
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => text.trim().parse().ok(),
        _ => None,
    };
    match seconds.filter(|seconds: &f64| seconds.is_finite()) {
        Some(seconds) => Duration::from_secs_f64(seconds.clamp(1.0, MAX_LIFETIME_SECONDS)),
        None => DEFAULT_LIFETIME,
    }
}

fn refusal(status: http::StatusCode, error: Option<&str>, members: &Map<String, Value>) -> Failure {
    let is_code = |code: &&str| code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_graphic());
    let code = error.filter(is_code);
    let reason = match (code, status.is_server_error() || status == http::StatusCode::TOO_MANY_REQUESTS) {
        (Some("invalid_grant"), _) => Reason::InvalidGrant,
        (_, true) => Reason::Unreachable,
        (_, false) => Reason::Refused,
    };
    let mut message = format!("the token endpoint answered HTTP {status}");
    if let Some(code) = code {
        message.push_str(&format!(" {code}"));
    }
    if let Some(description) = members.get("error_description").and_then(Value::as_str) {
        let description = description.replace(char::is_control, " ");
        message.push_str(&format!(" ({})", clip(description.trim(), DESCRIPTION_MAX_CHARS)));
    }
    Failure::new(reason, message)
}

fn unusable(what: &str) -> Failure {
    // It was answered: what it granted is gone.
    Failure { lost: true, ..Failure::new(Reason::Unusable, format!("the token endpoint's answer {what}")) }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use secrecy::ExposeSecret as _;
    use serde_json::json;

    use super::super::tests::config;
    use super::*;

    fn granted(answer: &Value) -> Granted {
        read(StatusCode::OK, answer.to_string().as_bytes(), &config(&json!({}))).unwrap()
    }

    fn refused(status: u16, answer: &str) -> Failure {
        read(StatusCode::from_u16(status).unwrap(), answer.as_bytes(), &config(&json!({}))).unwrap_err()
    }

    #[test]
    fn the_fields_are_those_that_are_configured_110() {
        let usual = granted(&json!({"access_token": "t", "token_type": "bearer", "refresh_token": "r"}));
        assert_eq!(usual.authorization.expose_secret(), "bearer t");
        assert_eq!(usual.refresh_token.unwrap().expose_secret(), "r");
        assert_eq!(granted(&json!({"access_token": "t", "token_type": 7})).authorization.expose_secret(), "Bearer t");
        let own = config(&json!({"token_field": "tok", "token_type_field": "kind", "expires_in_field": "ttl",
            "default_token_type": "MAC"}));
        let answer = json!({"tok": "t", "access_token": "other", "ttl": 5, "expires_in": 9});
        let read = read(StatusCode::OK, answer.to_string().as_bytes(), &own).unwrap();
        assert_eq!((read.authorization.expose_secret(), read.lifetime), ("MAC t", Duration::from_secs(5)));
    }

    #[test]
    fn an_odd_lifetime_is_an_hour_and_none_is_shorter_than_a_second_112() {
        for (said, seconds) in [
            (json!(7200), 7_200),
            (json!("90"), 90),
            (json!(1.5e3), 1_500),
            (json!(0), 1),
            (json!(-5), 1),
            (json!(null), 3_600),
            (json!("soon"), 3_600),
            (json!(true), 3_600),
            (json!([60]), 3_600),
            (json!("NaN"), 3_600),
            (json!(1e300), 315_360_000),
        ] {
            let answer = granted(&json!({"access_token": "t", "expires_in": said}));
            assert_eq!(answer.lifetime, Duration::from_secs(seconds), "{said}");
        }
        assert_eq!(granted(&json!({"access_token": "t"})).lifetime, DEFAULT_LIFETIME);
    }

    #[test]
    fn a_token_that_cannot_be_sent_or_is_not_there_is_refused_without_being_shown_117_121() {
        for answer in [
            json!({"access_token": "hunter2\n"}),
            json!({"access_token": "hunter2é"}),
            json!({"access_token": "hunter2", "token_type": "a\r\nb"}),
            json!({"access_token": "hunter2 "}),
            json!({"access_token": ""}),
            json!({"access_token": 5, "other": "hunter2"}),
            json!({"other": "hunter2"}),
            json!(["hunter2"]),
        ] {
            let failure = refused(200, &answer.to_string());
            assert_eq!(failure.reason, Reason::Unusable, "{answer}");
            assert!(failure.lost && !failure.message.contains("hunter2"), "{}", failure.message);
        }
        assert_eq!(refused(200, "<html>hunter2").reason, Reason::Unusable);
    }

    #[test]
    fn refusals_are_told_apart_by_what_can_be_done_about_them() {
        let revoked = json!({"error": "invalid_grant", "error_description": "it was\nrevoked"}).to_string();
        let failure = refused(400, &revoked);
        assert_eq!(failure.reason, Reason::InvalidGrant);
        assert!(failure.message.contains("400") && failure.message.contains("it was revoked"), "{}", failure.message);
        assert_eq!(refused(200, &revoked).reason, Reason::InvalidGrant, "whatever the status");
        assert_eq!(refused(401, r#"{"error": "invalid_client"}"#).reason, Reason::Refused);
        assert_eq!(refused(404, "no such page").reason, Reason::Refused);
        assert_eq!(refused(302, "").reason, Reason::Refused, "redirects are not followed");
        assert_eq!(refused(503, "later").reason, Reason::Unreachable);
        assert_eq!(refused(429, "").reason, Reason::Unreachable);
        assert!(!refused(503, "hunter2").lost, "an error grants nothing");
    }
}
