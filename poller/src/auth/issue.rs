//! Making keys, and showing them without what makes them keys.

use mcp_taskd_core::clock::Millis;
use mcp_taskd_core::store::{ApiKeyRecord, ApiKeys, StoreError, StoreErrorKind};
use schemars::JsonSchema;
use serde::Serialize;

use super::key::ApiKey;
use super::{Scopes, is_valid_id};
use crate::view;

/// The longest that a key may be good for, in seconds: a hundred years.
const MAX_LIFE_SECONDS: u64 = 36_500 * 86_400;

/// A key that somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// Whose it is.
    pub user_id: String,
    /// What it allows: at least one of [`Scopes::WORDS`].
    pub scopes: Vec<String>,
    /// How long it is good for; `None`: until it is revoked.
    pub expires_in_seconds: Option<u64>,
}

impl NewKey {
    /// What is wrong with the order; names the field.
    pub fn problem(&self) -> Option<String> {
        if !is_valid_id(&self.user_id) {
            return Some("user_id must be 1 to 255 characters without control characters".into());
        }
        if let Some(word) = self.scopes.iter().find(|word| !Scopes::WORDS.contains(&word.as_str())) {
            return Some(format!("scopes: {word:?} is no scope; there are {}", Scopes::WORDS.join(", ")));
        }
        if self.scopes.is_empty() {
            return Some(format!("scopes: a key needs one at least, of {}", Scopes::WORDS.join(", ")));
        }
        match self.expires_in_seconds {
            Some(seconds) if !(1..=MAX_LIFE_SECONDS).contains(&seconds) => {
                Some(format!("expires_in_seconds must be from 1 to {MAX_LIFE_SECONDS}"))
            }
            _ => None,
        }
    }
}

/// Makes a key and records what may be known of it. The key itself is returned, once.
pub async fn issue(keys: &dyn ApiKeys, order: &NewKey, now: Millis) -> Result<(ApiKey, ApiKeyRecord), StoreError> {
    let key = ApiKey::generate().map_err(|error| {
        StoreError::new(StoreErrorKind::Unavailable, "issue", format!("the system gives no random numbers: {error}"))
    })?;
    let words: Vec<_> =
        Scopes::WORDS.into_iter().filter(|word| order.scopes.iter().any(|asked| asked == word)).collect();
    let record = ApiKeyRecord {
        id: key.id().to_owned(),
        user_id: order.user_id.clone(),
        scopes: words.join(" "),
        secret_hash: key.hash(),
        created_at: now,
        expires_at: order.expires_in_seconds.map(|seconds| now + seconds as i64 * 1_000),
        last_used_at: None,
        revoked_at: None,
    };
    keys.insert_key(&record).await?;
    Ok((key, record))
}

/// A key as it is shown.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Key")]
pub struct KeyView<'a> {
    /// The key itself, to the one who made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    key_id: &'a str,
    user_id: &'a str,
    scopes: Vec<&'a str>,
    status: &'static str,
    created_at: String,
    expires_at: Option<String>,
    last_used_at: Option<String>,
    revoked_at: Option<String>,
}

impl<'a> KeyView<'a> {
    /// A key at `now`.
    pub fn new(record: &'a ApiKeyRecord, now: Millis) -> Self {
        let status = match record {
            ApiKeyRecord { revoked_at: Some(_), .. } => "revoked",
            ApiKeyRecord { expires_at: Some(at), .. } if *at <= now => "expired",
            _ => "active",
        };
        Self {
            key: None,
            key_id: &record.id,
            user_id: &record.user_id,
            scopes: record.scopes.split(' ').collect(),
            status,
            created_at: view::rfc3339(record.created_at),
            expires_at: record.expires_at.map(view::rfc3339),
            last_used_at: record.last_used_at.map(view::rfc3339),
            revoked_at: record.revoked_at.map(view::rfc3339),
        }
    }

    /// The same with the key itself.
    #[must_use]
    pub fn with_key(self, key: &'a ApiKey) -> Self {
        Self { key: Some(key.expose()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(user: &str, scopes: &[&str], expires: Option<u64>) -> NewKey {
        let scopes = scopes.iter().map(|&word| word.to_owned()).collect();
        NewKey { user_id: user.into(), scopes, expires_in_seconds: expires }
    }

    #[test]
    fn an_order_that_cannot_be_met_names_the_field() {
        assert_eq!(order("ada", &["tasks"], None).problem(), None);
        assert_eq!(order("ada", &["act-as", "tasks"], Some(1)).problem(), None);
        for (wrong, field) in [
            (order("", &["tasks"], None), "user_id"),
            (order("a\nb", &["tasks"], None), "user_id"),
            (order("ada", &[], None), "scopes"),
            (order("ada", &["tasks", "root"], None), "root"),
            (order("ada", &["tasks"], Some(0)), "expires_in_seconds"),
            (order("ada", &["tasks"], Some(u64::MAX)), "expires_in_seconds"),
        ] {
            assert!(wrong.problem().is_some_and(|problem| problem.contains(field)), "{wrong:?}");
        }
    }
}
