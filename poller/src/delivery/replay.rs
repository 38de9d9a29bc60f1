//! Delivering again: from a place in the order of events, or a task's.

use mcp_taskd_core::clock::Millis;
use mcp_taskd_core::store::{EnrolTimes, StoreError, TaskFilter};

use super::Subscribers;
use super::courier::newest;

/// Events that one call looks at.
const PAGE: u32 = 1_000;

/// What is to be delivered again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Order {
    /// To whom.
    pub sink: String,
    /// From this event on.
    pub from: i64,
    /// Up to this one.
    pub to: Option<i64>,
    /// Only of this task.
    pub task_id: Option<String>,
    /// Only of this user's tasks.
    pub user_id: Option<String>,
    /// Only of tasks in this thread.
    pub thread_id: Option<String>,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replayed {
    /// Deliveries that are due now.
    pub deliveries: u64,
    /// From where there is more to do.
    pub next: Option<i64>,
}

/// Why nothing is delivered again.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// No such sink.
    #[error("there is no webhook {sink:?}; configured are {known}")]
    UnknownSink {
        /// What was asked for.
        sink: String,
        /// What there is.
        known: String,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Subscribers {
    /// Makes one delivery a task due, about its newest event, where the sink is to hear of an event of it that was asked for.
    /// One call looks at a bounded number of events; `next` says where the next one begins.
    pub async fn replay(&self, order: &Order, now: Millis) -> Result<Replayed, ReplayError> {
        let Some(sink) = self.sinks.iter().find(|sink| sink.name == order.sink) else {
            let known = self.sinks.iter().map(|sink| sink.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(ReplayError::UnknownSink { sink: order.sink.clone(), known });
        };
        let filter = TaskFilter {
            user_id: order.user_id.clone(),
            thread_id: order.thread_id.clone(),
            named: order.task_id.clone(),
            ..TaskFilter::default()
        };
        let events = self.store.list_events(order.from.saturating_sub(1), &filter, PAGE).await?;
        let is_asked_for = |sequence| order.to.is_none_or(|to| sequence <= to);
        let next = events.last().filter(|last| events.len() >= PAGE as usize && is_asked_for(last.sequence + 1));
        let wanted = events.iter().filter(|event| is_asked_for(event.sequence) && sink.wants(event));
        let times = EnrolTimes { at: now, soon: now };
        let deliveries = self.deliveries.replay(&sink.name, &newest(wanted), times).await?;
        Ok(Replayed { deliveries, next: next.map(|last| last.sequence + 1) })
    }
}
