//! Where a server's requests get their token: from memory, or from the one refresh under way (BEHAVIOURS 112, 115).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::Sources;
use super::chain::{ChainId, ChainStore};
use super::endpoint::Endpoint;
use super::failure::Failure;
use super::flight::Landing;
use super::held::{State, Token};
use super::metrics::ServerMetrics;
use crate::config::{ConfigError, Grant, OAuth, is_secret};
use crate::upstream::http::Clients;
use crate::upstream::scrub::Scrubber;
use crate::upstream::{CallError, CallErrorKind};

/// How long a request waits for a token; the refresh goes on without it.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same while its call's own time runs, after the server refused the token that the call had.
const RENEWAL_PATIENCE: Duration = Duration::from_secs(10);

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
        state: Arc<State>,
        sources: &Sources,
    ) -> Result<Self, ConfigError> {
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
        })))
    }

    /// What the source after this one, with this configuration, shares with it. What failed is tried again at once where that may
    /// have been mended, and only there: sources come with every caller's own way to a server.
    pub(super) fn shared(&self, config: &OAuth) -> Arc<State> {
        let is_same = self.0.request == config.request_digest()
            && self.0.config.token_url == config.token_url
            && secrets(&self.0.config) == secrets(config);
        if !is_same {
            self.0.state.flights.lock().forget_failures();
        }
        Arc::clone(&self.0.state)
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
        obtained.or_else(|error| self.held().ok_or(error))
    }

    /// The token there is, as long as it has not ended.
    pub(in crate::upstream) fn held(&self) -> Option<Token> {
        self.0.state.find(&self.0.request, Duration::ZERO)
    }

    /// Takes note that the server took this token.
    pub(in crate::upstream) fn accept(&self, token: &Token) {
        self.0.state.accept(token);
    }

    /// Another token in place of one that the server refused. `None` where none is asked for now, since the server has refused
    /// a new one just before.
    pub(in crate::upstream) async fn renewed(&self, refused: &Token) -> Option<Result<Token, CallError>> {
        let inner = &self.0;
        {
            let flight = inner.state.flights.lock();
            let mut held = inner.state.write();
            if let Some(held) = held.as_mut().filter(|held| held.token.serial == refused.serial) {
                if flight.is_held_back() && held.forced && !inner.state.has_accepted(refused) {
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
        let mut flight = inner.state.flights.lock();
        if let Some((request, landing)) = flight.under_way() {
            return Boarding::Wait(landing, request == inner.request);
        }
        if let Some(token) = inner.state.find(&inner.request, inner.config.refresh_skew) {
            return Boarding::There(token);
        }
        if let Some(error) = flight.failure() {
            return Boarding::Failed(error);
        }
        let (sender, landing) = flight.begin(&inner.request);
        let source = self.clone();
        // On a task of its own: an answer that nobody waits for any more may hold the only token that continues the chain.
        tokio::spawn(async move {
            let landed = source.land(source.0.refresh().await);
            let is_new = landed.is_ok();
            let _ = sender.send(Some(landed));
            drop(sender);
            if is_new {
                source.0.persist().await;
            }
        });
        Boarding::Wait(landing, true)
    }

    /// Takes note of what came of a refresh.
    fn land(&self, refreshed: Result<Token, Failure>) -> Result<Token, CallError> {
        let inner = &self.0;
        let mut flight = inner.state.flights.lock();
        match refreshed {
            Ok(token) => {
                flight.succeeded(inner.state.read().as_ref().is_some_and(|held| held.forced));
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
                let mut error = failure.error(&inner.server);
                error.message = inner.scrubber.scrub(&error.message);
                tracing::warn!(server = inner.server, error = error.message, store = failure.detail, "no OAuth token");
                flight.failed(error.clone(), failure.retry_after);
                Err(error)
            }
        }
    }

    /// Waits for the refresh under way, and saves what is not saved yet.
    pub(super) async fn settle(&self) {
        let under_way = self.0.state.flights.lock().under_way().map(|(_, landing)| landing);
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
fn secrets(config: &OAuth) -> Vec<(&str, &str)> {
    use secrecy::ExposeSecret as _;

    let mut secrets: Vec<_> =
        config.client_secret.iter().map(|secret| ("client_secret", secret.expose_secret())).collect();
    if let Grant::RefreshToken(seed) = &config.grant {
        secrets.push(("refresh_token", seed.expose_secret()));
    }
    // The address of a resource is no secret, and would be missed in what the server says.
    let extra = config.extra_token_params.iter().map(|(name, value)| (name.as_str(), value.expose_secret()));
    secrets.extend(extra.filter(|(name, value)| is_secret(name) || !value.contains("://")));
    secrets
}
