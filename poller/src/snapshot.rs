//! Texts that are kept in the repository and compared with what the program makes, for tests.

use std::path::Path;

/// Compares `made` with the file at `path`; with `UPDATE_SNAPSHOTS` set, writes it there.
pub(crate) fn check(path: &Path, made: &str) {
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(path, made).expect("the snapshot can be written");
        return;
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    let differs = kept.lines().zip(made.lines()).position(|(kept, made)| kept != made);
    let line = differs.unwrap_or(kept.lines().count().min(made.lines().count()));
    assert!(
        kept == made,
        "{} is out of date from line {}: {:?} instead of {:?}; UPDATE_SNAPSHOTS=1 writes it anew",
        path.display(),
        line + 1,
        kept.lines().nth(line),
        made.lines().nth(line)
    );
}
