//! JSON-RPC with one child process, a message a line.

use std::fmt::Write as _;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::guard::Guard;
use super::listen::{self, Notices};
use super::process::Group;
use super::stderr;
use crate::upstream::changes::Changes;
use crate::upstream::http::BODY_MAX_BYTES;
use crate::upstream::jsonrpc::{self, Era};
use crate::upstream::metrics::SessionCount;
use crate::upstream::offers::Offers;
use crate::upstream::pending::{Failure, Pending};
use crate::upstream::request::Request;
use crate::upstream::scrub::Scrubber;
use crate::upstream::{CallError, CallErrorKind};

/// Messages that wait for the child to read them.
const OUTGOING: usize = 64;
/// How long the reasons for a process's end are waited for, so that errors can tell them.
const POST_MORTEM: Duration = Duration::from_millis(250);

/// A running child process and the conversation with it; it ends when the last user lets go.
pub(super) struct Session {
    pub(super) era: Era,
    pub(super) offers: Offers,
    outgoing: mpsc::Sender<Vec<u8>>,
    pending: Arc<Pending>,
    notices: Notices,
    closing: CancellationToken,
    started: Instant,
}

/// What a session has from its server.
pub(super) struct Setting<'a> {
    pub(super) server: &'a str,
    pub(super) scrubber: &'a Scrubber,
    pub(super) changes: &'a Changes,
    pub(super) count: SessionCount,
    /// Has the tasks that await the end of processes.
    pub(super) processes: &'a TaskTracker,
    /// Ends the process where the daemon no longer can.
    pub(super) guard: Option<&'a Guard>,
}

impl Session {
    /// Starts the process; it is not greeted yet. One task owns it from here to its end (103).
    pub(super) fn spawn(command: Command, setting: Setting<'_>) -> std::io::Result<Self> {
        let (mut group, pipes) = Group::spawn(command, setting.guard)?;
        let (outgoing, messages) = mpsc::channel(OUTGOING);
        let pending = Arc::new(Pending::default());
        let notices = Notices::new(setting.changes.clone());
        let closing = CancellationToken::new();
        let mut reader = tokio::spawn(read(
            BufReader::with_capacity(64 << 10, pipes.stdout),
            Arc::clone(&pending),
            outgoing.clone(),
            notices.clone(),
        ));
        let mut writer = tokio::spawn(write(pipes.stdin, messages, closing.clone()));
        let errors = stderr::drain(pipes.stderr, setting.server.to_owned(), setting.scrubber.clone());
        let mut errors = tokio::spawn(errors);
        let (ending, silenced, server) = (closing.clone(), Arc::clone(&pending), setting.server.to_owned());
        let count = setting.count;
        setting.processes.spawn(async move {
            let by_itself = tokio::select! {
                biased;
                () = ending.cancelled() => false,
                _ = &mut reader => true,
                // It does not listen any more, and what waits to be written will have no answer.
                _ = &mut writer => true,
            };
            // From here on nobody asks it anything, and its input ends.
            ending.cancel();
            if by_itself {
                let status = group.status(POST_MORTEM).await;
                let last = timeout(POST_MORTEM, &mut errors).await.ok().and_then(Result::ok).flatten();
                silenced.end(ended(status, last.as_deref()));
            } else {
                silenced.end(ended(None, None));
            }
            drop(count);
            group.end().await;
            // Whoever else holds the child's output open is not listened to any longer.
            reader.abort();
            errors.abort();
            tracing::debug!(server, "the server's process has ended");
        });
        let (era, offers, started) = (Era::Legacy, Offers::default(), Instant::now());
        Ok(Self { era, offers, outgoing, pending, notices, closing, started })
    }

