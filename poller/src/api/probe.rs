//! Probes and metrics: never dependent on an upstream server; liveness never on the database.

use std::fmt::Write as _;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json as value;

use super::Api;
use super::openapi::{Operation, Param, Routes};
use super::problem::Problem;
use super::query::Params;
use super::thread::json;
use crate::auth::Condition;

/// How long the store may take to answer a probe.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// The probes' routes.
pub fn routes(routes: Routes) -> Routes {
    let described = |id, summary| {
        Operation::bare(id, "probes", summary)
            .about("Where `server.admin_listen` is set, there and only there.")
            .answers_text(200, "Yes.", PLAIN)
            .answers_text(503, "No, and why not.", PLAIN)
    };
    let verbose = Param::query("verbose", "Tells of each check, as JSON.", value!({ "type": "boolean" }));
    routes
        .get("/livez", livez, described("isLive", "Whether the worker loop turns; asks neither store nor servers"))
        .get(
            "/readyz",
            readyz,
            Operation::bare("isReady", "probes", "Whether requests can be answered")
                .about("Where `server.admin_listen` is set, there and only there.")
                .takes([verbose])
                .answers_text(200, "Yes.", PLAIN)
                .answers::<Report>(200, "Yes.")
                .answers_text(503, "No, and why not.", PLAIN)
                .answers::<Report>(503, "No, and why not.")
                .problem(422, &["invalid_request"]),
        )
        .get("/startupz", startupz, described("isStarted", "Whether the start is over"))
        .get(
            "/metrics",
            metrics,
            Operation::bare("getMetrics", "probes", "Metrics for Prometheus")
                .answers_text(200, "The text format.", "text/plain")
                .problem(500, &["internal"]),
        )
}

