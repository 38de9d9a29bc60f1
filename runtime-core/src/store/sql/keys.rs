//! API keys.

use async_trait::async_trait;

use super::engine::{Lane, SqlRow};
use super::statements::Sql;
use super::{SqlStore, rows};
use crate::clock::Millis;
use crate::store::{ApiKeyRecord, ApiKeys, Page, Result, StoreError, StoreErrorKind, bounds};

#[async_trait]
impl ApiKeys for SqlStore {
    async fn insert_key(&self, key: &ApiKeyRecord) -> Result<()> {
        bounds::check_key(key)?;
        let values = [
            (&key.id).into(),
            (&key.user_id).into(),
            (&key.scopes).into(),
            (&key.secret_hash).into(),
            key.created_at.into(),
            key.expires_at.into(),
        ];
        match self.engine.fetch_one(Lane::Write, Sql::InsertKey, &values).await? {
            Some(_) => Ok(()),
            None => Err(StoreError::new(StoreErrorKind::Data, "insert_key", "the id is taken")),
        }
    }

    async fn find_key(&self, id: &str) -> Result<Option<ApiKeyRecord>> {
        if bounds::unstorable([Some(id)]) {
            return Ok(None);
        }
        self.engine.fetch_one(Lane::Read, Sql::FindKey, &[id.into()]).await?.map(|row| key(&row)).transpose()
    }

    async fn list_keys(&self, page: &Page) -> Result<Vec<ApiKeyRecord>> {
        let (at, id) = page.after.as_ref().map_or((i64::MAX, ""), |(at, id)| (*at, id));
        let rows = self.engine.fetch(Lane::Read, Sql::ListKeys, &[at.into(), id.into(), page.limit.into()]).await?;
        Ok(rows::readable(&rows, key))
    }

    async fn revoke_key(&self, id: &str, at: Millis) -> Result<Option<ApiKeyRecord>> {
        if bounds::unstorable([Some(id)]) {
            return Ok(None);
        }
        let row = self.engine.fetch_one(Lane::Write, Sql::RevokeKey, &[id.into(), at.into()]).await?;
        row.map(|row| key(&row)).transpose()
    }

    async fn touch_key(&self, id: &str, at: Millis, every_ms: i64) -> Result<()> {
        let before = at.saturating_sub(every_ms);
        self.engine.fetch(Lane::Write, Sql::TouchKey, &[id.into(), at.into(), before.into()]).await.map(|_| ())
    }
}

fn key(row: &SqlRow) -> Result<ApiKeyRecord> {
    let cells = rows::Cells::new(row, "api_keys", "id");
    Ok(ApiKeyRecord {
        id: cells.text("id")?,
        user_id: cells.text("user_id")?,
        scopes: cells.text("scopes")?,
        secret_hash: cells.text("secret_hash")?,
        created_at: cells.int("created_at")?,
        expires_at: cells.find_int("expires_at")?,
        last_used_at: cells.find_int("last_used_at")?,
        revoked_at: cells.find_int("revoked_at")?,
    })
}
