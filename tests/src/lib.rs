//! The harness that scenarios and suites share.

pub mod postgres;
