//! The fake MCP server as a process:
//! `fake-mcp [--port N | --stdio | --http-sse] [--era E] [--sse] [--script JSON] [--tools JSON]`.

use mcp_taskd_tests::fake::{FakeOptions, FakeServer, FakeSse, serve_stdio};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut options = FakeOptions::default();
    let (mut stdio, mut http_sse) = (false, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| anyhow::anyhow!("{argument} needs a value"));
        match argument.as_str() {
            "--stdio" => stdio = true,
            "--http-sse" => http_sse = true,
            "--sse" => options.sse = true,
            "--port" => options.port = value()?.parse()?,
            "--era" => options.era = value()?.parse().map_err(anyhow::Error::msg)?,
            "--script" => options.script = serde_json::from_str(&value()?)?,
            "--tools" => options.tools = Some(serde_json::from_str(&value()?)?),
            other => anyhow::bail!("unknown argument {other}"),
        }
    }
    if stdio {
        serve_stdio(options).await;
        // The runtime's thread that reads standard input cannot be interrupted.
        std::process::exit(0);
    }
    if http_sse {
        let mut server = FakeSse::start(options).await;
        println!("{}", server.url);
        server.wait().await;
        return Ok(());
    }
    let mut server = FakeServer::start(options).await;
    println!("{}", server.url);
    server.wait().await;
    Ok(())
}
