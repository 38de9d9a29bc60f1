//! A thread's events as they happen: server-sent events, resumable by `Last-Event-ID`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use mcp_taskd_core::store::{EventRecord, TaskFilter};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::{self, error::RecvError};

use super::Api;
use super::problem::Problem;
use super::thread::Thread;
use crate::view;

/// How often the store is asked when there is nothing new, whatever this process is told.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// How long to wait after the store did not answer.
const RETRY_AFTER: Duration = Duration::from_secs(5);
const BATCH: u32 = 100;

struct Feed {
    api: Api,
    filter: TaskFilter,
    after: i64,
    ready: VecDeque<EventRecord>,
    threads: broadcast::Receiver<Arc<str>>,
    _permit: OwnedSemaphorePermit,
}

/// `GET …/mcp-tasks/events`.
///
/// Without `Last-Event-ID` the stream begins with the thread's kept events, so that nothing falls between a submit and
/// the start of the stream. It ends when the daemon drains; a client resumes elsewhere by the last id.
pub async fn thread(State(api): State<Api>, thread: Thread, headers: HeaderMap) -> Result<Response, Problem> {
    let after = last_event_id(&headers)?;
    let permit = api.streams.clone().try_acquire_owned().map_err(|_| {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_streams", "too many event streams are open")
    })?;
    let access = thread.access();
    let filter =
        TaskFilter { user_id: access.user_id.clone(), thread_id: access.thread_id.clone(), ..TaskFilter::default() };
    let threads = api.daemon.tasks.threads();
    let feed = Feed { api, filter, after, ready: VecDeque::new(), threads, _permit: permit };
    let events = stream::unfold(feed, |mut feed| async move {
        let event = feed.next().await?;
        Some((Ok::<_, Infallible>(event), feed))
    });
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

impl Feed {
    /// The next event; none once the daemon drains.
    async fn next(&mut self) -> Option<Event> {
        let stop = self.api.daemon.shutdown.soft().clone();
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.after = event.sequence;
                return Some(message(&event));
            }
            if stop.is_cancelled() {
                return None;
            }
            // What is told from here on may be in what is read now, and then it is only read once more.
            self.threads = self.threads.resubscribe();
            let pause = match self.api.daemon.queries.list_events(self.after, &self.filter, BATCH).await {
                Ok(events) if events.is_empty() => POLL_EVERY,
                Ok(events) => {
                    self.ready.extend(events);
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "events cannot be read");
                    RETRY_AFTER
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = told_of(&mut self.threads, self.filter.thread_id.as_deref()) => {}
                () = stop.cancelled() => return None,
            }
        }
    }
}

/// Waits until something has happened in the thread, as far as this process is told.
async fn told_of(threads: &mut broadcast::Receiver<Arc<str>>, thread: Option<&str>) {
    loop {
        match threads.recv().await {
            Ok(told) if thread.is_some_and(|thread| *told != *thread) => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

fn message(event: &EventRecord) -> Event {
    Event::default()
        .id(event.sequence.to_string())
        .event(event.kind.replace(['\r', '\n'], " "))
        .data(view::raw(&view::event(event)).get())
}

fn last_event_id(headers: &HeaderMap) -> Result<i64, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(0) };
    let sequence = value.to_str().ok().and_then(|text| text.parse::<i64>().ok()).filter(|sequence| *sequence >= 0);
    sequence.ok_or_else(|| Problem::invalid("Last-Event-ID must be the id of an event of this stream"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_resumes_behind_the_last_event_id() {
        let headers = |value: &'static str| {
            HeaderMap::from_iter([(http::HeaderName::from_static("last-event-id"), HeaderValue::from_static(value))])
        };
        assert_eq!(last_event_id(&HeaderMap::new()).unwrap(), 0);
        assert_eq!(last_event_id(&headers("42")).unwrap(), 42);
        assert_eq!(last_event_id(&headers("x")).unwrap_err().status, 422);
        assert_eq!(last_event_id(&headers("-1")).unwrap_err().status, 422);
    }
}
