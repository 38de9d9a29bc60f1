//! The worker: claims tasks once, polls them many times, writes what changed (DESIGN, "lease once, poll many").
//!
//! Five parts, each small: an actor that owns the held tasks and serialises claims, adoptions and releases ([`actor`]); a
//! writer that applies guarded writes in batches ([`writer`]); a heartbeat ([`heartbeat`]); the takeover of dead workers
//! ([`takeover`]); and calls that run beside them ([`job`]). Decisions themselves are pure functions in `task`.

mod actor;
mod balance;
mod breaker;
mod heartbeat;
mod held;
mod incarnation;
mod job;
mod lanes;
mod message;
mod metrics;
mod observer;
mod queue;
mod room;
mod takeover;
mod wakeups;
mod writer;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, mpsc, oneshot};
use tokio::time::Instant;

use crate::clock::{Clock, Millis, StoreClock};
use crate::driver::{Driver, Routes};
use crate::store::{SharedStore, StoreError, StoreErrorKind, Wakeup, WorkerId, WorkerInfo};
use crate::task::{Policy, Tracked};
use crate::world::{Ids, Tasks, World};
use actor::Actor;
pub use incarnation::Incarnation;
use message::Message;
pub use metrics::Metrics;

/// How many changes a slow waiter may miss before it re-reads its task.
const CHANGES: usize = 1_024;

/// What a start fails at where its state directory cannot be used: waiting does not help.
const LOCK: &str = "worker lock";
/// How long a start waits for a store that answers and registers nobody, such as one that is read-only after a failover
/// (INTERFACE: a store that cannot be reached at start is retried for 30 s).
const START_PATIENCE: Duration = Duration::from_secs(30);

/// How a worker is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// The rhythm of polling.
    pub policy: Policy,
    /// How long the lease lasts from each heartbeat.
    pub lease: Duration,
    /// Poll slots.
    pub max_concurrent_polls: usize,
    /// Tasks kept in memory.
    pub max_held: usize,
    /// Where the incarnation's lock lies.
    pub state_dir: PathBuf,
    /// Its name in the register.
    pub role: String,
    /// Whether it polls; a process that only submits registers and heartbeats too.
    pub polls: bool,
    /// How long ended tasks are kept; for ever where `None`.
    pub retention: Option<Duration>,
}

