//! Two versions of the program in one fleet: upgraded, rolled back, killed. `OLDER_PROGRAM` is the program of the version
//! before, as a release is tried with; without it the same program plays both parts, on a schema that it takes for a newer one's.
//!
//! ```sh
//! OLDER_PROGRAM=/usr/local/bin/mcp-taskd cargo test -p mcp-taskd-tests --test scenarios upgrade:: -- --nocapture
//! ```

use std::collections::HashMap;
use std::path::PathBuf;

use mcp_taskd_tests::daemon::{Api, ApiError, Daemon, Site, has_ended, id_of};
use mcp_taskd_tests::fake::FakeServer;
use mcp_taskd_tests::postgres::{self, TestDatabase};
use mcp_taskd_tests::wait::{PATIENCE, until, until_within};
use serde_json::json;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tokio_util::sync::CancellationToken;

use crate::{PROGRAM, audit, fake, site};

/// How many tasks are under way at a time.
const TASKS: usize = 20;
/// A migration that no program knows.
const FUTURE: &str = "INSERT INTO schema_migrations (version, name, applied_at) VALUES (999, '0999_future', 0)";

fn older() -> PathBuf {
    std::env::var_os("OLDER_PROGRAM").map_or_else(|| PROGRAM.into(), PathBuf::from)
}

/// A store that the newer program has migrated, and a server.
struct Fleet {
    site: Site,
    fake: FakeServer,
    _database: Option<TestDatabase>,
}

impl Fleet {
    async fn sqlite() -> Self {
        let fake = fake().await;
        let site = site().server("s", &fake.url);
        let mut daemon = site.daemon("migrates");
        daemon.start().await;
        daemon.stop().await;
        let file = SqliteConnectOptions::new().filename(site.path().join("data/mcp-taskd.sqlite3"));
        let mut connection = SqliteConnection::connect_with(&file).await.unwrap();
        if older().as_os_str() == PROGRAM {
            sqlx::raw_sql(FUTURE).execute(&mut connection).await.unwrap();
        }
        connection.close().await.unwrap();
        Self { site, fake, _database: None }
    }

    async fn postgres() -> Self {
        let database = postgres::database().await;
        let fake = fake().await;
        let site = site().postgres(database.url()).server("s", &fake.url);
        site.migrate().await;
        if older().as_os_str() == PROGRAM {
            let mut connection = PgConnection::connect(database.url()).await.unwrap();
            sqlx::raw_sql(FUTURE).execute(&mut connection).await.unwrap();
        }
        Self { site, fake, _database: Some(database) }
    }

    /// A replica of the version before.
    fn older(&self, name: &str) -> Daemon {
        self.site.daemon(name).of(older())
    }

    fn newer(&self, name: &str) -> Daemon {
        self.site.daemon(name)
    }
}

/// Submits tasks that run for four seconds; they are known by their ids.
async fn submit(api: &Api, tasks: &mut HashMap<String, String>) -> Vec<String> {
    let ids = api.submit_many("s", &json!({"run_ms": 4_000, "poll_after_seconds": 0.3}), TASKS).await;
    tasks.extend(ids.iter().map(|id| (id.clone(), id.clone())));
    ids
}

async fn both_hold_some(one: &Daemon, other: &Daemon) {
    until("both hold some of the tasks", || async {
        one.api.count("leases_held", &[]).await > 2 && other.api.count("leases_held", &[]).await > 2
    })
    .await;
}

/// Both submit; each cancels what the other submitted; `killed` is killed with tasks in hand, and `survivor` finishes them.
async fn one_is_killed_and_the_other_finishes(fleet: &Fleet, killed: &mut Daemon, survivor: &mut Daemon) {
    let mut tasks = HashMap::new();
    let of_killed = submit(&killed.api, &mut tasks).await;
    let of_survivor = submit(&survivor.api, &mut tasks).await;
    both_hold_some(killed, survivor).await;
    survivor.api.cancel(&of_killed[0]).await.unwrap();
    killed.api.cancel(&of_survivor[0]).await.unwrap();
    for id in [&of_killed[0], &of_survivor[0]] {
        until("it has ended", || async { has_ended(&survivor.api.task(id).await.unwrap()) }).await;
    }
    killed.kill9().await;
    until_within("every task ends", PATIENCE, || audit::all_ended(&survivor.api, tasks.len())).await;
    audit::ended_once(&survivor.api).await;
    let rows = audit::details(&survivor.api).await;
    let findings = audit::examine(&survivor.api, &rows, &[("s", &fleet.fake)], tasks.values()).await;
    findings.assert_none();
}

