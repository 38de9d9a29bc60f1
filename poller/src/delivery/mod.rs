//! Webhooks: events of tasks, delivered to those who subscribed (BEHAVIOURS 64–70, 138; docs/WEBHOOKS.md).
//!
//! A courier a sink takes note of the events that its sink is to hear of ([`reader`]), claims deliveries that are due, posts
//! them ([`post`]), and writes what became of them ([`verdict`]). What it does not know is in the store: couriers of other
//! processes do the same, and any of them may die at any time.

mod attempt;
mod courier;
mod message;
mod metrics;
mod pace;
mod post;
mod reader;
mod replay;
mod signature;
mod sink;
#[cfg(test)]
pub mod tests;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::clock::Clock;
use mcp_taskd_core::config::{ConfigError, Webhook};
use mcp_taskd_core::store::{Deliveries, SharedStore, WorkerId};
use mcp_taskd_core::task::Policy;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use courier::Courier;
use metrics::Metrics;
use post::{Http, Post};
pub use replay::{Order, ReplayError, Replayed};
use sink::Sink;

use crate::view::Notification;

/// How often the figures of what waits are read.
const FIGURES_EVERY: Duration = Duration::from_secs(10);
/// The most that a count of what waits says.
const COUNT_CAP: i64 = 100_000;

/// The id under which this process may claim now; `None` while its lease is not certain, or it drains.
pub type Identity = Arc<dyn Fn() -> Option<WorkerId> + Send + Sync>;

/// The sinks of a configuration, and what is known of their deliveries; clones share them.
#[derive(Clone)]
pub struct Subscribers {
    sinks: Arc<[Arc<Sink>]>,
    store: SharedStore,
    deliveries: Arc<dyn Deliveries>,
}

impl std::fmt::Debug for Subscribers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscribers").field("sinks", &self.sinks).finish_non_exhaustive()
    }
}

impl Subscribers {
    /// Those of `webhooks`; none where there are none, so that nothing is asked of the store.
    pub fn new(
        webhooks: &[Webhook],
        store: SharedStore,
        deliveries: Arc<dyn Deliveries>,
    ) -> Result<Option<Self>, ConfigError> {
        if webhooks.is_empty() {
            return Ok(None);
        }
        let sinks = webhooks.iter().map(|webhook| Sink::new(webhook).map(Arc::new)).collect::<Result<_, _>>()?;
        Ok(Some(Self { sinks, store, deliveries }))
    }

    /// How the deliveries of a task's events stand (70). Where the store does not answer, nothing is said of them.
    pub async fn notification(&self, task_id: &str) -> Notification {
        match self.deliveries.deliveries_of(task_id).await {
            Ok(deliveries) => Notification::of(&deliveries),
            Err(error) => {
                tracing::warn!(%error, task.id = task_id, "a task's deliveries cannot be read");
                Notification::default()
            }
        }
    }
}

/// What couriers are made with.
#[derive(Clone)]
pub struct Options {
    /// Who claims.
    pub identity: Identity,
    /// The store's time.
    pub clock: Arc<dyn Clock>,
    /// The rhythm of polling: its interval is the first pause after a failure, its threshold that of degraded tracking.
    pub policy: Policy,
}

/// The running couriers.
#[derive(Debug)]
pub struct Couriers {
    stop: CancellationToken,
    give_up: CancellationToken,
    running: JoinSet<()>,
}

impl Couriers {
    /// Starts a courier for each sink. A sink that is new hears of everything from here on.
    pub async fn start(
        subscribers: &Subscribers,
        options: &Options,
        registry: &prometheus::Registry,
    ) -> anyhow::Result<Self> {
        for sink in &*subscribers.sinks {
            subscribers.deliveries.open_sink(&sink.name).await?;
        }
        Self::start_with(subscribers, options, registry, &(Arc::new(Http::new()?) as Arc<dyn Post>))
    }

    fn start_with(
        subscribers: &Subscribers,
        options: &Options,
        registry: &prometheus::Registry,
        post: &Arc<dyn Post>,
    ) -> anyhow::Result<Self> {
        let names: Vec<String> = subscribers.sinks.iter().map(|sink| sink.name.clone()).collect();
        let metrics = Metrics::register(registry, &names)?;
        let (stop, give_up) = (CancellationToken::new(), CancellationToken::new());
        let mut running = JoinSet::new();
        for sink in &*subscribers.sinks {
            let courier = Courier::new(subscribers, sink, options, &metrics, post);
            running.spawn(courier.run(stop.clone(), give_up.clone()));
        }
        running.spawn(watch(Arc::clone(&subscribers.deliveries), names, metrics, stop.clone()));
        Ok(Self { stop, give_up, running })
    }

    /// Claims nothing any more, waits up to `grace` for what is under way, and gives the rest back.
    pub async fn drain(mut self, grace: Duration) {
        self.stop.cancel();
        let ended = async { while self.running.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, ended).await.is_ok() {
            return;
        }
        tracing::info!("deliveries that have not ended are given back");
        self.give_up.cancel();
        let ended = async { while self.running.join_next().await.is_some() {} };
        if tokio::time::timeout(Duration::from_secs(2), ended).await.is_err() {
            tracing::warn!("deliveries were not given back in time; they are free once this worker is found dead");
        }
    }
}

/// Shows what waits for each sink.
async fn watch(deliveries: Arc<dyn Deliveries>, sinks: Vec<String>, metrics: Metrics, stop: CancellationToken) {
    loop {
        match deliveries.backlog(&sinks, COUNT_CAP).await {
            Ok(backlog) => metrics.show(&backlog),
            Err(error) => tracing::warn!(%error, "what waits for subscribers cannot be read"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(FIGURES_EVERY) => {}
        }
    }
}
