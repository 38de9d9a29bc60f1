//! What the process says to the one that started it (INTERFACE, exit codes).

use mcp_taskd_core::config::ConfigError;
use mcp_taskd_core::service::ServiceError;
use mcp_taskd_core::store::{StoreError, StoreErrorKind};

/// The exit codes, as in `sysexits.h` where it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The operation failed; also a drain that a second signal or the grace period cut short.
    Failed = 1,
    /// The command line is wrong.
    Usage = 64,
    /// The store cannot be reached.
    Unavailable = 69,
    /// It may work later.
    Temporary = 75,
    /// The configuration cannot be used.
    Config = 78,
}

/// Why a command ends badly: a message for people and a code for scripts.
#[derive(Debug)]
pub struct Failure {
    /// The code.
    pub exit: Exit,
    /// The message and its causes.
    pub error: anyhow::Error,
}

/// The result of a command.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with a message of our own.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, error: anyhow::Error::msg(message.into()) }
    }

    /// A wrong command line.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// A failed operation.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { exit: Exit::Failed, error }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self { exit: Exit::Config, error: error.into() }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let exit = match error.kind {
            StoreErrorKind::Unavailable | StoreErrorKind::Unknown => Exit::Unavailable,
            StoreErrorKind::Conflict => Exit::Temporary,
            StoreErrorKind::Schema => Exit::Config,
            StoreErrorKind::Data | StoreErrorKind::Corrupt => Exit::Failed,
        };
        Self { exit, error: error.into() }
    }
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        let exit = match error {
            ServiceError::Unavailable => Exit::Unavailable,
            ServiceError::Draining => Exit::Temporary,
            _ => Exit::Failed,
        };
        let recorded = match &error {
            ServiceError::OutcomeUnknown { task_id, .. } => Some(format!("{error} (recorded as {task_id})")),
            _ => None,
        };
        Self { exit, error: recorded.map_or_else(|| error.into(), anyhow::Error::msg) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_end_with_the_codes_that_the_interface_names() {
        assert_eq!(Failure::from(ConfigError("x".into())).exit as u8, 78);
        assert_eq!(Failure::from(StoreError::new(StoreErrorKind::Unavailable, "open", "x")).exit as u8, 69);
        assert_eq!(Failure::from(StoreError::new(StoreErrorKind::Schema, "open", "x")).exit as u8, 78);
        assert_eq!(Failure::from(ServiceError::Draining).exit as u8, 75);
        assert_eq!(Failure::from(ServiceError::NotFound("x".into())).exit as u8, 1);
        assert_eq!(Failure::usage("x").exit as u8, 64);
        let unknown = ServiceError::OutcomeUnknown { task_id: "mcp-task-1".into(), message: "no answer".into() };
        assert!(Failure::from(unknown).error.to_string().contains("mcp-task-1"), "145");
    }
}
