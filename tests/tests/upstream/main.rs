//! Transports and the catalogue against the fake server.

mod catalogue;
mod http;
mod interceptors;
mod live;
mod setup;
mod stdio;
