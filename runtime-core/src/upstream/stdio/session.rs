//! JSON-RPC with one child process, a message a line.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::value::RawValue;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, Command};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::process::Group;
use crate::upstream::http::BODY_MAX_BYTES;
use crate::upstream::jsonrpc::{self, Era, Message, Request, RpcError, number};
use crate::upstream::scrub::Scrubber;
use crate::upstream::{CallError, CallErrorKind};

/// Messages that wait for the child to read them.
const OUTGOING: usize = 64;
/// Longest line of its error output that is logged, in bytes.
const STDERR_LINE_MAX: usize = 4_096;

/// How a request failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The session had ended before.
    NotSent(CallError),
    /// With a JSON-RPC error.
    Rpc(RpcError),
    /// In any other way.
    Call(CallError),
}

impl Failure {
    pub(super) fn into_error(self) -> CallError {
        match self {
            Self::NotSent(error) | Self::Call(error) => error,
            Self::Rpc(error) => error.into_call_error(),
        }
    }
}

type Answer = Result<Box<RawValue>, RpcError>;

/// Requests that wait for their answers.
#[derive(Default)]
struct Pending {
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    /// Why there will be no more answers.
    over: OnceLock<CallError>,
}

impl Pending {
    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Answer>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, error: CallError) {
        let _ = self.over.set(error);
        // Their receivers see that the senders are gone, and then why.
        self.waiting().clear();
    }

    fn reason(&self) -> CallError {
        self.over.get().cloned().unwrap_or_else(ended)
    }
}

/// A running child process and the conversation with it; it ends when the last user lets go.
pub(super) struct Session {
    pub(super) era: Era,
    outgoing: mpsc::Sender<Vec<u8>>,
    pending: Arc<Pending>,
    next_id: AtomicU64,
    closing: CancellationToken,
}

impl Session {
    /// Starts the process; it is not greeted yet. Its end is awaited by a task of `tracker`.
    pub(super) fn spawn(
        command: Command,
        server: &str,
        scrubber: &Scrubber,
        tracker: &TaskTracker,
    ) -> std::io::Result<Self> {
        let (group, pipes) = Group::spawn(command)?;
        let (outgoing, messages) = mpsc::channel(OUTGOING);
        let pending = Arc::new(Pending::default());
        let closing = CancellationToken::new();
        let reader = tokio::spawn(read(
            BufReader::with_capacity(64 << 10, pipes.stdout),
            Arc::clone(&pending),
            outgoing.clone(),
        ));
        tokio::spawn(write(pipes.stdin, messages, closing.clone()));
        tokio::spawn(log_errors(BufReader::new(pipes.stderr), server.to_owned(), scrubber.clone()));
        let (ending, silenced) = (closing.clone(), Arc::clone(&pending));
        let server = server.to_owned();
        tracker.spawn(async move {
            tokio::pin!(reader);
            tokio::select! {
                () = ending.cancelled() => {}
                _ = &mut reader => ending.cancel(),
            }
            silenced.end(ended());
            group.end().await;
            // Whoever else holds the child's output open is not listened to any longer.
            reader.abort();
            tracing::debug!(server, "the server's process has ended");
        });
        Ok(Self { era: Era::Legacy, outgoing, pending, next_id: AtomicU64::new(1), closing })
    }

    /// Whether nothing can be asked any more.
    pub(super) fn is_closed(&self) -> bool {
        self.pending.over.get().is_some() || self.closing.is_cancelled()
    }

    /// Begins to end the process.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    /// A request of the session's era. Dropped before its answer, it tells the server so where it should.
    pub(super) async fn request(&self, request: &Request<'_>) -> Result<Box<RawValue>, Failure> {
        self.exchange(|id| request.body(id, self.era), request.told).await
    }

    /// A request before the session's era is known.
    pub(super) async fn greet(&self, body: impl FnOnce(u64) -> Vec<u8>) -> Result<Box<RawValue>, Failure> {
        self.exchange(body, false).await
    }

