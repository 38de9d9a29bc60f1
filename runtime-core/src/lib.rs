//! The embeddable core of `mcp-taskd`: durable background tasks over MCP tools.
//!
//! Modules are layers; each may use only those listed after it:
//! `service`, `worker` → `catalog`, `driver`, `credentials` → `upstream` → `store`, `config`, `contract` → `task` → `world`,
//! `clock`.
//! A test in the `tests` member enforces this.

pub mod catalog;
pub mod clock;
pub mod config;
pub mod contract;
pub mod credentials;
pub mod driver;
pub mod runtime;
pub mod service;
pub mod store;
pub mod task;
pub mod upstream;
pub mod worker;
pub mod world;
