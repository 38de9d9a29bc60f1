//! What comes over the wire: event streams, JSON-RPC, headers.

use mcp_taskd_core::config::is_legal_header_value;
use mcp_taskd_core::upstream::parse;

#[test]
fn a_stream_of_events_reads_the_same_however_it_is_cut() {
    super::fuzz("wire", |bytes, choice| {
        let whole = parse::events([bytes]);
        let size = usize::from(choice).max(1);
        assert_eq!(parse::events(bytes.chunks(size)), whole, "in pieces of {size}");
        assert!(whole.iter().map(Vec::len).sum::<usize>() <= bytes.len(), "nothing is made up");
    });
}

#[test]
fn a_message_answers_or_does_not_and_its_error_is_bounded_146() {
    super::fuzz("wire", |bytes, choice| {
        let text = String::from_utf8_lossy(bytes);
        let answer = parse::answer(&text, u64::from(choice % 4));
        assert_eq!(answer, parse::answer(&text, u64::from(choice % 4)), "the verdict is the same");
        match answer {
            Some(Ok(result)) => assert!(serde_json::from_str::<&serde_json::value::RawValue>(&result).is_ok(), "whole"),
            Some(Err(error)) => assert!(error.chars().count() <= 600, "{error}"),
            None => {}
        }
    });
}

#[test]
fn retry_after_and_header_values_are_judged_whatever_they_are_135() {
    super::fuzz("wire", |bytes, _| {
        let text = String::from_utf8_lossy(bytes);
        for line in text.lines() {
            if let Ok(value) = http::HeaderValue::from_str(line) {
                // Any length of time: whoever schedules clamps it.
                let _ = parse::retry_after(&value, 1_445_412_450_000);
            }
            if is_legal_header_value(line) {
                assert!(http::HeaderValue::from_str(line).is_ok(), "{line:?} is legal and cannot be sent");
            }
        }
    });
}
