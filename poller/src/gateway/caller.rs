//! Who calls a tool, and in which thread.

use mcp_taskd_core::config::Secrets;
use rmcp::model::{Extensions, MetaObject};
use serde_json::Value;

use super::promotion::{Place, Within};
use crate::auth::{DEFAULT_ID, Denied, Identity, Scope, THREAD_HEADER, header_id, is_valid_id};

/// The member of `_meta` that names the thread.
const THREAD_META: &str = "mcp-taskd/thread-id";
/// The header that names a session.
pub const SESSION_HEADER: &str = "mcp-session-id";
/// The member of `_meta` that has the text of the user's latest message.
const USER_MESSAGE_META: &str = "mcp-taskd/user-message";
/// The member of `_meta` that makes a submit repeatable.
const IDEMPOTENCY_META: &str = "mcp-taskd/idempotency-key";

/// The member of `_meta` with the secrets of this one request, for servers that take headers from there (120).
const SECRETS_META: &str = "mcp-taskd/secrets";

/// A caller of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The user.
    pub user_id: String,
    /// The user's thread.
    pub thread_id: String,
    /// Whether the thread was named outside the call, by a header.
    named: bool,
    /// The client's MCP session, where it has one.
    session: Option<String>,
}

impl Caller {
    /// A user in the default thread.
    pub fn new(user_id: String) -> Self {
        Self { user_id, thread_id: DEFAULT_ID.into(), named: false, session: None }
    }

    /// The same on a connection that is one session.
    pub fn in_session(self, session: &str) -> Self {
        Self { session: Some(session.to_owned()), ..self }
    }

    /// Whose promotions count for it: a client keeps one list of tools a session, whatever its threads.
    pub fn place(&self) -> Place {
        let within = match &self.session {
            Some(session) => Within::Session(session.clone()),
            None => Within::Thread(self.thread_id.clone()),
        };
        Place { user_id: self.user_id.clone(), within }
    }

    /// The caller of a request: of its HTTP request where it came with one, else `local`.
    pub fn of(extensions: &Extensions, meta: &MetaObject, local: Option<&Self>) -> Result<Self, Denied> {
        let caller = match extensions.get::<::http::request::Parts>() {
            Some(parts) => Self::of_http(parts)?,
            None => local.cloned().ok_or(Denied::Scope("tasks"))?,
        };
        caller.in_thread_of(meta)
    }

    /// The caller of an HTTP request, in the thread that a header names.
    pub fn of_http(parts: &::http::request::Parts) -> Result<Self, Denied> {
        let identity = parts.extensions.get::<Identity>().ok_or(Denied::Scope("tasks"))?;
        identity.require(Scope::Tasks)?;
        let session = header_id(&parts.headers, SESSION_HEADER, "Mcp-Session-Id")?;
        let caller = Self { session, ..Self::new(identity.user_id.clone()) };
        Ok(match header_id(&parts.headers, THREAD_HEADER, "X-Thread-Id")? {
            Some(thread_id) => Self { thread_id, named: true, ..caller },
            None => caller,
        })
    }

    /// The caller in the thread that `_meta` names, unless a header named one.
    fn in_thread_of(self, meta: &MetaObject) -> Result<Self, Denied> {
        match meta.get(THREAD_META) {
            Some(value) if !self.named => {
                let thread_id = value.as_str().filter(|id| is_valid_id(id)).ok_or(Denied::Invalid(THREAD_META))?;
                Ok(Self { thread_id: thread_id.to_owned(), ..self })
            }
            _ => Ok(self),
        }
    }
}

/// The caller's idempotency key, where it sent a usable one.
pub fn idempotency_key(meta: &MetaObject) -> Option<String> {
    meta.get(IDEMPOTENCY_META)?.as_str().filter(|key| is_valid_id(key)).map(str::to_owned)
}

/// The secrets that came with the request; none of them is kept.
pub fn secrets(meta: &MetaObject) -> Result<Secrets, String> {
    let secrets = match meta.get(SECRETS_META) {
        None | Some(Value::Null) => return Ok(Secrets::default()),
        Some(Value::Object(secrets)) => {
            secrets.iter().map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        }
        Some(_) => return Err(not_strings()),
    };
    secrets.collect::<Option<Secrets>>().ok_or_else(not_strings)
}

fn not_strings() -> String {
    format!("_meta[{SECRETS_META:?}] must be an object of strings")
}

/// The user's latest message, where the caller sends it along.
pub fn user_message(meta: &MetaObject) -> Option<&str> {
    meta.get(USER_MESSAGE_META)?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Scopes;

    fn parts(thread: Option<&str>) -> ::http::request::Parts {
        let mut request = ::http::Request::builder().uri("/mcp");
        if let Some(thread) = thread {
            request = request.header("x-thread-id", thread);
        }
        let mut request = request.body(()).unwrap();
        request.extensions_mut().insert(Identity { user_id: "ada".into(), scopes: Scopes::ALL, act_as: true });
        request.into_parts().0
    }

    fn meta(thread: &str) -> MetaObject {
        let mut meta = MetaObject::new();
        meta.insert(THREAD_META.into(), thread.into());
        meta
    }

    #[test]
    fn a_header_names_the_thread_then_meta_then_the_default() {
        let caller = |thread, meta: &MetaObject| {
            let mut extensions = Extensions::new();
            extensions.insert(parts(thread));
            Caller::of(&extensions, meta, None).unwrap()
        };
        assert_eq!(caller(Some("h"), &meta("m")).thread_id, "h");
        assert_eq!(caller(None, &meta("m")).thread_id, "m");
        assert_eq!(caller(None, &MetaObject::new()).thread_id, "default");
        assert_eq!(caller(None, &MetaObject::new()).user_id, "ada");
    }

    #[test]
    fn secrets_of_a_request_are_an_object_of_strings_120() {
        let read = |value: serde_json::Value| {
            let mut meta = MetaObject::new();
            meta.insert(SECRETS_META.into(), value);
            secrets(&meta).map(|secrets| format!("{secrets:?}"))
        };
        assert_eq!(read(serde_json::json!({"a": "hunter2", "b": ""})).unwrap(), "Secrets(2)");
        assert_eq!(read(serde_json::Value::Null).unwrap(), "Secrets(0)");
        for wrong in [serde_json::json!(["hunter2"]), serde_json::json!({"a": 1}), serde_json::json!("hunter2")] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(SECRETS_META) && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn without_a_request_the_local_caller_counts_and_nobody_else() {
        let local = Caller::new("ada".into());
        assert_eq!(Caller::of(&Extensions::new(), &meta("m"), Some(&local)).unwrap().thread_id, "m");
        assert!(Caller::of(&Extensions::new(), &meta(""), Some(&local)).is_err());
        assert!(Caller::of(&Extensions::new(), &MetaObject::new(), None).is_err());
    }
}
