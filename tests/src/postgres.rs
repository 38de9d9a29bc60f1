//! A private PostgreSQL server for each test process, and a fresh database for each test.
//!
//! The server is started by a shell that waits on a pipe which only the test process holds: however the process ends, the pipe
//! closes, and the shell stops the server and removes its directory. `TEST_DATABASE_URL` names a running server instead.

use std::io::Write as _;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

/// How long a server may take from nothing to its first answer.
const START_TIMEOUT: Duration = Duration::from_mins(1);

/// Makes a cluster, runs a server on it, stops and starts it as the lines on standard input say, and ends it when those do.
/// `$1` programs, `$2` directory.
const SCRIPT: &str = r#"
bin=$1; dir=$2; cd "$dir" || exit 1
"$bin/initdb" -D data -U postgres -A trust -E UTF8 --locale=C --no-sync >log 2>&1 || exit 1
start() {
    "$bin/postgres" -D data -k "$dir" -c listen_addresses= -c fsync=off -c full_page_writes=off -c max_connections=300 \
        -c deadlock_timeout=100ms >>log 2>&1 </dev/null &
    postgres=$!
}
stop() {
    kill -"$1" "$postgres" 2>/dev/null
    wait "$postgres"
}
start
while read -r word signal; do "$word" "$signal"; done
stop QUIT
rm -rf "$dir"
"#;

/// A running server.
#[derive(Debug)]
pub struct Server {
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Started here, with its socket and its data in this directory.
    Private {
        directory: PathBuf,
        child: Mutex<Child>,
        /// What the shell waits on.
        lifeline: Mutex<ChildStdin>,
    },
    /// Named by `TEST_DATABASE_URL`.
    Given(String),
}

/// The server of this test process, started on first use.
pub fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(Server::start)
}

/// A fresh, empty database.
///
/// Panics with the command that installs PostgreSQL where there is none.
pub async fn database() -> TestDatabase {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let server = server();
    let name = format!("taskd_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    server.create(&name).await;
    TestDatabase { url: server.url(&name), name, given: matches!(server.place, Place::Given(_)) }
}

/// A database of one test's own.
#[derive(Debug)]
pub struct TestDatabase {
    name: String,
    url: String,
    given: bool,
}

impl TestDatabase {
    /// How to connect to it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        // A private server takes its databases with it.
        if !self.given {
            return;
        }
        let name = self.name.clone();
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let mut admin = server().ready().await;
                let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                sqlx::query(AssertSqlSafe(drop)).execute(&mut admin).await
            })
        });
        let _ = dropped.join();
    }
}

impl Server {
    fn start() -> Self {
        if let Ok(url) = std::env::var("TEST_DATABASE_URL") {
            return Self { place: Place::Given(url) };
        }
        Self::private().unwrap_or_else(|| {
            panic!("no PostgreSQL server found: `apt-get install -y postgresql`, or set TEST_DATABASE_URL")
        })
    }

    /// A server of the caller's own, that it may stop; `None` where there are no programs to start one.
    pub fn private() -> Option<Self> {
        let programs = find_programs()?;
        let directory = tempfile::Builder::new().prefix("taskd-pg-").tempdir().expect("a directory").keep();
        let mut command = Command::new("sh");
        command.arg("-c").arg(SCRIPT).arg("sh").arg(&programs).arg(&directory);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // A group of its own: an interrupt from the terminal must not end the shell before it has cleaned up.
        command.process_group(0);
        // PostgreSQL refuses to run as root.
        if is_owned_by_root(&directory) {
            let (uid, gid) = find_account().expect("a `postgres` or `nobody` account");
            chown(&directory, Some(uid), Some(gid)).expect("the directory's new owner");
            command.uid(uid).gid(gid);
        }
        let mut child = command.spawn().expect("a shell");
        let lifeline = child.stdin.take().expect("its standard input");
        Some(Self { place: Place::Private { directory, child: Mutex::new(child), lifeline: Mutex::new(lifeline) } })
    }

    /// Stops a private server at once, as a crash of it does; [`Server::resume`] starts it again.
    pub fn crash(&self) {
        self.tell("stop QUIT");
    }

