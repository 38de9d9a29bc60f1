//! What a seed decides beforehand: processes, servers, calls, and faults, each of which can be left out to shrink a history.

use fastrand::Rng;
use mcp_taskd_core::config::TaskSettings;
use mcp_taskd_core::task::Status;

/// A whole run, as data.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed, which also feeds the dice that are thrown during the run.
    pub seed: u64,
    /// How long faults and calls go on, in virtual milliseconds.
    pub busy_ms: u64,
    /// The configuration of every process.
    pub settings: TaskSettings,
    /// The processes.
    pub processes: Vec<ProcessPlan>,
    /// The servers.
    pub servers: Vec<ServerPlan>,
    /// What callers do.
    pub calls: Vec<CallPlan>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// A process of the fleet.
#[derive(Debug, Clone)]
pub struct ProcessPlan {
    /// When it joins.
    pub joins_ms: u64,
    /// By how much its clock is off.
    pub skew_ms: i64,
    /// Which state directory it has; several may share one machine.
    pub state_dir: usize,
    /// Whether it polls.
    pub polls: bool,
}

/// A server.
#[derive(Debug, Clone)]
pub struct ServerPlan {
    /// Whether it honours idempotency keys, and its toolset says so.
    pub idempotent: bool,
    /// The most its answers take while nothing is wrong.
    pub latency_ms: u64,
    /// Whether its tasks are MCP's own.
    pub native: bool,
}

/// What the submitted work is like.
#[derive(Debug, Clone)]
pub struct Work {
    /// How long it runs.
    pub run_ms: u64,
    /// How it ends.
    pub end: Status,
    /// Between two steps of its progress.
    pub step_ms: u64,
    /// From when on it asks for input, and for how long at most.
    pub asks: Option<(u64, u64)>,
    /// `poll_after_seconds`, in milliseconds.
    pub hint_ms: Option<u64>,
    /// Whether its result is larger than what is kept.
    pub large: bool,
}

/// What a caller does.
#[derive(Debug, Clone)]
pub struct CallPlan {
    /// When.
    pub at_ms: u64,
    /// At which process.
    pub process: usize,
    /// What.
    pub kind: CallKind,
}

/// What a caller asks for. Tasks are named by the submit's number.
#[derive(Debug, Clone)]
pub enum CallKind {
    /// Submit number `submit`; with a key, the same number may be submitted again elsewhere.
    Submit {
        /// The number.
        submit: usize,
        /// The server.
        server: usize,
        /// The work.
        work: Work,
        /// Whether it carries an idempotency key.
        keyed: bool,
        /// Whether the caller hangs up after this long.
        patience_ms: Option<u64>,
    },
    /// Cancel the task of a submit.
    Cancel(usize),
    /// Poll it now.
    PollNow(usize),
    /// Answer its question.
    Input(usize),
    /// Wait for a change.
    Wait(usize),
}

/// Something that goes wrong for a while.
#[derive(Debug, Clone)]
pub struct Fault {
    /// From when.
    pub at_ms: u64,
    /// For how long.
    pub lasts_ms: u64,
    /// What.
    pub kind: FaultKind,
}

/// What goes wrong.
#[derive(Debug, Clone)]
pub enum FaultKind {
    /// Statements meet this, each with this chance; those of one process, or of all.
    Store {
        /// Whose.
        process: Option<usize>,
        /// What happens to them.
        fault: StoreFault,
        /// Of a hundred.
        percent: u8,
    },
    /// The store's clock is off by this much.
    StoreClock(i64),
    /// A server misbehaves, each call with this chance.
    Server {
        /// Which.
        server: usize,
        /// How.
        fault: ServerFault,
        /// Of a hundred.
        percent: u8,
    },
    /// A process ends at the n-th poll of any of its futures, and starts again when this is over.
    Crash {
        /// Which.
        process: usize,
        /// After how many polls.
        polls: u64,
        /// Whether the next one finds the state directory.
        same_state: bool,
    },
    /// A process stands still.
    Freeze {
        /// Which.
        process: usize,
    },
    /// A process is stopped in an orderly way, and starts again when this is over.
    Restart {
        /// Which.
        process: usize,
        /// How long it may take.
        grace_ms: u64,
    },
    /// A process leaves for good.
    Leave {
        /// Which; never the first.
        process: usize,
    },
}

/// What happens to a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoreFault {
    /// Not executed, and the sender knows.
    Away,
    /// Rolled back.
    Conflict,
    /// Not executed, and the sender cannot know.
    StatementLost,
    /// Executed, and the sender cannot know.
    AnswerLost,
    /// The sender is told that nobody knows; it is executed up to this much later.
    Late(u64),
    /// Executed up to this much later than usual.
    Slow(u64),
    /// Executed or not; the connection hangs, and gives up only after this long.
    Hangs(u64),
}

