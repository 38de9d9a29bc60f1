//! A worker incarnation: what its actor holds, asks and writes.
//!
//! Keep in step with `runtime-core/src/worker/`: `actor/claims.rs` (questions, reconcile), `actor/calls.rs` and `job.rs`
//! (what a due task needs), `actor/writes.rs` and `writer.rs` (guarded writes, unknown outcomes), `actor/fleet.rs` (refusal),
//! `actor/drain.rs`. The self-fence is left out: without it more can happen, and the guards must hold all the same.

use crate::scope::{Scope, Variant};
use crate::store::{Answer, Change, End, Id, Remote, Row, Source, Statement, Status, is_active};
use crate::world::World;

/// Whether the incarnation's process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Life {
    #[default]
    Unborn,
    Up,
    /// Its heartbeat was refused; the process goes on under another id, and so do its open submits.
    Refused,
    /// The process has ended; its lock file is free.
    Gone,
}

/// A question to the store; one is open at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    Claim,
    /// `owned`: (id, epoch, status) of what names this worker.
    Owned,
    Load,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    pub(crate) topic: Topic,
    /// What the store has answered, on its way.
    pub(crate) answer: Option<Option<Row>>,
}

/// What is done about the held task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Waiting,
    /// A call has been answered; nothing is written yet.
    Decided(Change),
    /// The writer has it.
    Writing {
        change: Change,
        /// An attempt had an unknown outcome.
        uncertain: bool,
        /// The row has to be read before anything else.
        reread: bool,
    },
    /// A repeated submit was answered; its handle is being recorded.
    Recording(Remote),
}

/// The held task, as this worker knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Held {
    pub(crate) row: Row,
    pub(crate) phase: Phase,
    /// Taken since the open question was asked, which therefore says nothing about it.
    pub(crate) fresh: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Worker {
    pub(crate) life: Life,
    pub(crate) draining: bool,
    pub(crate) held: Option<Held>,
    pub(crate) question: Option<Question>,
    pub(crate) to_load: bool,
}

/// What a due task needs (`job.rs`, `Job::of`).
enum Job {
    Poll(Remote),
    Cancel(Remote),
    Resolve,
    Close,
}

fn job(row: &Row, scope: &Scope) -> Job {
    match (row.status, row.remote) {
        (Status::Submitting, _) | (_, None) if row.cancel || !scope.idempotent => Job::Close,
        (Status::Submitting, _) | (_, None) => Job::Resolve,
        (_, Some(remote)) if row.cancel => Job::Cancel(remote),
        (_, Some(remote)) => Job::Poll(remote),
    }
}

const RELEASE: Change = Change { source: Source::Own, end: None, version: 0, release: true };

impl World {
    fn worker(&mut self, id: Id) -> &mut Worker {
        &mut self.workers[usize::from(id)]
    }

    pub(crate) fn is_up(&self, id: Id) -> bool {
        self.workers[usize::from(id)].life == Life::Up
    }

    pub(crate) fn heartbeat(&mut self, id: Id) -> bool {
        if !self.is_up(id) {
            return false;
        }
        if !self.store.heartbeat(id) {
            self.stop(id, Life::Refused);
        }
        true
    }

    /// Drops everything; what was sent stays on its way.
    pub(crate) fn stop(&mut self, id: Id, life: Life) {
        self.drop_held(id);
        if let Some(Question { topic: Topic::Claim, answer: None }) = self.worker(id).question {
            self.send_late(Statement::Claim { worker: id });
        }
        *self.worker(id) = Worker { life, ..Worker::default() };
    }

    fn drop_held(&mut self, id: Id) {
        let Some(held) = self.worker(id).held.take() else { return };
        if let Phase::Writing { change, .. } = held.phase {
            self.send_late(Statement::Apply { worker: id, epoch: held.row.epoch, change });
        }
    }

    pub(crate) fn ask(&mut self, id: Id, topic: Topic, variant: Option<Variant>) -> bool {
        // Asked where there is nothing to find and nothing to lose it says the same as asked later.
        let idle = !self.submit.is_open() && self.store.row.is_none_or(|row| row.owner != Some(id));
        let worker = self.worker(id);
        let may = worker.life == Life::Up
            && worker.question.is_none()
            && match topic {
                Topic::Load => worker.to_load,
                Topic::Owned => {
                    !worker.to_load && (!idle || worker.held.is_some()) && variant != Some(Variant::NoReconcile)
                }
                Topic::Claim => !worker.to_load && !worker.draining && worker.held.is_none(),
            };
        if may {
            worker.question = Some(Question { topic, answer: None });
            if let Some(held) = &mut worker.held {
                held.fresh = false;
            }
        }
        may
    }

