//! The daemons of a run, and what is done to them.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::database::{Database, NAME};
use super::fault::{Fault, Ground, Step};
use crate::daemon::{Api, Daemon, LIFE, Site};
use crate::fake::{CALLER, FakeServer, NATIVE_TOOL};
use crate::freeze::Frozen;
use crate::postgres::Server;
use crate::proxy::{Network, Proxy};

/// How long a call is waited for that is to be held open.
const CALL_PATIENCE: Duration = Duration::from_secs(4);
/// Exit codes of a daemon that gives up and expects to be started again: the store is unavailable, or something temporary.
const GAVE_UP: [i32; 2] = [69, 75];

/// Daemons on one store.
#[derive(Debug)]
pub(super) struct Fleet {
    daemons: Vec<Daemon>,
    /// One for each daemon, where the store is behind a network.
    networks: Vec<Proxy>,
    database: Database,
    site: Site,
    /// Daemons that were started again.
    pub(super) restarts: u64,
    /// Daemons that gave up by themselves, as they may where the store is away.
    pub(super) gave_up: u64,
    /// Ends that no daemon should come to.
    pub(super) wrong_ends: Vec<String>,
}

impl Fleet {
    /// Starts `count` daemons on a store of their own; `servers` are idempotent or not.
    pub(super) async fn start(
        program: PathBuf,
        ground: Ground,
        count: usize,
        servers: &[(&str, &FakeServer, bool)],
    ) -> Self {
        let mut site =
            Site::new(program).set("mcp_tasks.max_concurrent_polls", 64).set("server.shutdown_grace_seconds", 6);
        for (name, server, idempotent) in servers {
            let headers = json!({"headers": {CALLER: format!("${LIFE}")}});
            site = if server.state.core.has_native_tasks() {
                site.native_server(name, &server.url, *idempotent, headers)
            } else {
                site.server_with(name, &server.url, *idempotent, headers)
            };
        }
        let mut networks = Vec::new();
        let (site, database) = match ground {
            Ground::Sqlite => {
                let file = site.path().join("data/mcp-taskd.sqlite3");
                (site, Database::Sqlite(file))
            }
            Ground::Postgres => {
                let server = Server::private().expect("PostgreSQL: `apt-get install -y postgresql`");
                server.create(NAME).await;
                for _ in 0..count {
                    networks.push(Proxy::start(&server.url(NAME)).await);
                }
                let site = site.postgres(&server.url(NAME));
                site.migrate().await;
                (site, Database::Postgres(server))
            }
        };
        let mut daemons: Vec<_> = (0..count).map(|number| daemon(&site, number, networks.get(number))).collect();
        for daemon in &mut daemons {
            daemon.start().await;
        }
        Self { daemons, networks, database, site, restarts: 0, gave_up: 0, wrong_ends: Vec::new() }
    }

    /// Keeps the folder with everybody's logs.
    #[must_use]
    pub(super) fn kept(mut self) -> Self {
        self.site = self.site.kept();
        self
    }

    /// Where everything lies.
    pub(super) fn folder(&self) -> PathBuf {
        self.site.path().to_owned()
    }

    /// How many daemons there are.
    pub(super) fn count(&self) -> usize {
        self.daemons.len()
    }

    /// How to ask each.
    pub(super) fn apis(&self) -> Vec<Api> {
        self.daemons.iter().map(|daemon| daemon.api.clone()).collect()
    }

    /// Does what a step says, to the end of the fault; who is down then is for [`Fleet::revive`].
    pub(super) async fn suffer(&mut self, step: &Step, servers: &[&FakeServer]) {
        match step.fault {
            Fault::Kill { victim, down } => {
                self.kill(victim).await;
                sleep(Duration::from_millis(down)).await;
            }
            Fault::KillAll { down } => {
                for victim in 0..self.daemons.len() {
                    self.kill(victim).await;
                }
                sleep(Duration::from_millis(down)).await;
            }
            Fault::KillInCall { tool, executed } => self.kill_in_call(tool, executed, servers).await,
            Fault::Desert => {
                let journals = servers.iter().filter_map(|server| server.state.journal().pop());
                let latest = journals.max_by_key(|called| called.at);
                self.kill_caller(latest.and_then(|called| called.caller)).await;
            }
            Fault::Freeze { victim, time } => {
                let frozen = self.daemons[victim].runs().then(|| Frozen::new(self.daemons[victim].pid()));
                self.meanwhile(time, step).await;
                drop(frozen);
            }
            Fault::Drain { victim } => self.drain(victim).await,
            Fault::StopDatabase { orderly, down } => {
                self.database.stop(orderly);
                self.meanwhile(down, step).await;
                self.database.resume().await;
            }
            Fault::Disconnect { all } => {
                self.database.disconnect(all).await;
                self.meanwhile(0, step).await;
            }
            Fault::Lock { on, time } => {
                let held = self.database.lock(on).await;
                self.meanwhile(time, step).await;
                held.release().await;
            }
            Fault::ReadOnly { time } => {
                self.database.set_read_only(true).await;
                self.meanwhile(time, step).await;
                self.database.set_read_only(false).await;
            }
            Fault::Cut { victim, network, time } => {
                self.networks[victim].set(network);
                self.meanwhile(time, step).await;
                self.networks[victim].set(Network::Up);
            }
        }
    }

