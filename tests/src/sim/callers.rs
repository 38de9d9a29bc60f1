//! The callers: they submit, cancel, ask, hang up, and remember what they were told.

use std::sync::Arc;
use std::time::Duration;

use mcp_taskd_core::config::Secrets;
use mcp_taskd_core::service::{Access, Service, ServiceError, Submit};
use mcp_taskd_core::world::Spawn as _;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::fleet::{Fleet, server_name};
use super::life::Living;
use super::plan::{CallKind, CallPlan};
use super::universe::Universe;

/// How often a caller tries again where the answer says that trying again is right.
const ATTEMPTS: u32 = 12;

/// Makes one planned call, to its end or its process's.
pub(super) async fn call(universe: Arc<Universe>, fleet: Arc<Fleet>, plan: CallPlan) {
    universe.until(plan.at_ms).await;
    match plan.kind {
        CallKind::Submit { submit, server, keyed, patience_ms, .. } => {
            let request = request(submit, server, keyed);
            let told = on(&fleet, plan.process, |service| async move {
                let submitted = service.submit(request);
                match patience_ms {
                    Some(ms) => tokio::time::timeout(Duration::from_millis(ms), submitted).await.ok(),
                    None => Some(submitted.await),
                }
            });
            let told = told.await.flatten();
            let what = match &told {
                None => "nothing".to_owned(),
                Some(Ok(submitted)) => format!("{} replayed={}", submitted.task.id, submitted.replayed),
                Some(Err(error)) => error.to_string(),
            };
            universe.note(format_args!("submit {submit} at p{} was told {what}", plan.process));
            if let Some(told) = told {
                universe.told(submit, keyed, &told);
            }
        }
        CallKind::Cancel(submit) => {
            for _ in 0..ATTEMPTS {
                let Some(id) = universe.task_of(submit) else {
                    universe.some(1_000).await;
                    continue;
                };
                let asked = id.clone();
                let told =
                    on(&fleet, plan.process, |service| async move { service.cancel(&Access::default(), &asked).await });
                match told.await {
                    Some(Ok(_)) => {
                        universe.note(format_args!("cancel of {id} was acknowledged"));
                        universe.cancel_acknowledged(&id);
                        return;
                    }
                    Some(Err(ServiceError::NotFound(_))) => return,
                    Some(Err(_)) | None => universe.some(1_000).await,
                }
            }
        }
        CallKind::PollNow(submit) => {
            let Some(id) = universe.task_of(submit) else { return };
            // Whatever it says: the oracle looks at what follows.
            let _ = on(&fleet, plan.process, |service| async move { service.poll_now(&Access::default(), &id).await })
                .await;
        }
        CallKind::Input(submit) => {
            let Some(id) = universe.task_of(submit) else { return };
            let input = RawValue::from_string("{\"answer\":1}".to_owned()).expect("JSON");
            let _ =
                on(&fleet, plan.process, |service| async move { service.input(&Access::default(), &id, &input).await })
                    .await;
        }
        CallKind::Wait(submit) => {
            let Some(id) = universe.task_of(submit) else { return };
            let _ = on(&fleet, plan.process, |service| async move {
                service.get(&Access::default(), &id, Duration::from_secs(5)).await
            })
            .await;
        }
    }
}

/// Runs a call inside a process; `None` where the process does not run, or dies before it answers.
async fn on<T, F>(fleet: &Fleet, process: usize, call: impl FnOnce(Service) -> F) -> Option<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let (life, service): (Living, Service) = fleet.service(process)?;
    let (reply, answer) = oneshot::channel();
    let call = call(service);
    life.spawn(Box::pin(async move {
        // The caller waits as long as the process lives.
        let _ = reply.send(call.await);
    }));
    answer.await.ok()
}

fn request(submit: usize, server: usize, keyed: bool) -> Submit {
    Submit {
        user_id: "ann".into(),
        thread_id: "t".into(),
        server: server_name(server),
        task: "report".into(),
        arguments: RawValue::from_string(format!("{{\"work\":{submit}}}")).expect("JSON"),
        run_id: Some(format!("run-{submit}")),
        tool_call_id: None,
        idempotency_key: keyed.then(|| format!("key-{submit}")),
        secrets: Secrets::default(),
    }
}