    /// The store answers; the answer is on its way from here.
    pub(crate) fn answer(&mut self, id: Id, variant: Option<Variant>) -> bool {
        let Some(Question { topic, answer: None }) = self.worker(id).question else { return false };
        let row = match topic {
            Topic::Claim => match self.store.execute(Statement::Claim { worker: id }, variant) {
                Answer::Row(row) => row,
                Answer::Stale => None,
            },
            Topic::Owned | Topic::Load => self.store.row.filter(|row| row.owner == Some(id)),
        };
        self.worker(id).question = Some(Question { topic, answer: Some(row) });
        true
    }

    pub(crate) fn hear(&mut self, id: Id) -> bool {
        let Some(Question { topic, answer: Some(row) }) = self.worker(id).question else { return false };
        self.worker(id).question = None;
        let held = self.worker(id).held;
        match topic {
            Topic::Claim => {}
            Topic::Owned => {
                let settled = |held: &Held| !held.fresh && !matches!(held.phase, Phase::Writing { .. });
                self.worker(id).to_load = match (row, held) {
                    (Some(row), Some(held)) => settled(&held) && row.epoch > held.row.epoch,
                    (Some(row), None) => !(row.status == Status::Submitting && id == 0 && self.submit.is_open()),
                    (None, _) => false,
                };
                if row.is_none() && held.as_ref().is_some_and(settled) {
                    self.drop_held(id);
                }
                return true;
            }
            Topic::Load => {
                self.worker(id).to_load = false;
                if row.is_none() && held.is_some_and(|held| !held.fresh) {
                    self.drop_held(id);
                }
            }
        }
        if let Some(row) = row {
            self.hold(id, row);
        }
        true
    }

    /// The question is given up, or its answer is lost; a claim may be executed all the same.
    pub(crate) fn lose_answer(&mut self, id: Id) -> bool {
        let Some(question) = self.worker(id).question.take() else { return false };
        self.worker(id).to_load &= question.topic != Topic::Load;
        question.topic != Topic::Claim || question.answer.is_some() || self.send_late(Statement::Claim { worker: id })
    }

    pub(crate) fn hold(&mut self, id: Id, row: Row) {
        let known = self.worker(id).held.map(|held| held.row.epoch);
        if known.is_some_and(|epoch| epoch >= row.epoch) || !is_active(&row) {
            return;
        }
        self.drop_held(id);
        let worker = self.worker(id);
        worker.held = Some(Held { row, phase: Phase::Waiting, fresh: true });
        if worker.draining {
            self.write(id, RELEASE);
        }
    }

    fn write(&mut self, id: Id, mut change: Change) {
        let worker = self.worker(id);
        change.release |= worker.draining;
        if let Some(held) = &mut worker.held {
            held.phase = Phase::Writing { change, uncertain: false, reread: false };
            let epoch = held.row.epoch;
            self.store.hand_over(id, epoch, change.version);
        }
    }

    /// The task's call is made and answered; `fails` where the answer says nothing.
    pub(crate) fn call(&mut self, id: Id, fails: bool, scope: &Scope) -> bool {
        let worker = *self.worker(id);
        let Some(held) = worker.held.filter(|held| held.phase == Phase::Waiting && !worker.draining) else {
            return false;
        };
        let change = match job(&held.row, scope) {
            Job::Poll(remote) => self.server.status(remote),
            Job::Cancel(remote) => self.server.cancel(remote),
            Job::Close => {
                self.write(id, Change { end: Some(End::Unknown), ..RELEASE });
                return !fails;
            }
            Job::Resolve => return self.resolve(id, fails, scope),
        };
        if !fails && change.end.is_none() && change.version == held.row.version {
            // Nothing new, and nothing to write.
            return false;
        }
        let change = if fails { Change { end: None, version: 0, ..change } } else { change };
        self.worker(id).held = Some(Held { phase: Phase::Decided(change), ..held });
        true
    }

    /// `job.rs`, `resolve`: reads the row, repeats the submit, and records its handle.
    fn resolve(&mut self, id: Id, fails: bool, scope: &Scope) -> bool {
        let Some(row) = self.store.row.filter(|row| row.owner == Some(id)) else {
            self.worker(id).held = None;
            return !fails;
        };
        if row.cancel {
            self.write(id, Change { end: Some(End::Unknown), ..RELEASE });
            return !fails;
        }
        let remote = self.server.submit(scope.idempotent);
        if fails {
            self.write(id, Change { release: false, ..RELEASE });
        } else if let Some(held) = &mut self.worker(id).held {
            held.phase = Phase::Recording(remote);
        }
        true
    }

