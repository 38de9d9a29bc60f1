//! Wake-ups among the workers of this process.

use async_trait::async_trait;
use tokio::sync::broadcast;

use super::MemoryStore;
use crate::store::{News, Result, Wakeup, Wakeups};

#[async_trait]
impl Wakeups for MemoryStore {
    fn wake(&self, what: Wakeup) {
        self.wakeups.wake(what);
    }

    fn wakeups(&self) -> broadcast::Receiver<Wakeup> {
        self.wakeups.subscribe()
    }

    async fn news(&self, after: i64, limit: u32) -> Result<News> {
        let state = self.state();
        let newest = state.events.iter().rev().take_while(|event| event.sequence > after).take(limit as usize);
        let tasks = newest.map(|event| (event.task_id.as_str().into(), event.thread_id.as_str().into())).collect();
        Ok(News { sequence: state.events.last().map_or(0, |event| event.sequence), tasks })
    }
}