    /// Stops a private server as an operator does: sessions are ended, what is committed is written out.
    pub fn shut_down(&self) {
        self.tell("stop INT");
    }

    /// Starts a private server that was stopped.
    pub fn resume(&self) {
        self.tell("start");
    }

    fn tell(&self, word: &str) {
        let Place::Private { lifeline, .. } = &self.place else {
            panic!("TEST_DATABASE_URL's server is not ours to stop")
        };
        writeln!(lifeline.lock().expect("unpoisoned"), "{word}").expect("the shell listens");
    }

    /// Creates a database.
    pub async fn create(&self, name: &str) {
        let mut admin = self.ready().await;
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}")))
            .execute(&mut admin)
            .await
            .expect("a new database");
        admin.close().await.expect("closed");
    }

    /// The postmaster's process id; `None` for a server that was not started here, or is down.
    pub fn pid(&self) -> Option<i32> {
        let Place::Private { directory, .. } = &self.place else { return None };
        std::fs::read_to_string(directory.join("data/postmaster.pid")).ok()?.lines().next()?.trim().parse().ok()
    }

    /// The directory of a private server's socket.
    pub(crate) fn socket_directory(&self) -> Option<PathBuf> {
        let Place::Private { directory, .. } = &self.place else { return None };
        Some(directory.clone())
    }

    /// How to connect to a database of this server.
    pub fn url(&self, database: &str) -> String {
        match &self.place {
            Place::Private { directory, .. } => {
                let host = directory.display().to_string().replace('/', "%2F");
                format!("postgres://postgres@localhost/{database}?host={host}")
            }
            Place::Given(url) => {
                let options = PgConnectOptions::from_str(url).expect("TEST_DATABASE_URL");
                options.database(database).to_url_lossy().to_string()
            }
        }
    }

    /// A connection to the server's own database, once it answers.
    pub async fn ready(&self) -> PgConnection {
        let started = Instant::now();
        let url = match &self.place {
            Place::Private { .. } => self.url("postgres"),
            Place::Given(url) => url.clone(),
        };
        loop {
            let error = match PgConnection::connect(&url).await {
                Ok(connection) => return connection,
                Err(error) => error,
            };
            let ended = match &self.place {
                Place::Private { child, .. } => {
                    child.lock().expect("unpoisoned").try_wait().expect("a status").is_some()
                }
                Place::Given(_) => false,
            };
            assert!(!ended && started.elapsed() < START_TIMEOUT, "PostgreSQL does not answer: {error}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        match &self.place {
            Place::Private { directory, .. } => std::fs::read_to_string(directory.join("log")).unwrap_or_default(),
            Place::Given(_) => String::new(),
        }
    }
}

/// A directory with the server's programs, from the search path or from where Debian keeps them; the newest there.
pub fn find_programs() -> Option<PathBuf> {
    let complete = |directory: &Path| ["initdb", "postgres"].iter().all(|name| directory.join(name).is_file());
    let path = std::env::var_os("PATH").unwrap_or_default();
    // What lies on the path may be a link to one of several versions.
    let linked = |directory: PathBuf| directory.join("postgres").canonicalize().ok()?.parent().map(Path::to_owned);
    if let Some(found) = std::env::split_paths(&path).filter_map(linked).find(|directory| complete(directory)) {
        return Some(found);
    }
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            Some((path.file_name()?.to_str()?.parse().ok()?, path.join("bin")))
        })
        .filter(|(_, directory)| complete(directory))
        .collect();
    versions.sort();
    versions.pop().map(|(_, directory)| directory)
}

pub(crate) fn is_owned_by_root(directory: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    directory.metadata().is_ok_and(|metadata| metadata.uid() == 0)
}

/// User and group of an unprivileged account.
pub(crate) fn find_account() -> Option<(u32, u32)> {
    let accounts = std::fs::read_to_string("/etc/passwd").ok()?;
    ["postgres", "nobody"].iter().find_map(|name| {
        accounts.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == *name).then_some(())?;
            Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
        })
    })
}
