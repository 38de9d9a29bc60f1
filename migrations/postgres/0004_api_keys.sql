-- API keys. Of a key's secret only a hash is here: who reads this table can call nobody with it.
CREATE TABLE api_keys (
    id TEXT COLLATE "C" PRIMARY KEY CHECK (length(id) <= 64),
    user_id TEXT NOT NULL CHECK (length(user_id) <= 255),
    -- Words parted by blanks; a word that a binary does not know gives nothing.
    scopes TEXT NOT NULL CHECK (length(scopes) <= 255),
    secret_hash TEXT NOT NULL CHECK (length(secret_hash) <= 255),
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    last_used_at BIGINT,
    revoked_at BIGINT
);

CREATE INDEX api_keys_newest ON api_keys (created_at, id);
