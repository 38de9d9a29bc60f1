//! Clients as they should be: they submit, ask again until they know, cancel, and answer what is asked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::daemon::{Api, ApiError, has_ended, id_of};

/// Clients that submit.
const SUBMITTERS: u64 = 4;
/// Between two attempts of a client that was not answered.
const RETRY: Duration = Duration::from_millis(100);

/// What the clients were told.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Tasks whose submit was answered.
    pub(super) acknowledged: Vec<String>,
    /// Submits without a key that got no answer: nobody may repeat them.
    pub(super) unanswered: u64,
    /// Submits that were repeated with their key after they had been answered.
    pub(super) replayed: u64,
    /// Tasks that had not ended when their cancel was recorded.
    pub(super) cancelled: Vec<String>,
    /// Answers to what tasks asked.
    pub(super) inputs: u64,
    /// The first end that was seen of each task.
    pub(super) ends: HashMap<String, String>,
    /// What no daemon should have said.
    pub(super) wrong: Vec<String>,
}

/// Running clients.
#[derive(Debug)]
pub(super) struct Clients {
    shared: Arc<Shared>,
    stop: CancellationToken,
    submitting: JoinSet<()>,
    answering: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    apis: Vec<Api>,
    ledger: Mutex<Ledger>,
    /// Numbers submits, for their keys.
    submits: AtomicU64,
}

impl Clients {
    /// Starts clients of daemons that share a store; what they want follows from `seed`, when they get it does not.
    pub(super) fn start(apis: Vec<Api>, seed: u64) -> Self {
        let shared = Arc::new(Shared { apis, ledger: Mutex::default(), submits: AtomicU64::new(0) });
        let stop = CancellationToken::new();
        let mut submitting = JoinSet::new();
        for number in 0..SUBMITTERS {
            let rng = Rng::with_seed(seed.wrapping_add(number));
            submitting.spawn(Arc::clone(&shared).submit_until(stop.clone(), rng));
        }
        let answering = tokio::spawn(Arc::clone(&shared).answer_questions(Rng::with_seed(seed)));
        Self { shared, stop, submitting, answering }
    }

    /// Stops submitting, and waits until everybody was answered.
    pub(super) async fn stop_submitting(&mut self) {
        self.stop.cancel();
        while let Some(ended) = self.submitting.join_next().await {
            ended.expect("a client that does not panic");
        }
    }

    /// Ends them; what they were told.
    pub(super) fn end(self) -> Ledger {
        std::mem::take(&mut *self.shared.ledger())
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.answering.abort();
    }
}

/// A script, and whether its client cancels it.
fn wish(rng: &mut Rng) -> (Value, bool) {
    let run_ms = rng.u64(300..6_000);
    let hint = 0.4;
    match rng.u32(..10) {
        0..=2 => (json!({"run_ms": run_ms, "poll_after_seconds": hint, "result_bytes": 40}), false),
        3 => (json!({"run_ms": run_ms, "end": "failed", "poll_after_seconds": hint}), false),
        4 => (json!({"run_ms": run_ms, "ask_input": true, "poll_after_seconds": hint}), false),
        5 => (json!({"end": "never", "poll_after_seconds": hint}), true),
        // Ends about when it is cancelled.
        6 => (json!({"run_ms": 1_500, "poll_after_seconds": hint}), true),
        7 => (json!({"run_ms": run_ms, "bad_polls": 1, "end": "cancelled"}), false),
        8 => (json!({"run_ms": run_ms, "end": "not_found", "poll_after_seconds": hint}), false),
        _ => (json!({"end": "never", "deaf_cancels": 1, "on_cancel": "completed"}), true),
    }
}

