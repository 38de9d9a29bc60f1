//! What goes wrong, and when: a schedule that its seed decides.

use std::fmt;

use fastrand::Rng;

use crate::proxy::Network;

/// How long a lease lasts in a run, in milliseconds: the shortest that is allowed.
pub(super) const LEASE_MS: u64 = 5_000;

/// Something that goes wrong. Victims are numbers of daemons, durations are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// `kill -9`, and a restart a little later.
    Kill { victim: usize, down: u64 },
    /// `kill -9` of all at once.
    KillAll { down: u64 },
    /// `kill -9` in the middle of a call of this tool, before the server has executed it or after; of whoever calls.
    KillInCall { tool: &'static str, executed: bool },
    /// `kill -9` of one that is at work, and no restart before the others have taken over.
    Desert,
    /// SIGSTOP, and SIGCONT a while later.
    Freeze { victim: usize, time: u64 },
    /// SIGTERM, and a restart once it has drained.
    Drain { victim: usize },
    /// The database is stopped, in an orderly way or not, and started again.
    StopDatabase { orderly: bool, down: u64 },
    /// Database connections are ended by the server, all or one in three.
    Disconnect { all: bool },
    /// Another session holds a lock.
    Lock { on: Lock, time: u64 },
    /// The database takes no writes.
    ReadOnly { time: u64 },
    /// The network between a daemon and the database fails.
    Cut { victim: usize, network: Network, time: u64 },
}

/// What another session locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    /// The table of tasks, against reads too.
    Table,
    /// Every other task's row.
    Tasks,
    /// The workers' rows, which heartbeats renew.
    Workers,
    /// The whole of a SQLite file, against writes.
    File,
}

impl Fault {
    /// Its kind, as the report lists it.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Kill { .. } => "kill -9",
            Self::KillAll { .. } => "kill -9 of all at once",
            Self::KillInCall { tool, .. } => match tool.as_bytes() {
                b"submit_report" => "kill -9 in a submit",
                b"cancel_report" => "kill -9 in a cancel",
                _ => "kill -9 in a poll",
            },
            Self::Desert => "kill -9, taken over by others",
            Self::Freeze { time, .. } if *time > LEASE_MS => "stopped past the lease",
            Self::Freeze { .. } => "stopped within the lease",
            Self::Drain { .. } => "SIGTERM",
            Self::StopDatabase { orderly: true, .. } => "database stopped, fast",
            Self::StopDatabase { orderly: false, .. } => "database stopped, immediate",
            Self::Disconnect { all: true } => "all database connections terminated",
            Self::Disconnect { all: false } => "some database connections terminated",
            Self::Lock { on: Lock::Table, .. } => "table of tasks locked",
            Self::Lock { on: Lock::Tasks, .. } => "rows of tasks locked",
            Self::Lock { on: Lock::Workers, .. } => "rows of workers locked",
            Self::Lock { on: Lock::File, .. } => "file locked",
            Self::ReadOnly { .. } => "database read-only",
            Self::Cut { network: Network::Silent, .. } => "network to the database silent",
            Self::Cut { .. } => "network to the database cut",
        }
    }

    /// How often it kills a process, of `daemons` there are.
    pub(super) const fn kills(&self, daemons: usize) -> u64 {
        match self {
            Self::Kill { .. } | Self::KillInCall { .. } | Self::Desert => 1,
            Self::KillAll { .. } => daemons as u64,
            _ => 0,
        }
    }
}

/// A fault, what comes before it, and who is killed while it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// Before it, in milliseconds.
    pub(super) pause: u64,
    /// What goes wrong.
    pub(super) fault: Fault,
    /// A daemon that is killed in the middle of it.
    pub(super) also_killed: Option<usize>,
}

impl Step {
    /// How often it kills a process, of `daemons` there are.
    pub(super) fn kills(&self, daemons: usize) -> u64 {
        self.fault.kills(daemons) + u64::from(self.also_killed.is_some())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.fault)?;
        self.also_killed.map_or(Ok(()), |victim| write!(f, ", and kill -9 of {victim}"))
    }
}

/// What there is to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Ground {
    /// Daemons on a PostgreSQL database, each behind a network of its own.
    Postgres,
    /// Daemons on a SQLite file.
    Sqlite,
}

/// Kinds of faults, and how often each comes.
type Weights = &'static [(u32, fn(&mut Rng, usize) -> Fault)];

/// The steps that follow from a seed, without end.
#[derive(Debug)]
pub(super) struct Schedule {
    rng: Rng,
    ground: Ground,
    daemons: usize,
}

impl Schedule {
    /// The schedule of `seed`; the same again for the same seed, ground and number of daemons.
    pub(super) fn new(seed: u64, ground: Ground, daemons: usize) -> Self {
        Self { rng: Rng::with_seed(seed), ground, daemons }
    }

    fn fault(&mut self) -> Fault {
        let weights = match (self.ground, self.daemons) {
            (Ground::Postgres, _) => POSTGRES,
            (Ground::Sqlite, 1) => SQLITE_ALONE,
            (Ground::Sqlite, _) => SQLITE_SHARED,
        };
        let sum: u32 = weights.iter().map(|(weight, _)| weight).sum();
        let mut drawn = self.rng.u32(..sum);
        for (weight, fault) in weights {
            match drawn.checked_sub(*weight) {
                Some(rest) => drawn = rest,
                None => return fault(&mut self.rng, self.daemons),
            }
        }
        unreachable!("less than the sum was drawn")
    }
}

