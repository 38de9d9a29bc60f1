//! What all processes of a fleet look at.

use async_trait::async_trait;

use super::Result;

/// Generations: numbers that grow, one a name, seen by every process on the same store.
#[async_trait]
pub trait SharedState: Send + Sync {
    /// The generation of `name`; 0 where nobody has begun another yet.
    async fn generation(&self, name: &str) -> Result<i64>;

    /// Begins the next generation of `name`, and returns it.
    async fn next_generation(&self, name: &str) -> Result<i64>;
}
