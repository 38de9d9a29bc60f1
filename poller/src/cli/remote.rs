//! A daemon's REST API.

use std::time::Duration;

use indexmap::IndexMap;
use mcp_taskd_core::store::TaskFilter;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::output::Row;
use super::source::{NewTask, Target};
use crate::auth::{NewKey, USER_HEADER};
use crate::delivery::{Order, Replayed};
use crate::exit::{Exit, Failure, Result};

const PAGE: u32 = 100;
/// How long an answer may take beyond what was asked to wait.
const TIMEOUT: Duration = Duration::from_secs(75);

/// A client of a daemon.
pub struct Remote {
    client: reqwest::Client,
    base: Url,
    key: Option<SecretString>,
}

#[derive(Deserialize)]
struct Problem {
    detail: String,
    task_id: Option<String>,
}

/// What the paths of a user's own requests need.
#[derive(Deserialize)]
struct Owner {
    user_id: String,
    thread_id: String,
}

impl Remote {
    /// A client of the daemon at `url`; its key comes from `$MCP_TASKD_API_KEY`.
    pub fn new(url: &str) -> Result<Self> {
        let wrong = || Failure::usage(format!("--url {url}: not an address such as http://127.0.0.1:8787"));
        let mut base: Url = url.parse().map_err(|_| wrong())?;
        if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
            return Err(wrong());
        }
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .connect_timeout(Duration::from_secs(10))
            .user_agent(concat!("mcp-taskd/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(anyhow::Error::from)?;
        let key = std::env::var("MCP_TASKD_API_KEY").ok().filter(|key| !key.is_empty()).map(Into::into);
        Ok(Self { client, base, key })
    }

    /// Which daemon this is, for people; the rest of its URL may hold a password.
    pub fn place(&self) -> String {
        self.base.origin().ascii_serialization()
    }

    fn request(&self, method: Method, path: &[&str], query: &[(&str, String)]) -> Result<RequestBuilder> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| Failure::usage("--url: not an http or https address"))?
            .pop_if_empty()
            .extend(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let request = self.client.request(method, url);
        Ok(match &self.key {
            Some(key) => request.bearer_auth(key.expose_secret()),
            None => request,
        })
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().await.map_err(|error| {
            let exit = if error.is_connect() { Exit::Unavailable } else { Exit::Failed };
            let context = format!("the daemon at {} does not answer", self.place());
            Failure { exit, error: anyhow::Error::from(error.without_url()).context(context) }
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let later = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS].contains(&status);
        let exit = if later { Exit::Temporary } else { Exit::Failed };
        let text = response.text().await.unwrap_or_default();
        let detail = match serde_json::from_str(&text) {
            Ok(Problem { detail, task_id: Some(id) }) => format!("{detail} (recorded as {id})"),
            Ok(Problem { detail, .. }) => detail,
            Err(_) => format!("{status}, and not in the words of a mcp-taskd daemon; is the URL right?"),
        };
        Err(Failure::new(exit, detail))
    }

    async fn json<T: for<'de> Deserialize<'de>>(&self, request: RequestBuilder) -> Result<T> {
        let text = self.send(request).await?.text().await.map_err(|error| anyhow::Error::from(error.without_url()))?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::failed(format!("the answer is not what a daemon of this version sends: {error}")))
    }

    pub async fn tasks(&self, filter: &TaskFilter, limit: u32) -> Result<Vec<Row>> {
        let mut query = narrowed(filter);
        if filter.active_only {
            query.push(("active_only", "true".into()));
        }
        if let Some(status) = filter.status {
            query.push(("status", status.to_string()));
        }
        query.push(("limit", PAGE.min(limit).to_string()));
        self.pages(&["api", "tasks"], query, limit).await
    }

