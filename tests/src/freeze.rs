//! Stopping a process for a while, such that it does not stay stopped however the test ends.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Continues a process when it is told to. When it is not told before the test's process ends, it ends the stopped one too.
const WATCH: &str = r#"if read -r word; then kill -CONT "$1"; else kill -KILL "$1"; fi"#;

/// A process that is stopped; it goes on when this is dropped.
#[derive(Debug)]
pub struct Frozen {
    watch: Child,
    line: Option<ChildStdin>,
}

impl Frozen {
    /// Sends SIGSTOP to `pid`.
    pub fn new(pid: u32) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", WATCH, "sh", &pid.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // A group of its own: it has to outlive an interrupt from the terminal.
        command.process_group(0);
        let mut watch = command.spawn().expect("a shell");
        let line = watch.stdin.take();
        let pid = Pid::from_raw(pid.cast_signed()).expect("a process id");
        kill_process(pid, Signal::STOP).expect("the process is there");
        Self { watch, line }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some(mut line) = self.line.take() {
            // Where the shell is gone, so is the process that it watched.
            let _ = writeln!(line, "go");
        }
        let _ = self.watch.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(pid: u32) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).expect("a state")
    }

    fn until(pid: u32, what: impl Fn(char) -> bool) {
        let started = std::time::Instant::now();
        while !what(state(pid)) {
            assert!(started.elapsed() < crate::wait::PATIENCE, "{pid} is {}", state(pid));
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_frozen_process_goes_on_when_told_and_ends_with_who_froze_it() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("a process");
        let pid = child.id();
        let frozen = Frozen::new(pid);
        until(pid, |state| state == 'T');
        drop(frozen);
        until(pid, |state| state == 'S');

        let mut frozen = Frozen::new(pid);
        // What the end of this process does: the line is cut and nobody has said a word.
        frozen.line = None;
        drop(frozen);
        assert!(!child.wait().expect("a status").success());
    }
}
