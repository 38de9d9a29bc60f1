//! Where a server's requests get their token: from memory, or from the one refresh under way (BEHAVIOURS 112, 115).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::Sources;
use super::chain::{ChainId, ChainStore};
use super::endpoint::Endpoint;
use super::failure::Failure;
use super::held::{State, Token, now};
use super::metrics::ServerMetrics;
use crate::config::{ConfigError, Grant, OAuth};
use crate::upstream::http::Clients;
use crate::upstream::scrub::Scrubber;
use crate::upstream::{CallError, CallErrorKind};

/// How long a request waits for a token; the refresh goes on without it.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same while its call's own time runs, after the server refused the token that the call had.
const RENEWAL_PATIENCE: Duration = Duration::from_secs(10);
/// Between a refresh that failed and the next, doubling: every request meanwhile fails at once.
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_mins(1);
/// The most of a `Retry-After` that is heeded.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);
/// Between two tokens that are asked for because the server refuses even a new one, doubling.
const MIN_FORCED_PAUSE: Duration = Duration::from_secs(30);
const MAX_FORCED_PAUSE: Duration = Duration::from_mins(15);

/// One server's tokens.
#[derive(Debug, Clone)]
pub(in crate::upstream) struct Source(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) server: String,
    pub(super) config: OAuth,
    /// See [`OAuth::request_digest`].
    pub(super) request: String,
    pub(super) chain: ChainId,
    pub(super) endpoint: Endpoint,
    /// Where the chain is kept; none where it lives in this process alone.
    pub(super) store: Option<Arc<dyn ChainStore>>,
    pub(super) metrics: ServerMetrics,
    pub(super) state: Arc<State>,
    pub(super) scrubber: Scrubber,
    flights: Arc<Flights>,
}

/// The refresh under way of one connection, and what came of the last.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<Flight>);

type Landing = Option<Result<Token, CallError>>;

#[derive(Debug, Default)]
struct Flight {
    /// What the one under way, or the last one, asks with, and where it is told what came of it.
    last: Option<(String, watch::Receiver<Landing>)>,
    failed: Option<Failed>,
    /// Until when no token is asked for because the server refused even a new one.
    forced: Option<Pause>,
}

#[derive(Debug)]
struct Failed {
    pause: Pause,
    error: CallError,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    until: Duration,
    length: Duration,
}

impl Pause {
    /// A pause from now that is twice as long as the last one.
    fn after(last: Option<Self>, min: Duration, max: Duration) -> Self {
        let length = last.map_or(min, |last| (last.length * 2).min(max));
        Self { until: now() + length.mul_f64(1.0 + fastrand::f64() / 4.0), length }
    }

    fn is_over(self) -> bool {
        now() >= self.until
    }
}

impl Flights {
    fn lock(&self) -> MutexGuard<'_, Flight> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what failed: another configuration may do better.
    fn forget_failures(&self) {
        let mut flight = self.lock();
        (flight.failed, flight.forced) = (None, None);
    }
}

impl Flight {
    /// The refresh under way.
    fn under_way(&self) -> Option<(&str, watch::Receiver<Landing>)> {
        let (request, landing) = self.last.as_ref()?;
        // One that panicked has nobody left to say so.
        let is_over = landing.borrow().is_some() || landing.has_changed().is_err();
        (!is_over).then(|| (request.as_str(), landing.clone()))
    }
}

/// How to come by a token that is not there.
enum Boarding {
    /// It is there by now.
    There(Token),
    /// A refresh is under way; whether its token can be used here.
    Wait(watch::Receiver<Landing>, bool),
    /// The last one failed just now.
    Failed(CallError),
}

impl Source {
    pub(super) fn new(
        server: &str,
        config: &OAuth,
        clients: &Clients,
        shared: (Arc<State>, Arc<Flights>),
        sources: &Sources,
    ) -> Result<Self, ConfigError> {
        let (state, flights) = shared;
        let store = sources.chains.clone().filter(|_| matches!(config.grant, Grant::RefreshToken(_)));
        Ok(Self(Arc::new(Inner {
            server: server.to_owned(),
            request: config.request_digest(),
            chain: ChainId { server: server.to_owned(), fingerprint: config.fingerprint() },
            endpoint: Endpoint::new(server, config, clients)?,
            store,
            metrics: sources.metrics.as_ref().map(|metrics| metrics.of(server)).unwrap_or_default(),
            scrubber: Scrubber::new(secrets(config)).following(&state.secrets),
            config: config.clone(),
            state,
            flights,
        })))
    }

    /// What the source after this one shares with it.
    pub(super) fn shared(&self) -> (Arc<State>, Arc<Flights>) {
        self.0.flights.forget_failures();
        (Arc::clone(&self.0.state), Arc::clone(&self.0.flights))
    }

    /// What takes this source's credentials and latest tokens out of texts (148).
    pub(in crate::upstream) fn scrubber(&self) -> &Scrubber {
        &self.0.scrubber
    }

    /// A token that can be used: the one there is, or one that is asked for now, by one of all who need it.
    ///
    /// A caller that goes away costs the others nothing, nor the refresh that it began. Where a refresh fails, a token that
    /// has not ended yet goes on being used.
    pub(in crate::upstream) async fn token(&self) -> Result<Token, CallError> {
        let inner = &self.0;
        if let Some(token) = inner.state.find(&inner.request, inner.config.refresh_skew) {
            return Ok(token);
        }
        // Rare, and large: what every request carries along must not have room for it.
        let obtained = Box::pin(self.obtain(PATIENCE)).await;
        obtained.or_else(|error| inner.state.find(&inner.request, Duration::ZERO).ok_or(error))
    }