    /// A list, page by page, up to `limit` rows.
    async fn pages(&self, path: &[&str], query: Vec<(&str, String)>, limit: u32) -> Result<Vec<Row>> {
        let mut rows: Vec<Row> = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut query = query.clone();
            query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
            let response = self.send(self.request(Method::GET, path, &query)?).await?;
            cursor = next_cursor(&response);
            let text = response.text().await.map_err(|error| anyhow::Error::from(error.without_url()))?;
            let page: Vec<Row> = serde_json::from_str(&text).map_err(anyhow::Error::from)?;
            rows.extend(page);
            if cursor.is_none() || rows.len() >= limit as usize {
                rows.truncate(limit as usize);
                return Ok(rows);
            }
        }
    }

    pub async fn task(&self, target: &Target, wait: Duration) -> Result<Row> {
        let query: &[_] = &[("wait", wait.as_secs().to_string())];
        let query = if wait.is_zero() { &[] } else { query };
        let row: Row = self.json(self.request(Method::GET, &["api", "tasks", &target.id], query)?).await?;
        owner(target, &row)?;
        Ok(row)
    }

    pub async fn submit(&self, task: &NewTask) -> Result<Row> {
        let body = crate::view::raw(&IndexMap::from([
            ("server", crate::view::raw(&task.server)),
            ("task", crate::view::raw(&task.task)),
            ("arguments", task.arguments.clone()),
        ]));
        let mut request = self
            .request(Method::POST, &["api", "threads", &task.thread_id, "mcp-tasks"], &[])?
            .header("content-type", "application/json")
            .body(body.get().to_owned());
        if let Some(user_id) = &task.user_id {
            request = request.header(USER_HEADER, user_id);
        }
        if let Some(key) = &task.idempotency_key {
            request = request.header("idempotency-key", key);
        }
        self.json(request).await
    }

    pub async fn cancel(&self, target: &Target) -> Result<Row> {
        self.json(self.as_owner(target, "cancel").await?).await
    }

    pub async fn input(&self, target: &Target, input: &RawValue) -> Result<Row> {
        self.json(self.as_owner(target, "input").await?.json(&IndexMap::from([("input", input)]))).await
    }

    /// A request that only a task's owner makes, under its path.
    async fn as_owner(&self, target: &Target, what: &str) -> Result<RequestBuilder> {
        let row = self.task(target, Duration::ZERO).await?;
        let owner = owner(target, &row)?;
        let path = ["api", "threads", &owner.thread_id, "mcp-tasks", &target.id, what];
        Ok(self.request(Method::POST, &path, &[])?.header(USER_HEADER, &owner.user_id))
    }

    pub async fn poll_now(&self, target: &Target) -> Result<Row> {
        self.task(target, Duration::ZERO).await?;
        self.json(self.request(Method::POST, &["api", "tasks", &target.id, "poll-now"], &[])?).await
    }

    pub async fn create_key(&self, order: &NewKey) -> Result<Row> {
        let body = serde_json::json!({
            "user_id": order.user_id,
            "scopes": order.scopes,
            "expires_in_seconds": order.expires_in_seconds,
        });
        self.json(self.request(Method::POST, &["api", "keys"], &[])?.json(&body)).await
    }

    pub async fn keys(&self) -> Result<Vec<Row>> {
        self.pages(&["api", "keys"], vec![("limit", PAGE.to_string())], u32::MAX).await
    }

    pub async fn revoke_key(&self, id: &str) -> Result<Row> {
        self.json(self.request(Method::DELETE, &["api", "keys", id], &[])?).await
    }

    pub async fn workers(&self) -> Result<Vec<Row>> {
        self.json(self.request(Method::GET, &["api", "workers"], &[])?).await
    }

    pub async fn events(&self, after: i64, filter: &TaskFilter, limit: u32) -> Result<Vec<Row>> {
        #[derive(Deserialize)]
        struct Place {
            sequence: i64,
        }
        let mut rows: Vec<Row> = Vec::new();
        let mut after = after;
        while (rows.len() as u32) < limit {
            let wanted = PAGE.min(limit - rows.len() as u32);
            let mut query = narrowed(filter);
            query.extend([("after", after.to_string()), ("limit", wanted.to_string())]);
            let page: Vec<Row> = self.json(self.request(Method::GET, &["api", "events"], &query)?).await?;
            let full = page.len() as u32 == wanted;
            rows.extend(page);
            match rows.last() {
                Some(last) if full => {
                    after = serde_json::from_str::<Place>(last.get()).map_err(anyhow::Error::from)?.sequence;
                }
                _ => break,
            }
        }
        Ok(rows)
    }
}

impl Remote {
    pub async fn replay(&self, order: &Order) -> Result<Replayed> {
        #[derive(Deserialize)]
        struct Answer {
            deliveries: u64,
            next: Option<i64>,
        }
        let body = serde_json::json!({
            "sink": order.sink,
            "from": order.from,
            "to": order.to,
            "task_id": order.task_id,
            "user_id": order.user_id,
            "thread_id": order.thread_id,
        });
        let request = self.request(Method::POST, &["api", "events", "replay"], &[])?.json(&body);
        let Answer { deliveries, next } = self.json(request).await?;
        Ok(Replayed { deliveries, next })
    }
}

/// The owner of a task, where `--user` and `--thread` do not exclude it.
fn owner(target: &Target, row: &RawValue) -> Result<Owner> {
    let owner: Owner = serde_json::from_str(row.get()).map_err(anyhow::Error::from)?;
    let other = |wanted: &Option<String>, is: &str| wanted.as_deref().is_some_and(|wanted| wanted != is);
    if other(&target.user_id, &owner.user_id) || other(&target.thread_id, &owner.thread_id) {
        return Err(Failure::failed(format!("there is no task {}", target.id)));
    }
    Ok(owner)
}

fn narrowed(filter: &TaskFilter) -> Vec<(&'static str, String)> {
    let user = filter.user_id.clone().map(|user_id| ("user_id", user_id));
    let thread = filter.thread_id.clone().map(|thread_id| ("thread_id", thread_id));
    user.into_iter().chain(thread).collect()
}

fn next_cursor(response: &Response) -> Option<String> {
    let link = response.headers().get("link")?.to_str().ok()?;
    let target = link.strip_prefix('<')?.split('>').next()?;
    let cursor = target.split("cursor=").nth(1)?.split('&').next()?;
    Some(cursor.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_encoded_below_the_base() {
        // The one that `main` installs.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let remote = Remote::new("http://127.0.0.1:8787/taskd").unwrap();
        let request = remote.request(Method::GET, &["api", "threads", "a/b c", "mcp-tasks"], &[("limit", "5".into())]);
        let request = request.unwrap().build().unwrap();
        assert_eq!(request.url().as_str(), "http://127.0.0.1:8787/taskd/api/threads/a%2Fb%20c/mcp-tasks?limit=5");
    }

    #[test]
    fn what_is_no_web_address_is_wrong_usage() {
        for url in ["", "localhost", "file:///x", "mailto:a@b"] {
            assert_eq!(Remote::new(url).err().map(|failure| failure.exit), Some(Exit::Usage), "{url}");
        }
    }
}
