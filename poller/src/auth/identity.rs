//! A caller, and how headers name users and threads.

use http::HeaderMap;
use mcp_taskd_core::task::limits::CALLER_ID_MAX_CHARS;

use super::Denied;

/// The header that names the user where no key or token does.
pub const USER_HEADER: &str = "x-user-id";
/// The header that names the thread on MCP.
pub const THREAD_HEADER: &str = "x-thread-id";
/// The user and the thread of those who name none.
pub const DEFAULT_ID: &str = "default";
/// The word among scopes that lets a caller speak for other users.
const ACT_AS: &str = "act-as";

/// What a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Own tasks.
    Tasks,
    /// All users' tasks, workers.
    Operator,
    /// The configuration, and keys.
    Admin,
}

/// The scopes of a caller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scopes {
    /// [`Scope::Tasks`].
    pub tasks: bool,
    /// [`Scope::Operator`].
    pub operator: bool,
    /// [`Scope::Admin`].
    pub admin: bool,
}

impl Scopes {
    /// Every scope.
    pub const ALL: Self = Self { tasks: true, operator: true, admin: true };
    /// What keys and tokens may carry.
    pub const WORDS: [&str; 4] = ["tasks", "operator", "admin", ACT_AS];

    /// The scopes that words give, and whether they let their holder act as others. A word that is none gives nothing: tokens
    /// carry other programs' too.
    pub fn of_words<'a>(words: impl IntoIterator<Item = &'a str>) -> (Self, bool) {
        let (mut scopes, mut act_as) = (Self::default(), false);
        for word in words {
            match word {
                "tasks" => scopes.tasks = true,
                "operator" => scopes.operator = true,
                "admin" => scopes.admin = true,
                ACT_AS => act_as = true,
                _ => {}
            }
        }
        (scopes, act_as)
    }
}

/// A caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Whose tasks are meant.
    pub user_id: String,
    /// What the caller may do.
    pub scopes: Scopes,
    /// Whether the caller may speak for other users.
    pub act_as: bool,
}

/// A caller whose credential was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verified {
    /// What the credential is counted by: a key's id, a token's user.
    pub(super) subject: String,
    /// Who it is.
    pub(super) identity: Identity,
}

impl Identity {
    /// Refuses a caller without `scope`.
    pub fn require(&self, scope: Scope) -> Result<(), Denied> {
        let (open, name) = match scope {
            Scope::Tasks => (self.scopes.tasks, "tasks"),
            Scope::Operator => (self.scopes.operator, "operator"),
            Scope::Admin => (self.scopes.admin, "admin"),
        };
        if open { Ok(()) } else { Err(Denied::Scope(name)) }
    }

    /// The same caller, as the user that the headers name, where it may be that user.
    pub(super) fn in_name_of(self, named: Option<String>) -> Result<Self, Denied> {
        match named {
            Some(user_id) if user_id != self.user_id && !self.act_as => Err(Denied::OtherUser),
            Some(user_id) => Ok(Self { user_id, ..self }),
            None => Ok(self),
        }
    }
}

/// The user that the headers name.
pub(super) fn named_user(headers: &HeaderMap) -> Result<Option<String>, Denied> {
    header_id(headers, USER_HEADER, "X-User-Id")
}

/// The id in a header, where there is one.
pub fn header_id(headers: &HeaderMap, name: &str, shown: &'static str) -> Result<Option<String>, Denied> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Denied::Repeated(shown));
    }
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| Denied::Invalid(shown))?;
    if is_valid_id(text) { Ok(Some(text.to_owned())) } else { Err(Denied::Invalid(shown)) }
}

/// Whether `text` may name a user, a thread, a run or a tool call: 1 to 255 characters, no control characters.
pub fn is_valid_id(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= CALLER_ID_MAX_CHARS && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(act_as: bool) -> Identity {
        let scopes = Scopes { tasks: true, operator: false, admin: false };
        Identity { user_id: "ada".into(), scopes, act_as }
    }

    #[test]
    fn a_scope_that_is_missing_is_named() {
        assert_eq!(caller(false).require(Scope::Tasks), Ok(()));
        assert_eq!(caller(false).require(Scope::Operator), Err(Denied::Scope("operator")));
        assert_eq!(caller(false).require(Scope::Admin), Err(Denied::Scope("admin")));
    }

    #[test]
    fn only_some_may_act_as_others() {
        let user = |act_as, named: Option<&str>| {
            caller(act_as).in_name_of(named.map(str::to_owned)).map(|caller| caller.user_id)
        };
        assert_eq!(user(false, None).unwrap(), "ada");
        assert_eq!(user(false, Some("ada")).unwrap(), "ada");
        assert_eq!(user(false, Some("eve")), Err(Denied::OtherUser));
        assert_eq!(user(false, Some("ADA")), Err(Denied::OtherUser));
        assert_eq!(user(true, Some("eve")).unwrap(), "eve");
        assert_eq!(user(true, None).unwrap(), "ada");
    }

    #[test]
    fn words_that_are_no_scopes_give_nothing() {
        assert_eq!(Scopes::of_words(["Tasks", "openid", "", "admin:read"]), (Scopes::default(), false));
        assert_eq!(Scopes::of_words(Scopes::WORDS), (Scopes::ALL, true));
    }
}
