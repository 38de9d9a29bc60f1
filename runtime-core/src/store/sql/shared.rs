//! Generations that all processes of a fleet look at.

use async_trait::async_trait;

use super::engine::{Lane, SqlRow};
use super::statements::Sql;
use super::{SqlStore, rows};
use crate::store::{Result, SharedState, StoreError, StoreErrorKind};

#[async_trait]
impl SharedState for SqlStore {
    async fn generation(&self, name: &str) -> Result<i64> {
        let row = self.engine.fetch_one(Lane::Read, Sql::Generation, &[name.into()]).await?;
        row.map_or(Ok(0), |row| value(&row))
    }

    async fn next_generation(&self, name: &str) -> Result<i64> {
        match self.engine.fetch_one(Lane::Write, Sql::NextGeneration, &[name.into()]).await? {
            Some(row) => value(&row),
            None => Err(StoreError::new(StoreErrorKind::Unknown, "next_generation", "no answer")),
        }
    }
}

fn value(row: &SqlRow) -> Result<i64> {
    rows::Cells::new(row, "shared_state", "name").int("value")
}
