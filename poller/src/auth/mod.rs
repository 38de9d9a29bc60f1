//! Who is calling, and what they may do (INTERFACE, "Who is calling").
//!
//! With `auth.mode: none` every scope is open, on loopback, to requests whose Host is local and whose Origin is absent or
//! local; the user comes from `X-User-Id`. With `api_key` and `jwt` it is the credential's user, and another one only for those
//! who may act as others.

mod authenticator;
mod identity;
mod issue;
mod jwt;
mod key;
mod limit;
mod metrics;
mod origin;
mod reason;
mod resource;
mod ring;

pub use authenticator::{Authenticator, Call, Condition};
pub use identity::{DEFAULT_ID, Identity, Scope, Scopes, THREAD_HEADER, USER_HEADER, header_id, is_valid_id};
pub use issue::{KeyView, NewKey, issue};
pub use key::ApiKey;
pub use reason::Reason;
pub use resource::METADATA_PATH;

use std::time::Duration;

/// Why a request is refused before it is looked at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// A header that names a user or a thread cannot be used.
    #[error("{0} must be 1 to 255 characters without control characters")]
    Invalid(&'static str),
    /// A header that names a user or a thread is there twice: whoever reads the other one means somebody else.
    #[error("{0} must be sent only once")]
    Repeated(&'static str),
    /// The Host is not local.
    #[error("the Host header must name this machine (localhost, 127.0.0.1 or ::1)")]
    Host,
    /// The Origin is not local.
    #[error("the Origin header must be absent or local")]
    Origin,
    /// The Origin is not this server.
    #[error("the Origin header must be absent or name this very server")]
    ForeignOrigin,
    /// Who calls is not known.
    #[error("{}", .0.detail())]
    Unauthenticated(Reason),
    /// The caller may not act as the user that `X-User-Id` names.
    #[error("{}", Reason::User.detail())]
    OtherUser,
    /// The caller lacks a scope.
    #[error("this needs the scope {0:?}")]
    Scope(&'static str),
    /// Credentials cannot be verified just now.
    #[error("credentials cannot be verified at the moment")]
    Unavailable,
    /// There were too many requests.
    #[error("too many requests; the next one is welcome in {} s", .0.as_secs().max(1))]
    Limited(Duration),
}