async fn each_takes_over_from_the_other(fleet: Fleet) {
    let (mut older, mut newer) = (fleet.older("older"), fleet.newer("newer"));
    tokio::join!(older.start(), newer.start());
    one_is_killed_and_the_other_finishes(&fleet, &mut older, &mut newer).await;
    older.start().await;
    one_is_killed_and_the_other_finishes(&fleet, &mut newer, &mut older).await;
    older.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_versions_on_one_sqlite_file_take_over_from_each_other_21() {
    each_takes_over_from_the_other(Fleet::sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_versions_on_one_postgres_database_take_over_from_each_other_21() {
    each_takes_over_from_the_other(Fleet::postgres().await).await;
}

/// Submits until told to end, through whichever replica answers; the keys and the tasks.
async fn submit_steadily(replicas: [Api; 2], ended: CancellationToken) -> HashMap<String, String> {
    let mut tasks = HashMap::new();
    let script = json!({"run_ms": 1_500, "poll_after_seconds": 0.3});
    for number in 0.. {
        if ended.is_cancelled() {
            break;
        }
        let key = format!("key-{number}");
        // With the same key, so that what a replica took and could not answer is not submitted twice.
        for api in replicas.iter().cycle().skip(number % 2) {
            match api.submit("s", &script, Some(&key)).await {
                Ok(task) => {
                    tasks.insert(key, id_of(&task));
                    break;
                }
                Err(ApiError::Unreachable(_) | ApiError::Refused(503, _)) => {
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
                Err(error) => panic!("{key} was refused: {error}"),
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    tasks
}

/// The order of docs/OPERATIONS.md: the schema first, while the old version runs; then one replica after another; and back.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_is_upgraded_and_rolled_back_replica_by_replica_without_a_loss_21() {
    let fleet = Fleet::postgres().await;
    let mut replicas = [fleet.older("one"), fleet.older("two")];
    for replica in &mut replicas {
        replica.start().await;
    }
    let ended = CancellationToken::new();
    let apis = [replicas[0].api.clone(), replicas[1].api.clone()];
    let submitting = tokio::spawn(submit_steadily(apis, ended.clone()));
    for program in [PathBuf::from(PROGRAM), older()] {
        for replica in &mut replicas {
            replica.stop().await;
            replica.replace(&program);
            replica.start().await;
            until("it has its share", || async { replica.api.count("leases_held", &[]).await > 2 }).await;
        }
    }
    ended.cancel();
    let tasks = submitting.await.unwrap();
    let [one, two] = &mut replicas;
    until_within("every task ends", PATIENCE, || audit::all_ended(&one.api, tasks.len())).await;
    eprintln!("{} tasks over two versions and back", tasks.len());
    audit::matches_the_truth(&one.api, &[("s", &fleet.fake)], &tasks).await;
    one.stop().await;
    two.stop().await;
}

/// The schema of the next version is none to wait for, to refuse or to change.
#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_older_version_accept_the_newer_schema_21_157() {
    for fleet in [Fleet::sqlite().await, Fleet::postgres().await] {
        let run = async |arguments: &[&str]| fleet.site.run_as(&older(), arguments).await.success();
        assert_eq!(run(&["migrate", "up"]).await, "the schema is up to date\n");
        let status = run(&["migrate", "status"]).await;
        let number = |name: &str| -> i64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
            line.trim().parse().expect("a number")
        };
        assert!(number("applied") > number("known"), "{status}");
        assert_eq!(run(&["tasks", "list", "--output", "jsonl"]).await, "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_older_than_the_schema_says_so_and_works_21_157() {
    let database = postgres::database().await;
    let site = site().postgres(database.url()).server("s", "http://127.0.0.1:9/mcp");
    site.migrate().await;
    let mut daemon = site.daemon("taskd");
    daemon.start().await;
    assert!(!daemon.log().contains("newer"), "{}", daemon.log());
    daemon.stop().await;
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    sqlx::raw_sql(FUTURE).execute(&mut connection).await.unwrap();
    daemon.start().await;
    assert!(daemon.log().contains("the schema is of a newer version"), "{}", daemon.log());
    daemon.stop().await;
    let doctor = site.run(&["doctor"]).await;
    assert!(doctor.stdout.contains("version 999, of a newer version"), "{}", doctor.stdout);
}
