//! The worker and the service on a real store with scripted servers.

mod bench;
mod faults;
mod isolation;
mod polling;
mod submitting;
