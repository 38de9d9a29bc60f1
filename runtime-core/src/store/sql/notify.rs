//! Wake-ups between processes by PostgreSQL's `LISTEN` and `NOTIFY`.
//!
//! A `NOTIFY` serialises the commits of whoever sends one, so none is part of a write: one task of its own, on a connection of
//! its own, sends at most one statement every few milliseconds, whatever happened meanwhile (FAILURES 8). The listener has its
//! name called by the sender now and then; when it does not hear it, it takes another connection, and tells its process to
//! look once, since nobody knows what it missed (FAILURES 7). Behind a pooler that lends connections by the transaction nobody
//! listens: what is heard there comes to whoever has the session just then, in the middle of a statement (FAILURES 20).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _};
use tokio::sync::{Notify, broadcast};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::store::wakeup::{Channel, Wakeup};

/// Between two statements of a sender.
const SEND_EVERY: Duration = Duration::from_millis(50);
/// How long a listener hears nothing before it calls its own name.
const PING_EVERY: Duration = Duration::from_secs(15);
/// How long anything on these connections may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the last statement may hold an end up.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Between two attempts to connect, at first and at most.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

const CHANNELS: [(Wakeup, &str); 2] = [(Wakeup::Due, "mcp_taskd_due"), (Wakeup::Changed, "mcp_taskd_changed")];

/// The wake-ups of one database. Connections are opened when they are first needed.
#[derive(Debug)]
pub(super) struct Wire {
    shared: Arc<Shared>,
    tasks: Mutex<Tasks>,
}

#[derive(Debug)]
struct Shared {
    options: PgConnectOptions,
    heard: Channel,
    to_send: [AtomicBool; CHANNELS.len()],
    /// The channel that only this process listens to, and whether it is to be called.
    own: String,
    calls: AtomicBool,
    sends: Notify,
    /// Held while something is being said.
    saying: tokio::sync::Mutex<()>,
    hears: AtomicBool,
}

/// They end with the store.
#[derive(Debug, Default)]
struct Tasks {
    sends: bool,
    listens: bool,
    running: JoinSet<()>,
}

impl Tasks {
    fn speak(&mut self, shared: &Arc<Shared>) {
        if !std::mem::replace(&mut self.sends, true) {
            self.running.spawn(send(Arc::clone(shared)));
        }
    }
}

