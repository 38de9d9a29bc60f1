//! Chains of tokens that a fleet continues together.

use async_trait::async_trait;

use super::engine::{Lane, SqlRow};
use super::statements::Sql;
use super::{SqlStore, rows};
use crate::store::{ChainKey, ChainRow, Result, SealedTokens, StoreError, StoreErrorKind, TokenChains};

#[async_trait]
impl TokenChains for SqlStore {
    async fn find_chain(&self, key: &ChainKey) -> Result<Option<ChainRow>> {
        let values = [(&key.server_name).into(), (&key.fingerprint).into()];
        let row = self.engine.fetch_one(Lane::Read, Sql::FindChain, &values).await?;
        row.as_ref().map(chain).transpose()
    }

    async fn claim_refresh(&self, key: &ChainKey, holder: &str, lease_ms: i64) -> Result<Option<ChainRow>> {
        let values = [(&key.server_name).into(), (&key.fingerprint).into(), holder.into(), lease_ms.into()];
        let row = self.engine.fetch_one(Lane::Write, Sql::ClaimRefresh, &values).await?;
        row.as_ref().map(chain).transpose()
    }

    async fn renew_refresh(&self, key: &ChainKey, holder: &str, lease_ms: i64) -> Result<bool> {
        let values = [(&key.server_name).into(), (&key.fingerprint).into(), holder.into(), lease_ms.into()];
        Ok(self.engine.fetch_one(Lane::Write, Sql::RenewRefresh, &values).await?.is_some())
    }

    async fn release_refresh(&self, key: &ChainKey, holder: &str, lost: bool) -> Result<()> {
        let values = [(&key.server_name).into(), (&key.fingerprint).into(), holder.into(), lost.into()];
        self.engine.fetch_one(Lane::Write, Sql::ReleaseRefresh, &values).await?;
        Ok(())
    }

    async fn save_chain(&self, key: &ChainKey, tokens: SealedTokens<'_>) -> Result<bool> {
        let values = [
            (&key.server_name).into(),
            (&key.fingerprint).into(),
            tokens.holder.into(),
            tokens.version.into(),
            tokens.sealed.into(),
            tokens.remaining_ms.into(),
        ];
        Ok(self.engine.fetch_one(Lane::Write, Sql::SaveChain, &values).await?.is_some())
    }

    async fn retain_chains(&self, servers: &[String]) -> Result<u64> {
        let servers = serde_json::to_string(servers)
            .map_err(|error| StoreError::new(StoreErrorKind::Data, "retain_chains", error.to_string()))?;
        let gone = self.engine.fetch(Lane::Write, Sql::RetainChains, &[(&servers).into()]).await?;
        Ok(gone.len() as u64)
    }
}

fn chain(row: &SqlRow) -> Result<ChainRow> {
    let cells = rows::Cells::new(row, "oauth_tokens", "server_name");
    Ok(ChainRow {
        version: cells.int("version")?,
        sealed: cells.find_text("sealed")?,
        remaining_ms: cells.int("remaining_ms")?,
        interrupted: cells.int("interrupted")? != 0,
    })
}
