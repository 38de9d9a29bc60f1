//! One state of everything, what can happen in it, and what must hold.

use stateright::{Model, Property};

use crate::recovery::{Verdict, recover};
use crate::scope::{Scope, Variant};
use crate::server::{Server, Work};
use crate::store::{Breach, Id, Registered, Row, Statement, Status, Store, WORKERS};
use crate::submit::{Fate, Stage, Submit};
use crate::worker::{Life, Topic, Worker};

/// Statements that are on their way with nobody waiting for them, at most.
const LATE: usize = 3;

/// What is left of the scope's budgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Budget {
    losses: u8,
    crashes: u8,
    stalls: u8,
    cancels: u8,
    drains: u8,
    errors: u8,
}

/// A state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) server: Server,
    pub(crate) workers: [Worker; WORKERS],
    pub(crate) submit: Submit,
    /// Sorted, so that the order of loss makes no other state.
    pub(crate) late: [Option<Statement>; LATE],
    pub(crate) left: Budget,
}

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// `Context::register`: the row and the lock.
    Register(Id),
    /// `heartbeat.rs`; a refused one is `actor/fleet.rs`, `reborn`.
    Heartbeat(Id),
    /// The lease runs out by the store's clock.
    Stall(Id),
    /// `takeover.rs` with the rule of `observer.rs` or the lock of `incarnation.rs`: `mark_dead`.
    MarkDead(Id),
    /// `takeover.rs`: `free_dead`.
    Free,
    /// `takeover.rs`: `delete_dead`.
    Delete(Id),
    /// `actor/claims.rs`, `ask`.
    Ask(Id, Topic),
    /// The store answers a question.
    Answer(Id),
    /// `actor/claims.rs`, `answered`.
    Hear(Id),
    /// A question is given up (`PATIENCE`) or its answer is lost.
    LoseAnswer(Id),
    /// `job.rs`: the call that a due task needs; the flag says that it fails.
    Call(Id, bool),
    /// `actor/calls.rs`, `finished`: a decision goes to the writer.
    Send(Id),
    /// `writer.rs`: a write is executed and answered.
    Write(Id),
    /// A write's outcome is unknown: it was executed, or comes late or never.
    LoseWrite(Id, bool),
    /// `writer.rs`, `settle`.
    Settle(Id),
    /// `actor/fleet.rs`, `balance`, or a drain: an idle task is released.
    LetGo(Id),
    /// `actor/drain.rs`.
    Drain(Id),
    /// `actor/drain.rs`, `retire`.
    Retire(Id),
    /// A process dies.
    Crash(Id),
    /// `service/submit.rs`.
    Submit(Fate),
    /// A statement that nobody waits for is executed.
    ExecuteLate(usize),
    /// A submit call that nobody waits for reaches the server.
    Arrive,
    /// `service/cancel.rs`, by anybody.
    RequestCancel,
    /// The server's work comes to its end.
    Progress,
}

impl World {
    pub(crate) fn new(scope: &Scope) -> Self {
        let mut server = Server::default();
        let row = (!scope.submit).then(|| Row {
            status: Status::Active,
            owner: None,
            epoch: 1,
            remote: Some(server.submit(true)),
            cancel: false,
            version: 0,
        });
        let stage = if scope.submit { Stage::Ready } else { Stage::Over };
        Self {
            store: Store { workers: [Registered::Absent; WORKERS], row, ends: 0, newest: 0, breach: None },
            server,
            workers: [Worker::default(); WORKERS],
            submit: Submit { stage, acknowledged: !scope.submit },
            late: [None; LATE],
            left: Budget {
                losses: scope.losses,
                crashes: scope.crashes,
                stalls: scope.stalls,
                cancels: scope.cancels,
                drains: scope.drains,
                errors: scope.errors,
            },
        }
    }

    /// Nothing more goes wrong.
    pub(crate) fn calm(mut self) -> Self {
        self.left = Budget::default();
        self
    }

    /// Leaves a statement on its way; whether there is room for it.
    pub(crate) fn send_late(&mut self, statement: Statement) -> bool {
        let Some(slot) = self.late.iter_mut().find(|slot| slot.is_none()) else { return false };
        *slot = Some(statement);
        self.late.sort();
        true
    }

    pub(crate) fn somebody_is_up(&self) -> bool {
        (0..WORKERS as Id).any(|id| self.is_up(id))
    }

