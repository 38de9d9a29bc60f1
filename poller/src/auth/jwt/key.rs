//! One key of an issuer, and what it may verify.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::Value;

/// A modulus below 2,048 bits is not trusted; this is its length in base64url.
const MIN_MODULUS_CHARS: usize = 341;

/// A usable key.
pub struct Key {
    id: Option<String>,
    algorithms: &'static [Algorithm],
    /// The one algorithm that the issuer means it for, where it says so.
    meant_for: Option<String>,
    pub(super) verifying: DecodingKey,
}

impl Key {
    /// A member of a key set; `None` for what verifies nothing here: symmetric keys, keys for encryption, weak and unknown ones.
    pub fn read(value: &Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
        if jwk.common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature) {
            return None;
        }
        let algorithms: &[Algorithm] = match &jwk.algorithm {
            AlgorithmParameters::RSA(key) if key.n.len() >= MIN_MODULUS_CHARS => &[
                Algorithm::RS256,
                Algorithm::RS384,
                Algorithm::RS512,
                Algorithm::PS256,
                Algorithm::PS384,
                Algorithm::PS512,
            ],
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
                EllipticCurve::P256 => &[Algorithm::ES256],
                EllipticCurve::P384 => &[Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => &[Algorithm::EdDSA],
            _ => return None,
        };
        Some(Self {
            id: jwk.common.key_id.clone(),
            algorithms,
            meant_for: jwk.common.key_algorithm.map(|algorithm| algorithm.to_string()),
            verifying: DecodingKey::from_jwk(&jwk).ok()?,
        })
    }

    fn fits(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
            && self.meant_for.as_ref().is_none_or(|meant_for| *meant_for == format!("{algorithm:?}"))
    }
}

/// The key that a token names. A token that names none may mean the only one that fits.
pub fn find<'a>(keys: &'a [Key], id: Option<&str>, algorithm: Algorithm) -> Option<&'a Key> {
    let mut fitting = keys.iter().filter(|key| key.fits(algorithm));
    match id {
        Some(id) => fitting.find(|key| key.id.as_deref() == Some(id)),
        None => fitting.next().filter(|_| fitting.next().is_none()),
    }
}
