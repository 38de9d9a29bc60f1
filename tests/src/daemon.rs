//! The daemon as a process: configured, started, stopped, killed, asked.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::fake::NATIVE_TOOL;

mod api;
pub use api::{Api, ApiError, ApiResult, has_ended, id_of};

/// How long a daemon may take to be ready, or to end after it was told to.
const PATIENCE: Duration = Duration::from_secs(40);
/// The variable in a daemon's environment that has [`Daemon::life`], for a header that tells servers who asks.
pub const LIFE: &str = "DAEMON_LIFE";
/// How many of the last lines of a log a failed test shows.
const LOG_LINES: usize = 200;

/// A folder with the two configuration files, for any number of daemons and commands; SQLite, polls every second and the
/// shortest lease unless told otherwise.
#[derive(Debug)]
pub struct Site {
    program: PathBuf,
    folder: TempDir,
    settings: Value,
    servers: Map<String, Value>,
    interceptors: Vec<Value>,
}

/// What a command that ran to its end has left.
#[derive(Debug, Clone)]
pub struct Output {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Standard output, after an exit with 0.
    pub fn success(self) -> String {
        assert_eq!(self.code, Some(0), "{}\n{}", self.stdout, self.stderr);
        self.stdout
    }
}

impl Site {
    /// A site for `program`: the member's `taskd-under-test`.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        let folder = tempfile::Builder::new().prefix("taskd-site-").tempdir().expect("a folder");
        let site = Self {
            program: program.into(),
            folder,
            settings: json!({}),
            servers: Map::new(),
            interceptors: Vec::new(),
        };
        let data = site.folder.path().join("data");
        let state = site.folder.path().join("state");
        site.set("database.sqlite_dir", data.to_str())
            .set("server.state_dir", state.to_str())
            // Whoever starts a daemon chooses its port; a start that is to fail must not find the usual one taken.
            .set("server.listen", "127.0.0.1:0")
            .set("mcp_tasks.poll_interval_seconds", 1)
            .set("mcp_tasks.lease_seconds", 5)
            .set("mcp_tasks.max_poll_backoff_seconds", 2)
            .set("mcp_tasks.input_required_poll_interval_seconds", 5)
    }

    /// Sets a dotted key of `config.yaml`.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        let place = key.split('.').fold(&mut self.settings, |place, part| &mut place[part]);
        *place = value.into();
        self
    }

    /// On a PostgreSQL database instead of a SQLite file.
    #[must_use]
    pub fn postgres(self, url: &str) -> Self {
        self.set("database.backend", "postgres").set("database.postgres_url", url)
    }

    /// Adds a fake server with its usual toolset, `report`.
    #[must_use]
    pub fn server(self, name: &str, url: &str) -> Self {
        self.server_with(name, url, false, json!({}))
    }

    /// Adds a fake server; `idempotent` says whether submits may be repeated, `more` has further keys of the server.
    #[must_use]
    pub fn server_with(mut self, name: &str, url: &str, idempotent: bool, more: Value) -> Self {
        let mut server = json!({
            "type": "http",
            "url": url,
            "task_toolsets": [{
                "name": "report",
                "submit_tool": "submit_report",
                "status_tool": "get_report_status",
                "cancel_tool": "cancel_report",
                "input_tool": "send_report_input",
                "idempotent_submit": idempotent,
            }],
        });
        if let (Value::Object(server), Value::Object(more)) = (&mut server, more) {
            server.extend(more);
        }
        self.servers.insert(name.to_owned(), server);
        self
    }

    /// Adds a fake server whose toolset `report` is a native one.
    #[must_use]
    pub fn native_server(self, name: &str, url: &str, idempotent: bool, mut more: Value) -> Self {
        more["task_toolsets"] = json!([{
            "name": "report",
            "submit_tool": NATIVE_TOOL,
            "driver": "native",
            "idempotent_submit": idempotent,
        }]);
        self.server_with(name, url, idempotent, more)
    }

    /// Adds an entry to `mcpInterceptors`.
    #[must_use]
    pub fn interceptor(mut self, entry: Value) -> Self {
        self.interceptors.push(entry);
        self
    }

    /// Where everything lies.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Leaves the folder behind.
    #[must_use]
    pub fn kept(mut self) -> Self {
        self.folder.disable_cleanup(true);
        self
    }

    /// A daemon with a state directory of its own, named like itself.
    pub fn daemon(&self, name: &str) -> Daemon {
        self.daemon_in(name, name)
    }

    /// A daemon whose state directory may be another's too.
    pub fn daemon_in(&self, name: &str, state: &str) -> Daemon {
        let port = free_port();
        let state = self.path().join(state);
        let mut arguments = vec!["serve".to_owned()];
        arguments.extend(self.files());
        arguments.extend(["--set".to_owned(), format!("server.listen=127.0.0.1:{port}")]);
        arguments.extend(["--set".to_owned(), format!("server.state_dir={}", state.display())]);
        Daemon {
            api: Api::new(&format!("http://127.0.0.1:{port}")),
            name: name.to_owned(),
            program: self.program.clone(),
            arguments,
            folder: self.path().to_owned(),
            log: self.path().join(format!("{name}.log")),
            environment: Vec::new(),
            lives: 0,
            child: None,
        }
    }

    /// Writes the files; the flags that name them.
    fn files(&self) -> [String; 4] {
        // Every JSON document is a YAML document.
        let config = self.file("config.yaml", &format!("{:#}\n", self.settings));
        let extensions = json!({"mcpServers": self.servers, "mcpInterceptors": self.interceptors});
        let extensions = self.file("extensions_config.json", &format!("{extensions:#}\n"));
        ["--config".to_owned(), config, "--extensions-config".to_owned(), extensions]
    }

    /// Writes a file unless it is as it should be: a process that starts just now may be reading it.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.path().join(name);
        if std::fs::read_to_string(&path).ok().as_deref() != Some(text) {
            std::fs::write(&path, text).expect("a file in the site's folder");
        }
        path.to_str().expect("a plain path").to_owned()
    }

    /// A command on the same configuration, ready to be spawned.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.command_of(&self.program, arguments)
    }

    fn command_of(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = plain(program, self.path());
        command.args(arguments).args(self.files());
        command
    }

    /// Runs a command on the same configuration to its end.
    pub async fn run(&self, arguments: &[&str]) -> Output {
        finish(self.command(arguments), "").await
    }

    /// The same by another program, such as another version's.
    pub async fn run_as(&self, program: &Path, arguments: &[&str]) -> Output {
        finish(self.command_of(program, arguments), "").await
    }

    /// Runs a command without any configuration, in `folder`.
    pub async fn run_in(&self, folder: &Path, arguments: &[&str]) -> Output {
        let mut command = plain(&self.program, folder);
        command.args(arguments);
        finish(command, "").await
    }

    /// Brings a database's schema up to date, as an operator does.
    pub async fn migrate(&self) {
        self.run(&["migrate", "up"]).await.success();
    }
}

