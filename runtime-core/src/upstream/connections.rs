//! Users' own connections, as whoever calls servers sees them (BEHAVIOURS T).

use std::sync::Arc;

use super::SharedUpstream;
use crate::config::ServerConfig;

/// A user's connection that can be called.
#[derive(Clone)]
pub struct Connected {
    /// The server, under the name that it runs under.
    pub config: Arc<ServerConfig>,
    /// The way to it.
    pub upstream: SharedUpstream,
    /// Whether it may point anywhere.
    pub trusted: bool,
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connected").field("server", &self.config.name).finish_non_exhaustive()
    }
}

/// Why a connection cannot be called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotConnected {
    /// It was changed, switched off or deleted: it does not come back under this name (50).
    #[error("{0}")]
    Gone(String),
    /// This process does not have it; another may.
    #[error("{0}")]
    Elsewhere(String),
}

/// The connections of all users, as far as this process has them.
pub trait Connections: Send + Sync {
    /// The connection that runs as `server`, where it is `user`'s and switched on at this moment (126). Looks at the user's
    /// file, though not more often than once a second.
    fn find(&self, server: &str, user: &str) -> Result<Connected, NotConnected>;

    /// The names of those with task toolsets.
    fn names(&self) -> Arc<[String]>;
}
