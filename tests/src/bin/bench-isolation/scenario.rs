//! One daemon with healthy servers only, beside one with a neighbour that misbehaves, round by round in turn.

use std::time::Duration;

use clap::{Parser, ValueEnum};
use mcp_taskd_tests::bench::measure::{cpu_seconds, median};
use mcp_taskd_tests::bench::process::Daemon;
use mcp_taskd_tests::bench::report::{Report, Target};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::server::{Gaps, Server};

/// The hint of the tasks that are watched: the shortest there is, so that its jitter of 10 % hides little.
const HINT: Duration = Duration::from_millis(100);
/// Tasks that are watched.
const WATCHED: usize = 50;
/// Tasks of a healthy neighbour.
const FEW: usize = 100;
/// After a daemon goes on, until it is measured.
const WARM_UP: Duration = Duration::from_secs(1);
/// Seconds that a call may take: a default of 30 would have the rounds over before a breaker opens.
const DEADLINE: u64 = 5;

/// What a healthy server's tasks notice of its neighbours.
#[derive(Debug, Parser)]
pub(crate) struct Plan {
    /// This neighbour only.
    #[arg(long, value_enum)]
    only: Option<Neighbour>,
    /// Fewer and shorter rounds, and fewer tasks.
    #[arg(long)]
    quick: bool,
    /// Rounds of each side.
    #[arg(long, default_value_t = 5, default_value_if("quick", "true", "3"))]
    rounds: usize,
    /// Seconds of each round.
    #[arg(long, default_value_t = 4.0, default_value_if("quick", "true", "2"))]
    seconds: f64,
    /// Tasks of the neighbour.
    #[arg(long, default_value_t = 10_000, default_value_if("quick", "true", "3000"))]
    tasks: usize,
    /// `max_concurrent_polls`.
    #[arg(long, default_value_t = 8)]
    slots: usize,
}

/// How a neighbour misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Neighbour {
    /// Accepts, and never answers.
    Hole,
    /// Answers at once, and all of its tasks are always due.
    Flood,
    /// Refuses connections.
    Gone,
    /// 503 and `Retry-After`.
    Busy,
}

impl Neighbour {
    const ALL: [Self; 4] = [Self::Hole, Self::Flood, Self::Gone, Self::Busy];

    fn name(self) -> &'static str {
        match self {
            Self::Hole => "hole",
            Self::Flood => "flood",
            Self::Gone => "gone",
            Self::Busy => "busy",
        }
    }
}

/// One round of either side.
#[derive(Debug, Clone, Copy)]
struct Round {
    gaps: Gaps,
    polls_per_second: f64,
    /// Of the neighbour, a second.
    neighbour_calls: f64,
    /// Due times of the neighbour's tasks that the breaker skipped, a second.
    held_back: f64,
    /// Cores that the daemon used.
    cpu: f64,
}

impl std::fmt::Display for Round {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Gaps { p50, p99, max, .. } = self.gaps;
        let Self { polls_per_second, neighbour_calls, held_back, cpu, .. } = self;
        write!(
            f,
            "{polls_per_second:>5.0} polls/s; beyond the hint p50 {p50:>5.1} p99 {p99:>6.1} max {max:>6.1} ms; \
             neighbour {neighbour_calls:>7.1} calls/s, {held_back:>6.1} held back/s; {cpu:.2} CPU"
        )
    }
}

pub(crate) async fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    println!(
        "{WATCHED} tasks due again after {} ms on a healthy server, {} polls at a time; the neighbour has {} tasks",
        HINT.as_millis(),
        plan.slots,
        plan.tasks
    );
    let mut calm = Server::start("calm").await?;
    let healthy = Server::start("healthy").await?;
    let alone = daemon(plan, &calm, &healthy).await?;
    watch(&alone).await?;
    alone.submit("healthy", FEW, None).await?;
    alone.settle(WATCHED + FEW).await?;
    alone.freeze()?;
    for neighbour in Neighbour::ALL {
        if plan.only.is_none_or(|only| only == neighbour) {
            beside(plan, neighbour, &mut calm, &alone, report).await?;
        }
    }
    Ok(())
}

async fn daemon(plan: &Plan, calm: &Server, neighbour: &Server) -> anyhow::Result<Daemon> {
    let settings = json!({"max_concurrent_polls": plan.slots});
    Daemon::start(&[calm.configured(), neighbour.configured()], settings, Some(DEADLINE)).await
}

async fn watch(daemon: &Daemon) -> anyhow::Result<()> {
    daemon.submit("calm", WATCHED, Some(HINT.as_secs_f64())).await.map(drop)
}

async fn beside(
    plan: &Plan,
    neighbour: Neighbour,
    calm: &mut Server,
    alone: &Daemon,
    report: &mut Report,
) -> anyhow::Result<()> {
    let name = neighbour.name();
    println!("{name}");
    let mut other = Server::start(name).await?;
    let daemon = daemon(plan, calm, &other).await?;
    watch(&daemon).await?;
    let hint = (neighbour == Neighbour::Flood).then_some(HINT.as_secs_f64());
    daemon.submit(name, plan.tasks, hint).await?;
    daemon.settle(WATCHED + plan.tasks).await?;
    match neighbour {
        Neighbour::Hole => other.tell("hang").await?,
        Neighbour::Busy => other.tell("busy").await?,
        // Its connections break, and new ones are refused.
        Neighbour::Gone => other.end().await?,
        Neighbour::Flood => {}
    }

    let (mut alones, mut besides) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        besides.push(round(plan, &daemon, calm, name).await?);
        alones.push(round(plan, alone, calm, "healthy").await?);
    }
    for (alone, beside) in alones.iter().zip(&besides) {
        println!("        alone  {alone}");
        println!("        beside {beside}");
    }
    let ratio = |what: fn(&Round) -> f64| {
        median(&besides.iter().zip(&alones).map(|(beside, alone)| what(beside) / what(alone)).collect::<Vec<_>>())
    };
    report.judge(&format!("{name}_p99_ratio"), ratio(|round| round.gaps.p99), Target::Max(1.5), "beside : alone");
    report.judge(
        &format!("{name}_polls_ratio"),
        ratio(|round| round.polls_per_second),
        Target::Min(0.95),
        "beside : alone",
    );
    let calls: Vec<_> = besides.iter().map(|round| round.neighbour_calls).collect();
    report.note(&format!("{name}_calls_per_second"), median(&calls), "of the neighbour");
    Ok(())
}

/// Lets the daemon go on for a round.
async fn round(plan: &Plan, daemon: &Daemon, calm: &mut Server, neighbour: &str) -> anyhow::Result<Round> {
    daemon.thaw()?;
    sleep(WARM_UP).await;
    let (before, cpu, started) = (daemon.metrics().await?, cpu_seconds(daemon.pid())?, Instant::now());
    calm.tell("mark").await?;
    sleep(Duration::from_secs_f64(plan.seconds)).await;
    let (delta, took) = (daemon.metrics().await?.since(&before), started.elapsed().as_secs_f64());
    let cpu = (cpu_seconds(daemon.pid())? - cpu) / took;
    daemon.freeze()?;
    let gaps = calm.gaps(HINT).await?;
    let called = format!("server=\"{neighbour}\"");
    Ok(Round {
        gaps,
        polls_per_second: gaps.count as f64 / took,
        neighbour_calls: delta.sum("poll_duration_seconds_count", &called) / took,
        held_back: delta.sum("poll_retries_total", &format!("reason=\"breaker\",{called}")) / took,
        cpu,
    })
}
