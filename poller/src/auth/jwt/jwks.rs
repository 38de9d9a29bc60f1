//! The issuer's keys: fetched in the background, kept while the issuer is away, fetched anew for a key that nobody has seen yet.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::key::{self, Key};
use super::{Condition, Denied, Reason};

/// How often they are fetched while all is well.
const EVERY: Duration = Duration::from_mins(5);
/// How soon at the earliest for a key that is not among them: tokens can name any.
const AT_MOST_EVERY: Duration = Duration::from_secs(10);
/// How soon after a failure, doubling up to [`RETRY_MAX`].
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_mins(1);
/// How long a fetch may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a caller with an unknown key waits for one.
const PATIENCE: Duration = Duration::from_secs(6);
const MAX_BYTES: usize = 256 << 10;
const MAX_KEYS: usize = 64;

/// What is known of the keys.
#[derive(Clone, Default)]
struct Known {
    /// The last ones; `None`: there never were any.
    keys: Option<Arc<[Key]>>,
    attempted_at: Option<Instant>,
    /// Why the last attempt failed.
    error: Option<String>,
}

/// The keys at an address.
pub struct Jwks {
    url: String,
    client: reqwest::Client,
    known: watch::Sender<Known>,
    wanted: Notify,
}

impl Jwks {
    /// The keys at `url`, none of them known yet.
    pub fn new(url: &str) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            // Where else the keys may lie is for the configuration to say.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("mcp-taskd/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self { url: url.to_owned(), client, known: watch::Sender::default(), wanted: Notify::new() })
    }

    /// Fetches the keys now, then and again, for ever.
    pub async fn run(&self) {
        let mut pause = RETRY;
        loop {
            let fetched = self.fetch().await;
            let good = fetched.is_ok();
            self.attempted(fetched);
            // With keys that were good once, failing is no reason to hurry more than for a token that needs others.
            let wait = if good { EVERY } else { pause.mul_f64(0.75 + fastrand::f64() / 2.0) };
            pause = if good { RETRY } else { (pause * 2).min(RETRY_MAX) };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = async {
                    self.wanted.notified().await;
                    tokio::time::sleep(self.next_allowed()).await;
                } => {}
            }
        }
    }

    /// Takes what a fetch brought; what it did not bring leaves the last keys as they are.
    pub(super) fn attempted(&self, fetched: Result<Vec<Key>, String>) {
        let failed_before = self.known.borrow().error.is_some();
        match &fetched {
            Ok(keys) => tracing::debug!(keys = keys.len(), "the issuer's keys are fetched"),
            // Once: an issuer that stays away must not fill the log.
            Err(error) if !failed_before => tracing::warn!(error, "auth.jwt.jwks_url: keys cannot be fetched"),
            Err(_) => {}
        }
        self.known.send_modify(|known| {
            known.attempted_at = Some(Instant::now());
            match fetched {
                Ok(keys) => (known.keys, known.error) = (Some(keys.into()), None),
                Err(error) => known.error = Some(error),
            }
        });
    }

    /// As if the last fetch were long ago.
    #[cfg(test)]
    pub(super) fn rested(&self) {
        self.known.send_modify(|known| known.attempted_at = None);
    }

    /// Whether there are keys, and whether they are the issuer's newest.
    pub fn condition(&self) -> Condition {
        let known = self.known.borrow();
        match (&known.keys, &known.error) {
            (Some(_), None) => Condition::Good,
            (Some(_), Some(error)) => Condition::Stale(format!(
                "the last keys of auth.jwt.jwks_url are used; new ones cannot be fetched: {error}"
            )),
            (None, error) => {
                let why = error.as_deref().unwrap_or("not fetched yet");
                Condition::Failed(format!("there are no keys of auth.jwt.jwks_url: {why}"))
            }
        }
    }

    /// The key that a token names; waits for another fetch where there is none and one is allowed.
    pub async fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Result<DecodingKey, Denied> {
        let mut changes = self.known.subscribe();
        let look = |known: &Known| {
            let keys = known.keys.as_deref().unwrap_or_default();
            key::find(keys, id, algorithm).map(|key| key.verifying.clone())
        };
        if let Some(key) = look(&changes.borrow_and_update()) {
            return Ok(key);
        }
        if self.next_allowed().is_zero() {
            self.wanted.notify_one();
            let _ = tokio::time::timeout(PATIENCE, changes.changed()).await;
        }
        let known = self.known.borrow();
        match look(&known) {
            Some(key) => Ok(key),
            None if known.keys.is_none() => Err(Denied::Unavailable),
            None => Err(Denied::Unauthenticated(Reason::Signature)),
        }
    }

    /// How long until a fetch for an unknown key is allowed.
    pub(super) fn next_allowed(&self) -> Duration {
        let attempted_at = self.known.borrow().attempted_at;
        attempted_at.map_or(Duration::ZERO, |at| AT_MOST_EVERY.saturating_sub(at.elapsed()))
    }

    async fn fetch(&self) -> Result<Vec<Key>, String> {
        let response = self.client.get(&self.url).header("accept", "application/json").send().await;
        let response = response.map_err(describe)?;
        if !response.status().is_success() {
            return Err(format!("the issuer answered {}", response.status()));
        }
        let (mut body, mut chunks) = (Vec::new(), response.bytes_stream());
        while let Some(chunk) = chunks.next().await {
            body.extend_from_slice(&chunk.map_err(describe)?);
            if body.len() > MAX_BYTES {
                return Err(format!("the answer is larger than {MAX_BYTES} bytes"));
            }
        }
        read(&body)
    }
}

/// The usable keys of a key set.
fn read(body: &[u8]) -> Result<Vec<Key>, String> {
    #[derive(Deserialize)]
    struct Set {
        keys: Vec<Value>,
    }
    let set: Set = serde_json::from_slice(body).map_err(|_| "the answer is no JSON Web Key Set".to_owned())?;
    // One key that cannot be read must not take the others with it.
    let keys: Vec<Key> = set.keys.iter().filter_map(Key::read).take(MAX_KEYS).collect();
    if keys.is_empty() { Err("no key in the answer can verify a signature".into()) } else { Ok(keys) }
}

/// Without the address, which may have a secret in it.
fn describe(error: reqwest::Error) -> String {
    use std::error::Error as _;
    let error = error.without_url();
    let mut cause = error.source();
    while let Some(deeper) = cause.and_then(|cause| cause.source()) {
        cause = Some(deeper);
    }
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

impl std::fmt::Debug for Jwks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwks").field("condition", &self.condition()).finish_non_exhaustive()
    }
}
