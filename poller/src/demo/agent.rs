//! The demo's agent: an MCP client that sees what an agent sees, and the REST calls of the program around it.

use anyhow::{Context as _, bail};
use rmcp::model::{CallToolRequestParams, ClientConfig, JsonObject};
use rmcp::service::RunningService;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{RoleClient, ServiceExt as _};
use serde_json::{Value, json};

/// A client of the daemon.
pub(super) struct Agent {
    url: String,
    http: reqwest::Client,
    mcp: RunningService<RoleClient, ClientConfig>,
}

impl Agent {
    /// Connects to the daemon's `/mcp`.
    pub(super) async fn connect(url: &str, http: &reqwest::Client) -> anyhow::Result<Self> {
        let transport = StreamableHttpClientTransport::from_uri(format!("{url}/mcp"));
        let mcp = ClientConfig::default().serve(transport).await.context("connecting to /mcp")?;
        Ok(Self { url: url.to_owned(), http: http.clone(), mcp })
    }

    /// The names of the tools it sees.
    pub(super) async fn tools(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.mcp.list_all_tools().await?.into_iter().map(|tool| tool.name.into_owned()).collect())
    }

    /// Calls a tool; its structured content.
    pub(super) async fn call(&self, tool: &'static str, arguments: Value) -> anyhow::Result<Value> {
        let arguments = if let Value::Object(arguments) = arguments { arguments } else { JsonObject::new() };
        let result = self.mcp.call_tool(CallToolRequestParams::new(tool).with_arguments(arguments)).await?;
        if result.is_error == Some(true) {
            bail!("{tool}: {}", serde_json::to_string(&result.content)?);
        }
        result.structured_content.with_context(|| format!("{tool} answered without structured content"))
    }

    /// Every task of the agent's thread.
    pub(super) async fn tasks(&self) -> anyhow::Result<Vec<Value>> {
        self.get("/api/threads/default/mcp-tasks?limit=100").await
    }

    /// One task in detail.
    pub(super) async fn task(&self, id: &str) -> anyhow::Result<Value> {
        self.get(&format!("/api/threads/default/mcp-tasks/{id}")).await
    }

    /// Answers a task's question.
    pub(super) async fn answer(&self, id: &str, input: Value) -> anyhow::Result<()> {
        let url = format!("{}/api/threads/default/mcp-tasks/{id}/input", self.url);
        let answer = self.http.post(url).json(&json!({"input": input})).send().await?;
        if !answer.status().is_success() {
            bail!("input: {} {}", answer.status(), answer.text().await?);
        }
        Ok(())
    }

    /// The sum of a metric's series whose labels contain `label`.
    pub(super) async fn metric(&self, name: &str, label: &str) -> anyhow::Result<f64> {
        let text = self.http.get(format!("{}/metrics", self.url)).send().await?.error_for_status()?.text().await?;
        let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        let series = text.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(label));
        Ok(series.filter_map(value).sum())
    }

    async fn get<T: serde::de::DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let answer = self.http.get(format!("{}{path}", self.url)).send().await?;
        Ok(answer.error_for_status()?.json().await?)
    }

    /// Lets go of the connection.
    pub(super) async fn close(self) {
        // The daemon may be dead already; that is what the demo is about.
        let _ = self.mcp.cancel().await;
    }
}
