//! The store as a process sees it: over a network. A statement, once sent, is the store's business, whatever becomes of
//! the process that sent it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mcp_taskd_core::clock::Millis;
use mcp_taskd_core::store::{
    Applied, CancelRequest, ClaimOrder, Corrected, EventRecord, Heartbeat, Inserted, Intents, Leases, NewHandle,
    NewIntent, News, Owned, Page, Queries, Recorded, Registry, Result, RowState, StoreError, StoreErrorKind,
    StoreStats, TaskFilter, TaskWrite, Wakeup, Wakeups, WorkerId, WorkerInfo, Workers,
};
use mcp_taskd_core::task::{TaskRecord, Tracked};
use tokio::sync::{broadcast, oneshot};

use super::oracle::Statement;
use super::plan::StoreFault;
use super::plants;
use super::universe::Universe;

/// A process's connection to the store.
pub(super) struct Port {
    pub(super) universe: Arc<Universe>,
    pub(super) process: usize,
}

impl Port {
    /// Sends a statement. `run` executes it on the store's side and says what it was and what it did.
    async fn send<T, F>(&self, name: &'static str, run: impl FnOnce(Arc<Universe>) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = (Statement, Result<T>)> + Send,
    {
        let (universe, process) = (Arc::clone(&self.universe), self.process);
        universe.judge(|oracle| oracle.sent(process, universe.now()));
        let fault = universe.store_fault(process);
        if let Some(fault) = fault {
            universe.injected(label(fault));
            universe.note(format_args!("p{process} {name}: {fault:?}"));
        }
        let (reply, answer) = oneshot::channel();
        tokio::spawn(async move {
            let execute = async {
                let (statement, result) = run(Arc::clone(&universe)).await;
                universe.executed(process, name, &statement, result.is_ok());
                result
            };
            let unknown = || Err(StoreError::new(StoreErrorKind::Unknown, name, "the connection was lost"));
            let failed = |kind| Err(StoreError::new(kind, name, "simulated"));
            universe.some(3).await;
            // Nobody may be there to read an answer.
            let _ = match fault {
                None => {
                    let answer = execute.await;
                    universe.some(3).await;
                    reply.send(answer)
                }
                Some(StoreFault::Away) => reply.send(failed(StoreErrorKind::Unavailable)),
                Some(StoreFault::Conflict) => reply.send(failed(StoreErrorKind::Conflict)),
                Some(StoreFault::StatementLost) => reply.send(unknown()),
                Some(StoreFault::AnswerLost) => {
                    let _ = execute.await;
                    reply.send(unknown())
                }
                Some(StoreFault::Late(ms)) => {
                    let sent = reply.send(unknown());
                    universe.some(ms).await;
                    let _ = execute.await;
                    sent
                }
                Some(StoreFault::Slow(ms)) => {
                    universe.some(ms).await;
                    let answer = execute.await;
                    universe.some(3).await;
                    reply.send(answer)
                }
                Some(StoreFault::Hangs(ms)) => {
                    let (runs, after) = (universe.below(2) == 0, universe.below(ms));
                    tokio::time::sleep(Duration::from_millis(after / 2)).await;
                    if runs {
                        let _ = execute.await;
                    }
                    tokio::time::sleep(Duration::from_millis(after / 2)).await;
                    reply.send(unknown())
                }
            };
        });
        answer.await.unwrap_or_else(|_| Err(StoreError::new(StoreErrorKind::Unknown, name, "the store is gone")))
    }

    /// Sends a statement that changes nothing.
    async fn read<T, F>(&self, name: &'static str, run: impl FnOnce(Arc<Universe>) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send,
    {
        self.send(name, move |universe| async move { (Statement::Read, run(universe).await) }).await
    }
}

fn label(fault: StoreFault) -> &'static str {
    match fault {
        StoreFault::Away => "store: unavailable",
        StoreFault::Conflict => "store: conflict",
        StoreFault::StatementLost => "store: statement lost",
        StoreFault::AnswerLost => "store: answer lost",
        StoreFault::Late(_) => "store: executed late",
        StoreFault::Slow(_) => "store: slow",
        StoreFault::Hangs(_) => "store: hangs",
    }
}

#[async_trait]
impl Registry for Port {
    async fn register(&self, worker: &WorkerInfo) -> Result<Millis> {
        let (sent, info) = (self.universe.now(), worker.clone());
        let id = Arc::clone(&info.id);
        let answer = self
            .send("register", move |universe| async move {
                let result = universe.memory.register(&info).await;
                (Statement::Register(info.id), result)
            })
            .await;
        if answer.is_ok() {
            self.universe.renewed(self.process, sent);
            self.universe.judge(|oracle| {
                oracle.known.insert(id);
                Ok(())
            });
        }
        answer
    }

