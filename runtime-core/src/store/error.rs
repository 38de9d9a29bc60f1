//! Errors of a store, sorted by what a caller does about them.

/// What a caller does about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreErrorKind {
    /// Nothing was executed: try again.
    Unavailable,
    /// Whether the statement took effect is unknown: re-read before anything else (FAILURES 23).
    Unknown,
    /// Serialisation failure or deadlock; rolled back: try again with jitter (FAILURES 12).
    Conflict,
    /// A value the store refuses: do not try the same again; split a batch.
    Data,
    /// A row that cannot be decoded (FAILURES 27).
    Corrupt,
    /// The schema is not the one this binary needs.
    Schema,
}

impl StoreErrorKind {
    /// Every kind.
    pub const ALL: [Self; 6] =
        [Self::Unavailable, Self::Unknown, Self::Conflict, Self::Data, Self::Corrupt, Self::Schema];

    /// The metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Unknown => "unknown",
            Self::Conflict => "conflict",
            Self::Data => "data",
            Self::Corrupt => "corrupt",
            Self::Schema => "schema",
        }
    }
}

/// A store's error. Its text may name tables and columns, so it goes to the log, not to clients.
#[derive(Debug, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct StoreError {
    /// What to do about it.
    pub kind: StoreErrorKind,
    /// The statement or operation that failed.
    pub operation: &'static str,
    /// What the store said.
    pub message: String,
}

impl StoreError {
    /// An error of this kind.
    pub fn new(kind: StoreErrorKind, operation: &'static str, message: impl Into<String>) -> Self {
        Self { kind, operation, message: message.into() }
    }

    /// Whether nothing is wrong with the request itself, so that a later attempt may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Unavailable | StoreErrorKind::Unknown | StoreErrorKind::Conflict)
    }
}
