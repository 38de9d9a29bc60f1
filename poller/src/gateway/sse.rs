//! Exact results in event streams.

use axum::body::{Body, Bytes};
use futures_util::{StreamExt as _, stream};

use super::exact;

/// What ends an event.
const END: &[u8] = b"\n\n";

/// The same stream with the exact result, or the exact params, in each message that carries them.
pub fn restore(body: Body) -> Body {
    let events = stream::unfold((body.into_data_stream(), Vec::new()), |(mut body, mut pending)| async move {
        loop {
            match body.next().await {
                Some(Ok(chunk)) => {
                    pending.extend_from_slice(&chunk);
                    if let Some(end) = pending.windows(END.len()).rposition(|window| window == END) {
                        let rest = pending.split_off(end + END.len());
                        return Some((Ok(events(pending)), (body, rest)));
                    }
                }
                Some(Err(error)) => return Some((Err(error), (body, pending))),
                None if pending.is_empty() => return None,
                None => return Some((Ok(events(pending)), (body, Vec::new()))),
            }
        }
    });
    Body::from_stream(events)
}

/// Whole events.
fn events(bytes: Vec<u8>) -> Bytes {
    let Some(text) = std::str::from_utf8(&bytes).ok().filter(|text| exact::is_carried(text)) else {
        return bytes.into();
    };
    let mut restored = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        match line.strip_prefix("data:").and_then(exact::restore) {
            Some(message) => {
                restored.push_str("data: ");
                restored.push_str(&message);
                restored.push('\n');
            }
            None => restored.push_str(line),
        }
    }
    restored.into()
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;
    use crate::stub::json;

    #[tokio::test]
    async fn a_carrier_is_restored_however_its_event_is_cut_up_and_the_rest_passes_151() {
        let params = exact::carried(&json(r#"{"n":12345678901234567890.10}"#));
        let message = format!(r#"{{"jsonrpc":"2.0","method":"notifications/tasks","params":{params}}}"#);
        let text = format!(":\n\nid: 0\ndata: {message}\n\ndata: {{\"jsonrpc\":\"2.0\",\"id\":1}}\n\ndata: cut");
        let whole = ":\n\nid: 0\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tasks\",\"params\":{\"n\":12345678901234567890.10}}\n\n\
                     data: {\"jsonrpc\":\"2.0\",\"id\":1}\n\ndata: cut";
        for size in [1, 7, text.len()] {
            let chunks: Vec<_> =
                text.as_bytes().chunks(size).map(|chunk| Ok::<_, axum::Error>(chunk.to_vec())).collect();
            let body = restore(Body::from_stream(stream::iter(chunks)));
            let restored = to_bytes(body, 1 << 16).await.unwrap();
            assert_eq!(std::str::from_utf8(&restored).unwrap(), whole, "{size}");
        }
    }
}
