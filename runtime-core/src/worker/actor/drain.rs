//! Shutting down.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Actor, fleet};
use crate::worker::held::Phase;
use crate::worker::message::Message;

/// A drain that has begun.
#[derive(Debug)]
pub(super) struct Drain {
    pub(super) replies: Vec<oneshot::Sender<()>>,
    give_up_calls: Instant,
    deadline: Instant,
}

impl Actor {
    pub(super) fn begin_drain(&mut self, grace: Duration, reply: oneshot::Sender<()>) {
        if let Some(drain) = &mut self.drain {
            // Whoever asks again waits for the same end.
            drain.replies.push(reply);
            return;
        }
        let now = Instant::now();
        let calls = (grace / 2).min(Duration::from_secs(5));
        self.drain = Some(Drain { replies: vec![reply], give_up_calls: now + calls, deadline: now + grace });
        self.lanes.clear();
        let idle: Vec<_> = self
            .held
            .iter()
            .filter(|held| matches!(held.phase, Phase::Waiting | Phase::Queued(_)))
            .map(|held| Arc::clone(&held.task.id))
            .collect();
        tracing::info!(idle = idle.len(), running = self.running.len(), "draining");
        for id in idle {
            self.release(&id);
        }
    }

    /// Whether a drain is over: nothing is held, no submit open, no question or registration unanswered; or its time is
    /// up.
    pub(super) fn drained(&mut self) -> bool {
        let Some((give_up_calls, deadline)) = self.drain.as_ref().map(|drain| (drain.give_up_calls, drain.deadline))
        else {
            return false;
        };
        let now = Instant::now();
        if now >= give_up_calls && !self.running.is_empty() {
            let hung: Vec<_> = self.running.iter().map(|(job, running)| (*job, Arc::clone(&running.task))).collect();
            tracing::info!(calls = hung.len(), "calls that have not ended are given up");
            for (job, id) in hung {
                self.abort(job);
                self.release(&id);
            }
        }
        let quiet = self.held.is_empty()
            && self.running.is_empty()
            && self.asked.is_none()
            // A row that is registered after the end would stay live for a whole lease.
            && !self.registering
            && self.context.intents().is_empty();
        self.next_tick = self.next_tick.min(now + Duration::from_millis(100));
        quiet || now >= deadline
    }

    /// Leaves the register, whatever is still under way.
    pub(super) async fn retire(mut self) {
        if let Some(heartbeat) = self.heartbeat.take() {
            heartbeat.abort();
        }
        // What is registered from here on finds nobody to tell, and retires by itself.
        self.inbox.close();
        while let Ok(message) = self.inbox.try_recv() {
            if let Message::Reborn(Ok(incarnation)) = message {
                self.worker.get_or_insert(incarnation);
            }
        }
        if let Some(worker) = self.worker.take() {
            fleet::retire(&self.context, &worker).await;
        }
        self.context.set_incarnation(None);
        for reply in self.drain.into_iter().flat_map(|drain| drain.replies) {
            let _ = reply.send(());
        }
    }
}
