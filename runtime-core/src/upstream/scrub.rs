//! Takes credentials out of texts before they are stored, logged or shown (BEHAVIOURS 148).

use secrecy::{ExposeSecret as _, SecretString};

use crate::config::{MASK, is_secret};

/// Shortest value that is taken for a credential: anything shorter would tear ordinary texts apart.
const SHORTEST: usize = 4;
/// The same for values whose names do not sound like credentials.
const SHORTEST_OTHER: usize = 8;

/// The credentials that are sent to one server.
#[derive(Clone, Default)]
pub(super) struct Scrubber(std::sync::Arc<[SecretString]>);

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
        // The longest first, so that no part of it is left over.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self(secrets.into_iter().map(Into::into).collect())
    }

    /// The same, and what `other` takes out.
    pub(super) fn with(self, other: &Self) -> Self {
        let mut secrets: Vec<SecretString> = self.0.iter().chain(other.0.iter()).cloned().collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose_secret().len()));
        Self(secrets.into())
    }

    /// `text` with every credential replaced.
    pub(super) fn scrub(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in self.0.iter() {
            if text.contains(secret.expose_secret()) {
                text = text.replace(secret.expose_secret(), MASK);
            }
        }
        text
    }
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
}
