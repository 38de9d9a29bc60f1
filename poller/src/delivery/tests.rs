//! Couriers over the memory store and a receiver that answers as it is told, in virtual time.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use http::StatusCode;
use mcp_taskd_core::clock::{Clock, Millis, SystemClock};
use mcp_taskd_core::config::Webhook;
use mcp_taskd_core::store::memory::MemoryStore;
use mcp_taskd_core::store::{
    DeliveryState, Inserted, Intents as _, Leases as _, NewHandle, NewIntent, Recorded, Registry as _, TaskWrite,
    WorkerInfo,
};
use mcp_taskd_core::task::{Decision, Snapshot, Status, Tracked};
use serde_json::Value;
use tokio::sync::Notify;

use super::post::Message;
use super::verdict::Answer;
pub use super::verdict::tests::delivery;
use super::*;
use crate::view::tests::task;

const T0: Millis = 1_800_000_000_000;

/// A clock that follows the test's virtual time.
#[derive(Debug)]
struct Virtual(tokio::time::Instant);

impl Clock for Virtual {
    fn now_ms(&self) -> Millis {
        T0 + self.0.elapsed().as_millis() as Millis
    }

    fn boot(&self) -> Duration {
        self.0.elapsed()
    }
}

/// What a receiver does with a message.
#[derive(Debug, Clone, Copy)]
enum Behaviour {
    Status(u16),
    /// Never answers.
    Hang,
}

#[derive(Default)]
struct Receiver {
    behaviour: Mutex<Vec<(String, Behaviour)>>,
    got: Mutex<Vec<(String, String)>>,
    held: Notify,
}

impl Receiver {
    fn does(&self, sink: &str, behaviour: Behaviour) {
        self.behaviour.lock().unwrap().insert(0, (sink.to_owned(), behaviour));
    }

    /// The ids of the messages that a sink has got, in their order.
    fn got(&self, sink: &str) -> Vec<String> {
        self.got.lock().unwrap().iter().filter(|(to, _)| to == sink).map(|(_, id)| id.clone()).collect()
    }
}

#[async_trait]
impl Post for Receiver {
    async fn post(&self, sink: &Sink, message: &Message) -> Answer {
        let value: Value = serde_json::from_slice(&message.body).unwrap();
        assert_eq!(message.id, format!("{}:{}", value["data"]["task_id"].as_str().unwrap(), value["data"]["sequence"]));
        self.got.lock().unwrap().push((sink.name.clone(), message.id.clone()));
        let behaviour = self.behaviour.lock().unwrap().iter().find(|(to, _)| *to == sink.name).map(|(_, it)| *it);
        match behaviour.unwrap_or(Behaviour::Status(200)) {
            Behaviour::Status(code) => {
                let status = StatusCode::from_u16(code).unwrap();
                Answer::Status { status, retry_after: None, said: String::new() }
            }
            Behaviour::Hang => {
                self.held.notified().await;
                Answer::Failed("no answer".into())
            }
        }
    }
}

struct Bench {
    store: Arc<MemoryStore>,
    clock: Arc<Virtual>,
    receiver: Arc<Receiver>,
    subscribers: Subscribers,
    sequence: std::sync::atomic::AtomicU32,
}

impl Bench {
    async fn new(sinks: &[&str]) -> Self {
        let clock = Arc::new(Virtual(tokio::time::Instant::now()));
        let store = Arc::new(MemoryStore::new(clock.clone()));
        let webhooks: Vec<_> = sinks.iter().map(|name| webhook(name)).collect();
        let subscribers = Subscribers::new(&webhooks, store.clone(), store.clone()).unwrap().unwrap();
        for worker in ["a", "b", "source"] {
            let info = WorkerInfo {
                id: worker.into(),
                host: "h".into(),
                pid: 1,
                role: "all".into(),
                version: "1".into(),
                lease_ms: 120_000,
                polls: true,
            };
            store.register(&info).await.unwrap();
        }
        Self { store, clock, receiver: Arc::default(), subscribers, sequence: 0.into() }
    }

