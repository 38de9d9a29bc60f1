//! From a server's configuration to the server that can be called: its transport, and what stands before it.

use std::path::PathBuf;
use std::sync::Arc;

use indexmap::IndexMap;
use secrecy::SecretString;

use super::caller::{Credential, PerCaller};
use super::interceptor::{Chain, Endpoint, Interceptor, Interceptors};
use super::opening::Opening;
use super::scrub::Scrubber;
use super::{Metrics, Reach, SharedUpstream, guard, http, http_sse, oauth, stdio};
use crate::config::{ConfigError, Extensions, Interceptor as Configured, ServerConfig, Transport};

/// What transports need to know beside a server's own configuration.
#[derive(Debug, Clone)]
pub struct Options {
    /// `server.state_dir`: workspaces of child processes lie below it (156).
    pub state_dir: PathBuf,
    /// Most stdio sessions at a time, of all servers together (29).
    pub max_stdio_sessions: usize,
    /// Where sessions are counted, if anywhere.
    pub metrics: Option<Metrics>,
    /// Interceptors of the program's own; they see a call after those of `mcpInterceptors`.
    pub interceptors: Interceptors,
    /// What ends the processes of stdio servers when this one is killed, if anything.
    pub guard: Option<guard::Guard>,
    /// Where chains of OAuth refresh tokens are kept; without it they live in the process alone (116).
    pub chains: Option<Arc<dyn oauth::ChainStore>>,
    /// What the program puts around each server's transport, behind all interceptors.
    pub layer: Layer,
}

type Wrap = dyn Fn(&ServerConfig, SharedUpstream) -> SharedUpstream + Send + Sync;

/// Something around a server's transport that sees the calls which are really sent, such as tracing; nothing by default.
#[derive(Clone, Default)]
pub struct Layer(Option<Arc<Wrap>>);

impl Layer {
    /// A layer that `wrap` puts around each server as it is opened.
    pub fn new(wrap: impl Fn(&ServerConfig, SharedUpstream) -> SharedUpstream + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(wrap)))
    }

    fn around(&self, server: &ServerConfig, upstream: SharedUpstream) -> SharedUpstream {
        match &self.0 {
            Some(wrap) => wrap(server, upstream),
            None => upstream,
        }
    }
}

impl std::fmt::Debug for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Layer").field(&self.0.is_some()).finish()
    }
}

impl Options {
    /// The daemon's own bounds, and no metrics.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            max_stdio_sessions: 256,
            metrics: None,
            interceptors: Interceptors::default(),
            guard: None,
            chains: None,
            layer: Layer::default(),
        }
    }
}

/// The enabled servers, in the file's order.
#[derive(Clone, Default)]
pub struct Upstreams(IndexMap<String, SharedUpstream>);

impl Upstreams {
    /// The server with this name.
    pub fn find(&self, server: &str) -> Option<&SharedUpstream> {
        self.0.get(server)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &SharedUpstream)> {
        self.0.iter().map(|(name, upstream)| (name.as_str(), upstream))
    }

    /// Ends all sessions and child processes, at the same time.
    pub async fn close(&self) {
        futures_util::future::join_all(self.0.values().map(|upstream| upstream.close())).await;
    }
}

impl FromIterator<(String, SharedUpstream)> for Upstreams {
    fn from_iter<I: IntoIterator<Item = (String, SharedUpstream)>>(servers: I) -> Self {
        Self(servers.into_iter().collect())
    }
}

impl std::fmt::Debug for Upstreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Makes servers callable: what all of them share.
#[derive(Clone)]
pub struct Factory {
    clients: http::Clients,
    reach: Reach,
    pool: Arc<stdio::Pool>,
    tokens: Arc<oauth::Sources>,
    options: Options,
}

