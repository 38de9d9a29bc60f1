//! What is explored: how much may go wrong, and which fault is planted.

/// A fault planted into the protocol, to see that the model finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Variant {
    /// A write is guarded by its owner alone.
    GuardWithoutEpoch,
    /// A takeover frees the rows of the expired worker first and marks it dead afterwards.
    FreeBeforeMarkDead,
    /// A dead worker's row is deleted while a task still names it.
    RowDeletedEarly,
    /// What a worker owns and does not hold is never looked for.
    NoReconcile,
    /// After an unknown outcome the worker goes on as if nothing had been written.
    BlindRetry,
    /// A remote task is cancelled as compensation before its intent is closed.
    EarlyCompensation,
    /// A claim does not look whether its worker is live.
    ClaimWithoutLiveCheck,
}

/// How far the exploration goes. Every count is a budget for the whole run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope {
    /// Incarnations that may register.
    pub(crate) workers: u8,
    /// Whether the task starts as a submit of the first one, or is stored already.
    pub(crate) submit: bool,
    /// `idempotent_submit` of its toolset.
    pub(crate) idempotent: bool,
    /// Statements or calls whose answer is lost, that come late, or that never come.
    pub(crate) losses: u8,
    /// Processes that die.
    pub(crate) crashes: u8,
    /// Leases that run out under a living process.
    pub(crate) stalls: u8,
    /// Cancel requests: 0 or 1.
    pub(crate) cancels: u8,
    /// Drains that begin.
    pub(crate) drains: u8,
    /// Polls that fail and are written down, and tasks let go for balance.
    pub(crate) errors: u8,
    /// The planted fault.
    pub(crate) variant: Option<Variant>,
}
