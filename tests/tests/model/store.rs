//! The store: one task's row, the register of workers, and statements that are atomic but may be late.
//!
//! Keep in step with `runtime-core/src/store/sql/templates.rs` (guards) and `store/mod.rs` (promises).

use crate::scope::Variant;

/// How many incarnations there can be; the last is kept for the recovery that a state is judged by.
pub(crate) const WORKERS: usize = 4;

/// An incarnation, by its place.
pub(crate) type Id = u8;

/// A remote task, by its place on the server.
pub(crate) type Remote = u8;

/// An incarnation's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Registered {
    /// Not yet inserted.
    #[default]
    Absent,
    /// `live = 1`. Its lease may have ended by the store's clock (`stale`) since the last heartbeat.
    Live {
        /// What the observer's rule needs (`worker/observer.rs`), abstracted to one bit.
        stale: bool,
        /// Only for [`Variant::FreeBeforeMarkDead`]: its rows were freed since the last heartbeat.
        freed: bool,
    },
    /// `live = 0`; absorbing.
    Dead,
    /// The row is gone.
    Deleted,
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum End {
    /// As the server said.
    Completed,
    /// As the server said.
    Cancelled,
    /// `submit_outcome_unknown`.
    Unknown,
}

/// `mcp_tasks.status`, as far as the protocol looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Status {
    /// An intent.
    Submitting,
    /// Tracked.
    Active,
    /// Terminal.
    Ended(End),
}

/// The task's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) status: Status,
    pub(crate) owner: Option<Id>,
    pub(crate) epoch: u8,
    pub(crate) remote: Option<Remote>,
    /// `cancel_requested_at` is set.
    pub(crate) cancel: bool,
    /// How far the server's work was by the answer that is stored.
    pub(crate) version: u8,
}

/// Who decided a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Source {
    /// An answer or an error of a poll.
    Poll,
    /// A cancel's answer.
    Cancel,
    /// An end of the daemon's own making, or a release.
    Own,
}

/// What a guarded write changes (`task/transition.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Change {
    pub(crate) source: Source,
    /// The new status where it is terminal.
    pub(crate) end: Option<End>,
    /// The version that the answer showed; 0 where there was none.
    pub(crate) version: u8,
    pub(crate) release: bool,
}

/// A statement whose fate matters: it executes now, late or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Statement {
    /// `claim_polls`, `claim_cancels`.
    Claim { worker: Id },
    /// `apply`.
    Apply { worker: Id, epoch: u8, change: Change },
    /// `insert_intent`.
    Insert { worker: Id },
    /// `record_submitted`.
    Record { worker: Id, epoch: u8, remote: Remote },
    /// `discard_intent`.
    Discard { worker: Id, epoch: u8 },
    /// `close_freed_intent`.
    CloseFreed { epoch: u8 },
}

/// What a statement answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    /// The row, as it now is; nothing was done where there is none.
    Row(Option<Row>),
    /// Refused by its guards.
    Stale,
}

/// A promise that was broken; the state that shows it is the counterexample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Breach {
    /// A write by somebody who was not the owner at that epoch took effect.
    StaleWrite,
    /// A poll's answer was applied after a cancel had been recorded.
    PollAfterCancel,
    /// An answer was applied after a newer one had been handed to the store.
    Overtaken,
    /// A task ended twice.
    EndedTwice,
}

/// Everything durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub(crate) workers: [Registered; WORKERS],
    pub(crate) row: Option<Row>,
    /// Events of terminal transitions.
    pub(crate) ends: u8,
    /// The newest answer that the owner has handed over in a write of the row as it is now.
    pub(crate) newest: u8,
    pub(crate) breach: Option<Breach>,
}

impl Store {
    pub(crate) fn is_live(&self, worker: Id) -> bool {
        matches!(self.workers[usize::from(worker)], Registered::Live { .. })
    }

    /// A write of `worker` at `epoch` is handed over; one that is stale already can win over nothing.
    pub(crate) fn hand_over(&mut self, worker: Id, epoch: u8, version: u8) {
        if self.row.is_some_and(|row| row.owner == Some(worker) && row.epoch == epoch) {
            self.newest = self.newest.max(version);
        }
    }

    /// Executes a statement as a whole.
    pub(crate) fn execute(&mut self, statement: Statement, variant: Option<Variant>) -> Answer {
        match statement {
            Statement::Claim { worker } => self.claim(worker, variant),
            Statement::Apply { worker, epoch, change } => {
                let by_epoch = variant != Some(Variant::GuardWithoutEpoch);
                self.apply(Some(worker), epoch, change, by_epoch, |_| true)
            }
            Statement::Insert { worker } => {
                if self.row.is_some() || !self.is_live(worker) {
                    return Answer::Stale;
                }
                self.row = Some(Row {
                    status: Status::Submitting,
                    owner: Some(worker),
                    epoch: 1,
                    remote: None,
                    cancel: false,
                    version: 0,
                });
                Answer::Row(self.row)
            }
            Statement::Record { worker, epoch, remote } => self.record(worker, epoch, remote),
            Statement::Discard { worker, epoch } => {
                let matches = |row: &Row| row.owner == Some(worker) && row.epoch == epoch && is_open_intent(row);
                if self.row.as_ref().is_some_and(matches) {
                    self.row = None;
                    Answer::Row(None)
                } else {
                    Answer::Stale
                }
            }
            Statement::CloseFreed { epoch } => {
                let change = Change { source: Source::Own, end: Some(End::Unknown), version: 0, release: true };
                self.apply(None, epoch, change, true, is_open_intent)
            }
        }
    }

