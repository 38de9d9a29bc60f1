//! What a run has shown.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::audit::Findings;

/// The figures of a run, and what does not hold.
#[derive(Debug, Default)]
pub struct Report {
    /// What it was: `3 daemons on PostgreSQL`.
    pub subject: String,
    /// What the schedule follows from.
    pub seed: u64,
    /// The daemons' and the database's logs.
    pub folder: PathBuf,
    /// How long it took.
    pub took: Duration,
    /// Processes killed.
    pub kills: u64,
    /// Processes started again.
    pub restarts: u64,
    /// Processes that gave up by themselves while the store was away, and were started again.
    pub gave_up: u64,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Submits that were answered.
    pub acknowledged: usize,
    /// Submits without a key that were not.
    pub unanswered: u64,
    /// Submits repeated after their answer.
    pub replayed: u64,
    /// Cancels recorded on living tasks.
    pub cancelled: usize,
    /// Inputs given.
    pub inputs: u64,
    /// Tasks on record.
    pub rows: usize,
    /// Tasks that the servers have made.
    pub remote: usize,
    /// Status calls that the servers received.
    pub polls: usize,
    /// Tasks on record by how they ended.
    pub outcomes: BTreeMap<String, usize>,
    /// Remote tasks that were cancelled because their submit could not be recorded.
    pub compensated: usize,
    /// From a kill to the others' polls of everything, without a restart.
    pub slowest_takeover: Duration,
    /// From a fault's end to everybody being ready and everything polled again.
    pub slowest_recovery: Duration,
    /// What the record gets wrong.
    pub findings: Findings,
    /// Whatever else does not hold.
    pub wrong: Vec<String>,
}

impl Report {
    /// Everything that does not hold.
    pub fn violations(&self) -> Vec<&String> {
        self.findings.all().chain(&self.wrong).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, seed {}, {:.0} s", self.subject, self.seed, self.took.as_secs_f64())?;
        writeln!(f, "  processes killed            {}", self.kills)?;
        writeln!(f, "  processes started again     {}, {} of them had given up", self.restarts, self.gave_up)?;
        writeln!(f, "  faults                      {}", self.faults.values().sum::<u64>())?;
        for (kind, count) in &self.faults {
            writeln!(f, "    {kind:<34} {count:>5}")?;
        }
        writeln!(
            f,
            "  submits answered            {}, {} asked again with their key",
            self.acknowledged, self.replayed
        )?;
        writeln!(f, "  submits never answered      {}, without a key", self.unanswered)?;
        writeln!(f, "  cancels and inputs          {}, {}", self.cancelled, self.inputs)?;
        writeln!(f, "  tasks checked               {} on record, {} on the servers", self.rows, self.remote)?;
        for (outcome, count) in &self.outcomes {
            writeln!(f, "    {outcome:<34} {count:>5}")?;
        }
        writeln!(f, "  cancelled as compensation   {}", self.compensated)?;
        writeln!(f, "  polls                       {}", self.polls)?;
        writeln!(f, "  tasks lost                  {}", self.findings.lost.len())?;
        writeln!(f, "  not ended exactly once      {}", self.findings.ended_wrongly.len())?;
        writeln!(f, "  orphans not on record       {}", self.findings.orphans.len())?;
        writeln!(f, "  not as the server says      {}", self.findings.disagreements.len())?;
        writeln!(f, "  other violations            {}", self.wrong.len())?;
        writeln!(f, "  slowest takeover            {:.1} s after a kill", self.slowest_takeover.as_secs_f64())?;
        writeln!(f, "  slowest recovery            {:.1} s after a fault's end", self.slowest_recovery.as_secs_f64())?;
        self.violations().into_iter().try_for_each(|violation| writeln!(f, "  VIOLATION: {violation}"))
    }
}
