//! What an API key looks like: `mtk_`, an id, a secret, a checksum, all in lower-case hexadecimal.
//!
//! The beginning and the fixed length let scanners for leaked secrets find keys (`mtk_[0-9a-f]{88}`); the checksum tells a
//! mistyped key from an unknown one without asking anybody.

use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

const PREFIX: &str = "mtk_";
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 4;
const LENGTH: usize = PREFIX.len() + 2 * (ID_BYTES + SECRET_BYTES + CHECKSUM_BYTES);

/// A whole key, as its owner has it. `Debug` shows the id alone.
#[derive(Debug, Clone)]
pub struct ApiKey {
    id: String,
    text: SecretString,
}

impl ApiKey {
    /// A new key, from the system's random source.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut random = [0; ID_BYTES + SECRET_BYTES];
        getrandom::fill(&mut random)?;
        let body = format!("{PREFIX}{}", hex(&random));
        Ok(Self::of(&format!("{body}{}", checksum(&body))))
    }

    /// A text that has the form of a key and the checksum that belongs to it.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(PREFIX)?;
        let is_hex = rest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if text.len() != LENGTH || !is_hex {
            return None;
        }
        let (body, sum) = text.split_at(LENGTH - 2 * CHECKSUM_BYTES);
        (checksum(body) == sum).then(|| Self::of(text))
    }

    /// A key with this id and another one's secret.
    #[cfg(test)]
    pub fn forged(id: &str, other: &Self) -> Self {
        let secret = &other.expose()[PREFIX.len() + 2 * ID_BYTES..LENGTH - 2 * CHECKSUM_BYTES];
        let body = format!("{PREFIX}{id}{secret}");
        Self::of(&format!("{body}{}", checksum(&body)))
    }

    fn of(text: &str) -> Self {
        Self { id: text[PREFIX.len()..PREFIX.len() + 2 * ID_BYTES].to_owned(), text: text.into() }
    }

    /// The public part, by which it is listed and revoked.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The key itself, for the one who asked for it.
    pub fn expose(&self) -> &str {
        self.text.expose_secret()
    }

    /// What is stored of it. The secret has 256 random bits, so that one pass of SHA-256 is enough: there is no dictionary to
    /// slow down.
    pub fn hash(&self) -> String {
        hex(&Sha256::digest(self.expose()))
    }

    /// Whether it is the key with this hash; takes as long whatever differs.
    pub fn matches(&self, hash: &str) -> bool {
        self.hash().as_bytes().ct_eq(hash.as_bytes()).into()
    }
}

fn checksum(body: &str) -> String {
    hex(&Sha256::digest(body)[..CHECKSUM_BYTES])
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_what_it_is_and_is_never_given_twice() {
        let (one, other) = (ApiKey::generate().unwrap(), ApiKey::generate().unwrap());
        assert!(one.expose().starts_with(PREFIX) && one.expose().len() == LENGTH);
        assert_ne!(one.expose(), other.expose());
        assert_ne!(one.id(), other.id());
        let parsed = ApiKey::parse(one.expose()).unwrap();
        assert_eq!(parsed.id(), one.id());
        assert!(parsed.matches(&one.hash()) && !parsed.matches(&other.hash()) && !parsed.matches(""));
        assert!(!one.hash().contains(&one.expose()[20..40]), "nothing of the secret is in what is stored");
        assert!(!format!("{one:?}").contains(&one.expose()[20..]));
    }

    #[test]
    fn a_mistyped_key_is_told_from_an_unknown_one() {
        let key = ApiKey::generate().unwrap();
        for at in 0..LENGTH {
            let mut typed = key.expose().to_owned();
            let other = if &typed[at..=at] == "0" { "1" } else { "0" };
            typed.replace_range(at..=at, other);
            assert!(ApiKey::parse(&typed).is_none(), "one character at {at}");
        }
        let short = &key.expose()[..LENGTH - 1];
        let upper = key.expose().to_uppercase();
        for text in ["", "mtk_", "mtk_é", short, &upper, &format!("{}0", key.expose())] {
            assert!(ApiKey::parse(text).is_none(), "{text:?}");
        }
    }
}
