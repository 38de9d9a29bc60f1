//! How a server's process is started, and how it is greeted (BEHAVIOURS 82, 104, 156; `MCP_TASKS`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use tokio::process::Command;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::guard::Guard;
use super::session::{Session, Setting};
use crate::upstream::changes::Changes;
use crate::upstream::http::supports_modern;
use crate::upstream::jsonrpc::Era;
use crate::upstream::metrics::ServerMetrics;
use crate::upstream::offers::Offers;
use crate::upstream::pending::Failure;
use crate::upstream::request::Request;
use crate::upstream::scrub::Scrubber;
use crate::upstream::{CallError, CallErrorKind, Options, Scope};

/// How long a server may take over `server/discover` before it is also greeted the old way.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// What the daemon is told, and no child of it: where its secrets are, how to speak for it, and its own keys.
const OF_THE_SERVICE: [&str; 9] = [
    "CREDENTIALS_DIRECTORY",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "MCP_TASKD_CREDENTIALS_KEY",
    "MCP_TASKD_CREDENTIALS_KEY_FILE",
    "DEER_FLOW_CREDENTIALS_KEY",
    "DEER_FLOW_CREDENTIALS_KEY_FILE",
    "MCP_TASKD_API_KEY",
];

const UNKNOWN: u8 = 0;
const MODERN: u8 = 1;
const LEGACY: u8 = 2;

/// Everything needed to start a session.
pub(in crate::upstream) struct Launch {
    pub(super) name: Arc<str>,
    command: PathBuf,
    args: Vec<String>,
    env: BTreeMap<String, SecretString>,
    cwd: Option<PathBuf>,
    workspaces: PathBuf,
    /// The kind of protocol last seen, so that a silent old server costs its probe once.
    era: AtomicU8,
    processes: TaskTracker,
    guard: Option<Guard>,
    scrubber: Scrubber,
    pub(super) changes: Changes,
}

impl Launch {
    pub(in crate::upstream) fn new(
        name: &str,
        command: &str,
        args: &[String],
        env: &BTreeMap<String, SecretString>,
        cwd: Option<&Path>,
        options: &Options,
    ) -> Self {
        // A child with another working directory would look elsewhere for a relative path.
        let state_dir = std::path::absolute(&options.state_dir).unwrap_or_else(|_| options.state_dir.clone());
        Self {
            name: name.into(),
            command: program(command, cwd),
            args: args.to_vec(),
            env: env.clone(),
            cwd: cwd.map(ToOwned::to_owned),
            workspaces: state_dir.join("workspaces"),
            era: AtomicU8::new(UNKNOWN),
            processes: TaskTracker::new(),
            guard: options.guard.clone(),
            scrubber: Scrubber::new(env.iter().map(|(name, value)| (name.as_str(), value.expose_secret()))),
            changes: Changes::default(),
        }
    }

    /// The same, with `secrets` among its arguments: they are taken out of texts too.
    pub(in crate::upstream) fn without(self, secrets: &[String]) -> Self {
        let variables = self.env.iter().map(|(name, value)| (name.as_str(), value.expose_secret()));
        let scrubber = Scrubber::new(variables.chain(secrets.iter().map(|secret| ("secret", secret.as_str()))));
        Self { scrubber, ..self }
    }

    /// What takes its variables' values out of texts.
    pub(in crate::upstream) fn scrubber(&self) -> Scrubber {
        self.scrubber.clone()
    }

    /// Waits until every process that is being ended has ended.
    pub(super) async fn ended(&self) {
        self.processes.close();
        self.processes.wait().await;
        self.processes.reopen();
    }

    /// A session for `scope`, or one for discovery, greeted.
    pub(super) async fn start(&self, scope: Option<&Scope>, metrics: &ServerMetrics) -> Result<Session, CallError> {
        let known = self.era.load(Ordering::Relaxed);
        let (session, greeted) = self.attempt(scope, known, metrics).await?;
        let other = match &greeted {
            // Some old servers end when the first thing they hear is not `initialize`.
            Err(_) if known != LEGACY && session.is_closed() => LEGACY,
            // A server that was renewed may not know `initialize` any more.
            Err(error) if known == LEGACY && error.kind == CallErrorKind::Rpc => UNKNOWN,
            _ => return greeted.map(|()| session),
        };
        let (session, greeted) = self.attempt(scope, other, metrics).await?;
        greeted.map(|()| session)
    }

    async fn attempt(
        &self,
        scope: Option<&Scope>,
        known: u8,
        metrics: &ServerMetrics,
    ) -> Result<(Session, Result<(), CallError>), CallError> {
        let command = self.command(scope).await?;
        let setting = Setting {
            server: &self.name,
            scrubber: &self.scrubber,
            changes: &self.changes,
            count: metrics.session(),
            processes: &self.processes,
            guard: self.guard.as_ref(),
        };
        let mut session = Session::spawn(command, setting)
            .map_err(|error| connect(format!("{} cannot be started: {error}", self.command.display())))?;
        let greeted = self.greet(&session, known).await;
        if let Ok((era, offers)) = greeted {
            self.era.store(if era == Era::Legacy { LEGACY } else { MODERN }, Ordering::Relaxed);
            (session.era, session.offers) = (era, offers);
            // A process that only lists tools is gone before they can change.
            if scope.is_some() && era == Era::Modern && offers.changes {
                session.listen().await;
            }
        }
        let greeted = greeted.map(drop);
        Ok((session, greeted))
    }

