//! The process's HTTP clients: pooled, without redirects, and without a total time limit of their own.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Url};

use super::public::{PublicOnly, may_be_public};
use crate::config::ConfigError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle connections kept a host: more than any number of concurrent polls, so that a burst costs no reconnects.
const MAX_IDLE_PER_HOST: usize = 4_096;

/// How long a connection may be idle and still be used: less than the keep-alive of the common servers (uvicorn and Node.js:
/// 5 s, which is also the default poll interval). A request that meets a closing connection may or may not have been looked
/// at: a poll would fail for nothing, and a submit's outcome would be unknown.
const MAX_IDLE: Duration = Duration::from_secs(4);

/// The shared clients.
#[derive(Debug, Clone)]
pub(in crate::upstream) struct Clients {
    remote: Client,
    loopback: Client,
    /// For what users have the daemon connect to: public addresses, whatever a proxy could reach besides (126).
    public: Client,
}

/// Where the daemon may connect to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reach {
    /// Wherever the operator points.
    #[default]
    Anywhere,
    /// Public addresses only.
    Public,
}

impl Clients {
    pub(in crate::upstream) fn new() -> Result<Self, ConfigError> {
        // Whoever embeds the daemon may have chosen a provider; one has to be there before the first client.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let built = |builder: ClientBuilder| {
            builder
                .build()
                .map_err(|error| ConfigError(format!("no HTTP client can be made: {}", super::wire::cause(&error))))
        };
        Ok(Self {
            remote: built(builder())?,
            loopback: built(builder().no_proxy())?,
            public: built(builder().no_proxy().dns_resolver(PublicOnly::system()))?,
        })
    }

    /// The client for `url`, where it may be reached at all.
    pub(in crate::upstream) fn within(&self, reach: Reach, url: &Url) -> Option<Client> {
        match reach {
            Reach::Anywhere => Some(self.of(url)),
            Reach::Public => may_be_public(url).then(|| self.public.clone()),
        }
    }

    /// The client for `url`: a proxy from the environment is no way to this machine itself.
    pub(in crate::upstream) fn of(&self, url: &Url) -> Client {
        let loopback = match url.host_str() {
            Some("localhost") => true,
            Some(host) => host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .parse::<std::net::IpAddr>()
                .is_ok_and(|address| address.is_loopback()),
            None => false,
        };
        if loopback { self.loopback.clone() } else { self.remote.clone() }
    }
}

fn builder() -> ClientBuilder {
    Client::builder()
        .redirect(Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(MAX_IDLE)
        .pool_max_idle_per_host(MAX_IDLE_PER_HOST)
        .tcp_nodelay(true)
        // A stream that broke without an end is noticed within two minutes.
        .tcp_keepalive(Duration::from_mins(1))
        .tcp_keepalive_interval(Duration::from_secs(15))
        .tcp_keepalive_retries(4)
        .http2_keep_alive_interval(Duration::from_secs(30))
}
