//! A simulated MCP server: it knows what is really so, and says so unless a fault makes it say something else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use mcp_taskd_core::task::Status;
use mcp_taskd_core::upstream::{CallError, CallErrorKind, Method, Purpose, ToolCall, Upstream};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::native::{self, CANCEL_TAKES_MS};
use super::oracle::{Oracle, Saying, Tool};
use super::plan::{CallKind, ServerFault, Work};
use super::universe::Universe;

type Answer = Result<Box<RawValue>, CallError>;

/// A server with the tools `submit`, `status`, `cancel` and `input`, or with `submit` alone and tasks of MCP's own.
pub(super) struct Server {
    universe: Arc<Universe>,
    index: usize,
    works: BTreeMap<u64, Work>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tasks: BTreeMap<String, Remote>,
    by_key: BTreeMap<String, String>,
}

/// A task as it really is.
#[derive(Debug)]
pub(super) struct Remote {
    /// The idempotency key it was submitted with, which is the id of the row.
    pub(super) key: String,
    /// Whether the caller got an answer with a handle as the contract wants it; else nobody may know of it.
    pub(super) handed_over: bool,
    work: Work,
    born_ms: u64,
    answered: bool,
    /// From when on a cancel has its effect.
    cancelled_ms: Option<u64>,
    forgotten: bool,
    ended: Option<Status>,
}

impl Remote {
    /// What is so at `now`.
    fn truth(&mut self, now: u64) -> Saying {
        let age = now - self.born_ms;
        if self.forgotten {
            return Saying::NotFound;
        }
        let ends_ms = self.born_ms + self.work.run_ms;
        if self.cancelled_ms.is_some_and(|at| at <= now && at < ends_ms) {
            self.ended.get_or_insert(Status::Cancelled);
        } else if now >= ends_ms {
            self.ended.get_or_insert(self.work.end);
        }
        if let Some(status) = self.ended {
            return Saying::Ended(status);
        }
        match self.work.asks {
            Some((from, lasts)) if !self.answered && (from..from + lasts).contains(&age) => Saying::AsksInput,
            _ => Saying::Running(age / self.work.step_ms),
        }
    }

    /// Whether it was really cancelled, or never ends by itself as far as anybody knows.
    pub(super) fn was_cancelled(&self) -> bool {
        self.cancelled_ms.is_some()
    }
}

/// A call as it arrives.
struct Request {
    process: usize,
    tool: Tool,
    /// Whether it is a native cancel, which is acknowledged without a word about the task.
    acknowledge: bool,
    /// The task, or for a submit the work.
    subject: String,
    work: u64,
    key: String,
    started_ms: u64,
}

impl Server {
    pub(super) fn new(universe: Arc<Universe>, index: usize) -> Self {
        let works = universe.plan.calls.iter().filter_map(|call| match &call.kind {
            CallKind::Submit { submit, server, work, .. } if *server == index => Some((*submit as u64, work.clone())),
            _ => None,
        });
        Self { works: works.collect(), index, state: Mutex::default(), universe }
    }

