//! Generations, in one process.

use async_trait::async_trait;

use super::MemoryStore;
use crate::store::{Result, SharedState};

#[async_trait]
impl SharedState for MemoryStore {
    async fn generation(&self, name: &str) -> Result<i64> {
        Ok(self.state().generations.get(name).copied().unwrap_or_default())
    }

    async fn next_generation(&self, name: &str) -> Result<i64> {
        let mut state = self.state();
        let generation = state.generations.entry(name.to_owned()).or_default();
        *generation += 1;
        Ok(*generation)
    }
}
