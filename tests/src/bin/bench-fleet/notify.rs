//! What wake-ups cost those who write (FAILURES 8).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mcp_taskd_core::store::{NewHandle, SharedStore, Wakeup, WorkerInfo};
use mcp_taskd_tests::rows;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::Place;

const WRITERS: usize = 32;
const LISTENERS: usize = 5;
/// What is noise on a machine that does other things too.
const TARGET: f64 = 0.9;

/// Inserts and records tasks for a while; how many a second.
async fn round(store: &SharedStore, seconds: f64, wakes: bool) -> anyhow::Result<f64> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let worker = Arc::from(format!("writer-{}", SERIAL.fetch_add(1, Ordering::Relaxed)));
    let info = WorkerInfo { polls: false, ..rows::worker(&worker) };
    store.register(&info).await?;
    let (started, length) = (Instant::now(), Duration::from_secs_f64(seconds));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (store, worker) = (Arc::clone(store), Arc::clone(&worker));
        writers.spawn(async move {
            let mut written = 0_u32;
            while started.elapsed() < length {
                let id: Arc<str> = format!("task-{}", SERIAL.fetch_add(1, Ordering::Relaxed)).into();
                let intent = rows::intent(&worker, &id, "server", 0);
                store.insert_intent(&intent).await?;
                let handle = NewHandle {
                    worker: Arc::clone(&worker),
                    remote_task_id: id.to_string(),
                    id,
                    epoch: 1,
                    next_due_at: 0,
                    keep: false,
                    at: 0,
                };
                store.record_submitted(&handle).await?;
                if wakes {
                    store.wake(Wakeup::Due);
                    store.wake(Wakeup::Changed);
                }
                written += 1;
            }
            anyhow::Ok(written)
        });
    }
    let mut written = 0;
    while let Some(count) = writers.join_next().await {
        written += count??;
    }
    Ok(f64::from(written) / started.elapsed().as_secs_f64())
}

/// Whether the target was met.
pub(crate) async fn run(place: &Place, rounds: usize, seconds: f64) -> anyhow::Result<bool> {
    println!(
        "notify: {WRITERS} writers; {rounds} rounds of {seconds} s without wake-ups, and with them and {LISTENERS} listeners"
    );
    let mut ratios = Vec::new();
    // Whoever wrote first would find the smaller table.
    round(&place.shared().await?, seconds, false).await?;
    for number in 0..rounds {
        let mut rates = [0.0; 2];
        let order = if number % 2 == 0 { [false, true] } else { [true, false] };
        for wakes in order {
            let store = place.shared().await?;
            let mut listeners = JoinSet::new();
            for _ in 0..if wakes { LISTENERS } else { 0 } {
                let listener = place.shared().await?;
                listeners.spawn(async move {
                    let mut heard = listener.wakeups();
                    while heard.recv().await.is_ok() {}
                });
            }
            rates[usize::from(wakes)] = round(&store, seconds, wakes).await?;
        }
        println!("        {:>7.0} tasks a second without, {:>7.0} with", rates[0], rates[1]);
        ratios.push(rates[1] / rates[0]);
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    let met = median >= TARGET;
    let verdict = if met { "pass" } else { "FAIL" };
    println!(
        "  {verdict}  tasks a second with wake-ups : without, median {median:.2} (target ≥ {TARGET})  {ratios:.2?}"
    );
    Ok(met)
}
