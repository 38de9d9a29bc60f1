//! Names of users' own connections: how they are told from configured servers, and what metrics call them.

/// What metrics call every personal connection (METRICS).
pub const PERSONAL: &str = "personal";
const PREFIX: &str = "personal_";
/// Hexadecimal digits after the prefix (125).
const DIGITS: usize = 32;

/// The name under which a connection runs, from the digest of what it is (125).
pub fn personal_name(digest: &[u8]) -> String {
    let mut name = format!("{PREFIX}{}", super::snapshot::hex(digest));
    name.truncate(PREFIX.len() + DIGITS);
    name
}

/// Whether a server's name is that of a personal connection.
pub fn is_personal(server: &str) -> bool {
    let digits = server.strip_prefix(PREFIX);
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(is_digit))
}

/// What metrics call a server: there are as many personal connections as users like.
pub fn server_label(server: &str) -> &str {
    if is_personal(server) { PERSONAL } else { server }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_personal_connection_is_told_by_its_name_125() {
        let name = personal_name(&[0xab; 32]);
        assert_eq!(name, format!("personal_{}", "ab".repeat(16)));
        assert!(is_personal(&name) && server_label(&name) == PERSONAL);
        for other in
            ["personal", "personal_", "personal_reports", &name[..40], &format!("{name}0"), &name.replace('b', "G")]
        {
            assert!(!is_personal(other) && server_label(other) == other, "{other}");
        }
    }
}
