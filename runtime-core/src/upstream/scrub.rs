//! Takes credentials out of texts before they are stored, logged or shown (BEHAVIOURS 148).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use secrecy::{ExposeSecret as _, SecretString};

use crate::config::{MASK, is_secret};

/// Shortest value that is taken for a credential: anything shorter would tear ordinary texts apart.
const SHORTEST: usize = 4;
/// The same for values whose names do not sound like credentials.
const SHORTEST_OTHER: usize = 8;

/// Tokens that are remembered: the last few that took each other's place.
const REMEMBERED: usize = 32;

/// Credentials that change: the latest of them.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<VecDeque<SecretString>>);

impl Recent {
    /// Takes note of one that may be sent from now on.
    pub(super) fn remember(&self, secret: &str) {
        if secret.len() < SHORTEST {
            return;
        }
        let mut secrets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        secrets.retain(|known| known.expose_secret() != secret);
        secrets.push_back(secret.into());
        let surplus = secrets.len().saturating_sub(REMEMBERED);
        secrets.drain(..surplus);
    }

    fn scrub(&self, mut text: String) -> String {
        for secret in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            replace(&mut text, secret);
        }
        text
    }
}

/// The credentials that are sent to one server.
#[derive(Clone, Default)]
pub(super) struct Scrubber {
    fixed: Arc<[SecretString]>,
    recent: Option<Arc<Recent>>,
}

impl std::fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scrubber(…)")
    }
}

fn replace(text: &mut String, secret: &SecretString) {
    if text.contains(secret.expose_secret()) {
        *text = text.replace(secret.expose_secret(), MASK);
    }
}

impl Scrubber {
    /// From named values: headers, or variables of a child process.
    pub(super) fn new<'a>(values: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut secrets: Vec<String> = Vec::new();
        for (name, value) in values {
            if matches!(name.to_ascii_lowercase().as_str(), "user-agent" | "accept" | "content-type") {
                continue;
            }
            let shortest = if is_secret(name) { SHORTEST } else { SHORTEST_OTHER };
            // A server may quote a token without the scheme in front of it.
            for part in std::iter::once(value).chain(value.split_once(' ').map(|(_, token)| token)) {
                if part.len() >= shortest {
                    secrets.push(part.to_owned());
                }
            }
        }
        Self { fixed: longest_first(secrets.into_iter().map(Into::into).collect()), recent: None }
    }

    /// The same, and of what changes whatever it is at the time.
    pub(super) fn following(self, recent: &Arc<Recent>) -> Self {
        Self { recent: Some(Arc::clone(recent)), ..self }
    }

    /// The same, and what `other` takes out.
    pub(super) fn with(self, other: &Self) -> Self {
        let fixed = longest_first(self.fixed.iter().chain(other.fixed.iter()).cloned().collect());
        Self { fixed, recent: other.recent.clone().or(self.recent) }
    }

    /// `text` with every credential replaced.
    pub(super) fn scrub(&self, text: &str) -> String {
        let mut text = text.to_owned();
        if let Some(recent) = &self.recent {
            text = recent.scrub(text);
        }
        for secret in self.fixed.iter() {
            replace(&mut text, secret);
        }
        text
    }
}

/// So that no part of a longer one is left over.
fn longest_first(mut secrets: Vec<SecretString>) -> Arc<[SecretString]> {
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose_secret().len()));
    secrets.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_replaced_with_and_without_their_scheme_148() {
        let scrubber =
            Scrubber::new([("Authorization", "Bearer abc123"), ("X-Mode", "fast"), ("User-Agent", "deer-flow")]);
        assert_eq!(
            scrubber.scrub("got 'Bearer abc123' or abc123, fast, deer-flow"),
            "got '***' or ***, fast, deer-flow"
        );
    }

    #[test]
    fn the_last_few_tokens_are_replaced_too_148() {
        let recent = Arc::new(Recent::default());
        let scrubber = Scrubber::new([("client_secret", "s3cret")]).following(&recent);
        let scrubber = Scrubber::new([("x-api-key", "static-key")]).with(&scrubber);
        for at in 0..40 {
            recent.remember(&format!("token-{at:02}"));
        }
        recent.remember("token-20");
        assert_eq!(scrubber.scrub("token-39 token-20 token-08 static-key s3cret"), "*** *** *** *** ***");
        assert_eq!(scrubber.scrub("token-00"), "token-00", "long gone");
        assert!(!format!("{scrubber:?}").contains("s3cret"));
    }
}
