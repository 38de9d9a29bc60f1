//! A parser for server-sent events, fed with chunks as they come.

use std::ops::ControlFlow;

/// A finished event.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event<'a> {
    /// What it is called; empty where it has no name.
    pub(super) name: &'a [u8],
    pub(super) data: &'a [u8],
}

/// The state between chunks. What it holds is bounded by what it was fed; callers cap that.
#[derive(Debug, Default)]
pub(super) struct SseParser {
    line: Vec<u8>,
    name: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    after_cr: bool,
    begun: bool,
}

impl SseParser {
    /// How many bytes wait for the end of their event.
    pub(super) fn held(&self) -> usize {
        self.line.len() + self.name.len() + self.data.len()
    }

    /// Feeds a chunk; `event` gets each finished event and may stop the parsing.
    pub(super) fn feed<B>(
        &mut self,
        mut chunk: &[u8],
        mut event: impl FnMut(Event<'_>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        while !chunk.is_empty() {
            if std::mem::take(&mut self.after_cr) && chunk[0] == b'\n' {
                chunk = &chunk[1..];
                continue;
            }
            let Some(end) = chunk.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.line.extend_from_slice(chunk);
                break;
            };
            self.after_cr = chunk[end] == b'\r';
            self.line.extend_from_slice(&chunk[..end]);
            chunk = &chunk[end + 1..];
            let line = std::mem::take(&mut self.line);
            self.line(&line, &mut event)?;
            // The buffer's capacity is kept for the next line.
            self.line = line;
            self.line.clear();
        }
        ControlFlow::Continue(())
    }

    fn line<B>(&mut self, line: &[u8], event: &mut impl FnMut(Event<'_>) -> ControlFlow<B>) -> ControlFlow<B> {
        let line = if std::mem::replace(&mut self.begun, true) {
            line
        } else {
            line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
        };
        if line.is_empty() {
            let flow = if self.has_data {
                event(Event { name: &self.name, data: &self.data })
            } else {
                ControlFlow::Continue(())
            };
            self.name.clear();
            self.data.clear();
            // One large event must not keep its memory for the life of a stream.
            self.data.shrink_to(1 << 20);
            self.has_data = false;
            return flow;
        }
        // Ids and retry hints serve resuming, which nobody does here.
        if let Some(value) = field(line, b"data") {
            if std::mem::replace(&mut self.has_data, true) {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value);
        } else if let Some(value) = field(line, b"event") {
            value.clone_into(&mut self.name);
        }
        ControlFlow::Continue(())
    }
}

/// The value of the field `name`, where the line is that field.
fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(name)?.split_first() {
        None => Some(&[]),
        Some((b':', value)) => Some(value.strip_prefix(b" ").unwrap_or(value)),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events(chunks: &[&[u8]]) -> Vec<String> {
        let mut parser = SseParser::default();
        let mut events = Vec::new();
        for chunk in chunks {
            let _ = parser.feed::<()>(chunk, |event| {
                events.push(String::from_utf8_lossy(event.data).into_owned());
                ControlFlow::Continue(())
            });
        }
        events
    }

    #[test]
    fn events_end_at_blank_lines_of_any_kind() {
        let text = "\u{feff}: hi\r\nevent: message\r\nid: 1\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\ndata:x\rdata\r\rdatax: no\n\ndata: cut";
        assert_eq!(events(&[text.as_bytes()]), ["{\"a\":\n1}", "x\n"]);
    }

    #[test]
    fn an_event_has_its_own_name_and_no_others() {
        let mut parser = SseParser::default();
        let mut named = Vec::new();
        let text = "event: endpoint\ndata: /m\n\ndata: 1\n\nevent: empty\n\nevent\ndata: 2\n\nevents: x\ndata: 3";
        let _ = parser.feed::<()>(text.as_bytes(), |event| {
            named.push((event.name.to_vec(), event.data.to_vec()));
            ControlFlow::Continue(())
        });
        let named: Vec<_> = named.iter().map(|(name, data)| (name.as_slice(), data.as_slice())).collect();
        assert_eq!(named, [(&b"endpoint"[..], &b"/m"[..]), (b"", b"1"), (b"", b"2")]);
        assert_eq!(parser.held(), "data: 3".len());
    }

    proptest! {
        #[test]
        fn where_chunks_are_cut_makes_no_difference(cuts in prop::collection::vec(0usize..60, 0..6)) {
            let text = "data: one\r\n\r\n:c\n\ndata: two\ndata: more\n\ndata: three\r\r".as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.sort_unstable();
            let (mut chunks, mut from) = (Vec::new(), 0);
            for cut in cuts {
                chunks.push(&text[from..cut]);
                from = cut;
            }
            chunks.push(&text[from..]);
            prop_assert_eq!(events(&chunks), ["one", "two\nmore", "three"]);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            events(&[&bytes]);
        }
    }
}
