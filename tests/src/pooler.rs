//! PgBouncer before the private PostgreSQL server, lending connections by the transaction, each time another one: whatever
//! relies on the state of a session fails there (FAILURES 20).

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::daemon::free_port;
use crate::postgres::{self, find_account, is_owned_by_root};

/// Ends PgBouncer when standard input does, however the test process ends. `$1` program, `$2` directory.
const SCRIPT: &str = r#"
cd "$2" || exit 1
"$1" -q pgbouncer.ini >log 2>&1 </dev/null &
pooler=$!
read -r _
kill -INT "$pooler" 2>/dev/null
wait "$pooler"
rm -rf "$2"
"#;

/// A running PgBouncer.
#[derive(Debug)]
pub struct Pooler {
    port: u16,
    _child: Child,
    _lifeline: ChildStdin,
}

/// The pooler of this test process, started on first use; `None` where there is none, or no server of our own to put it before.
pub fn pooler() -> Option<&'static Pooler> {
    static POOLER: OnceLock<Option<Pooler>> = OnceLock::new();
    let pooler = POOLER.get_or_init(|| Pooler::start("extra_float_digits,options"));
    if pooler.is_none() {
        eprintln!("not tested: there is no PgBouncer (`apt-get install -y pgbouncer`), or TEST_DATABASE_URL is set");
    }
    pooler.as_ref()
}

impl Pooler {
    /// A PgBouncer that ignores these parameters of a connection.
    pub fn start(ignored: &str) -> Option<Self> {
        let program = find_program()?;
        let server = postgres::server().socket_directory()?;
        let directory = tempfile::Builder::new().prefix("taskd-pgbouncer-").tempdir().expect("a directory").keep();
        let port = free_port();
        let configuration = format!(
            "[databases]\n* = host={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 4\nserver_round_robin = 1\n\
             server_idle_timeout = 2\nmax_client_conn = 2000\nignore_startup_parameters = {ignored}\n",
            server.display()
        );
        std::fs::write(directory.join("pgbouncer.ini"), configuration).expect("its configuration");
        let mut command = Command::new("sh");
        command.arg("-c").arg(SCRIPT).arg("sh").arg(program).arg(&directory);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        // PgBouncer refuses to run as root, as the server does.
        if is_owned_by_root(&directory) {
            let (uid, gid) = find_account().expect("a `postgres` or `nobody` account");
            chown(&directory, Some(uid), Some(gid)).expect("the directory's new owner");
            command.uid(uid).gid(gid);
        }
        let mut child = command.spawn().expect("a shell");
        let lifeline = child.stdin.take().expect("its standard input");
        let started = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = std::fs::read_to_string(directory.join("log")).unwrap_or_default();
            assert!(started.elapsed() < Duration::from_secs(20), "PgBouncer does not answer: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(Self { port, _child: child, _lifeline: lifeline })
    }

    /// How to connect through it to a database of the private server.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

fn find_program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join("pgbouncer")).find(|program| program.is_file())
}
