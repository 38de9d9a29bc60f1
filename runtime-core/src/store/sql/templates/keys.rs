//! The statements about API keys.

use crate::store::sql::statements::{Sql, Template};

/// Columns of a [`crate::store::ApiKeyRecord`].
pub(in crate::store::sql) const KEY: &str =
    "id, user_id, scopes, secret_hash, created_at, expires_at, last_used_at, revoked_at";

impl Sql {
    pub(super) fn of_keys(self) -> Option<Template> {
        Some(match self {
            Self::InsertKey => Template::same(
                "insert_key",
                "ttttii",
                "INSERT INTO api_keys (id, user_id, scopes, secret_hash, created_at, expires_at)
                VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (id) DO NOTHING RETURNING id",
            ),
            Self::FindKey => Template::same("find_key", "t", "SELECT {key} FROM api_keys WHERE id = $1"),
            Self::ListKeys => Template::same(
                "list_keys",
                "iti",
                "SELECT {key} FROM api_keys WHERE (created_at, id) < ($1, $2) ORDER BY created_at DESC, id DESC LIMIT $3",
            ),
            Self::RevokeKey => Template::same(
                "revoke_key",
                "ti",
                "UPDATE api_keys SET revoked_at = coalesce(revoked_at, $2) WHERE id = $1 RETURNING {key}",
            ),
            Self::TouchKey => Template::same(
                "touch_key",
                "tii",
                "UPDATE api_keys SET last_used_at = $2 WHERE id = $1 AND (last_used_at IS NULL OR last_used_at <= $3)
                RETURNING id",
            ),
            _ => return None,
        })
    }
}
