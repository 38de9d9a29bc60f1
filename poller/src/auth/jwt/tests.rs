//! Tokens, good and bad, against an issuer that this process plays.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::get;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{EncodingKey, Header, encode};
use mcp_taskd_core::clock::{Clock as _, SystemClock};
use serde_json::json;

use super::*;

const ISSUER: &str = "https://id.example";
const AUDIENCE: &str = "https://tasks.example/mcp";

/// A key pair whose private half is known to all who read this: 32 times the same byte.
fn pair(byte: u8) -> EncodingKey {
    let mut der = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20".to_vec();
    der.extend([byte; 32]);
    EncodingKey::from_ed_der(&der)
}

fn rsa() -> EncodingKey {
    EncodingKey::from_rsa_der(include_bytes!("rsa_test_key.der"))
}

/// The public half of [`pair`] as a member of a key set.
fn public(byte: u8, id: &str) -> Value {
    let halves = [
        "iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w",
        "gTl3Dqh9F19Wo1Rmw0x-zMuNipG07jeiXfYPW4_Js5Q",
        "7UkoxijRwsbq6QM4kFmVYSlZJzpcY_k2NsFGFKyHN9E",
    ];
    json!({"kty": "OKP", "crv": "Ed25519", "x": halves[usize::from(byte) - 1], "kid": id})
}

/// The public half of [`rsa`].
fn public_rsa(id: &str) -> Value {
    let mut jwk = Jwk::from_encoding_key(&rsa(), Algorithm::RS256).unwrap();
    jwk.common.key_id = Some(id.into());
    jwk.common.key_algorithm = None;
    serde_json::to_value(jwk).unwrap()
}

