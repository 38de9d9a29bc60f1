//! Why there is no token, and what is said of it.

use std::time::Duration;

use crate::upstream::{CallError, CallErrorKind};

/// What somebody can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// The endpoint did not answer, or cannot just now.
    Unreachable,
    /// It refused the client.
    Refused,
    /// It refused the refresh token.
    InvalidGrant,
    /// It answered what is no token.
    Unusable,
    /// The chain cannot be read or written.
    Unkept,
}

impl Reason {
    /// Every reason.
    pub(super) const ALL: [Self; 5] =
        [Self::Unreachable, Self::Refused, Self::InvalidGrant, Self::Unusable, Self::Unkept];

    /// The metric label.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::InvalidGrant => "invalid_grant",
            Self::Unusable => "unusable",
            Self::Unkept => "store",
        }
    }
}

/// A refresh that brought no token. The message names no server yet, and quotes no token.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) reason: Reason,
    pub(super) message: String,
    /// The endpoint's `Retry-After`.
    pub(super) retry_after: Option<Duration>,
    /// Whether the request may have used the refresh token up though no answer came.
    pub(super) lost: bool,
    /// What the store said, for the log.
    pub(super) detail: Option<String>,
}

impl Failure {
    pub(super) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), retry_after: None, lost: false, detail: None }
    }

    /// What a caller is told: whatever it wanted was not sent.
    pub(super) fn error(&self, server: &str) -> CallError {
        CallError::new(CallErrorKind::Auth, format!("OAuth for the server {server:?}: {}", self.message))
    }
}

impl From<super::chain::Unkept> for Failure {
    fn from(error: super::chain::Unkept) -> Self {
        let message = "its stored tokens cannot be read or written, so that they were not refreshed";
        Self { detail: Some(error.0), ..Self::new(Reason::Unkept, message) }
    }
}
