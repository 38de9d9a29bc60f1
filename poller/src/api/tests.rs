//! The REST surface, through the whole router.

use axum::body::{Body, to_bytes};
use axum::response::Response;
use futures_util::StreamExt as _;
use http::{Method, Request};
use mcp_taskd_core::service::ServiceError;
use mcp_taskd_core::store::EventRecord;
use serde_json::Value;
use tower::ServiceExt as _;

use super::*;
use crate::gateway::{self, Gateway};
use crate::stub::{Stub, daemon};
use crate::view::tests::task;

pub(crate) struct Client {
    routes: Router,
    stub: Arc<Stub>,
    daemon: Daemon,
}

impl Client {
    fn new(stub: Stub) -> Self {
        let (daemon, stub) = daemon(stub);
        Self::on(daemon, stub)
    }

    pub(crate) fn on(daemon: Daemon, stub: Arc<Stub>) -> Self {
        let gateway = gateway::routes(Gateway::new(daemon.clone()), &daemon.shutdown);
        Self { routes: public(daemon.clone(), gateway, true), stub, daemon }
    }

    pub(crate) async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "localhost:8787");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.routes.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.send(Method::GET, path, &[], "").await
    }

    pub(super) async fn post(&self, path: &str, body: &str) -> Response {
        self.send(Method::POST, path, &[], body).await
    }
}

