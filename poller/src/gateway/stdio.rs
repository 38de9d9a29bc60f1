//! The gateway over standard input and output, for desktop agents.
//!
//! Two pumps stand between the process and rmcp: the inner one holds the end of input back until every request has its
//! answer, so that `printf … | mcp-taskd mcp` gets what it asked for; the outer one puts exact results in.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rmcp::ServiceExt as _;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::watch;

use super::{Gateway, exact, native};
use crate::lifecycle::Shutdown;

/// How long the end of input waits for answers that are still due.
const LAST_ANSWERS: Duration = Duration::from_mins(1);
const PIPE_BYTES: usize = 64 << 10;

/// Serves until the end of input or a stop.
pub async fn serve(gateway: Gateway, shutdown: &Shutdown) -> anyhow::Result<()> {
    let (input, output) = rmcp::transport::stdio();
    serve_on(gateway, shutdown, input, output).await
}

/// Serves on any pair of streams.
pub async fn serve_on<R, W>(gateway: Gateway, shutdown: &Shutdown, input: R, output: W) -> anyhow::Result<()>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let (to_rmcp, rmcp_input) = tokio::io::duplex(PIPE_BYTES);
    let (rmcp_output, from_rmcp) = tokio::io::duplex(PIPE_BYTES);
    let open = Arc::new(watch::Sender::new(Open::new()));
    let reading = tokio::spawn(pump_in(input, to_rmcp, Arc::clone(&open)));
    let writing = tokio::spawn(pump_out(from_rmcp, output, open));

    let serving = async {
        let running = gateway.serve_with_ct((rmcp_input, rmcp_output), shutdown.soft().child_token()).await?;
        running.waiting().await?;
        anyhow::Ok(())
    };
    let served = tokio::select! {
        served = serving => served,
        () = shutdown.hard().cancelled() => Ok(()),
    };
    reading.abort();
    // rmcp's end of the pipe is closed: what it wrote last still goes out.
    let _ = tokio::time::timeout(Duration::from_secs(5), writing).await;
    match served {
        // Input that ends before a handshake is no failure.
        Err(error) if shutdown.is_draining() => {
            tracing::debug!(%error, "the session ended");
            Ok(())
        }
        Err(error) => match error.downcast_ref() {
            Some(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => Ok(()),
            _ => Err(error),
        },
        Ok(()) => Ok(()),
    }
}

/// The requests that have no answer yet, by the text of their ids.
type Open = BTreeSet<Box<str>>;

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// What a line does to the requests that are open.
#[derive(Debug, PartialEq, Eq)]
enum Effect {
    Opens(Box<str>),
    Closes(Box<str>),
    None,
}

impl Effect {
    /// Of a line from the client. What rmcp takes for no message has no answer that could be told apart, so that it is
    /// not waited for; neither has a request that was cancelled.
    fn of_input(line: &[u8]) -> Self {
        let Ok(head) = serde_json::from_slice::<Head>(line) else { return Self::None };
        let text = |raw: Option<&RawValue>| raw.map_or("", RawValue::get).to_owned();
        if text(head.jsonrpc) != r#""2.0""# {
            return Self::None;
        }
        match (id(head.id), text(head.method).as_str()) {
            (None, r#""notifications/cancelled""#) => Cancelled::id(head.params).map_or(Self::None, Self::Closes),
            // It is answered when it ends, and it ends with the session.
            (None, _) | (Some(_), "" | r#""subscriptions/listen""#) => Self::None,
            (Some(id), _) => Self::Opens(id),
        }
    }

    /// Of a line to the client.
    fn of_output(line: &str) -> Self {
        match serde_json::from_str::<Head>(line) {
            Ok(Head { id: raw, method: None, .. }) => id(raw).map_or(Self::None, Self::Closes),
            _ => Self::None,
        }
    }

    fn apply(self, open: &watch::Sender<Open>) {
        match self {
            Self::Opens(id) => open.send_modify(|open| {
                open.insert(id);
            }),
            Self::Closes(id) => open.send_modify(|open| {
                open.remove(&id);
            }),
            Self::None => {}
        }
    }
}

#[derive(Deserialize)]
struct Cancelled<'a> {
    #[serde(borrow, rename = "requestId")]
    request_id: &'a RawValue,
}

impl Cancelled<'_> {
    fn id(params: Option<&RawValue>) -> Option<Box<str>> {
        let cancelled: Cancelled<'_> = serde_json::from_str(params?.get()).ok()?;
        id(Some(cancelled.request_id))
    }
}

/// An id that may stand in a request: a string or an integer.
fn id(raw: Option<&RawValue>) -> Option<Box<str>> {
    let text = raw?.get();
    (text.starts_with('"') || text.parse::<i64>().is_ok()).then(|| text.into())
}

/// Passes lines on as they are: what is wrong with one, even bytes that are no text, is for rmcp to judge, and must not
/// end the session.
async fn pump_in(
    input: impl AsyncRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
    open: Arc<watch::Sender<Open>>,
) -> std::io::Result<()> {
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line).await? > 0 {
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        Effect::of_input(&line).apply(&open);
        match native::fold(&line, false).message {
            Some(message) => output.write_all(format!("{message}\n").as_bytes()).await?,
            None => output.write_all(&line).await?,
        }
        line.clear();
    }
    let mut answered = open.subscribe();
    let _ = tokio::time::timeout(LAST_ANSWERS, answered.wait_for(BTreeSet::is_empty)).await;
    output.shutdown().await
}

async fn pump_out(
    input: impl AsyncRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
    open: Arc<watch::Sender<Open>>,
) -> std::io::Result<()> {
    let mut input = BufReader::new(input);
    let mut line = String::new();
    while input.read_line(&mut line).await? > 0 {
        let effect = Effect::of_output(&line);
        let mut text = exact::restore(&line).unwrap_or_else(|| std::mem::take(&mut line));
        if !text.ends_with('\n') {
            text.push('\n');
        }
        output.write_all(text.as_bytes()).await?;
        output.flush().await?;
        effect.apply(&open);
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_will_be_answered_holds_the_end_of_input_back() {
        for (line, effect) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, Effect::Opens("1".into())),
            (r#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#, Effect::Opens("\"a\"".into())),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
                Effect::Closes("1".into()),
            ),
            (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, Effect::None),
            (r#"{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen"}"#, Effect::None),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, Effect::None),
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, Effect::None),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, Effect::None),
            (r#"{"id":1,"method":"ping"}"#, Effect::None),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, Effect::None),
            ("garbage", Effect::None),
        ] {
            assert_eq!(Effect::of_input(line.as_bytes()), effect, "{line}");
        }
        assert_eq!(Effect::of_input(b"\xff\n"), Effect::None);
        assert_eq!(Effect::of_output(r#"{"jsonrpc":"2.0","id":1,"error":{}}"#), Effect::Closes("1".into()));
        assert_eq!(Effect::of_output(r#"{"jsonrpc":"2.0","error":{}}"#), Effect::None);
        assert_eq!(Effect::of_output(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#), Effect::None);
    }
}