    pub(super) async fn initialize(&self) -> Result<(), Failure> {
        self.greet(jsonrpc::initialize).await?;
        self.send(jsonrpc::INITIALIZED.to_vec()).await
    }

    async fn exchange(&self, body: impl FnOnce(u64) -> Vec<u8>, cancel: bool) -> Result<Box<RawValue>, Failure> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.pending.waiting().insert(id, sender);
        let mut awaited = Awaited { session: self, id, cancel: false };
        if self.is_closed() {
            return Err(Failure::NotSent(self.pending.reason()));
        }
        self.send(body(id)).await?;
        awaited.cancel = cancel;
        let answered = answer.await;
        awaited.cancel = false;
        match answered {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(error)) => Err(Failure::Rpc(error)),
            Err(_) => Err(Failure::Call(self.pending.reason())),
        }
    }

    async fn send(&self, body: Vec<u8>) -> Result<(), Failure> {
        self.outgoing.send(body).await.map_err(|_| Failure::NotSent(self.pending.reason()))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// Forgets a request that nobody waits for any more, and tells the server where it was sent.
struct Awaited<'a> {
    session: &'a Session,
    id: u64,
    cancel: bool,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.session.pending.waiting().remove(&self.id);
        if self.cancel {
            let _ = self.session.outgoing.try_send(jsonrpc::cancelled(self.id, self.session.era));
        }
    }
}

fn ended() -> CallError {
    CallError::new(CallErrorKind::Transport, "the server's process ended".to_owned())
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

async fn read(mut output: impl AsyncBufRead + Unpin, pending: Arc<Pending>, outgoing: mpsc::Sender<Vec<u8>>) {
    let mut line = Vec::new();
    loop {
        match next_line(&mut output, &mut line, BODY_MAX_BYTES).await {
            Ok(Line::Whole) => {}
            Ok(Line::TooLong) => {
                let what = format!("the answer is larger than {BODY_MAX_BYTES} bytes");
                return pending.end(CallError::new(CallErrorKind::Protocol, what));
            }
            Ok(Line::End) | Err(_) => return pending.end(ended()),
        }
        // Whatever else a server prints there is not for us.
        let Ok(text) = std::str::from_utf8(&line) else { continue };
        for message in Message::read_all(text) {
            match (message.id, message.method.as_deref()) {
                (Some(id), Some(method)) => {
                    let _ = outgoing.try_send(jsonrpc::answer(id, method));
                }
                (Some(id), None) => {
                    let Some(waiting) = number(id).and_then(|id| pending.waiting().remove(&id)) else { continue };
                    let answer = match (message.result, message.error) {
                        (_, Some(error)) => Err(RpcError::read(error)),
                        (Some(result), None) => Ok(result.to_owned()),
                        (None, None) => continue,
                    };
                    let _ = waiting.send(answer);
                }
                (None, _) => {}
            }
        }
    }
}

enum Line {
    Whole,
    TooLong,
    End,
}

/// Reads the next line into `line`, without its end.
async fn next_line(input: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>, max: usize) -> std::io::Result<Line> {
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

/// Drains the child's error output, so that it never blocks on it, into the log.
async fn log_errors(mut errors: BufReader<impl AsyncRead + Unpin>, server: String, scrubber: Scrubber) {
    let mut line = Vec::new();
    loop {
        match next_line(&mut errors, &mut line, STDERR_LINE_MAX).await {
            Ok(Line::End) | Err(_) => return,
            // What follows is read as further lines.
            Ok(Line::TooLong) => {
                let rest = errors.buffer().len();
                let take = rest.min(STDERR_LINE_MAX.saturating_sub(line.len()).max(1));
                line.extend_from_slice(&errors.buffer()[..take]);
                errors.consume(take);
            }
            Ok(Line::Whole) => {}
        }
        let text = String::from_utf8_lossy(&line);
        tracing::debug!(server, "stderr: {}", scrubber.scrub(text.trim_end()));
    }
}