    /// While a fault lasts: somebody may be killed in the middle of it.
    async fn meanwhile(&mut self, time: u64, step: &Step) {
        sleep(Duration::from_millis(time / 2)).await;
        if let Some(victim) = step.also_killed {
            self.kill(victim).await;
            self.revive();
        }
        sleep(Duration::from_millis(time / 2)).await;
    }

    async fn kill(&mut self, victim: usize) {
        self.take_note(victim);
        let daemon = &mut self.daemons[victim];
        if daemon.runs() {
            daemon.kill9().await;
        }
    }

    async fn kill_in_call(&mut self, tool: &'static str, executed: bool, servers: &[&FakeServer]) {
        let arm = |server: &&FakeServer| {
            let core = &server.state.core;
            server.state.gates.arm(if core.has_native_tasks() { in_native_tasks(tool) } else { tool }, executed)
        };
        let mut gates: Vec<_> = servers.iter().map(arm).collect();
        let calls = gates.iter_mut().map(|gate| Box::pin(gate.caught()));
        let caught = tokio::time::timeout(CALL_PATIENCE, futures_util::future::select_all(calls)).await;
        let caller = caught.ok().and_then(|(called, ..)| called).and_then(|called| called.caller);
        self.kill_caller(caller).await;
        drop(gates);
    }

    /// Without a caller somebody is killed all the same.
    async fn kill_caller(&mut self, caller: Option<String>) {
        let victim = self.daemons.iter().position(|daemon| Some(daemon.life()) == caller).unwrap_or(0);
        self.kill(victim).await;
    }

    async fn drain(&mut self, victim: usize) {
        self.take_note(victim);
        let daemon = &mut self.daemons[victim];
        if daemon.runs() {
            daemon.sigterm();
            let status = daemon.wait().await;
            if !status.success() {
                self.wrong_ends.push(format!("{} ended its drain with {status}", daemon.life()));
            }
        }
    }

    /// Starts whoever is down.
    pub(super) fn revive(&mut self) {
        for number in 0..self.daemons.len() {
            self.take_note(number);
            if !self.daemons[number].runs() {
                self.daemons[number].spawn();
                self.restarts += 1;
            }
        }
    }

    /// Notes whether a daemon has ended by itself.
    fn take_note(&mut self, number: usize) {
        let daemon = &mut self.daemons[number];
        let Some(status) = daemon.ended() else { return };
        if status.code().is_some_and(|code| GAVE_UP.contains(&code)) {
            self.gave_up += 1;
        } else {
            self.wrong_ends.push(format!("{} ended with {status}", daemon.life()));
        }
    }

    /// Whether every daemon is ready.
    pub(super) async fn is_ready(&self) -> bool {
        let ready = futures_util::future::join_all(self.daemons.iter().map(|daemon| daemon.api.is_ready())).await;
        ready.into_iter().all(|ready| ready)
    }

    /// Ends the daemons as an operator does, and puts the database's log beside theirs.
    pub(super) async fn stop(&mut self) {
        for victim in 0..self.daemons.len() {
            self.drain(victim).await;
        }
        if let Database::Postgres(server) = &self.database {
            std::fs::write(self.site.path().join("postgres.log"), server.log()).expect("a file in the site's folder");
        }
    }
}

/// Daemons on PostgreSQL are as on machines of their own; those on a file share a machine, and its state directory.
fn daemon(site: &Site, number: usize, network: Option<&Proxy>) -> Daemon {
    let name = format!("daemon-{number}");
    match network {
        None => site.daemon_in(&name, "state"),
        Some(network) => {
            let url = format!("database.postgres_url={}", network.url());
            site.daemon(&name).with(&["--set", &url])
        }
    }
}

/// What a call of an ordinary tool is where tasks are native.
fn in_native_tasks(tool: &'static str) -> &'static str {
    match tool {
        "submit_report" => NATIVE_TOOL,
        "cancel_report" => "tasks/cancel",
        _ => "tasks/get",
    }
}
