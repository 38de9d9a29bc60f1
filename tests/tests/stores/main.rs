//! One behaviour suite over all three stores, and what only one engine can show.
//!
//! Each behaviour is an async function that gets a fresh, empty store; `behaviours!` makes a test of it on each store.

mod bench;
mod cancel;
mod claims;
mod corrupt;
mod deliveries;
mod figures;
mod intents;
mod keys;
mod migrations;
mod payloads;
mod pooler;
mod postgres;
mod queries;
mod schema;
mod shared;
mod sqlite;
mod takeover;
mod tokens;
mod upgrades;
mod wakeups;
mod writes;
