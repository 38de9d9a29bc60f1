//! Credentials of callers on their way to servers: `user_auth` and `headers_from_context` (BEHAVIOURS 107, 118–123, 148).

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use mcp_taskd_tests::daemon::{Api, ApiError, Site, has_ended, id_of};
use mcp_taskd_tests::fake::{Called, FakeServer};
use mcp_taskd_tests::gate::{Answer, Gate};
use mcp_taskd_tests::postgres;
use mcp_taskd_tests::wait::until;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{fake, site};

/// A secret of one request, which must be found nowhere afterwards.
const SECRET: &str = "Bearer hunter2-of-this-request";

/// The server `s` with credentials for these users.
fn with_users(site: Site, fake: &FakeServer, users: &Value) -> Site {
    let more = json!({"headers": {"AUTHORIZATION": "Bearer static"}, "user_auth": {"users": users}});
    site.server_with("s", &fake.url, false, more)
}

/// The calls of a tool; about one task where one is named.
fn calls(fake: &FakeServer, tool: &str, task: Option<&str>) -> Vec<Called> {
    let fits = |called: &Called| called.tool == tool && (task.is_none() || called.task_id.as_deref() == task);
    fake.state.journal().into_iter().filter(fits).collect()
}

fn header<'a>(called: &'a Called, name: &str) -> Option<&'a str> {
    let mut values = called.headers.get_all(name).iter();
    let value = values.next()?;
    assert!(values.next().is_none(), "one copy on the wire: {name}");
    value.to_str().ok()
}

/// What the calls said in `Authorization`.
fn authorized(calls: &[Called]) -> HashSet<Option<&str>> {
    calls.iter().map(|called| header(called, "authorization")).collect()
}

async fn remote_of(api: &Api, id: &str) -> String {
    api.task(id).await.unwrap()["remote_task_id"].as_str().unwrap().to_owned()
}

fn submit_body(secrets: &Value) -> Value {
    let script = json!({"end": "never", "poll_after_seconds": 0.2});
    json!({"server": "s", "task": "report", "arguments": {"script": script},
        "config": {"context": {"secrets": secrets}}})
}

async fn submit_with(api: &Api, secrets: &Value) -> Result<Value, ApiError> {
    api.request(Method::POST, "/api/threads/default/mcp-tasks", Some(&submit_body(secrets)), None).await
}

async fn call_tool(api: &Api, name: &str, secrets: &Value) -> Value {
    let params = json!({"name": name, "arguments": {}, "_meta": {"mcp-taskd/secrets": secrets}});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    api.mcp(&message).await
}