    /// What it really holds, and how each task stands.
    pub(super) fn each(&self, mut see: impl FnMut(&str, &Remote, Saying)) {
        let now = self.universe.now();
        for (id, remote) in &mut self.state().tasks {
            let truth = remote.truth(now);
            see(id, remote, truth);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds this")
    }

    /// Handles a call, whatever becomes of the caller.
    async fn handle(self: Arc<Self>, request: Request, reply: oneshot::Sender<Answer>) {
        let universe = &self.universe;
        let plan = &universe.plan.servers[self.index];
        let fault = universe.server_fault(self.index);
        if let Some(fault) = fault {
            universe.injected(label(fault));
        }
        let error = |kind| CallError::new(kind, format!("simulated {kind:?}"));
        universe.some(plan.latency_ms).await;
        let answer = match fault {
            Some(ServerFault::Refuses) => Err(error(CallErrorKind::Connect)),
            Some(ServerFault::BreaksBefore) => Err(error(CallErrorKind::Transport)),
            Some(ServerFault::BreaksAfter) => {
                let _ = self.execute(&request, None);
                Err(error(CallErrorKind::Transport))
            }
            Some(ServerFault::Busy(after)) => {
                Err(CallError { retry_after: after.map(Duration::from_millis), ..error(CallErrorKind::Transport) })
            }
            Some(ServerFault::RpcError) => Err(error(CallErrorKind::Rpc)),
            Some(ServerFault::ToolError) if plan.native && request.tool != Tool::Submit => {
                Err(native::rpc(-32_603, "busy"))
            }
            Some(ServerFault::ToolError) => {
                Ok(raw(&json!({"isError": true, "content": [{"type": "text", "text": "busy"}]})))
            }
            Some(ServerFault::BlackHole) => return silence(reply).await,
            Some(ServerFault::BlackHoleAfter) => {
                let _ = self.execute(&request, None);
                return silence(reply).await;
            }
            Some(ServerFault::Slow(ms)) => {
                universe.some(ms).await;
                self.execute(&request, None)
            }
            Some(ServerFault::NoAnswer) => {
                if universe.below(2) == 0 {
                    let _ = self.execute(&request, None);
                }
                Ok(raw(&json!("what?")))
            }
            fault => self.execute(&request, fault),
        };
        universe.some(plan.latency_ms).await;
        let said = answer.as_ref().map_or_else(ToString::to_string, |answer| answer.get().chars().take(90).collect());
        universe.note(format_args!(
            "s{} to p{}: {:?} {}{} -> {said}",
            self.index,
            request.process,
            request.tool,
            request.subject,
            fault.map(|fault| format!(" {fault:?}")).unwrap_or_default(),
        ));
        // The caller may be gone.
        let _ = reply.send(answer);
    }

    /// Does what is asked, and says how things stand; or, with a fault, something else.
    fn execute(&self, request: &Request, fault: Option<ServerFault>) -> Answer {
        let now = self.universe.now();
        let mut state = self.state();
        if request.tool == Tool::Submit {
            return self.submit(&mut state, request, fault, now);
        }
        let native = self.universe.plan.servers[self.index].native;
        let Some(remote) = state.tasks.get_mut(&request.subject) else {
            return self.say(request, &request.subject, None, Saying::NotFound, fault);
        };
        if fault == Some(ServerFault::Forgets) {
            remote.forgotten = true;
        }
        let cancels = request.tool == Tool::Cancel && (request.acknowledge || !native);
        if cancels && matches!(remote.truth(now), Saying::Running(_) | Saying::AsksInput) {
            let at = if native { now + CANCEL_TAKES_MS } else { now };
            remote.cancelled_ms.get_or_insert(at);
        }
        if request.acknowledge {
            return if remote.forgotten { Err(native::unknown(&request.subject)) } else { Ok(raw(&json!({}))) };
        }
        if request.tool == Tool::Input {
            remote.answered = true;
        }
        let truth = remote.truth(now);
        if native && request.tool == Tool::Input {
            return Ok(raw(&json!({"resultType": "complete"})));
        }
        self.say(request, &request.subject, Some(&remote.work), truth, fault)
    }

    fn submit(&self, state: &mut State, request: &Request, fault: Option<ServerFault>, now: u64) -> Answer {
        let plan = &self.universe.plan.servers[self.index];
        if fault == Some(ServerFault::SameId)
            && let Some(id) = state.tasks.keys().next().cloned()
        {
            return self.say(request, &id, None, Saying::Running(0), None);
        }
        let known = state.by_key.get(&request.key).cloned();
        self.universe.judge(|_| Oracle::submitted(&request.key, known.is_some() && !plan.idempotent));
        let id = known.filter(|_| plan.idempotent).unwrap_or_else(|| {
            let id = format!("r{}-{}", self.index, state.tasks.len() + 1);
            let remote = Remote {
                key: request.key.clone(),
                handed_over: true,
                work: self.works[&request.work].clone(),
                born_ms: now,
                answered: false,
                cancelled_ms: None,
                forgotten: false,
                ended: None,
            };
            state.tasks.insert(id.clone(), remote);
            state.by_key.insert(request.key.clone(), id.clone());
            id
        });
        // A refused handle is cancelled as far as that goes; where the server does not hear of it, only the log tells.
        if matches!(fault, Some(ServerFault::NoContent | ServerFault::WrongId | ServerFault::WrongStatus))
            && let Some(remote) = state.tasks.get_mut(&id)
        {
            remote.handed_over = false;
        }
        self.say(request, &id, None, Saying::Running(0), fault)
    }

    /// Puts `truth` into an answer as the contract wants it, or breaks it, and tells the oracle what was said.
    fn say(
        &self,
        request: &Request,
        id: &str,
        work: Option<&Work>,
        truth: Saying,
        fault: Option<ServerFault>,
    ) -> Answer {
        if self.universe.plan.servers[self.index].native {
            return self.say_natively(request, id, work, truth, fault);
        }
        let mut content = match truth {
            Saying::Running(step) => json!({"task_id": id, "status": "running", "result": {"step": step}}),
            Saying::AsksInput => json!({"task_id": id, "status": "input_required", "input_required": {"question": id}}),
            Saying::Ended(status) => {
                let mut content = json!({"task_id": id, "status": status.as_str()});
                match status {
                    Status::Failed => content["error"] = json!(format!("failed {id}")),
                    _ if work.is_some_and(|work| work.large) => {
                        content["result"] = json!({"end": id, "pad": "x".repeat(2_000)});
                    }
                    _ => content["result"] = json!({"end": id}),
                }
                content
            }
            Saying::NotFound | Saying::Violation => {
                json!({"task_id": id, "error_code": "task_not_found", "error": format!("lost {id}")})
            }
        };
        if let Some(hint) = work.and_then(|work| work.hint_ms) {
            content["poll_after_seconds"] = json!(hint as f64 / 1_000.0);
        }
        let mut said = truth;
        match fault {
            Some(ServerFault::WrongId) => {
                said = Saying::Violation;
                content["task_id"] = json!("");
            }
            Some(ServerFault::WrongStatus) if truth != Saying::NotFound => {
                said = Saying::Violation;
                content["status"] = json!("odd");
            }
            Some(ServerFault::NoContent) => {
                said = Saying::Violation;
                content = Value::Null;
            }
            Some(ServerFault::BadHint) => {
                content["poll_after_seconds"] = [json!(0), json!(-1), json!("soon"), json!([1]), json!(true)]
                    [self.universe.below(5) as usize]
                    .clone();
            }
            _ => {}
        }
        self.tell(request, id, said);
        Ok(raw(&json!({"content": [], "structuredContent": content})))
    }

    /// The same of a task of MCP's own.
    fn say_natively(
        &self,
        request: &Request,
        id: &str,
        work: Option<&Work>,
        truth: Saying,
        fault: Option<ServerFault>,
    ) -> Answer {
        let told = native::task(id, work, truth);
        let mut said = truth;
        let told = told.map(|mut task| {
            match fault {
                Some(ServerFault::WrongId) => {
                    said = Saying::Violation;
                    task["taskId"] = json!("");
                }
                Some(ServerFault::WrongStatus) => {
                    said = Saying::Violation;
                    task["status"] = json!("odd");
                }
                Some(ServerFault::NoContent) => {
                    said = Saying::Violation;
                    task = json!({"resultType": "complete"});
                }
                Some(ServerFault::BadHint) => {
                    task["pollIntervalMs"] = [json!(0), json!(-1), json!("soon"), json!([1]), json!(true)]
                        [self.universe.below(5) as usize]
                        .clone();
                }
                _ => {}
            }
            if request.tool == Tool::Submit {
                task["resultType"] = json!("task");
            }
            task
        });
        self.tell(request, id, said);
        told.map(|task| raw(&task))
    }

    /// Has the oracle know what was said.
    fn tell(&self, request: &Request, id: &str, said: Saying) {
        self.universe.judge(|oracle| {
            oracle.said(self.index, id, &request.key, request.tool, request.started_ms, said);
            Ok(())
        });
    }
}

/// No answer, for longer than any deadline.
async fn silence(reply: oneshot::Sender<Answer>) {
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    drop(reply);
}

fn raw(value: &Value) -> Box<RawValue> {
    to_raw_value(value).expect("JSON")
}

fn label(fault: ServerFault) -> &'static str {
    match fault {
        ServerFault::Refuses => "server: refuses",
        ServerFault::BreaksBefore => "server: breaks before the call",
        ServerFault::BreaksAfter => "server: breaks after the call",
        ServerFault::Busy(None) => "server: 503",
        ServerFault::Busy(Some(_)) => "server: 503 with Retry-After",
        ServerFault::ToolError => "server: isError",
        ServerFault::RpcError => "server: JSON-RPC error",
        ServerFault::BlackHole => "server: black hole",
        ServerFault::BlackHoleAfter => "server: black hole after the call",
        ServerFault::Slow(_) => "server: slow",
        ServerFault::NoAnswer => "server: no tool result",
        ServerFault::WrongId => "server: wrong id",
        ServerFault::WrongStatus => "server: wrong status",
        ServerFault::NoContent => "server: no structured content",
        ServerFault::BadHint => "server: bad hint",
        ServerFault::Forgets => "server: forgets a task",
        ServerFault::SameId => "server: an id twice",
    }
}

