//! The actor: the only one that takes, holds and gives back tasks.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::breaker::Verdict;
use super::held::{Held, HeldSet, Phase};
use super::job::{Done, Effect, Job, chance, held_back};
use super::lanes::{Lanes, Slot};
use super::takeover::Fleet;
use super::writer::{Order, Written};
use super::{Context, Incarnation, Live, heartbeat, takeover, writer};
use crate::clock::Millis;
use crate::store::{ClaimOrder, Owned, Result, TaskWrite, WorkerId};
use crate::task::{Change, ChangeKind, Decision, Failure, FailureKind, Status, Tracked};

/// The most tasks one claim takes.
const CLAIM: u32 = 500;
/// How long an answer of the store is waited for before the question counts as lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// A claim reaches this far ahead at least.
const HORIZON_MS: i64 = 60_000;
/// What a worker above its share still takes: what has been due for so long that nobody else seems to.
const LATE_MS: i64 = 2_000;
/// A fleet this small is not balanced.
const BALANCE_FROM: i64 = 32;

/// What the actor is told.
#[derive(Debug)]
pub(super) enum Message {
    /// A row that this worker owned when it was written.
    Adopt(WorkerId, Box<Tracked>),
    /// A row that was freed by this process, and its epoch since.
    Forget(Arc<str>, i64),
    /// Claim before the next tick.
    Wake,
    /// A write by this process had an outcome that nobody knows: compare what is held with what is owned.
    Reconcile,
    /// What is known of a task?
    Peek(Arc<str>, oneshot::Sender<Option<Live>>),
    /// A call has ended.
    Finished { job: u64, done: Box<Done>, took: Duration },
    /// A write has ended.
    Written { ticket: u64, write: Box<TaskWrite>, result: Written },
    /// The store has answered a question.
    Answer { question: u64, answer: Answer },
    /// The lease is renewed.
    Renewed,
    /// This worker is dead to the store.
    Refused(WorkerId),
    /// A new incarnation is registered.
    Reborn(Result<Arc<Incarnation>>),
    /// The other workers.
    Fleet(Fleet),
    /// Shut down.
    Drain { grace: Duration, reply: oneshot::Sender<()> },
}

/// Answers of the store; one question is open at a time.
#[derive(Debug)]
pub(super) enum Answer {
    Claimed { tasks: Vec<Tracked>, full: bool, failed: bool },
    Owned(Result<Vec<Owned>>),
    Loaded { ids: Vec<Arc<str>>, tasks: Result<Vec<Tracked>> },
}

/// A call that runs.
#[derive(Debug)]
struct Running {
    task: Arc<str>,
    server: Box<str>,
    slot: Slot,
    kind: Job,
    abort: AbortHandle,
}