impl std::fmt::Debug for Factory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Factory").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Factory {
    /// Connects to nothing.
    pub fn new(options: &Options) -> Result<Self, ConfigError> {
        Ok(Self {
            clients: http::Clients::new()?,
            reach: Reach::Anywhere,
            pool: Arc::new(stdio::Pool::new(options.max_stdio_sessions)),
            tokens: Arc::new(oauth::Sources::new(
                options.chains.clone(),
                options.metrics.as_ref().map(|metrics| metrics.oauth.clone()),
            )),
            options: options.clone(),
        })
    }

    /// The same for what users connect to: without the program's own interceptors, which may add what is the deployment's.
    #[must_use]
    pub fn for_users(&self) -> Self {
        Self { options: Options { interceptors: Interceptors::default(), ..self.options.clone() }, ..self.clone() }
    }

    /// The same for servers within `reach`.
    #[must_use]
    pub fn within(&self, reach: Reach) -> Self {
        Self { reach, ..self.clone() }
    }

    /// Makes a server of `extensions` callable, behind instances of its own of the interceptors there and those of the
    /// program (127); connects to it with its first call.
    pub fn open(&self, server: &ServerConfig, extensions: &Extensions) -> Result<SharedUpstream, ConfigError> {
        let mut interceptors: Vec<Arc<dyn Interceptor>> = Vec::new();
        for configured in &extensions.interceptors {
            if let Configured::Http(config) = configured {
                interceptors.push(Arc::new(Endpoint::new(config, &self.clients)?));
            }
        }
        interceptors.extend(self.options.interceptors.of(&server.name));
        let (factory, config, known) = (self.clone(), server.clone(), Arc::default());
        let secret_args = extensions.secret_args(server);
        let open = move |credential: &Credential| {
            let transport = factory.transport(&config, &secret_args, credential, &known)?;
            let transport = factory.options.layer.around(&config, transport);
            Ok(Chain::wrap(&config.name, transport, interceptors.clone()))
        };
        PerCaller::wrap(server, Box::new(open))
    }

    /// A way to the server with `credential` in place of its own headers; what is `known` of it is shared among its ways.
    fn transport(
        &self,
        server: &ServerConfig,
        secret_args: &[String],
        credential: &Credential,
        known: &Arc<http::Known>,
    ) -> Result<SharedUpstream, ConfigError> {
        let metrics = self.options.metrics.as_ref().map(|all| all.of(&server.name, &server.transport));
        let opening =
            |scrubber| Opening { limit: server.session_init_timeout, scrubber, metrics: metrics.unwrap_or_default() };
        Ok(match &server.transport {
            Transport::Http { url, headers } => {
                let (target, scrubber) = self.target(server, url, headers, credential)?;
                Arc::new(http::HttpUpstream::new(&server.name, target, opening(scrubber), known))
            }
            Transport::Sse { url, headers } => {
                let (target, scrubber) = self.target(server, url, headers, credential)?;
                Arc::new(http_sse::HttpSseUpstream::new(&server.name, target, opening(scrubber)))
            }
            Transport::Stdio { command, args, env, cwd } => {
                let launch = stdio::Launch::new(&server.name, command, args, env, cwd.as_deref(), &self.options);
                let launch = launch.without(secret_args);
                let opening = opening(launch.scrubber());
                Arc::new(stdio::StdioUpstream::new(launch, opening, server.tool_call_timeout, &self.pool))
            }
        })
    }

    /// Where a way to a server leads, and what it sends there: the server's tokens where it has OAuth, and `credential` over
    /// all of it (122).
    fn target(
        &self,
        server: &ServerConfig,
        url: &str,
        headers: &[(String, SecretString)],
        credential: &Credential,
    ) -> Result<(http::Target, Scrubber), ConfigError> {
        let (mut target, mut scrubber) = http::Target::new(&server.name, url, headers, (&self.clients, self.reach))?;
        if let Some(config) = &server.oauth {
            let tokens = self.tokens.open(&server.name, config, &self.clients)?;
            scrubber = scrubber.with(tokens.scrubber());
            target = target.with_tokens(tokens);
        }
        let (target, own) = target.with_credential(credential);
        Ok((target, scrubber.with(&own)))
    }

    /// Forgets the stored OAuth tokens of all servers but these, as far as that can be done now (116).
    pub async fn retain_tokens(&self, servers: &[String]) {
        self.tokens.retain(servers).await;
    }

    /// Waits for refreshes of OAuth tokens that are under way, and stores what they bring: an answer that is not stored may be
    /// the end of a chain.
    pub async fn settle(&self) {
        self.tokens.settle().await;
    }

    /// The enabled servers of `extensions`.
    pub fn open_all(&self, extensions: &Extensions) -> Result<Upstreams, ConfigError> {
        let enabled = extensions.servers.values().filter(|server| server.enabled);
        enabled.map(|server| Ok((server.name.clone(), self.open(server, extensions)?))).collect()
    }
}

/// Makes the enabled servers of `extensions` callable; connects to none of them yet.
pub fn build(extensions: &Extensions, options: &Options) -> Result<Upstreams, ConfigError> {
    Factory::new(options)?.open_all(extensions)
}
