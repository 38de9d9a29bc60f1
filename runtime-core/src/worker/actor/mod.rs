//! The actor: the only one that takes, holds and gives back tasks.

mod calls;
mod claims;
mod drain;
mod fleet;
mod writes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::balance::Balance;
use super::held::{HeldSet, Phase};
use super::job::{Job, chance};
use super::lanes::{Lanes, Slot};
use super::message::Message;
use super::queue::Order;
use super::room::Crowd;
use super::takeover::Fleet;
use super::{Context, Incarnation, Live, takeover, wakeups, writer};
use crate::task::Tracked;
use drain::Drain;

/// A call that runs.
#[derive(Debug)]
struct Running {
    task: Arc<str>,
    server: Box<str>,
    slot: Slot,
    kind: Job,
    /// Whether it probes a server whose calls are held back.
    probe: bool,
    abort: AbortHandle,
}

/// The worker's state.
pub(super) struct Actor {
    context: Arc<Context>,
    worker: Option<Arc<Incarnation>>,
    messages: mpsc::UnboundedSender<Message>,
    inbox: mpsc::UnboundedReceiver<Message>,
    orders: mpsc::UnboundedSender<Order>,
    writer: Option<mpsc::UnboundedReceiver<Order>>,
    held: HeldSet,
    lanes: Lanes,
    running: BTreeMap<u64, Running>,
    heartbeat: Option<AbortHandle>,
    /// Whether a registration is under way.
    registering: bool,
    /// Numbers jobs and writes.
    serial: u64,
    /// Numbers questions to the store.
    questions: u64,
    asked: Option<Instant>,
    want_claim: bool,
    /// When a claim that asks for each server apart looks for tasks of other servers too.
    next_strangers: Instant,
    crowd: Crowd,
    want_reconcile: bool,
    to_load: Vec<Arc<str>>,
    next_tick: Instant,
    fleet: Fleet,
    balance: Balance,
    /// Let go of for other workers, and not written yet.
    leaving: Vec<Arc<str>>,
    published: i64,
    drain: Option<Drain>,
}
impl Actor {
    pub(super) fn new(
        context: Arc<Context>,
        worker: Arc<Incarnation>,
        messages: mpsc::UnboundedSender<Message>,
        inbox: mpsc::UnboundedReceiver<Message>,
    ) -> Self {
        let (orders, writer) = mpsc::unbounded_channel();
        let bounds: Vec<_> = context
            .routes
            .names()
            .filter_map(|name| Some((Box::from(name), context.routes.find(name)?.max_concurrent_calls)))
            .collect();
        let polls = context.options.max_concurrent_polls;
        if bounds.len() > polls {
            tracing::warn!(
                servers = bounds.len(),
                "mcp_tasks.max_concurrent_polls is {polls}: fewer than the servers with task toolsets, so not every \
                 server has a slot of its own, and those that hang can delay the others"
            );
        }
        let lanes = Lanes::new(bounds, polls);
        Self {
            worker: Some(worker),
            messages,
            inbox,
            orders,
            writer: Some(writer),
            held: HeldSet::default(),
            lanes,
            running: BTreeMap::new(),
            heartbeat: None,
            registering: false,
            serial: 0,
            questions: 0,
            asked: None,
            want_claim: true,
            next_strangers: Instant::now(),
            crowd: Crowd::default(),
            want_reconcile: false,
            to_load: Vec::new(),
            next_tick: Instant::now(),
            fleet: Fleet { polling: 1, ..Fleet::default() },
            balance: Balance::default(),
            leaving: Vec::new(),
            published: 0,
            drain: None,
            context,
        }
    }

    /// Runs until a drain is over.
    pub(super) async fn run(mut self) {
        if let Some(orders) = self.writer.take() {
            self.context.tasks.spawn(writer::run(Arc::clone(&self.context), orders, self.messages.clone()));
        }
        let takeover = self.context.tasks.spawn(takeover::run(Arc::clone(&self.context), self.messages.clone()));
        let wakeups = self.context.tasks.spawn(wakeups::run(Arc::clone(&self.context), self.messages.clone()));
        self.start_heartbeat();
        loop {
            self.context.beat_ms.store(self.context.boot().as_millis() as i64, Ordering::Relaxed);
            if Instant::now() >= self.next_tick {
                self.tick();
            }
            self.dispatch();
            self.ask();
            if self.drained() {
                break;
            }
            let wake_at = self.wake_at();
            tokio::select! {
                biased;
                // Messages cannot starve the clock: every round looks at it before it comes here.
                message = self.inbox.recv() => {
                    if let Some(message) = message {
                        self.handle(message);
                    }
                    // What has gathered is handled before the next look at the clock.
                    while let Ok(message) = self.inbox.try_recv() {
                        self.handle(message);
                    }
                }
                () = tokio::time::sleep_until(wake_at) => {}
            }
        }
        takeover.abort();
        wakeups.abort();
        self.retire().await;
    }

    fn wake_at(&self) -> Instant {
        let due = self.held.next_due().filter(|_| self.may_call()).map(|due| {
            let wait = due.saturating_sub(self.context.now()).clamp(0, 1_000);
            Instant::now() + Duration::from_millis(wait.unsigned_abs())
        });
        due.map_or(self.next_tick, |due| due.min(self.next_tick))
    }

