//! Ends the processes of stdio servers when the daemon is killed and cannot do it itself.
//!
//! A small process beside the daemon is told, on its standard input, of every process group that begins and ends. That input
//! ends with the daemon, whatever ended it, and the groups that are left are ended then.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use super::process::{GRACE, LOOK};

/// The guard of one daemon; started with the first process that it has to know of.
#[derive(Clone)]
pub struct Guard(Arc<Inner>);

struct Inner {
    program: PathBuf,
    arguments: Vec<OsString>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    groups: BTreeSet<u32>,
    running: Option<(Child, ChildStdin)>,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("program", &self.0.program).finish_non_exhaustive()
    }
}

impl Guard {
    /// A guard that is `program` with these arguments, whose `main` does nothing but [`watch`] its standard input.
    pub fn new(program: impl Into<PathBuf>, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Self(Arc::new(Inner { program: program.into(), arguments, state: Mutex::default() }))
    }

    /// A process group began.
    pub(super) fn begun(&self, group: u32) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.groups.insert(group);
        if state.tell('+', group).is_ok() {
            return;
        }
        // There is none yet, or somebody ended it: a new one has to know of all of them.
        let begun = self.0.start().and_then(|running| {
            state.running = Some(running);
            let groups: Vec<u32> = state.groups.iter().copied().collect();
            groups.into_iter().try_for_each(|group| state.tell('+', group))
        });
        if let Err(error) = begun {
            tracing::warn!(%error, "no guard: the servers' processes may outlive this one if it is killed");
        }
    }

    /// A process group has ended.
    pub(super) fn ended(&self, group: u32) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.groups.remove(&group);
        // A guard that is gone is replaced when the next group begins.
        let _ = state.tell('-', group);
    }
}

impl Inner {
    fn start(&self) -> std::io::Result<(Child, ChildStdin)> {
        use std::os::unix::process::CommandExt as _;

        let mut command = Command::new(&self.program);
        // Whatever ends the daemon's own group must not end it, and it holds nothing that the daemon has open.
        command.args(&self.arguments).current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let input = child.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
        Ok((child, input))
    }
}

impl State {
    fn tell(&mut self, what: char, group: u32) -> std::io::Result<()> {
        let (_, input) = self.running.as_mut().ok_or(std::io::ErrorKind::NotConnected)?;
        let told = input.write_all(format!("{what}{group}\n").as_bytes());
        if told.is_err()
            && let Some((mut child, input)) = self.running.take()
        {
            drop(input);
            let _ = child.wait();
        }
        told
    }
}

/// Follows what a daemon says of its process groups, and ends those that are left when it says no more.
///
/// Blocks until then, and some seconds longer where they do not end at once.
pub fn watch(input: impl BufRead) {
    let mut groups = BTreeSet::new();
    for line in input.lines().map_while(Result::ok) {
        // Group 1 would be every process there is.
        let group = line.get(1..).and_then(|id| id.parse::<u32>().ok()).filter(|id| *id > 1);
        match group {
            Some(group) if line.starts_with('+') => drop(groups.insert(group)),
            Some(group) => drop(groups.remove(&group)),
            None => {}
        }
    }
    let mut left: Vec<Pid> =
        groups.into_iter().filter_map(|id| i32::try_from(id).ok().and_then(Pid::from_raw)).collect();
    // Their input has ended with the daemon: most end by themselves.
    for signal in [None, Some(Signal::TERM), Some(Signal::KILL)] {
        for group in &left {
            let _ = signal.map(|signal| kill_process_group(*group, signal));
        }
        for _ in 0..GRACE.as_millis() / LOOK.as_millis() {
            left.retain(|group| test_kill_process_group(*group).is_ok());
            if left.is_empty() {
                return;
            }
            sleep(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};

    use super::*;

    #[test]
    fn what_is_left_when_the_input_ends_is_ended_and_nothing_else() {
        let sleeper = || Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let (mut left, mut other) = (sleeper(), sleeper());
        let said = format!("+{}\n+{}\nnonsense\n+1\n+0\n+-1\n\n-{}\n", left.id(), other.id(), other.id());
        // Its parent has to collect it, as init does where the daemon is gone.
        let collected = std::thread::spawn(move || left.wait());
        watch(said.as_bytes());
        assert_eq!(collected.join().unwrap().unwrap().signal(), Some(Signal::TERM.as_raw()));
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
