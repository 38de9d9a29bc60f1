//! Sealing texts with XChaCha20-Poly1305, under keys that can be replaced.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};

use crate::config::edit::Seal;

/// What a sealed text begins with.
const FORMAT: &str = "v1";
const NONCE_BYTES: usize = 24;
/// What keeps this use of a key's text apart from any other.
const PURPOSE: &str = "mcp-taskd credentials v1\0";

/// Seals and opens texts.
///
/// A sealed text names its key, so that one can be replaced: put the new one first, which seals from then on, and keep the old
/// one behind it for as long as something is sealed with it.
pub struct Vault {
    keys: Vec<(String, XChaCha20Poly1305)>,
}

/// A sealed text as it turned out.
#[derive(Debug)]
pub enum Unsealed {
    /// This.
    Text(SecretString),
    /// It was sealed with another key, or for another place, or is damaged.
    Foreign,
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|(id, _)| id)).finish()
    }
}

impl Vault {
    /// A vault with these keys, the one that seals first. A key may be any text: what encrypts is its SHA-256, so that it must
    /// be random, not a word.
    pub fn new(keys: &[SecretString]) -> Self {
        Self { keys: keys.iter().map(|key| cipher(key.expose_secret())).collect() }
    }

    /// Seals a text for the place that `context` names: in no other can it be opened. `None` without a key, or where the system
    /// has no random numbers.
    pub fn seal(&self, text: &str, context: &str) -> Option<String> {
        let (id, cipher) = self.keys.first()?;
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).ok()?;
        let payload = Payload { msg: text.as_bytes(), aad: context.as_bytes() };
        let sealed = cipher.encrypt(&XNonce::from(nonce), payload).ok()?;
        Some(format!("{FORMAT}.{id}.{}.{}", BASE64.encode(nonce), BASE64.encode(sealed)))
    }

    /// Opens what was sealed for `context`.
    pub fn open(&self, sealed: &str, context: &str) -> Unsealed {
        self.opened(sealed, context).map_or(Unsealed::Foreign, Unsealed::Text)
    }

    fn opened(&self, sealed: &str, context: &str) -> Option<SecretString> {
        let mut parts = sealed.split('.');
        let (format, id, nonce, text) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if format != FORMAT || parts.next().is_some() {
            return None;
        }
        let nonce: [u8; NONCE_BYTES] = BASE64.decode(nonce).ok()?.try_into().ok()?;
        let text = BASE64.decode(text).ok()?;
        let (_, cipher) = self.keys.iter().find(|(known, _)| known == id)?;
        let payload = Payload { msg: &text, aad: context.as_bytes() };
        let text = cipher.decrypt(&XNonce::from(nonce), payload).ok()?;
        Some(String::from_utf8(text).ok()?.into())
    }
}

impl Seal for Vault {
    fn seal(&self, text: &str, context: &str) -> Option<String> {
        self.seal(text, context)
    }

    fn open(&self, sealed: &str, context: &str) -> Option<SecretString> {
        self.opened(sealed, context)
    }
}

/// The cipher of a key's text, with a name that says nothing of it.
fn cipher(text: &str) -> (String, XChaCha20Poly1305) {
    let derived =
        |purpose: &str| Sha256::new().chain_update(PURPOSE).chain_update(purpose).chain_update(text).finalize();
    let id = derived("id\0").iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let key: [u8; 32] = derived("key\0").into();
    (id, XChaCha20Poly1305::new(&Key::from(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vault(keys: &[&str]) -> Vault {
        Vault::new(&keys.iter().map(|key| (*key).into()).collect::<Vec<_>>())
    }

    fn open(vault: &Vault, sealed: &str) -> Option<String> {
        match vault.open(sealed, "here") {
            Unsealed::Text(text) => Some(text.expose_secret().to_owned()),
            Unsealed::Foreign => None,
        }
    }

    #[test]
    fn what_is_sealed_is_opened_with_its_key_in_its_place_and_shows_nothing_116() {
        let one = vault(&["one"]);
        let sealed = one.seal("hunter2", "here").unwrap();
        assert_eq!(open(&one, &sealed).as_deref(), Some("hunter2"));
        assert_eq!(open(&vault(&["other"]), &sealed), None);
        assert!(matches!(one.open(&sealed, "there"), Unsealed::Foreign));
        assert!(!sealed.contains("hunter2") && !sealed.contains("one"));
        assert_ne!(one.seal("hunter2", "here").unwrap(), sealed, "every time with another nonce");
        assert!(vault(&[]).seal("x", "here").is_none());
    }

    #[test]
    fn a_key_is_replaced_by_one_before_it_116() {
        let old = vault(&["one"]).seal("text", "here").unwrap();
        let both = vault(&["two", "one"]);
        assert_eq!(open(&both, &old).as_deref(), Some("text"));
        let new = both.seal("text", "here").unwrap();
        assert_eq!(open(&vault(&["two"]), &new).as_deref(), Some("text"));
        assert_eq!(open(&vault(&["one"]), &new), None);
    }

    #[test]
    fn whatever_is_not_sealed_text_is_foreign() {
        let one = vault(&["one"]);
        let sealed = one.seal("text", "here").unwrap();
        let id = sealed.split('.').nth(1).unwrap();
        let nonce = sealed.split('.').nth(2).unwrap();
        for text in [
            "",
            "text",
            "v1...",
            &format!("v1.{id}.AAAA.AAAA"),
            &format!("v2{}", &sealed[2..]),
            &sealed[..sealed.len() - 4],
        ] {
            assert_eq!(open(&one, text), None, "{text}");
        }
        assert_eq!(open(&one, &format!("v1.{id}.{nonce}.")), None);
        assert_eq!(open(&one, &format!("{sealed}.x")), None);
    }
}