pub(crate) async fn text(response: Response) -> String {
    String::from_utf8(to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap()
}

pub(crate) async fn body(response: Response) -> Value {
    serde_json::from_str(&text(response).await).unwrap()
}

pub(super) async fn problem(response: Response, status: u16, code: &str) -> Value {
    assert_eq!(response.status(), status);
    assert_eq!(response.headers()["content-type"], problem::CONTENT_TYPE);
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let problem = body(response).await;
    assert_eq!(problem["status"], status);
    assert_eq!(problem["code"], code);
    assert_eq!(problem["request_id"], id.as_str());
    problem
}

fn tasks(count: usize) -> Stub {
    let tasks = (0..count).map(|at| {
        let mut task = task(&format!("mcp-task-{at}"));
        task.tracked.user_id = "default".into();
        task
    });
    Stub { tasks: tasks.collect(), ..Stub::default() }
}

const THREAD: &str = "/api/threads/t1/mcp-tasks";

#[tokio::test]
async fn a_list_is_a_page_with_a_link_to_the_next_71() {
    let client = Client::new(tasks(3));
    let response = client.get(&format!("{THREAD}?limit=2&active_only=true")).await;
    assert_eq!(response.status(), 200);
    let link = response.headers()["link"].to_str().unwrap().to_owned();
    assert!(link.starts_with("</api/threads/t1/mcp-tasks?limit=2&active_only=true&cursor="), "{link}");
    assert_eq!(body(response).await.as_array().unwrap().len(), 2);

    let response = client.get(THREAD).await;
    assert!(response.headers().get("link").is_none());
    let filters = client.stub.filters.lock().unwrap();
    assert_eq!(filters[0].0.user_id.as_deref(), Some("default"));
    assert_eq!(filters[0].0.thread_id.as_deref(), Some("t1"));
    assert!(filters[0].0.active_only && !filters[1].0.active_only);
}

#[tokio::test]
async fn what_is_out_of_range_is_422() {
    let client = Client::new(tasks(0));
    for query in ["limit=0", "limit=101", "limit=x", "status=done", "active_only=7", "cursor=zz"] {
        problem(client.get(&format!("{THREAD}?{query}")).await, 422, "invalid_request").await;
    }
    problem(client.get(&format!("/api/threads/{}/mcp-tasks", "a".repeat(256))).await, 422, "invalid_request").await;
    problem(client.get("/api/threads/%FF/mcp-tasks").await, 422, "invalid_request").await;
}

#[tokio::test]
async fn a_submit_is_created_with_its_location_and_a_replay_is_not() {
    let client = Client::new(tasks(0));
    let path = "/api/threads/a%2Fb/mcp-tasks";
    let submit = r#"{"server":"reports","task":"report","arguments":{"n":1.10},"run_id":"r"}"#;
    let response = client.send(Method::POST, path, &[("x-user-id", "ada"), ("idempotency-key", "k")], submit).await;
    assert_eq!(response.status(), 201);
    assert_eq!(response.headers()["location"], "/api/threads/a%2Fb/mcp-tasks/mcp-task-new");
    let detail = body(response).await;
    assert_eq!((&detail["task_id"], &detail["server_name"]), (&"mcp-task-new".into(), &"reports".into()));
    {
        let submits = client.stub.submits.lock().unwrap();
        assert_eq!(submits[0].arguments.get(), r#"{"n":1.10}"#);
        assert_eq!((submits[0].user_id.as_str(), submits[0].thread_id.as_str()), ("ada", "a/b"));
        assert_eq!(submits[0].idempotency_key.as_deref(), Some("k"));
        assert_eq!(submits[0].run_id.as_deref(), Some("r"));
    }
    let response = client.send(Method::POST, path, &[("idempotency-key", "used")], submit).await;
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn refused_submits_say_why_and_nothing_reaches_the_service() {
    let client = Client::new(tasks(0));
    let refused = problem(client.post(THREAD, r#"{"task":"t"}"#).await, 422, "invalid_request").await;
    assert!(refused["detail"].as_str().unwrap().contains("server"));
    let token = r#"{"server":"s","task":"t","config":{"metadata":{"auth_token":"sesame"}}}"#;
    let refused = problem(client.post(THREAD, token).await, 422, "credential_in_metadata").await;
    assert!(!refused.to_string().contains("sesame"));
    let huge = format!(r#"{{"server":"{}"}}"#, "x".repeat(5 << 20));
    problem(client.post(THREAD, &huge).await, 413, "payload_too_large").await;
    assert!(client.stub.submits.lock().unwrap().is_empty());

    let error = ServiceError::OutcomeUnknown { task_id: "mcp-task-9".into(), message: "no answer".into() };
    let client = Client::new(Stub { submit_error: Some(error), ..Stub::default() });
    let unknown =
        problem(client.post(THREAD, r#"{"server":"s","task":"t"}"#).await, 504, "submit_outcome_unknown").await;
    assert_eq!(unknown["task_id"], "mcp-task-9");
}

#[tokio::test]
async fn other_users_and_other_threads_tasks_are_not_there_59_74() {
    let client = Client::new(tasks(1));
    assert_eq!(client.get(&format!("{THREAD}/mcp-task-0")).await.status(), 200);
    let other = [("x-user-id", "eve")];
    for (method, path) in [
        (Method::GET, "/api/threads/t1/mcp-tasks/mcp-task-0"),
        (Method::POST, "/api/threads/t1/mcp-tasks/mcp-task-0/cancel"),
        (Method::GET, "/api/threads/t1/mcp-tasks/nothing%00"),
    ] {
        problem(client.send(method, path, &other, "").await, 404, "not_found").await;
    }
    problem(client.get("/api/threads/t2/mcp-tasks/mcp-task-0").await, 404, "not_found").await;
    let cancelled = body(client.post(&format!("{THREAD}/mcp-task-0/cancel"), "").await).await;
    assert_eq!(cancelled["cancel_requested"], true);
    let input = client.post(&format!("{THREAD}/mcp-task-0/input"), r#"{"input":1}"#).await;
    problem(input, 409, "conflict").await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_bounded_and_a_drain_ends_it() {
    let client = Client::new(tasks(1));
    let path = format!("{THREAD}/mcp-task-0");
    let started = tokio::time::Instant::now();
    assert_eq!(client.get(&format!("{path}?wait=3600")).await.status(), 200);
    assert_eq!(started.elapsed().as_secs(), 60);
    problem(client.get(&format!("{path}?wait=-1")).await, 422, "invalid_request").await;
    client.daemon.shutdown.drain();
    let started = tokio::time::Instant::now();
    assert_eq!(client.get(&format!("{path}?wait=60")).await.status(), 200);
    assert_eq!(started.elapsed().as_secs(), 0);
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused_but_probes_answer_anybody() {
    let client = Client::new(tasks(0));
    let rebound = [("host", "evil.example")];
    problem(client.send(Method::POST, THREAD, &rebound, "{}").await, 403, "host_not_allowed").await;
    problem(client.send(Method::POST, "/mcp", &rebound, "{}").await, 403, "host_not_allowed").await;
    let cross = [("origin", "https://evil.example")];
    problem(client.send(Method::POST, THREAD, &cross, "{}").await, 403, "origin_not_allowed").await;
    problem(client.send(Method::POST, "/mcp", &cross, "{}").await, 403, "origin_not_allowed").await;
    problem(client.send(Method::GET, THREAD, &[("x-user-id", "")], "").await, 422, "invalid_request").await;
    assert_eq!(client.send(Method::GET, "/livez", &rebound, "").await.status(), 200);
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems_too() {
    let client = Client::new(tasks(0));
    problem(client.get("/nothing").await, 404, "not_found").await;
    let response = client.send(Method::DELETE, THREAD, &[("x-request-id", "abc")], "").await;
    assert_eq!(response.headers()["x-request-id"], "abc");
    assert_eq!(response.headers()["allow"], "GET,HEAD,POST");
    problem(response, 405, "method_not_allowed").await;
}

#[tokio::test]
async fn operators_see_all_users_tasks() {
    let mut stub = tasks(1);
    stub.tasks.push(task("mcp-task-ada"));
    let client = Client::new(stub);
    let all = body(client.get("/api/tasks").await).await;
    assert_eq!(all.as_array().unwrap().len(), 2);
    assert_eq!(all[1]["user_id"], "ada");
    let one = body(client.get("/api/tasks?user_id=ada&thread_id=t1").await).await;
    assert_eq!(one.as_array().unwrap().len(), 1);
    let detail = body(client.get("/api/tasks/mcp-task-ada").await).await;
    assert_eq!(detail["remote_task_id"], "remote-secret");
    assert_eq!(client.post("/api/tasks/mcp-task-ada/poll-now", "").await.status(), 200);
    assert_eq!(body(client.get("/api/workers").await).await, serde_json::json!([]));
    assert_eq!(body(client.get("/api/stats").await).await["due"], 0);
    assert_eq!(body(client.get("/api/features").await).await["mcp_tasks"]["enabled"], true);
    assert_eq!(
        body(client.get("/api/mcp/tools").await).await,
        serde_json::json!({"tools": [], "withheld": [], "problems": []})
    );
}

#[tokio::test]
async fn readiness_says_what_is_wrong_and_liveness_does_not_ask_the_store_144_147() {
    let mut stub = tasks(0);
    stub.problems.push("reports: no tool start_report".into());
    let client = Client::new(stub);
    assert_eq!(text(client.get("/readyz").await).await, "ok\n");
    let report = body(client.get("/readyz?verbose").await).await;
    assert_eq!(report["status"], "ready");
    let check = |name: &str| {
        let checks = report["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == name).unwrap().clone()
    };
    assert_eq!(check("store")["status"], "ok");
    assert_eq!(check("pollers")["status"], "warning");
    assert!(check("pollers")["detail"].as_str().unwrap().contains("nobody polls"));
    assert!(check("catalogue")["detail"].as_str().unwrap().contains("start_report"));

    client.daemon.shutdown.drain();
    let response = client.get("/readyz").await;
    assert_eq!(response.status(), 503);
    assert_eq!(text(response).await, "lifecycle\n");
    assert_eq!(client.get("/livez").await.status(), 200);

    let client = Client::new(Stub { unreachable: true, ..Stub::default() });
    assert_eq!(client.get("/livez").await.status(), 200);
    assert_eq!(client.get("/startupz").await.status(), 200);
    let response = client.send(Method::GET, "/readyz?verbose", &[("accept", "text/plain")], "").await;
    assert_eq!(response.status(), 503);
    let report = text(response).await;
    assert!(report.contains("[-] store: the store does not answer\n"), "{report}");
    assert!(!report.contains("secret-host"));
    let unavailable = problem(client.get("/api/stats").await, 503, "store_unavailable").await;
    assert!(!unavailable.to_string().contains("secret-host"));
}

#[tokio::test]
async fn probes_and_metrics_move_to_their_own_address_whole() {
    let (daemon, _) = daemon(Stub::default());
    let moved = public(daemon.clone(), Router::new(), false);
    let own = admin(daemon);
    for path in ["/livez", "/readyz", "/startupz", "/metrics"] {
        let request = || Request::builder().uri(path).header("host", "localhost").body(Body::empty()).unwrap();
        assert_eq!(moved.clone().oneshot(request()).await.unwrap().status(), 404, "{path}");
        assert_eq!(own.clone().oneshot(request()).await.unwrap().status(), 200, "{path}");
    }
    let request = Request::builder().uri("/api/stats").header("host", "localhost").body(Body::empty()).unwrap();
    assert_eq!(own.oneshot(request).await.unwrap().status(), 404);
}

#[tokio::test]
async fn requests_are_counted_by_route_and_never_by_path() {
    let client = Client::new(tasks(1));
    client.get(&format!("{THREAD}/mcp-task-0")).await;
    client.get("/wp-admin").await;
    let metrics = text(client.get("/metrics").await).await;
    let line = r#"mcp_taskd_http_requests_total{code="200",method="GET",route="/api/threads/{thread_id}/mcp-tasks/{task_id}"} 1"#;
    assert!(metrics.contains(line), "{metrics}");
    assert!(metrics.contains(r#"code="404",method="GET",route="unmatched""#));
    assert!(!metrics.contains("wp-admin") && !metrics.contains("mcp-task-0"));
}

#[tokio::test]
async fn events_stream_from_behind_the_last_id_until_the_drain() {
    let event = |sequence, user: &str| EventRecord {
        sequence,
        task_id: "mcp-task-0".into(),
        user_id: user.into(),
        thread_id: "t1".into(),
        kind: "working".into(),
        status: "working".into(),
        created_at: 0,
    };
    let events = vec![event(1, "default"), event(2, "eve"), event(3, "default")];
    let client = Client::new(Stub { events, ..Stub::default() });
    let response = client.send(Method::GET, &format!("{THREAD}/events"), &[("last-event-id", "1")], "").await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut stream = response.into_body().into_data_stream();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!(
        std::str::from_utf8(&first).unwrap(),
        "id: 3\nevent: working\ndata: {\"sequence\":3,\"task_id\":\"mcp-task-0\",\"kind\":\"working\",\
         \"status\":\"working\",\"created_at\":\"1970-01-01T00:00:00.000Z\"}\n\n"
    );
    client.daemon.shutdown.drain();
    assert!(stream.next().await.is_none());
    problem(
        client.send(Method::GET, &format!("{THREAD}/events"), &[("last-event-id", "x")], "").await,
        422,
        "invalid_request",
    )
    .await;
}

#[tokio::test]
async fn a_scrape_does_not_wait_for_the_stores_figures_35() {
    let client = Client::new(Stub { counts_for_ever: true, ..Stub::default() });
    let daemon = client.daemon.clone();
    let refreshing = tokio::spawn(async move {
        daemon.metrics.refresh(daemon.queries, daemon.clock, daemon.policy, daemon.shutdown).await;
    });
    tokio::task::yield_now().await;
    let page = text(client.get("/metrics").await).await;
    assert!(page.contains("mcp_taskd_store_stats_timestamp_seconds 0\n"), "not read yet: {page}");
    refreshing.abort();
}
