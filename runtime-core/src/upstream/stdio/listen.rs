//! Asking a child of the modern era to say when its tools change; one of the legacy era says so unasked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::upstream::changes::Changes;
use crate::upstream::jsonrpc::{self, LIST_CHANGED};
use crate::upstream::pace::Pace;
use crate::upstream::pending::{Failure, Pending, Waiter};

/// What a child says when a subscription begins.
const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

/// Takes in what one child says of its own accord.
#[derive(Clone)]
pub(super) struct Notices {
    changes: Changes,
    /// Subscriptions that began.
    begun: Arc<AtomicU64>,
}

impl Notices {
    pub(super) fn new(changes: Changes) -> Self {
        Self { changes, begun: Arc::default() }
    }

    /// Takes note of a notification.
    pub(super) fn heard(&self, method: &str) {
        if method != ACKNOWLEDGED {
            self.changes.heard(method);
        } else if self.begun.fetch_add(1, Ordering::Relaxed) > 0 {
            // Whatever it would have said since the last subscription ended was missed.
            self.changes.heard(LIST_CHANGED);
        }
    }
}

/// Asks for a subscription. Its notices come with everything else that the child says; an answer to the request is the
/// subscription's end. `None` where the process has ended.
pub(super) async fn ask(pending: &Arc<Pending>, outgoing: &mpsc::Sender<Vec<u8>>) -> Option<Waiter> {
    let waiter = pending.register().ok()?;
    outgoing.send(jsonrpc::listen(waiter.id)).await.ok()?;
    Some(waiter)
}

/// Keeps a subscription that was `asked` for open until the process ends or shows that it has none.
pub(super) async fn keep(
    mut asked: Option<Waiter>,
    pending: Arc<Pending>,
    outgoing: mpsc::Sender<Vec<u8>>,
    notices: Notices,
) {
    let (mut pace, mut known) = (Pace::default(), 0);
    while let Some(mut waiter) = asked {
        let began = Instant::now();
        let answered = waiter.answer().await;
        let begun = notices.begun.load(Ordering::Relaxed);
        if pending.over().is_some() {
            return;
        }
        if matches!(answered, Err(Failure::Rpc(_))) || begun == known {
            return tracing::debug!("no subscription to changed tools is offered");
        }
        known = begun;
        pace.pause(began).await;
        asked = ask(&pending, &outgoing).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{CallError, CallErrorKind};

    /// A child of which the test says what it says.
    struct Child {
        pending: Arc<Pending>,
        notices: Notices,
        changes: tokio::sync::watch::Receiver<u64>,
        input: mpsc::Receiver<Vec<u8>>,
        listening: tokio::task::JoinHandle<()>,
    }

    impl Child {
        fn new() -> Self {
            let (changes, pending) = (Changes::default(), Arc::new(Pending::default()));
            let (outgoing, input) = mpsc::channel(1);
            let (changes, notices) = (changes.watch(), Notices::new(changes));
            let (asking, told) = (Arc::clone(&pending), notices.clone());
            let listening = tokio::spawn(async move {
                let asked = ask(&asking, &outgoing).await;
                keep(asked, asking, outgoing, told).await;
            });
            Self { pending, notices, changes, input, listening }
        }

        /// The id of the subscription that it is asked for.
        async fn asked(&mut self) -> u64 {
            let asked: serde_json::Value = serde_json::from_slice(&self.input.recv().await.unwrap()).unwrap();
            assert_eq!(asked["params"]["notifications"]["toolsListChanged"], true, "{asked}");
            asked["id"].as_u64().unwrap()
        }

        fn says(&self, text: &str) {
            self.pending.take_in(text, |said| self.notices.heard(said.method));
        }

        fn begins(&self) {
            self.says(&format!(r#"{{"method":"{ACKNOWLEDGED}"}}"#));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_subscription_that_ends_is_opened_again_and_what_was_missed_counts_as_a_change() {
        let mut child = Child::new();
        for end in [r#""id":$,"result":{}"#, r#""method":"notifications/cancelled","params":{"requestId":$}"#] {
            let id = child.asked().await.to_string();
            child.begins();
            child.says(&format!("{{{}}}", end.replace('$', &id)));
        }
        child.asked().await;
        assert_eq!(*child.changes.borrow(), 1, "of the second beginning");
        child.begins();
        child.says(&format!(r#"{{"method":"{LIST_CHANGED}"}}"#));
        assert_eq!(*child.changes.borrow_and_update(), 3);
        child.pending.end(CallError::new(CallErrorKind::Transport, "over".to_owned()));
        child.listening.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_child_that_begins_no_subscription_is_asked_once() {
        for answer in [r#""result":{}"#, r#""error":{"code":-32601}"#] {
            let mut child = Child::new();
            let id = child.asked().await;
            child.says(&format!(r#"{{"id":{id},{answer}}}"#));
            child.listening.await.unwrap();
            assert_eq!(*child.changes.borrow(), 0);
        }
    }
}
