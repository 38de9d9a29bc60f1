//! Short schedules of faults, drawn from a seed that a failure prints.

use std::time::Duration;

use mcp_taskd_tests::chaos::{self, Ground, Plan};

use crate::PROGRAM;

async fn nothing_is_lost(ground: Ground, daemons: usize) {
    let plan = Plan {
        program: PROGRAM.into(),
        ground,
        daemons,
        kills: 5,
        time: Duration::from_secs(9),
        // Other tests run beside these.
        recovery: chaos::RECOVERY * 3,
        seed: fastrand::u64(..1_000_000),
        verbose: false,
    };
    let report = chaos::run(plan).await;
    eprintln!("{report}");
    assert!(report.violations().is_empty(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn three_daemons_on_postgres_lose_nothing_whatever_fails_1_4_22_23_31_32_36_40() {
    nothing_is_lost(Ground::Postgres, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_on_sqlite_loses_nothing_when_it_is_killed_in_its_calls_4_32() {
    nothing_is_lost(Ground::Sqlite, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_daemons_on_one_file_lose_nothing_when_they_are_killed_in_their_calls_4_17_32() {
    nothing_is_lost(Ground::Sqlite, 2).await;
}