    /// A drain releases what is idle, balance what there is too much of.
    pub(crate) fn let_go(&mut self, id: Id) -> bool {
        let held = self.worker(id).held;
        let idle = held.is_some_and(|held| held.phase == Phase::Waiting);
        if idle {
            self.write(id, RELEASE);
        }
        idle
    }

    /// Hands a decision to the writer.
    pub(crate) fn send(&mut self, id: Id) -> bool {
        let Some(Held { phase: Phase::Decided(change), .. }) = self.worker(id).held else { return false };
        self.write(id, change);
        true
    }

    /// What the writer or the recorder has to execute next.
    fn outstanding(&self, id: Id) -> Option<Statement> {
        let held = self.workers[usize::from(id)].held?;
        let epoch = held.row.epoch;
        match held.phase {
            Phase::Writing { change, reread: false, .. } => Some(Statement::Apply { worker: id, epoch, change }),
            Phase::Recording(remote) => Some(Statement::Record { worker: id, epoch, remote }),
            _ => None,
        }
    }

    /// The outstanding write is executed and answered.
    pub(crate) fn write_through(&mut self, id: Id, variant: Option<Variant>) -> bool {
        let Some(statement) = self.outstanding(id) else { return false };
        let answer = self.store.execute(statement, variant);
        let Some(held) = self.worker(id).held else { return false };
        match (held.phase, answer) {
            (Phase::Writing { change, uncertain: true, .. }, Answer::Stale) => {
                let phase = Phase::Writing { change, uncertain: true, reread: true };
                self.worker(id).held = Some(Held { phase, ..held });
            }
            (_, Answer::Row(Some(row))) if row.owner == Some(id) => self.written(id, row),
            _ => self.worker(id).held = None,
        }
        true
    }

    /// The row is still this worker's.
    fn written(&mut self, id: Id, row: Row) {
        let worker = self.worker(id);
        if let Some(held) = &mut worker.held {
            *held = Held { row: Row { cancel: held.row.cancel, ..row }, phase: Phase::Waiting, ..*held };
            if worker.draining {
                self.write(id, RELEASE);
            }
        }
    }

    /// The outstanding write has an unknown outcome: it was executed, or may be later, or never.
    pub(crate) fn lose_write(&mut self, id: Id, executed: bool, variant: Option<Variant>) -> bool {
        let Some(statement) = self.outstanding(id) else { return false };
        if executed {
            self.store.execute(statement, variant);
        } else if !self.send_late(statement) {
            return false;
        }
        if let Some(held) = &mut self.worker(id).held
            && let Phase::Writing { change, .. } = held.phase
        {
            held.phase = if variant == Some(Variant::BlindRetry) {
                Phase::Waiting
            } else {
                Phase::Writing { change, uncertain: true, reread: true }
            };
        }
        true
    }

    /// `writer.rs`, `settle` and `outcome`: the row says what became of the write.
    pub(crate) fn settle(&mut self, id: Id) -> bool {
        let Some(held) = self.worker(id).held else { return false };
        let Phase::Writing { change, reread: true, .. } = held.phase else { return false };
        let sent = held.row.epoch;
        match self.store.row {
            Some(row) if row.epoch == sent && row.owner == Some(id) => {
                let phase = Phase::Writing { change, uncertain: true, reread: false };
                self.worker(id).held = Some(Held { phase, ..held });
            }
            // One write happened since, and left the row as this one leaves it.
            Some(row) if row.epoch == sent + 1 && row.owner == Some(id) && change.end.is_none() => {
                self.written(id, row);
            }
            _ => self.worker(id).held = None,
        }
        true
    }

    pub(crate) fn drain(&mut self, id: Id) -> bool {
        let worker = self.worker(id);
        let begins = worker.life == Life::Up && !worker.draining;
        worker.draining |= begins;
        begins
    }

    /// A drain is over: nothing held, nothing asked, no submit open (`drained`, `retire`).
    pub(crate) fn retire(&mut self, id: Id) -> bool {
        let worker = *self.worker(id);
        let quiet = worker.held.is_none() && worker.question.is_none() && !(id == 0 && self.submit.is_open());
        let over = worker.life == Life::Up && worker.draining && quiet;
        if over {
            self.store.mark_dead(id);
            self.stop(id, Life::Gone);
        }
        over
    }
}