/// How a server misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerFault {
    /// No connection.
    Refuses,
    /// The connection breaks before the call was executed.
    BreaksBefore,
    /// The connection breaks after the call was executed.
    BreaksAfter,
    /// 503, with `Retry-After` in milliseconds where there is one.
    Busy(Option<u64>),
    /// `isError`.
    ToolError,
    /// A JSON-RPC error.
    RpcError,
    /// No answer; the call is not executed.
    BlackHole,
    /// No answer; the call is executed.
    BlackHoleAfter,
    /// Up to this much slower; past the deadline the call is executed all the same.
    Slow(u64),
    /// Something that is no tool result.
    NoAnswer,
    /// Another task's id.
    WrongId,
    /// A status that the contract does not know.
    WrongStatus,
    /// No `structuredContent`.
    NoContent,
    /// Unusable `poll_after_seconds`.
    BadHint,
    /// The task is forgotten for good.
    Forgets,
    /// A submit is answered with the id of an earlier task.
    SameId,
}

const STORE_FAULTS: [StoreFault; 8] = [
    StoreFault::Away,
    StoreFault::Conflict,
    StoreFault::StatementLost,
    StoreFault::AnswerLost,
    StoreFault::Late(400),
    StoreFault::Late(4_000),
    StoreFault::Slow(1_500),
    StoreFault::Hangs(15_000),
];