    /// Carries an action out; `false` where it is not possible here.
    pub(crate) fn act(&mut self, action: Action, scope: &Scope) -> bool {
        let variant = scope.variant;
        match action {
            Action::Register(id) => self.register(id),
            Action::Heartbeat(id) => self.heartbeat(id),
            Action::Stall(id) => self.is_up(id) && self.store.stall(id) && spend(&mut self.left.stalls),
            Action::MarkDead(id) => self.mark_dead(id, variant),
            Action::Free => self.somebody_is_up() && self.free(variant),
            Action::Delete(id) => self.somebody_is_up() && self.store.delete(id, variant),
            Action::Ask(id, topic) => self.ask(id, topic, variant),
            Action::Answer(id) => self.answer(id, variant),
            Action::Hear(id) => self.hear(id),
            Action::LoseAnswer(id) => spend(&mut self.left.losses) && self.lose_answer(id),
            Action::Call(id, fails) => (!fails || spend(&mut self.left.errors)) && self.call(id, fails, scope),
            Action::Send(id) => self.send(id),
            Action::Write(id) => self.write_through(id, variant),
            Action::LoseWrite(id, executed) => spend(&mut self.left.losses) && self.lose_write(id, executed, variant),
            Action::Settle(id) => self.settle(id),
            Action::LetGo(id) => {
                let drains = self.workers[usize::from(id)].draining;
                (drains || spend(&mut self.left.errors)) && self.let_go(id)
            }
            Action::Drain(id) => spend(&mut self.left.drains) && self.drain(id),
            Action::Retire(id) => self.retire(id),
            Action::Crash(id) => spend(&mut self.left.crashes) && self.crash(id),
            Action::Submit(fate) => {
                let free = match fate {
                    Fate::Done | Fate::GivenUp => true,
                    Fate::Refused { .. } => spend(&mut self.left.errors),
                    Fate::Unheard | Fate::Late => spend(&mut self.left.losses),
                };
                free && self.step_submit(fate, scope)
            }
            Action::ExecuteLate(place) => {
                let Some(statement) = self.late[place].take() else { return false };
                self.late.sort();
                self.store.execute(statement, variant);
                true
            }
            Action::Arrive => {
                let arrives = std::mem::take(&mut self.server.arriving);
                if arrives {
                    self.server.submit(scope.idempotent);
                }
                arrives
            }
            Action::RequestCancel => {
                self.store.row.is_some() && spend(&mut self.left.cancels) && {
                    self.store.request_cancel();
                    true
                }
            }
            Action::Progress => self.server.progress(),
        }
    }

    fn register(&mut self, id: Id) -> bool {
        // Incarnations are born in order: which of two equal ones it is makes no difference.
        let place = usize::from(id);
        let born = self.workers[..place].iter().all(|worker| worker.life != Life::Unborn);
        let begins = born && self.workers[place].life == Life::Unborn;
        if begins {
            self.workers[place].life = Life::Up;
            self.store.workers[place] = Registered::Live { stale: false, freed: false };
        }
        begins
    }

    fn mark_dead(&mut self, target: Id, variant: Option<Variant>) -> bool {
        let marker = (0..WORKERS as Id).any(|id| id != target && self.is_up(id) && self.store.is_live(id));
        let ended = self.workers[usize::from(target)].life == Life::Gone;
        match self.store.workers[usize::from(target)] {
            Registered::Live { freed: false, .. } if variant == Some(Variant::FreeBeforeMarkDead) => false,
            Registered::Live { stale, .. } if marker && (stale || ended) => {
                self.store.mark_dead(target);
                true
            }
            _ => false,
        }
    }

    fn free(&mut self, variant: Option<Variant>) -> bool {
        if variant != Some(Variant::FreeBeforeMarkDead) {
            return self.store.free(|worker| worker == Registered::Dead);
        }
        let expired = |worker: Registered| matches!(worker, Registered::Live { stale: true, freed: false });
        let any = self.store.workers.iter().any(|worker| expired(*worker));
        self.store.free(expired);
        for worker in self.store.workers.iter_mut().filter(|worker| expired(**worker)) {
            *worker = Registered::Live { stale: true, freed: true };
        }
        any
    }

    fn crash(&mut self, id: Id) -> bool {
        let life = self.workers[usize::from(id)].life;
        let flows = id == 0 && self.submit.is_open();
        if life != Life::Up && !(life == Life::Refused && flows) {
            return false;
        }
        self.stop(id, Life::Gone);
        if id == 0 {
            self.submit.stage = Stage::Over;
        }
        true
    }
}

