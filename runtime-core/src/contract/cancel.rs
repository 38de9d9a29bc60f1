//! What a cancel tool's answer means (BEHAVIOURS 19–21, 132).

use super::ToolAnswer;
use super::status::{StatusReading, read, terminal};
use crate::task::transition::code;
use crate::task::{Failure, FailureKind, Limits, Snapshot};

/// What became of a cancel.
#[derive(Debug, Clone, PartialEq)]
pub enum CancelReading {
    /// The terminal state that the task really has.
    Ended(Box<Snapshot>),
    /// The server has taken the cancel and the task has not ended yet: it is asked on, as one that is being cancelled. Only
    /// native tasks have this; what they said until then is this.
    Taken(Box<Snapshot>),
    /// Anything else: the cancel is tried again (20).
    Failure(Failure),
}

/// Reads the answer of the cancel tool `tool` about the task `remote_id`.
pub fn read_cancel(answer: &ToolAnswer, tool: &str, remote_id: &str, limits: &Limits) -> CancelReading {
    match read(answer, tool, remote_id, limits, terminal) {
        StatusReading::Failure(failure) => CancelReading::Failure(failure),
        // A cancel's broken answer says nothing about the task; only status can end one for that.
        StatusReading::Snapshot(snapshot)
            if snapshot.outcome.error_code.as_deref() == Some(code::CONTRACT_VIOLATION) =>
        {
            let why = snapshot.outcome.error.unwrap_or_default();
            CancelReading::Failure(Failure::new(FailureKind::Protocol, why))
        }
        StatusReading::Snapshot(snapshot) => CancelReading::Ended(snapshot),
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer::answer;
    use super::*;
    use crate::task::Status;

    fn cancel(text: &str) -> CancelReading {
        read_cancel(&answer(text), "cancel_it", "r-1", &Limits::default())
    }

    #[test]
    fn the_actual_end_is_kept_19() {
        let CancelReading::Ended(snapshot) =
            cancel(r#"{"structuredContent":{"task_id":"r-1","status":"completed","result":[1]}}"#)
        else {
            panic!("expected an end");
        };
        assert_eq!((snapshot.status, snapshot.outcome.result.unwrap().as_str()), (Status::Completed, "[1]"));
    }

    #[test]
    fn anything_else_is_tried_again_20() {
        for text in [
            r#"{"structuredContent":{"task_id":"r-1","status":"running"}}"#,
            r#"{"structuredContent":{"task_id":"r-2","status":"cancelled"}}"#,
            r#"{"structuredContent":{"task_id":"r-1"}}"#,
            r#"{"isError":true,"structuredContent":{"task_id":"r-1","status":"cancelled"}}"#,
            r#"{"content":[]}"#,
        ] {
            assert!(matches!(cancel(text), CancelReading::Failure(_)), "{text}");
        }
    }

    #[test]
    fn a_lost_task_ends_instead_of_being_cancelled_for_ever_132() {
        let CancelReading::Ended(snapshot) =
            cancel(r#"{"structuredContent":{"task_id":"r-1","error_code":"task_not_found"}}"#)
        else {
            panic!("expected an end");
        };
        assert_eq!((snapshot.status, snapshot.outcome.error_code.as_deref()), (Status::Failed, Some("task_not_found")));
    }
}