    fn courier(&self, worker: &'static str) -> Couriers {
        let options = Options {
            identity: Arc::new(move || Some(worker.into())),
            clock: self.clock.clone(),
            policy: Policy::default(),
        };
        let registry = prometheus::Registry::new();
        let post = Arc::clone(&self.receiver) as Arc<dyn Post>;
        Couriers::start_with(&self.subscribers, &options, &registry, &post).unwrap()
    }

    /// A task that `source` holds; so far it was submitted.
    async fn task(&self) -> Tracked {
        let id: Arc<str> = format!("t{}", self.sequence.fetch_add(1, std::sync::atomic::Ordering::Relaxed)).into();
        let intent = NewIntent {
            id: id.clone(),
            worker: "source".into(),
            user_id: "ada".into(),
            thread_id: "t1".into(),
            run_id: None,
            tool_call_id: None,
            binding: task("x").tracked.binding,
            idempotency_key: None,
            body_hash: None,
            arguments: None,
            next_due_at: T0,
            created_at: T0,
        };
        assert!(matches!(self.store.insert_intent(&intent).await.unwrap(), Inserted::New { .. }));
        let handle = NewHandle {
            worker: "source".into(),
            id: id.clone(),
            epoch: 1,
            remote_task_id: format!("remote-{id}"),
            next_due_at: T0,
            keep: true,
            at: self.clock.now_ms(),
        };
        match self.store.record_submitted(&handle).await.unwrap() {
            Recorded::Done { task, .. } => *task,
            other => panic!("{other:?}"),
        }
    }

    async fn becomes(&self, task: &mut Tracked, status: Status) {
        let mut snapshot = Snapshot::bare(status);
        if status == Status::InputRequired {
            snapshot.outcome.input_required = Some(mcp_taskd_core::task::Json::parse("{}").unwrap());
        }
        let chance = mcp_taskd_core::task::schedule::Chance::NONE;
        let Decision::Write(change) = task.on_answer(snapshot, self.clock.now_ms(), &Policy::default(), chance) else {
            panic!("it is {status} already")
        };
        let write = TaskWrite { id: task.id.clone(), epoch: task.lease_epoch, change: *change };
        self.store.apply(&"source".into(), &[write]).await.unwrap();
        *task = self.store.look(|tables| tables.tasks[&task.id].tracked.clone());
    }

    async fn row(&self, task: &str, sink: &str) -> mcp_taskd_core::store::Delivery {
        let rows = self.store.deliveries_of(task).await.unwrap();
        rows.into_iter().find(|row| row.sink == sink).unwrap_or_else(|| panic!("{sink} does not hear of {task}"))
    }

