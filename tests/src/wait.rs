//! Waiting for a condition instead of sleeping.

use std::time::Duration;

use tokio::time::Instant;

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

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
        tokio::time::sleep(LOOK_EVERY).await;
    }
    started.elapsed()
}

/// Waits until `value` has stood still for `length`, and returns it; panics with `what` after [`PATIENCE`] and that.
pub async fn until_still<T: PartialEq>(what: &str, length: Duration, mut value: impl FnMut() -> T) -> T {
    let started = Instant::now();
    let (mut seen, mut since) = (value(), Instant::now());
    while since.elapsed() < length {
        assert!(started.elapsed() < PATIENCE + length, "never still for {length:?}: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
        let now = value();
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
    }
    seen
}
