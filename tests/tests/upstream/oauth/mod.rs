//! OAuth towards servers (BEHAVIOURS Q), against an OAuth server that rotates refresh tokens and revokes reused chains.

mod chains;
mod crashes;
mod failures;
mod fleet;
mod grants;
mod setup;
