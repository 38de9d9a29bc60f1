-- Chains of OAuth tokens that a fleet continues together: one for each server and way of asking (`fingerprint`).
-- `sealed` holds the tokens, encrypted; `version` grows with each set of them, and `saved_by` tells a repeated write from
-- another. Who refreshes holds the lease; `interrupted` stays 1 from when a holder vanished until new tokens are saved.
CREATE TABLE oauth_tokens (
    server_name TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    version INTEGER NOT NULL,
    saved_by TEXT,
    sealed TEXT,
    expires_at INTEGER NOT NULL,
    lease_owner TEXT,
    lease_expires_at INTEGER NOT NULL,
    interrupted INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (server_name, fingerprint)
) STRICT;
