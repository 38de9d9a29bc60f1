//! What an answer means for a delivery (BEHAVIOURS 66–68).

use std::time::Duration;

use http::StatusCode;
use mcp_taskd_core::clock::Millis;
use mcp_taskd_core::store::{Delivery, DeliveryState, Settlement};
use mcp_taskd_core::task::Policy;
use mcp_taskd_core::task::limits::{ERROR_MAX_CHARS, clip};
use mcp_taskd_core::task::schedule::Chance;

/// Counted failures after which a delivery is given up (29, 68).
const BUDGET: i64 = 5;
/// Pauses grow eightfold with each counted failure, up to this: the five attempts are spread over most of an hour, so that a
/// restart of the receiver costs nobody an event.
const LONGEST_PAUSE_MS: i64 = 3_600_000;
const EIGHTFOLD: i64 = 3;

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// A response.
    Status {
        /// Its code.
        status: StatusCode,
        /// When to come back.
        retry_after: Option<Duration>,
        /// The beginning of its body; nothing of a success.
        said: String,
    },
    /// None; why.
    Failed(String),
}

/// How an attempt ended, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The sink has it.
    Delivered,
    /// It counts against the budget.
    Failed,
    /// The sink is there and busy with this thread; that does not count.
    Busy,
    /// The sink asks for fewer; that does not count.
    Throttled,
    /// The sink wants no such message.
    Gone,
    /// It was not made, or its end not written: somebody else has the delivery, or the store does not answer.
    Stale,
}

impl Outcome {
    pub(super) const ALL: [Self; 6] =
        [Self::Delivered, Self::Failed, Self::Busy, Self::Throttled, Self::Gone, Self::Stale];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Failed => "failed",
            Self::Busy => "busy",
            Self::Throttled => "throttled",
            Self::Gone => "gone",
            Self::Stale => "stale",
        }
    }

    /// Whether the sink did what a sink does.
    pub(super) const fn is_answered(self) -> bool {
        matches!(self, Self::Delivered | Self::Busy | Self::Gone)
    }
}

/// What an answer is. 404 and 410 say that the receiver is gone; a conflict, and whoever says when to come back, is there and
/// busy.
pub(super) fn judge(answer: &Answer) -> Outcome {
    match answer {
        Answer::Failed(_) => Outcome::Failed,
        Answer::Status { status, .. } if status.is_success() => Outcome::Delivered,
        Answer::Status { status, retry_after, .. } => match *status {
            StatusCode::NOT_FOUND | StatusCode::GONE => Outcome::Gone,
            StatusCode::CONFLICT => Outcome::Busy,
            StatusCode::TOO_MANY_REQUESTS => Outcome::Throttled,
            StatusCode::SERVICE_UNAVAILABLE if retry_after.is_some() => Outcome::Throttled,
            _ => Outcome::Failed,
        },
    }
}