/// A process's way to a server.
pub(super) struct Way {
    pub(super) server: Arc<Server>,
    pub(super) process: usize,
}

/// A call that runs, until it is answered, given up, or its process dies.
struct Running<'a> {
    way: &'a Way,
    tool: Tool,
    subject: String,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let server = &self.way.server;
        server.universe.hung_up(self.way.process, server.index, self.tool, &self.subject);
    }
}

#[async_trait]
impl Upstream for Way {
    async fn call_tool(&self, call: ToolCall<'_>) -> Answer {
        let universe = &self.server.universe;
        let arguments: Value = serde_json::from_str(call.arguments.get()).expect("arguments are JSON");
        let of_cancel = call.task.is_some_and(|about| about.purpose == Purpose::Cancel);
        let tool = match (call.method, call.tool) {
            (Method::CallForTask, _) | (Method::Call, "submit") => Tool::Submit,
            (Method::Get(_), _) if of_cancel => Tool::Cancel,
            (Method::Get(_), _) | (Method::Call, "status") => Tool::Status,
            (Method::Cancel(_), _) | (Method::Call, "cancel") => Tool::Cancel,
            (Method::Update(_) | Method::Call, _) => Tool::Input,
            (Method::Result(_), _) => panic!("this protocol has no tasks/result"),
        };
        let key = call.meta.first().map(|(_, key)| (*key).to_owned()).unwrap_or_default();
        let subject = call.method.task_id().or(arguments["task_id"].as_str());
        let subject = subject.map_or_else(|| key.clone(), str::to_owned);
        let started_ms = universe.now();
        let running = Running { way: self, tool, subject: subject.clone() };
        universe.called(self.process, self.server.index, tool, &subject);
        let work = arguments["work"].as_u64().unwrap_or_default();
        let acknowledge = matches!(call.method, Method::Cancel(_));
        let request =
            Request { process: self.process, tool, acknowledge, subject: subject.clone(), work, key, started_ms };
        let (reply, answer) = oneshot::channel();
        tokio::spawn(Arc::clone(&self.server).handle(request, reply));
        let deadline = call.deadline.unwrap_or(Duration::from_secs(60));
        let answer = match tokio::time::timeout(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(CallError::new(CallErrorKind::Transport, "the connection was lost".to_owned())),
            Err(_) => Err(CallError::new(CallErrorKind::Timeout, format!("not answered within {deadline:?}"))),
        };
        let told = answer.as_ref().map(|raw| raw.get()).map_err(|error| error.retry_after);
        universe.answered(self.process, self.server.index, tool, &subject, told);
        drop(running);
        answer
    }

    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError> {
        Ok(Vec::new())
    }

    async fn close(&self) {}
}