#[derive(Debug)]
struct Drain {
    replies: Vec<oneshot::Sender<()>>,
    give_up_calls: Instant,
    deadline: Instant,
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
    running: HashMap<u64, Running>,
    heartbeat: Option<AbortHandle>,
    /// Numbers jobs and writes.
    serial: u64,
    /// Numbers questions to the store.
    questions: u64,
    asked: Option<Instant>,
    want_claim: bool,
    want_reconcile: bool,
    to_load: Vec<Arc<str>>,
    next_tick: Instant,
    next_touch: Instant,
    fleet: Fleet,
    /// The others' heartbeats when tasks were last let go for balance.
    balanced_at: HashMap<WorkerId, i64>,
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
        let lanes = Lanes::new(bounds, context.options.max_concurrent_polls);
        let lease = context.options.lease;
        Self {
            worker: Some(worker),
            messages,
            inbox,
            orders,
            writer: Some(writer),
            held: HeldSet::default(),
            lanes,
            running: HashMap::new(),
            heartbeat: None,
            serial: 0,
            questions: 0,
            asked: None,
            want_claim: true,
            want_reconcile: false,
            to_load: Vec::new(),
            next_tick: Instant::now(),
            next_touch: Instant::now() + lease,
            fleet: Fleet { polling: 1, ..Fleet::default() },
            balanced_at: HashMap::new(),
            published: 0,
            drain: None,
            context,
        }
    }

    /// Runs until a drain is over.
    pub(super) async fn run(mut self) {
        if let Some(orders) = self.writer.take() {
            tokio::spawn(writer::run(Arc::clone(&self.context), orders, self.messages.clone()));
        }
        let takeover = tokio::spawn(takeover::run(Arc::clone(&self.context), self.messages.clone()));
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
        if Instant::now() >= self.next_touch {
            self.next_touch = Instant::now() + self.context.options.lease;
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

    // ---- the store's side: claims, reconciling, adoptions; one question at a time ----

    fn ask(&mut self) {
        if let Some(asked) = self.asked {
            if asked.elapsed() < PATIENCE {
                return;
            }
            // Its answer is ignored when it comes; what it did is found by reconciling.
            tracing::warn!("the store has not answered for {PATIENCE:?}");
            self.asked = None;
            self.want_reconcile = true;
        }
        let Some(worker) = self.worker.as_ref().map(|worker| Arc::clone(&worker.id)) else { return };
        if self.fenced() {
            return;
        }
        let store = Arc::clone(&self.context.store);
        if !self.to_load.is_empty() {
            let rest = self.to_load.split_off(self.to_load.len().min(CLAIM as usize));
            let ids = std::mem::replace(&mut self.to_load, rest);
            self.question(async move {
                let tasks = store.load_owned(&worker, &ids).await;
                Answer::Loaded { ids, tasks }
            });
        } else if self.want_reconcile {
            self.want_reconcile = false;
            self.question(async move { Answer::Owned(store.owned(&worker).await) });
        } else if self.want_claim && self.drain.is_none() && self.context.options.polls {
            self.want_claim = false;
            let orders = self.claim_orders(&worker);
            let metrics = self.context.metrics.clone();
            self.question(async move {
                let (mut tasks, mut full, mut failed) = (Vec::new(), false, false);
                for order in orders {
                    match store.claim(&order).await {
                        Ok(claimed) => {
                            metrics.claims.with_label_values(&["ok"]).inc();
                            metrics.claimed_tasks.inc_by(claimed.len() as u64);
                            metrics.rows_written.with_label_values(&["claim"]).inc_by(claimed.len() as u64);
                            full |= claimed.len() >= order.limit as usize;
                            tasks.extend(claimed);
                        }
                        Err(error) => {
                            metrics.claims.with_label_values(&["error"]).inc();
                            tracing::warn!(%error, "claim failed");
                            failed = true;
                        }
                    }
                }
                Answer::Claimed { tasks, full, failed }
            });
        }
    }

    fn question(&mut self, answer: impl Future<Output = Answer> + Send + 'static) {
        self.questions += 1;
        self.asked = Some(Instant::now());
        let (question, messages) = (self.questions, self.messages.clone());
        tokio::spawn(async move {
            let answer = answer.await;
            let _ = messages.send(Message::Answer { question, answer });
        });
    }

    /// Cancels first, even when room is full; then what is due soon, while there is room.
    fn claim_orders(&self, worker: &WorkerId) -> Vec<ClaimOrder> {
        let now = self.context.now();
        let options = &self.context.options;
        let any_server_due_before = now - options.lease.as_millis() as i64;
        let known: Vec<String> = self.context.routes.names().map(str::to_owned).collect();
        let order = |cancels, servers, due_before, limit| ClaimOrder {
            worker: Arc::clone(worker),
            cancels,
            servers,
            known: known.clone(),
            due_before,
            any_server_due_before,
            limit,
        };
        let mut orders = vec![order(true, known.clone(), now, CLAIM)];
        let mut room = options.max_held.saturating_sub(self.held.len());
        if room > 0 {
            // A share each, so that a dead server's tasks cannot fill all room (FAILURES 42). A server whose share is nearly
            // full is asked for apart, so that one claim does not take more than the rest of it.
            let share = (options.max_held / known.len().max(1)).max(1);
            let due_before = if self.above_share(1.0) { now - LATE_MS } else { now + self.horizon() };
            let mut ample = Vec::new();
            for name in &known {
                let left = share.saturating_sub(self.held.of_server(name)).min(room);
                if left >= CLAIM as usize {
                    ample.push(name.clone());
                } else if left > 0 {
                    room -= left;
                    orders.push(order(false, vec![name.clone()], due_before, left as u32));
                }
            }
            let limit = CLAIM.min(u32::try_from(room).unwrap_or(CLAIM)).max(1);
            orders.push(order(false, ample, due_before, limit));
        }
        orders
    }

    fn horizon(&self) -> i64 {
        HORIZON_MS.max(2 * self.context.policy.poll_interval_ms)
    }

    fn answered(&mut self, question: u64, answer: Answer) {
        if question != self.questions || self.asked.take().is_none() {
            // Too late: the question was given up. What a late claim took is found by reconciling.
            self.want_reconcile = true;
            return;
        }
        match answer {
            Answer::Claimed { tasks, full, failed } => {
                self.want_reconcile |= failed;
                self.want_claim |= full;
                tasks.into_iter().for_each(|task| self.hold(task));
            }
            Answer::Owned(Ok(rows)) => self.reconcile(&rows),
            Answer::Loaded { ids, tasks: Ok(tasks) } => {
                for id in ids {
                    let gone = self.held.get(&id).is_some_and(|held| held.since < question)
                        && !tasks.iter().any(|task| task.id == id);
                    if gone {
                        self.lose(&id, "reconcile");
                    }
                }
                tasks.into_iter().for_each(|task| self.hold(task));
            }
            Answer::Owned(Err(error)) | Answer::Loaded { tasks: Err(error), .. } => {
                tracing::warn!(%error, "own rows cannot be read");
                // With the next heartbeat it is tried again.
            }
        }
    }

    /// Brings what is held and what is owned together (DESIGN, Reconcile).
    fn reconcile(&mut self, rows: &[Owned]) {
        let question = self.questions;
        let owned: HashMap<&Arc<str>, i64> = rows.iter().map(|row| (&row.id, row.epoch)).collect();
        let settled = |held: &&Held| held.since < question && !matches!(held.phase, Phase::Writing(_));
        let lost: Vec<_> = self
            .held
            .iter()
            .filter(settled)
            .filter(|held| !owned.contains_key(&held.task.id))
            .map(|held| Arc::clone(&held.task.id))
            .collect();
        for id in lost {
            self.lose(&id, "reconcile");
        }
        let intents = self.context.intents().clone();
        let strangers = rows.iter().filter(|row| match self.held.get(&row.id) {
            Some(held) => settled(&held) && row.epoch > held.task.lease_epoch,
            None => !(row.status == Some(Status::Submitting) && intents.contains(&row.id)),
        });
        self.to_load = strangers.map(|row| Arc::clone(&row.id)).collect();
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
        }
    }

    // ---- calls ----

    fn dispatch(&mut self) {
        if !self.may_call() {
            return;
        }
        let now = self.context.now();
        while let Some(id) = self.held.pop_due(now) {
            let Some(held) = self.held.get_mut(&id) else { continue };
            let slot = if held.task.cancel_requested_at.is_some() { Slot::Cancel } else { Slot::Poll };
            held.phase = Phase::Queued(slot);
            let due = held.task.next_due_at;
            self.lanes.push(&held.task.binding.server_name, slot, due, id);
        }
        for slot in [Slot::Cancel, Slot::Poll] {
            while let Some((server, id)) = self.lanes.take(slot) {
                if !self.start(&server, &id, slot, now) {
                    self.lanes.finish(&server, slot);
                }
            }
        }
    }

    /// Starts the call that a due task needs; whether one runs now.
    fn start(&mut self, server: &str, id: &Arc<str>, slot: Slot, now: Millis) -> bool {
        let Some(worker) = self.worker.as_ref().map(|worker| Arc::clone(&worker.id)) else { return false };
        let Some(held) = self.held.get_mut(id) else { return false };
        let task = Arc::clone(&held.task);
        let kind = Job::of(&task, &self.context);
        let breaker = self.lanes.breaker(server).filter(|_| kind.calls());
        let verdict = breaker.map_or(Verdict::Call, |breaker| breaker.ask(self.context.boot()));
        if let Verdict::Hold(why) = verdict {
            let failure = Failure::new(FailureKind::Breaker, why);
            self.count_failure(server, kind, &failure);
            let change = kind.failed(&self.context, &task, &failure);
            self.write(id, change);
            return false;
        }
        if kind == Job::Poll {
            self.context.metrics.poll_lateness.observe(now.saturating_sub(task.next_due_at).max(0) as f64 / 1_000.0);
        }
        self.context.metrics.polls_in_flight.with_label_values(&[server]).inc();
        self.serial += 1;
        let job = self.serial;
        held.phase = Phase::Running(job);
        let server: Box<str> = server.into();
        let (context, messages) = (Arc::clone(&self.context), self.messages.clone());
        let flight = Flight { context: Arc::clone(&context), server: server.clone() };
        let call = tokio::spawn(async move {
            let _flight = flight;
            let started = Instant::now();
            let done = AssertUnwindSafe(kind.run(&context, &task, &worker)).catch_unwind().await.unwrap_or_else(|_| {
                tracing::error!(task.id = %task.id, "handling the task panicked");
                kind.done(&context, &task, Failure::new(FailureKind::Internal, "handling the task went wrong here"))
            });
            // Before the actor changes its copy: a task that nobody else looks at is changed in place.
            drop(task);
            let _ = messages.send(Message::Finished { job, done: Box::new(done), took: started.elapsed() });
        });
        let running = Running { task: Arc::clone(id), server, slot, kind, abort: call.abort_handle() };
        self.running.insert(job, running);
        true
    }

    fn finished(&mut self, job: u64, done: Done, took: Duration) {
        // A job that was aborted may still have sent its end.
        let Some(running) = self.running.remove(&job) else { return };
        let server = &*running.server;
        self.lanes.finish(server, running.slot);
        self.context.metrics.poll_duration.with_label_values(&[server]).observe(took.as_secs_f64());
        let boot = self.context.boot();
        if let Some(breaker) = self.lanes.breaker(server).filter(|_| running.kind.calls()) {
            match &done.failure {
                Some(failure) => breaker.failed(failure, boot),
                None => breaker.succeeded(),
            }
        }
        if let Some(failure) = &done.failure {
            self.count_failure(server, running.kind, failure);
        } else if running.kind == Job::Poll {
            self.context.metrics.polls.with_label_values(&[server, outcome(&done.effect)]).inc();
        }
        let current =
            self.held.get(&running.task).is_some_and(|held| matches!(held.phase, Phase::Running(j) if j == job));
        if !current {
            return;
        }
        let id = running.task;
        match done.effect {
            Effect::Lost => {
                // Or it is ours still, under an epoch that an unseen write of our own has given it.
                self.want_reconcile = true;
                self.lose(&id, "stale");
            }
            Effect::Recorded(task, kept) => {
                self.held.remove(&id);
                self.context.metrics.rows_written.with_label_values(&["submit"]).inc();
                let _ = self.context.changes.send(Arc::clone(&id));
                if kept {
                    self.hold(*task);
                } else {
                    self.want_claim = true;
                }
            }
            Effect::Decided(Decision::Unchanged { next_due_at }) => {
                let now = self.context.now();
                if let Some(held) = self.held.get_mut(&id) {
                    Arc::make_mut(&mut held.task).unchanged(next_due_at, now);
                    held.dirty = true;
                }
                if self.drain.is_some() || self.is_far(next_due_at) {
                    self.release(&id);
                } else {
                    self.held.wait(&id);
                }
            }
            Effect::Decided(Decision::Write(change)) => self.write(&id, *change),
        }
    }

    fn count_failure(&self, server: &str, kind: Job, failure: &Failure) {
        if kind == Job::Poll {
            self.context.metrics.polls.with_label_values(&[server, failure.kind.as_str()]).inc();
        }
        self.context.metrics.poll_retries.with_label_values(&[server, failure.kind.as_str()]).inc();
    }

    /// What is due later than twice the claim's reach goes back, so that a 24-hour hint costs nothing.
    fn is_far(&self, due: Millis) -> bool {
        due.saturating_sub(self.context.now()) > 2 * self.horizon()
    }

    // ---- writes ----

    /// Gives a change to the writer, or parks it while the lease is uncertain.
    fn write(&mut self, id: &Arc<str>, mut change: Change) {
        change.release |= self.drain.is_some() || self.is_far(change.next_due_at);
        let fenced = self.fenced();
        let Some(worker) = self.worker.as_ref().map(|worker| Arc::clone(&worker.id)) else { return };
        self.held.stop_timer(id);
        let Some(held) = self.held.get_mut(id) else { return };
        if fenced {
            held.phase = Phase::Parked(Box::new(change));
            return;
        }
        self.serial += 1;
        held.phase = Phase::Writing(self.serial);
        let write = TaskWrite { id: Arc::clone(id), epoch: held.task.lease_epoch, change };
        // The writer lives as long as this end of its queue.
        let _ = self.orders.send(Order { worker, ticket: self.serial, write });
    }

    /// Gives a task back, due when it is due.
    fn release(&mut self, id: &Arc<str>) {
        let now = self.context.now();
        if let Some(change) = self.held.get(id).map(|held| held.task.on_release(now)) {
            self.write(id, change);
        }
    }

    fn written(&mut self, ticket: u64, write: TaskWrite, result: Written) {
        let TaskWrite { id, change, .. } = write;
        let current = self.held.get(&id).is_some_and(|held| matches!(held.phase, Phase::Writing(t) if t == ticket));
        if matches!(result, Written::Done(_)) && change.kind != ChangeKind::Touch {
            let _ = self.context.changes.send(Arc::clone(&id));
        }
        if !current {
            return;
        }
        match result {
            Written::Stale => {
                if change.kind == ChangeKind::Poll
                    && let Some(held) = self.held.get(&id)
                {
                    let server = held.task.binding.server_name.as_str();
                    self.context.metrics.polls.with_label_values(&[server, "stale"]).inc();
                }
                self.lose(&id, "stale");
            }
            Written::Done(_) if change.release => {
                if let Some(held) = self.held.remove(&id)
                    && change.status.is_terminal()
                {
                    self.ended(&held.task, &change);
                }
            }
            Written::Done(epoch) => {
                if let Some(held) = self.held.get_mut(&id) {
                    Arc::make_mut(&mut held.task).applied(&change, epoch);
                    held.dirty = false;
                }
                if self.drain.is_some() { self.release(&id) } else { self.held.wait(&id) }
            }
            Written::Refused => self.refused(&id, &change),
        }
    }

    /// The store takes everything but these values: the task is told so, and polled on.
    fn refused(&mut self, id: &Arc<str>, change: &Change) {
        let failure = Failure::new(FailureKind::Internal, "the store refused the server's answer");
        let Some(task) = self.held.get(id).map(|held| held.task.clone()) else { return };
        // An end of our own making has nothing of the server's in it: what is refused then is anything.
        if change.outcome.is_some() && change.kind != ChangeKind::Close {
            let retry = Job::of(&task, &self.context).failed(&self.context, &task, &failure);
            return self.write(id, retry);
        }
        // Not even that: hold it back in memory, so that nothing retries in a tight loop.
        let retry = held_back(&self.context, &task, &failure);
        let latest = self.context.now() + self.horizon();
        if let Some(held) = self.held.get_mut(id) {
            let task = Arc::make_mut(&mut held.task);
            task.next_due_at = retry.next_due_at.min(latest);
            task.consecutive_poll_error_count = retry.consecutive_poll_error_count;
            task.cancel_attempt_count = retry.cancel_attempt_count;
        }
        self.held.wait(id);
    }

    fn ended(&self, task: &Tracked, change: &Change) {
        let metrics = &self.context.metrics;
        let status = change.status.as_str();
        metrics.tasks_finished.with_label_values(&[task.binding.server_name.as_str(), status]).inc();
        let age = change.at.saturating_sub(task.created_at).max(0);
        metrics.task_duration.with_label_values(&[status]).observe(age as f64 / 1_000.0);
        tracing::info!(task.id = %task.id, server = %task.binding.server_name, status, "task ended");
    }

    /// Writes the counters of unchanged polls, once a lease.
    fn touch(&mut self) {
        if !self.may_call() {
            return;
        }
        let now = self.context.now();
        let idle: Vec<_> = self
            .held
            .iter()
            .filter(|held| held.dirty && matches!(held.phase, Phase::Waiting))
            .map(|held| (Arc::clone(&held.task.id), held.task.on_touch(now)))
            .collect();
        for (id, change) in idle {
            self.write(&id, change);
        }
    }

    // ---- the fleet ----

    /// Whether more is held than `factor` times an even share.
    fn above_share(&self, factor: f64) -> bool {
        self.excess(factor) > 0
    }

    fn excess(&self, factor: f64) -> usize {
        let own = self.held.len();
        let total = self.fleet.held_by_others + own as i64;
        if self.fleet.polling < 2 || total < BALANCE_FROM {
            return 0;
        }
        let share = (total as f64 / self.fleet.polling as f64).ceil();
        if own as f64 > share * factor { own - share as usize } else { 0 }
    }

    /// Above 1.25 times its share, the tasks due last are let go, once the others have published since the last time.
    fn balance(&mut self) {
        let stale = |(id, count): (&WorkerId, &i64)| self.balanced_at.get(id).is_some_and(|before| before == count);
        if !self.may_call() || self.fleet.heartbeats.iter().any(stale) {
            return;
        }
        let excess = self.excess(1.25);
        if excess == 0 {
            return;
        }
        self.balanced_at.clone_from(&self.fleet.heartbeats);
        let spare: Vec<_> = self
            .held
            .latest()
            .filter(|id| self.held.get(id).is_some_and(|held| held.task.status != Status::Submitting))
            .take(excess)
            .cloned()
            .collect();
        if !spare.is_empty() {
            tracing::info!(tasks = spare.len(), "tasks are let go for another worker");
        }
        for id in spare {
            self.release(&id);
        }
    }

    /// Tells the others soon when the number of held tasks has changed by an eighth.
    fn publish(&mut self) {
        let held = self.held.len() as i64;
        self.context.held.store(held, Ordering::Relaxed);
        if (held - self.published).abs() >= BALANCE_FROM.max(self.published / 8) {
            self.published = held;
            self.context.publish.notify_one();
        }
    }

    fn observe(&mut self) {
        let metrics = &self.context.metrics;
        metrics.leases_held.set(self.held.len() as i64);
        let (slots, used) = self.lanes.usage(Slot::Poll);
        metrics.poll_slots.with_label_values(&["total"]).set(slots as i64);
        metrics.poll_slots.with_label_values(&["used"]).set(used as i64);
        let names: Vec<String> = self.context.routes.names().map(str::to_owned).collect();
        for name in names {
            let open = self.lanes.breaker(&name).is_some_and(|breaker| breaker.is_open());
            self.context.metrics.breaker_open.with_label_values(&[&name]).set(i64::from(open));
        }
    }

    fn start_heartbeat(&mut self) {
        if let Some(worker) = &self.worker {
            let beat = heartbeat::run(Arc::clone(&self.context), Arc::clone(worker), self.messages.clone());
            self.heartbeat = Some(tokio::spawn(beat).abort_handle());
        }
    }

    /// The lease is certain again: what waited for that is written.
    fn renewed(&mut self) {
        self.want_reconcile = true;
        let parked: Vec<_> = self
            .held
            .iter()
            .filter(|held| matches!(held.phase, Phase::Parked(_)))
            .map(|held| Arc::clone(&held.task.id))
            .collect();
        for id in parked {
            let Some(held) = self.held.get_mut(&id) else { continue };
            if let Phase::Parked(change) = std::mem::replace(&mut held.phase, Phase::Waiting) {
                self.write(&id, *change);
            }
        }
    }

    /// Dead to the store: nothing that is held is owned any more. Start again under a new id.
    fn reborn(&mut self, old: &WorkerId) {
        let Some(worker) = self.worker.take_if(|worker| worker.id == *old) else { return };
        worker.leave();
        tracing::error!(worker = %old, tasks = self.held.len(), "the store counts this worker as dead; it starts again");
        self.context.metrics.leases_lost.with_label_values(&["refused"]).inc_by(self.held.len() as u64);
        self.running.keys().copied().collect::<Vec<_>>().into_iter().for_each(|job| self.abort(job));
        self.held.clear();
        self.lanes.clear();
        self.to_load.clear();
        self.asked = None;
        self.context.set_incarnation(None);
        self.register();
    }

    fn register(&self) {
        let (context, messages) = (Arc::clone(&self.context), self.messages.clone());
        tokio::spawn(async move {
            let _ = messages.send(Message::Reborn(context.register().await));
        });
    }

    fn registered(&mut self, incarnation: Result<Arc<Incarnation>>) {
        match incarnation {
            Ok(incarnation) => {
                self.context.set_incarnation(Some(Arc::clone(&incarnation)));
                self.worker = Some(incarnation);
                self.want_claim = true;
                self.start_heartbeat();
            }
            Err(error) => {
                tracing::error!(%error, "the worker cannot register");
                let (context, messages) = (Arc::clone(&self.context), self.messages.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(500 + fastrand::u64(..1_000))).await;
                    let _ = messages.send(Message::Reborn(context.register().await));
                });
            }
        }
    }

    // ---- shutting down ----

    fn begin_drain(&mut self, grace: Duration, reply: oneshot::Sender<()>) {
        if let Some(drain) = &mut self.drain {
            // Whoever asks again waits for the same end.
            drain.replies.push(reply);
            return;
        }
        let now = Instant::now();
        let calls = (grace / 2).min(Duration::from_secs(5));
        self.drain = Some(Drain { replies: vec![reply], give_up_calls: now + calls, deadline: now + grace });
        self.lanes.clear();
        let idle: Vec<_> = self
            .held
            .iter()
            .filter(|held| matches!(held.phase, Phase::Waiting | Phase::Queued(_)))
            .map(|held| Arc::clone(&held.task.id))
            .collect();
        tracing::info!(idle = idle.len(), running = self.running.len(), "draining");
        for id in idle {
            self.release(&id);
        }
    }

    /// Whether a drain is over: nothing is held, no submit open, no question unanswered; or its time is up.
    fn drained(&mut self) -> bool {
        let Some((give_up_calls, deadline)) = self.drain.as_ref().map(|drain| (drain.give_up_calls, drain.deadline))
        else {
            return false;
        };
        let now = Instant::now();
        if now >= give_up_calls && !self.running.is_empty() {
            let hung: Vec<_> = self.running.iter().map(|(job, running)| (*job, Arc::clone(&running.task))).collect();
            tracing::info!(calls = hung.len(), "calls that have not ended are given up");
            for (job, id) in hung {
                self.abort(job);
                self.release(&id);
            }
        }
        let quiet = self.held.is_empty()
            && self.running.is_empty()
            && self.asked.is_none()
            && self.context.intents().is_empty();
        self.next_tick = self.next_tick.min(now + Duration::from_millis(100));
        quiet || now >= deadline
    }

    /// Leaves the register: dead, never deleted, and whatever is left is freed at once.
    async fn retire(mut self) {
        if let Some(heartbeat) = self.heartbeat.take() {
            heartbeat.abort();
        }
        if let Some(worker) = self.worker.take() {
            let left = async {
                self.context.store.mark_dead(&worker.id, &worker.id, None).await?;
                worker.leave();
                takeover::free_all(&self.context).await?;
                self.context.store.delete_dead().await
            };
            match left.await {
                Ok(_) => tracing::info!(worker = %worker.id, "worker retired"),
                Err(error) => tracing::warn!(%error, "the worker could not retire; others will find it dead"),
            }
        }
        self.context.set_incarnation(None);
        for reply in self.drain.into_iter().flat_map(|drain| drain.replies) {
            let _ = reply.send(());
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Finished { job, done, took } => self.finished(job, *done, took),
            Message::Written { ticket, write, result } => self.written(ticket, *write, result),
            Message::Answer { question, answer } => self.answered(question, answer),
            // A handle may have been recorded under the id of a former incarnation, whose rows are for whoever claims them.
            Message::Adopt(owner, task) => {
                if self.worker.as_ref().is_some_and(|own| own.id == owner) {
                    self.hold(*task);
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
            Message::Fleet(fleet) => self.fleet = fleet,
            Message::Drain { grace, reply } => self.begin_drain(grace, reply),
        }
    }
}

/// Counts a call as in flight until it ends, however it does.
struct Flight {
    context: Arc<Context>,
    server: Box<str>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.context.metrics.polls_in_flight.with_label_values(&[&self.server]).dec();
    }
}

/// The label of a poll that brought an answer.
fn outcome(effect: &Effect) -> &'static str {
    match effect {
        Effect::Decided(Decision::Unchanged { .. }) => "unchanged",
        Effect::Decided(Decision::Write(change)) if !change.status.is_terminal() => "changed",
        Effect::Decided(Decision::Write(change)) => {
            let code = change.outcome.as_ref().and_then(|(outcome, _)| outcome.error_code.as_deref());
            if code == Some(crate::task::transition::code::TASK_NOT_FOUND) { "not_found" } else { "terminal" }
        }
        Effect::Recorded(..) | Effect::Lost => "changed",
    }
}