/// Whether asking again may help.
fn is_passing(error: &ApiError) -> bool {
    matches!(error, ApiError::Unreachable(_) | ApiError::Refused(503, _))
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Any of the daemons: a client behind a load balancer cannot choose.
    fn api(&self, rng: &mut Rng) -> &Api {
        &self.apis[rng.usize(..self.apis.len())]
    }

    async fn submit_until(self: Arc<Self>, stop: CancellationToken, mut rng: Rng) {
        let mut cancels = JoinSet::new();
        while !stop.is_cancelled() {
            let (script, cancelled) = wish(&mut rng);
            let server = if rng.u32(..3) == 0 { "sure" } else { "plain" };
            let submitted = if rng.u32(..3) == 0 {
                self.submit_once(server, &script, &mut rng).await
            } else {
                self.submit(server, &script, &mut rng).await
            };
            if let Some(id) = submitted {
                if cancelled {
                    cancels.spawn(Arc::clone(&self).cancel(id.clone(), rng.fork()));
                }
                self.ledger().acknowledged.push(id);
            }
            tokio::time::sleep(Duration::from_millis(rng.u64(200..1_000))).await;
        }
        while let Some(ended) = cancels.join_next().await {
            ended.expect("a client that does not panic");
        }
    }

    /// Without a key: nobody may repeat it.
    async fn submit_once(&self, server: &str, script: &Value, rng: &mut Rng) -> Option<String> {
        match self.api(rng).submit(server, script, None).await {
            Ok(task) => return Some(id_of(&task)),
            // The outcome is unknown, and the task that says so is named.
            Err(ApiError::Refused(504, problem)) => return Some(id_of(&problem)),
            Err(error) if is_passing(&error) => self.ledger().unanswered += 1,
            Err(error) => self.ledger().wrong.push(format!("a submit was refused: {error}")),
        }
        None
    }

    /// With a key, and again with the same one until it is answered; sometimes once more after that.
    async fn submit(&self, server: &str, script: &Value, rng: &mut Rng) -> Option<String> {
        let key = format!("key-{}", self.submits.fetch_add(1, Ordering::Relaxed));
        let mut known: Option<String> = None;
        loop {
            let id = match self.api(rng).submit(server, script, Some(&key)).await {
                Ok(task) => id_of(&task),
                // One that still runs is named too: it is asked for again.
                Err(ApiError::Refused(504, problem)) if problem["detail"].as_str().is_some_and(still_runs) => continue,
                Err(ApiError::Refused(504, problem)) => id_of(&problem),
                Err(error) if is_passing(&error) => {
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                Err(error) => {
                    self.ledger().wrong.push(format!("the submit {key} was refused: {error}"));
                    return known;
                }
            };
            match known {
                None if rng.u32(..5) == 0 => {
                    self.ledger().replayed += 1;
                    known = Some(id);
                }
                Some(known) if known != id => {
                    self.ledger().wrong.push(format!("{key} is {known}, and then {id}"));
                    return Some(known);
                }
                _ => return Some(id),
            }
        }
    }

    async fn cancel(self: Arc<Self>, id: String, mut rng: Rng) {
        tokio::time::sleep(Duration::from_millis(rng.u64(500..2_500))).await;
        loop {
            match self.api(&mut rng).cancel(&id).await {
                Ok(task) => {
                    if !has_ended(&task) {
                        self.ledger().cancelled.push(id);
                    }
                    return;
                }
                Err(error) if is_passing(&error) => tokio::time::sleep(RETRY).await,
                Err(error) => {
                    self.ledger().wrong.push(format!("the cancel of {id} was refused: {error}"));
                    return;
                }
            }
        }
    }

    /// Answers whatever is asked, and remembers the ends that are seen, until it is aborted.
    async fn answer_questions(self: Arc<Self>, mut rng: Rng) {
        loop {
            let listed = self.api(&mut rng).newest().await.unwrap_or_default();
            for task in &listed {
                let id = id_of(task);
                if task["status"] == "input_required" {
                    // It may have been answered meanwhile, and the daemon may be down; then it is asked again.
                    let answered = self.api(&mut rng).input(&id, &json!({"quarter": {"action": "accept"}})).await;
                    self.ledger().inputs += u64::from(answered.is_ok());
                } else if has_ended(task) {
                    self.saw_the_end(&id, task["status"].as_str().unwrap_or_default());
                }
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    fn saw_the_end(&self, id: &str, status: &str) {
        let mut ledger = self.ledger();
        let first = ledger.ends.entry(id.to_owned()).or_insert_with(|| status.to_owned());
        if *first != status {
            let changed = format!("{id} was {first}, and then {status}");
            ledger.wrong.push(changed);
        }
    }
}

/// Whether a refusal says that the first submit with the key has not ended yet.
fn still_runs(detail: &str) -> bool {
    detail.contains("has not ended")
}
