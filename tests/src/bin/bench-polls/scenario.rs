//! The three scenarios: throughput and CPU beside a bare client, lateness, and memory.

use std::time::Duration;

use clap::{Parser, ValueEnum};
use mcp_taskd_tests::bench::measure::{Metrics, cpu_seconds, median, memory_mib, threads};
use mcp_taskd_tests::bench::process::Daemon;
use mcp_taskd_tests::bench::report::{Report, Target};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::child::{Bare, Server};

/// After the daemon goes on, until it is measured.
const WARM_UP: Duration = Duration::from_millis(700);
/// Tasks of the lateness scenario, at the default interval of 5 s and the default of 8 slots.
const PACED: usize = 1_000;

/// What polling costs.
#[derive(Debug, Parser)]
pub(crate) struct Plan {
    /// Measures this only.
    #[arg(long, value_enum)]
    only: Option<Scenario>,
    /// Fewer and shorter rounds.
    #[arg(long)]
    quick: bool,
    /// Rounds of each side in the throughput scenario.
    #[arg(long, default_value_t = 5, default_value_if("quick", "true", "3"))]
    rounds: usize,
    /// Seconds of each round; the lateness scenario takes five of them.
    #[arg(long, default_value_t = 4.0, default_value_if("quick", "true", "2"))]
    seconds: f64,
    /// Tasks of the throughput scenario.
    #[arg(long, default_value_t = 3_000)]
    tasks: usize,
    /// Polls at a time in it, on both sides.
    #[arg(long, default_value_t = 64)]
    concurrency: usize,
    /// Tasks of the memory scenario.
    #[arg(long, default_value_t = 10_000)]
    held: usize,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// Polls a second, beside a bare HTTP client.
    Throughput,
    /// How late polls are.
    Lateness,
    /// What a held task takes.
    Memory,
}

impl Plan {
    pub(crate) fn wants(&self, scenario: Scenario) -> bool {
        self.only.is_none_or(|only| only == scenario)
    }

