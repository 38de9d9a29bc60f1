//! Chaos: daemons, their database and their network fail by a schedule, while clients use them; then everything has to add up.

mod clients;
mod database;
mod fault;
mod fleet;
mod pollers;
mod report;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::audit;
use crate::daemon::{has_ended, id_of};
use crate::fake::{Era, FakeOptions, FakeServer, native_tools};
use clients::{Clients, Ledger};
pub use fault::Ground;
use fault::{Fault, LEASE_MS, Schedule, Step};
use fleet::Fleet;
pub use report::Report;

/// After a fault's end, everybody is ready and everything polled within this: the lease and ten seconds. A machine that is
/// busy with other things too may need more.
pub const RECOVERY: Duration = Duration::from_millis(LEASE_MS + 10_000);
/// After the last fault, everybody is answered and every task ends within this.
const END: Duration = Duration::from_secs(90);
/// Tasks that never end, whose polls tell whether everything is polled.
const BEACONS: usize = 12;

/// What to do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The daemon.
    pub program: PathBuf,
    /// What there is to break.
    pub ground: Ground,
    /// How many daemons.
    pub daemons: usize,
    /// The run ends after so many kills,
    pub kills: u64,
    /// or after this long.
    pub time: Duration,
    /// How soon everything has to be well again after a fault; [`RECOVERY`] on a machine that has the time.
    pub recovery: Duration,
    /// What the schedule follows from.
    pub seed: u64,
    /// Whether each step is told on standard error, and the logs are kept.
    pub verbose: bool,
}

/// Runs `plan` to its end. It panics only where the harness itself is at a loss.
pub async fn run(plan: Plan) -> Report {
    let started = Instant::now();
    // In every other schedule the tasks of one server are native: of the generation whose questions can be answered.
    let (plain, sure) = (server(false).await, server(plan.seed % 2 == 1).await);
    let servers = [("plain", &plain, false), ("sure", &sure, true)];
    let fleet = Fleet::start(plan.program.clone(), plan.ground, plan.daemons, &servers).await;
    let fleet = if plan.verbose { fleet.kept() } else { fleet };
    let report = Report {
        subject: format!("{} daemons on {:?}", plan.daemons, plan.ground),
        seed: plan.seed,
        folder: fleet.folder(),
        ..Report::default()
    };
    if plan.verbose {
        eprintln!("{}, seed {}, logs in {}", report.subject, plan.seed, report.folder.display());
    }
    let mut run = Run {
        fleet,
        servers: [("plain", &plain), ("sure", &sure)],
        report,
        recovery: plan.recovery,
        verbose: plan.verbose,
    };
    let beacons = run.beacons().await;
    let mut clients = Clients::start(run.fleet.apis(), plan.seed);
    let deadline = started + plan.time;
    for step in Schedule::new(plan.seed, plan.ground, plan.daemons) {
        if run.report.kills >= plan.kills || Instant::now() >= deadline {
            break;
        }
        run.step(&step, &beacons, started).await;
    }
    run.end(&mut clients, &beacons).await;
    run.check(&clients.end()).await;
    run.fleet.stop().await;
    let Run { fleet, mut report, .. } = run;
    (report.restarts, report.gave_up) = (fleet.restarts, fleet.gave_up);
    report.wrong.extend(fleet.wrong_ends);
    report.took = started.elapsed();
    report
}

async fn server(native: bool) -> FakeServer {
    let options = FakeOptions { journal: true, ..FakeOptions::default() };
    let server = FakeServer::start(if native {
        FakeOptions { era: Era::Modern, tools: Some(native_tools()), ..options }
    } else {
        options
    })
    .await;
    // Calls take their time after they have done their work: a kill then loses the answer.
    server.state.faults.after_execution.store(true, std::sync::atomic::Ordering::Relaxed);
    server.state.faults.latency_ms.store(40, std::sync::atomic::Ordering::Relaxed);
    server
}

#[derive(Debug)]
struct Run<'a> {
    fleet: Fleet,
    servers: [(&'static str, &'a FakeServer); 2],
    report: Report,
    recovery: Duration,
    verbose: bool,
}

