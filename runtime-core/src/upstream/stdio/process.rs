//! A child process with everything it starts, and how it is ended.

use std::process::ExitStatus;
use std::time::Duration;

use process_wrap::tokio::{ChildWrapper, CommandWrap, KillOnDrop, ProcessGroup};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::{sleep, timeout};

use super::guard::Guard;

/// How long a server may take to end once its input has ended, and again once it was asked to.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// How often what is left of a group is looked at.
pub(super) const LOOK: Duration = Duration::from_millis(20);
const SIGTERM: i32 = 15;

/// The leader of a process group. Dropped before [`Group::end`] is through, it kills the group.
pub(super) struct Group {
    child: Box<dyn ChildWrapper>,
    ended: bool,
    /// What ends it if the daemon cannot, and its id there.
    guarded: Option<(Guard, u32)>,
}

/// The child's ends of its standard streams.
pub(super) struct Pipes {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

impl Group {
    /// Starts `command` as the leader of a group of its own: what npx or uvx start in turn must not outlive it.
    pub(super) fn spawn(mut command: Command, guard: Option<&Guard>) -> std::io::Result<(Self, Pipes)> {
        use std::process::Stdio;

        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = CommandWrap::from(command).wrap(ProcessGroup::leader()).wrap(KillOnDrop).spawn()?;
        let pipes = (child.stdin().take(), child.stdout().take(), child.stderr().take());
        let guarded = guard.cloned().zip(child.id());
        if let Some((guard, id)) = &guarded {
            guard.begun(*id);
        }
        let group = Self { child, ended: false, guarded };
        match pipes {
            (Some(stdin), Some(stdout), Some(stderr)) => Ok((group, Pipes { stdin, stdout, stderr })),
            _ => Err(std::io::Error::other("its standard streams are not there")),
        }
    }

    /// The leader's exit status, where it has ended or does so within `limit`.
    pub(super) async fn status(&mut self, limit: Duration) -> Option<ExitStatus> {
        timeout(limit, self.child.wait()).await.ok()?.ok()
    }

    /// Ends the group: its input has ended; wait, ask, kill.
    pub(super) async fn end(mut self) {
        if timeout(GRACE, self.child.wait()).await.is_err() {
            let _ = self.child.signal(SIGTERM);
            if timeout(GRACE, self.child.wait()).await.is_err() {
                let _ = self.child.start_kill();
                let _ = timeout(GRACE, self.child.wait()).await;
            }
        }
        // The leader is gone; what it started may not be.
        let until = tokio::time::Instant::now() + GRACE / 2;
        while self.child.signal(SIGTERM).is_ok() {
            if tokio::time::Instant::now() >= until {
                let _ = self.child.start_kill();
                break;
            }
            sleep(LOOK).await;
        }
        self.ended = true;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.child.start_kill();
        }
        if let Some((guard, id)) = &self.guarded {
            guard.ended(*id);
        }
    }
}