    /// At most a second apart, jittered (FAILURES 9).
    fn tick(&mut self) {
        self.next_tick = Instant::now() + Duration::from_millis(800 + fastrand::u64(..200));
        self.want_claim = true;
        self.pull_in();
        // Counters can wait while a dead worker's tasks are taken over; those cannot.
        if !self.crowd.polls {
            self.touch();
        }
        self.balance();
        self.publish();
        self.observe();
    }

    /// What is due far off is given back, not held: where something held waits longer still, the store's clock was ahead when
    /// it was polled (FAILURES 6). It is due within an interval.
    fn pull_in(&mut self) {
        let latest = self.context.now() + 3 * self.horizon();
        let far = |id: &&Arc<str>| self.held.get(id).is_some_and(|held| held.task.next_due_at > latest);
        let far: Vec<_> = self.held.latest().take_while(far).cloned().collect();
        if far.is_empty() {
            return;
        }
        tracing::warn!(tasks = far.len(), "tasks are due later than can be; the store's clock has jumped");
        for id in far {
            self.held.stop_timer(&id);
            let due = self.context.now() + chance().of(self.context.policy.poll_interval_ms);
            if let Some(held) = self.held.get_mut(&id) {
                Arc::make_mut(&mut held.task).next_due_at = due;
            }
            self.held.wait(&id);
        }
    }

    /// Whether calls may be made and decisions written: the lease is certain, and no drain has begun.
    fn may_call(&self) -> bool {
        self.worker.is_some() && !self.fenced() && self.drain.is_none()
    }

    /// The lease counts from when its last successful heartbeat was sent, on a clock that runs during suspend.
    fn fenced(&self) -> bool {
        self.context.boot() >= self.context.renewed() + self.context.options.lease
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Finished { job, done, took } => self.finished(job, *done, took),
            Message::Written { order, result } => self.written(*order, result),
            Message::Answer { question, answer } => self.answered(question, answer),
            // A handle may have been recorded under the id of a former incarnation, whose rows are for whoever claims them.
            Message::Adopt(owner, task) => {
                if self.worker.as_ref().is_some_and(|own| own.id == owner) {
                    self.adopt(*task);
                }
            }
            Message::Forget(id, epoch) => {
                // A repeated request finds the row as the first one left it, and changes nothing (58).
                if self.held.get(&id).is_none_or(|held| held.task.lease_epoch < epoch) {
                    self.drop_held(&id);
                    self.want_claim = true;
                }
            }
            Message::Wake => self.want_claim = true,
            Message::Reconcile => self.want_reconcile = true,
            Message::Peek(id, reply) => {
                let live = self.held.get(&id).map(|held| Live {
                    last_polled_at: held.task.last_polled_at,
                    next_due_at: held.task.next_due_at,
                    poll_attempt_count: held.task.poll_attempt_count,
                });
                let _ = reply.send(live);
            }
            Message::Renewed => self.renewed(),
            Message::Refused(worker) => self.reborn(&worker),
            Message::Reborn(incarnation) => self.registered(incarnation),
            Message::Fleet(fleet) => {
                self.context.fleet.store(fleet.polling, Ordering::Relaxed);
                self.fleet = fleet;
            }
            Message::Drain { grace, reply } => self.begin_drain(grace, reply),
        }
    }

    /// How many the room is shared among.
    fn sharers(&self) -> usize {
        self.context.routes.len() + usize::from(!self.context.routes.connections().is_empty())
    }

    /// Takes a task that this process submitted; without room for it, it waits in the store (FAILURES 42).
    fn adopt(&mut self, task: Tracked) {
        let has_room = self.room().has_for(self.held.of_server(&task.binding.server_name), self.sharers());
        let id = Arc::clone(&task.id);
        self.hold(task);
        if !has_room && self.held.get(&id).is_some_and(|held| matches!(held.phase, Phase::Waiting)) {
            self.release(&id);
        }
    }

    /// Takes a task that this worker owns.
    fn hold(&mut self, task: Tracked) {
        let known = self.held.get(&task.id).map(|held| held.task.lease_epoch);
        if known.is_some_and(|epoch| epoch >= task.lease_epoch) || task.status.is_terminal() {
            return;
        }
        self.drop_held(&task.id);
        let id = Arc::clone(&task.id);
        self.held.insert(task, self.questions);
        if self.drain.is_some() {
            self.release(&id);
        }
    }

    /// Lets go of a task that is another's by now.
    fn lose(&mut self, id: &Arc<str>, reason: &str) {
        if self.drop_held(id) {
            self.context.metrics.leases_lost.with_label_values(&[reason]).inc();
        }
    }

    /// Stops everything about a held task.
    fn drop_held(&mut self, id: &Arc<str>) -> bool {
        let Some(held) = self.held.remove(id) else { return false };
        match held.phase {
            Phase::Queued(slot) => {
                self.lanes.remove(&held.task.binding.server_name, slot, held.task.next_due_at, id);
            }
            Phase::Running(job) => self.abort(job),
            Phase::Waiting | Phase::Writing(_) | Phase::Parked(_) => {}
        }
        true
    }

    fn abort(&mut self, job: u64) {
        if let Some(running) = self.running.remove(&job) {
            running.abort.abort();
            self.lanes.finish(&running.server, running.slot);
            if running.probe {
                self.lanes.breaker(&running.server).abandoned();
            }
        }
    }
}
