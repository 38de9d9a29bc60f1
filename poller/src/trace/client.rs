//! How spans are sent: the exporter's requests over this program's HTTP client.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use tokio::runtime::Handle;

/// `OTEL_EXPORTER_OTLP_TIMEOUT`'s default.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A client whose requests run on the runtime that made it: the exporter's own thread has none.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    runtime: Handle,
    /// Whether the last request failed, so that an outage is logged once.
    failing: AtomicBool,
}

impl Client {
    pub(super) fn new() -> anyhow::Result<Self> {
        let timeout = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok()?.trim().parse().ok())
            .map_or(TIMEOUT, Duration::from_millis);
        let http = reqwest::Client::builder().timeout(timeout).redirect(reqwest::redirect::Policy::none()).build()?;
        Ok(Self { http, runtime: Handle::current(), failing: AtomicBool::new(false) })
    }

    fn note(&self, failure: Option<&dyn std::fmt::Display>) {
        let failed_before = self.failing.swap(failure.is_some(), Ordering::Relaxed);
        match failure {
            Some(error) if !failed_before => tracing::warn!(%error, "spans cannot be sent"),
            None if failed_before => tracing::info!("spans can be sent again"),
            _ => {}
        }
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let request = request.try_into()?;
        let http = self.http.clone();
        let sent = self.runtime.spawn(async move {
            // The URL may hold credentials.
            let mut answer = http.execute(request).await.map_err(reqwest::Error::without_url)?;
            let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
            let body = answer.bytes().await.map_err(reqwest::Error::without_url)?;
            let mut response = Response::new(body);
            (*response.status_mut(), *response.headers_mut()) = (status, headers);
            Ok::<_, reqwest::Error>(response)
        });
        match sent.await? {
            Ok(response) => {
                let status = response.status();
                self.note((!status.is_success()).then_some(&status as &dyn std::fmt::Display));
                Ok(response)
            }
            Err(error) => {
                self.note(Some(&error));
                Err(error.into())
            }
        }
    }
}
