//! The signature of a message, as the Standard Webhooks specification has it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// `webhook-signature`: one signature for each key, so that a receiver may change its secret at its own time.
pub(super) fn sign(keys: &[Vec<u8>], id: &str, at_seconds: i64, body: &[u8]) -> String {
    let signature = |key: &Vec<u8>| {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length will do");
        mac.update(format!("{id}.{at_seconds}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    };
    keys.iter().map(signature).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with Python's `hmac` module.
    #[test]
    fn messages_are_signed_as_the_specification_says() {
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed =
            sign(std::slice::from_ref(&key), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let both = sign(&[b"plain".to_vec(), key], "a", 1, b"{}");
        let parts: Vec<_> = both.split(' ').collect();
        assert_eq!(parts.len(), 2);
        assert!(parts.iter().all(|part| part.starts_with("v1,")) && parts[0] != parts[1]);
    }
}
