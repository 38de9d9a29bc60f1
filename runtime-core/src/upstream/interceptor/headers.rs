//! Which headers an interceptor may add: pure (BEHAVIOURS 121).

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::config::{is_legal_header_value, is_reserved_header};

/// Most headers of one interceptor.
const MAX_HEADERS: usize = 32;
/// Most bytes of their values together.
const MAX_BYTES: usize = 16 << 10;

/// The headers of a verdict where all of them can be sent, or why not, naming the header and never its value.
pub(super) fn check(headers: HeaderMap) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    if headers.len() > MAX_HEADERS || headers.values().map(HeaderValue::len).sum::<usize>() > MAX_BYTES {
        return Err(format!("added more than {MAX_HEADERS} headers or {MAX_BYTES} bytes of them"));
    }
    let mut checked: Vec<(HeaderName, HeaderValue)> = Vec::with_capacity(headers.len());
    let mut last = None;
    for (name, mut value) in headers {
        // A map hands a name over with its first value only.
        let Some(name) = name.or_else(|| last.clone()) else { continue };
        last = Some(name.clone());
        if is_reserved_header(&name) {
            return Err(format!("added the header {name}, which is the protocol's own"));
        }
        if !value.to_str().is_ok_and(is_legal_header_value) {
            return Err(format!("added a value of the header {name} that cannot be sent (not shown)"));
        }
        value.set_sensitive(true);
        put(&mut checked, name, value);
    }
    Ok(checked)
}

/// Puts a header in place of the one with its name, or at the end.
pub(in crate::upstream) fn put(headers: &mut Vec<(HeaderName, HeaderValue)>, name: HeaderName, value: HeaderValue) {
    match headers.iter_mut().find(|(known, _)| *known == name) {
        Some((_, known)) => *known = value,
        None => headers.push((name, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &[u8])]) -> HeaderMap {
        let pair = |(name, value): &(&str, &[u8])| (name.parse().unwrap(), HeaderValue::from_bytes(value).unwrap());
        pairs.iter().map(pair).collect::<Vec<(HeaderName, HeaderValue)>>().into_iter().collect()
    }

    #[test]
    fn headers_of_the_protocol_and_values_that_cannot_be_sent_are_refused_121() {
        let checked = check(headers(&[("Authorization", b"Bearer x"), ("X-Tenant", b"acme")])).unwrap();
        assert_eq!(checked.len(), 2);
        assert!(checked.iter().all(|(_, value)| value.is_sensitive()));
        for name in ["Content-Length", "Mcp-Session-Id", "MCP-Protocol-Version", "Host", "Transfer-Encoding"] {
            let error = check(headers(&[(name, b"hunter2")])).unwrap_err();
            assert!(error.contains(&name.to_lowercase()) && !error.contains("hunter2"), "{error}");
        }
        for value in [&b" hunter2"[..], b"hunter2 ", b"\xffhunter2"] {
            let error = check(headers(&[("x-key", value)])).unwrap_err();
            assert!(error.contains("x-key") && !error.contains("hunter2"), "{error}");
        }
        let many: HeaderMap =
            (0..33).map(|at| (format!("x-{at}").parse().unwrap(), HeaderValue::from_static("v"))).collect();
        assert!(check(many).is_err());
        assert!(check(headers(&[("x-big", &b"v".repeat(MAX_BYTES + 1))])).is_err());
    }

    #[test]
    fn a_later_header_takes_the_place_of_an_earlier_one_whatever_its_case_122() {
        let mut sent = check(headers(&[("authorization", b"old"), ("x-a", b"1")])).unwrap();
        for (name, value) in check(headers(&[("Authorization", b"new")])).unwrap() {
            put(&mut sent, name, value);
        }
        let shown: Vec<_> = sent.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert!(shown.contains(&("authorization", "new")) && shown.len() == 2, "{shown:?}");
    }
}