const PLAIN: &str = "text/plain";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Health {
    Ok,
    /// Worth knowing, but requests can be answered.
    Warning,
    Failed,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Check {
    name: &'static str,
    status: Health,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl Check {
    fn new(name: &'static str, status: Health, detail: impl Into<Option<String>>) -> Self {
        Self { name, status, detail: detail.into() }
    }
}

/// How the process feels.
#[derive(Debug, Serialize, JsonSchema)]
struct Report {
    status: &'static str,
    checks: Vec<Check>,
}

async fn livez(State(api): State<Api>) -> Response {
    let live = api.daemon.health.is_live();
    answer(live, if live { "ok" } else { "the worker loop is stuck" })
}

async fn startupz(State(api): State<Api>) -> Response {
    let started = api.daemon.health.is_started();
    answer(started, if started { "ok" } else { "starting" })
}

async fn readyz(State(api): State<Api>, params: Params, headers: HeaderMap) -> Result<Response, Problem> {
    let checks = checks(&api).await;
    let ready = checks.iter().all(|check| check.status != Health::Failed);
    if !params.flag("verbose")? {
        let failed = checks.iter().find(|check| check.status == Health::Failed);
        return Ok(answer(ready, failed.map_or("ok", |check| check.name)));
    }
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let report = Report { status: if ready { "ready" } else { "not ready" }, checks };
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    Ok(if accept.starts_with("text/plain") { text(status, &report) } else { json(status, &report) })
}

async fn checks(api: &Api) -> Vec<Check> {
    let daemon = &api.daemon;
    let mut checks = Vec::new();
    let draining = daemon.shutdown.is_draining();
    checks.push(match (draining, daemon.health.is_started()) {
        (true, _) => Check::new("lifecycle", Health::Failed, "draining".to_owned()),
        (false, false) => Check::new("lifecycle", Health::Failed, "starting".to_owned()),
        (false, true) => Check::new("lifecycle", Health::Ok, None),
    });
    let pinged = tokio::time::timeout(STORE_TIMEOUT, daemon.queries.ping()).await;
    let reachable = matches!(pinged, Ok(Ok(())));
    checks.push(if reachable {
        Check::new("store", Health::Ok, None)
    } else {
        Check::new("store", Health::Failed, "the store does not answer".to_owned())
    });
    checks.push(if daemon.health.is_leased() {
        Check::new("lease", Health::Ok, None)
    } else {
        Check::new(
            "lease",
            Health::Failed,
            "this worker's lease is not renewed; the store does not take writes".to_owned(),
        )
    });
    if reachable {
        checks.push(schema(api).await);
        checks.push(workers(api).await);
        checks.extend(wakeups(api));
    }
    checks.extend(daemon.authenticator.condition().map(|condition| match condition {
        Condition::Good => Check::new("credentials", Health::Ok, None),
        Condition::Stale(detail) => Check::new("credentials", Health::Warning, detail),
        Condition::Failed(detail) => Check::new("credentials", Health::Failed, detail),
    }));
    checks.push(match daemon.live.last_reload().error {
        None => Check::new("configuration", Health::Ok, None),
        error => Check::new("configuration", Health::Warning, error),
    });
    checks.push(quarantine(&daemon.metrics.quarantined()));
    let problems = daemon.tools.last_problems();
    checks.push(if problems.is_empty() {
        Check::new("catalogue", Health::Ok, None)
    } else {
        Check::new("catalogue", Health::Warning, problems.join("; "))
    });
    checks
}

async fn schema(api: &Api) -> Check {
    match tokio::time::timeout(STORE_TIMEOUT, api.daemon.queries.schema_version()).await {
        Ok(Ok((known, Some(applied)))) if applied >= known => Check::new("schema", Health::Ok, None),
        Ok(Ok((known, applied))) => Check::new(
            "schema",
            Health::Failed,
            format!("the store has version {}, this program needs {known}", applied.unwrap_or(0)),
        ),
        _ => Check::new("schema", Health::Failed, "the store does not answer".to_owned()),
    }
}

/// Without a running poller anywhere, submits are still recorded, so it is no reason to be unready (144).
async fn workers(api: &Api) -> Check {
    match tokio::time::timeout(STORE_TIMEOUT, api.daemon.registry.workers()).await {
        Ok(Ok(workers)) => {
            let polling = workers.rows.iter().filter(|worker| worker.live && worker.info.polls).count();
            if polling == 0 {
                Check::new("pollers", Health::Warning, "nobody polls: no live worker polls tasks".to_owned())
            } else {
                Check::new("pollers", Health::Ok, format!("{polling} polling"))
            }
        }
        _ => Check::new("pollers", Health::Warning, "the store does not answer".to_owned()),
    }
}

/// Rows that cannot be decoded wait for a person; everything else goes on (FAILURES 27).
fn quarantine(columns: &[(String, i64)]) -> Check {
    if columns.is_empty() {
        return Check::new("quarantine", Health::Ok, None);
    }
    let rows: i64 = columns.iter().map(|(_, count)| count).sum();
    let names: Vec<_> = columns.iter().map(|(column, _)| column.as_str()).collect();
    let detail = format!("tasks that cannot be read: {rows} (see /api/stats), by {}", names.join(", "));
    Check::new("quarantine", Health::Warning, detail)
}

/// They only shorten waiting, so that it is no reason to be unready.
fn wakeups(api: &Api) -> Option<Check> {
    let heard = api.daemon.queries.hears_others()?;
    let lost = "other processes are not heard; they are looked after once a second".to_owned();
    Some(if heard { Check::new("wakeups", Health::Ok, None) } else { Check::new("wakeups", Health::Warning, lost) })
}

fn answer(good: bool, text: &'static str) -> Response {
    let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    plain(status, format!("{text}\n"))
}

fn text(status: StatusCode, report: &Report) -> Response {
    let mut lines = String::new();
    for check in &report.checks {
        let sign = match check.status {
            Health::Ok => "[+]",
            Health::Warning => "[!]",
            Health::Failed => "[-]",
        };
        let _ = write!(lines, "{sign} {}", check.name);
        if let Some(detail) = &check.detail {
            let _ = write!(lines, ": {detail}");
        }
        lines.push('\n');
    }
    plain(status, format!("{lines}{}\n", report.status))
}

/// Plain text that the request's observer must leave alone even where it is an error.
fn plain(status: StatusCode, text: String) -> Response {
    let mut response =
        (status, [(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"))], text).into_response();
    response.extensions_mut().insert(super::request::AsItIs);
    response
}

async fn metrics(State(api): State<Api>) -> Result<Response, Problem> {
    let text = api.daemon.metrics.render().map_err(|error| {
        tracing::error!(%error, "the metrics cannot be rendered");
        Problem::internal()
    })?;
    let media_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, media_type)], text).into_response())
}