/// What the parts of a worker share.
pub(crate) struct Context {
    pub(crate) options: Options,
    pub(crate) policy: Policy,
    pub(crate) clock: Arc<StoreClock>,
    /// Where everything that runs beside the callers runs.
    pub(crate) tasks: Tasks,
    pub(crate) ids: Ids,
    host: String,
    pub(crate) store: SharedStore,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) metrics: Metrics,
    /// The current incarnation; absent between two.
    incarnation: RwLock<Option<Arc<Incarnation>>>,
    /// Submits of this process whose outcome is not recorded yet.
    intents: Mutex<HashSet<Arc<str>>>,
    draining: AtomicBool,
    /// Tasks held, as the heartbeat publishes it.
    held: AtomicI64,
    /// When the last successful heartbeat was sent, in milliseconds on the boot clock.
    renewed_ms: AtomicI64,
    /// When the actor last went round, in milliseconds on the boot clock.
    beat_ms: AtomicI64,
    /// Asks for a heartbeat before its time.
    publish: Notify,
    /// Live workers that poll, with this one.
    fleet: AtomicUsize,
    changes: broadcast::Sender<Arc<str>>,
    threads: broadcast::Sender<Arc<str>>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Context {
    pub(crate) fn now(&self) -> Millis {
        self.clock.now_ms()
    }

    fn boot(&self) -> Duration {
        self.clock.boot()
    }

    fn renewed(&self) -> Duration {
        Duration::from_millis(self.renewed_ms.load(Ordering::Relaxed).unsigned_abs())
    }

    fn set_renewed(&self, sent: Duration) {
        self.renewed_ms.store(sent.as_millis() as i64, Ordering::Relaxed);
    }

    fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    fn worker(&self) -> Option<WorkerId> {
        let incarnation = self.incarnation.read().unwrap_or_else(PoisonError::into_inner);
        incarnation.as_ref().map(|incarnation| Arc::clone(&incarnation.id))
    }

    fn set_incarnation(&self, incarnation: Option<Arc<Incarnation>>) {
        *self.incarnation.write().unwrap_or_else(PoisonError::into_inner) = incarnation;
    }

    /// Says that this process has changed a task's row, to those who wait for it here and elsewhere.
    pub(crate) fn announce(&self, id: &Arc<str>) {
        // Nobody may be waiting.
        let _ = self.changes.send(Arc::clone(id));
        self.store.wake(Wakeup::Changed);
    }

    /// Says that a row is due, or soon will be, that nobody owns: whoever has room may take it.
    pub(crate) fn announce_due(&self) {
        self.store.wake(Wakeup::Due);
    }

    /// Whether anybody here waits for changes.
    fn is_watched(&self) -> bool {
        self.changes.receiver_count() + self.threads.receiver_count() > 0
    }

    /// Tells those who wait here of a change, whoever made it.
    fn tell(&self, task: &Arc<str>, thread: &Arc<str>) {
        let _ = self.changes.send(Arc::clone(task));
        let _ = self.threads.send(Arc::clone(thread));
    }

    fn intents(&self) -> std::sync::MutexGuard<'_, HashSet<Arc<str>>> {
        self.intents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first identity, tried for a while.
    async fn register_at_start(&self) -> Result<Arc<Incarnation>, StoreError> {
        let until = Instant::now() + START_PATIENCE;
        loop {
            match self.register().await {
                Err(error) if error.is_transient() && error.operation != LOCK && Instant::now() < until => {
                    tracing::warn!(%error, "the worker cannot register yet");
                    tokio::time::sleep(Duration::from_millis(500 + fastrand::u64(..500))).await;
                }
                registered => return registered,
            }
        }
    }

    /// A fresh identity, registered: the lock first, then the row.
    async fn register(&self) -> Result<Arc<Incarnation>, StoreError> {
        let incarnation = Incarnation::begin(&self.options.state_dir, &self.host, &self.ids).map_err(|error| {
            let message = format!("server.state_dir {}: {error}", self.options.state_dir.display());
            StoreError::new(StoreErrorKind::Unavailable, LOCK, message)
        })?;
        let info = WorkerInfo {
            id: Arc::clone(&incarnation.id),
            host: self.host.clone(),
            pid: i64::from(std::process::id()),
            role: self.options.role.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            lease_ms: self.options.lease.as_millis() as i64,
            polls: self.options.polls,
        };
        let sent = self.boot();
        let now_ms = self.store.register(&info).await.inspect_err(|error| {
            if error.kind != StoreErrorKind::Unknown {
                incarnation.leave();
            }
        })?;
        self.clock.discipline(now_ms, sent);
        self.set_renewed(sent);
        tracing::info!(worker = %incarnation.id, role = %self.options.role, "worker registered");
        Ok(Arc::new(incarnation))
    }
}

/// What a local worker knows of a task beyond its row, which unchanged polls do not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live {
    /// When it was last polled.
    pub last_polled_at: Option<Millis>,
    /// When it is due.
    pub next_due_at: Millis,
    /// Polls so far.
    pub poll_attempt_count: i64,
}

/// A running worker; cheap to clone.
#[derive(Debug, Clone)]
pub struct Worker {
    context: Arc<Context>,
    messages: mpsc::UnboundedSender<Message>,
}

/// A submit of this process that is not recorded yet; drains wait for it, and reconciling leaves it alone.
#[derive(Debug)]
pub(crate) struct OpenIntent {
    context: Arc<Context>,
    id: Arc<str>,
}

impl Drop for OpenIntent {
    fn drop(&mut self) {
        self.context.intents().remove(&self.id);
    }
}

