//! An issuer of tokens: a key set on loopback, and tokens by its key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::response::IntoResponse as _;
use axum::routing::get;
use http::StatusCode;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use mcp_taskd_core::clock::{Clock as _, SystemClock};
use serde_json::{Value, json};

/// Whom its tokens are for.
pub const AUDIENCE: &str = "https://tasks.example/mcp";
const ISSUER: &str = "https://id.example";
/// The public half of a key whose private half is 32 times the byte 1: nobody is to trust it but tests.
const PUBLIC: &str = "iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w";

/// The issuer; it ends with the test's runtime.
#[derive(Debug)]
pub struct Issuer {
    url: String,
    away: Arc<AtomicBool>,
}

impl Issuer {
    /// Starts it on loopback.
    pub async fn start() -> Self {
        let away = Arc::new(AtomicBool::new(false));
        let gone = Arc::clone(&away);
        let keys = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": PUBLIC, "kid": "one", "use": "sig"}]});
        let route = get(move || async move {
            if gone.load(Ordering::Relaxed) {
                StatusCode::SERVICE_UNAVAILABLE.into_response()
            } else {
                axum::Json(keys).into_response()
            }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
        let url = format!("http://{}/jwks", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, Router::new().route("/jwks", route)).await });
        Self { url, away }
    }

    /// Whether it answers.
    pub fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::Relaxed);
    }

    /// What a daemon's `auth` says to know its callers by this issuer.
    pub fn auth(&self) -> Value {
        json!({"mode": "jwt", "jwt": {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": self.url}})
    }

    /// A token of a user for an hour.
    pub fn token(&self, user: &str, scopes: &str) -> String {
        let expires = SystemClock.now_ms() / 1_000 + 3_600;
        let claims = json!({"iss": ISSUER, "aud": AUDIENCE, "sub": user, "scope": scopes, "exp": expires});
        let mut private = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20".to_vec();
        private.extend([1; 32]);
        let header = Header { kid: Some("one".into()), ..Header::new(Algorithm::EdDSA) };
        encode(&header, &claims, &EncodingKey::from_ed_der(&private)).expect("a token")
    }
}
