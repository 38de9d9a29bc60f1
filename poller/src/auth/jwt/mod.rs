//! Tokens of an issuer: signed by one of its keys, for this server, and in their time.

mod jwks;
mod key;

use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use mcp_taskd_core::config::JwtSettings;
use serde_json::{Map, Value};

use super::identity::{Identity, Scopes, Verified, is_valid_id};
use super::{Condition, Denied, Reason};
use jwks::Jwks;
#[cfg(test)]
use key::Key;

/// What tokens may be signed with: nothing that the verifier could sign with too, and never what a token asks for beyond this.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];
/// How far the issuer's clock may be from this one.
const LEEWAY_SECONDS: u64 = 30;

/// Verifies tokens.
#[derive(Debug)]
pub struct Verifier {
    issuer: String,
    audience: String,
    user_claim: String,
    scopes_claim: String,
    keys: Jwks,
}

impl Verifier {
    /// A verifier without keys yet: [`Verifier::run`] gets them. The settings have been checked.
    pub fn new(settings: &JwtSettings) -> anyhow::Result<Self> {
        Ok(Self {
            issuer: settings.issuer.clone().unwrap_or_default(),
            audience: settings.audience.clone().unwrap_or_default(),
            user_claim: settings.user_claim.clone(),
            scopes_claim: settings.scopes_claim.clone(),
            keys: Jwks::new(settings.jwks_url.as_deref().unwrap_or_default())?,
        })
    }

    /// Keeps the issuer's keys up to date, for ever.
    pub async fn run(&self) {
        self.keys.run().await;
    }

    /// Whether there are keys, and how good they are.
    pub fn condition(&self) -> Condition {
        self.keys.condition()
    }

    /// Verifies a token.
    pub async fn verify(&self, token: &str) -> Result<Verified, Denied> {
        let refused = Denied::Unauthenticated;
        let header = decode_header(token).map_err(|_| refused(Reason::Malformed))?;
        // What a token says must be understood is not, whatever it is (RFC 7515, section 4.1.11).
        if header.crit.is_some() {
            return Err(refused(Reason::Malformed));
        }
        if !ALGORITHMS.contains(&header.alg) {
            return Err(refused(Reason::Algorithm));
        }
        let key = self.keys.find(header.kid.as_deref(), header.alg).await?;
        let claims = decode::<Map<String, Value>>(token, &key, &self.validation(header.alg));
        let claims = claims.map_err(|error| refused(reason(&error)))?.claims;
        // The library also takes a list that has the issuer in it.
        if claims.get("iss").and_then(Value::as_str) != Some(&*self.issuer) {
            return Err(refused(Reason::Issuer));
        }
        self.caller(&claims)
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[&self.audience]);
        validation.validate_exp = true;
        validation.validate_nbf = true;
        validation.leeway = LEEWAY_SECONDS;
        validation
    }

    /// The caller that the claims of a verified token name.
    fn caller(&self, claims: &Map<String, Value>) -> Result<Verified, Denied> {
        let user_id = claims.get(&self.user_claim).and_then(Value::as_str).filter(|user| is_valid_id(user));
        let user_id = user_id.ok_or(Denied::Unauthenticated(Reason::Claims))?.to_owned();
        let (scopes, act_as) = match claims.get(&self.scopes_claim) {
            Some(Value::String(words)) => Scopes::of_words(words.split(' ')),
            Some(Value::Array(words)) => Scopes::of_words(words.iter().filter_map(Value::as_str)),
            _ => (Scopes::default(), false),
        };
        Ok(Verified { subject: user_id.clone(), identity: Identity { user_id, scopes, act_as } })
    }
}

fn reason(error: &Error) -> Reason {
    match error.kind() {
        ErrorKind::ExpiredSignature => Reason::Expired,
        ErrorKind::ImmatureSignature => Reason::NotYetValid,
        ErrorKind::InvalidIssuer => Reason::Issuer,
        ErrorKind::InvalidAudience => Reason::Audience,
        ErrorKind::InvalidAlgorithm => Reason::Algorithm,
        ErrorKind::MissingRequiredClaim(_) | ErrorKind::InvalidClaimFormat(_) => Reason::Claims,
        ErrorKind::InvalidToken | ErrorKind::Base64(_) | ErrorKind::Json(_) | ErrorKind::Utf8(_) => Reason::Malformed,
        _ => Reason::Signature,
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