fn refusal(result: Result<Value, ApiError>) -> (u16, String) {
    let Err(ApiError::Refused(status, problem)) = result else { panic!("not refused: {result:?}") };
    (status, problem["detail"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn background_calls_carry_their_owners_credential_after_a_restart_and_on_another_replica_119() {
    let database = postgres::database().await;
    let fake = fake().await;
    let site =
        with_users(site().postgres(database.url()), &fake, &json!({"ada": "Bearer of-ada", "bob": "Bearer of-bob"}));
    site.migrate().await;
    let mut first = site.daemon("first");
    first.start().await;
    let script = json!({"end": "never", "poll_after_seconds": 0.2});
    let mut tasks = Vec::new();
    for user in ["ada", "bob"] {
        let task = first.api.of(user).submit("s", &script, None).await.unwrap();
        tasks.push((user, id_of(&task), remote_of(&first.api, &id_of(&task)).await));
    }
    let (status, detail) = refusal(first.api.of("eve").submit("s", &script, None).await);
    assert_eq!(status, 502, "{detail}");
    assert!(detail.contains("\"s\"") && detail.contains("user_auth"), "{detail}");
    let eve = call_tool(&first.api.of("eve"), "s_echo", &json!({})).await;
    assert_eq!(eve["result"]["isError"], true, "{eve}");
    assert!(eve["result"]["content"][0]["text"].as_str().unwrap().contains("\"s\""), "{eve}");
    assert_ne!(call_tool(&first.api.of("bob"), "s_echo", &json!({})).await["result"]["isError"], true);
    assert_eq!(authorized(&calls(&fake, "echo", None)), HashSet::from([Some("Bearer of-bob")]));

    let polled = async |more: usize| {
        let before: Vec<_> =
            tasks.iter().map(|(.., remote)| calls(&fake, "get_report_status", Some(remote)).len()).collect();
        until("polls", async || {
            let now = tasks.iter().map(|(.., remote)| calls(&fake, "get_report_status", Some(remote)).len());
            now.zip(&before).all(|(now, before)| now >= before + more)
        })
        .await;
    };
    polled(2).await;
    first.kill9().await;
    first.start().await;
    polled(2).await;
    let mut second = site.daemon("second");
    second.start().await;
    first.kill9().await;
    polled(2).await;
    for (_, id, _) in &tasks {
        let user = &tasks.iter().find(|(_, known, _)| known == id).unwrap().0;
        second.api.of(user).cancel(id).await.unwrap();
        until("the cancel", async || has_ended(&second.api.task(id).await.unwrap())).await;
    }
    let mut sessions: Vec<HashSet<String>> = Vec::new();
    for (user, _, remote) in &tasks {
        let mut about = calls(&fake, "get_report_status", Some(remote));
        about.extend(calls(&fake, "cancel_report", Some(remote)));
        assert_eq!(authorized(&about), HashSet::from([Some(&*format!("Bearer of-{user}"))]));
        sessions.push(about.iter().filter_map(|called| header(called, "mcp-session-id").map(str::to_owned)).collect());
    }
    assert!(sessions[0].is_disjoint(&sessions[1]), "107: no session is shared by two users: {sessions:?}");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_without_a_credential_is_denied_and_the_task_goes_on_when_there_is_one_119() {
    let fake = fake().await;
    let site = with_users(site(), &fake, &json!({"ada": "Bearer of-ada", "bob": "Bearer of-bob"}));
    let mut daemon = site.daemon("a");
    daemon.start().await;
    let script = json!({"end": "never", "poll_after_seconds": 0.2});
    let id = id_of(&daemon.api.of("ada").submit("s", &script, None).await.unwrap());
    let remote = remote_of(&daemon.api, &id).await;
    daemon.stop().await;

    let site = with_users(site, &fake, &json!({"ada": "", "bob": "Bearer of-bob"}));
    let mut daemon = site.daemon("a");
    daemon.start().await;
    let api = daemon.api.clone();
    let polls = calls(&fake, "get_report_status", Some(&remote)).len();
    until("errors", async || api.count("polls_total", &[("server", "s"), ("outcome", "auth")]).await >= 3).await;
    let task = api.task(&id).await.unwrap();
    assert!(task["last_poll_error"].as_str().unwrap().contains("\"s\""), "{task}");
    assert!(matches!(task["status"].as_str(), Some("submitted" | "working")), "{task}");
    assert_eq!(calls(&fake, "get_report_status", Some(&remote)).len(), polls, "not another credential");
    // One user's missing credential is none of the others' business.
    assert_eq!(api.count("breaker_open", &[("server", "s")]).await, 0);
    api.of("bob").submit("s", &script, None).await.unwrap();
    daemon.stop().await;

    let site = with_users(site, &fake, &json!({"ada": "Bearer new-of-ada"}));
    let mut daemon = site.daemon("a");
    daemon.start().await;
    until("polls", async || calls(&fake, "get_report_status", Some(&remote)).len() > polls).await;
    let after = calls(&fake, "get_report_status", Some(&remote)).split_off(polls);
    assert_eq!(authorized(&after), HashSet::from([Some("Bearer new-of-ada")]));
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_users_credential_is_not_shown_when_the_server_repeats_it_148() {
    let fake = fake().await;
    let site = with_users(site(), &fake, &json!({"ada": "Bearer hunter2-of-ada"}));
    let mut daemon = site.daemon("a");
    daemon.start().await;
    let api = daemon.api.of("ada");
    let id = id_of(&api.submit("s", &json!({"end": "never"}), None).await.unwrap());
    fake.state.faults.echo_credentials.store(true, Ordering::Relaxed);
    fake.state.faults.status.store(500, Ordering::Relaxed);
    until("an error", async || api.task(&id).await.unwrap()["last_poll_error"].is_string()).await;
    let task = api.task(&id).await.unwrap();
    let error = task["last_poll_error"].as_str().unwrap();
    assert!(error.contains("***") && !error.contains("hunter2"), "{error}");
    daemon.stop().await;
    assert!(!daemon.log().contains("hunter2"));
}

/// Static headers, a user's, an interceptor's and a request's, all for the same header.
async fn contested(fake: &FakeServer) -> (Site, Gate) {
    let gate =
        Gate::start(Answer::Json(json!({"headers": {"Authorization": "Bearer gate", "X-Tenant": "gate"}}))).await;
    let more = json!({
        "headers": {"AUTHORIZATION": "Bearer static", "x-tenant": "static", "X-Kept": "kept"},
        "user_auth": {"users": {"ada": "Bearer of-ada"}, "on_missing": "passthrough"},
        "headers_from_context": {"headers": {"Authorization": "token", "X-Tenant": "tenant"}}
    });
    let entry = json!({"name": "gate", "url": gate.url});
    (site().server_with("s", &fake.url, true, more).interceptor(entry), gate)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_with_the_request_wins_on_submits_and_calls_and_polls_go_without_it_120_122() {
    let fake = fake().await;
    let (site, gate) = contested(&fake).await;
    let mut daemon = site.daemon("a");
    daemon.start().await;
    assert!(daemon.log().contains("headers_from_context"), "with task_toolsets there is a warning");
    let api = daemon.api.of("ada");
    let secrets = json!({"token": SECRET, "tenant": "acme", "unused": "hunter2-unused"});
    let id = id_of(&submit_with(&api, &secrets).await.unwrap());
    let called = call_tool(&api, "s_echo", &secrets).await;
    assert_ne!(called["result"]["isError"], true, "{called}");
    let agent = call_tool(&api, "s_submit_report", &secrets).await;
    assert_ne!(agent["result"]["isError"], true, "{agent}");
    for tool in ["submit_report", "echo"] {
        for called in calls(&fake, tool, None) {
            let sent = ["authorization", "x-tenant", "x-kept"].map(|name| header(&called, name));
            assert_eq!(sent, [Some(SECRET), Some("acme"), Some("kept")], "{tool}");
        }
    }
    let remote = remote_of(&api, &id).await;
    until("polls", async || calls(&fake, "get_report_status", Some(&remote)).len() >= 2).await;
    gate.answers(Answer::Json(json!({})));
    let before = calls(&fake, "get_report_status", Some(&remote)).len() + 1;
    until("polls", async || calls(&fake, "get_report_status", Some(&remote)).len() > before).await;
    let polls = calls(&fake, "get_report_status", Some(&remote));
    assert_eq!(header(&polls[0], "authorization"), Some("Bearer gate"), "an interceptor's over the user's own");
    assert_eq!(header(&polls[before], "authorization"), Some("Bearer of-ada"), "the user's own over the static one");
    assert_eq!(header(&polls[before], "x-tenant"), Some("static"));
    api.cancel(&id).await.unwrap();
    until("the cancel", async || has_ended(&api.task(&id).await.unwrap())).await;
    assert_eq!(authorized(&calls(&fake, "cancel_report", Some(&remote))), HashSet::from([Some("Bearer of-ada")]));
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_its_secrets_or_with_unusable_ones_is_refused_by_key_on_every_path_120_121() {
    let fake = fake().await;
    let (site, _gate) = contested(&fake).await;
    let mut daemon = site.daemon("a");
    daemon.start().await;
    let api = daemon.api.of("ada");
    let bad =
        ["hunter2é", "hunter2\n", "hun\0hunter2", "hunter2\u{b}", "hunter2\u{c}", "hunter2\r", " hunter2", "hunter2\t"];
    let mut cases = vec![(json!({}), "tenant, token"), (json!({"tenant": "", "token": "t"}), "tenant")];
    cases.extend(bad.map(|value| (json!({"tenant": "acme", "token": value}), "token")));
    for (secrets, told) in cases {
        let (status, detail) = refusal(submit_with(&api, &secrets).await);
        assert_eq!(status, 422, "{detail}");
        let mut texts = vec![detail];
        for tool in ["s_submit_report", "s_echo"] {
            let answer = call_tool(&api, tool, &secrets).await;
            assert_eq!(answer["result"]["isError"], true, "{answer}");
            texts.push(answer["result"]["content"][0]["text"].as_str().unwrap().to_owned());
        }
        for text in texts {
            assert!(text.contains(told) && text.contains("\"s\"") && !text.contains("hunter2"), "{text}");
        }
    }
    let (status, detail) = refusal(submit_with(&api, &json!({"token": 1})).await);
    assert!(status == 422 && detail.contains("config.context.secrets"), "{detail}");
    let wrong = call_tool(&api, "s_echo", &json!("hunter2")).await;
    assert!(wrong["error"]["message"].as_str().unwrap().contains("mcp-taskd/secrets"), "{wrong}");
    for body in
        [json!({"metadata": {"auth_token": "hunter2"}}), json!({"config": {"metadata": {"auth_token": "hunter2"}}})]
    {
        let mut sent = submit_body(&json!({"token": "t", "tenant": "acme"}));
        sent.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let refused = api.request(Method::POST, "/api/threads/default/mcp-tasks", Some(&sent), None).await;
        let (status, detail) = refusal(refused);
        assert!(
            status == 422 && detail.contains("metadata.auth_token") && !detail.contains("hunter2"),
            "123: {detail}"
        );
    }
    assert!(fake.state.journal().is_empty(), "nothing was sent");
    assert!(api.tasks().await.unwrap().is_empty(), "and nothing stays");
    daemon.stop().await;
    assert!(!daemon.log().contains("hunter2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_with_secrets_that_dies_with_its_process_is_not_sent_without_them_120_145() {
    let fake = fake().await;
    let (site, _gate) = contested(&fake).await;
    let mut daemon = site.daemon("a").with(&["--log-format", "json"]);
    daemon.start().await;
    let mut gate = fake.state.gates.arm("submit_report", true);
    let hanging = tokio::spawn({
        let api = daemon.api.of("ada");
        async move { submit_with(&api, &json!({"token": SECRET, "tenant": "acme-hunter2"})).await }
    });
    gate.caught().await.unwrap();
    assert!(found(site.path(), "hunter2").is_empty(), "while it is under way: {:?}", found(site.path(), "hunter2"));
    daemon.kill9().await;
    drop(gate);
    assert!(hanging.await.unwrap().is_err());
    daemon.start().await;
    let api = daemon.api.clone();
    let ended = async || api.tasks().await.unwrap().first().is_some_and(has_ended);
    until("the intent is resolved", ended).await;
    let task = api.task(&id_of(&api.tasks().await.unwrap()[0])).await.unwrap();
    assert_eq!((&task["status"], &task["error_code"]), (&"failed".into(), &"submit_outcome_unknown".into()), "{task}");
    assert_eq!(calls(&fake, "submit_report", None).len(), 1, "it was not sent again");

    // Without a crash: in no file, answer or event either.
    let id = id_of(&submit_with(&api.of("ada"), &json!({"token": SECRET, "tenant": "acme-hunter2"})).await.unwrap());
    let shown = format!("{} {:?}", api.task(&id).await.unwrap(), api.events().await.unwrap());
    assert!(!shown.contains("hunter2"), "{shown}");
    daemon.stop().await;
    assert!(found(site.path(), "hunter2").is_empty(), "{:?}", found(site.path(), "hunter2"));
}

/// The files below `folder` that hold `text`: the database, its log, the daemon's log.
fn found(folder: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(self::found(&path, text));
        } else if std::fs::read(&path).is_ok_and(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
        {
            found.push(path);
        }
    }
    found
}

#[tokio::test]
async fn what_is_wrong_with_credentials_is_exit_78_and_names_the_key_118_120() {
    for (more, named) in [
        (json!({"user_auth": {"header": " "}}), "mcpServers.s.user_auth.header"),
        (json!({"user_auth": {"users": {"": "hunter2"}}}), "mcpServers.s.user_auth.users"),
        (
            json!({"headers_from_context": {"headers": {"X-A": "k", "x-a": "l"}}}),
            "mcpServers.s.headers_from_context.headers",
        ),
    ] {
        let output = site().server_with("s", "http://127.0.0.1:9/mcp", false, more).run(&["serve"]).await;
        assert_eq!(output.code, Some(78), "{}", output.stderr);
        assert!(output.stderr.contains(named) && !output.stderr.contains("hunter2"), "{}", output.stderr);
    }
}
