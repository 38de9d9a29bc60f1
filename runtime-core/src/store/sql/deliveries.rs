//! Deliveries of events to sinks.

use async_trait::async_trait;

use super::engine::{Lane, SqlRow, Value};
use super::rows::{self, Cells};
use super::statements::Sql;
use super::{SqlStore, input};
use crate::store::{
    Backlog, Deliveries, Delivery, DeliveryOrder, DeliveryState, EnrolTimes, Enrolment, EventRecord, FAR_AHEAD_MS,
    Mending, Result, Settlement, StoreError, StoreErrorKind, WorkerId, bounds,
};

#[async_trait]
impl Deliveries for SqlStore {
    async fn open_sink(&self, sink: &str) -> Result<i64> {
        if let Some(position) = self.sink_position(sink).await? {
            return Ok(position);
        }
        self.engine.fetch(Lane::Write, Sql::OpenSink, &[sink.into()]).await?;
        let position = self.sink_position(sink).await?;
        position.ok_or_else(|| StoreError::new(StoreErrorKind::Unknown, "open_sink", "no answer"))
    }

    async fn events_between(&self, after: i64, before: i64, limit: u32) -> Result<Vec<EventRecord>> {
        let values = [after.into(), before.into(), limit.into()];
        let rows = self.engine.fetch(Lane::Read, Sql::EventsBetween, &values).await?;
        // One that cannot be decoded is a gap to its reader, who does not stop there (FAILURES 27).
        Ok(rows::readable(&rows, rows::event))
    }

    async fn enrol(&self, sink: &str, events: &[Enrolment], times: EnrolTimes, position: i64) -> Result<u64> {
        let changed = self.write_enrolments(sink, events, times).await?;
        // Only now: whoever dies in between leaves events that are enrolled once more, which is nothing.
        self.engine.fetch(Lane::Write, Sql::MoveSink, &[sink.into(), position.into()]).await?;
        Ok(changed)
    }

    async fn replay(&self, sink: &str, events: &[Enrolment], times: EnrolTimes) -> Result<u64> {
        if events.is_empty() {
            return Ok(0);
        }
        // First what is new, which then has not ended and is not counted twice.
        let enrolled = self.write_enrolments(sink, events, times).await?;
        let tasks = input::texts(&events.iter().map(|event| &event.task_id).collect::<Vec<_>>());
        let values = [sink.into(), (&tasks).into(), times.at.into()];
        Ok(enrolled + self.engine.fetch(Lane::Write, Sql::Revive, &values).await?.len() as u64)
    }

    async fn claim_deliveries(&self, order: &DeliveryOrder) -> Result<Vec<Delivery>> {
        let values = [(&order.worker).into(), (&order.sink).into(), order.due_before.into(), order.limit.into()];
        let rows = self.engine.fetch(Lane::Write, Sql::ClaimDeliveries, &values).await?;
        let mut claimed = rows::readable(&rows, delivery);
        claimed.sort_by(|a, b| (a.next_due_at, &a.task_id).cmp(&(b.next_due_at, &b.task_id)));
        Ok(claimed)
    }

    async fn settle_delivery(&self, worker: &WorkerId, settlement: &Settlement) -> Result<Option<DeliveryState>> {
        bounds::check_settlement(settlement)?;
        let values: [Value<'_>; 11] = [
            worker.into(),
            (&settlement.task_id).into(),
            (&settlement.sink).into(),
            settlement.epoch.into(),
            settlement.sequence.into(),
            settlement.state.as_str().into(),
            settlement.attempt_count.into(),
            settlement.failure_count.into(),
            settlement.error.as_deref().into(),
            settlement.next_due_at.into(),
            settlement.at.into(),
        ];
        let row = self.engine.fetch_one(Lane::Write, Sql::SettleDelivery, &values).await?;
        row.map(|row| state(&Cells::new(&row, "event_deliveries", "state"))).transpose()
    }

    async fn mend_deliveries(&self, mending: &Mending) -> Result<u64> {
        let keep = input::texts(&mending.keep);
        let values: [Value<'_>; 5] =
            [(&mending.worker).into(), (&mending.sink).into(), (&keep).into(), mending.at.into(), FAR_AHEAD_MS.into()];
        Ok(self.engine.fetch(Lane::Write, Sql::MendDeliveries, &values).await?.len() as u64)
    }

    async fn deliveries_of(&self, task_id: &str) -> Result<Vec<Delivery>> {
        if bounds::unstorable([Some(task_id)]) {
            return Ok(Vec::new());
        }
        let rows = self.engine.fetch(Lane::Read, Sql::DeliveriesOf, &[task_id.into()]).await?;
        Ok(rows::readable(&rows, delivery))
    }

    async fn backlog(&self, sinks: &[String], cap: i64) -> Result<Vec<Backlog>> {
        let sinks = input::texts(sinks);
        let rows = self.engine.fetch(Lane::Read, Sql::CountDeliveries, &[(&sinks).into(), cap.into()]).await?;
        let backlog = |row| {
            let cells = Cells::new(row, "event_deliveries", "label");
            Ok(Backlog {
                sink: cells.text("label")?,
                pending: cells.int("total")?,
                oldest_at: cells.find_int("oldest")?,
            })
        };
        rows.iter().map(backlog).collect()
    }
}

impl SqlStore {
    async fn sink_position(&self, sink: &str) -> Result<Option<i64>> {
        // By the writer's connections: it is read back just after it was made.
        let row = self.engine.fetch_one(Lane::Write, Sql::SinkPosition, &[sink.into()]).await?;
        row.map(|row| Cells::new(&row, "event_sinks", "name").int("position")).transpose()
    }

    async fn write_enrolments(&self, sink: &str, events: &[Enrolment], times: EnrolTimes) -> Result<u64> {
        if events.is_empty() {
            return Ok(0);
        }
        let events = input::json(&events);
        let values = [sink.into(), (&events).into(), times.at.into(), times.soon.into()];
        Ok(self.engine.fetch(Lane::Write, Sql::Enrol, &values).await?.len() as u64)
    }
}

fn delivery(row: &SqlRow) -> Result<Delivery> {
    let cells = Cells::new(row, "event_deliveries", "task_id");
    Ok(Delivery {
        task_id: cells.text("task_id")?.into(),
        sink: cells.text("sink")?,
        sequence: cells.int("sequence")?,
        kind: cells.text("kind")?,
        status: cells.text("status")?,
        event_at: cells.int("event_at")?,
        state: state(&cells)?,
        attempt_count: cells.int("attempt_count")?,
        failure_count: cells.int("failure_count")?,
        last_error: cells.find_text("last_error")?,
        next_due_at: cells.int("next_due_at")?,
        lease_owner: cells.find_text("lease_owner")?.map(Into::into),
        lease_epoch: cells.int("lease_epoch")?,
        updated_at: cells.int("updated_at")?,
        ended_at: cells.find_int("ended_at")?,
    })
}

fn state(cells: &Cells<'_>) -> Result<DeliveryState> {
    let name = cells.text("state")?;
    let known = DeliveryState::ALL.into_iter().find(|state| state.as_str() == name);
    known.ok_or_else(|| StoreError::new(StoreErrorKind::Corrupt, "decode", format!("no delivery is {name:?}")))
}
