//! How the process feels: what the probes ask.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a worker loop may be silent before the process counts as stuck; its ticks are a second at most.
pub const MAX_SILENCE: Duration = Duration::from_mins(1);

/// How long ago the worker loop last ran; liveness asks it and nothing else, never the database.
pub type Pulse = Box<dyn Fn() -> Duration + Send + Sync>;

/// Whether the worker's lease is certain; without it nothing is polled and no submit recorded.
pub type Lease = Box<dyn Fn() -> bool + Send + Sync>;

/// The process's own state.
pub struct Health {
    started: AtomicBool,
    polls: bool,
    pulse: Pulse,
    lease: Lease,
}

impl Health {
    /// A process that is starting; `polls` where it polls tasks.
    pub fn new(polls: bool, pulse: Pulse, lease: Lease) -> Self {
        Self { started: AtomicBool::new(false), polls, pulse, lease }
    }

    /// Whether the worker's lease is certain.
    pub fn is_leased(&self) -> bool {
        (self.lease)()
    }

    /// Start-up is over.
    pub fn set_started(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// Whether start-up is over.
    pub fn is_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    /// Whether this process polls (35).
    pub fn polls(&self) -> bool {
        self.polls
    }

    /// Whether the worker loop still turns.
    pub fn is_live(&self) -> bool {
        (self.pulse)() < MAX_SILENCE
    }
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health")
            .field("started", &self.is_started())
            .field("polls", &self.polls)
            .finish_non_exhaustive()
    }
}