    async fn heartbeat(&self, worker: &WorkerId, held: i64) -> Result<Heartbeat> {
        let (sent, worker) = (self.universe.now(), Arc::clone(worker));
        let answer =
            self.read("heartbeat", move |universe| async move { universe.memory.heartbeat(&worker, held).await }).await;
        if matches!(answer, Ok(Heartbeat::Renewed { .. })) {
            self.universe.renewed(self.process, sent);
        }
        answer
    }

    async fn workers(&self) -> Result<Workers> {
        self.read("workers", |universe| async move { universe.memory.workers().await }).await
    }

    async fn mark_dead(&self, marker: &WorkerId, target: &WorkerId, heartbeat_count: Option<i64>) -> Result<bool> {
        let (marker, target) = (Arc::clone(marker), Arc::clone(target));
        self.send("mark_dead", move |universe| async move {
            let result = universe.memory.mark_dead(&marker, &target, heartbeat_count).await;
            let by_another = matches!(result, Ok(true)) && marker != target;
            (Statement::MarkDead(by_another.then_some(target)), result)
        })
        .await
    }

    async fn free_dead(&self, now: Millis, limit: u32, spread_ms: i64) -> Result<u64> {
        self.send("free_dead", move |universe| async move {
            (Statement::FreeDead, plants::free_dead(&universe, now, limit, spread_ms).await)
        })
        .await
    }

    async fn correct_far(&self, limit: u32, spread_ms: i64) -> Result<Corrected> {
        self.send("correct_far", move |universe| async move {
            (Statement::CorrectFar, universe.memory.correct_far(limit, spread_ms).await)
        })
        .await
    }

    async fn delete_dead(&self) -> Result<u64> {
        self.send("delete_dead", |universe| async move { (Statement::DeleteDead, universe.memory.delete_dead().await) })
            .await
    }

    async fn prune(&self, ended_before: Millis, limit: u32) -> Result<u64> {
        self.send("prune", move |universe| async move {
            (Statement::Prune, universe.memory.prune(ended_before, limit).await)
        })
        .await
    }
}

#[async_trait]
impl Leases for Port {
    async fn claim(&self, order: &ClaimOrder) -> Result<Vec<Tracked>> {
        let order = order.clone();
        self.send("claim", move |universe| async move {
            let result = universe.memory.claim(&order).await;
            (Statement::Claim(order), result)
        })
        .await
    }

    async fn owned(&self, worker: &WorkerId) -> Result<Vec<Owned>> {
        let worker = Arc::clone(worker);
        self.read("owned", move |universe| async move { plants::owned(&universe, &worker).await }).await
    }

    async fn load_owned(&self, worker: &WorkerId, ids: &[Arc<str>]) -> Result<Vec<Tracked>> {
        let (worker, ids) = (Arc::clone(worker), ids.to_vec());
        self.read("load_owned", move |universe| async move { universe.memory.load_owned(&worker, &ids).await }).await
    }

    async fn apply(&self, worker: &WorkerId, writes: &[TaskWrite]) -> Result<Vec<Applied>> {
        let (worker, mut writes) = (Arc::clone(worker), writes.to_vec());
        loop {
            let (by, these) = (Arc::clone(&worker), writes.clone());
            let answer = self
                .send("apply", move |universe| async move {
                    let result = plants::apply(&universe, &by, &these).await;
                    let applied = result.as_ref().map_or_else(|_| Vec::new(), Clone::clone);
                    (Statement::Apply { worker: by, writes: these, applied }, result)
                })
                .await;
            match answer {
                Err(error) if plants::retries_blindly(&self.universe, &error) => {
                    plants::refresh(&self.universe, &mut writes);
                }
                answer => return answer,
            }
        }
    }

