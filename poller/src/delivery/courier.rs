//! The loop of one sink: take note of events, claim what is due, post it. It takes nothing from outside but hints, does the
//! same whatever it did before, and what it forgets when it dies is in the store.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::store::{
    DeliveryOrder, DeliveryState, EnrolTimes, Enrolment, EventRecord, Mending, Result, SharedStore, Wakeup, WorkerId,
};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::attempt::{Attempt, Ended};
use super::metrics::Metrics;
use super::pace::Pace;
use super::post::Post;
use super::reader::Reader;
use super::sink::Sink;
use super::verdict::Outcome;
use super::{Options, Subscribers};

/// Events that are read by one statement.
const BATCH: u32 = 500;
/// Between two looks at the store, whatever hints say: many of them become one.
const LEAST_PAUSE: Duration = Duration::from_millis(40);
/// How often what this process owns is compared with what it has under way.
const MEND_EVERY: Duration = Duration::from_secs(10);
/// How often reading begins anew at the place that the store knows: what this process believes to have read may be undone by a
/// failover that lost commits (FAILURES 5).
const REREAD_EVERY: Duration = Duration::from_secs(60);

/// The deliverer of one sink.
pub(super) struct Courier {
    options: Options,
    metrics: Metrics,
    attempt: Attempt,
    reader: Option<Reader>,
    reread_at: Instant,
    mend_at: Instant,
    pace: Pace,
    running: JoinSet<Ended>,
    /// What is under way, by the task that runs it.
    under_way: HashMap<Id, Arc<str>>,
}

impl Courier {
    pub(super) fn new(
        subscribers: &Subscribers,
        sink: &Arc<Sink>,
        options: &Options,
        metrics: &Metrics,
        post: &Arc<dyn Post>,
    ) -> Self {
        let attempt = Attempt {
            // Each claim puts in its own.
            worker: "nobody".into(),
            sink: Arc::clone(sink),
            store: SharedStore::clone(&subscribers.store),
            deliveries: Arc::clone(&subscribers.deliveries),
            post: Arc::clone(post),
            clock: Arc::clone(&options.clock),
            policy: options.policy,
        };
        let now = Instant::now();
        Self {
            options: options.clone(),
            metrics: metrics.clone(),
            attempt,
            reader: None,
            reread_at: now,
            mend_at: now,
            pace: Pace::default(),
            running: JoinSet::new(),
            under_way: HashMap::new(),
        }
    }

    /// Until `stop`; then what is under way is waited for until `give_up`, and given back.
    pub(super) async fn run(mut self, stop: CancellationToken, give_up: CancellationToken) {
        while !stop.is_cancelled() {
            // Before looking, so that nothing falls between.
            let mut wakeups = self.attempt.store.wakeups();
            let more = match (self.options.identity)() {
                None => false,
                Some(worker) => self.go_round(&worker).await.unwrap_or_else(|error| {
                    tracing::warn!(%error, sink = self.attempt.sink.name, "events cannot be delivered just now");
                    false
                }),
            };
            tokio::time::sleep(jittered(LEAST_PAUSE)).await;
            let tick = tokio::time::sleep(jittered(Duration::from_millis(750)));
            tokio::select! {
                () = stop.cancelled() => {}
                () = std::future::ready(()), if more => {}
                Some(ended) = self.running.join_next_with_id(), if !self.running.is_empty() => self.take(ended),
                () = changed(&mut wakeups) => {}
                () = tick => {}
            }
            while let Some(ended) = self.running.try_join_next_with_id() {
                self.take(ended);
            }
        }
        loop {
            tokio::select! {
                ended = self.running.join_next_with_id() => match ended {
                    Some(ended) => self.take(ended),
                    None => break,
                },
                () = give_up.cancelled() => break,
            }
        }
        self.give_back().await;
    }

    /// Whether there is more to do at once.
    async fn go_round(&mut self, worker: &WorkerId) -> Result<bool> {
        if Instant::now() >= self.mend_at {
            self.mend(worker, self.under_way.values().cloned().collect()).await?;
            self.mend_at = Instant::now() + jittered(MEND_EVERY);
        }
        let read_more = self.enrol().await?;
        let room = self.pace.room(self.under_way.len(), Instant::now());
        let claimed_all = room > 0 && self.claim(worker, room).await? == room;
        Ok(read_more || claimed_all)
    }