impl Iterator for Schedule {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let pause = self.rng.u64(100..1_500);
        let fault = self.fault();
        let also_killed = match fault {
            Fault::StopDatabase { .. } | Fault::Disconnect { .. } | Fault::Lock { .. } | Fault::ReadOnly { .. } => {
                Some(self.rng.usize(..self.daemons))
            }
            // Another one than is cut or stopped already.
            Fault::Freeze { victim, .. } | Fault::Cut { victim, .. } if self.daemons > 1 => {
                Some((victim + self.rng.usize(1..self.daemons)) % self.daemons)
            }
            _ => None,
        };
        let also_killed = also_killed.filter(|_| self.rng.u32(..3) == 0);
        Some(Step { pause, fault, also_killed })
    }
}

const POSTGRES: Weights = &[
    (12, kill),
    (2, kill_all),
    (4, kill_in_call),
    (2, desert),
    (2, freeze_past_the_lease),
    (1, freeze_shortly),
    (2, drain),
    (2, stop_database),
    (3, disconnect),
    (2, lock_rows),
    (1, read_only),
    (2, cut),
];

const SQLITE_ALONE: Weights = &[(6, kill), (12, kill_in_call), (1, freeze_shortly), (2, drain), (2, lock_file)];

const SQLITE_SHARED: Weights = &[
    (6, kill),
    (2, kill_all),
    (10, kill_in_call),
    (2, desert),
    (1, freeze_past_the_lease),
    (1, freeze_shortly),
    (2, drain),
    (2, lock_file),
];

fn kill(rng: &mut Rng, daemons: usize) -> Fault {
    Fault::Kill { victim: rng.usize(..daemons), down: rng.u64(..2_000) }
}

fn kill_all(rng: &mut Rng, _: usize) -> Fault {
    Fault::KillAll { down: rng.u64(..1_000) }
}

fn kill_in_call(rng: &mut Rng, _: usize) -> Fault {
    let tool = rng.choice(["submit_report", "get_report_status", "cancel_report"]).unwrap_or("submit_report");
    Fault::KillInCall { tool, executed: rng.bool() }
}

fn desert(_: &mut Rng, _: usize) -> Fault {
    Fault::Desert
}

fn freeze_past_the_lease(rng: &mut Rng, daemons: usize) -> Fault {
    Fault::Freeze { victim: rng.usize(..daemons), time: LEASE_MS + rng.u64(500..4_000) }
}

fn freeze_shortly(rng: &mut Rng, daemons: usize) -> Fault {
    Fault::Freeze { victim: rng.usize(..daemons), time: rng.u64(200..3_000) }
}

fn drain(rng: &mut Rng, daemons: usize) -> Fault {
    Fault::Drain { victim: rng.usize(..daemons) }
}

fn stop_database(rng: &mut Rng, _: usize) -> Fault {
    Fault::StopDatabase { orderly: rng.bool(), down: rng.u64(200..8_000) }
}

fn disconnect(rng: &mut Rng, _: usize) -> Fault {
    Fault::Disconnect { all: rng.bool() }
}

fn lock_rows(rng: &mut Rng, _: usize) -> Fault {
    let on = rng.choice([Lock::Table, Lock::Tasks, Lock::Workers]).unwrap_or(Lock::Table);
    Fault::Lock { on, time: rng.u64(2_000..7_000) }
}

fn read_only(rng: &mut Rng, _: usize) -> Fault {
    Fault::ReadOnly { time: rng.u64(1_000..7_000) }
}

fn cut(rng: &mut Rng, daemons: usize) -> Fault {
    let network = rng.choice([Network::Refusing, Network::Reset]).unwrap_or(Network::Reset);
    Fault::Cut { victim: rng.usize(..daemons), network, time: rng.u64(500..8_000) }
}

fn lock_file(rng: &mut Rng, _: usize) -> Fault {
    Fault::Lock { on: Lock::File, time: rng.u64(500..4_000) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_the_schedule() {
        let steps = |seed, ground, daemons| Schedule::new(seed, ground, daemons).take(500).collect::<Vec<_>>();
        for (ground, daemons) in [(Ground::Postgres, 3), (Ground::Sqlite, 1), (Ground::Sqlite, 2)] {
            assert_eq!(steps(7, ground, daemons), steps(7, ground, daemons));
            assert_ne!(steps(7, ground, daemons), steps(8, ground, daemons));
        }
    }

    #[test]
    fn every_kind_of_fault_comes_up() {
        let kinds = |ground, daemons| {
            let steps = Schedule::new(1, ground, daemons).take(2_000);
            steps.map(|step| step.fault.kind()).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(kinds(Ground::Postgres, 3).len(), 18);
        assert_eq!(kinds(Ground::Sqlite, 1).len(), 7);
        assert_eq!(kinds(Ground::Sqlite, 2).len(), 10);
    }
}