/// What is written of an attempt that ended at `now`.
pub(super) fn settle(
    delivery: &Delivery,
    answer: &Answer,
    now: Millis,
    interval_ms: i64,
    chance: Chance,
) -> Settlement {
    let pauses = Policy { poll_interval_ms: interval_ms, max_backoff_ms: LONGEST_PAUSE_MS, ..Policy::default() };
    let (retry_after, error) = match answer {
        Answer::Failed(why) => (None, why.clone()),
        Answer::Status { status, retry_after, said } if said.is_empty() => (*retry_after, format!("HTTP {status}")),
        Answer::Status { status, retry_after, said } => (*retry_after, format!("HTTP {status}: {said}")),
    };
    let failures = delivery.failure_count;
    let (state, failure_count, next_due_at) = match judge(answer) {
        Outcome::Delivered | Outcome::Stale => (DeliveryState::Delivered, failures, now),
        Outcome::Gone => (DeliveryState::DeadLetter, failures + 1, now),
        Outcome::Busy | Outcome::Throttled => {
            (DeliveryState::Pending, failures, pauses.after_error(now, delivery.attempt_count, retry_after, chance))
        }
        Outcome::Failed if failures + 1 >= BUDGET => (DeliveryState::DeadLetter, failures + 1, now),
        Outcome::Failed => {
            let due = pauses.after_error(now, failures.saturating_mul(EIGHTFOLD), retry_after, chance);
            (DeliveryState::Retry, failures + 1, due)
        }
    };
    Settlement {
        task_id: delivery.task_id.clone(),
        sink: delivery.sink.clone(),
        epoch: delivery.lease_epoch,
        sequence: delivery.sequence,
        state,
        attempt_count: delivery.attempt_count + 1,
        failure_count,
        error: (state != DeliveryState::Delivered).then(|| clip(&error, ERROR_MAX_CHARS)),
        next_due_at,
        at: now,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A delivery as it is claimed.
    pub fn delivery() -> Delivery {
        Delivery {
            task_id: "mcp-task-1".into(),
            sink: "hook".into(),
            sequence: 7,
            kind: "completed".into(),
            status: "completed".into(),
            event_at: 1_800_000_000_000,
            state: DeliveryState::Pending,
            attempt_count: 0,
            failure_count: 0,
            last_error: None,
            next_due_at: 0,
            lease_owner: Some("w".into()),
            lease_epoch: 3,
            updated_at: 0,
            ended_at: None,
        }
    }

    fn status(code: u16, retry_after: Option<u64>) -> Answer {
        let status = StatusCode::from_u16(code).unwrap();
        Answer::Status { status, retry_after: retry_after.map(Duration::from_secs), said: "no".into() }
    }

    #[test]
    fn only_success_delivers_gone_is_final_and_busy_does_not_count_67_68() {
        for (code, retry_after, outcome) in [
            (200, None, Outcome::Delivered),
            (204, None, Outcome::Delivered),
            (301, None, Outcome::Failed),
            (400, None, Outcome::Failed),
            (401, None, Outcome::Failed),
            (404, None, Outcome::Gone),
            (410, None, Outcome::Gone),
            (409, None, Outcome::Busy),
            (429, None, Outcome::Throttled),
            (429, Some(5), Outcome::Throttled),
            (503, Some(5), Outcome::Throttled),
            (503, None, Outcome::Failed),
            (500, Some(5), Outcome::Failed),
        ] {
            assert_eq!(judge(&status(code, retry_after)), outcome, "{code} {retry_after:?}");
        }
        assert_eq!(judge(&Answer::Failed("refused".into())), Outcome::Failed);
    }

    #[test]
    fn five_counted_failures_are_a_dead_letter_and_pauses_grow_67_68() {
        let mut row = delivery();
        let mut pauses = Vec::new();
        while row.state != DeliveryState::DeadLetter {
            let settled = settle(&row, &status(500, None), 0, 5_000, Chance::NONE);
            pauses.push(settled.next_due_at);
            assert_eq!(settled.error.as_deref(), Some("HTTP 500 Internal Server Error: no"));
            row.state = settled.state;
            (row.attempt_count, row.failure_count) = (settled.attempt_count, settled.failure_count);
        }
        assert_eq!(pauses, [5_000, 40_000, 320_000, 2_560_000, 0]);
        assert_eq!((row.attempt_count, row.failure_count), (5, 5));
    }

    #[test]
    fn who_is_busy_is_asked_again_at_a_growing_pace_for_ever_68() {
        let mut row = delivery();
        for attempt in 0..100 {
            let settled = settle(&row, &status(409, None), 0, 5_000, Chance::NONE);
            assert_eq!((settled.state, settled.failure_count), (DeliveryState::Pending, 0));
            assert!(settled.next_due_at >= 5_000 && settled.next_due_at <= LONGEST_PAUSE_MS);
            row.attempt_count = settled.attempt_count;
            assert_eq!(row.attempt_count, attempt + 1);
        }
        let told = settle(&delivery(), &status(429, Some(120)), 0, 5_000, Chance::NONE);
        assert_eq!(told.next_due_at, 120_000);
    }

    #[test]
    fn gone_is_a_dead_letter_at_once_and_texts_are_clipped_68_25() {
        let gone = settle(&delivery(), &status(410, None), 9, 5_000, Chance::NONE);
        assert_eq!((gone.state, gone.next_due_at), (DeliveryState::DeadLetter, 9));
        let long = settle(&delivery(), &Answer::Failed("e".repeat(9_000)), 0, 5_000, Chance::NONE);
        assert_eq!(long.error.unwrap().chars().count(), ERROR_MAX_CHARS);
        let done = settle(&delivery(), &status(200, None), 9, 5_000, Chance::NONE);
        assert_eq!((done.state, done.error, done.attempt_count), (DeliveryState::Delivered, None, 1));
    }
}
