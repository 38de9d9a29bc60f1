//! Servers that hang, are gone or refuse, beside a healthy one (invariant 7).

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mcp_taskd_tests::daemon::Api;
use mcp_taskd_tests::fake::FakeServer;
use mcp_taskd_tests::wait::until;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::{audit, fake, site};

/// How long a rhythm is listened to.
const LISTEN: Duration = Duration::from_secs(5);
/// Between two polls of a task on the healthy server.
const HINT: f64 = 0.5;
/// What a machine that does other things too may add.
const SLACK: Duration = Duration::from_millis(400);

/// The gaps between the polls of each task, from the server's own record.
#[derive(Debug)]
struct Rhythm {
    median: Duration,
    nearly_all: Duration,
    polls: usize,
}

async fn listen(fake: &FakeServer) -> Rhythm {
    let from = Instant::now();
    tokio::time::sleep(LISTEN).await;
    let mut last: HashMap<String, Instant> = HashMap::new();
    let mut gaps = Vec::new();
    for called in fake.state.journal() {
        let Some(id) = called.task_id.filter(|_| called.tool == "get_report_status" && called.at >= from) else {
            continue;
        };
        if let Some(before) = last.insert(id, called.at) {
            gaps.push(called.at - before);
        }
    }
    gaps.sort();
    assert!(!gaps.is_empty(), "nothing was polled");
    let at = |share: usize| gaps[(gaps.len() - 1) * share / 100];
    Rhythm { median: at(50), nearly_all: at(95), polls: gaps.len() }
}

fn keeps(before: &Rhythm, now: &Rhythm) {
    eprintln!("before {before:?}, now {now:?}");
    assert!(now.median <= before.median.mul_f64(1.3) + SLACK / 4, "{before:?} became {now:?}");
    assert!(now.nearly_all <= before.nearly_all.mul_f64(1.3) + SLACK, "{before:?} became {now:?}");
    assert!(now.polls * 10 >= before.polls * 7, "{before:?} became {now:?}");
}

/// Tasks on the healthy server, each polled every half a second.
async fn tasks_on_the_healthy_one(api: &Api, fake: &FakeServer) -> Rhythm {
    api.submit_many("live", &json!({"end": "never", "poll_after_seconds": HINT}), 10).await;
    until("each is polled", || async { fake.state.core.truths().iter().all(|truth| truth.polls > 0) }).await;
    listen(fake).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_for_ever_leaves_the_healthy_ones_rhythm_alone_29() {
    let (hung, live) = (fake().await, fake().await);
    let site = site().server("hung", &hung.url).server("live", &live.url);
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    daemon.api.submit_many("hung", &json!({"end": "never", "poll_after_seconds": 0.2}), 100).await;
    let before = tasks_on_the_healthy_one(&daemon.api, &live).await;

    hung.state.faults.hang.store(true, Ordering::Relaxed);
    until("its calls hang", || async { daemon.api.count("polls_in_flight", &[("server", "hung")]).await >= 4 }).await;
    let now = listen(&live).await;
    keeps(&before, &now);
    for task in audit::details(&daemon.api).await {
        assert_eq!(task["status"], "working", "silence is no outcome: {task}");
    }
    daemon.kill9().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_gone_costs_a_few_probes_and_its_tasks_say_so_149() {
    let live = fake().await;
    let mut gone = Command::new(env!("CARGO_BIN_EXE_fake-mcp"))
        .args(["--script", r#"{"end": "never", "poll_after_seconds": 0.2}"#])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(gone.stdout.take().unwrap()).lines();
    let url = lines.next_line().await.unwrap().expect("its address");
    let site = site().server("gone", &url).server("live", &live.url);
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    daemon.api.submit_many("gone", &json!(null), 100).await;
    let before = tasks_on_the_healthy_one(&daemon.api, &live).await;

    gone.kill().await.unwrap();
    let failed = || async { daemon.api.count("polls_total", &[("server", "gone"), ("outcome", "transport")]).await };
    until("its tasks are degraded", || async {
        let tasks = daemon.api.tasks().await.unwrap();
        tasks.iter().filter(|task| task["tracking_degraded"] == true).count() == 100
    })
    .await;
    assert_eq!(daemon.api.count("breaker_open", &[("server", "gone")]).await, 1);
    let probes = failed().await;
    let now = listen(&live).await;
    let probes = failed().await - probes;
    keeps(&before, &now);
    assert!(probes <= 4 * LISTEN.as_secs(), "{probes} probes in {LISTEN:?}");
    for task in audit::details(&daemon.api).await {
        assert_eq!(task["status"], "working");
        assert_eq!(task["last_poll_error"].is_null(), task["server_name"] == "live", "{task}");
    }
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_is_honoured_and_leaves_the_healthy_one_alone_25_135() {
    let (busy, live) = (fake().await, fake().await);
    let site = site().server("busy", &busy.url).server("live", &live.url);
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    daemon.api.submit_many("busy", &json!({"end": "never", "poll_after_seconds": 0.2}), 30).await;
    let before = tasks_on_the_healthy_one(&daemon.api, &live).await;

    busy.state.faults.retry_after.store(3, Ordering::Relaxed);
    busy.state.faults.status.store(503, Ordering::Relaxed);
    let from = Instant::now();
    let now = listen(&live).await;
    keeps(&before, &now);
    let mut calls: HashMap<String, Vec<Instant>> = HashMap::new();
    for called in busy.state.journal().into_iter().filter(|called| called.at >= from) {
        calls.entry(called.task_id.expect("a poll")).or_default().push(called.at);
    }
    assert!(!calls.is_empty());
    for (id, calls) in &calls {
        let close = calls.windows(2).find(|pair| pair[1] - pair[0] < Duration::from_millis(2_900));
        assert!(close.is_none(), "{id} was asked again before the server wanted to be: {calls:?}");
    }

    busy.state.faults.status.store(0, Ordering::Relaxed);
    until("its tasks are polled again", || async {
        daemon.api.count("breaker_open", &[("server", "busy")]).await == 0
            && audit::details(&daemon.api).await.iter().all(|task| task["consecutive_poll_error_count"] == 0)
    })
    .await;
    daemon.stop().await;
}
