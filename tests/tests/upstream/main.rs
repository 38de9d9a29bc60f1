//! Transports and the catalogue against the fake server.

mod catalogue;
mod http;
mod live;
mod setup;
mod stdio;
