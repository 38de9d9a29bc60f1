//! The MCP server: what really runs there.
//!
//! Keep in step with what `driver/tools.rs` calls, and `seeds`' contract: an idempotent submit makes one task for one key.

use crate::store::{Change, End, Remote, Source};

/// A remote task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Work {
    #[default]
    Absent,
    Running,
    Done,
    Cancelled,
}

/// The server's side of the one task, and of what a repeated submit may make beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Server {
    pub(crate) tasks: [Work; 2],
    /// A submit that its caller has given up may still arrive.
    pub(crate) arriving: bool,
    /// Cancelled as compensation: nobody may be tracking it.
    pub(crate) compensated: [bool; 2],
}

impl Server {
    /// A submit call arrives.
    pub(crate) fn submit(&mut self, idempotent: bool) -> Remote {
        let known = self.tasks.iter().take_while(|work| **work != Work::Absent).count();
        let place = if idempotent { 0 } else { known.min(self.tasks.len() - 1) };
        if self.tasks[place] == Work::Absent {
            self.tasks[place] = Work::Running;
        }
        place as Remote
    }

    /// The work comes to its end.
    pub(crate) fn progress(&mut self) -> bool {
        let Some(work) = self.tasks.iter_mut().find(|work| **work == Work::Running) else { return false };
        *work = Work::Done;
        true
    }

    /// A status call, as the change that its answer asks for.
    pub(crate) fn status(&self, remote: Remote) -> Change {
        let (end, version) = match self.tasks[usize::from(remote)] {
            Work::Done => (Some(End::Completed), 2),
            Work::Cancelled => (Some(End::Cancelled), 2),
            Work::Running | Work::Absent => (None, 1),
        };
        Change { source: Source::Poll, end, version, release: false }
    }

    /// A cancel call, as the change that its answer asks for.
    pub(crate) fn cancel(&mut self, remote: Remote) -> Change {
        let work = &mut self.tasks[usize::from(remote)];
        if *work == Work::Running {
            *work = Work::Cancelled;
        }
        Change { source: Source::Cancel, ..self.status(remote) }
    }

    /// A cancel call as compensation.
    pub(crate) fn compensate(&mut self, remote: Remote) {
        self.cancel(remote);
        self.compensated[usize::from(remote)] = true;
    }
}
