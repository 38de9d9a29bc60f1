//! What a task is and how it changes: pure types and functions, without I/O, clocks or randomness of their own.

mod event;
pub mod json;
pub mod limits;
mod personal;
mod record;
pub mod schedule;
mod snapshot;
mod status;
pub mod transition;

pub use event::{EventKind, fingerprint};
pub use json::Json;
pub use limits::Limits;
pub use personal::{PERSONAL, is_personal, personal_name, server_label};
pub use record::{Binding, TaskRecord, Toolset, Tracked};
pub use schedule::Policy;
pub(crate) use snapshot::hex;
pub use snapshot::{Outcome, Snapshot};
pub use status::{ParseStatusError, Status};
pub use transition::{Change, ChangeKind, Decision, Failure, FailureKind};
