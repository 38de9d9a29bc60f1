//! A daemon on a file of its own, its callers, and the tasks of two users.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::ConnectInfo;
use http::{HeaderMap, Method, Request, StatusCode};
use mcp_taskd_core::config::{AuthMode, Backend};
use mcp_taskd_core::store::{NewHandle, NewIntent, WorkerId, WorkerInfo};
use mcp_taskd_core::task::{Binding, TaskRecord, Toolset};
use tower::ServiceExt as _;

use super::super::*;
use crate::app::Process;
use crate::auth::{ApiKey, NewKey, issue};
use crate::gateway::{self, Gateway};
use crate::lifecycle::Shutdown;
use crate::wiring::Configuration;

/// Whose tasks are in the store.
pub const USERS: [&str; 2] = ["ada", "eve"];
/// The thread that both users call theirs.
pub const THREAD: &str = "t1";
/// The id of no task.
pub const ABSENT: &str = "mcp-task-absent";

/// A caller: a user's key with some scopes, or somebody with less.
#[derive(Debug, Clone)]
pub struct Caller {
    pub user: &'static str,
    pub scopes: Vec<&'static str>,
    /// What is sent as the credential.
    pub authorization: Option<String>,
}

impl Caller {
    pub fn may(&self, scope: &str) -> bool {
        self.scopes.contains(&scope)
    }
}

/// What came back, without what differs from request to request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

pub struct World {
    pub daemon: Daemon,
    pub process: Process,
    pub routes: Router,
    pub paths: Vec<String>,
    requests: AtomicU32,
    _folder: tempfile::TempDir,
}

impl World {
    pub async fn new() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let mut configuration = Configuration::default();
        configuration.settings.database.backend = Backend::Sqlite;
        configuration.settings.server.state_dir = folder.path().join("state");
        configuration.settings.auth.mode = AuthMode::ApiKey;
        configuration.settings.auth.max_requests_per_second = 100_000;
        configuration.source.directory = folder.path().to_owned();
        let process = Process::start(&configuration, "all", false, &Shutdown::new()).await.unwrap();
        let daemon = process.daemon.clone();
        let gateway = gateway::routes(Gateway::new(daemon.clone()), &daemon.shutdown);
        let routes = public(daemon.clone(), gateway, true);
        let paths = paths(&routes);
        Self { daemon, process, routes, paths, requests: AtomicU32::new(0), _folder: folder }
    }

    /// A caller with a key of its own.
    pub async fn caller(&self, user: &'static str, scopes: &[&'static str]) -> Caller {
        let order = NewKey {
            user_id: user.into(),
            scopes: scopes.iter().map(|&word| word.to_owned()).collect(),
            expires_in_seconds: None,
        };
        let keys = self.daemon.authenticator.keys().unwrap();
        let key = issue(keys, &order, self.daemon.now_ms()).await.unwrap().0;
        Caller { user, scopes: scopes.to_vec(), authorization: Some(format!("Bearer {}", key.expose())) }
    }

    /// Callers whose credentials are good for nothing.
    pub async fn strangers(&self) -> Vec<Caller> {
        let nobody = |authorization: Option<String>| Caller { user: "ada", scopes: Vec::new(), authorization };
        let order = NewKey { user_id: "ada".into(), scopes: vec!["admin".into()], expires_in_seconds: Some(1) };
        let keys = self.daemon.authenticator.keys().unwrap();
        let (expired, _) = issue(keys, &order, 1_000).await.unwrap();
        let (revoked, _) = issue(keys, &order, self.daemon.now_ms()).await.unwrap();
        keys.revoke_key(revoked.id(), self.daemon.now_ms()).await.unwrap();
        let bearer = |key: &ApiKey| nobody(Some(format!("Bearer {}", key.expose())));
        vec![
            nobody(None),
            nobody(Some("Bearer mtk_nonsense".into())),
            bearer(&ApiKey::generate().unwrap()),
            bearer(&expired),
            bearer(&revoked),
        ]
    }

    /// A task of a user, submitted and held by nobody.
    pub async fn task(&self, id: &str, user: &str) {
        let store = self.process.store();
        let worker: WorkerId = format!("worker-of-{id}").into();
        let info = WorkerInfo {
            id: worker.clone(),
            host: "h".into(),
            pid: 1,
            role: "all".into(),
            version: "1".into(),
            lease_ms: 60_000,
            polls: false,
        };
        store.register(&info).await.unwrap();
        let toolset = Toolset::new("report", "submit", "status", "cancel");
        let binding = Binding { server_name: "reports".into(), driver: "tools".into(), toolset };
        let now = self.daemon.now_ms();
        let intent = NewIntent {
            id: id.into(),
            worker: worker.clone(),
            user_id: user.into(),
            thread_id: THREAD.into(),
            run_id: None,
            tool_call_id: None,
            binding: Arc::new(binding),
            idempotency_key: None,
            body_hash: None,
            arguments: None,
            next_due_at: now + 3_600_000,
            created_at: now,
        };
        store.insert_intent(&intent).await.unwrap();
        let handle = NewHandle {
            worker,
            id: id.into(),
            epoch: 1,
            remote_task_id: format!("remote-{id}"),
            next_due_at: now + 3_600_000,
            keep: false,
            at: now,
        };
        store.record_submitted(&handle).await.unwrap();
    }

    /// Every task there is, as the store has it.
    pub async fn tasks(&self) -> Vec<TaskRecord> {
        let page = mcp_taskd_core::store::Page { limit: 1_000, after: None };
        self.process.store().list_tasks(&mcp_taskd_core::store::TaskFilter::default(), &page).await.unwrap()
    }

    /// Sends a request; `secret` is what the answer may differ in: the id that was asked for.
    pub async fn send(
        &self,
        caller: &Caller,
        method: &Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
        secret: &str,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path).header("host", "tasks.example:8787");
        if let Some(authorization) = &caller.authorization {
            request = request.header("authorization", authorization);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::from(body.to_owned())).unwrap();
        // Each from an address of its own: refusals are not to be slowed down here.
        let address = std::net::Ipv4Addr::from_bits(0x0a00_0000 + self.requests.fetch_add(1, Relaxed));
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from((address, 1))));
        let response = self.routes.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let request_id = parts.headers.get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or("-").to_owned();
        let streams = parts.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
        let bytes = if streams { Bytes::default() } else { to_bytes(body, 1 << 20).await.unwrap() };
        let text = String::from_utf8_lossy(&bytes).replace(&request_id, "REQUEST").replace(secret, "ID");
        Answer { status: parts.status, headers: shown(&parts.headers), body: text }
    }
}

/// The headers that must not differ; names alone where each request has a value of its own.
fn shown(headers: &HeaderMap) -> Vec<(String, String)> {
    let mut shown: Vec<_> = headers
        .iter()
        // The length differs with that of the id.
        .filter(|(name, _)| *name != "content-length")
        .map(|(name, value)| {
            let value = if name == "x-request-id" { String::new() } else { value.to_str().unwrap().to_owned() };
            (name.to_string(), value)
        })
        .collect();
    shown.sort();
    shown
}

/// The templates of a router's routes, by its own account: there is no list beside it that could miss one.
fn paths(routes: &Router) -> Vec<String> {
    let text = format!("{routes:?}");
    let (own, _) = text.split_once("fallback_router").expect("a router shows its fallback otherwise now");
    let mut paths: Vec<_> =
        own.split('"').filter(|part| part.starts_with('/') && !part.contains(' ')).map(str::to_owned).collect();
    paths.sort();
    paths.dedup();
    assert!(paths.len() > 20, "a router shows its routes otherwise now: {text}");
    paths
}
