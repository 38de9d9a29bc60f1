//! The lease protocol, explored exhaustively in small scopes.
//!
//! `store`, `worker`, `submit` and `server` are the parts, each an abstraction of the code that it names; `world` says what can
//! happen and what must hold; `recovery` turns "never lost" into a check of every state; `scope` bounds the exploration and
//! plants faults. A rule of the protocol that changes in the code changes here too.

#![expect(clippy::trivially_copy_pass_by_ref, reason = "a state's parts are read where they lie, whatever their size")]
#![expect(clippy::option_option, reason = "no answer yet, and an answer that there is no row")]

mod recovery;
mod scope;
mod server;
mod store;
mod submit;
mod worker;
mod world;

use stateright::{Checker as _, HasDiscoveries, Model as _};

use scope::{Scope, Variant};

const QUIET: Scope = Scope {
    workers: 2,
    submit: false,
    idempotent: false,
    losses: 0,
    crashes: 0,
    stalls: 0,
    cancels: 0,
    drains: 0,
    errors: 0,
    variant: None,
};

/// Explores everything, and fails with the shortest counterexample.
fn explore(name: &str, scope: Scope) {
    let checker = scope.checker().threads(2).spawn_bfs().join();
    println!("{name}: {} states, depth {}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

/// Explores until `property` is broken, and says how.
fn expect_broken(property: &'static str, scope: Scope) {
    let found = HasDiscoveries::AllOf([property].into());
    let checker = scope.checker().finish_when(found).spawn_bfs().join();
    let path = checker.discovery(property).unwrap_or_else(|| panic!("{:?} was not found", scope.variant));
    let actions = path.into_actions();
    println!("{:?} breaks \"{property}\" in {} steps: {actions:?}", scope.variant, actions.len());
}

#[test]
fn a_task_survives_lost_statements_dead_processes_and_a_cancel() {
    explore("lost", Scope { losses: 1, crashes: 1, cancels: 1, ..QUIET });
}

#[test]
fn a_task_survives_stalls_and_drains() {
    explore("stalled", Scope { losses: 1, stalls: 1, ..QUIET });
    explore("drained", Scope { losses: 1, drains: 1, ..QUIET });
}

#[test]
fn a_task_survives_failing_polls_and_letting_go() {
    explore("failing", Scope { errors: 1, cancels: 1, ..QUIET });
}

#[test]
fn three_workers_lose_nothing_between_them() {
    explore("three", Scope { workers: 3, stalls: 1, ..QUIET });
}

#[test]
fn a_submit_leaves_nothing_off_the_record() {
    let submit = Scope { submit: true, ..QUIET };
    explore("submit, lost and crashed", Scope { losses: 2, crashes: 1, ..submit });
    explore("submit, refused", Scope { losses: 1, errors: 1, ..submit });
}

#[test]
fn an_idempotent_submit_leaves_nothing_off_the_record() {
    let submit = Scope { submit: true, idempotent: true, ..QUIET };
    explore("idempotent submit, lost and crashed", Scope { losses: 1, crashes: 1, ..submit });
    explore("idempotent submit, cancelled", Scope { losses: 1, cancels: 1, ..submit });
}

/// The same with more at once: minutes, and a few gigabytes.
#[test]
#[ignore = "minutes: cargo test -p mcp-taskd-tests --test model -- --ignored --nocapture"]
fn nothing_is_lost_where_more_goes_wrong_at_once() {
    explore("failing", Scope { losses: 1, errors: 1, cancels: 1, stalls: 1, ..QUIET });
    explore("three", Scope { workers: 3, stalls: 1, crashes: 1, cancels: 1, ..QUIET });
    for idempotent in [false, true] {
        let submit = Scope { submit: true, idempotent, ..QUIET };
        explore("submit, lost and crashed", Scope { losses: 2, crashes: 1, ..submit });
        explore("submit, stalled", Scope { losses: 1, stalls: 1, cancels: 1, ..submit });
        explore("submit, drained", Scope { losses: 1, drains: 1, ..submit });
        explore("submit, cancelled", Scope { losses: 1, cancels: 1, crashes: 1, ..submit });
        // A crash between a refusal and the cancel of its handle is a known limit.
        explore("submit, refused", Scope { losses: 1, errors: 1, cancels: 1, ..submit });
    }
}

#[test]
fn a_guard_without_epoch_applies_a_poll_after_a_cancel() {
    let scope = Scope { losses: 1, cancels: 1, ..QUIET };
    expect_broken(world::NO_POLL_AFTER_CANCEL, Scope { variant: Some(Variant::GuardWithoutEpoch), ..scope });
}

#[test]
fn freeing_before_marking_dead_loses_a_late_claim() {
    let scope = Scope { losses: 1, stalls: 1, ..QUIET };
    expect_broken(world::NEVER_LOST, Scope { variant: Some(Variant::FreeBeforeMarkDead), ..scope });
}

#[test]
fn deleting_a_worker_that_is_named_loses_its_task() {
    let scope = Scope { crashes: 1, ..QUIET };
    expect_broken(world::NEVER_LOST, Scope { variant: Some(Variant::RowDeletedEarly), ..scope });
}

#[test]
fn a_lost_claim_answer_needs_reconciling() {
    let scope = Scope { losses: 1, ..QUIET };
    expect_broken(world::NEVER_LOST, Scope { variant: Some(Variant::NoReconcile), ..scope });
}

#[test]
fn a_blind_retry_is_overtaken_by_its_first_attempt() {
    let scope = Scope { losses: 1, ..QUIET };
    expect_broken(world::NOT_OVERTAKEN, Scope { variant: Some(Variant::BlindRetry), ..scope });
}

#[test]
fn early_compensation_cancels_a_tracked_task() {
    let scope = Scope { submit: true, losses: 1, ..QUIET };
    expect_broken(world::NOT_COMPENSATED, Scope { variant: Some(Variant::EarlyCompensation), ..scope });
}

#[test]
fn a_claim_that_does_not_look_whether_its_worker_lives_loses_the_task() {
    let scope = Scope { losses: 1, stalls: 1, ..QUIET };
    expect_broken(world::NEVER_LOST, Scope { variant: Some(Variant::ClaimWithoutLiveCheck), ..scope });
}
