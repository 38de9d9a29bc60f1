//! The events a task emits (BEHAVIOURS I, 153).

use sha2::{Digest as _, Sha256};

use super::Status;

/// What an event says happened (153).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The task took this status, or asks for another input.
    Status(Status),
    /// As many errors in a row as the threshold says.
    TrackingDegraded,
    /// The first applied answer after that.
    TrackingRecovered,
}

impl EventKind {
    /// Every kind there is: no task emits anything before it is submitted.
    pub const ALL: [Self; 8] = [
        Self::Status(Status::Submitted),
        Self::Status(Status::Working),
        Self::Status(Status::InputRequired),
        Self::Status(Status::Completed),
        Self::Status(Status::Failed),
        Self::Status(Status::Cancelled),
        Self::TrackingDegraded,
        Self::TrackingRecovered,
    ];

    /// The name used in `task_events.kind`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Status(status) => status.as_str(),
            Self::TrackingDegraded => "tracking_degraded",
            Self::TrackingRecovered => "tracking_recovered",
        }
    }
}

/// The identity of what a subscriber would be told (64): the same fingerprint is the same news, whoever polled.
///
/// It takes the degraded flag, not the changing text of poll errors (153).
pub fn fingerprint(task_id: &str, task_name: &str, status: Status, digest: &str, degraded: bool) -> String {
    let mut hasher = Sha256::new();
    for part in [task_id, task_name, status.as_str(), digest, if degraded { "degraded" } else { "" }] {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    super::snapshot::hex(&hasher.finalize())
}
