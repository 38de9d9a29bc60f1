//! The submit of the first incarnation's process, from the intent to its end.
//!
//! Keep in step with `runtime-core/src/service/submit.rs`; the stages are its functions. The flow outlives a refused
//! heartbeat and dies with its process.

use crate::scope::{Scope, Variant};
use crate::store::{Answer, Change, End, Remote, Row, Source, Statement, Status, is_active};
use crate::worker::Life;
use crate::world::World;

/// Where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Stage {
    /// `open`: before the intent is sent.
    #[default]
    Ready,
    /// `open`: `insert_intent` is sent.
    Inserting,
    /// `run`: the server is asked.
    Calling {
        epoch: u8,
    },
    /// `record`.
    Recording {
        epoch: u8,
        remote: Remote,
    },
    /// `after_stale`: the row tells.
    Checking {
        remote: Remote,
    },
    /// `after_stale`: `close_freed_intent` is sent.
    ClosingFreed {
        epoch: u8,
        remote: Remote,
    },
    /// `discard`; a handle that came with a refusal is cancelled afterwards.
    Discarding {
        epoch: u8,
        remote: Option<Remote>,
    },
    /// `close_unknown`; a handle that could not be recorded is cancelled afterwards.
    Closing {
        epoch: u8,
        remote: Option<Remote>,
    },
    /// `compensate`: before and after the question whether somebody tracks it.
    Compensating {
        remote: Remote,
        asked: bool,
    },
    Over,
}

/// The flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Submit {
    pub(crate) stage: Stage,
    /// The caller was told that the task is tracked.
    pub(crate) acknowledged: bool,
}

/// What becomes of the flow's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    /// It is executed and answered.
    Done,
    /// Executed, but nobody learns of it.
    Unheard,
    /// Not executed yet, and perhaps never.
    Late,
    /// The server refuses; with a handle (152) or without.
    Refused { handle: bool },
    /// Patience ends, or the store refuses the values.
    GivenUp,
}

impl Submit {
    /// The process still works on it (`OpenIntent`).
    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.stage, Stage::Ready | Stage::Over)
    }
}

const UNKNOWN: Change = Change { source: Source::Own, end: Some(End::Unknown), version: 0, release: true };

impl World {
    /// Takes the flow's next step.
    pub(crate) fn step_submit(&mut self, fate: Fate, scope: &Scope) -> bool {
        if self.workers[0].life == Life::Gone {
            return false;
        }
        let next = match self.submit.stage {
            Stage::Over => None,
            Stage::Ready => {
                let may = self.is_up(0) && !self.workers[0].draining && fate == Fate::Done;
                may.then_some(Stage::Inserting)
            }
            Stage::Calling { epoch } => self.call_submit(epoch, fate, scope),
            Stage::Checking { remote } => (fate == Fate::Done).then(|| self.check(remote)).flatten(),
            Stage::Compensating { remote, asked } => (fate == Fate::Done).then(|| self.compensate(remote, asked)),
            stage => self.execute_stage(stage, fate, scope),
        };
        if let Some(stage) = next {
            self.submit.stage = stage;
        }
        next.is_some()
    }

    fn call_submit(&mut self, epoch: u8, fate: Fate, scope: &Scope) -> Option<Stage> {
        Some(match fate {
            Fate::Done => Stage::Recording { epoch, remote: self.server.submit(scope.idempotent) },
            Fate::Unheard => {
                self.server.submit(scope.idempotent);
                Stage::Closing { epoch, remote: None }
            }
            Fate::Late => {
                self.server.arriving = true;
                Stage::Closing { epoch, remote: None }
            }
            Fate::Refused { handle: false } => Stage::Discarding { epoch, remote: None },
            Fate::Refused { handle: true } => {
                let remote = self.server.submit(scope.idempotent);
                Stage::Discarding { epoch, remote: Some(remote) }
            }
            Fate::GivenUp => return None,
        })
    }

