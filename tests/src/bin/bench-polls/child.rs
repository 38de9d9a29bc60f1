//! The fake server and the bare client as processes of their own.

use std::time::Duration;

use mcp_taskd_tests::bench::process::{Neighbour, Talker};

/// The fake server.
#[derive(Debug)]
pub(crate) struct Server {
    talker: Talker,
    url: String,
}

impl Server {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let mut talker = Talker::start(&["fake-server"])?;
        let url = talker.line().await?;
        Ok(Self { talker, url })
    }

    /// As a daemon is configured with it.
    pub(crate) fn configured(&self) -> [Neighbour<'_>; 1] {
        [Neighbour { name: "reports", url: &self.url }]
    }

    /// Tool calls that it has answered.
    pub(crate) async fn calls(&mut self) -> anyhow::Result<f64> {
        Ok(self.talker.ask("calls").await?.trim().parse()?)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.talker.pid()
    }
}

/// The bare client.
#[derive(Debug)]
pub(crate) struct Bare(Talker);

impl Bare {
    pub(crate) async fn start(server: &Server, tasks: usize, concurrency: usize) -> anyhow::Result<Self> {
        let arguments = ["bare-client", &server.url, &tasks.to_string(), &concurrency.to_string()];
        let mut talker = Talker::start(&arguments)?;
        talker.line().await?;
        Ok(Self(talker))
    }

    /// Polls for so long; how many polls that were.
    pub(crate) async fn round(&mut self, time: Duration) -> anyhow::Result<f64> {
        Ok(self.0.ask(&time.as_millis().to_string()).await?.trim().parse()?)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }
}
