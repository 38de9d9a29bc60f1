//! API keys, in one process.

use async_trait::async_trait;

use super::MemoryStore;
use crate::clock::Millis;
use crate::store::{ApiKeyRecord, ApiKeys, Page, Result, StoreError, StoreErrorKind, bounds};

#[async_trait]
impl ApiKeys for MemoryStore {
    async fn insert_key(&self, key: &ApiKeyRecord) -> Result<()> {
        bounds::check_key(key)?;
        let keys = &mut self.state().keys;
        if keys.contains_key(&key.id) {
            return Err(StoreError::new(StoreErrorKind::Data, "insert_key", "the id is taken"));
        }
        keys.insert(key.id.clone(), key.clone());
        Ok(())
    }

    async fn find_key(&self, id: &str) -> Result<Option<ApiKeyRecord>> {
        Ok(self.state().keys.get(id).cloned())
    }

    async fn list_keys(&self, page: &Page) -> Result<Vec<ApiKeyRecord>> {
        let state = self.state();
        let wanted =
            |key: &&ApiKeyRecord| page.after.as_ref().is_none_or(|(at, id)| (key.created_at, &key.id) < (*at, id));
        let mut keys: Vec<_> = state.keys.values().filter(wanted).cloned().collect();
        keys.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
        keys.truncate(page.limit as usize);
        Ok(keys)
    }

    async fn revoke_key(&self, id: &str, at: Millis) -> Result<Option<ApiKeyRecord>> {
        let mut state = self.state();
        let Some(key) = state.keys.get_mut(id) else { return Ok(None) };
        key.revoked_at.get_or_insert(at);
        Ok(Some(key.clone()))
    }

    async fn touch_key(&self, id: &str, at: Millis, every_ms: i64) -> Result<()> {
        if let Some(key) = self.state().keys.get_mut(id)
            && key.last_used_at.is_none_or(|last| last <= at.saturating_sub(every_ms))
        {
            key.last_used_at = Some(at);
        }
        Ok(())
    }
}