    async fn inspect(&self, ids: &[Arc<str>]) -> Result<Vec<RowState>> {
        let ids = ids.to_vec();
        self.read("inspect", move |universe| async move { universe.memory.inspect(&ids).await }).await
    }
}

#[async_trait]
impl Intents for Port {
    async fn insert_intent(&self, intent: &NewIntent) -> Result<Inserted> {
        let intent = intent.clone();
        self.send("insert_intent", move |universe| async move {
            let result = universe.memory.insert_intent(&intent).await;
            (Statement::Insert(intent.id), result)
        })
        .await
    }

    async fn record_submitted(&self, handle: &NewHandle) -> Result<Recorded> {
        let handle = handle.clone();
        self.send("record_submitted", move |universe| async move {
            let result = universe.memory.record_submitted(&handle).await;
            (Statement::Record(handle), result)
        })
        .await
    }

    async fn discard_intent(&self, worker: &WorkerId, id: &str, epoch: i64) -> Result<bool> {
        let (worker, id) = (Arc::clone(worker), Arc::<str>::from(id));
        self.send("discard_intent", move |universe| async move {
            let result = universe.memory.discard_intent(&worker, &id, epoch).await;
            (Statement::Discard { worker, id, epoch }, result)
        })
        .await
    }

    async fn close_freed_intent(&self, write: &TaskWrite) -> Result<bool> {
        let write = write.clone();
        self.send("close_freed_intent", move |universe| async move {
            let result = universe.memory.close_freed_intent(&write).await;
            (Statement::CloseFreed(Box::new(write)), result)
        })
        .await
    }

    async fn is_tracked(&self, server_name: &str, remote_task_id: &str) -> Result<bool> {
        let (server, remote) = (server_name.to_owned(), remote_task_id.to_owned());
        self.read("is_tracked", move |universe| async move { universe.memory.is_tracked(&server, &remote).await }).await
    }

    async fn request_cancel(&self, request: &CancelRequest, now: Millis) -> Result<Option<TaskRecord>> {
        let request = request.clone();
        self.send("request_cancel", move |universe| async move {
            let result = plants::request_cancel(&universe, &request, now).await;
            (Statement::RequestCancel(request.id), result)
        })
        .await
    }

    async fn make_due(&self, id: &str, now: Millis) -> Result<Option<TaskRecord>> {
        let id = id.to_owned();
        self.send("make_due", move |universe| async move {
            let result = universe.memory.make_due(&id, now).await;
            (Statement::MakeDue(id), result)
        })
        .await
    }
}

#[async_trait]
impl Wakeups for Port {
    /// Half of them are lost, as all of them may be.
    fn wake(&self, what: Wakeup) {
        if self.universe.below(2) == 0 {
            self.universe.memory.wake(what);
        }
    }

    fn wakeups(&self) -> broadcast::Receiver<Wakeup> {
        self.universe.memory.wakeups()
    }

    async fn news(&self, after: i64, limit: u32) -> Result<News> {
        self.read("news", move |universe| async move { universe.memory.news(after, limit).await }).await
    }
}

#[async_trait]
impl Queries for Port {
    async fn find_task(&self, id: &str, user_id: Option<&str>, thread_id: Option<&str>) -> Result<Option<TaskRecord>> {
        let (id, user, thread) = (id.to_owned(), user_id.map(str::to_owned), thread_id.map(str::to_owned));
        self.read("find_task", move |universe| async move {
            universe.memory.find_task(&id, user.as_deref(), thread.as_deref()).await
        })
        .await
    }

    async fn list_tasks(&self, filter: &TaskFilter, page: &Page) -> Result<Vec<TaskRecord>> {
        let (filter, page) = (filter.clone(), page.clone());
        self.read("list_tasks", move |universe| async move { universe.memory.list_tasks(&filter, &page).await }).await
    }

    async fn list_events(&self, after: i64, filter: &TaskFilter, limit: u32) -> Result<Vec<EventRecord>> {
        let filter = filter.clone();
        self.read(
            "list_events",
            move |universe| async move { universe.memory.list_events(after, &filter, limit).await },
        )
        .await
    }

    async fn stats(&self, now: Millis, degraded_after: i64, cap: i64) -> Result<StoreStats> {
        self.read("stats", move |universe| async move { universe.memory.stats(now, degraded_after, cap).await }).await
    }

    async fn ping(&self) -> Result<()> {
        self.read("ping", |universe| async move { universe.memory.ping().await }).await
    }

    fn backend(&self) -> &'static str {
        "simulated"
    }

    async fn schema_version(&self) -> Result<(i64, Option<i64>)> {
        self.universe.memory.schema_version().await
    }
}
