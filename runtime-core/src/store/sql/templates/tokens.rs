//! Chains of OAuth tokens.

use crate::store::sql::statements::{Sql, Template};

/// What is answered of a chain, with the time that its access token has left by this clock.
pub(in crate::store::sql) const CHAIN: &str =
    "server_name, version, sealed, expires_at - {now_ms} AS remaining_ms, interrupted";

/// Takes a lease that is free, over or one's own; the row is made where there is none. Whoever finds a lease that was never
/// given back takes note of that.
const CLAIM: &str = "INSERT INTO oauth_tokens AS t (server_name, fingerprint, version, expires_at, lease_owner,
        lease_expires_at, interrupted, updated_at)
    VALUES ($1, $2, 0, 0, $3, {now_ms} + $4, 0, {now_ms})
    ON CONFLICT (server_name, fingerprint) DO UPDATE SET lease_owner = $3, lease_expires_at = {now_ms} + $4,
        interrupted = CASE WHEN t.lease_owner <> $3 THEN 1 ELSE t.interrupted END
    WHERE t.lease_owner IS NULL OR t.lease_owner = $3 OR t.lease_expires_at <= {now_ms}
    RETURNING {chain}";

/// Guarded by the version, not by the lease: tokens that were obtained are not thrown away because their holder was slow. Where
/// the row was deleted meanwhile it is made anew.
const SAVE: &str = "INSERT INTO oauth_tokens AS t (server_name, fingerprint, saved_by, version, sealed, expires_at,
        lease_expires_at, interrupted, updated_at)
    VALUES ($1, $2, $3, $4, $5, {now_ms} + $6, 0, 0, {now_ms})
    ON CONFLICT (server_name, fingerprint) DO UPDATE SET saved_by = $3, version = $4, sealed = $5,
        expires_at = {now_ms} + $6, interrupted = 0, updated_at = {now_ms},
        lease_owner = CASE WHEN t.lease_owner = $3 THEN NULL ELSE t.lease_owner END
    WHERE t.version < $4 OR (t.version = $4 AND t.saved_by = $3)
    RETURNING version";

impl Sql {
    pub(super) fn of_tokens(self) -> Option<Template> {
        Some(match self {
            Self::FindChain => Template::same(
                "find_chain",
                "tt",
                "SELECT {chain} FROM oauth_tokens WHERE server_name = $1 AND fingerprint = $2",
            ),
            Self::ClaimRefresh => Template::same("claim_refresh", "ttti", CLAIM),
            Self::RenewRefresh => Template::same(
                "renew_refresh",
                "ttti",
                "UPDATE oauth_tokens SET lease_expires_at = {now_ms} + $4
                WHERE server_name = $1 AND fingerprint = $2 AND lease_owner = $3 RETURNING version",
            ),
            Self::ReleaseRefresh => Template::same(
                "release_refresh",
                "ttti",
                "UPDATE oauth_tokens SET lease_owner = NULL,
                    interrupted = CASE WHEN $4 = 1 THEN 1 ELSE interrupted END
                WHERE server_name = $1 AND fingerprint = $2 AND lease_owner = $3 RETURNING version",
            ),
            Self::SaveChain => Template::same("save_chain", "tttiti", SAVE),
            Self::RetainChains => Template::same(
                "retain_chains",
                "t",
                // Users' own connections are not the file's.
                "DELETE FROM oauth_tokens WHERE server_name NOT IN ({texts:1}) \
                 AND NOT (server_name LIKE 'personal!_%' ESCAPE '!' AND length(server_name) = 41) RETURNING server_name",
            ),
            _ => return None,
        })
    }
}
