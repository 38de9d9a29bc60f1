//! Requests under way on one long-lived connection, and the answers that arrive on it in any order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::jsonrpc::{Aside, Message, RpcError, number};
use super::{CallError, CallErrorKind};

/// Most requests that wait for their answers at a time: more than all polls and cancels of a process (30).
const MAX_WAITING: usize = 8_192;

/// How a request failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// It was not sent: the session had ended before, or the server does not know it.
    NotSent(CallError),
    /// With a JSON-RPC error.
    Rpc(RpcError),
    /// In any other way.
    Call(CallError),
}

impl Failure {
    pub(super) fn into_error(self) -> CallError {
        match self {
            Self::NotSent(error) | Self::Call(error) => error,
            Self::Rpc(error) => error.into_call_error(),
        }
    }
}

type Answer = Result<Box<RawValue>, RpcError>;

/// Requests that wait for their answers.
#[derive(Default)]
pub(super) struct Pending {
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    last_id: AtomicU64,
    /// Why there will be no more answers.
    over: OnceLock<CallError>,
}

impl Pending {
    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Answer>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for the answer to a request that is about to be sent.
    pub(super) fn register(self: &Arc<Self>) -> Result<Waiter, Failure> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, answer) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            if waiting.len() >= MAX_WAITING {
                let what = format!("{MAX_WAITING} calls wait for this server already");
                return Err(Failure::Call(CallError::new(CallErrorKind::Connect, what)));
            }
            waiting.insert(id, sender);
        }
        let waiter = Waiter { id, pending: Arc::clone(self), answer };
        // Looked at after the insertion, so that an end in between is not missed.
        match self.over.get() {
            Some(over) => Err(Failure::NotSent(over.clone())),
            None => Ok(waiter),
        }
    }

    /// Gives the answers in `text` to those who wait for them; the rest of what the server says goes to `aside`.
    ///
    /// An answer that nobody waits for, or that comes twice, is dropped.
    pub(super) fn take_in(&self, text: &str, mut aside: impl FnMut(Aside<'_>)) {
        for message in Message::read_all(text) {
            if let Some(said) = message.aside() {
                match said.given_up() {
                    // Whoever waits sees that nobody will answer.
                    Some(id) => drop(self.waiting().remove(&id)),
                    None => aside(said),
                }
                continue;
            }
            let answer = match (message.result, message.error) {
                (_, Some(error)) => Err(RpcError::read(error)),
                (Some(result), None) => Ok(result.to_owned()),
                (None, None) => continue,
            };
            let waiting = message.id.and_then(number).and_then(|id| self.waiting().remove(&id));
            if let Some(waiting) = waiting {
                let _ = waiting.send(answer);
            }
        }
    }

    /// Says that there will be no more answers, to all who wait for one and to all who come later. The first reason counts.
    pub(super) fn end(&self, reason: CallError) {
        let _ = self.over.set(reason);
        // Their receivers see that the senders are gone, and then why.
        self.waiting().clear();
    }

    /// Why there will be no more answers, once that is so.
    pub(super) fn over(&self) -> Option<&CallError> {
        self.over.get()
    }
}

/// One request's place; it is given up when dropped.
pub(super) struct Waiter {
    pub(super) id: u64,
    pending: Arc<Pending>,
    answer: oneshot::Receiver<Answer>,
}

impl Waiter {
    /// Waits for the answer, or for the end of the connection. Cancel safe.
    pub(super) async fn answer(&mut self) -> Result<Box<RawValue>, Failure> {
        match (&mut self.answer).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(error)) => Err(Failure::Rpc(error)),
            Err(_) => Err(Failure::Call(self.pending.over().cloned().unwrap_or_else(|| {
                CallError::new(CallErrorKind::Transport, "the server gave the request up".to_owned())
            }))),
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.pending.waiting().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_find_their_requests_in_any_order_and_only_once() {
        let pending = Arc::new(Pending::default());
        let (mut one, mut two) = (pending.register().unwrap(), pending.register().unwrap());
        let mut asides = Vec::new();
        for text in [
            r#"{"id":2,"result":"two"}"#,
            r#"{"id":2,"result":"twice"}"#,
            r#"{"id":99,"result":0}"#,
            r#"[{"method":"ping","id":1},{"method":"notifications/x"}]"#,
            "garbage",
            r#"{"id":"1","error":{"code":-32603,"message":"no"}}"#,
        ] {
            pending.take_in(text, |said| asides.push((said.method.to_owned(), said.id.is_some())));
        }
        assert_eq!(two.answer().await.unwrap().get(), "\"two\"");
        assert!(matches!(one.answer().await, Err(Failure::Rpc(error)) if error.code == -32_603));
        assert_eq!(asides, [("ping".to_owned(), true), ("notifications/x".to_owned(), false)]);
    }

    #[tokio::test]
    async fn an_end_reaches_all_who_wait_and_all_who_come_later() {
        let pending = Arc::new(Pending::default());
        let mut waiter = pending.register().unwrap();
        for why in ["first", "second"] {
            pending.end(CallError::new(CallErrorKind::Transport, why.to_owned()));
        }
        assert_eq!(waiter.answer().await.unwrap_err().into_error().message, "first");
        assert!(matches!(pending.register(), Err(Failure::NotSent(error)) if error.message == "first"));
        assert!(pending.waiting().is_empty());
    }

    #[tokio::test]
    async fn a_request_that_the_server_gives_up_fails_alone() {
        let pending = Arc::new(Pending::default());
        let (mut one, mut two) = (pending.register().unwrap(), pending.register().unwrap());
        for text in [
            r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#,
            r#"{"method":"notifications/cancelled","params":{"requestId":9}}"#,
            r#"{"id":2,"result":2}"#,
        ] {
            pending.take_in(text, |_| panic!("nobody else is told"));
        }
        let error = one.answer().await.unwrap_err().into_error();
        assert!(error.kind == CallErrorKind::Transport && error.maybe_executed, "{error}");
        assert_eq!(two.answer().await.unwrap().get(), "2");
        assert!(pending.over().is_none());
    }

    #[test]
    fn waiting_requests_are_bounded_and_given_up_when_dropped_28() {
        let pending = Arc::new(Pending::default());
        let all: Vec<_> = (0..MAX_WAITING).map(|_| pending.register().unwrap()).collect();
        let error = pending.register().err().unwrap().into_error();
        assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Connect, false));
        drop(all);
        assert!(pending.register().is_ok());
    }
}
