//! Ids of traces and spans: random, but those of a task's submit, which everybody can tell from the task's id.

use std::cell::Cell;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use sha2::{Digest as _, Sha256};

thread_local! {
    /// The ids of the span that is being started on this thread.
    static CHOSEN: Cell<Option<(TraceId, SpanId)>> = const { Cell::new(None) };
}

/// Random ids, unless [`with_ids_of`] chooses others.
#[derive(Debug, Default)]
pub(super) struct Ids(RandomIdGenerator);

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        CHOSEN.get().map_or_else(|| self.0.new_trace_id(), |(trace, _)| trace)
    }

    fn new_span_id(&self) -> SpanId {
        CHOSEN.get().map_or_else(|| self.0.new_span_id(), |(_, span)| span)
    }
}

/// The context of the submit of a task, whichever process made the call and however long ago.
pub(super) fn submit_of(task_id: &str) -> SpanContext {
    let digest = Sha256::digest(task_id);
    let mut trace = [0; 16];
    let mut span = [0; 8];
    trace.copy_from_slice(&digest[..16]);
    span.copy_from_slice(&digest[16..24]);
    let (trace, span) = (TraceId::from_bytes(trace), SpanId::from_bytes(span));
    SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::NONE)
}

/// Starts a span under the ids of a task's submit.
pub(super) fn with_ids_of<T>(submit: &SpanContext, start: impl FnOnce() -> T) -> T {
    CHOSEN.set(Some((submit.trace_id(), submit.span_id())));
    let started = start();
    CHOSEN.set(None);
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submits_ids_follow_from_its_task_and_all_others_are_random() {
        let ids = Ids::default();
        let submit = submit_of("mcp-task-1");
        assert!(submit.is_valid());
        assert_eq!(submit_of("mcp-task-1"), submit);
        assert_ne!(submit_of("mcp-task-2").trace_id(), submit.trace_id());
        let chosen = with_ids_of(&submit, || (ids.new_trace_id(), ids.new_span_id()));
        assert_eq!(chosen, (submit.trace_id(), submit.span_id()));
        assert_ne!(ids.new_trace_id(), submit.trace_id());
    }
}