    /// Whether nothing can be asked any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closing.is_cancelled() || self.pending.over().is_some()
    }

    /// How long ago it was started.
    pub(super) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Begins to end the process.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    /// A request of the session's era. Dropped before its answer, it tells the server so where it should.
    pub(super) async fn request(&self, request: &Request<'_>) -> Result<Box<RawValue>, Failure> {
        if let Some(error) = request.unfit(self.era, self.offers) {
            return Err(Failure::Call(error));
        }
        self.exchange(|id| request.body(id, self.era), request.told).await
    }

    /// A request before the session's era is known.
    pub(super) async fn greet(&self, body: impl FnOnce(u64) -> Vec<u8>) -> Result<Box<RawValue>, Failure> {
        self.exchange(body, false).await
    }

    pub(super) async fn initialize(&self) -> Result<Offers, Failure> {
        let initialized = self.greet(jsonrpc::initialize).await?;
        self.send(jsonrpc::INITIALIZED.to_vec()).await?;
        Ok(Offers::read(&initialized))
    }

    /// Asks the server to tell of changes to its tools, before any call and until the process ends.
    pub(super) async fn listen(&self) {
        let asked = listen::ask(&self.pending, &self.outgoing).await;
        let keeping = listen::keep(asked, Arc::clone(&self.pending), self.outgoing.clone(), self.notices.clone());
        let closing = self.closing.clone();
        tokio::spawn(async move { closing.run_until_cancelled(keeping).await });
    }

    async fn exchange(&self, body: impl FnOnce(u64) -> Vec<u8>, cancel: bool) -> Result<Box<RawValue>, Failure> {
        let mut waiter = self.pending.register()?;
        let mut awaited = Awaited { session: self, id: waiter.id, cancel: false };
        if self.closing.is_cancelled() {
            return Err(Failure::NotSent(ended(None, None)));
        }
        self.send(body(waiter.id)).await?;
        awaited.cancel = cancel;
        let answered = waiter.answer().await;
        awaited.cancel = false;
        answered
    }

    async fn send(&self, body: Vec<u8>) -> Result<(), Failure> {
        self.outgoing.send(body).await.map_err(|_| Failure::NotSent(ended(None, None)))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// Tells the server when a request that was sent is no longer awaited.
struct Awaited<'a> {
    session: &'a Session,
    id: u64,
    cancel: bool,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if self.cancel {
            let _ = self.session.outgoing.try_send(jsonrpc::cancelled(self.id, self.session.era));
        }
    }
}

/// The end of a process, with what is known of its reasons.
fn ended(status: Option<ExitStatus>, last_words: Option<&str>) -> CallError {
    let mut message = "the server's process ended".to_owned();
    if let Some(status) = status {
        let _ = write!(message, " ({status})");
    }
    if let Some(words) = last_words {
        let _ = write!(message, "; its last words: {words}");
    }
    CallError::new(CallErrorKind::Transport, message)
}

async fn write(mut stdin: ChildStdin, mut messages: mpsc::Receiver<Vec<u8>>, closing: CancellationToken) {
    let writing = async {
        while let Some(mut message) = messages.recv().await {
            message.push(b'\n');
            if stdin.write_all(&message).await.is_err() || stdin.flush().await.is_err() {
                break;
            }
        }
    };
    // A child that does not read must not keep its input open.
    let _ = closing.run_until_cancelled(writing).await;
}

/// Takes in what the child prints, to the end of it.
async fn read(
    mut output: impl AsyncBufRead + Unpin,
    pending: Arc<Pending>,
    outgoing: mpsc::Sender<Vec<u8>>,
    notices: Notices,
) {
    let mut line = Vec::new();
    loop {
        match next_line(&mut output, &mut line, BODY_MAX_BYTES).await {
            Ok(Line::Whole) => {}
            Ok(Line::TooLong) => {
                let what = format!("the answer is larger than {BODY_MAX_BYTES} bytes");
                return pending.end(CallError::new(CallErrorKind::Protocol, what));
            }
            // The owner of the process finds out why.
            Ok(Line::End) | Err(_) => return,
        }
        // Whatever else a server prints there is not for us.
        let Ok(text) = std::str::from_utf8(&line) else { continue };
        pending.take_in(text, |said| match said.id {
            Some(id) => {
                let _ = outgoing.try_send(jsonrpc::answer(id, said.method));
            }
            None => notices.heard(said.method),
        });
    }
}

pub(super) enum Line {
    Whole,
    TooLong,
    End,
}

/// Reads the next line into `line`, without its end.
pub(super) async fn next_line(
    input: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
    max: usize,
) -> std::io::Result<Line> {
    line.clear();
    // One large answer must not keep its memory for ever.
    line.shrink_to(1 << 20);
    loop {
        let chunk = input.fill_buf().await?;
        if chunk.is_empty() {
            return Ok(Line::End);
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let take = end.unwrap_or(chunk.len());
        if line.len() + take > max {
            return Ok(Line::TooLong);
        }
        line.extend_from_slice(&chunk[..take]);
        input.consume(end.map_or(take, |end| end + 1));
        if end.is_some() {
            return Ok(Line::Whole);
        }
    }
}
