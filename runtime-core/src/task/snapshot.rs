//! What a server said of a task, in the bounded form that is stored.

use std::fmt::Write as _;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::json::hash_canonical;
use super::limits::{ERROR_CODE_MAX_CHARS, ERROR_MAX_CHARS, clip};
use super::{Json, Limits, Status};

/// The payload columns of a task, bounded (BEHAVIOURS B).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The result, where it is within bounds.
    pub result: Option<Json>,
    /// The first characters of a result that is not.
    pub result_preview: Option<String>,
    /// Whether the result was too large to keep.
    pub result_truncated: bool,
    /// `{uri, mime_type}`.
    pub result_artifact: Option<Json>,
    /// Why the task failed, in the server's words or ours.
    pub error: Option<String>,
    /// A code for it; unknown codes are kept as given (134).
    pub error_code: Option<String>,
    /// What the server waits for.
    pub input_required: Option<Json>,
}

impl Outcome {
    /// A failure of our own making.
    pub fn failure(code: &str, error: &str) -> Self {
        Self {
            error: Some(clip(error, ERROR_MAX_CHARS)),
            error_code: Some(clip(code, ERROR_CODE_MAX_CHARS)),
            ..Self::default()
        }
    }

    /// Puts a result in, whole or as a preview (27).
    pub fn set_result(&mut self, result: Json, limits: &Limits) {
        if result.as_str().len() <= limits.max_result_bytes {
            self.result = Some(result);
        } else {
            let text = result.as_string();
            self.result_preview =
                Some(clip(text.as_deref().unwrap_or(result.as_str()), limits.result_preview_max_chars));
            self.result_truncated = true;
        }
    }
}

/// One answer about a task: its status, payloads, and advice on when to ask again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The status, as ours (`running` is `working`).
    pub status: Status,
    /// The payloads.
    pub outcome: Outcome,
    /// When the server wants to be asked again.
    pub hint: Option<Duration>,
    /// How long the server keeps the task and its result, from the task's creation on.
    pub ttl: Option<Duration>,
    /// What was ignored in the answer, shown in `last_poll_error` (136).
    pub warning: Option<String>,
}

impl Snapshot {
    /// An answer with a status and nothing else.
    pub fn bare(status: Status) -> Self {
        Self { status, outcome: Outcome::default(), hint: None, ttl: None, warning: None }
    }

    /// A failure of our own making.
    pub fn failure(code: &str, error: &str) -> Self {
        Self { outcome: Outcome::failure(code, error), ..Self::bare(Status::Failed) }
    }

    /// The digest by which an answer counts as unchanged: of the bounded form, keys in canonical order, hints left out.
    pub fn digest(&self) -> String {
        let mut hasher = Sha256::new();
        hasher.update(self.status.as_str());
        let outcome = &self.outcome;
        hasher.update([u8::from(outcome.result_truncated)]);
        for text in [&outcome.result_preview, &outcome.error, &outcome.error_code, &self.warning] {
            hash_option(text.as_deref(), &mut hasher, |text, hasher| {
                hasher.update((text.len() as u64).to_le_bytes());
                hasher.update(text);
            });
        }
        for json in [&outcome.result, &outcome.result_artifact, &outcome.input_required] {
            hash_option(json.as_ref(), &mut hasher, hash_canonical);
        }
        // Half of SHA-256 is plenty to tell two answers of one task apart, and a held task keeps it in memory.
        hex(&hasher.finalize()[..16])
    }
}

fn hash_option<T: ?Sized>(value: Option<&T>, hasher: &mut Sha256, hash: impl FnOnce(&T, &mut Sha256)) {
    hasher.update([u8::from(value.is_some())]);
    if let Some(value) = value {
        hash(value, hasher);
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_kept_at_the_bound_and_previewed_above_it_27() {
        let limits = Limits { max_result_bytes: 10, result_preview_max_chars: 4 };
        let mut outcome = Outcome::default();
        outcome.set_result(Json::parse(r#""12345678""#).unwrap(), &limits);
        assert_eq!((outcome.result_truncated, outcome.result_preview), (false, None));

        let mut outcome = Outcome::default();
        outcome.set_result(Json::parse(r#""123456789""#).unwrap(), &limits);
        assert_eq!(outcome.result, None);
        assert!(outcome.result_truncated);
        assert_eq!(outcome.result_preview.as_deref(), Some("1234"), "the string's own characters, without its quote");

        let mut outcome = Outcome::default();
        outcome.set_result(Json::parse(r#"{"key":"value"}"#).unwrap(), &limits);
        assert_eq!(outcome.result_preview.as_deref(), Some("{\"ke"), "the JSON text where it is no string");
    }

    #[test]
    fn a_hint_is_no_change_and_a_payload_is() {
        let plain = Snapshot::bare(Status::Working);
        let hinted = Snapshot { hint: Some(Duration::from_secs(9)), ..plain.clone() };
        assert_eq!(plain.digest(), hinted.digest());
        let mut other = plain.clone();
        other.outcome.result = Some(Json::parse("1").unwrap());
        assert_ne!(plain.digest(), other.digest());
    }
}
