//! What a state is judged by: from here on nothing more goes wrong; does everything come to its end?
//!
//! This makes a liveness promise a check of each state. Statements that are late stay late; the states in which they have
//! been executed are judged on their own.

use crate::scope::Scope;
use crate::store::{Id, Registered, Status, WORKERS};
use crate::submit::{Fate, Stage};
use crate::worker::{Life, Topic};
use crate::world::{Action, World, has_orphan};

/// How it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fine,
    /// The task, or its submit, never ends.
    Stuck,
    /// The server runs something that no row tells of.
    Orphan,
}

/// Rounds of the heartbeat's rhythm within which everything must have ended.
const ROUNDS: usize = 8;

/// Runs a state to its end, without faults.
pub(crate) fn recover(world: &World, scope: &Scope) -> Verdict {
    let mut world = world.calm();
    for _ in 0..ROUNDS {
        if over(&world) {
            return if has_orphan(&world) { Verdict::Orphan } else { Verdict::Fine };
        }
        round(&mut world, scope);
    }
    Verdict::Stuck
}

fn over(world: &World) -> bool {
    let ended = world.store.row.is_none_or(|row| matches!(row.status, Status::Ended(_)));
    ended && matches!(world.submit.stage, Stage::Over | Stage::Ready)
}

fn round(world: &mut World, scope: &Scope) {
    if !world.somebody_is_up() {
        let fresh = world.workers.iter().position(|worker| worker.life == Life::Unborn);
        fresh.map(|id| world.act(Action::Register(id as Id), scope));
    }
    let everybody = 0..WORKERS as Id;
    everybody.clone().for_each(|id| {
        world.act(Action::Heartbeat(id), scope);
    });
    for id in everybody.clone().filter(|id| world.workers[usize::from(*id)].life != Life::Up).collect::<Vec<_>>() {
        // Nobody renews its lease any more.
        world.store.stall(id);
        if world.store.workers[usize::from(id)] == (Registered::Live { stale: true, freed: false }) {
            world.act(Action::Free, scope);
        }
        world.act(Action::MarkDead(id), scope);
        world.act(Action::Free, scope);
        world.act(Action::Delete(id), scope);
    }
    for id in everybody {
        work(world, id, scope);
    }
    world.act(Action::Submit(Fate::Done), scope);
    world.act(Action::Progress, scope);
}

/// One worker does all that it can.
fn work(world: &mut World, id: Id, scope: &Scope) {
    if !world.is_up(id) {
        return;
    }
    // A question that is open already comes to its end first.
    for topic in [None, Some(Topic::Owned), Some(Topic::Load), Some(Topic::Claim)] {
        topic.map(|topic| world.act(Action::Ask(id, topic), scope));
        world.act(Action::Answer(id), scope);
        world.act(Action::Hear(id), scope);
    }
    let draining = world.workers[usize::from(id)].draining;
    let steps = [Action::Settle(id), Action::Write(id), Action::Settle(id), Action::Call(id, false), Action::Send(id)];
    for step in steps.into_iter().chain([Action::Write(id)]) {
        world.act(step, scope);
    }
    if draining {
        world.act(Action::LetGo(id), scope);
        world.act(Action::Write(id), scope);
        world.act(Action::Retire(id), scope);
    }
}