    /// Takes note that the server took this token.
    pub(in crate::upstream) fn accept(&self, token: &Token) {
        self.0.state.accept(token);
    }

    /// Another token in place of one that the server refused. `None` where there is none to be had now: the server has
    /// refused a new one just before, or the refresh takes longer than the call that waits has time for.
    pub(in crate::upstream) async fn renewed(&self, refused: &Token) -> Option<Result<Token, CallError>> {
        let inner = &self.0;
        {
            let flight = inner.flights.lock();
            let mut held = inner.state.write();
            if let Some(held) = held.as_mut().filter(|held| held.token.serial == refused.serial) {
                let is_paused = flight.forced.is_some_and(|pause| !pause.is_over());
                if is_paused && held.forced && !inner.state.has_accepted(refused) {
                    return None;
                }
                held.refused = true;
            }
        }
        // The refresh that was under way may have begun before the token was refused, and found it again.
        for _ in 0..2 {
            match Box::pin(self.obtain(RENEWAL_PATIENCE)).await {
                Ok(token) if token.serial == refused.serial => {}
                obtained => return Some(obtained),
            }
        }
        None
    }

    async fn obtain(&self, patience: Duration) -> Result<Token, CallError> {
        let waited = timeout(patience, async {
            loop {
                let (mut landing, is_ours) = match self.board() {
                    Boarding::There(token) => return Ok(token),
                    Boarding::Failed(error) => return Err(error),
                    Boarding::Wait(landing, is_ours) => (landing, is_ours),
                };
                let landed = landing.wait_for(Option::is_some).await.ok().and_then(|landed| landed.clone());
                match landed {
                    Some(landed) if is_ours => return landed,
                    Some(_) => {}
                    None => return Err(self.error("the refresh of its token broke off")),
                }
            }
        });
        waited.await.unwrap_or_else(|_| {
            Err(self.error(&format!("no token within {patience:?}; its refresh is still under way")))
        })
    }

    fn error(&self, what: &str) -> CallError {
        CallError::new(CallErrorKind::Auth, format!("OAuth for the server {:?}: {what}", self.0.server))
    }

    fn board(&self) -> Boarding {
        let inner = &self.0;
        let mut flight = inner.flights.lock();
        if let Some((request, landing)) = flight.under_way() {
            return Boarding::Wait(landing, request == inner.request);
        }
        if let Some(token) = inner.state.find(&inner.request, inner.config.refresh_skew) {
            return Boarding::There(token);
        }
        if let Some(failed) = flight.failed.as_ref().filter(|failed| !failed.pause.is_over()) {
            return Boarding::Failed(failed.error.clone());
        }
        let (sender, landing) = watch::channel(None);
        flight.last = Some((inner.request.clone(), landing.clone()));
        let source = self.clone();
        // On a task of its own: an answer that nobody waits for any more may hold the only token that continues the chain.
        tokio::spawn(async move {
            let landed = source.land(source.0.refresh().await);
            let _ = sender.send(Some(landed));
            drop(sender);
            source.0.persist().await;
        });
        Boarding::Wait(landing, true)
    }

    /// Takes note of what came of a refresh.
    fn land(&self, refreshed: Result<Token, Failure>) -> Result<Token, CallError> {
        let inner = &self.0;
        let mut flight = inner.flights.lock();
        match refreshed {
            Ok(token) => {
                flight.failed = None;
                if inner.state.read().as_ref().is_some_and(|held| held.forced) {
                    let last = flight.forced.filter(|last| now() < last.until + last.length);
                    flight.forced = Some(Pause::after(last, MIN_FORCED_PAUSE, MAX_FORCED_PAUSE));
                }
                Ok(token)
            }
            Err(failure) => {
                if failure.lost {
                    inner.state.lose();
                }
                // It may still be good: whoever tries is refused again at no great cost.
                if let Some(held) = inner.state.write().as_mut() {
                    held.refused = false;
                }
                let later = failure.retry_after.unwrap_or_default().min(MAX_RETRY_AFTER);
                let mut error = failure.error(&inner.server);
                error.message = inner.scrubber.scrub(&error.message);
                tracing::warn!(server = inner.server, error = error.message, store = failure.detail, "no OAuth token");
                let last = flight.failed.as_ref().map(|failed| failed.pause);
                let mut pause = Pause::after(last, MIN_PAUSE, MAX_PAUSE);
                pause.until = pause.until.max(now() + later);
                flight.failed = Some(Failed { pause, error: error.clone() });
                Err(error)
            }
        }
    }

    /// Waits for the refresh under way, and saves what is not saved yet.
    pub(super) async fn settle(&self) {
        let under_way = self.0.flights.lock().under_way().map(|(_, landing)| landing);
        if let Some(mut landing) = under_way {
            let _ = landing.wait_for(Option::is_some).await;
        }
        if let Err(failure) = self.0.save().await {
            tracing::error!(
                server = self.0.server,
                error = failure.detail,
                "the latest OAuth tokens could not be stored, and are lost with this process"
            );
        }
    }
}

/// What must not be seen of a configuration, with names that tell how it is looked for.
fn secrets(config: &OAuth) -> Vec<(&'static str, &str)> {
    use secrecy::ExposeSecret as _;

    let mut secrets: Vec<_> =
        config.client_secret.iter().map(|secret| ("client_secret", secret.expose_secret())).collect();
    if let Grant::RefreshToken(seed) = &config.grant {
        secrets.push(("refresh_token", seed.expose_secret()));
    }
    secrets.extend(config.extra_token_params.iter().map(|(_, value)| ("extra", value.expose_secret())));
    secrets
}
