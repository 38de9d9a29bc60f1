//! The tasks a worker holds, with a timer each.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use super::lanes::Slot;
use crate::clock::Millis;
use crate::task::{Binding, Change, Tracked, server_label};

/// What a held task is doing.
#[derive(Debug)]
pub(super) enum Phase {
    /// Waits for its time.
    Waiting,
    /// Is due and waits for a slot.
    Queued(Slot),
    /// A call about it runs, under this job number.
    Running(u64),
    /// A write is outstanding, under this number; it is not polled meanwhile.
    Writing(u64),
    /// A decision waits until the worker's lease is certain again.
    Parked(Box<Change>),
}

/// A held task.
#[derive(Debug)]
pub(super) struct Held {
    /// Shared with the call about it, so that a poll copies nothing.
    pub(super) task: Arc<Tracked>,
    pub(super) phase: Phase,
    /// Since when polls have been counted that no write has carried yet, on the boot clock.
    dirty: Option<Duration>,
    /// When it was taken, in store operations: an older reading of the store says nothing about it.
    pub(super) since: u64,
}

/// How many of a server's tasks are held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) all: usize,
    /// Those among them whose cancel was asked for.
    pub(super) cancels: usize,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct HeldSet {
    /// Hashed the same way in every process, so that the same history has the same order. The keys are our own ids.
    tasks: HashMap<Arc<str>, Held, BuildHasherDefault<DefaultHasher>>,
    timers: BTreeSet<(Millis, Arc<str>)>,
    dirty: BTreeSet<(Duration, Arc<str>)>,
    by_server: HashMap<Box<str>, Count>,
    bindings: HashSet<Arc<Binding>>,
}

impl HeldSet {
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// How many of a server's tasks are held; all personal connections count as one.
    pub(super) fn of_server(&self, server: &str) -> Count {
        self.by_server.get(server_label(server)).copied().unwrap_or_default()
    }

    /// How many are held of the servers that are not `known`.
    pub(super) fn of_strangers(&self, known: impl Fn(&str) -> bool) -> Count {
        let strangers = self.by_server.iter().filter(|(server, _)| !known(server)).map(|(_, count)| count);
        strangers.fold(Count::default(), |sum, count| Count {
            all: sum.all + count.all,
            cancels: sum.cancels + count.cancels,
        })
    }

    /// Takes a task, waiting for its time. Tasks of one toolset share its description.
    pub(super) fn insert(&mut self, mut task: Tracked, since: u64) {
        self.remove(&task.id.clone());
        match self.bindings.get(&task.binding) {
            Some(binding) => task.binding = Arc::clone(binding),
            None => {
                self.bindings.insert(Arc::clone(&task.binding));
            }
        }
        let count = self.by_server.entry(server_label(&task.binding.server_name).into()).or_default();
        count.all += 1;
        count.cancels += usize::from(task.cancel_requested_at.is_some());
        self.timers.insert((task.next_due_at, Arc::clone(&task.id)));
        let task = Arc::new(task);
        self.tasks.insert(Arc::clone(&task.id), Held { task, phase: Phase::Waiting, dirty: None, since });
    }

    pub(super) fn remove(&mut self, id: &Arc<str>) -> Option<Held> {
        let held = self.tasks.remove(id)?;
        self.timers.remove(&(held.task.next_due_at, Arc::clone(id)));
        if let Some(since) = held.dirty {
            self.dirty.remove(&(since, Arc::clone(id)));
        }
        let server = server_label(&held.task.binding.server_name);
        if let Some(count) = self.by_server.get_mut(server) {
            count.all -= 1;
            count.cancels -= usize::from(held.task.cancel_requested_at.is_some());
            if count.all == 0 {
                self.by_server.remove(server);
            }
        }
        Some(held)
    }

    pub(super) fn get(&self, id: &str) -> Option<&Held> {
        self.tasks.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut Held> {
        self.tasks.get_mut(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.tasks.values()
    }

    /// Lets a task wait until its `next_due_at`.
    pub(super) fn wait(&mut self, id: &Arc<str>) {
        if let Some(held) = self.tasks.get_mut(id) {
            held.phase = Phase::Waiting;
            self.timers.insert((held.task.next_due_at, Arc::clone(id)));
        }
    }

    /// Takes a task off its timer; what happens to it next is the caller's business.
    pub(super) fn stop_timer(&mut self, id: &Arc<str>) {
        if let Some(held) = self.tasks.get(id) {
            self.timers.remove(&(held.task.next_due_at, Arc::clone(id)));
        }
    }

    /// The next task that is due at `now`, off its timer.
    pub(super) fn pop_due(&mut self, now: Millis) -> Option<Arc<str>> {
        self.timers.first().filter(|(due, _)| *due <= now)?;
        self.timers.pop_first().map(|(_, id)| id)
    }

    /// When the next task is due.
    pub(super) fn next_due(&self) -> Option<Millis> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Counts a poll at `now` that found nothing new; `boot` is the same on the boot clock.
    pub(super) fn unchanged(&mut self, id: &Arc<str>, next_due_at: Millis, now: Millis, boot: Duration) {
        let Some(held) = self.tasks.get_mut(id) else { return };
        Arc::make_mut(&mut held.task).unchanged(next_due_at, now);
        if held.dirty.is_none() {
            held.dirty = Some(boot);
            self.dirty.insert((boot, Arc::clone(id)));
        }
    }

    /// Brings a task to what was written of it, under its new epoch.
    pub(super) fn applied(&mut self, id: &Arc<str>, change: &Change, epoch: i64) {
        let Some(held) = self.tasks.get_mut(id) else { return };
        Arc::make_mut(&mut held.task).applied(change, epoch);
        if let Some(since) = held.dirty.take() {
            self.dirty.remove(&(since, Arc::clone(id)));
        }
    }

    /// Waiting tasks with polls that were counted before `before` and never written, at most `limit`.
    pub(super) fn unwritten(&self, before: Duration, limit: usize) -> Vec<Arc<str>> {
        let old = self.dirty.iter().take_while(|(since, _)| *since < before).map(|(_, id)| id);
        let waits = |id: &&Arc<str>| self.tasks.get(*id).is_some_and(|held| matches!(held.phase, Phase::Waiting));
        old.filter(waits).take(limit).cloned().collect()
    }

    /// Waiting tasks, the one due last first.
    pub(super) fn latest(&self) -> impl Iterator<Item = &Arc<str>> {
        self.timers.iter().rev().map(|(_, id)| id)
    }

    /// Lets go of everything, without a word to the store.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
