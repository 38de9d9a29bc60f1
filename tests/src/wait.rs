//! Waiting for a condition instead of sleeping.

use std::time::Duration;

use tokio::time::Instant;

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `condition` holds; panics with `what` after [`PATIENCE`].
pub async fn until<F: Future<Output = bool>>(what: &str, condition: impl FnMut() -> F) {
    until_within(what, PATIENCE, condition).await;
}

/// Waits until `condition` holds; panics with `what` after `patience`. How long it took.
pub async fn until_within<F: Future<Output = bool>>(
    what: &str,
    patience: Duration,
    mut condition: impl FnMut() -> F,
) -> Duration {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < patience, "not within {patience:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    started.elapsed()
}
