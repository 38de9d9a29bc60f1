//! Transports and the catalogue against the fake server.

mod callers;
mod catalogue;
mod children;
mod hostile;
mod http;
mod http_sse;
mod interceptors;
mod live;
mod metrics;
mod notices;
mod oauth;
mod setup;
mod stdio;
