//! The gateway over standard input and output, for desktop agents.
//!
//! Two pumps stand between the process and rmcp: the inner one holds the end of input back until every request has its
//! answer, so that `printf … | mcp-taskd mcp` gets what it asked for; the outer one puts exact results in.

use std::sync::Arc;
use std::time::Duration;

use rmcp::ServiceExt as _;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::watch;

use super::{Gateway, exact};
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
    let open = Arc::new(watch::Sender::new(0_i64));
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

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
}

impl Head<'_> {
    fn is_request(line: &str) -> bool {
        serde_json::from_str::<Head>(line).is_ok_and(|head| head.id.is_some() && head.method.is_some())
    }

    fn is_answer(line: &str) -> bool {
        serde_json::from_str::<Head>(line).is_ok_and(|head| head.id.is_some() && head.method.is_none())
    }
}

async fn pump_in(
    input: impl AsyncRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
    open: Arc<watch::Sender<i64>>,
) -> std::io::Result<()> {
    let mut input = BufReader::new(input);
    let mut line = String::new();
    while input.read_line(&mut line).await? > 0 {
        if !line.ends_with('\n') {
            line.push('\n');
        }
        if Head::is_request(&line) {
            open.send_modify(|open| *open += 1);
        }
        output.write_all(line.as_bytes()).await?;
        line.clear();
    }
    let mut answered = open.subscribe();
    let _ = tokio::time::timeout(LAST_ANSWERS, answered.wait_for(|open| *open <= 0)).await;
    output.shutdown().await
}

async fn pump_out(
    input: impl AsyncRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
    open: Arc<watch::Sender<i64>>,
) -> std::io::Result<()> {
    let mut input = BufReader::new(input);
    let mut line = String::new();
    while input.read_line(&mut line).await? > 0 {
        let answer = Head::is_answer(&line);
        let mut text = exact::restore(&line).unwrap_or_else(|| std::mem::take(&mut line));
        if !text.ends_with('\n') {
            text.push('\n');
        }
        output.write_all(text.as_bytes()).await?;
        output.flush().await?;
        if answer {
            open.send_modify(|open| *open -= 1);
        }
        line.clear();
    }
    Ok(())
}
