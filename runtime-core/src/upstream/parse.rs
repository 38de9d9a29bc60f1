//! The parsers of the wire as they are fuzzed: nothing else calls them from outside this room.

use std::ops::ControlFlow;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};

use super::http::retry_after as of_headers;
use super::jsonrpc::{Message, RpcError};
use super::sse::SseParser;

/// The data of the events that the chunks make up.
pub fn events<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let (mut parser, mut events) = (SseParser::default(), Vec::new());
    for chunk in chunks {
        let _ = parser.feed::<()>(chunk, |event| {
            events.push(event.data.to_vec());
            ControlFlow::Continue(())
        });
    }
    events
}

/// What answers the request `id` in a body or an event: the result, or the error's text.
pub fn answer(text: &str, id: u64) -> Option<Result<String, String>> {
    let messages = Message::read_all(text);
    let message = messages.iter().find(|message| message.answers(id))?;
    match (message.error, message.result) {
        (Some(error), _) => Some(Err(RpcError::read(error).into_call_error().message)),
        (None, result) => result.map(|result| Ok(result.get().to_owned())),
    }
}

/// The wait that a `Retry-After` asks for, at this time.
pub fn retry_after(value: &HeaderValue, now_ms: i64) -> Option<Duration> {
    of_headers(&HeaderMap::from_iter([(header::RETRY_AFTER, value.clone())]), now_ms)
}