const SERVER_FAULTS: [ServerFault; 18] = [
    ServerFault::Refuses,
    ServerFault::BreaksBefore,
    ServerFault::BreaksAfter,
    ServerFault::Busy(None),
    ServerFault::Busy(Some(2_000)),
    ServerFault::Busy(Some(7_000)),
    ServerFault::ToolError,
    ServerFault::RpcError,
    ServerFault::BlackHole,
    ServerFault::BlackHoleAfter,
    ServerFault::Slow(1_000),
    ServerFault::Slow(6_000),
    ServerFault::NoAnswer,
    ServerFault::WrongId,
    ServerFault::WrongStatus,
    ServerFault::NoContent,
    ServerFault::BadHint,
    ServerFault::Forgets,
];

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Self {
        let mut dice = Rng::with_seed(seed);
        // Now and then enough tasks for balance to matter, for a shorter time.
        let crowd = one_in(&mut dice, 16);
        let busy_ms = if crowd { dice.u64(5_000..10_000) } else { dice.u64(6_000..20_000) };
        let settings = TaskSettings {
            poll_interval_seconds: dice.u32(1..=2),
            lease_seconds: dice.u32(5..=6),
            max_concurrent_polls: dice.u32(2..=8),
            max_poll_backoff_seconds: dice.u32(2..=4),
            input_required_poll_interval_seconds: 5,
            tracking_degraded_after_errors: dice.u32(1..=3),
            max_result_bytes: 1_024,
            result_preview_max_chars: 64,
            max_task_age_seconds: one_in(&mut dice, 6).then(|| dice.u64(6..15)),
            retention_days: None,
            ..TaskSettings::default()
        };
        let processes = dice.usize(2..=4);
        let processes: Vec<_> = (0..processes).map(|n| process(&mut dice, n, busy_ms)).collect();
        let servers: Vec<_> = (0..dice.usize(1..=3))
            .map(|n| ServerPlan {
                idempotent: dice.bool(),
                latency_ms: dice.u64(1..60),
                // Not by the dice: with ordinary tools alone, a seed is the same history.
                native: seed % 3 == 2 && n == 0,
            })
            .collect();
        let mut plan = Self { seed, busy_ms, settings, processes, servers, calls: Vec::new(), faults: Vec::new() };
        if one_in(&mut dice, 12) {
            plan.flood(&mut dice);
            return plan;
        }
        let patient = one_in(&mut dice, 20);
        for submit in 0..if crowd { 48 } else { dice.usize(3..=14) } {
            plan.add_submit(&mut dice, submit, patient);
        }
        let faults = if one_in(&mut dice, 6) { 10..=20 } else { 0..=9 };
        for _ in 0..dice.usize(faults) {
            plan.add_fault(&mut dice);
        }
        plan
    }

    /// Nothing is wrong but one server, which has most of the tasks; those of another must not notice.
    fn flood(&mut self, dice: &mut Rng) {
        self.servers = vec![ServerPlan { idempotent: false, latency_ms: 20, native: false }; 2];
        for submit in 0..20 {
            let work = Work {
                run_ms: dice.u64(8_000..15_000),
                end: Status::Completed,
                step_ms: 4_000,
                asks: None,
                hint_ms: None,
                large: false,
            };
            let server = usize::from(submit % 6 == 0);
            let kind = CallKind::Submit { submit, server, work, keyed: false, patience_ms: None };
            let at_ms = dice.u64(300..2_000);
            self.call(dice, at_ms, kind);
        }
        let sick =
            [ServerFault::BlackHole, ServerFault::BlackHoleAfter, ServerFault::Slow(6_000), ServerFault::Refuses];
        let fault = dice.choice(sick).expect("one");
        let at_ms = dice.u64(2_000..5_000);
        let kind = FaultKind::Server { server: 0, fault, percent: 100 };
        self.faults.push(Fault { at_ms, lasts_ms: self.busy_ms - at_ms, kind });
    }

    /// A submit, and what is asked of its task; where callers are `patient`, some tasks ask to be left alone for minutes.
    fn add_submit(&mut self, dice: &mut Rng, submit: usize, patient: bool) {
        let at_ms = dice.u64(..self.busy_ms);
        let work = Work {
            run_ms: dice.u64(200..15_000),
            end: dice.choice([Status::Completed, Status::Completed, Status::Failed, Status::Cancelled]).expect("one"),
            step_ms: dice.u64(700..6_000),
            asks: one_in(dice, 4).then(|| (dice.u64(..4_000), dice.u64(500..9_000))),
            hint_ms: match dice.u8(..9) {
                0 if patient => Some(dice.u64(100_000..160_000)),
                0..=2 => Some(dice.u64(50..3_000)),
                _ => None,
            },
            large: one_in(dice, 5),
        };
        let keyed = one_in(dice, 3);
        let kind = CallKind::Submit {
            submit,
            server: dice.usize(..self.servers.len()),
            work,
            keyed,
            patience_ms: one_in(dice, 6).then(|| dice.u64(1..400)),
        };
        if keyed {
            for _ in 0..dice.usize(1..=3) {
                // At once, or any time later.
                let later = if dice.bool() { dice.u64(..100) } else { dice.u64(..8_000) };
                self.call(dice, at_ms + later, kind.clone());
            }
        }
        self.call(dice, at_ms, kind);
        if one_in(dice, 4) {
            for _ in 0..dice.usize(1..=2) {
                let after = dice.u64(..12_000);
                self.call(dice, at_ms + after, CallKind::Cancel(submit));
            }
        }
        if one_in(dice, 5) {
            let after = dice.u64(..8_000);
            let kind = match dice.u8(..3) {
                0 => CallKind::PollNow(submit),
                1 => CallKind::Input(submit),
                _ => CallKind::Wait(submit),
            };
            self.call(dice, at_ms + after, kind);
        }
    }

    fn call(&mut self, dice: &mut Rng, at_ms: u64, kind: CallKind) {
        let process = dice.usize(..self.processes.len());
        self.calls.push(CallPlan { at_ms: at_ms.min(self.busy_ms), process, kind });
    }

    fn add_fault(&mut self, dice: &mut Rng) {
        let at_ms = dice.u64(..self.busy_ms);
        let process = dice.usize(..self.processes.len());
        let (lasts_ms, kind) = match dice.u8(..20) {
            0..=5 => {
                let fault = dice.choice(STORE_FAULTS).expect("one");
                let percent = if one_in(dice, 4) { 100 } else { dice.u8(5..60) };
                (dice.u64(200..9_000), FaultKind::Store { process: dice.bool().then_some(process), fault, percent })
            }
            6..=10 => {
                let fault =
                    if one_in(dice, 12) { ServerFault::SameId } else { dice.choice(SERVER_FAULTS).expect("one") };
                let percent = match fault {
                    // These end tasks; a run in which all have ended shows little.
                    ServerFault::WrongId | ServerFault::WrongStatus | ServerFault::NoContent | ServerFault::Forgets => {
                        10
                    }
                    _ if dice.bool() => 100,
                    _ => dice.u8(10..80),
                };
                (dice.u64(500..12_000), FaultKind::Server { server: dice.usize(..self.servers.len()), fault, percent })
            }
            11..=14 => {
                let kind = FaultKind::Crash { process, polls: dice.u64(1..150), same_state: dice.bool() };
                (dice.u64(10..6_000), kind)
            }
            15..=16 => (dice.u64(100..15_000), FaultKind::Freeze { process }),
            17 => (dice.u64(10..3_000), FaultKind::Restart { process, grace_ms: dice.u64(100..6_000) }),
            18 if process > 0 => (0, FaultKind::Leave { process }),
            _ => {
                let by = if one_in(dice, 4) { dice.i64(30_000..600_000) } else { dice.i64(1_000..30_000) };
                (dice.u64(500..10_000), FaultKind::StoreClock(if dice.bool() { by } else { -by }))
            }
        };
        self.faults.push(Fault { at_ms, lasts_ms: lasts_ms.min(self.busy_ms - at_ms), kind });
    }
}

fn process(dice: &mut Rng, n: usize, busy_ms: u64) -> ProcessPlan {
    let late = n > 0 && one_in(dice, 4);
    ProcessPlan {
        joins_ms: if late { dice.u64(..busy_ms) } else { dice.u64(..200) },
        skew_ms: dice.i64(-600_000..=600_000),
        state_dir: if one_in(dice, 3) { 0 } else { n },
        polls: n == 0 || !one_in(dice, 6),
    }
}

fn one_in(dice: &mut Rng, n: u8) -> bool {
    dice.u8(..n) == 0
}
