//! Each webhook: whether there is somebody at its address, and whether events wait for it. No message is sent.

use std::time::Duration;

use futures_util::future::join_all;
use mcp_taskd_core::clock::{Clock as _, SystemClock};
use mcp_taskd_core::config::Webhook;
use mcp_taskd_core::store::{Backlog, Deliveries};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Check;
use crate::metrics::COUNT_CAP;

/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// From this age of an event that waits on, it is worth knowing.
const LATE_MS: i64 = 5 * 60_000;

/// Looks at every webhook; `deliveries` are those of a store that answers.
pub(super) async fn look(webhooks: &[Webhook], deliveries: Option<&dyn Deliveries>) -> Vec<Check> {
    let names: Vec<String> = webhooks.iter().map(|webhook| webhook.name.clone()).collect();
    let backlog = match deliveries {
        Some(deliveries) if !names.is_empty() => deliveries.backlog(&names, COUNT_CAP).await.unwrap_or_default(),
        _ => Vec::new(),
    };
    let now = SystemClock.now_ms();
    let checks = webhooks.iter().map(async |webhook| {
        let waiting = backlog.iter().find(|backlog| backlog.sink == webhook.name);
        check(&webhook.name, reach(&webhook.url).await, waiting, now)
    });
    join_all(checks).await
}

/// Why nobody is there, if nobody is. A proxy of the environment's is not asked.
async fn reach(url: &str) -> Option<String> {
    let uri: http::Uri = url.parse().ok()?;
    let host = uri.host()?.trim_matches(['[', ']']).to_owned();
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("http") { 80 } else { 443 });
    match timeout(PATIENCE, TcpStream::connect((host.as_str(), port))).await {
        Err(_) => Some(format!("{host}:{port} does not answer")),
        Ok(Err(error)) => Some(format!("{host}:{port} cannot be reached: {error}")),
        Ok(Ok(_)) => None,
    }
}

fn check(name: &str, unreachable: Option<String>, waiting: Option<&Backlog>, now: i64) -> Check {
    let name = format!("webhook {name}");
    let pending = waiting.map_or(0, |backlog| backlog.pending);
    let late = waiting.and_then(|backlog| backlog.oldest_at).map(|at| now - at).filter(|age| *age > LATE_MS);
    let mut detail = format!("{pending} events wait");
    if let Some(age) = late {
        detail = format!("{detail}, one for {} s", age / 1_000);
    }
    match unreachable {
        Some(why) => Check::warning(name, format!("{why}; {detail}")),
        None if late.is_some() => Check::warning(name, detail),
        None => Check::ok(name, format!("somebody listens there; {detail}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn events_that_wait_for_long_and_receivers_that_are_away_are_worth_knowing() {
        let backlog = |oldest_at| Backlog { sink: "hook".into(), pending: 3, oldest_at };
        let fine = check("hook", None, Some(&backlog(Some(1_000))), 2_000);
        assert_eq!((fine.status, &*fine.detail), (Status::Ok, "somebody listens there; 3 events wait"));
        let late = check("hook", None, Some(&backlog(Some(0))), 600_000);
        assert_eq!((late.status, &*late.detail), (Status::Warning, "3 events wait, one for 600 s"));
        let away = check("hook", Some("h:1 does not answer".into()), None, 0);
        assert_eq!((away.status, &*away.detail), (Status::Warning, "h:1 does not answer; 0 events wait"));
    }
}
