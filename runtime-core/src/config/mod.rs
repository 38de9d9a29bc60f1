//! Configuration: `config.yaml` ([`Settings`]) and `extensions_config.json` ([`Extensions`]) (INTERFACE, BEHAVIOURS C, D, K).

mod auth;
mod callers;
mod canonical;
mod changes;
mod check;
mod credentials;
mod drift;
pub mod edit;
mod environment;
mod extensions;
mod extensions_schema;
mod interceptor;
mod load;
mod locate;
mod oauth;
mod own;
mod personal;
mod place;
mod redact;
mod routing;
mod schema;
mod server;
mod servers;
mod settings;
mod source;
mod transport;
mod value;
mod webhooks;
mod yaml;

pub use auth::{AuthSettings, JwtSettings};
pub use callers::{ContextHeaders, OnMissing, Secrets, UserAuth};
pub use check::check;
pub use drift::{Drift, Frozen};
pub use environment::Environment;
pub use extensions::{CredentialSource, Definition, Extensions, ServerConfig, Transport};
pub use extensions_schema::extensions_schema;
pub use interceptor::{HttpInterceptor, Interceptor, OnError};
pub use load::{LoadOptions, Loaded};
pub use oauth::{Grant, OAuth};
pub use personal::{Connection, Connections as PersonalConnections};
pub use redact::MASK;
pub(crate) use redact::is_secret;
pub use routing::{RoutingConfig, RoutingFields, RoutingMode};
pub use schema::json_schema;
pub use settings::{
    AuthMode, Backend, DatabaseSettings, DeploymentSettings, GatewaySettings, GuardrailConfig, GuardrailProvider,
    GuardrailSettings, MissingTool, ServerSettings, Settings, TaskSettings, ToolSearchSettings,
};
pub use source::{Content, Signature, Source};
pub use transport::{is_reserved as is_reserved_header, legal as is_legal_header_value};
pub use webhooks::Webhook;

/// A configuration that cannot be used; the message names the file and key, and never a secret's value (exit 78).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

impl ConfigError {
    /// What is wrong on one line, without the lines of the file that it is about.
    pub fn summary(&self) -> String {
        self.0.lines().filter(|line| !line.starts_with(' ')).collect::<Vec<_>>().join("; ")
    }

    /// Both errors, where there are two.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        Self(format!("{self}\n{other}"))
    }
}
