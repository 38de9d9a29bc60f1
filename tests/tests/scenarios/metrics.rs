//! `/metrics` against its catalogue, `docs/METRICS.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use mcp_taskd_tests::daemon::has_ended;
use mcp_taskd_tests::wait::until;
use reqwest::Method;
use serde_json::json;
use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::{fake, site};

/// A family of metrics: its type, the names of its labels, and what it means.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Family {
    kind: String,
    labels: BTreeSet<String>,
    help: String,
}

/// The families of a page in Prometheus's text format, with the labels of their samples.
fn families(page: &str) -> BTreeMap<String, Family> {
    let mut found = BTreeMap::<String, Family>::new();
    let mut current = String::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a name and a help text");
            name.clone_into(&mut current);
            help.clone_into(&mut found.entry(current.clone()).or_default().help);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            kind.clone_into(&mut found.entry(name.to_owned()).or_default().kind);
        } else if let Some((_, labels)) = line.split_once('{') {
            let labels = labels.split('"').step_by(2).filter_map(|part| part.strip_suffix('='));
            let labels = labels.map(|label| label.trim_start_matches(',').to_owned()).filter(|label| label != "le");
            found.entry(current.clone()).or_default().labels.extend(labels);
        }
    }
    found
}

/// The rows of the catalogue: a family, and whether it is there only if something is configured or has happened.
fn catalogue() -> BTreeMap<String, (Family, bool)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/METRICS.md");
    let text = std::fs::read_to_string(path).expect("the catalogue");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `mcp_taskd_"));
    let row = |row: &str| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [name, kind, labels, help, only, ""] = cells[..] else { panic!("five columns: {row}") };
        let labels = labels.split(", ").map(|label| label.trim_matches('`').to_owned());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        let family = Family { kind: kind.to_owned(), labels, help: help.to_owned() };
        (format!("mcp_taskd_{}", name.trim_end_matches('`')), (family, !only.is_empty()))
    };
    rows.map(row).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_catalogue_has_every_metric_with_its_type_labels_and_meaning_and_no_other() {
    let fake = fake().await;
    let hook = json!([{"name": "hook", "url": "http://127.0.0.1:9/", "secret": "s"}]);
    let site = site().server("s", &fake.url).set("webhooks", hook);
    let mut daemon = site.daemon("one");
    daemon.start().await;
    daemon.api.submit("s", &json!({"polls": 0}), None).await.unwrap();
    until("the task has ended", || async {
        daemon.api.tasks().await.is_ok_and(|tasks| !tasks.is_empty() && tasks.iter().all(has_ended))
    })
    .await;
    let page = daemon.api.request(Method::GET, "/metrics", None, None).await.unwrap();
    daemon.stop().await;

    let mut wrong = Vec::new();
    let catalogue = catalogue();
    let live = families(page.as_str().expect("a text"));
    for (name, family) in &live {
        let expected = catalogue.get(name).map(|(family, _)| family);
        if expected != Some(family) {
            let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
            wrong.push(format!("| `{name}` | {} | {} | {} | |", family.kind, labels.join(", "), family.help));
        }
    }
    for (name, (_, conditional)) in &catalogue {
        if !conditional && !live.contains_key(name) {
            wrong.push(format!("{name} is not there"));
        }
    }
    assert!(wrong.is_empty(), "docs/METRICS.md should say:\n{}", wrong.join("\n"));
    assert!(live.keys().all(|name| name.starts_with("mcp_taskd_")));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_and_statements_are_counted() {
    let fake = fake().await;
    let site = site().server("s", &fake.url);
    let mut daemon = site.daemon("one");
    daemon.start().await;
    let count = async |event| daemon.api.count("events_emitted_total", &[("type", event)]).await;
    for event in ["submitted", "completed", "tracking_degraded"] {
        assert_eq!(count(event).await, 0, "{event}");
    }
    daemon.api.submit("s", &json!({"polls": 0}), None).await.unwrap();
    until("the end was told", || async { count("completed").await == 1 }).await;
    assert_eq!(count("submitted").await, 1);
    assert_eq!(count("failed").await, 0);
    let statements =
        async |operation| daemon.api.count("db_query_duration_seconds_count", &[("operation", operation)]).await;
    for operation in ["heartbeat", "submit", "apply", "stats"] {
        until(operation, || async { statements(operation).await > 0 }).await;
    }
    assert_eq!(daemon.api.count("db_connections", &[("state", "max")]).await, 5, "one writer and four readers");
    until("the store's size is known", || async { daemon.api.count("store_size_bytes", &[]).await > 4_096 }).await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_tasks_are_pruned_by_a_running_daemon_and_the_metrics_tell_28() {
    let fake = fake().await;
    let site = site().set("mcp_tasks.retention_days", 1).server("s", &fake.url);
    let mut daemon = site.daemon("one");
    daemon.start().await;
    daemon.api.submit_many("s", &json!({"polls": 0}), 3).await;
    until("all have ended", || async {
        daemon.api.tasks().await.is_ok_and(|tasks| tasks.iter().filter(|task| has_ended(task)).count() == 3)
    })
    .await;
    assert_eq!(daemon.api.count("rows_written_total", &[("statement", "prune")]).await, 0);
    daemon.stop().await;

    let file = SqliteConnectOptions::new().filename(site.path().join("data/mcp-taskd.sqlite3"));
    let mut shell = SqliteConnection::connect_with(&file).await.unwrap();
    let age = "UPDATE mcp_tasks SET completed_at = completed_at - 2 * 86400000 WHERE id IN (SELECT id FROM mcp_tasks LIMIT 2)";
    sqlx::raw_sql(age).execute(&mut shell).await.unwrap();
    shell.close().await.unwrap();

    daemon.start().await;
    let pruned = async || daemon.api.count("rows_written_total", &[("statement", "prune")]).await;
    until("the two old ones are deleted", || async { pruned().await == 2 }).await;
    assert_eq!(daemon.api.tasks().await.unwrap().len(), 1, "the recent one stays");
    let shown = async || daemon.api.count("tasks", &[("status", "completed")]).await;
    until("the figures show it", || async { shown().await == 1 }).await;
    daemon.stop().await;
}
