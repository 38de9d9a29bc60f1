//! The contract of submit, status and cancel tools: lenient to read, strict in what a task needs (BEHAVIOURS A, 131–136).
//!
//! Pure functions from a tool's answer to what it means; no I/O.

mod answer;
mod cancel;
mod status;
mod submit;

pub use answer::{Snippet, ToolAnswer};
pub use cancel::{CancelReading, read_cancel};
pub use status::{StatusReading, read_status};
pub use submit::{Refusal, read_submit};