/// A command whose environment has nothing to configure it.
fn plain(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).env_clear().kill_on_drop(true).stdin(Stdio::null());
    for name in ["PATH", "TMPDIR", "MCP_TASKD_LOG", "RUST_BACKTRACE", "LLVM_PROFILE_FILE"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// Runs a command with `input` to its end.
pub async fn finish(mut command: Command, input: &str) -> Output {
    let piped = || Stdio::piped();
    let mut child = command.stdin(piped()).stdout(piped()).stderr(piped()).spawn().expect("a process");
    let mut stdin = child.stdin.take().expect("its input");
    // A command that does not read its input may be gone before it is written.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
    let output = output.unwrap_or_else(|_| panic!("{command:?} does not end")).expect("a status");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Output { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A free port that neither the system nor an outgoing connection takes while a daemon is down: below their range.
pub fn free_port() -> u16 {
    static TAKEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    let mut taken = TAKEN.lock().expect("unpoisoned");
    loop {
        let port = fastrand::u16(15_000..32_000);
        if !taken.contains(&port) && std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            taken.push(port);
            return port;
        }
    }
}

/// A daemon; it is killed when it is dropped, and its log is shown if that is because a test failed.
#[derive(Debug)]
pub struct Daemon {
    /// How to ask it.
    pub api: Api,
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    folder: PathBuf,
    log: PathBuf,
    environment: Vec<(String, String)>,
    lives: u32,
    child: Option<Child>,
}

impl Daemon {
    /// Sets a variable of its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A daemon without any configuration but for where it listens, in `folder`.
    pub fn unconfigured(program: impl Into<PathBuf>, folder: &Path) -> Self {
        let port = free_port();
        Self {
            api: Api::new(&format!("http://127.0.0.1:{port}")),
            name: "unconfigured".to_owned(),
            program: program.into(),
            arguments: vec!["--set".to_owned(), format!("server.listen=127.0.0.1:{port}")],
            folder: folder.to_owned(),
            log: folder.with_extension("log"),
            environment: Vec::new(),
            lives: 0,
            child: None,
        }
    }

    /// Runs another program, such as another version's.
    #[must_use]
    pub fn of(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = program.into();
        self
    }

    /// What it is started as from the next start on.
    pub fn replace(&mut self, program: &Path) {
        program.clone_into(&mut self.program);
    }

    /// Adds arguments, such as `--role worker`.
    #[must_use]
    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Starts it; it need not be ready yet.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.name);
        let log = std::fs::File::options().create(true).append(true).open(&self.log).expect("a log");
        let mut command = plain(&self.program, &self.folder);
        self.lives += 1;
        command
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .env(LIFE, self.life())
            .stdout(Stdio::null())
            .stderr(log);
        self.child = Some(command.spawn().expect("a process"));
    }

    /// Starts it and waits until it is ready; how long that took.
    pub async fn start(&mut self) -> Duration {
        let started = Instant::now();
        self.spawn();
        while !self.api.is_ready().await {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().expect("a status"));
            assert!(ended.is_none(), "{} ended with {ended:?}", self.name);
            assert!(started.elapsed() < PATIENCE, "{} is not ready", self.name);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        started.elapsed()
    }

    /// Its name and how often it was started.
    pub fn life(&self) -> String {
        format!("{}#{}", self.name, self.lives)
    }

    /// Whether it was started, and not seen to end since.
    pub fn runs(&self) -> bool {
        self.child.is_some()
    }

    /// Its status, where it has ended by itself; it can be started again then.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().expect("a status")?;
        self.child = None;
        Some(status)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().and_then(Child::id).expect("it runs")
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().cast_signed()).expect("a process id");
        kill_process(pid, signal).expect("the process is there");
    }

    /// `kill -9`.
    pub async fn kill9(&mut self) {
        self.signal(Signal::KILL);
        self.wait().await;
    }

    /// `kill -STOP`.
    pub fn sigstop(&self) {
        self.signal(Signal::STOP);
    }

    /// `kill -CONT`.
    pub fn sigcont(&self) {
        self.signal(Signal::CONT);
    }

    /// `kill -TERM`.
    pub fn sigterm(&self) {
        self.signal(Signal::TERM);
    }

    /// Waits until it has ended.
    pub async fn wait(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it runs");
        let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
        ended.unwrap_or_else(|_| panic!("{} does not end", self.name)).expect("a status")
    }

    /// SIGTERM and the wait for its end; how long that took.
    pub async fn stop(&mut self) -> Duration {
        let started = Instant::now();
        self.sigterm();
        let status = self.wait().await;
        assert!(status.success(), "{} ended with {status}", self.name);
        started.elapsed()
    }

    /// What it has logged so far, over all its lives.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
            eprintln!("---- the log of {} ends so:\n{}\n----", self.name, last.join("\n"));
        }
    }
}
