//! Bad data: whatever a server, a file or the environment says, it is read to a verdict (FAILURES 26–28, BEHAVIOURS 28, 146, 151).
//!
//! Each target runs the texts of its corpus as they are, then edited ones: a thousand in an ordinary test run, and as many as
//! `BOLERO_RANDOM_ITERATIONS` says in a long one. An input that broke something goes into the corpus:
//!
//! ```sh
//! BOLERO_RANDOM_ITERATIONS=2000000 cargo test -p mcp-taskd-tests --test fuzz -- --nocapture
//! ```
//!
//! The targets are plain bolero targets: `cargo bolero test -p mcp-taskd-tests --test fuzz <name>` drives the same ones by
//! coverage where a nightly toolchain is at hand.

mod contract;
mod edit;
mod extensions;
mod settings;
mod wire;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use edit::Edited;

/// The value of a variable that no message may ever show.
const SECRET: &str = "canary-5f1d9c";

/// The texts of a target's corpus.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Runs a target over its corpus and over edits of it; says how many inputs that were.
fn fuzz(target: &str, judge: impl Fn(&[u8], u16) + std::panic::RefUnwindSafe) {
    let corpus = corpus(target);
    corpus.iter().for_each(|text| judge(text, 0));
    let (started, inputs) = (Instant::now(), AtomicU64::new(0));
    bolero::check!().with_type::<Edited>().with_iterations(1_000).for_each(|edited| {
        inputs.fetch_add(1, Ordering::Relaxed);
        judge(&edited.bytes(&corpus), edited.choice);
    });
    println!("{target}: {} texts and {} edited ones in {:.1?}", corpus.len(), inputs.into_inner(), started.elapsed());
}

/// Whether a message keeps the secret.
fn keeps_secret(message: &str) {
    assert!(!message.contains(SECRET), "a secret is shown: {message}");
}