impl Wire {
    pub(super) fn new(options: PgConnectOptions) -> Self {
        let shared = Shared {
            options,
            heard: Channel::default(),
            to_send: Default::default(),
            own: format!("mcp_taskd_{:016x}", fastrand::u64(..)),
            calls: AtomicBool::new(false),
            sends: Notify::new(),
            saying: tokio::sync::Mutex::default(),
            hears: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), tasks: Mutex::default() }
    }

    /// Nobody here is to listen.
    pub(super) fn deafen(&self) {
        self.tasks().listens = true;
    }

    pub(super) fn wake(&self, what: Wakeup) {
        self.shared.to_send[index(what)].store(true, Ordering::Release);
        self.shared.sends.notify_one();
        self.tasks().speak(&self.shared);
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Wakeup> {
        let heard = self.shared.heard.subscribe();
        let mut tasks = self.tasks();
        if !std::mem::replace(&mut tasks.listens, true) {
            tasks.speak(&self.shared);
            tasks.running.spawn(listen(Arc::clone(&self.shared)));
        }
        heard
    }

    /// Whether wake-ups of other processes arrive; `None` where nobody listens here.
    pub(super) fn hears(&self) -> Option<bool> {
        self.tasks().listens.then(|| self.shared.hears.load(Ordering::Relaxed))
    }

    /// Ends both tasks, and says first what has not been said: a drain's last releases may be in it.
    pub(super) async fn close(&self) {
        let last_words = async {
            // What is on its way is not cut off.
            let _saying = self.shared.saying.lock().await;
            if let Some(statement) = self.shared.statement() {
                let _ = notify(&self.shared.options, &mut None, &statement).await;
            }
        };
        // Whoever would have been woken looks by itself.
        let _ = timeout(LAST_WORDS, last_words).await;
        self.tasks().running.abort_all();
    }

    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn index(what: Wakeup) -> usize {
    CHANNELS.iter().position(|(known, _)| *known == what).unwrap_or_default()
}

/// Sends what has gathered, again and again.
async fn send(shared: Arc<Shared>) {
    let mut connection = None;
    loop {
        shared.sends.notified().await;
        if let Err(error) = say(&shared, &mut connection).await {
            // Whoever would have been woken looks by itself.
            tracing::debug!(%error, "a wake-up was not sent");
            connection = None;
            tokio::time::sleep(jittered(Duration::from_secs(1))).await;
        }
        tokio::time::sleep(SEND_EVERY).await;
    }
}

async fn say(shared: &Shared, connection: &mut Option<PgConnection>) -> sqlx::Result<()> {
    let _saying = shared.saying.lock().await;
    let Some(statement) = shared.statement() else { return Ok(()) };
    let was_open = connection.is_some();
    let sent = bounded(notify(&shared.options, connection, &statement)).await;
    if sent.is_ok() || !was_open {
        return sent;
    }
    // Lost while it was idle, perhaps long ago.
    *connection = None;
    bounded(notify(&shared.options, connection, &statement)).await
}

async fn notify(options: &PgConnectOptions, slot: &mut Option<PgConnection>, sql: &str) -> sqlx::Result<()> {
    let connection = match slot {
        Some(connection) => connection,
        None => slot.insert(options.connect().await?),
    };
    connection.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.map(drop)
}

/// Listens, and connects again with ever longer pauses when that ends.
async fn listen(shared: Arc<Shared>) {
    let mut pause = RECONNECT.0;
    loop {
        let error = match attend(&shared).await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        if shared.hears.swap(false, Ordering::Relaxed) {
            pause = RECONNECT.0;
        }
        tracing::debug!(%error, "wake-ups of other processes are not heard; ticks go on");
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(RECONNECT.1);
    }
}

/// Listens until the connection is lost.
async fn attend(shared: &Shared) -> sqlx::Result<std::convert::Infallible> {
    // A pool of its own: what becomes of a connection that is half open concerns nobody else.
    let pool =
        PgPoolOptions::new().max_connections(1).acquire_timeout(PATIENCE).connect_lazy_with(shared.options.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    let channels = CHANNELS.iter().map(|(_, channel)| *channel).chain([shared.own.as_str()]);
    bounded(listener.listen_all(channels)).await?;
    call(shared, &mut listener).await?;
    shared.hears.store(true, Ordering::Relaxed);
    tracing::debug!("wake-ups of other processes are heard");
    // Only now that nothing is missed any more is it time to look for what was.
    CHANNELS.iter().for_each(|(what, _)| shared.heard.wake(*what));
    loop {
        match timeout(PING_EVERY, listener.try_recv()).await {
            Ok(heard) => shared.tell(heard?.ok_or(sqlx::Error::WorkerCrashed)?.channel()),
            Err(_) => call(shared, &mut listener).await?,
        }
    }
}

/// Has the listener's name called, on the sender's connection, and waits until it is heard.
async fn call(shared: &Shared, listener: &mut PgListener) -> sqlx::Result<()> {
    shared.calls.store(true, Ordering::Release);
    shared.sends.notify_one();
    bounded(async {
        loop {
            let heard = listener.try_recv().await?.ok_or(sqlx::Error::WorkerCrashed)?;
            if heard.channel() == shared.own {
                return Ok(());
            }
            shared.tell(heard.channel());
        }
    })
    .await
}

async fn bounded<T>(work: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    timeout(PATIENCE, work).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}

impl Shared {
    /// What there is to say, as one statement.
    fn statement(&self) -> Option<String> {
        let told = CHANNELS.iter().filter(|(what, _)| self.to_send[index(*what)].swap(false, Ordering::AcqRel));
        let mut channels: Vec<&str> = told.map(|(_, channel)| *channel).collect();
        if self.calls.swap(false, Ordering::AcqRel) {
            channels.push(&self.own);
        }
        let statements: Vec<String> = channels.iter().map(|channel| format!("NOTIFY {channel}")).collect();
        (!statements.is_empty()).then(|| statements.join("; "))
    }

    fn tell(&self, channel: &str) {
        if let Some((what, _)) = CHANNELS.iter().find(|(_, known)| *known == channel) {
            self.heard.wake(*what);
        }
    }
}

/// Between half of it and all (FAILURES 9).
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}
