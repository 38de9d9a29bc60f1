//! Where commands take their data from and send their requests to.

use std::time::Duration;

use mcp_taskd_core::store::TaskFilter;
use serde_json::value::RawValue;

use super::local::Local;
use super::output::{Format, Row};
use super::remote::Remote;
use super::{Global, Server};
use crate::auth::NewKey;
use crate::delivery::{Order, Replayed};
use crate::exit::Result;

/// A submit from the command line.
#[derive(Debug, Clone)]
pub struct NewTask {
    /// The owner; the daemon's default where absent.
    pub user_id: Option<String>,
    /// The thread.
    pub thread_id: String,
    /// The server.
    pub server: String,
    /// The toolset.
    pub task: String,
    /// The text of an object.
    pub arguments: Row,
    /// The key that makes it repeatable.
    pub idempotency_key: Option<String>,
}

/// Whose task, and which.
#[derive(Debug, Clone)]
pub struct Target {
    /// Only this user's.
    pub user_id: Option<String>,
    /// Only in this thread.
    pub thread_id: Option<String>,
    /// The task.
    pub id: String,
}

/// What a command does with the store it opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Looks.
    Read,
    /// Submits, answers or cancels, as a short-lived registered process.
    Write,
    /// Submits and polls until it is done, as there may be no daemon.
    Poll,
}

/// The configured store, or a daemon.
pub enum Source {
    /// The store, opened here.
    Store(Box<Local>),
    /// A daemon's REST API.
    Http(Remote),
}

impl Source {
    /// Opens what the flags say.
    pub async fn open(global: &Global, server: &Server, purpose: Use) -> Result<Self> {
        // Set to nothing means not set, as for other variables.
        match server.url.as_deref().filter(|url| !url.is_empty()) {
            Some(url) => Ok(Self::Http(Remote::new(url)?)),
            None => Ok(Self::Store(Box::new(Local::open(&global.origins(), purpose).await?))),
        }
    }

    /// Tasks, newest first, at most `limit`.
    pub async fn tasks(&self, filter: &TaskFilter, limit: u32) -> Result<Vec<Row>> {
        match self {
            Self::Store(local) => local.tasks(filter, limit).await,
            Self::Http(remote) => remote.tasks(filter, limit).await,
        }
    }

    /// One task; with `wait`, at its next change or after that time.
    pub async fn task(&self, target: &Target, wait: Duration) -> Result<Row> {
        match self {
            Self::Store(local) => local.task(target, wait).await,
            Self::Http(remote) => remote.task(target, wait).await,
        }
    }

    /// Submits.
    pub async fn submit(&self, task: &NewTask) -> Result<Row> {
        match self {
            Self::Store(local) => local.submit(task).await,
            Self::Http(remote) => remote.submit(task).await,
        }
    }

    /// Requests a cancel.
    pub async fn cancel(&self, target: &Target) -> Result<Row> {
        match self {
            Self::Store(local) => local.cancel(target).await,
            Self::Http(remote) => remote.cancel(target).await,
        }
    }

    /// Answers a task that requires input.
    pub async fn input(&self, target: &Target, input: &RawValue) -> Result<Row> {
        match self {
            Self::Store(local) => local.input(target, input).await,
            Self::Http(remote) => remote.input(target, input).await,
        }
    }

    /// Makes a task due.
    pub async fn poll_now(&self, target: &Target) -> Result<Row> {
        match self {
            Self::Store(local) => local.poll_now(target).await,
            Self::Http(remote) => remote.poll_now(target).await,
        }
    }

    /// Every worker.
    pub async fn workers(&self) -> Result<Vec<Row>> {
        match self {
            Self::Store(local) => local.workers().await,
            Self::Http(remote) => remote.workers().await,
        }
    }

    /// Events after `after`, oldest first, at most `limit`.
    pub async fn events(&self, after: i64, filter: &TaskFilter, limit: u32) -> Result<Vec<Row>> {
        match self {
            Self::Store(local) => local.events(after, filter, limit).await,
            Self::Http(remote) => remote.events(after, filter, limit).await,
        }
    }

    /// Has events delivered once more; a bounded number of them.
    pub async fn replay(&self, order: &Order) -> Result<Replayed> {
        match self {
            Self::Store(local) => local.replay(order).await,
            Self::Http(remote) => remote.replay(order).await,
        }
    }

    /// Makes a key; the only answer that has the key in it.
    pub async fn create_key(&self, order: &NewKey) -> Result<Row> {
        match self {
            Self::Store(local) => local.create_key(order).await,
            Self::Http(remote) => remote.create_key(order).await,
        }
    }

    /// Every key.
    pub async fn keys(&self) -> Result<Vec<Row>> {
        match self {
            Self::Store(local) => local.keys().await,
            Self::Http(remote) => remote.keys().await,
        }
    }

    /// Takes a key back.
    pub async fn revoke_key(&self, id: &str) -> Result<Row> {
        match self {
            Self::Store(local) => local.revoke_key(id).await,
            Self::Http(remote) => remote.revoke_key(id).await,
        }
    }

    /// Waits for a signal that asks to stop; only a process that writes listens for one.
    pub async fn interrupted(&self) {
        match self {
            Self::Store(local) => local.interrupted().await,
            Self::Http(_) => std::future::pending().await,
        }
    }

    /// Tells people where nothing was found: often it is not where they thought to have looked.
    pub fn note_none(&self, rows: &[Row], output: Format) {
        if !rows.is_empty() || output != Format::Table {
            return;
        }
        match self {
            Self::Store(local) => eprintln!("mcp-taskd: none in {}; --url asks a daemon instead", local.place()),
            Self::Http(remote) => eprintln!("mcp-taskd: none at {}", remote.place()),
        }
    }

    /// Whether nobody is there to poll, as far as this side can tell.
    pub async fn nobody_polls(&self) -> bool {
        match self {
            Self::Store(local) => local.nobody_polls().await,
            Self::Http(_) => false,
        }
    }

    /// Ends a process that was started for a write.
    pub async fn close(self) -> Result<()> {
        match self {
            Self::Store(local) => local.close().await,
            Self::Http(_) => Ok(()),
        }
    }
}
