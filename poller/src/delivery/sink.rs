//! A subscriber: where it is, what it hears of, and what must not be shown of it.

use mcp_taskd_core::config::{ConfigError, MASK, Webhook};
use mcp_taskd_core::store::EventRecord;
use reqwest::Url;
use secrecy::{ExposeSecret as _, SecretString};

/// Shortest part of a URL that is taken for a credential; anything shorter would tear ordinary texts apart.
const SHORTEST: usize = 8;

/// A subscriber of events.
pub struct Sink {
    /// Its name, which is also its label in metrics.
    pub name: String,
    /// Where it is; it may hold credentials.
    pub(super) url: Url,
    /// What messages are signed with.
    pub(super) keys: Vec<Vec<u8>>,
    events: Vec<String>,
    users: Option<Vec<String>>,
    /// What is taken out of texts, the longest first.
    secrets: Vec<SecretString>,
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Sink {
    /// From the configuration, which has checked it.
    pub(super) fn new(webhook: &Webhook) -> Result<Self, ConfigError> {
        let wrong = |_| ConfigError(format!("webhooks: the url of {} is not usable", webhook.name));
        let url: Url = webhook.url.parse().map_err(wrong)?;
        let mut secrets: Vec<String> =
            webhook.secret.iter().map(|secret| secret.expose_secret().to_owned()).filter(|it| it.len() >= 4).collect();
        secrets.extend(url.password().map(str::to_owned));
        let parameters = url.query_pairs().map(|(_, value)| value.into_owned());
        secrets.extend(parameters.filter(|value| value.len() >= SHORTEST));
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Ok(Self {
            name: webhook.name.clone(),
            url,
            keys: webhook.keys(),
            events: webhook.events.clone(),
            users: webhook.users.clone(),
            secrets: secrets.into_iter().map(Into::into).collect(),
        })
    }

    /// Whether it is to hear of an event.
    pub(super) fn wants(&self, event: &EventRecord) -> bool {
        self.events.contains(&event.kind) && self.users.as_ref().is_none_or(|users| users.contains(&event.user_id))
    }

    /// A text without the sink's credentials (148).
    pub(super) fn scrub(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.expose_secret(), MASK))
    }
}