    fn round(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// One round of either side.
#[derive(Debug, Clone, Copy)]
struct Round {
    polls_per_second: f64,
    cpu_us_per_poll: f64,
    /// The server's calls for each poll that was counted on this side.
    served: f64,
}

/// Polls a second and CPU a poll of the daemon, beside those of the bare client, round by round in turn.
pub(crate) async fn throughput(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let (tasks, slots) = (plan.tasks, plan.concurrency);
    println!("throughput: {tasks} tasks that are due again after 0.1 s, {slots} polls at a time");
    let mut server = Server::start().await?;
    let mut bare = Bare::start(&server, tasks, slots).await?;
    let settings = json!({"poll_interval_seconds": 1, "max_concurrent_polls": slots});
    let daemon = Daemon::start(&server.configured(), settings, None).await?;
    report.note(
        "submits_per_second",
        daemon.submit("reports", tasks, Some(0.1)).await?,
        "through the REST API, two commits each",
    );
    daemon.settle(tasks).await?;
    daemon.freeze()?;
    bare.round(WARM_UP).await?;

    let (mut bares, mut daemons) = (Vec::new(), Vec::new());
    let (mut written, mut touched, mut unchanged) = (0.0, 0.0, 0.0);
    for _ in 0..plan.rounds {
        let (cpu, calls, started) = (cpu_seconds(bare.pid())?, server.calls().await?, Instant::now());
        let polls = bare.round(plan.round()).await?;
        let (took, calls) = (started.elapsed(), server.calls().await? - calls);
        bares.push(round(polls, took, cpu_seconds(bare.pid())? - cpu, calls));

        daemon.thaw()?;
        sleep(WARM_UP).await;
        let (before, cpu) = (daemon.metrics().await?, cpu_seconds(daemon.pid())?);
        let (calls, started) = (server.calls().await?, Instant::now());
        sleep(plan.round()).await;
        let delta = daemon.metrics().await?.since(&before);
        let (took, cpu) = (started.elapsed(), cpu_seconds(daemon.pid())? - cpu);
        let calls = server.calls().await? - calls;
        daemon.freeze()?;
        daemons.push(round(delta.polls(), took, cpu, calls));
        let (rows, touches) = delta.rows_written();
        written += rows;
        touched += touches;
        unchanged += delta.sum("polls_total", "outcome=\"unchanged\"");
    }
    for (bare, daemon) in bares.iter().zip(&daemons) {
        println!(
            "        bare {:>7.0} polls/s {:>5.1} µs   daemon {:>7.0} polls/s {:>5.1} µs   {:.2}  {:.2}",
            bare.polls_per_second,
            bare.cpu_us_per_poll,
            daemon.polls_per_second,
            daemon.cpu_us_per_poll,
            daemon.polls_per_second / bare.polls_per_second,
            daemon.cpu_us_per_poll / bare.cpu_us_per_poll,
        );
    }
    let of = |rounds: &[Round], what: fn(&Round) -> f64| median(&rounds.iter().map(what).collect::<Vec<_>>());
    let ratio = |what: fn(&Round) -> f64| {
        let ratios = daemons.iter().zip(&bares).map(|(daemon, bare)| what(daemon) / what(bare));
        median(&ratios.collect::<Vec<_>>())
    };
    report.note("bare_polls_per_second", of(&bares, |round| round.polls_per_second), "");
    report.note("daemon_polls_per_second", of(&daemons, |round| round.polls_per_second), "");
    report.note("bare_cpu_us_per_poll", of(&bares, |round| round.cpu_us_per_poll), "");
    report.note("daemon_cpu_us_per_poll", of(&daemons, |round| round.cpu_us_per_poll), "");
    report.note("served_per_counted_poll", of(&daemons, |round| round.served), "the server's own count");
    report.note("touched_rows_per_poll", touched / unchanged, "lazy counters, at most one row a task and lease");
    report.judge("polls_per_second_ratio", ratio(|round| round.polls_per_second), Target::Min(0.35), "daemon : bare");
    report.judge("cpu_per_poll_ratio", ratio(|round| round.cpu_us_per_poll), Target::Max(4.0), "daemon : bare");
    report.judge("rows_per_unchanged_poll", written / unchanged, Target::Max(0.0), "touched rows apart");
    let cpu = cpu_seconds(server.pid())?;
    println!("        the server used {cpu:.1} s of CPU, on the same cores");
    Ok(())
}

fn round(polls: f64, took: Duration, cpu_seconds: f64, calls: f64) -> Round {
    Round {
        polls_per_second: polls / took.as_secs_f64(),
        cpu_us_per_poll: cpu_seconds * 1e6 / polls,
        served: calls / polls,
    }
}

/// How late polls start with 1,000 tasks every 5 s, everything at its default.
pub(crate) async fn lateness(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    println!("lateness: {PACED} tasks every 5 s, 8 polls at a time (defaults)");
    let server = Server::start().await?;
    let daemon = Daemon::start(&server.configured(), json!({}), None).await?;
    daemon.submit("reports", PACED, None).await?;
    daemon.settle(PACED).await?;
    let before = daemon.metrics().await?;
    sleep(plan.round() * 5).await;
    let delta: Metrics = daemon.metrics().await?.since(&before);
    let ms = |quantile| delta.quantile_bound("poll_lateness_seconds", quantile) * 1_000.0;
    report.note("paced_polls", delta.polls(), "");
    report.note("lateness_p50_ms", ms(0.5), "upper bound of its bucket");
    report.judge("lateness_p99_ms", ms(0.99), Target::Max(250.0), "upper bound of its bucket");
    let (written, touched) = delta.rows_written();
    report.note("paced_rows_written", written, &format!("and {touched} touched"));
    Ok(())
}

/// What memory a daemon takes that tracks many tasks.
pub(crate) async fn memory(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    println!("memory: {} tasks that are held, due every 60 s", plan.held);
    let server = Server::start().await?;
    let daemon = Daemon::start(&server.configured(), json!({"poll_interval_seconds": 1}), None).await?;
    report.note("rss_mib_empty", memory_mib(daemon.pid(), "VmRSS")?, "");
    daemon.submit("reports", plan.held, Some(60.0)).await?;
    daemon.settle(plan.held).await?;
    // The gauge is set once a second.
    sleep(Duration::from_millis(1_500)).await;
    let held = daemon.metrics().await?.sum("leases_held", "");
    report.judge("tasks_held", held, Target::Min(plan.held as f64), "");
    report.judge(
        "rss_mib",
        memory_mib(daemon.pid(), "VmRSS")?,
        Target::Max(60.0),
        "right after submits and first polls",
    );
    report.note("rss_mib_peak", memory_mib(daemon.pid(), "VmHWM")?, "");
    report.note("threads", threads(daemon.pid())? as f64, "");
    Ok(())
}