impl Run<'_> {
    /// Submits the beacons; their remote ids.
    async fn beacons(&self) -> Vec<String> {
        let api = &self.fleet.apis()[0];
        let ids = api.submit_many("plain", &json!({"end": "never", "poll_after_seconds": 0.4}), BEACONS).await;
        let mut beacons = Vec::new();
        for id in ids {
            let task = api.task(&id).await.expect("a task that was just submitted");
            let remote = task["remote_task_id"].as_str().expect("its remote id").to_owned();
            beacons.push(remote);
        }
        beacons
    }

    async fn step(&mut self, step: &Step, beacons: &[String], started: Instant) {
        sleep(Duration::from_millis(step.pause)).await;
        if self.verbose {
            eprintln!("{:>6.1} s  {step}", started.elapsed().as_secs_f64());
        }
        self.report.kills += step.kills(self.fleet.count());
        *self.report.faults.entry(step.fault.kind()).or_default() += 1;
        let servers = self.servers.map(|(_, server)| server);
        self.fleet.suffer(step, &servers).await;
        if step.fault == Fault::Desert {
            let killed = Instant::now();
            if !polled_again(servers[0], beacons, self.recovery).await {
                self.report.wrong.push(format!("not taken over within {:?}", self.recovery));
            }
            self.report.slowest_takeover = self.report.slowest_takeover.max(killed.elapsed());
        }
        self.recover(step, beacons).await;
    }

    /// Waits until everybody is ready and every beacon was polled since.
    async fn recover(&mut self, step: &Step, beacons: &[String]) {
        let healed = Instant::now();
        self.fleet.revive();
        let polled = polled_again(self.servers[0].1, beacons, self.recovery);
        let ready = async {
            while !self.fleet.is_ready().await {
                if healed.elapsed() > self.recovery {
                    return false;
                }
                self.fleet.revive();
                sleep(Duration::from_millis(50)).await;
            }
            true
        };
        let (ready, polled) = tokio::join!(ready, polled);
        if !ready || !polled {
            let what = if ready { "not polled again" } else { "not ready" };
            self.report.wrong.push(format!("{what} within {:?} after {step}", self.recovery));
        }
        self.report.slowest_recovery = self.report.slowest_recovery.max(healed.elapsed());
    }

    /// Lets everything come to its end.
    async fn end(&mut self, clients: &mut Clients, beacons: &[String]) {
        if tokio::time::timeout(END, clients.stop_submitting()).await.is_err() {
            self.report.wrong.push(format!("clients were not answered within {END:?}"));
        }
        let api = self.fleet.apis().remove(0);
        let started = Instant::now();
        while !audit::all_ended(&api, beacons.len()).await {
            if started.elapsed() > END {
                self.report.wrong.push(format!("not every task has ended within {END:?}"));
                break;
            }
            // The beacons never end by themselves, nor do tasks whose client was never told of them.
            for task in api.tasks().await.unwrap_or_default().iter().filter(|task| !has_ended(task)) {
                if let Err(error) = api.cancel(&id_of(task)).await {
                    self.report.wrong.push(format!("the cancel of {task} was refused: {error}"));
                }
            }
            sleep(Duration::from_millis(200)).await;
        }
        let polls = |servers: &[(&str, &FakeServer)]| {
            servers.iter().map(|(_, server)| server.state.journal().len()).sum::<usize>()
        };
        // A worker learns of an end that another wrote, such as a cancel's, when it next reconciles: a third of a lease later.
        let ended = Instant::now();
        loop {
            let before = polls(&self.servers);
            sleep(Duration::from_secs(2)).await;
            if polls(&self.servers) == before {
                break;
            }
            if ended.elapsed() > RECOVERY {
                self.report.wrong.push("tasks are called about that have ended".to_owned());
                break;
            }
        }
        // The dead are gone from the register: it took the same time as their tasks' takeover.
        let workers = api.workers().await.expect("the register");
        if workers.len() != self.fleet.count() {
            self.report.wrong.push(format!("{} daemons run, on record are {workers:?}", self.fleet.count()));
        }
    }

    /// Compares what is on record with what the servers and the clients know.
    async fn check(&mut self, ledger: &Ledger) {
        let api = self.fleet.apis().remove(0);
        let rows = audit::details(&api).await;
        let report = &mut self.report;
        report.findings = audit::examine(&api, &rows, &self.servers, ledger.acknowledged.iter()).await;
        report.wrong.extend(ledger.wrong.iter().cloned());
        report.acknowledged = ledger.acknowledged.len() + BEACONS;
        (report.unanswered, report.replayed, report.inputs) = (ledger.unanswered, ledger.replayed, ledger.inputs);
        report.cancelled = ledger.cancelled.len();
        report.rows = rows.len();
        report.outcomes = outcomes(&rows);
        let by_id: HashMap<String, &Value> = rows.iter().map(|row| (id_of(row), row)).collect();
        for (id, end) in &ledger.ends {
            if by_id.get(id).is_none_or(|row| row["status"] != *end) {
                report.wrong.push(format!("{id} was {end}, and is now {:?}", by_id.get(id)));
            }
        }
        // A submit that may be repeated is repeated until its outcome is known.
        let unknown = rows.iter().filter(|row| row["server_name"] == "sure" && audit::outcome_is_unknown(row));
        report.wrong.extend(unknown.map(|row| format!("a submit that may be repeated was not: {row}")));
        let cancelled: HashSet<&String> = ledger.cancelled.iter().collect();
        for (name, server) in self.servers {
            let journal = server.state.journal();
            report.polls += journal.iter().filter(|called| called.is_poll()).count();
            report.wrong.extend(pollers::contests(&journal, self.recovery));
            let mut tracked: HashMap<&str, &Value> = HashMap::new();
            for row in rows.iter().filter(|row| row["server_name"] == name) {
                tracked.extend(row["remote_task_id"].as_str().map(|remote| (remote, row)));
            }
            let truths = server.state.core.truths();
            report.remote += truths.len();
            for truth in truths {
                match tracked.get(truth.id.as_str()) {
                    None => report.compensated += usize::from(truth.cancels > 0),
                    // No earlier poll's answer was applied once a cancel was on record (invariant 6).
                    Some(row) if truth.cancels == 0 && cancelled.contains(&id_of(row)) => {
                        report.wrong.push(format!("ended without the cancel that was recorded: {row}"));
                    }
                    Some(_) => {}
                }
            }
        }
    }
}

/// Whether every beacon is polled within `patience`.
async fn polled_again(server: &FakeServer, beacons: &[String], patience: Duration) -> bool {
    let polls = |beacon: &String| server.state.core.find(beacon).map_or(0, |truth| truth.polls);
    let before: Vec<_> = beacons.iter().map(polls).collect();
    let started = Instant::now();
    while beacons.iter().zip(&before).any(|(beacon, before)| polls(beacon) <= *before) {
        if started.elapsed() > patience {
            return false;
        }
        sleep(Duration::from_millis(20)).await;
    }
    true
}

/// How many rows ended how.
fn outcomes(rows: &[Value]) -> BTreeMap<String, usize> {
    let mut outcomes = BTreeMap::new();
    for row in rows {
        let status = row["status"].as_str().unwrap_or_default();
        let outcome = row["error_code"].as_str().map_or(status.to_owned(), |code| format!("{status}, {code}"));
        *outcomes.entry(outcome).or_default() += 1;
    }
    outcomes
}