    async fn until(&self, task: &str, sink: &str, state: DeliveryState) {
        let reached = async {
            loop {
                let rows = self.store.deliveries_of(task).await.unwrap();
                if rows.iter().any(|row| row.sink == sink && row.state == state && row.lease_owner.is_none()) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let reached = tokio::time::timeout(Duration::from_secs(36_000), reached).await;
        reached.unwrap_or_else(|_| panic!("{task} at {sink} never is {state:?}"));
    }
}

fn webhook(name: &str) -> Webhook {
    serde_json::from_value(serde_json::json!({
        "name": name,
        "url": "http://127.0.0.1:9/",
        "secret": ["s"],
        "events": ["input_required", "completed", "failed", "cancelled"],
        "users": null,
    }))
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_event_is_delivered_once_by_two_replicas_and_others_are_not_64() {
    let bench = Bench::new(&["hook"]).await;
    let couriers = [bench.courier("a"), bench.courier("b")];
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut tasks = Vec::new();
    for _ in 0..30 {
        let mut task = bench.task().await;
        bench.becomes(&mut task, Status::Working).await;
        bench.becomes(&mut task, Status::Completed).await;
        tasks.push(task);
    }
    for task in &tasks {
        bench.until(&task.id, "hook", DeliveryState::Delivered).await;
    }
    let mut got = bench.receiver.got("hook");
    assert_eq!(got.len(), 30, "nobody is told of work that goes on, and nobody twice");
    got.sort();
    got.dedup();
    assert_eq!(got.len(), 30);
    for courier in couriers {
        courier.drain(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_newer_event_follows_the_delivery_under_way_65() {
    let bench = Bench::new(&["hook"]).await;
    bench.receiver.does("hook", Behaviour::Hang);
    let courier = bench.courier("a");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut task = bench.task().await;
    bench.becomes(&mut task, Status::InputRequired).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(bench.receiver.got("hook").len(), 1);
    bench.becomes(&mut task, Status::Completed).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(bench.receiver.got("hook").len(), 1, "the one under way is left alone");
    bench.receiver.does("hook", Behaviour::Status(200));
    bench.receiver.held.notify_waiters();
    bench.until(&task.id, "hook", DeliveryState::Delivered).await;
    let row = bench.row(&task.id, "hook").await;
    assert_eq!((&*row.kind, row.failure_count), ("completed", 0), "the end is never lost behind what came before");
    assert_eq!(bench.receiver.got("hook")[1], format!("{}:{}", task.id, row.sequence));
    courier.drain(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn five_failures_are_a_dead_letter_and_a_newer_event_begins_anew_67_68() {
    let bench = Bench::new(&["hook"]).await;
    bench.receiver.does("hook", Behaviour::Status(500));
    let courier = bench.courier("a");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut task = bench.task().await;
    bench.becomes(&mut task, Status::InputRequired).await;
    bench.until(&task.id, "hook", DeliveryState::DeadLetter).await;
    let got = bench.receiver.got("hook");
    assert_eq!(got.len(), 5);
    assert!(got.iter().all(|id| *id == got[0]), "one id for all attempts at a version: {got:?}");
    tokio::time::sleep(Duration::from_secs(7_200)).await;
    assert_eq!(bench.receiver.got("hook").len(), 5, "given up");
    bench.receiver.does("hook", Behaviour::Status(200));
    bench.becomes(&mut task, Status::Completed).await;
    bench.until(&task.id, "hook", DeliveryState::Delivered).await;
    courier.drain(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_hangs_delays_no_other_29() {
    let bench = Bench::new(&["dead", "well"]).await;
    bench.receiver.does("dead", Behaviour::Hang);
    let courier = bench.courier("a");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut tasks = Vec::new();
    for _ in 0..20 {
        let mut task = bench.task().await;
        bench.becomes(&mut task, Status::Completed).await;
        tasks.push(task);
    }
    let told = tokio::time::timeout(Duration::from_secs(10), async {
        for task in &tasks {
            bench.until(&task.id, "well", DeliveryState::Delivered).await;
        }
    });
    told.await.expect("the other sink has them all");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(bench.receiver.got("dead").len(), 8, "a bound of its own");
    courier.drain(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_what_is_under_way_and_gives_back_what_hangs() {
    let bench = Bench::new(&["hook"]).await;
    bench.receiver.does("hook", Behaviour::Hang);
    let courier = bench.courier("a");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut task = bench.task().await;
    bench.becomes(&mut task, Status::Completed).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(bench.row(&task.id, "hook").await.lease_owner, Some("a".into()));
    let started = tokio::time::Instant::now();
    courier.drain(Duration::from_secs(5)).await;
    assert!(started.elapsed() < Duration::from_secs(8));
    let row = bench.row(&task.id, "hook").await;
    assert_eq!((row.lease_owner, row.state, row.failure_count), (None, DeliveryState::Pending, 0));
    bench.receiver.does("hook", Behaviour::Status(200));
    let next = bench.courier("b");
    bench.until(&task.id, "hook", DeliveryState::Delivered).await;
    next.drain(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_replay_delivers_once_more_what_the_sink_hears_of() {
    let bench = Bench::new(&["hook"]).await;
    let courier = bench.courier("a");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut ended = bench.task().await;
    bench.becomes(&mut ended, Status::Completed).await;
    bench.until(&ended.id, "hook", DeliveryState::Delivered).await;
    bench.task().await;
    let order = Order { sink: "hook".into(), ..Order::default() };
    let replayed = bench.subscribers.replay(&order, bench.clock.now_ms()).await.unwrap();
    assert_eq!(replayed, Replayed { deliveries: 1, next: None });
    tokio::time::sleep(Duration::from_secs(3)).await;
    let got = bench.receiver.got("hook");
    assert_eq!((got.len(), &got[0]), (2, &got[1]), "the same event has the same id");
    let none = Order { task_id: Some("t1".into()), ..order.clone() };
    assert_eq!(bench.subscribers.replay(&none, 0).await.unwrap().deliveries, 0);
    let unknown = Order { sink: "hok".into(), ..order };
    let error = bench.subscribers.replay(&unknown, 0).await.unwrap_err();
    assert_eq!(error.to_string(), "there is no webhook \"hok\"; configured are hook");
    courier.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_real_receiver_gets_a_signed_post_and_its_answer_is_read_within_bounds() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://user:pass-word@{}/in?key=hunter2-key", listener.local_addr().unwrap());
    let sink = Sink::new(&Webhook { url, secret: vec!["hunter2-secret".into()], ..webhook("hook") }).unwrap();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4_096];
        let read = stream.read(&mut request).await.unwrap();
        let head = "HTTP/1.1 500 Oops\r\ncontent-length: 1000000000\r\n\r\nkeys hunter2-secret hunter2-key pass-word ";
        stream.write_all(head.as_bytes()).await.unwrap();
        // It would go on for a gigabyte; the other side has hung up long before.
        while stream.write_all(&[b'x'; 8_192]).await.is_ok() {}
        String::from_utf8_lossy(&request[..read]).into_owned()
    });
    let message = Message { id: "t:1".into(), body: "{}".into() };
    let answer = Http::new().unwrap().post(&sink, &message).await;
    let Answer::Status { status, said, .. } = answer else { panic!("{answer:?}") };
    assert_eq!((status.as_u16(), said.chars().count()), (500, 500));
    assert!(said.starts_with("keys *** *** *** xxx"), "{said}");
    let request = serving.await.unwrap();
    assert!(request.starts_with("POST /in?key=hunter2-key HTTP/1.1\r\n"), "{request}");
    for header in
        ["webhook-id: t:1\r\n", "webhook-signature: v1,", "authorization: Basic ", "content-type: application/json"]
    {
        assert!(request.contains(header), "{header}: {request}");
    }
    let at: i64 = request.split("webhook-timestamp: ").nth(1).unwrap().split('\r').next().unwrap().parse().unwrap();
    assert!((SystemClock.now_ms() / 1_000 - at).abs() < 60);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_committed_behind_a_later_one_is_delivered_too() {
    let bench = Bench::new(&["hook"]).await;
    let courier = bench.courier("a");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (mut slow, mut quick) = (bench.task().await, bench.task().await);
    bench.becomes(&mut slow, Status::Completed).await;
    // Its transaction has the earlier sequence, and is not committed yet.
    let late = bench.store.tamper(|tables| tables.events.pop()).unwrap();
    bench.becomes(&mut quick, Status::Completed).await;
    bench.until(&quick.id, "hook", DeliveryState::Delivered).await;
    assert_eq!(bench.store.deliveries_of(&slow.id).await.unwrap(), [], "nobody can know of it");
    tokio::time::sleep(Duration::from_secs(20)).await;
    bench.store.tamper(|tables| tables.events.insert(tables.events.len() - 1, late));
    bench.until(&slow.id, "hook", DeliveryState::Delivered).await;
    courier.drain(Duration::from_secs(1)).await;
}
