//! Holding a call open, so that something can happen in the middle of it.

use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

use super::Called;

/// The calls to hold.
#[derive(Debug, Default)]
pub struct Gates {
    armed: Mutex<Option<Armed>>,
}

#[derive(Debug)]
struct Armed {
    tool: &'static str,
    executed: bool,
    caught: oneshot::Sender<Called>,
    opened: oneshot::Receiver<()>,
}

/// A gate that the next call of its tool runs into; it opens when dropped.
#[derive(Debug)]
pub struct Gate {
    caught: oneshot::Receiver<Called>,
    _opens: oneshot::Sender<()>,
}

impl Gate {
    /// Waits until a call is held.
    pub async fn caught(&mut self) -> Option<Called> {
        (&mut self.caught).await.ok()
    }
}

impl Gates {
    /// Holds the next call of `tool`, before it is executed or after; one gate at a time, a newer one replaces it.
    pub fn arm(&self, tool: &'static str, executed: bool) -> Gate {
        let (caught_sender, caught) = oneshot::channel();
        let (opens, opened) = oneshot::channel();
        let armed = Armed { tool, executed, caught: caught_sender, opened };
        *self.armed.lock().unwrap_or_else(PoisonError::into_inner) = Some(armed);
        Gate { caught, _opens: opens }
    }

    /// Waits at the gate, where there is one for this call at this moment.
    pub(super) async fn pass(&self, called: &Called, executed: bool) {
        let mine = |armed: &mut Armed| armed.tool == called.tool && armed.executed == executed;
        let armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner).take_if(mine);
        let Some(armed) = armed else { return };
        // A gate that is gone already is open.
        if armed.caught.send(called.clone()).is_ok() {
            let _ = armed.opened.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use http::HeaderMap;

    use super::*;

    #[tokio::test]
    async fn one_call_of_the_tool_is_held_until_the_gate_is_dropped() {
        let gates = Gates::default();
        let called = |tool: &str| Called {
            at: Instant::now(),
            tool: tool.to_owned(),
            task_id: None,
            traceparent: None,
            headers: HeaderMap::new(),
            caller: None,
        };
        let mut gate = gates.arm("submit", true);
        gates.pass(&called("status"), true).await;
        gates.pass(&called("submit"), false).await;
        let submit = called("submit");
        let held = gates.pass(&submit, true);
        tokio::pin!(held);
        assert!(futures_util::poll!(&mut held).is_pending());
        assert_eq!(gate.caught().await.map(|called| called.tool), Some("submit".to_owned()));
        gates.pass(&submit, true).await;
        drop(gate);
        held.await;
    }
}
