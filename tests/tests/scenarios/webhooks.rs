//! Webhooks of real daemons: signed, at least once whatever is killed, and no trouble to anybody else (BEHAVIOURS 64–70, 138).

use std::collections::BTreeMap;

use mcp_taskd_tests::daemon::{Daemon, Site, free_port, has_ended, id_of};
use mcp_taskd_tests::hook::{Hook, Reply};
use mcp_taskd_tests::postgres;
use mcp_taskd_tests::wait::until;
use serde_json::{Value, json};

use crate::{fake, site};

const SECRET: &str = "hunter2-of-the-hook";

fn webhook(name: &str, hook: &Hook) -> Value {
    json!({"name": name, "url": hook.url, "secret": SECRET})
}

fn hooked(site: Site, webhooks: &[Value]) -> Site {
    site.set("webhooks", webhooks.to_vec())
}

async fn status(daemon: &Daemon, id: &str) -> Value {
    daemon.api.task(id).await.map_or(Value::Null, |task| task["notification_status"].clone())
}

async fn is(daemon: &Daemon, id: &str, wanted: &str) {
    until(&format!("{id} is {wanted}"), async || status(daemon, id).await == wanted).await;
}

/// The names of the tasks that a hook was told of, and how often by a success.
fn told(hook: &Hook) -> BTreeMap<String, usize> {
    let mut told = BTreeMap::new();
    for received in hook.received().into_iter().filter(|received| received.status == Some(200)) {
        *told.entry(received.json()["data"]["task_id"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_is_told_by_a_signed_message_and_the_secret_is_nowhere_66_148() {
    let (fake, hook) = (fake().await, Hook::start(Reply::Status(200)).await);
    let url = hook.url.replace("http://", "http://taskd:hunter2-password@") + "?token=hunter2-parameter";
    let both = json!({"name": "hook", "url": url, "secret": [SECRET, "whsec_aHVudGVyMi1vbGRlci1rZXk="]});
    let site = hooked(site().server("s", &fake.url), &[both]);
    let mut daemon = site.daemon("taskd").env("MCP_TASKD_LOG", "info,mcp_taskd=trace,hyper=debug,reqwest=debug");
    daemon.start().await;
    let id = id_of(&daemon.api.submit("s", &json!({"polls": 1, "result": {"pages": 3}}), None).await.unwrap());
    is(&daemon, &id, "delivered").await;
    let received = hook.received();
    assert_eq!(received.len(), 1, "submitted and working are not asked for: {received:?}");
    for key in [SECRET.as_bytes(), b"hunter2-older-key"] {
        assert!(received[0].is_signed_with(key));
    }
    assert!(!received[0].is_signed_with(b"another"));
    let message = received[0].json();
    assert_eq!((&message["type"], &message["data"]["task_id"]), (&json!("mcp_task.completed"), &json!(id)));
    let task = daemon.api.task(&id).await.unwrap();
    assert_eq!(message["data"]["task"]["result"], task["result"]);
    assert_eq!(received[0].id, format!("{id}:{}", message["data"]["sequence"]));
    let remote = task["remote_task_id"].as_str().unwrap();
    assert!(!String::from_utf8_lossy(&received[0].body).contains(remote), "the remote id is for operators");
    let delivered = [("sink", "hook"), ("outcome", "delivered")];
    until("it is counted", async || daemon.api.count("event_deliveries_total", &delivered).await == 1).await;
    assert_eq!(daemon.api.count("events_dead_lettered_total", &[("sink", "hook")]).await, 0);

    let checks = site.run(&["doctor", "--output", "json"]).await.success();
    assert!(checks.contains("webhook hook") && checks.contains("somebody listens there"), "{checks}");
    let mut shown = vec![checks, daemon.log(), task.to_string()];
    for arguments in [&["config", "show"][..], &["doctor", "--bundle"], &["check-config"]] {
        let output = site.run(arguments).await;
        shown.push(format!("{}{}", output.stdout, output.stderr));
    }
    shown.push(daemon.api.plain(reqwest::Method::GET, "/metrics").send().await.unwrap().text().await.unwrap());
    daemon.stop().await;
    shown.push(daemon.log());
    for text in shown {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_daemon_had_under_way_is_delivered_by_the_next_one() {
    let (fake, hook) = (fake().await, Hook::start(Reply::Hang).await);
    let site = hooked(site().server("s", &fake.url), &[webhook("hook", &hook)]);
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    let ids = daemon.api.submit_many("s", &json!({"polls": 0}), 12).await;
    until("deliveries are under way", async || hook.received().len() >= 8).await;
    daemon.kill9().await;
    hook.replies(Reply::Status(200));
    daemon.start().await;
    for id in &ids {
        is(&daemon, id, "delivered").await;
    }
    assert_eq!(told(&hook).len(), 12);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_a_time_in_which_nobody_delivered_are_not_lost() {
    let (fake, hook) = (fake().await, Hook::start(Reply::Status(200)).await);
    let deaf = site().server("s", &fake.url);
    let mut daemon = deaf.daemon("taskd");
    daemon.start().await;
    daemon.api.submit("s", &json!({"polls": 0}), None).await.unwrap();
    until("the end", async || daemon.api.tasks().await.unwrap().iter().all(has_ended)).await;
    daemon.stop().await;
    // A sink hears of what comes after it was first configured, and then of everything, whoever was there.
    let hearing = hooked(deaf, &[webhook("hook", &hook)]);
    let mut daemon = hearing.daemon("taskd");
    daemon.start().await;
    let told_of = id_of(&daemon.api.submit("s", &json!({"polls": 0}), None).await.unwrap());
    is(&daemon, &told_of, "delivered").await;
    daemon.stop().await;
    let deaf = hooked(hearing, &[]);
    let mut daemon = deaf.daemon("taskd");
    daemon.start().await;
    let missed = id_of(&daemon.api.submit("s", &json!({"polls": 0}), None).await.unwrap());
    until("the end", async || daemon.api.tasks().await.unwrap().iter().all(has_ended)).await;
    assert_eq!(status(&daemon, &missed).await, "none", "this one knows of no subscriber");
    daemon.kill9().await;
    let hearing = hooked(deaf, &[webhook("hook", &hook)]);
    let mut daemon = hearing.daemon("taskd");
    daemon.start().await;
    is(&daemon, &missed, "delivered").await;
    assert_eq!(told(&hook), BTreeMap::from([(told_of, 1), (missed, 1)]));
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_deliver_each_event_once_and_a_killed_ones_are_taken_over() {
    let (fake, hook, database) = (fake().await, Hook::start(Reply::Status(200)).await, postgres::database().await);
    let site = hooked(site().server("s", &fake.url).postgres(database.url()), &[webhook("hook", &hook)]);
    site.migrate().await;
    let mut daemons = [site.daemon("one"), site.daemon("two")];
    for daemon in &mut daemons {
        daemon.start().await;
    }
    let mut ids = daemons[0].api.submit_many("s", &json!({"polls": 1}), 20).await;
    ids.extend(daemons[1].api.submit_many("s", &json!({"polls": 1}), 20).await);
    for id in &ids {
        is(&daemons[0], id, "delivered").await;
    }
    let told_once = told(&hook);
    assert_eq!((told_once.len(), told_once.values().max()), (40, Some(&1)), "{told_once:?}");

    hook.replies(Reply::Hang);
    let ids = daemons[0].api.submit_many("s", &json!({"polls": 0}), 16).await;
    until("deliveries are under way", async || hook.received().iter().filter(|it| it.status.is_none()).count() >= 8)
        .await;
    daemons[0].kill9().await;
    hook.replies(Reply::Status(200));
    for id in &ids {
        is(&daemons[1], id, "delivered").await;
    }
    daemons[1].stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_misbehaves_harms_itself_alone_67_68() {
    let (fake, bad, good) =
        (fake().await, Hook::start(Reply::Gigabyte(500)).await, Hook::start(Reply::Status(200)).await);
    let site = hooked(site().server("s", &fake.url), &[webhook("bad", &bad), webhook("good", &good)]);
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    let id = id_of(&daemon.api.submit("s", &json!({"polls": 0}), None).await.unwrap());
    is(&daemon, &id, "retry").await;
    let task = daemon.api.task(&id).await.unwrap();
    let error = task["notification_error"].as_str().unwrap();
    assert!(error.starts_with("HTTP 500") && error.len() <= 500, "a bounded piece of it: {error}");
    until("the other sink has it", async || told(&good).len() == 1).await;
    bad.replies(Reply::Status(200));
    is(&daemon, &id, "delivered").await;

    // Busy: not counted, and asked again.
    bad.replies(Reply::Status(409));
    let busy = id_of(&daemon.api.submit("s", &json!({"polls": 0}), None).await.unwrap());
    until("it was asked twice", async || bad.received().iter().filter(|it| it.status == Some(409)).count() >= 2).await;
    bad.replies(Reply::Gigabyte(200));
    is(&daemon, &busy, "delivered").await;

    // Gone: given up at once, until somebody says otherwise.
    bad.replies(Reply::Status(404));
    let gone = id_of(&daemon.api.submit("s", &json!({"polls": 0}), None).await.unwrap());
    is(&daemon, &gone, "dead_letter").await;
    let given_up = [("sink", "bad"), ("outcome", "gone")];
    until("it is counted", async || daemon.api.count("events_dead_lettered_total", &given_up).await == 1).await;
    bad.replies(Reply::Status(200));
    let replay = ["events", "replay", "--sink", "bad", "--task", &gone];
    assert_eq!(site.run(&replay).await.success().trim(), r#"{"deliveries":1}"#);
    is(&daemon, &gone, "delivered").await;
    let remote = ["events", "replay", "--sink", "good", "--url", &daemon.api.url];
    assert_eq!(site.run(&remote).await.success().trim(), r#"{"deliveries":3}"#, "all of them, by the daemon");
    until("they came again", async || told(&good).values().all(|times| *times == 2)).await;
    let unknown = site.run(&["events", "replay", "--sink", "none"]).await;
    assert_eq!(unknown.code, Some(64), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("configured are bad, good"), "{}", unknown.stderr);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_does_not_wait_for_a_receiver_that_hangs_and_loses_nothing() {
    let (fake, hook) = (fake().await, Hook::start(Reply::Hang).await);
    let site =
        hooked(site().server("s", &fake.url).set("server.shutdown_grace_seconds", 10), &[webhook("hook", &hook)]);
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    let id = id_of(&daemon.api.submit("s", &json!({"polls": 0}), None).await.unwrap());
    until("it is under way", async || !hook.received().is_empty()).await;
    daemon.stop().await;
    hook.replies(Reply::Status(200));
    daemon.start().await;
    is(&daemon, &id, "delivered").await;
    assert_eq!(hook.received()[0].id, hook.received()[1].id, "one id, so that the receiver can tell");
    daemon.stop().await;
}

#[tokio::test]
async fn a_kind_that_does_not_exist_is_refused_with_its_place_and_the_nearest_one_153() {
    let wrong = json!({"url": format!("http://127.0.0.1:{}/", free_port()), "secret": SECRET, "events": ["complete"]});
    let output = hooked(site(), &[wrong]).run(&["check-config"]).await;
    assert_eq!(output.code, Some(78));
    assert!(
        output.stderr.contains("webhooks[0].events names a kind that there is not; did you mean completed?"),
        "{}",
        output.stderr
    );
    assert!(output.stderr.contains("config.yaml, line ") && !output.stderr.contains(SECRET), "{}", output.stderr);
}
