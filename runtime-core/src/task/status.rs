//! The states of a task.

use serde::{Deserialize, Serialize};

/// The state of a task as its user sees it (INTERFACE, REST; BEHAVIOURS 75).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The intent is durable; the submit tool has not been answered yet.
    Submitting,
    /// The server accepted the work; it has not been polled yet.
    Submitted,
    /// The server says `running`.
    Working,
    /// The server waits for input.
    InputRequired,
    /// Finished with a result.
    Completed,
    /// Finished without one.
    Failed,
    /// Finished by a cancel.
    Cancelled,
}

impl Status {
    /// Every status, in the order of a task's life.
    pub const ALL: [Self; 7] = [
        Self::Submitting,
        Self::Submitted,
        Self::Working,
        Self::InputRequired,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    /// The name used in the store, the API and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submitting => "submitting",
            Self::Submitted => "submitted",
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the task has ended; a terminal status never changes.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A status this binary does not know; a newer one may have written it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown task status {0:?}")]
pub struct ParseStatusError(pub String);

impl std::str::FromStr for Status {
    type Err = ParseStatusError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|status| status.as_str() == text).ok_or_else(|| ParseStatusError(limited(text)))
    }
}

fn limited(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused_75() {
        for status in Status::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
        }
        assert!("Completed".parse::<Status>().is_err());
    }
}