    /// A stage that is one statement.
    fn execute_stage(&mut self, stage: Stage, fate: Fate, scope: &Scope) -> Option<Stage> {
        let statement = match stage {
            Stage::Inserting => Statement::Insert { worker: 0 },
            Stage::Recording { epoch, remote } => Statement::Record { worker: 0, epoch, remote },
            Stage::ClosingFreed { epoch, .. } => Statement::CloseFreed { epoch },
            Stage::Discarding { epoch, .. } => Statement::Discard { worker: 0, epoch },
            Stage::Closing { epoch, .. } => Statement::Apply { worker: 0, epoch, change: UNKNOWN },
            _ => return None,
        };
        match fate {
            Fate::Done => {
                let answer = self.store.execute(statement, scope.variant);
                Some(self.answered(stage, answer))
            }
            Fate::Unheard => {
                self.store.execute(statement, scope.variant);
                Some(unheard(stage, scope.variant))
            }
            Fate::Late => self.send_late(statement).then(|| unheard(stage, scope.variant)),
            Fate::GivenUp => match stage {
                Stage::Recording { epoch, remote } => Some(Stage::Closing { epoch, remote: Some(remote) }),
                // A refused handle whose intent cannot be deleted in time is on the log only (docs/ARCHITECTURE.md, limits).
                Stage::Discarding { remote: None, .. } | Stage::Closing { .. } => Some(Stage::Over),
                _ => None,
            },
            Fate::Refused { .. } => None,
        }
    }

    fn answered(&mut self, stage: Stage, answer: Answer) -> Stage {
        match (stage, answer) {
            (Stage::Inserting, Answer::Row(Some(row))) => Stage::Calling { epoch: row.epoch },
            (Stage::Recording { .. }, Answer::Row(Some(row))) => {
                self.submit.acknowledged = true;
                if row.owner == Some(0) && self.is_up(0) {
                    self.hold(0, row);
                }
                Stage::Over
            }
            (Stage::Recording { remote, .. } | Stage::ClosingFreed { remote, .. }, Answer::Stale) => {
                Stage::Checking { remote }
            }
            (Stage::ClosingFreed { remote, .. }, Answer::Row(_)) => Stage::Compensating { remote, asked: false },
            (Stage::Discarding { remote, .. } | Stage::Closing { remote, .. }, answer) => {
                // After a stale answer the row tells whether it is closed for certain.
                let closed = answer != Answer::Stale
                    || self.store.row.is_none_or(|row| !is_active(&row) && row.remote.is_none());
                match remote {
                    Some(remote) if closed => Stage::Compensating { remote, asked: false },
                    _ => Stage::Over,
                }
            }
            _ => Stage::Over,
        }
    }

    fn check(&mut self, remote: Remote) -> Option<Stage> {
        let compensate = Some(Stage::Compensating { remote, asked: false });
        match self.store.row {
            Some(row) if row.remote == Some(remote) => {
                self.submit.acknowledged = true;
                Some(Stage::Over)
            }
            None => compensate,
            Some(row) if row.remote.is_some() || !is_active(&row) => compensate,
            Some(Row { owner: None, epoch, status: Status::Submitting, .. }) => {
                Some(Stage::ClosingFreed { epoch, remote })
            }
            // Another worker is resolving it: look again later.
            Some(_) => None,
        }
    }

    fn compensate(&mut self, remote: Remote, asked: bool) -> Stage {
        if !asked {
            let tracked = self.store.row.is_some_and(|row| row.remote == Some(remote));
            return if tracked { Stage::Over } else { Stage::Compensating { remote, asked: true } };
        }
        self.server.compensate(remote);
        Stage::Over
    }
}

/// Where a statement of unknown outcome leaves the flow.
fn unheard(stage: Stage, variant: Option<Variant>) -> Stage {
    match stage {
        // The caller is told that the store does not answer; reconciling finds the row if there is one.
        Stage::Inserting => Stage::Over,
        Stage::ClosingFreed { remote, .. } => Stage::Checking { remote },
        Stage::Recording { remote, .. } if variant == Some(Variant::EarlyCompensation) => {
            Stage::Compensating { remote, asked: false }
        }
        again => again,
    }
}
