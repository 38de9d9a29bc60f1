//! Inputs: texts of the corpus, changed by a few edits that know what hurts parsers.
//!
//! Pure random bytes die at the first character of a parser; an edited text gets far into it.

use bolero::TypeGenerator;

/// What is put in: values, members, and pieces of syntax that are read in more than one way somewhere.
const TOKENS: &[&str] = &[
    "null",
    "true",
    "0",
    "-1",
    "1e308",
    "1e999",
    "-0.0",
    "1E-400",
    "18446744073709551616",
    "0.1000000000000000055511151231257827",
    "NaN",
    "Infinity",
    "\"\"",
    "\" \"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"\\udc00\\ud800\"",
    "\"running\"",
    "\"completed\"",
    "\"input_required\"",
    "\"cancelled\"",
    "\"r-1\"",
    "\"task_not_found\"",
    "{}",
    "[]",
    "[{}]",
    "{\"a\":{\"a\":1}}",
    "\"task_id\":\"r-1\",",
    "\"task_id\":7,",
    "\"status\":\"running\",",
    "\"status\":\"failed\",",
    "\"isError\":true,",
    "\"error_code\":\"task_not_found\",",
    "\"result\":1,",
    "\"id\":1,",
    "\"$SECRET\"",
    "$SECRET",
    "$UNSET",
    "\"enabled\":\"yes\",",
    "\u{feff}",
    "\0",
    "\u{fffd}",
    "\u{1f469}\u{200d}\u{1f692}",
    "\r\n",
    "\r",
    "\n\n",
    "data:",
    "data: ",
    ":",
    ",",
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    "&a",
    "*a",
    "<<: ",
    "- ",
    "!!int ",
    "|",
    ">",
    "# ",
    "---\n",
    "...\n",
    "\t",
    "on",
    "0x1F",
    "0o7",
    "1_000",
    "9999999999999999999",
    "Wed, 21 Oct 2015 07:28:00 GMT",
    "120",
    "-5",
    "1.5",
    "postgres://u:p@h/d",
    "127.0.0.1:0",
    "::1",
    "é",
];

/// A change of a text.
#[derive(Debug, Clone, TypeGenerator)]
enum Edit {
    /// Puts a token in.
    Insert { at: u16, token: u8 },
    /// Puts a byte in.
    Byte { at: u16, byte: u8 },
    /// What follows the nth colon, up to the next comma or bracket, becomes a token.
    Value { nth: u8, token: u8 },
    /// Takes a piece out.
    Remove { at: u16, len: u8 },
    /// Says a piece again and again.
    Repeat { at: u16, len: u8, times: u8 },
    /// Puts brackets around everything after a place, as deep as parsers go and deeper.
    Nest { at: u16, depth: u8, objects: bool },
    /// Cuts the text off.
    Cut { at: u16 },
}

/// A text and its edits.
#[derive(Debug, Clone, TypeGenerator)]
pub(crate) struct Edited {
    pick: u8,
    #[generator(bolero::produce::<Vec<Edit>>().with().len(0usize..6))]
    edits: Vec<Edit>,
    /// For whatever else a target chooses by.
    pub(crate) choice: u16,
}

/// Longer texts say nothing more, and slow everything down.
const MAX_BYTES: usize = 1 << 18;

impl Edited {
    /// The bytes, from one of `corpus`.
    pub(crate) fn bytes(&self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut text = corpus[usize::from(self.pick) % corpus.len()].clone();
        for edit in &self.edits {
            apply(edit, &mut text);
            text.truncate(MAX_BYTES);
        }
        text
    }
}

fn token(token: u8) -> &'static [u8] {
    TOKENS[usize::from(token) % TOKENS.len()].as_bytes()
}

fn apply(edit: &Edit, text: &mut Vec<u8>) {
    let place = |at: u16, text: &[u8]| usize::from(at) % (text.len() + 1);
    match *edit {
        Edit::Insert { at, token: which } => {
            let at = place(at, text);
            text.splice(at..at, token(which).iter().copied());
        }
        Edit::Byte { at, byte } => text.insert(place(at, text), byte),
        Edit::Value { nth, token: which } => {
            let colons: Vec<_> =
                text.iter().enumerate().filter_map(|(at, byte)| (*byte == b':').then_some(at)).collect();
            let Some(from) = colons.get(usize::from(nth) % colons.len().max(1)).map(|colon| colon + 1) else { return };
            let rest = text[from..].iter().position(|byte| matches!(byte, b',' | b'}' | b']' | b'\n'));
            let to = rest.map_or(text.len(), |rest| from + rest);
            text.splice(from..to, token(which).iter().copied());
        }
        Edit::Remove { at, len } => {
            let at = place(at, text);
            text.drain(at..(at + usize::from(len)).min(text.len()));
        }
        Edit::Repeat { at, len, times } => {
            let at = place(at, text);
            let piece = text[at..(at + usize::from(len)).min(text.len())].repeat(usize::from(times));
            text.splice(at..at, piece);
        }
        Edit::Nest { at, depth, objects } => {
            let at = place(at, text);
            let (open, close): (&[u8], &[u8]) = if objects { (b"{\"a\":", b"}") } else { (b"[", b"]") };
            let tail = close.repeat(usize::from(depth));
            text.splice(at..at, open.repeat(usize::from(depth)));
            text.extend_from_slice(&tail);
        }
        Edit::Cut { at } => text.truncate(place(at, text)),
    }
}
