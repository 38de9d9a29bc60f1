//! Transports and the catalogue against the fake server.

mod catalogue;
mod hostile;
mod http;
mod setup;
mod stdio;
