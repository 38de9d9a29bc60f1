//! Transports and the catalogue against the fake server.

mod catalogue;
mod http;
mod interceptors;
mod setup;
mod stdio;
