//! `auth`: who may call, and how callers are known.

use http::Uri;
use serde::{Deserialize, Serialize};

use super::{AuthMode, Backend, Settings};

/// `auth`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthSettings {
    /// How callers are known.
    pub mode: AuthMode,
    /// The `jwt` mode's settings.
    pub jwt: JwtSettings,
    /// The gateway's address as clients know it; derived where absent.
    pub resource: Option<String>,
    /// Requests a second of one key or token's user, 1–100,000; twice as many at once.
    pub max_requests_per_second: u32,
}

impl Default for AuthSettings {
    fn default() -> Self {
        Self { mode: AuthMode::None, jwt: JwtSettings::default(), resource: None, max_requests_per_second: 200 }
    }
}

/// `auth.jwt`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct JwtSettings {
    /// Who issues the tokens: exactly their `iss`.
    pub issuer: Option<String>,
    /// Whom they are for: exactly their `aud`, or one of it.
    pub audience: Option<String>,
    /// Where the issuer's keys are.
    pub jwks_url: Option<String>,
    /// The claim that names the user.
    pub user_claim: String,
    /// The claim that lists the scopes.
    pub scopes_claim: String,
}

impl Default for JwtSettings {
    fn default() -> Self {
        Self { issuer: None, audience: None, jwks_url: None, user_claim: "sub".into(), scopes_claim: "scope".into() }
    }
}

/// Finds what would let nobody in, or somebody whom the configuration does not mean (invariant 10).
pub(super) fn check(settings: &Settings, wrong: &mut Vec<String>) {
    let auth = &settings.auth;
    let is_address = |resource: &str| web_address(resource).is_some() && !resource.contains(['#', '?', '"', ' ']);
    if auth.resource.as_deref().is_some_and(|resource| !is_address(resource)) {
        wrong.push(
            "auth.resource must be the gateway's address, such as https://tasks.example/mcp, without query or fragment"
                .into(),
        );
    }
    match auth.mode {
        AuthMode::ApiKey if settings.database.backend == Backend::Memory => wrong.push(
            "auth.mode api_key needs database.backend sqlite or postgres: memory keeps no keys, so nobody could call"
                .into(),
        ),
        AuthMode::None | AuthMode::ApiKey => {}
        AuthMode::Jwt => jwt(&auth.jwt, wrong),
    }
}

fn jwt(jwt: &JwtSettings, wrong: &mut Vec<String>) {
    for (key, value) in [("issuer", &jwt.issuer), ("audience", &jwt.audience), ("jwks_url", &jwt.jwks_url)] {
        if value.as_ref().is_none_or(String::is_empty) {
            wrong.push(format!("auth.jwt.{key} is needed by auth.mode jwt"));
        }
    }
    // Whoever can change the keys on their way lets himself in.
    let is_safe = |url: &str| {
        web_address(url).is_some_and(|url| {
            let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
            let local =
                host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
            url.scheme_str() == Some("https") || local
        })
    };
    if jwt.jwks_url.as_deref().is_some_and(|url| !url.is_empty() && !is_safe(url)) {
        wrong.push(
            "auth.jwt.jwks_url must be an https address (http only on this machine): whoever can change the keys on their \
             way could make tokens"
                .into(),
        );
    }
}

/// An `http` or `https` address.
fn web_address(text: &str) -> Option<Uri> {
    let uri = text.parse::<Uri>().ok()?;
    (matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty()))
        .then_some(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut Settings)) -> Result<(), String> {
        let mut settings = Settings::default();
        change(&mut settings);
        let mut wrong = Vec::new();
        check(&settings, &mut wrong);
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }

    fn complete(settings: &mut Settings) {
        settings.auth.mode = AuthMode::Jwt;
        settings.auth.jwt.issuer = Some("https://id.example".into());
        settings.auth.jwt.audience = Some("https://tasks.example/mcp".into());
        settings.auth.jwt.jwks_url = Some("https://id.example/jwks".into());
    }

    type Clear = fn(&mut JwtSettings);

    #[test]
    fn jwt_needs_all_that_pins_a_token_and_names_what_is_missing() {
        assert_eq!(with(complete), Ok(()));
        let cases: [(&str, Clear); 3] = [
            ("auth.jwt.issuer", |jwt| jwt.issuer = None),
            ("auth.jwt.audience", |jwt| jwt.audience = Some(String::new())),
            ("auth.jwt.jwks_url", |jwt| jwt.jwks_url = None),
        ];
        for (key, clear) in cases {
            let error = with(|settings| {
                complete(settings);
                clear(&mut settings.auth.jwt);
            });
            assert!(error.unwrap_err().contains(key), "{key}");
        }
        let nothing = with(|settings| settings.auth.mode = AuthMode::Jwt).unwrap_err();
        assert_eq!(nothing.lines().count(), cases.len(), "all of it at once: {nothing}");
    }

    #[test]
    fn keys_are_fetched_over_https_or_on_this_machine() {
        let url = |url: &str| {
            with(|settings| {
                complete(settings);
                settings.auth.jwt.jwks_url = Some(url.into());
            })
        };
        for good in ["https://id.example/jwks", "http://localhost:1/jwks", "http://127.0.0.1:9/x", "http://[::1]:9/x"] {
            assert_eq!(url(good), Ok(()), "{good}");
        }
        for bad in ["http://id.example/jwks", "file:///jwks", "id.example", "https://", "http://localhost.example/"] {
            assert!(url(bad).unwrap_err().contains("auth.jwt.jwks_url"), "{bad}");
        }
    }

    #[test]
    fn keys_need_a_store_that_keeps_them_and_a_resource_is_an_address() {
        let memory = with(|settings| {
            settings.auth.mode = AuthMode::ApiKey;
            settings.database.backend = Backend::Memory;
        });
        assert!(memory.unwrap_err().contains("auth.mode"));
        assert_eq!(with(|settings| settings.auth.mode = AuthMode::ApiKey), Ok(()));
        for bad in ["tasks.example", "https://h/mcp#x", "https://h/mcp?x", "ftp://h/mcp", "https://h/\"mcp"] {
            assert!(with(|settings| settings.auth.resource = Some(bad.into())).unwrap_err().contains("auth.resource"));
        }
        assert_eq!(with(|settings| settings.auth.resource = Some("https://h/mcp".into())), Ok(()));
    }
}
