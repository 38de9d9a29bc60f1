//! The contract of submit, status and cancel tools, and of MCP's own tasks: lenient to read, strict in what a task needs
//! (BEHAVIOURS A, 131–136).
//!
//! Pure functions from an answer to what it means; no I/O.

mod answer;
mod cancel;
mod native;
mod status;
mod submit;

pub use answer::{Snippet, ToolAnswer};
pub use cancel::{CancelReading, read_cancel};
pub use native::{
    Created, Handle, NotCreated, TaskReading, failed_with, not_found, read_created, read_result, read_task,
};
pub use status::{StatusReading, read_status};
pub use submit::{Refusal, read_submit};
