//! Configuration: `config.yaml` ([`Settings`]) and `extensions_config.json` ([`Extensions`]) (INTERFACE, BEHAVIOURS C, D, K).

mod callers;
mod canonical;
mod check;
mod credentials;
mod drift;
pub mod edit;
mod environment;
mod extensions;
mod interceptor;
mod load;
mod oauth;
mod personal;
mod redact;
mod routing;
mod schema;
mod servers;
mod settings;
mod source;
mod transport;
mod yaml;

pub use callers::{ContextHeaders, OnMissing, Secrets, UserAuth};
pub use check::{check, unsupported};
pub use drift::{Drift, Frozen};
pub use environment::Environment;
pub use extensions::{CredentialSource, Definition, Extensions, ServerConfig, Transport};
pub use interceptor::{HttpInterceptor, Interceptor, OnError};
pub use load::{LoadOptions, Loaded};
pub use oauth::{Grant, OAuth};
pub use personal::{Connection, Connections as PersonalConnections};
pub use redact::MASK;
pub(crate) use redact::is_secret;
pub use routing::{RoutingConfig, RoutingFields, RoutingMode};
pub use schema::json_schema;
pub use settings::{
    AuthMode, AuthSettings, Backend, DatabaseSettings, DeploymentSettings, GatewaySettings, GuardrailConfig,
    GuardrailProvider, GuardrailSettings, MissingTool, ServerSettings, Settings, TaskSettings, ToolSearchSettings,
};
pub use source::{Content, Signature, Source};
pub use transport::{is_reserved as is_reserved_header, legal as is_legal_header_value};

/// A configuration that cannot be used; the message names the file and key, and never a secret's value (exit 78).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);
