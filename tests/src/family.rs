//! Which processes another one has started, by `/proc`.

use std::collections::BTreeSet;

/// A process.
#[derive(Debug, Clone, Copy)]
struct Process {
    pid: u32,
    parent: u32,
    /// Whether it only waits for its parent to collect it.
    has_ended: bool,
}

fn processes() -> Vec<Process> {
    let stat = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let has_ended = matches!(fields.next()?, "Z" | "X");
        Some(Process { pid, parent: fields.next()?.parse().ok()?, has_ended })
    };
    let entries = std::fs::read_dir("/proc").expect("a list of processes").flatten();
    entries.filter_map(|entry| stat(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// What runs and was started by `of`, or by what it has started.
pub fn descendants(of: u32) -> BTreeSet<u32> {
    let running: Vec<_> = processes().into_iter().filter(|process| !process.has_ended).collect();
    let mut found = BTreeSet::from([of]);
    loop {
        let is_new = |process: &&Process| found.contains(&process.parent) && !found.contains(&process.pid);
        let more: Vec<_> = running.iter().filter(is_new).map(|process| process.pid).collect();
        if more.is_empty() {
            break;
        }
        found.extend(more);
    }
    found.remove(&of);
    found
}

/// Whether none of them runs.
pub fn are_gone(family: &BTreeSet<u32>) -> bool {
    processes().iter().all(|process| process.has_ended || !family.contains(&process.pid))
}

/// How many children a process has, those included that have ended and were not collected.
pub fn children(of: u32) -> usize {
    processes().iter().filter(|process| process.parent == of).count()
}
