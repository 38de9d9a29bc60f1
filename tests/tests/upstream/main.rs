//! Transports and the catalogue against the fake server.

mod callers;
mod catalogue;
mod children;
mod hostile;
mod http;
mod http_sse;
mod interceptors;
mod limits;
mod live;
mod metrics;
mod native;
mod notices;
mod oauth;
mod setup;
mod stdio;
mod unruly;