    fn claim(&mut self, worker: Id, variant: Option<Variant>) -> Answer {
        let live = self.is_live(worker) || variant == Some(Variant::ClaimWithoutLiveCheck);
        let Some(row) = self.row.as_mut().filter(|row| live && row.owner.is_none() && is_active(row)) else {
            return Answer::Row(None);
        };
        row.owner = Some(worker);
        row.epoch += 1;
        self.newest = 0;
        Answer::Row(self.row)
    }

    fn apply(
        &mut self,
        owner: Option<Id>,
        epoch: u8,
        change: Change,
        by_epoch: bool,
        guard: impl Fn(&Row) -> bool,
    ) -> Answer {
        let newest = self.newest;
        let Some(row) = self.row.as_mut().filter(|row| row.owner == owner && is_active(row) && guard(row)) else {
            return Answer::Stale;
        };
        if by_epoch && row.epoch != epoch {
            return Answer::Stale;
        }
        let breach = [
            (row.epoch != epoch, Breach::StaleWrite),
            (row.cancel && change.source == Source::Poll, Breach::PollAfterCancel),
            (change.version != 0 && change.version < newest, Breach::Overtaken),
        ];
        self.newest = 0;
        row.epoch += 1;
        row.version = row.version.max(change.version);
        if let Some(end) = change.end {
            row.status = Status::Ended(end);
            self.ends += 1;
        }
        if change.release || change.end.is_some() {
            row.owner = None;
        }
        // The more telling one where several are broken at once.
        let found = breach.into_iter().filter_map(|(broken, which)| broken.then_some(which)).next_back();
        self.breach = self.breach.or(found).or((self.ends > 1).then_some(Breach::EndedTwice));
        Answer::Row(self.row)
    }

    fn record(&mut self, worker: Id, epoch: u8, remote: Remote) -> Answer {
        let matches = |row: &&mut Row| row.owner == Some(worker) && row.epoch == epoch && is_open_intent(row);
        let Some(row) = self.row.as_mut().filter(matches) else { return Answer::Stale };
        row.remote = Some(remote);
        row.status = Status::Active;
        row.epoch += 1;
        if row.cancel {
            row.owner = None;
        }
        Answer::Row(self.row)
    }

    /// `request_cancel`.
    pub(crate) fn request_cancel(&mut self) {
        let Some(row) = self.row.as_mut().filter(|row| is_active(row)) else { return };
        row.cancel = true;
        if row.status != Status::Submitting {
            row.owner = None;
            row.epoch += 1;
            self.newest = 0;
        }
    }

    /// `heartbeat`; whether it was not refused.
    pub(crate) fn heartbeat(&mut self, worker: Id) -> bool {
        let live = self.is_live(worker);
        if live {
            self.workers[usize::from(worker)] = Registered::Live { stale: false, freed: false };
        }
        live
    }

    /// The lease ends by the store's clock; whether it had not before.
    pub(crate) fn stall(&mut self, worker: Id) -> bool {
        let slot = &mut self.workers[usize::from(worker)];
        let runs_out = matches!(slot, Registered::Live { stale: false, .. });
        if runs_out {
            *slot = Registered::Live { stale: true, freed: false };
        }
        runs_out
    }

    /// `mark_dead`.
    pub(crate) fn mark_dead(&mut self, worker: Id) {
        self.workers[usize::from(worker)] = Registered::Dead;
    }

    /// `free_dead`, with what counts as dead.
    pub(crate) fn free(&mut self, dead: impl Fn(Registered) -> bool) -> bool {
        let workers = &self.workers;
        let named = |row: &&mut Row| row.owner.is_some_and(|owner| dead(workers[usize::from(owner)]));
        let Some(row) = self.row.as_mut().filter(named) else { return false };
        row.owner = None;
        row.epoch += 1;
        self.newest = 0;
        true
    }

    /// `delete_dead` for one worker; whether its row is gone now.
    pub(crate) fn delete(&mut self, worker: Id, variant: Option<Variant>) -> bool {
        let named = self.row.is_some_and(|row| row.owner == Some(worker));
        let slot = &mut self.workers[usize::from(worker)];
        let deletes = *slot == Registered::Dead && (!named || variant == Some(Variant::RowDeletedEarly));
        if deletes {
            *slot = Registered::Deleted;
        }
        deletes
    }
}

pub(crate) fn is_active(row: &Row) -> bool {
    !matches!(row.status, Status::Ended(_))
}

pub(crate) fn is_open_intent(row: &Row) -> bool {
    row.status == Status::Submitting && row.remote.is_none()
}
