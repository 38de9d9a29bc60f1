//! A daemon's REST API as its callers have it.

use std::time::Duration;

use reqwest::Method;
use reqwest::header::{HeaderMap, HeaderName};
use serde_json::{Value, json};

/// Why a request did not get what it asked for.
#[derive(Debug)]
pub enum ApiError {
    /// No answer: the daemon is down, or went down.
    Unreachable(reqwest::Error),
    /// An answer other than 2xx, and its problem document.
    Refused(u16, Value),
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(error) => write!(f, "unreachable: {error}"),
            Self::Refused(status, problem) => write!(f, "{status}: {problem}"),
        }
    }
}

impl std::error::Error for ApiError {}

/// The result of a request.
pub type ApiResult<T> = Result<T, ApiError>;

/// A client of a daemon's REST API; cheap to clone.
#[derive(Debug, Clone)]
pub struct Api {
    /// The daemon's address.
    pub url: String,
    client: reqwest::Client,
}

impl Api {
    /// A client of the daemon at `url`.
    pub fn new(url: &str) -> Self {
        // Another test of this process may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self { url: url.to_owned(), client: client(HeaderMap::new()) }
    }

    /// The same on behalf of a user.
    #[must_use]
    pub fn of(&self, user: &str) -> Self {
        let headers = HeaderMap::from_iter([(HeaderName::from_static("x-user-id"), user.parse().expect("a header"))]);
        Self { url: self.url.clone(), client: client(headers) }
    }

    /// Sends a message to the gateway; the answer.
    pub async fn mcp(&self, message: &Value) -> Value {
        let request = self.client.post(format!("{}/mcp", self.url)).json(message);
        let answer = request.header("accept", "application/json, text/event-stream").send().await;
        answer.expect("an answer").json().await.expect("JSON")
    }

    /// The same, with a credential on every request.
    #[must_use]
    pub fn keyed(&self, key: &str) -> Self {
        let mut value = http::HeaderValue::try_from(format!("Bearer {key}")).expect("a header value");
        value.set_sensitive(true);
        let headers = http::HeaderMap::from_iter([(http::header::AUTHORIZATION, value)]);
        let builder = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30));
        Self { url: self.url.clone(), client: builder.default_headers(headers).build().expect("a client") }
    }

    /// A request as it is, for tests that look at more than the answer's JSON.
    pub fn plain(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url))
    }

    /// Whether the daemon is ready.
    pub async fn is_ready(&self) -> bool {
        let answer = self.client.get(format!("{}/readyz", self.url)).timeout(Duration::from_secs(3)).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// Any request; the answer's JSON.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        key: Option<&str>,
    ) -> ApiResult<Value> {
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.json(body);
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let answer = request.send().await.map_err(ApiError::Unreachable)?;
        let status = answer.status();
        let text = answer.text().await.map_err(ApiError::Unreachable)?;
        let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        if status.is_success() { Ok(value) } else { Err(ApiError::Refused(status.as_u16(), value)) }
    }

    async fn get(&self, path: &str) -> ApiResult<Value> {
        self.request(Method::GET, path, None, None).await
    }

    /// Submits a report with a script of the fake server; the task.
    pub async fn submit(&self, server: &str, script: &Value, key: Option<&str>) -> ApiResult<Value> {
        let body = json!({"server": server, "task": "report", "arguments": {"script": script}});
        self.request(Method::POST, "/api/threads/default/mcp-tasks", Some(&body), key).await
    }

    /// Submits reports; their ids.
    pub async fn submit_many(&self, server: &str, script: &Value, count: usize) -> Vec<String> {
        let submits = (0..count).map(|_| self.submit(server, script, None));
        let submits: Vec<_> = submits.collect();
        let tasks = futures_util::future::join_all(submits).await;
        tasks.into_iter().map(|task| id_of(&task.expect("an accepted submit"))).collect()
    }

    /// One task, as an operator sees it.
    pub async fn task(&self, id: &str) -> ApiResult<Value> {
        self.get(&format!("/api/tasks/{id}")).await
    }

    /// Every task, newest first, as an operator sees the list.
    pub async fn tasks(&self) -> ApiResult<Vec<Value>> {
        let mut tasks = Vec::new();
        let mut path = "/api/tasks?limit=100".to_owned();
        loop {
            let answer = self.client.get(format!("{}{path}", self.url)).send().await.map_err(ApiError::Unreachable)?;
            let status = answer.status().as_u16();
            let link = answer.headers().get("link").and_then(|link| link.to_str().ok()).map(str::to_owned);
            let page: Value = answer.json().await.map_err(ApiError::Unreachable)?;
            let Value::Array(page) = page else { return Err(ApiError::Refused(status, page)) };
            tasks.extend(page);
            match link.as_deref().and_then(|link| link.strip_prefix('<')?.split('>').next()) {
                Some(next) => next.clone_into(&mut path),
                None => return Ok(tasks),
            }
        }
    }

    /// The newest hundred tasks.
    pub async fn newest(&self) -> ApiResult<Vec<Value>> {
        Ok(self.get("/api/tasks?limit=100").await?.as_array().cloned().unwrap_or_default())
    }

    /// Every event, oldest first.
    pub async fn events(&self) -> ApiResult<Vec<Value>> {
        let mut events: Vec<Value> = Vec::new();
        loop {
            let after = events.last().and_then(|event| event["sequence"].as_i64()).unwrap_or(0);
            let page = self.get(&format!("/api/events?after={after}&limit=100")).await?;
            let Value::Array(page) = page else { return Err(ApiError::Refused(200, page)) };
            if page.is_empty() {
                return Ok(events);
            }
            events.extend(page);
        }
    }

    /// The workers' register.
    pub async fn workers(&self) -> ApiResult<Vec<Value>> {
        Ok(self.get("/api/workers").await?.as_array().cloned().unwrap_or_default())
    }

    /// Requests a cancel.
    pub async fn cancel(&self, id: &str) -> ApiResult<Value> {
        let path = format!("/api/threads/default/mcp-tasks/{id}/cancel");
        self.request(Method::POST, &path, None, None).await
    }

    /// Answers what a task asks.
    pub async fn input(&self, id: &str, input: &Value) -> ApiResult<Value> {
        let path = format!("/api/threads/default/mcp-tasks/{id}/input");
        self.request(Method::POST, &path, Some(&json!({"input": input})), None).await
    }

    /// A counter or gauge, summed over the series that have all of `labels`; the name goes without its prefix.
    pub async fn count(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let page = match self.get("/metrics").await {
            Ok(Value::String(page)) => page,
            other => panic!("no metrics: {other:?}"),
        };
        let name = format!("mcp_taskd_{name}");
        let mut found = false;
        let mut sum = 0;
        for line in page.lines() {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (series, listed) = series.split_once('{').unwrap_or((series, ""));
            if series == name && labels.iter().all(|(key, value)| listed.contains(&format!("{key}=\"{value}\""))) {
                found = true;
                sum += value.parse::<u64>().unwrap_or_else(|_| panic!("no count: {line}"));
            }
        }
        assert!(found, "there is no metric {name} with {labels:?}");
        sum
    }
}

fn client(headers: HeaderMap) -> reqwest::Client {
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30));
    client.default_headers(headers).build().expect("a client")
}

/// A task's id.
pub fn id_of(task: &Value) -> String {
    task["task_id"].as_str().unwrap_or_else(|| panic!("no task: {task}")).to_owned()
}

/// Whether a task has ended.
pub fn has_ended(task: &Value) -> bool {
    matches!(task["status"].as_str(), Some("completed" | "failed" | "cancelled"))
}
