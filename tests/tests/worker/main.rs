//! The worker and the service on a real store with scripted servers.

mod bench;
mod expiring;
mod faults;
mod handing_over;
mod isolation;
mod native;
mod overload;
mod polling;
mod submitting;
