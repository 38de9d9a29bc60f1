//! Configuration: `config.yaml` ([`Settings`]) and `extensions_config.json` ([`Extensions`]) (INTERFACE, BEHAVIOURS C, D, K).

mod extensions;
mod settings;

pub use extensions::{Extensions, ServerConfig, Transport};
pub use settings::{
    AuthMode, AuthSettings, Backend, DatabaseSettings, DeploymentSettings, GatewaySettings, GuardrailConfig,
    GuardrailProvider, GuardrailSettings, MissingTool, ServerSettings, Settings, TaskSettings, ToolSearchSettings,
};

/// A configuration that cannot be used; the message names the file and key, and never a secret's value (exit 78).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);