impl Worker {
    /// Registers in the store and starts polling.
    ///
    /// Fails where the state directory cannot be locked, or the store registers nobody for 30 s.
    pub async fn start(
        options: Options,
        store: SharedStore,
        driver: Arc<dyn Driver>,
        routes: Arc<Routes>,
        metrics: Metrics,
        world: World,
    ) -> Result<Self, StoreError> {
        let context = Arc::new(Context {
            policy: options.policy,
            options,
            clock: Arc::new(StoreClock::new(world.clock)),
            tasks: world.tasks,
            ids: world.ids,
            host: world.host,
            store,
            driver,
            routes,
            metrics,
            incarnation: RwLock::default(),
            intents: Mutex::default(),
            draining: AtomicBool::new(false),
            held: AtomicI64::new(0),
            renewed_ms: AtomicI64::new(0),
            beat_ms: AtomicI64::new(0),
            publish: Notify::new(),
            fleet: AtomicUsize::new(1),
            changes: broadcast::channel(CHANGES).0,
            threads: broadcast::channel(CHANGES).0,
        });
        let incarnation = context.register_at_start().await?;
        context.set_incarnation(Some(Arc::clone(&incarnation)));
        // Unbounded, but what is sent is bounded by slots, by open submits, and by one wake-up at a time.
        let (messages, receiver) = mpsc::unbounded_channel();
        let actor = Actor::new(Arc::clone(&context), incarnation, messages.clone(), receiver);
        context.tasks.spawn(actor.run());
        Ok(Self { context, messages })
    }

    /// The id under which this process owns rows now; `None` while it is between two incarnations or draining.
    pub fn id(&self) -> Option<WorkerId> {
        if self.context.draining() { None } else { self.context.worker() }
    }

    /// Whether a drain has begun.
    pub fn is_draining(&self) -> bool {
        self.context.draining()
    }

    /// The store's time.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.context.clock) as Arc<dyn Clock>
    }

    /// How long ago the worker's loop last went round; liveness.
    pub fn since_beat(&self) -> Duration {
        let beat = Duration::from_millis(self.context.beat_ms.load(Ordering::Relaxed).unsigned_abs());
        self.context.boot().saturating_sub(beat)
    }

    /// Whether the lease is certain: renewed within its length, and no refusal since.
    pub fn is_leased(&self) -> bool {
        let context = &self.context;
        context.worker().is_some() && context.boot() < context.renewed() + context.options.lease
    }

    /// Ids of tasks whose row has just changed: by this process, or, as far as that is known, by another.
    pub fn changes(&self) -> broadcast::Receiver<Arc<str>> {
        self.context.changes.subscribe()
    }

    /// Threads in which something has just happened, as far as that is known.
    pub fn threads(&self) -> broadcast::Receiver<Arc<str>> {
        self.context.threads.subscribe()
    }

    /// Says that a task's row has changed, to those who wait for it.
    pub(crate) fn announce(&self, id: &Arc<str>) {
        self.context.announce(id);
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Marks a submit as open until the guard is dropped.
    pub(crate) fn open_intent(&self, id: Arc<str>) -> OpenIntent {
        self.context.intents().insert(Arc::clone(&id));
        OpenIntent { context: Arc::clone(&self.context), id }
    }

    /// Hands over a row that `owner`, an incarnation of this worker, owned when it was written.
    pub(crate) fn adopt(&self, owner: WorkerId, task: Tracked) {
        self.send(Message::Adopt(owner, Box::new(task)));
    }

    /// Says that a write of this process had an outcome that nobody knows, and may have left it a row.
    pub(crate) fn reconcile(&self) {
        self.send(Message::Reconcile);
    }

    /// Says that a row was freed by a write of this process, which left it at `epoch`; an older copy of it is dropped.
    pub(crate) fn forget(&self, id: &Arc<str>, epoch: i64) {
        self.send(Message::Forget(Arc::clone(id), epoch));
    }

    /// Says that a write of this process has left a row due that nobody owns: claim before the next tick, here or elsewhere.
    pub fn wake(&self) {
        self.send(Message::Wake);
        self.context.announce_due();
    }

    /// What this worker knows of a task, if it holds it.
    pub async fn peek(&self, id: &str) -> Option<Live> {
        let (reply, answer) = oneshot::channel();
        self.send(Message::Peek(id.into(), reply));
        answer.await.ok().flatten()
    }

    /// Stops claiming and submitting, lets running calls end or gives them up, releases every task, and retires from the
    /// register; at most for `grace`. What is left then is for the others to take over.
    pub async fn drain(&self, grace: Duration) {
        self.context.draining.store(true, Ordering::Relaxed);
        let (reply, done) = oneshot::channel();
        self.send(Message::Drain { grace, reply });
        if tokio::time::timeout(grace + Duration::from_secs(2), done).await.is_err() {
            tracing::warn!("the drain was not finished in time; other workers take over what is left");
        }
    }

    fn send(&self, message: Message) {
        // The actor ends only after a drain, when nothing is held that a message could concern.
        let _ = self.messages.send(message);
    }
}
