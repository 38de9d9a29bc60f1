//! What the actor is told, by the parts around it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::job::Done;
use super::queue::Order;
use super::room::Crowd;
use super::takeover::Fleet;
use super::writer::Written;
use super::{Incarnation, Live};
use crate::store::{Owned, Result, WorkerId};
use crate::task::Tracked;

/// What the actor is told.
#[derive(Debug)]
pub(super) enum Message {
    /// A row that this worker owned when it was written.
    Adopt(WorkerId, Box<Tracked>),
    /// A row that was freed by this process, and its epoch since.
    Forget(Arc<str>, i64),
    /// Claim before the next tick.
    Wake,
    /// A write by this process had an outcome that nobody knows: compare what is held with what is owned.
    Reconcile,
    /// What is known of a task?
    Peek(Arc<str>, oneshot::Sender<Option<Live>>),
    /// A call has ended.
    Finished { job: u64, done: Box<Done>, took: Duration },
    /// A write has ended.
    Written { order: Box<Order>, result: Written },
    /// The store has answered a question.
    Answer { question: u64, answer: Answer },
    /// The lease is renewed.
    Renewed,
    /// This worker is dead to the store.
    Refused(WorkerId),
    /// A new incarnation is registered.
    Reborn(Result<Arc<Incarnation>>),
    /// The other workers.
    Fleet(Fleet),
    /// Shut down.
    Drain { grace: Duration, reply: oneshot::Sender<()> },
}

/// Answers of the store; one question is open at a time.
#[derive(Debug)]
pub(super) enum Answer {
    /// `strangers`: whether a claim of these alone found any.
    Claimed {
        tasks: Vec<Tracked>,
        crowd: Crowd,
        strangers: bool,
        failed: bool,
    },
    Owned(Result<Vec<Owned>>),
    Loaded {
        ids: Vec<Arc<str>>,
        tasks: Result<Vec<Tracked>>,
    },
}