    /// Takes note of events that are new. What it knows of its place changes only once the store has it.
    async fn enrol(&mut self) -> Result<bool> {
        let Attempt { deliveries, sink, clock, policy, .. } = &self.attempt;
        let (reader, anew) = match self.reader.take_if(|_| Instant::now() < self.reread_at) {
            Some(reader) => (reader, false),
            None => (Reader::at(deliveries.open_sink(&sink.name).await?), true),
        };
        let (mut next, mut heard) = (reader.clone(), Vec::new());
        let events = deliveries.events_between(reader.ahead(), i64::MAX, BATCH).await?;
        for (after, before) in reader.gaps() {
            let late = deliveries.events_between(after, before, BATCH).await?;
            next.fill(after, &late);
            heard.extend(late);
        }
        next.read(&events);
        let now = clock.now_ms();
        next.settle(now);
        let is_full = events.len() >= BATCH as usize;
        heard.extend(events);
        let news = newest(heard.iter().filter(|event| sink.wants(event)));
        // A place that nobody needs yet is not worth a write: it is written with the next news, or before it is read anew.
        if !news.is_empty() || (anew && next.position() > reader.position()) {
            let times = EnrolTimes { at: now, soon: now.saturating_add(policy.poll_interval_ms) };
            deliveries.enrol(&sink.name, &news, times, next.position()).await?;
        }
        if anew {
            self.reread_at = Instant::now() + jittered(REREAD_EVERY);
        }
        self.reader = Some(next);
        Ok(is_full)
    }

    async fn claim(&mut self, worker: &WorkerId, room: usize) -> Result<usize> {
        let order = DeliveryOrder {
            worker: Arc::clone(worker),
            sink: self.attempt.sink.name.clone(),
            due_before: self.options.clock.now_ms(),
            limit: room as u32,
        };
        let claimed = self.attempt.deliveries.claim_deliveries(&order).await.inspect_err(|_| {
            // It may have taken effect all the same.
            self.mend_at = Instant::now() + Duration::from_secs(1);
        })?;
        let count = claimed.len();
        for delivery in claimed {
            let task_id = Arc::clone(&delivery.task_id);
            let attempt = Attempt { worker: Arc::clone(worker), ..self.attempt.clone() };
            let handle = self.running.spawn(attempt.run(delivery));
            self.under_way.insert(handle.id(), task_id);
        }
        Ok(count)
    }

    fn take(&mut self, ended: std::result::Result<(Id, Ended), tokio::task::JoinError>) {
        let sink = &self.attempt.sink.name;
        match ended {
            Ok((id, Ended { task_id, outcome, left, took })) => {
                self.under_way.remove(&id);
                self.metrics.note(sink, outcome, left, took);
                if outcome != Outcome::Stale {
                    self.pace.note(outcome.is_answered(), Instant::now());
                }
                match left {
                    Some(DeliveryState::DeadLetter) => {
                        tracing::warn!(sink, task.id = %task_id, "an event was given up");
                    }
                    None => self.mend_at = self.mend_at.min(Instant::now() + Duration::from_secs(1)),
                    Some(_) => {}
                }
            }
            Err(error) => {
                self.under_way.remove(&error.id());
                tracing::error!(%error, sink, "a delivery failed unexpectedly");
            }
        }
    }

    async fn mend(&self, worker: &WorkerId, keep: Vec<Arc<str>>) -> Result<()> {
        let Attempt { deliveries, sink, clock, .. } = &self.attempt;
        let mending = Mending { worker: Arc::clone(worker), sink: sink.name.clone(), keep, at: clock.now_ms() };
        let mended = deliveries.mend_deliveries(&mending).await?;
        if mended > 0 {
            tracing::info!(sink = sink.name, mended, "deliveries that nobody had under way are free again");
        }
        Ok(())
    }

    /// The worker's deliveries are free for others.
    async fn give_back(mut self) {
        self.running.shutdown().await;
        let Some(worker) = (self.options.identity)() else { return };
        if let Err(error) = self.mend(&worker, Vec::new()).await {
            tracing::warn!(%error, "deliveries cannot be given back");
        }
    }
}

/// Each task's newest event.
pub(super) fn newest<'a>(events: impl IntoIterator<Item = &'a EventRecord>) -> Vec<Enrolment> {
    let mut newest = BTreeMap::<&str, &EventRecord>::new();
    for event in events {
        let known = newest.entry(&event.task_id).or_insert(event);
        if event.sequence > known.sequence {
            *known = event;
        }
    }
    newest.into_values().map(Enrolment::from).collect()
}

/// Waits for a hint that tasks have changed.
async fn changed(wakeups: &mut Receiver<Wakeup>) {
    loop {
        match wakeups.recv().await {
            Ok(Wakeup::Changed) | Err(RecvError::Lagged(_)) => return,
            Ok(Wakeup::Due) => {}
            // The tick has to do.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Up to half as much again: phases differ from replica to replica (FAILURES 9).
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(1.0 + fastrand::f64() / 2.0)
}
