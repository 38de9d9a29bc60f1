//! The shape of `config.yaml`, with defaults.

use std::net::SocketAddr;
use std::path::PathBuf;

use secrecy::SecretString;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::auth::AuthSettings;
use super::webhooks::Webhook;
use crate::task::{Limits, Policy};

/// The whole of `config.yaml`.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The process.
    pub server: ServerSettings,
    /// The store.
    pub database: DatabaseSettings,
    /// The polling runtime.
    pub mcp_tasks: TaskSettings,
    /// Deferred tool schemas.
    pub tool_search: ToolSearchSettings,
    /// Which tools agents may see and call.
    pub guardrails: GuardrailSettings,
    /// The MCP side towards agents.
    pub gateway: GatewaySettings,
    /// Who may call.
    pub auth: AuthSettings,
    /// The fleet.
    pub deployment: DeploymentSettings,
    /// Event subscribers.
    pub webhooks: Vec<Webhook>,
    /// The keys that credentials are stored under, the one that encrypts first: of the environment, never of the file (116).
    #[serde(skip)]
    pub credentials_keys: Vec<SecretString>,
}

impl Settings {
    /// The effective settings as JSON, secrets masked (`config show`).
    pub fn json(&self) -> Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        super::redact::mask(&mut value);
        value
    }
}

#[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
fn masked<S: Serializer>(secret: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(|_| super::redact::MASK).serialize(serializer)
}

/// `server`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerSettings {
    /// Where the process keeps its files.
    pub state_dir: PathBuf,
    /// Where the API and the gateway listen.
    pub listen: SocketAddr,
    /// Where probes and metrics are served instead, and only there.
    pub admin_listen: Option<SocketAddr>,
    /// How long a drain may take, in seconds.
    pub shutdown_grace_seconds: u64,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            state_dir: ".mcp-taskd".into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 8787)),
            admin_listen: None,
            shutdown_grace_seconds: 30,
        }
    }
}

/// `database.backend`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// For tests and servers without toolsets.
    Memory,
    /// A file.
    #[default]
    Sqlite,
    /// A fleet's shared database.
    Postgres,
}

/// `database`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct DatabaseSettings {
    /// Which store.
    pub backend: Backend,
    /// The folder of the SQLite file; `server.state_dir` where absent.
    pub sqlite_dir: Option<PathBuf>,
    /// The PostgreSQL connection string; a secret, since it may hold a password.
    #[serde(serialize_with = "masked")]
    pub postgres_url: Option<SecretString>,
    /// Connections at most, 2–1000.
    pub max_connections: u32,
}

impl Default for DatabaseSettings {
    fn default() -> Self {
        Self { backend: Backend::Sqlite, sqlite_dir: None, postgres_url: None, max_connections: 10 }
    }
}

/// `mcp_tasks` (BEHAVIOURS 30).
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TaskSettings {
    /// Whether this process polls.
    pub enabled: bool,
    /// 1–300.
    pub poll_interval_seconds: u32,
    /// 5–3600.
    pub lease_seconds: u32,
    /// 1–4096, a process.
    pub max_concurrent_polls: u32,
    /// Tasks one process keeps in memory, 1–1,000,000.
    pub max_held: u32,
    /// 1–3600.
    pub max_poll_backoff_seconds: u32,
    /// 5–3600.
    pub input_required_poll_interval_seconds: u32,
    /// 1–100.
    pub tracking_degraded_after_errors: u32,
    /// 1,024–10,485,760.
    pub max_result_bytes: u32,
    /// 64–100,000.
    pub result_preview_max_chars: u32,
    /// From `created_at`; 1–315,360,000 (ten years).
    pub max_task_age_seconds: Option<u64>,
    /// Terminal rows older than this are pruned, 1–36,500; null keeps them.
    pub retention_days: Option<u32>,
}

impl Default for TaskSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            poll_interval_seconds: 5,
            lease_seconds: 120,
            max_concurrent_polls: 8,
            max_held: 100_000,
            max_poll_backoff_seconds: 300,
            input_required_poll_interval_seconds: 60,
            tracking_degraded_after_errors: 3,
            max_result_bytes: 65_536,
            result_preview_max_chars: 2_000,
            max_task_age_seconds: None,
            retention_days: Some(30),
        }
    }
}

impl TaskSettings {
    /// The rhythm of polling.
    pub fn policy(&self) -> Policy {
        let ms = |seconds: u32| i64::from(seconds) * 1_000;
        Policy {
            poll_interval_ms: ms(self.poll_interval_seconds),
            max_backoff_ms: ms(self.max_poll_backoff_seconds),
            input_required_interval_ms: ms(self.input_required_poll_interval_seconds),
            degraded_after: i64::from(self.tracking_degraded_after_errors),
            max_age_ms: self.max_task_age_seconds.map(|seconds| seconds as i64 * 1_000),
        }
    }

    /// The bounds on results.
    pub fn limits(&self) -> Limits {
        Limits {
            max_result_bytes: self.max_result_bytes as usize,
            result_preview_max_chars: self.result_preview_max_chars as usize,
        }
    }
}

/// `tool_search`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolSearchSettings {
    /// Whether schemas are deferred.
    pub enabled: bool,
    /// 1–5.
    pub auto_promote_top_k: u32,
}

impl Default for ToolSearchSettings {
    fn default() -> Self {
        Self { enabled: false, auto_promote_top_k: 3 }
    }
}

/// `guardrails`.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuardrailSettings {
    /// Whether the provider is asked.
    pub enabled: bool,
    /// Who decides.
    pub provider: GuardrailProvider,
}

/// `guardrails.provider` (140).
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuardrailProvider {
    /// `allowlist`, or the reference's path that ends in `:AllowlistProvider`.
    #[serde(rename = "use")]
    pub kind: String,
    /// Its configuration.
    pub config: GuardrailConfig,
}

impl Default for GuardrailProvider {
    fn default() -> Self {
        Self { kind: "allowlist".into(), config: GuardrailConfig::default() }
    }
}

/// `guardrails.provider.config` (130).
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuardrailConfig {
    /// Visible names that are refused.
    pub denied_tools: Vec<String>,
    /// The only visible names that are not; absent allows all, empty denies all.
    pub allowed_tools: Option<Vec<String>>,
}

/// `gateway.on_missing_tool` (39, 150).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingTool {
    /// No server's tools are shown until the names match.
    #[default]
    FailAll,
    /// Only that server's tools are withheld.
    HideServer,
}

/// `gateway`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewaySettings {
    /// Whether the daemon's own three tools are shown.
    pub builtin_tools: bool,
    /// What a missing configured tool does.
    pub on_missing_tool: MissingTool,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self { builtin_tools: true, on_missing_tool: MissingTool::FailAll }
    }
}

/// `auth.mode`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthMode {
    /// Loopback only; the user comes from `X-User-Id`.
    #[default]
    None,
    /// Keys of the daemon's own.
    ApiKey,
    /// Tokens of an issuer.
    Jwt,
}

/// `deployment`.
#[derive(Debug, Clone, Copy, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeploymentSettings {
    /// Whether several instances share the store and the secrets.
    pub multi_instance: bool,
}
