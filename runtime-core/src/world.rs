//! What a process takes from the world around it: time, a place for its background work, and names that nobody else has.
//!
//! The daemon takes them from the operating system; the simulation puts its own in, so that a seed decides everything.

use std::pin::Pin;
use std::sync::Arc;

use tokio::task::AbortHandle;

use crate::clock::{Clock, SystemClock};

/// The surroundings of a process.
#[derive(Debug, Clone)]
pub struct World {
    /// Wall time and boot time.
    pub clock: Arc<dyn Clock>,
    /// Where background work runs.
    pub tasks: Tasks,
    /// Where ids come from.
    pub ids: Ids,
    /// The machine's name, as far as it is one; only for people.
    pub host: String,
}

impl World {
    /// The operating system's.
    pub fn system() -> Self {
        Self { clock: Arc::new(SystemClock), tasks: Tasks::default(), ids: Ids::default(), host: host() }
    }
}

/// A future that nobody waits for.
pub type Background = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs background work in a way of its own.
pub trait Spawn: Send + Sync {
    /// Starts `work`; the handle ends it.
    fn spawn(&self, work: Background) -> AbortHandle;
}

/// Where the background work of a process runs. Everything a process does on its own starts here.
#[derive(Clone, Default)]
pub enum Tasks {
    /// On the runtime that is current.
    #[default]
    Runtime,
    /// Wherever this says.
    Through(Arc<dyn Spawn>),
}

impl Tasks {
    /// Starts `work`; the handle ends it.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        match self {
            Self::Runtime => tokio::spawn(work).abort_handle(),
            Self::Through(spawn) => spawn.spawn(Box::pin(work)),
        }
    }
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Runtime => "Runtime",
            Self::Through(_) => "Through",
        })
    }
}

/// Where the random parts of ids come from.
#[derive(Clone, Default)]
pub enum Ids {
    /// 122 bits of the operating system's randomness: nobody can guess them.
    #[default]
    Random,
    /// A source that must never repeat itself.
    From(Arc<dyn Fn() -> u128 + Send + Sync>),
}

impl Ids {
    /// 32 hexadecimal digits that no other call returns.
    pub fn fresh(&self) -> String {
        match self {
            Self::Random => uuid::Uuid::new_v4().simple().to_string(),
            Self::From(source) => format!("{:032x}", source()),
        }
    }
}

impl std::fmt::Debug for Ids {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Random => "Random",
            Self::From(_) => "From",
        })
    }
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}