fn spend(budget: &mut u8) -> bool {
    let some = *budget > 0;
    *budget = budget.saturating_sub(1);
    some
}

impl Model for Scope {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, _: &World, actions: &mut Vec<Action>) {
        for id in 0..self.workers {
            actions.extend([Action::Register(id), Action::Heartbeat(id), Action::Stall(id), Action::MarkDead(id)]);
            actions.extend([Topic::Claim, Topic::Owned, Topic::Load].map(|topic| Action::Ask(id, topic)));
            actions.extend([Action::Answer(id), Action::Hear(id), Action::LoseAnswer(id), Action::Delete(id)]);
            actions.extend([Action::Call(id, false), Action::Call(id, true), Action::Send(id), Action::Write(id)]);
            actions.extend([Action::LoseWrite(id, true), Action::LoseWrite(id, false), Action::Settle(id)]);
            actions.extend([Action::LetGo(id), Action::Drain(id), Action::Retire(id), Action::Crash(id)]);
        }
        if self.submit {
            let refused = [false, true].map(|handle| Fate::Refused { handle });
            let fates = [Fate::Done, Fate::Unheard, Fate::Late, Fate::GivenUp].into_iter().chain(refused);
            actions.extend(fates.map(Action::Submit));
            actions.push(Action::Arrive);
        }
        actions.extend((0..LATE).map(Action::ExecuteLate));
        actions.extend([Action::Free, Action::RequestCancel, Action::Progress]);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = *world;
        (next.act(action, self) && next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_LOST, |scope, world| recover(world, scope) != Verdict::Stuck),
            Property::always(NO_ORPHAN, |scope, world| recover(world, scope) != Verdict::Orphan),
            Property::always(ONE_END, |_, world: &World| {
                let ended = world.store.row.is_some_and(|row| matches!(row.status, Status::Ended(_)));
                world.store.ends == u8::from(ended)
            }),
            Property::always(NO_STALE_WRITE, |_, world: &World| world.store.breach != Some(Breach::StaleWrite)),
            Property::always(NO_POLL_AFTER_CANCEL, |_, world: &World| {
                world.store.breach != Some(Breach::PollAfterCancel)
            }),
            Property::always(NOT_OVERTAKEN, |_, world: &World| world.store.breach != Some(Breach::Overtaken)),
            Property::always(NOT_COMPENSATED, |_, world: &World| {
                let remote = world.store.row.and_then(|row| row.remote);
                remote.is_none_or(|remote| !world.server.compensated[usize::from(remote)])
            }),
            Property::always(KEPT, |_, world: &World| {
                !world.submit.acknowledged || world.store.row.is_some_and(|row| row.remote.is_some())
            }),
            // That something happens at all: these must be found.
            Property::sometimes(COMPLETES, |_, world: &World| ended_as(world, crate::store::End::Completed)),
        ]
    }
}

fn ended_as(world: &World, end: crate::store::End) -> bool {
    world.store.row.is_some_and(|row| row.status == Status::Ended(end))
}

/// Whether the server may run something of which no row tells.
pub(crate) fn has_orphan(world: &World) -> bool {
    let told = |remote: usize| {
        world.store.row.is_some_and(|row| {
            row.remote == Some(remote as u8) || row.status == Status::Ended(crate::store::End::Unknown)
        })
    };
    let runs = |(remote, work): (usize, &Work)| {
        matches!(work, Work::Running | Work::Done) && !world.server.compensated[remote] && !told(remote)
    };
    world.server.tasks.iter().enumerate().any(runs)
}

pub(crate) const NEVER_LOST: &str = "a task is never lost";
pub(crate) const NO_ORPHAN: &str = "no remote task is off the record";
pub(crate) const ONE_END: &str = "one end, one event";
pub(crate) const NO_STALE_WRITE: &str = "no stale write takes effect";
pub(crate) const NO_POLL_AFTER_CANCEL: &str = "no poll's answer is applied after a cancel";
pub(crate) const NOT_OVERTAKEN: &str = "no older answer wins over a newer one";
pub(crate) const NOT_COMPENSATED: &str = "no tracked task is cancelled by compensation";
pub(crate) const KEPT: &str = "what was acknowledged is on record";
pub(crate) const COMPLETES: &str = "a task completes";
