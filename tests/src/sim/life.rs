//! The life of a simulated process: every future it has is polled only while it lives and is not frozen.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use mcp_taskd_core::world::{Background, Spawn};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// What all futures of one process share.
#[derive(Debug, Default)]
pub(super) struct Life {
    state: Mutex<State>,
    died: Notify,
}

#[derive(Debug, Default)]
struct State {
    dead: bool,
    frozen: bool,
    polls: u64,
    /// The poll, of whichever of its futures, that the process does not live to see.
    crash_at: Option<u64>,
    waiting: Vec<Waker>,
    work: Vec<AbortHandle>,
    compact_at: usize,
    panicked: Option<String>,
}

impl Life {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds this")
    }

    /// How often its futures were polled.
    pub(super) fn polls(&self) -> u64 {
        self.state().polls
    }

    /// Ends the process at the `after`-th poll from now: somewhere between two awaits.
    pub(super) fn crash_after(&self, after: u64) {
        let mut state = self.state();
        state.crash_at = Some(state.polls + after.max(1));
    }

    /// Ends the process: nothing of it is polled again, and all of it is dropped.
    pub(super) fn kill(&self) {
        let work = {
            let mut state = self.state();
            state.dead = true;
            state.waiting.clear();
            std::mem::take(&mut state.work)
        };
        work.iter().for_each(AbortHandle::abort);
        self.died.notify_one();
    }

    /// Waits for the end of the process; for one waiter.
    pub(super) async fn died(&self) {
        self.died.notified().await;
    }

    pub(super) fn is_dead(&self) -> bool {
        self.state().dead
    }

    /// Stops the process without its noticing: timers pass and answers come, and nothing looks at them.
    pub(super) fn freeze(&self) {
        self.state().frozen = true;
    }

    /// Lets it go on.
    pub(super) fn thaw(&self) {
        let waiting = {
            let mut state = self.state();
            state.frozen = false;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The text of a panic that ended one of its futures.
    pub(super) fn panicked(&self) -> Option<String> {
        self.state().panicked.take()
    }

    /// Whether a future may be polled now.
    fn admit(&self, waker: &Waker) -> Verdict {
        let mut state = self.state();
        if state.dead {
            return Verdict::Drop;
        }
        if state.frozen {
            state.waiting.push(waker.clone());
            return Verdict::Wait;
        }
        state.polls += 1;
        if state.crash_at.is_some_and(|at| state.polls >= at) {
            drop(state);
            self.kill();
            return Verdict::Drop;
        }
        Verdict::Poll
    }
}

enum Verdict {
    Poll,
    Wait,
    Drop,
}

/// A process's own way to start futures.
#[derive(Debug, Clone)]
pub(super) struct Living(pub(super) Arc<Life>);

impl Spawn for Living {
    fn spawn(&self, work: Background) -> AbortHandle {
        let handle = tokio::spawn(Lived { life: Arc::clone(&self.0), work: Some(work) }).abort_handle();
        let mut state = self.0.state();
        if state.dead {
            handle.abort();
        } else {
            if state.work.len() >= state.compact_at {
                state.work.retain(|work| !work.is_finished());
                state.compact_at = (2 * state.work.len()).max(64);
            }
            state.work.push(handle.clone());
        }
        handle
    }
}

struct Lived {
    life: Arc<Life>,
    work: Option<Background>,
}

impl Future for Lived {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.life.admit(context.waker()) {
            Verdict::Wait => return Poll::Pending,
            Verdict::Drop => {
                self.work = None;
                return Poll::Ready(());
            }
            Verdict::Poll => {}
        }
        let Some(work) = self.work.as_mut() else { return Poll::Ready(()) };
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            self.life.state().panicked = Some(text.unwrap_or("a panic without a text").to_owned());
            Poll::Ready(())
        })
    }
}
