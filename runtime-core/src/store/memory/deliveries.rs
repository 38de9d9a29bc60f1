//! Deliveries of events to sinks, in one process.

use std::sync::Arc;

use async_trait::async_trait;

use super::{MemoryStore, Tables};
use crate::store::{
    Backlog, Deliveries, Delivery, DeliveryOrder, DeliveryState, EnrolTimes, Enrolment, EventRecord, FAR_AHEAD_MS,
    Mending, Result, Settlement, WorkerId, bounds,
};

#[async_trait]
impl Deliveries for MemoryStore {
    async fn open_sink(&self, sink: &str) -> Result<i64> {
        let mut state = self.state();
        let newest = state.emitted;
        Ok(*state.sinks.entry(sink.to_owned()).or_insert(newest))
    }

    async fn events_between(&self, after: i64, before: i64, limit: u32) -> Result<Vec<EventRecord>> {
        let state = self.state();
        let between = |event: &&EventRecord| event.sequence > after && event.sequence < before;
        Ok(state.events.iter().filter(between).take(limit as usize).cloned().collect())
    }

    async fn enrol(&self, sink: &str, events: &[Enrolment], times: EnrolTimes, position: i64) -> Result<u64> {
        let mut state = self.state();
        let changed = events.iter().filter(|event| state.enrol(sink, event, times)).count() as u64;
        if let Some(known) = state.sinks.get_mut(sink) {
            *known = position.max(*known);
        }
        Ok(changed)
    }

    async fn replay(&self, sink: &str, events: &[Enrolment], times: EnrolTimes) -> Result<u64> {
        let mut state = self.state();
        let mut made = 0;
        for event in events {
            made += u64::from(state.enrol(sink, event, times));
            let key = (Arc::from(event.task_id.as_str()), sink.to_owned());
            if let Some(ended) = state.deliveries.get_mut(&key).filter(|delivery| delivery.ended_at.is_some()) {
                renew(ended, times.at);
                ended.next_due_at = times.at;
                made += 1;
            }
        }
        Ok(made)
    }

    async fn claim_deliveries(&self, order: &DeliveryOrder) -> Result<Vec<Delivery>> {
        let mut state = self.state();
        if !state.is_live(&order.worker) {
            return Ok(Vec::new());
        }
        let is_due = |delivery: &&mut Delivery| {
            delivery.sink == order.sink
                && delivery.lease_owner.is_none()
                && delivery.ended_at.is_none()
                && delivery.next_due_at <= order.due_before
        };
        let mut due: Vec<_> = state.deliveries.values_mut().filter(is_due).collect();
        due.sort_by(|a, b| (a.next_due_at, &a.task_id).cmp(&(b.next_due_at, &b.task_id)));
        due.truncate(order.limit as usize);
        let take = |delivery: &mut Delivery| {
            delivery.lease_owner = Some(order.worker.clone());
            delivery.lease_epoch += 1;
            delivery.clone()
        };
        Ok(due.into_iter().map(take).collect())
    }

    async fn settle_delivery(&self, worker: &WorkerId, settlement: &Settlement) -> Result<Option<DeliveryState>> {
        bounds::check_settlement(settlement)?;
        let mut state = self.state();
        let key = (settlement.task_id.clone(), settlement.sink.clone());
        let owned = |delivery: &&mut Delivery| {
            delivery.lease_owner.as_ref() == Some(worker) && delivery.lease_epoch == settlement.epoch
        };
        let Some(delivery) = state.deliveries.get_mut(&key).filter(owned) else { return Ok(None) };
        if delivery.sequence > settlement.sequence {
            renew(delivery, settlement.at);
        } else {
            delivery.state = settlement.state;
            delivery.attempt_count = settlement.attempt_count;
            delivery.failure_count = settlement.failure_count;
            delivery.last_error.clone_from(&settlement.error);
            delivery.ended_at = settlement.state.has_ended().then_some(settlement.at);
            delivery.updated_at = settlement.at;
        }
        delivery.next_due_at = settlement.next_due_at;
        free(delivery);
        Ok(Some(delivery.state))
    }

    async fn mend_deliveries(&self, mending: &Mending) -> Result<u64> {
        let Mending { worker, sink, keep, at } = mending;
        let mut mended = 0;
        for delivery in self.state().deliveries.values_mut().filter(|delivery| delivery.sink == *sink) {
            let is_far = delivery.next_due_at > at + FAR_AHEAD_MS;
            let is_lost = delivery.lease_owner.as_ref() == Some(worker) && !keep.contains(&delivery.task_id);
            let is_late = delivery.lease_owner.is_none() && delivery.ended_at.is_none() && is_far;
            if is_lost || is_late {
                free(delivery);
                if is_far {
                    delivery.next_due_at = *at;
                }
                mended += 1;
            }
        }
        Ok(mended)
    }

    async fn deliveries_of(&self, task_id: &str) -> Result<Vec<Delivery>> {
        Ok(self.state().deliveries.values().filter(|delivery| *delivery.task_id == *task_id).cloned().collect())
    }

    async fn backlog(&self, sinks: &[String], cap: i64) -> Result<Vec<Backlog>> {
        let state = self.state();
        let backlog = |sink: &String| {
            let open = || state.deliveries.values().filter(|it| it.sink == *sink && it.ended_at.is_none());
            Backlog {
                sink: sink.clone(),
                pending: (open().count() as i64).min(cap),
                oldest_at: open().map(|delivery| delivery.event_at).min(),
            }
        };
        Ok(sinks.iter().map(backlog).collect())
    }
}

impl Tables {
    fn enrol(&mut self, sink: &str, event: &Enrolment, times: EnrolTimes) -> bool {
        let Some((task_id, _)) = self.tasks.get_key_value(event.task_id.as_str()) else { return false };
        let key = (Arc::clone(task_id), sink.to_owned());
        match self.deliveries.get_mut(&key) {
            Some(known) if known.sequence >= event.sequence => return false,
            Some(known) => {
                let due = if known.ended_at.is_some() { times.at } else { known.next_due_at.min(times.soon) };
                known.sequence = event.sequence;
                known.kind.clone_from(&event.kind);
                known.status.clone_from(&event.status);
                known.event_at = event.event_at;
                known.next_due_at = due;
                renew(known, times.at);
            }
            None => {
                let delivery = Delivery {
                    task_id: Arc::clone(&key.0),
                    sink: sink.to_owned(),
                    sequence: event.sequence,
                    kind: event.kind.clone(),
                    status: event.status.clone(),
                    event_at: event.event_at,
                    state: DeliveryState::Pending,
                    attempt_count: 0,
                    failure_count: 0,
                    last_error: None,
                    next_due_at: times.at,
                    lease_owner: None,
                    lease_epoch: 0,
                    updated_at: times.at,
                    ended_at: None,
                };
                self.deliveries.insert(key, delivery);
            }
        }
        true
    }
}

/// Pending, with a fresh budget.
fn renew(delivery: &mut Delivery, at: i64) {
    delivery.state = DeliveryState::Pending;
    delivery.attempt_count = 0;
    delivery.failure_count = 0;
    delivery.last_error = None;
    delivery.ended_at = None;
    delivery.updated_at = at;
}

fn free(delivery: &mut Delivery) {
    delivery.lease_owner = None;
    delivery.lease_epoch += 1;
}