/// An issuer of keys; it may answer anything.
struct Issuer {
    answer: Arc<Mutex<(u16, String)>>,
    fetches: Arc<AtomicUsize>,
    verifier: Arc<Verifier>,
    running: tokio::task::JoinHandle<()>,
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Issuer {
    async fn start(keys: &[Value]) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let answer = Arc::new(Mutex::new((200, json!({"keys": keys}).to_string())));
        let fetches = Arc::new(AtomicUsize::new(0));
        let (said, counted) = (Arc::clone(&answer), Arc::clone(&fetches));
        let route = get(move || async move {
            counted.fetch_add(1, Relaxed);
            let (status, body) = said.lock().unwrap().clone();
            (http::StatusCode::from_u16(status).unwrap(), body)
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/jwks", listener.local_addr().unwrap());
        tokio::spawn(axum::serve(listener, Router::new().route("/jwks", route)).into_future());
        let settings = JwtSettings {
            issuer: Some(ISSUER.into()),
            audience: Some(AUDIENCE.into()),
            jwks_url: Some(url),
            ..JwtSettings::default()
        };
        let verifier = Arc::new(Verifier::new(&settings).unwrap());
        let running = tokio::spawn({
            let verifier = Arc::clone(&verifier);
            async move { verifier.run().await }
        });
        Self { answer, fetches, verifier, running }
    }

    fn answers(&self, status: u16, body: &Value) {
        *self.answer.lock().unwrap() = (status, body.to_string());
    }

    async fn until(&self, wanted: impl Fn(&Condition) -> bool) {
        let reached = async {
            while !wanted(&self.verifier.condition()) {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), reached).await.expect("the condition");
    }

    async fn verify(&self, token: &str) -> Result<Verified, Reason> {
        match self.verifier.verify(token).await {
            Ok(verified) => Ok(verified),
            Err(Denied::Unauthenticated(reason)) => Err(reason),
            Err(other) => panic!("{other:?}"),
        }
    }
}

fn now() -> i64 {
    SystemClock.now_ms() / 1_000
}

fn claims() -> Value {
    json!({"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "scope": "tasks openid", "exp": now() + 600})
}

fn header(algorithm: Algorithm, id: Option<&str>) -> Header {
    Header { kid: id.map(str::to_owned), ..Header::new(algorithm) }
}

fn token(claims: &Value) -> String {
    encode(&header(Algorithm::EdDSA, Some("one")), claims, &pair(1)).unwrap()
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

#[tokio::test]
async fn a_token_is_its_users_with_the_scopes_that_are_ours() {
    let issuer = Issuer::start(&[public(1, "one")]).await;
    issuer.until(|condition| *condition == Condition::Good).await;
    let verified = issuer.verify(&token(&claims())).await.unwrap();
    assert_eq!(verified.identity.user_id, "ada");
    assert_eq!(verified.identity.scopes, Scopes { tasks: true, ..Scopes::default() });
    let listed = issuer.verify(&token(&with("scope", json!(["admin", "act-as", 7])))).await.unwrap().identity;
    assert!(listed.scopes.admin && !listed.scopes.tasks && listed.act_as);
    let none = issuer.verify(&token(&with("scope", Value::Null))).await.unwrap().identity;
    assert_eq!(none.scopes, Scopes::default());
    for audiences in [json!([AUDIENCE]), json!(["other", AUDIENCE])] {
        assert!(issuer.verify(&token(&with("aud", audiences))).await.is_ok());
    }
    assert!(issuer.verify(&token(&with("exp", json!(now() - 10)))).await.is_ok(), "clocks differ a little");
}

#[tokio::test]
async fn whatever_pins_a_token_is_exact() {
    let issuer = Issuer::start(&[public(1, "one")]).await;
    issuer.until(|condition| *condition == Condition::Good).await;
    for (name, value, reason) in [
        ("iss", json!("https://id.example/"), Reason::Issuer),
        ("iss", json!([ISSUER, "https://evil.example"]), Reason::Issuer),
        ("iss", Value::Null, Reason::Claims),
        ("aud", json!("https://tasks.example"), Reason::Audience),
        ("aud", json!([]), Reason::Audience),
        ("aud", Value::Null, Reason::Claims),
        ("exp", json!(now() - 60), Reason::Expired),
        ("exp", Value::Null, Reason::Claims),
        ("exp", json!("never"), Reason::Claims),
        ("nbf", json!(now() + 60), Reason::NotYetValid),
        ("sub", Value::Null, Reason::Claims),
        ("sub", json!(""), Reason::Claims),
        ("sub", json!(7), Reason::Claims),
        ("sub", json!("a\nb"), Reason::Claims),
    ] {
        let mut claims = with(name, value.clone());
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(name);
        }
        assert_eq!(issuer.verify(&token(&claims)).await, Err(reason), "{name} {value}");
    }
    for nonsense in ["", "a", "a.b", "a.b.c", "....", &token(&claims())[1..]] {
        assert_eq!(issuer.verify(nonsense).await, Err(Reason::Malformed), "{nonsense:?}");
    }
}

#[tokio::test]
async fn a_signature_is_by_a_key_of_the_issuer_with_an_algorithm_that_suits_it() {
    let mut meant = public_rsa("meant");
    meant["alg"] = json!("RS256");
    let mut encrypting = public(3, "encrypting");
    encrypting["use"] = json!("enc");
    let keys = [
        json!({"kty": "future", "kid": "odd"}),
        json!({"kty": "oct", "kid": "shared", "k": "c2VjcmV0"}),
        public(1, "one"),
        public_rsa("rsa"),
        meant,
        encrypting,
    ];
    let issuer = Issuer::start(&keys).await;
    issuer.until(|condition| *condition == Condition::Good).await;
    let ask = async |header: &Header, key: &EncodingKey| {
        let token = encode(header, &claims(), key).unwrap();
        issuer.verify(&token).await.map(|_| ())
    };
    for good in [Algorithm::RS256, Algorithm::RS512, Algorithm::PS384] {
        assert_eq!(ask(&header(good, Some("rsa")), &rsa()).await, Ok(()), "{good:?}");
    }
    assert_eq!(ask(&header(Algorithm::EdDSA, None), &pair(1)).await, Ok(()), "the only one that fits");
    assert_eq!(ask(&header(Algorithm::RS256, Some("meant")), &rsa()).await, Ok(()));
    let signature = Err(Reason::Signature);
    assert_eq!(ask(&header(Algorithm::RS256, None), &rsa()).await, signature, "several fit");
    assert_eq!(ask(&header(Algorithm::RS384, Some("meant")), &rsa()).await, signature);
    assert_eq!(ask(&header(Algorithm::EdDSA, Some("one")), &pair(2)).await, signature);
    assert_eq!(ask(&header(Algorithm::EdDSA, Some("rsa")), &pair(1)).await, signature);
    assert_eq!(ask(&header(Algorithm::EdDSA, Some("encrypting")), &pair(3)).await, signature);
    // The issuer's public key as the secret of a symmetric algorithm, and a symmetric key of the set.
    for id in ["rsa", "shared"] {
        let forged = ask(&header(Algorithm::HS256, Some(id)), &EncodingKey::from_secret(b"secret")).await;
        assert_eq!(forged, Err(Reason::Algorithm));
    }
    let critical = Header { crit: Some(vec!["b64".into()]), ..header(Algorithm::EdDSA, Some("one")) };
    assert_eq!(ask(&critical, &pair(1)).await, Err(Reason::Malformed));
    // {"alg":"none"} and no signature.
    let good = token(&claims());
    let unsigned = format!("eyJhbGciOiJub25lIn0.{}.", good.split('.').nth(1).unwrap());
    assert!(matches!(issuer.verify(&unsigned).await, Err(Reason::Malformed | Reason::Algorithm)));
    let (head, _) = good.rsplit_once('.').unwrap();
    assert_eq!(issuer.verify(&format!("{head}.")).await, Err(Reason::Signature));
}

#[tokio::test]
async fn an_issuer_that_is_away_keeps_the_last_keys_and_readiness_says_so() {
    let issuer = Issuer::start(&[]).await;
    issuer.until(|condition| matches!(condition, Condition::Failed(why) if why.contains("no key"))).await;
    assert_eq!(issuer.verifier.verify(&token(&claims())).await, Err(Denied::Unavailable));
    issuer.answers(200, &json!({"keys": [public(1, "one")]}));
    issuer.until(|condition| *condition == Condition::Good).await;
    assert!(issuer.verify(&token(&claims())).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_unknown_key_is_asked_for_at_a_bounded_rate() {
    let keys = Jwks::new("http://127.0.0.1:9/jwks").unwrap();
    assert!(keys.next_allowed().is_zero());
    keys.attempted(Ok(vec![Key::read(&public(1, "one")).unwrap()]));
    assert!(!keys.next_allowed().is_zero());
    let started = tokio::time::Instant::now();
    for _ in 0..1_000 {
        let missing = keys.find(Some("other"), Algorithm::EdDSA).await;
        assert_eq!(missing.err(), Some(Denied::Unauthenticated(Reason::Signature)));
    }
    assert!(started.elapsed().is_zero(), "nobody waits for a fetch that is not allowed");
    keys.attempted(Err("away".into()));
    assert!(matches!(keys.condition(), Condition::Stale(why) if why.contains("away")));
    assert!(keys.find(Some("one"), Algorithm::EdDSA).await.is_ok());
}

#[tokio::test]
async fn a_new_key_is_taken_with_the_first_token_that_names_it() {
    let issuer = Issuer::start(&[public(1, "one")]).await;
    issuer.until(|condition| *condition == Condition::Good).await;
    let keys = [public(1, "one"), public(2, "two")];
    issuer.answers(200, &json!({"keys": keys}));
    issuer.verifier.keys.rested();
    let rotated = encode(&header(Algorithm::EdDSA, Some("two")), &claims(), &pair(2)).unwrap();
    assert!(issuer.verify(&rotated).await.is_ok());
    assert_eq!(issuer.fetches.load(Relaxed), 2);
}
