//! Delivering events again, for operators.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::config::Document;
use super::openapi::{Routes, operation};
use super::problem::Problem;
use super::thread::json;
use super::{Api, OperatorCaller};
use crate::delivery::{Order, ReplayError, Replayed};

/// The routes of this room.
pub fn routes(routes: Routes) -> Routes {
    routes.post(
        "/api/events/replay",
        replay,
        operation("replayEvents", "operator", "Delivers events to a webhook once more")
            .about(
                "One message a task, about its newest event, where the webhook hears of one that is asked for. One call \
                 looks at a bounded number of events: `next` is where the next one begins.",
            )
            .body::<Wanted>()
            .answers::<View>(202, "What will be delivered.")
            .problem(400, &["invalid_request"])
            .problem(404, &["not_found"])
            .problem(413, &["payload_too_large"]),
    )
}

/// What somebody wants to be delivered once more.
#[derive(JsonSchema)]
#[schemars(rename = "Replay", deny_unknown_fields)]
#[expect(dead_code, reason = "its fields are read by the schema")]
struct Wanted {
    /// The webhook's name.
    sink: String,
    /// From this sequence on.
    from: Option<i64>,
    /// Up to this sequence, instead of to the newest.
    to: Option<i64>,
    /// Only this task's.
    task_id: Option<String>,
    /// Only this user's.
    user_id: Option<String>,
    /// Only in this thread.
    thread_id: Option<String>,
}

/// What comes of it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Replayed")]
pub struct View {
    /// Deliveries that are due now.
    deliveries: u64,
    /// From where there is more to do.
    next: Option<i64>,
}

impl From<Replayed> for View {
    fn from(replayed: Replayed) -> Self {
        Self { deliveries: replayed.deliveries, next: replayed.next }
    }
}

fn order(mut body: Document) -> Result<Order, Problem> {
    body.only(&["sink", "from", "to", "task_id", "user_id", "thread_id"])?;
    let sink = body.take("sink")?;
    let mut integer = |name: &str| match body.take(name).unwrap_or(Value::Null) {
        Value::Null => Ok(None),
        value => {
            value.as_i64().map(Some).ok_or_else(|| Problem::invalid(format!("{name} must be an event's sequence")))
        }
    };
    let (from, to) = (integer("from")?, integer("to")?);
    let mut text = |name: &str| match body.take(name).unwrap_or(Value::Null) {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        _ => Err(Problem::invalid(format!("{name} must be a string"))),
    };
    Ok(Order {
        sink: sink.as_str().ok_or_else(|| Problem::invalid("sink must be a string"))?.to_owned(),
        from: from.unwrap_or(0),
        to,
        task_id: text("task_id")?,
        user_id: text("user_id")?,
        thread_id: text("thread_id")?,
    })
}

/// `POST /api/events/replay`.
pub async fn replay(State(api): State<Api>, _: OperatorCaller, body: Document) -> Result<Response, Problem> {
    let order = order(body)?;
    let none = || Problem::new(StatusCode::NOT_FOUND, "not_found", "this daemon has no webhooks");
    let subscribers = api.daemon.subscribers.as_ref().ok_or_else(none)?;
    match subscribers.replay(&order, api.daemon.now_ms()).await {
        Ok(replayed) => Ok(json(StatusCode::ACCEPTED, &View::from(replayed))),
        Err(error @ ReplayError::UnknownSink { .. }) => {
            Err(Problem::new(StatusCode::NOT_FOUND, "not_found", error.to_string()))
        }
        Err(ReplayError::Store(error)) => Err(error.into()),
    }
}
