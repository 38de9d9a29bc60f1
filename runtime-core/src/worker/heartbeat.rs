//! The heartbeat: one small update that keeps any number of tasks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;

use super::message::Message;
use super::{Context, Incarnation};
use crate::store::Heartbeat;

/// Between two heartbeats that are asked for, so that a burst of changes is published once.
const SHORTEST: Duration = Duration::from_secs(1);

/// Renews the lease every third of it, until the store refuses.
pub(super) async fn run(
    context: Arc<Context>,
    incarnation: Arc<Incarnation>,
    messages: mpsc::UnboundedSender<Message>,
) {
    let third = context.options.lease / 3;
    let mut wait = third;
    loop {
        let jittered = wait.mul_f64(0.9 + fastrand::f64() / 10.0);
        let shortest = tokio::time::Instant::now() + SHORTEST.min(jittered);
        tokio::select! {
            biased;
            () = tokio::time::sleep(jittered) => {}
            () = context.publish.notified() => tokio::time::sleep_until(shortest).await,
        }
        let sent = context.boot();
        match context.store.heartbeat(&incarnation.id, context.held.load(Ordering::Relaxed)).await {
            Ok(Heartbeat::Renewed { now_ms }) => {
                context.clock.discipline(now_ms, sent);
                context.set_renewed(sent);
                wait = third;
                if messages.send(Message::Renewed).is_err() {
                    // The actor is gone without a drain: the lease must run out, so that others take its tasks over.
                    return;
                }
            }
            Ok(Heartbeat::Refused) => {
                let _ = messages.send(Message::Refused(Arc::clone(&incarnation.id)));
                return;
            }
            Err(error) => {
                tracing::warn!(worker = %incarnation.id, %error, "heartbeat failed");
                wait = (third / 10).clamp(Duration::from_millis(100), Duration::from_secs(1));
            }
        }
    }
}
