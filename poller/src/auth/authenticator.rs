//! Whether a request is let in, and as whom.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Uri, header};
use mcp_taskd_core::clock::Clock;
use mcp_taskd_core::config::{AuthMode, AuthSettings};
use mcp_taskd_core::store::ApiKeys;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::identity::{DEFAULT_ID, Identity, Scopes, Verified, named_user};
use super::jwt::Verifier;
use super::limit::Limiter;
use super::metrics::Metrics;
use super::resource::Resource;
use super::ring::Ring;
use super::{Denied, Reason, origin};

/// Refused credentials from one address: so many at once, and one more each time [`FAILURE_EVERY`] has passed.
const FAILURES: u32 = 20;
const FAILURE_EVERY: Duration = Duration::from_secs(3);
/// The longest credential that is looked at.
const MAX_TOKEN_BYTES: usize = 16 << 10;

/// What of a request is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Its target.
    pub uri: &'a Uri,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// Where it comes from, as far as that is known.
    pub address: Option<IpAddr>,
    /// The template of its route.
    pub route: &'a str,
}

/// A request that is let in.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// The caller.
    pub identity: Identity,
    /// What it was let in with, for answers that take so long that it may be taken back meanwhile.
    pub credential: Option<SecretString>,
}

/// Whether credentials can be verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// They can.
    Good,
    /// They can, by what was known last.
    Stale(String),
    /// They cannot.
    Failed(String),
}

/// How callers are known.
#[derive(Debug)]
pub struct Authenticator {
    mode: Mode,
    metrics: Option<Metrics>,
    resource: Resource,
    callers: Limiter<String>,
    failures: Limiter<IpAddr>,
}

#[derive(Debug)]
enum Mode {
    Open,
    Keys(Ring),
    Jwt(Verifier),
}

impl Authenticator {
    /// `auth.mode: none`.
    #[cfg(test)]
    pub fn open() -> Self {
        Self::new(Mode::Open, &AuthSettings::default(), None)
    }

    /// As configured; `keys` is the register of API keys.
    pub fn configured(
        auth: &AuthSettings,
        keys: Arc<dyn ApiKeys>,
        clock: Arc<dyn Clock>,
        registry: &prometheus::Registry,
    ) -> anyhow::Result<Self> {
        let mode = match auth.mode {
            AuthMode::None => Mode::Open,
            AuthMode::ApiKey => Mode::Keys(Ring::new(keys, clock)),
            AuthMode::Jwt => Mode::Jwt(Verifier::new(&auth.jwt)?),
        };
        let metrics = Metrics::register(registry, mode.scheme())?;
        Ok(Self::new(mode, auth, Some(metrics)))
    }

    fn new(mode: Mode, auth: &AuthSettings, metrics: Option<Metrics>) -> Self {
        let rate = auth.max_requests_per_second.max(1);
        let issuer = auth.jwt.issuer.clone().filter(|_| matches!(mode, Mode::Jwt(_)));
        let audience = auth.jwt.audience.as_deref().filter(|_| matches!(mode, Mode::Jwt(_)));
        Self {
            mode,
            metrics,
            // What tokens are for is what the gateway is called, where it is called by an address.
            resource: Resource::new(auth.resource.as_deref().or(audience), issuer),
            callers: Limiter::new(Duration::from_secs(1) / rate, rate.saturating_mul(2)),
            failures: Limiter::new(FAILURE_EVERY, FAILURES),
        }
    }

    /// Whether anybody on this machine may call.
    pub fn is_open(&self) -> bool {
        matches!(self.mode, Mode::Open)
    }

    /// The register of API keys, where they are what callers are known by.
    pub fn keys(&self) -> Option<&dyn ApiKeys> {
        match &self.mode {
            Mode::Keys(ring) => Some(&**ring.store()),
            Mode::Open | Mode::Jwt(_) => None,
        }
    }

    /// The gateway as a protected resource.
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// Finds out who calls, and refuses what another site's page may have sent and whoever calls too often.
    pub async fn admit(&self, call: &Call<'_>) -> Result<Admitted, Denied> {
        self.identify(call).await.map_err(|denied| self.refused(denied, call))
    }

    /// Whether what somebody was let in with still counts. A store or an issuer that does not answer takes nothing back.
    pub async fn still_admits(&self, credential: &SecretString) -> bool {
        let verified = self.verify(credential.expose_secret()).await;
        !matches!(verified, Err(Denied::Unauthenticated(_)))
    }

