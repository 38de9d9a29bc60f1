//! Who sees and does what: user × scope × every route and MCP method × own, another's and no task (invariant 9, rules 59 and 74).
//!
//! The rows are compared with the router's own routes, so that a route without one fails.

mod rows;
mod world;

use std::collections::BTreeSet;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::auth::Scopes;
use rows::{Needs, ROWS, Row};
use world::{ABSENT, Answer, Caller, THREAD, USERS, World};

const SETS: [&[&str]; 6] =
    [&["act-as"], &["tasks"], &["operator"], &["admin"], &["tasks", "act-as"], &["tasks", "operator", "admin"]];
/// Somebody whose task nobody here may touch but operators.
const THIRD: &str = "bob";

fn task_of(user: &str) -> String {
    format!("mcp-task-{user}")
}

fn other_than(user: &str) -> &'static str {
    USERS.into_iter().find(|other| *other != user).unwrap()
}

/// A world with a task of each user, and every caller with each way to name a user.
async fn peopled() -> (World, Vec<(Caller, Option<&'static str>)>) {
    let world = World::new().await;
    for user in USERS.into_iter().chain([THIRD]) {
        world.task(&task_of(user), user).await;
    }
    let mut callers = world.strangers().await;
    for user in USERS {
        for set in SETS {
            callers.push(world.caller(user, set).await);
        }
        callers.push(world.caller(user, &Scopes::WORDS).await);
    }
    let named = |caller: Caller| {
        let ways = [None, Some(caller.user), Some(other_than(caller.user))];
        ways.map(|way| (caller.clone(), way))
    };
    (world, callers.into_iter().flat_map(named).collect())
}

/// As whom a caller comes in; or how it is refused.
fn effective(caller: &Caller, named: Option<&'static str>) -> Result<&'static str, (u16, &'static str)> {
    match named {
        _ if caller.scopes.is_empty() => Err((401, "unauthenticated")),
        Some(user) if user != caller.user && !caller.may("act-as") => Err((403, "other_user")),
        Some(user) => Ok(user),
        None => Ok(caller.user),
    }
}

async fn ask(world: &World, row: &Row, caller: &Caller, named: Option<&'static str>, task: &str) -> Answer {
    let path = row.path.replace("{thread_id}", THREAD).replace("{task_id}", task);
    let path = path.replace("{server_name}", "none").replace("{key_id}", "none").replace("{*resource}", "mcp");
    let mut headers = vec![("accept", "application/json, text/event-stream"), ("content-type", "application/json")];
    headers.extend(named.map(|user| ("x-user-id", user)));
    let method: Method = row.method.parse().unwrap();
    world.send(caller, &method, &path, &headers, row.body, task).await
}

fn code(answer: &Answer) -> String {
    let body: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    body["code"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_has_a_row_and_every_row_a_route() {
    let world = World::new().await;
    let caller = world.caller("ada", &Scopes::WORDS).await;
    let mut routes = BTreeSet::new();
    for path in &world.paths {
        let path: &'static str = path.clone().leak();
        let nothing = Row { method: "TRACE", path, needs: Needs::Nothing, body: "", good: StatusCode::OK };
        let answer = ask(&world, &nothing, &caller, None, ABSENT).await;
        assert_eq!(answer.status, 405, "{path}");
        let allow = answer.headers.iter().find(|(name, _)| name == "allow").unwrap_or_else(|| panic!("{path}"));
        routes.extend(
            allow.1.split(',').filter(|method| *method != "HEAD").map(|method| (method.to_owned(), path.to_owned())),
        );
    }
    let rows: BTreeSet<_> = ROWS.iter().map(|row| (row.method.to_owned(), row.path.to_owned())).collect();
    assert_eq!(routes, rows, "left: the router's routes, right: the rows");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_matrix_of_users_scopes_routes_and_tasks() {
    let (world, callers) = peopled().await;
    let before = world.tasks().await.into_iter().find(|task| &*task.user_id == THIRD).unwrap();
    let mut cells = 0;
    for (row, (caller, named)) in ROWS.iter().flat_map(|row| callers.iter().map(move |caller| (row, caller))) {
        let about_tasks = row.path.contains("{task_id}");
        let tasks = [task_of(caller.user), task_of(other_than(caller.user)), task_of(THIRD), ABSENT.to_owned()];
        let tasks = if about_tasks { &tasks[..] } else { &tasks[3..] };
        let mut not_theirs: Vec<Answer> = Vec::new();
        for task in tasks {
            cells += 1;
            let cell = format!("{} {} by {caller:?} named {named:?} about {task}", row.method, row.path);
            let answer = ask(&world, row, caller, *named, task).await;
            let scope = if let Needs::Scope(scope) = row.needs { Some(scope) } else { None };
            match effective(caller, *named) {
                Err(_) if row.needs == Needs::Nothing => assert_eq!(answer.status, row.good, "{cell}"),
                Err((status, word)) => {
                    assert_eq!((answer.status.as_u16(), &*code(&answer)), (status, word), "{cell}");
                    let challenged = answer.headers.iter().any(|(name, _)| name == "www-authenticate");
                    assert_eq!(challenged, status == 401, "{cell}");
                }
                Ok(_) if scope.is_some_and(|scope| !caller.may(scope)) => {
                    assert_eq!((answer.status.as_u16(), &*code(&answer)), (403, "missing_scope"), "{cell}");
                    let challenge = answer.headers.iter().find(|(name, _)| name == "www-authenticate").expect(&cell);
                    assert!(
                        challenge.1.contains("insufficient_scope") && challenge.1.contains(scope.unwrap()),
                        "{cell}"
                    );
                    // Nor does a refusal tell whether there is such a task.
                    not_theirs.push(answer);
                }
                Ok(user) if about_tasks => {
                    let sees = *task != ABSENT && (scope == Some("operator") || *task == task_of(user));
                    if sees {
                        assert_eq!(answer.status, row.good, "{cell}: {}", answer.body);
                    } else {
                        assert_eq!((answer.status.as_u16(), &*code(&answer)), (404, "not_found"), "{cell}");
                        not_theirs.push(answer);
                    }
                }
                Ok(user) => {
                    assert_eq!(answer.status, row.good, "{cell}: {}", answer.body);
                    let others = USERS.into_iter().chain([THIRD]).filter(|other| *other != user).map(task_of);
                    let leaks = others.filter(|other| answer.body.contains(other)).count();
                    assert!(leaks == 0 || scope == Some("operator"), "{cell}: {}", answer.body);
                }
            }
        }
        assert!(not_theirs.windows(2).all(|pair| pair[0] == pair[1]), "{} {}: {not_theirs:#?}", row.method, row.path);
    }
    let after = world.tasks().await.into_iter().find(|task| &*task.user_id == THIRD).unwrap();
    let operators = after.lease_epoch - before.lease_epoch;
    assert_eq!(after.cancel_requested_at, None, "nobody cancelled a third user's task");
    assert!(operators > 0, "operators made it due");
    println!("{cells} cells of {} routes", ROWS.len());
    assert!(cells > 2_500, "{cells}");
}

/// What agents may ask, about a task where it is about one.
fn messages(task: &str) -> Vec<(&'static str, Value)> {
    let call = |name: &str, arguments: Value| ("tools/call", json!({"name": name, "arguments": arguments}));
    vec![
        call("get_background_task", json!({"task_id": task})),
        call("cancel_background_task", json!({"task_id": task})),
        call("list_background_tasks", json!({})),
        call("reports_start", json!({})),
        ("tools/list", json!({})),
        ("ping", json!({})),
        ("tasks/get", json!({"taskId": task})),
        ("tasks/result", json!({"taskId": task})),
        ("tasks/cancel", json!({"taskId": task})),
        ("tasks/update", json!({"taskId": task, "inputResponses": {}})),
        ("tasks/list", json!({})),
        ("subscriptions/listen", json!({"notifications": {"taskIds": [task]}})),
        ("resources/list", json!({})),
        ("prompts/list", json!({})),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_matrix_of_users_scopes_mcp_methods_and_tasks() {
    let (world, callers) = peopled().await;
    let versions = ["2025-06-18", "2025-11-25", "2026-07-28"];
    let mut cells = 0;
    for (version, (caller, named)) in versions.iter().flat_map(|v| callers.iter().map(move |caller| (v, caller))) {
        let user = effective(caller, *named);
        // The own one first: what becomes of it shows in its owner's lists.
        let own = user.unwrap_or(caller.user);
        let tasks = [task_of(own), task_of(other_than(own)), task_of(THIRD), ABSENT.to_owned()];
        let mut not_theirs: Vec<Vec<Answer>> = Vec::new();
        for task in tasks {
            let mut answers = Vec::new();
            for (method, mut params) in messages(&task) {
                let own = caller.may("tasks") && user.is_ok_and(|user| task == task_of(user));
                if own && *version == "2025-11-25" && method == "tasks/cancel" {
                    // It would wait for a server that there is none of; `scenarios/native.rs` cancels own tasks.
                    continue;
                }
                cells += 1;
                let cell = format!("{method} {params} in {version} by {caller:?} named {named:?}");
                let name = params["name"].as_str().unwrap_or_default().to_owned();
                let about_a_task = params["taskId"].is_string();
                let has_tasks = match *version {
                    "2025-11-25" => method.starts_with("tasks/") && method != "tasks/update",
                    "2026-07-28" => ["tasks/get", "tasks/update", "tasks/cancel"].contains(&method),
                    _ => false,
                };
                let mut headers = vec![
                    ("accept", "application/json, text/event-stream"),
                    ("content-type", "application/json"),
                    ("mcp-protocol-version", version),
                    ("x-thread-id", THREAD),
                ];
                headers.extend(named.map(|user| ("x-user-id", user)));
                if *version == "2026-07-28" {
                    params["_meta"] = json!({
                        "io.modelcontextprotocol/protocolVersion": version,
                        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
                        "io.modelcontextprotocol/clientCapabilities": {
                            "extensions": { "io.modelcontextprotocol/tasks": {} },
                        },
                    });
                    headers.push(("mcp-method", method));
                    match (name.as_str(), about_a_task) {
                        ("", true) => headers.push(("mcp-name", &task)),
                        ("", false) => {}
                        (name, _) => headers.push(("mcp-name", name)),
                    }
                }
                let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
                let answer = world.send(caller, &Method::POST, "/mcp", &headers, &body, &task).await;
                match user {
                    Err((status, _)) => assert_eq!(answer.status, status, "{cell}"),
                    Ok(_) if !caller.may("tasks") => assert_eq!(answer.status, 403, "{cell}"),
                    Ok(user) => {
                        let theirs = task == task_of(user);
                        let others = USERS.into_iter().chain([THIRD]).filter(|other| *other != user).map(task_of);
                        assert!(
                            others.into_iter().all(|other| !answer.body.contains(&other)),
                            "{cell}: {}",
                            answer.body
                        );
                        if name == "get_background_task" {
                            assert_eq!(answer.body.contains("\"isError\":true"), !theirs, "{cell}: {}", answer.body);
                        }
                        if has_tasks && about_a_task {
                            // A stream is one that waits for the caller's own task.
                            assert_eq!(answer.body.contains("-32602"), !theirs, "{cell}: {}", answer.body);
                        }
                        if method == "subscriptions/listen" && *version == "2026-07-28" {
                            assert_eq!(answer.status, 200, "{cell}: another's task is left out of it");
                        }
                        if method == "tasks/list" && has_tasks {
                            assert_eq!(answer.body.matches("taskId").count(), 1, "{cell}: {}", answer.body);
                        }
                    }
                }
                answers.push(answer);
            }
            if user.is_err() || !caller.may("tasks") || user.is_ok_and(|user| task != task_of(user)) {
                not_theirs.push(answers);
            }
        }
        assert!(not_theirs.windows(2).all(|pair| pair[0] == pair[1]), "{caller:?} {named:?}: {not_theirs:#?}");
    }
    let untouched = world.tasks().await.into_iter().find(|task| &*task.user_id == THIRD).unwrap();
    assert_eq!(untouched.cancel_requested_at, None);
    println!("{cells} cells of MCP");
    assert!(cells > 5_000, "{cells}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_users_session_is_one_that_nobody_knows() {
    let (world, _) = peopled().await;
    let (ada, eve) = (world.caller("ada", &["tasks"]).await, world.caller("eve", &["tasks"]).await);
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}});
    let headers = [("accept", "application/json, text/event-stream"), ("content-type", "application/json")];
    let greeted = world.send(&ada, &Method::POST, "/mcp", &headers, &hello.to_string(), "-").await;
    let session = greeted.headers.iter().find(|(name, _)| name == "mcp-session-id").unwrap().1.clone();
    let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}).to_string();
    for (method, body) in [(Method::POST, &*ping), (Method::GET, ""), (Method::DELETE, "")] {
        let mut answers = Vec::new();
        for session in [&*session, "a-session-that-never-was"] {
            let headers = [headers[0], headers[1], ("mcp-session-id", session), ("mcp-protocol-version", "2025-06-18")];
            answers.push(world.send(&eve, &method, "/mcp", &headers, body, session).await);
        }
        assert_eq!(answers[0], answers[1], "{method}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_in_is_bounded_on_every_route_that_takes_a_body() {
    let world = World::new().await;
    let caller = world.caller("ada", &Scopes::WORDS).await;
    let deep = format!("{}{}", "{\"a\":".repeat(100_000), "[".repeat(100_000));
    let closed = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    let huge = format!("{{\"a\": \"{}\"}}", "x".repeat(5 << 20));
    for row in ROWS.iter().filter(|row| !row.body.is_empty()) {
        for (body, status) in [(&deep, None), (&closed(20_000), None), (&huge, Some(413))] {
            let body: &'static str = body.clone().leak();
            let answer = ask(&world, &Row { body, ..*row }, &caller, None, ABSENT).await;
            let cell = format!("{} {}: {}", row.method, row.path, answer.status);
            assert!(answer.status.is_client_error(), "{cell}");
            assert!(status.is_none_or(|status| answer.status == status), "{cell}");
        }
    }
    for query in ["limit=0", "limit=101", "limit=x"] {
        for path in ["/api/threads/t1/mcp-tasks", "/api/tasks", "/api/events", "/api/keys"] {
            let answer = world.send(&caller, &Method::GET, &format!("{path}?{query}"), &[], "", "-").await;
            assert_eq!(answer.status, 422, "{path}?{query}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_site_is_refused_on_every_route_but_the_open_ones() {
    let world = World::new().await;
    let caller = world.caller("ada", &Scopes::WORDS).await;
    for row in ROWS {
        let path = row.path.replace("{thread_id}", THREAD).replace("{task_id}", ABSENT).replace("{*resource}", "mcp");
        let method: Method = row.method.parse().unwrap();
        let foreign = [("origin", "https://evil.example")];
        let answer = world.send(&caller, &method, &path, &foreign, row.body, "-").await;
        if row.needs == Needs::Nothing {
            assert_eq!(answer.status, row.good, "{path}");
        } else {
            assert_eq!((answer.status.as_u16(), &*code(&answer)), (403, "origin_not_allowed"), "{path}");
        }
        let own = [("origin", "http://tasks.example:8787"), ("accept", "*/*")];
        let answer = world.send(&caller, &method, &path, &own, row.body, "-").await;
        assert_ne!(code(&answer), "origin_not_allowed", "{path}");
    }
}
