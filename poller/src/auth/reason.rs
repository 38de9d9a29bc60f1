//! Why credentials were not enough.

/// Why credentials were not enough; the metric's label, and a sentence for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// There are none.
    Missing,
    /// They cannot be read.
    Malformed,
    /// Nobody has them.
    Unknown,
    /// Their time is over.
    Expired,
    /// Their time has not come.
    NotYetValid,
    /// They were taken back.
    Revoked,
    /// A token's algorithm is none of those that are taken.
    Algorithm,
    /// A token's signature is not by a key of the issuer.
    Signature,
    /// A token's issuer is another.
    Issuer,
    /// A token is for somebody else.
    Audience,
    /// A token lacks a claim that is needed.
    Claims,
    /// They are good, and somebody else's than `X-User-Id` says.
    User,
    /// They are good, and do not allow this.
    Scope,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 13] = [
        Self::Missing,
        Self::Malformed,
        Self::Unknown,
        Self::Expired,
        Self::NotYetValid,
        Self::Revoked,
        Self::Algorithm,
        Self::Signature,
        Self::Issuer,
        Self::Audience,
        Self::Claims,
        Self::User,
        Self::Scope,
    ];

    /// The metric's label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::Revoked => "revoked",
            Self::Algorithm => "algorithm",
            Self::Signature => "signature",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::Claims => "claims",
            Self::User => "user",
            Self::Scope => "scope",
        }
    }

    /// For the caller. What is told of a credential is told to its owner alone: secret and signature are judged first.
    pub const fn detail(self) -> &'static str {
        match self {
            Self::Missing => "this needs a credential: send it as Authorization: Bearer …",
            Self::Malformed => "the credential cannot be read; is it complete?",
            Self::Unknown => "the API key is not known",
            Self::Expired => "the credential has expired",
            Self::NotYetValid => "the token is not valid yet",
            Self::Revoked => "the API key was revoked",
            Self::Algorithm => "the token's algorithm is not accepted",
            Self::Signature => "the token is not signed by a key of the issuer",
            Self::Issuer => "the token's issuer is another",
            Self::Audience => "the token is not for this server",
            Self::Claims => "the token lacks a claim that is needed, or the claim cannot be used",
            Self::User => "the credential is another user's than X-User-Id says, and it may not act as others",
            Self::Scope => "the credential does not allow this",
        }
    }
}