    /// Counts a caller whose credential does not allow what it asked for.
    pub fn note_missing_scope(&self) {
        self.count(Reason::Scope);
    }

    /// Whether credentials can be verified; `None` where there are none.
    pub fn condition(&self) -> Option<Condition> {
        match &self.mode {
            Mode::Open | Mode::Keys(_) => None,
            Mode::Jwt(verifier) => Some(verifier.condition()),
        }
    }

    /// Keeps what credentials are verified by up to date, until `stop`.
    pub async fn run(&self, stop: &CancellationToken) {
        if let Mode::Jwt(verifier) = &self.mode {
            tokio::select! {
                () = verifier.run() => {}
                () = stop.cancelled() => {}
            }
        }
    }

    async fn identify(&self, call: &Call<'_>) -> Result<Admitted, Denied> {
        if self.is_open() {
            origin::check_local(call.uri, call.headers)?;
            let user_id = named_user(call.headers)?.unwrap_or_else(|| DEFAULT_ID.into());
            let identity = Identity { user_id, scopes: Scopes::ALL, act_as: true };
            return Ok(Admitted { identity, credential: None });
        }
        origin::check_same(call.uri, call.headers, self.resource.url())?;
        let token = bearer(call.headers)?;
        let verified = self.verify(token).await?;
        self.callers.take(&verified.subject, Instant::now()).map_err(Denied::Limited)?;
        let identity = verified.identity.in_name_of(named_user(call.headers)?)?;
        Ok(Admitted { identity, credential: Some(token.into()) })
    }

    async fn verify(&self, token: &str) -> Result<Verified, Denied> {
        match &self.mode {
            Mode::Open => Err(Denied::Unauthenticated(Reason::Unknown)),
            Mode::Keys(ring) => ring.verify(token).await,
            Mode::Jwt(verifier) => verifier.verify(token).await,
        }
    }

    /// Counts a refusal. An address with too many refused credentials is told to wait; good ones from there are let in all the
    /// same: a proxy has one address for everybody.
    fn refused(&self, denied: Denied, call: &Call<'_>) -> Denied {
        let denied = match denied {
            // How every client of MCP begins: it is told where to get a token, and has guessed nothing.
            Denied::Unauthenticated(Reason::Missing) => {
                self.count(Reason::Missing);
                denied
            }
            Denied::Unauthenticated(reason) => {
                self.count(reason);
                match self.failures.take(&place(call.address), Instant::now()) {
                    Ok(()) => denied,
                    Err(wait) => Denied::Limited(wait),
                }
            }
            Denied::OtherUser => {
                self.count(Reason::User);
                denied
            }
            other => other,
        };
        if let (Denied::Limited(_), Some(metrics)) = (&denied, &self.metrics) {
            metrics.record_limited(call.route);
        }
        denied
    }

    fn count(&self, reason: Reason) {
        if let Some(metrics) = &self.metrics {
            metrics.record_failure(self.mode.scheme(), reason);
        }
    }
}

impl Mode {
    /// The metric's label.
    const fn scheme(&self) -> &'static str {
        match self {
            Self::Open => "none",
            Self::Keys(_) => "api_key",
            Self::Jwt(_) => "jwt",
        }
    }
}

/// The credential of a request. Only the header counts: addresses end up in logs.
fn bearer(headers: &HeaderMap) -> Result<&str, Denied> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().ok_or(Denied::Unauthenticated(Reason::Missing))?;
    let malformed = Denied::Unauthenticated(Reason::Malformed);
    if values.next().is_some() || value.len() > MAX_TOKEN_BYTES {
        return Err(malformed);
    }
    let Some((scheme, token)) = value.to_str().ok().and_then(|value| value.split_once(' ')) else {
        return Err(malformed);
    };
    let token = token.trim();
    if scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() { Ok(token) } else { Err(malformed) }
}

/// Whom refusals are counted against: in IPv6 one caller has a whole network.
fn place(address: Option<IpAddr>) -> IpAddr {
    match address.map(|address| address.to_canonical()) {
        None => Ipv4Addr::UNSPECIFIED.into(),
        Some(IpAddr::V6(address)) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        Some(address) => address,
    }
}

#[cfg(test)]
#[path = "authenticator_tests.rs"]
mod tests;
