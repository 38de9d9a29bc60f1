-- Small numbers that all processes of a fleet look at: `tool_cache` grows with each reset of the tool cache.
CREATE TABLE shared_state (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT;