    async fn greet(&self, session: &Session, known: u8) -> Result<(Era, Offers), CallError> {
        let legacy = |initialized: Result<Offers, Failure>| {
            initialized.map(|offers| (Era::Legacy, offers)).map_err(Failure::into_error)
        };
        if known == LEGACY {
            return legacy(session.initialize().await);
        }
        let request = Request::new("server/discover");
        let discover = session.greet(|id| request.body(id, Era::Modern));
        tokio::pin!(discover);
        if let Ok(answered) = timeout(PROBE_TIMEOUT, &mut discover).await {
            return match verdict(answered)? {
                Some(modern) => Ok(modern),
                None => legacy(session.initialize().await),
            };
        }
        // Silence: an old server that drops what it does not know, or any server that is slow to start.
        let initialize = session.initialize();
        tokio::pin!(initialize);
        tokio::select! {
            biased;
            answered = &mut discover => match verdict(answered)? {
                Some(modern) => Ok(modern),
                None => legacy(initialize.await),
            },
            answered = &mut initialize => match answered {
                // A modern server has no `initialize`; its answer to the probe is yet to come.
                Err(Failure::Rpc(error)) => verdict(discover.await)?.ok_or_else(|| error.into_call_error()),
                answered => legacy(answered),
            },
        }
    }

    async fn command(&self, scope: Option<&Scope>) -> Result<Command, CallError> {
        let mut command = Command::new(&self.command);
        command.args(&self.args);
        for name in OF_THE_SERVICE {
            command.env_remove(name);
        }
        let mut directory = self.cwd.clone();
        if let Some(scope) = scope {
            let workspace = self.workspaces.join(workspace_name(scope));
            let temporary = workspace.join(".mcp").join("tmp");
            make_private(&temporary)
                .await
                .map_err(|error| connect(format!("the workspace {} cannot be made: {error}", temporary.display())))?;
            for name in ["TMPDIR", "TMP", "TEMP"] {
                command.env(name, &temporary);
            }
            directory.get_or_insert(workspace);
        }
        // What is configured wins over what is inherited and over ours (104).
        command.envs(self.env.iter().map(|(name, value)| (name, value.expose_secret())));
        if let Some(directory) = directory {
            command.current_dir(directory);
        }
        Ok(command)
    }
}

/// The program to start. A path that is relative to nothing in particular is taken from the daemon's own directory, for
/// discovery and calls alike; beside a configured `cwd` it is taken from there (82).
fn program(command: &str, cwd: Option<&Path>) -> PathBuf {
    let path = Path::new(command);
    let absolute = if cwd.is_none() && command.contains('/') { std::path::absolute(path).ok() } else { None };
    absolute.unwrap_or_else(|| path.to_owned())
}

/// What a modern server offers, by its answer to `server/discover`; `None` where it is not one.
fn verdict(answered: Result<Box<RawValue>, Failure>) -> Result<Option<(Era, Offers)>, CallError> {
    let (modern, offers) = match answered {
        Ok(result) => (supports_modern(&result), Offers::read(&result)),
        Err(Failure::Rpc(error)) => (error.is_modern(), Offers::default()),
        Err(error) => return Err(error.into_error()),
    };
    Ok(modern.then_some((Era::Modern, offers)))
}

fn connect(message: String) -> CallError {
    CallError::new(CallErrorKind::Connect, message)
}

/// The folder of a user's thread; a hash, since ids may hold anything (156).
fn workspace_name(scope: &Scope) -> String {
    let mut hasher = Sha256::new();
    hasher.update((scope.user_id.len() as u64).to_le_bytes());
    hasher.update(scope.user_id.as_bytes());
    hasher.update(scope.thread_id.as_bytes());
    hasher.finalize()[..16].iter().fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

async fn make_private(path: &Path) -> std::io::Result<()> {
    let mut builder = tokio::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    builder.mode(0o700);
    builder.create(path).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_is_not_told_where_the_daemons_secrets_are() {
        let env = BTreeMap::from([("WATCHDOG_USEC".to_owned(), "its own".to_owned().into())]);
        let launch = Launch::new("s", "server", &[], &env, None, &Options::new("unused"));
        let command = launch.command(None).await.unwrap();
        let given = |name: &str| command.as_std().get_envs().find(|(known, _)| *known == name).map(|(_, value)| value);
        assert_eq!(given("CREDENTIALS_DIRECTORY"), Some(None), "not inherited");
        assert_eq!(given("NOTIFY_SOCKET"), Some(None));
        assert_eq!(given("WATCHDOG_USEC"), Some(Some("its own".as_ref())), "what is configured wins (104)");
    }
}
