//! Where a mistake stands in a file, and how that place is shown: keys as they are, values only where they can be no secret.

use std::fmt::Display;

use super::ConfigError;
use super::redact::is_secret;

/// Most mistakes that are told at once; whoever has more has the wrong file.
const MAX_MISTAKES: usize = 20;
/// Most characters of a line that are shown.
const MAX_WIDTH: usize = 100;
/// What stands for a value that is not shown.
const HIDDEN: char = '…';

/// A place in a text, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl From<serde_saphyr::Location> for Place {
    fn from(at: serde_saphyr::Location) -> Self {
        Self { line: at.line() as usize, column: at.column() as usize }
    }
}

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    said: String,
    place: Option<Place>,
}

impl Mistake {
    /// `what` is wrong in `file`, at `place` where that is known.
    pub(super) fn new(file: &str, place: Option<Place>, what: impl Display) -> Self {
        let at = place.map(|at| format!(", line {}, column {}", at.line, at.column)).unwrap_or_default();
        // A default has neither file nor place.
        let at = format!("{file}{at}");
        Self { said: if at.is_empty() { what.to_string() } else { format!("{at}: {what}") }, place }
    }

    /// The same in a text that is in no file, and cannot be shown.
    pub(super) fn unplaced(self) -> Self {
        Self { place: None, ..self }
    }

    /// What is wrong.
    pub(super) fn said(self) -> String {
        self.said
    }
}

impl From<ConfigError> for Mistake {
    fn from(error: ConfigError) -> Self {
        Self { said: error.0, place: None }
    }
}

/// All that is wrong with `text`, from its top to its end, each with the line that it is in; what is in no line comes last.
pub(super) fn refusal(mistakes: &[Mistake], text: &str) -> ConfigError {
    let mut sorted: Vec<&Mistake> = mistakes.iter().collect();
    sorted.sort_by_key(|mistake| mistake.place.map_or((usize::MAX, 0), |place| (place.line, place.column)));
    let tell = |mistake: &Mistake| {
        let shown = mistake.place.and_then(|place| excerpt(text, place)).unwrap_or_default();
        format!("{}{shown}", mistake.said)
    };
    let mut said: Vec<String> = sorted.into_iter().take(MAX_MISTAKES).map(tell).collect();
    if mistakes.len() > MAX_MISTAKES {
        said.push(format!("and {} more", mistakes.len() - MAX_MISTAKES));
    }
    ConfigError(said.join("\n"))
}

/// The line at `place`, its number, and a mark below the column. Each line of it begins with a blank.
fn excerpt(text: &str, place: Place) -> Option<String> {
    let line = text.lines().nth(place.line.checked_sub(1)?)?;
    let (shown, mark) = window(&reduced(line, place.column.saturating_sub(1)));
    let number = format!("{:>5}", place.line);
    let blank = " ".repeat(number.len());
    Some(format!("\n{number} | {shown}\n{blank} | {}^", " ".repeat(mark)))
}

/// A line as it may be shown, and where in it the mark belongs.
#[derive(Debug, PartialEq, Eq)]
struct Reduced {
    shown: Vec<char>,
    mark: usize,
}

/// The part of a long line around the mark.
fn window(line: &Reduced) -> (String, usize) {
    if line.shown.len() <= MAX_WIDTH {
        return (line.shown.iter().collect(), line.mark);
    }
    let from = line.mark.saturating_sub(MAX_WIDTH / 2).min(line.shown.len() - MAX_WIDTH);
    let mut shown: Vec<char> = line.shown.iter().copied().skip(from).take(MAX_WIDTH).collect();
    if from > 0 {
        shown[0] = HIDDEN;
    }
    (shown.into_iter().collect(), line.mark - from)
}

/// Takes the values out of a line of YAML or JSON. `column` is the mark's, from 0.
fn reduced(line: &str, column: usize) -> Reduced {
    let source: Vec<char> = line.chars().collect();
    let mut reduced = Reduced { shown: Vec::new(), mark: 0 };
    let (mut at, mut secret, mut flow) = (0, false, false);
    let (mut marked, mut after_colon) = (false, false);
    while at < source.len() {
        let mut piece = piece(&source, at, flow);
        if after_colon && piece.is_key {
            // `password: a: b` is no YAML, and `a` no key.
            piece = Piece { is_key: false, is_value: true, ..piece };
        }
        if !marked && column < at + piece.length {
            // Inside what is hidden, the mark is below its beginning.
            reduced.mark = reduced.shown.len() + if piece.is_value { 0 } else { column - at };
            marked = true;
        }
        let text = &source[at..at + piece.length];
        at += piece.length;
        if piece.is_key {
            let name: String = text.iter().filter(|c| c.is_alphanumeric() || matches!(c, '_' | '-')).collect();
            secret = is_secret(&name);
        }
        if piece.is_value && (secret || !is_literal(text)) {
            reduced.shown.push(HIDDEN);
        } else if piece.ends {
            break;
        } else {
            reduced.shown.extend(text.iter().map(|c| if c.is_control() { ' ' } else { *c }));
        }
        flow |= matches!(text, ['{' | '[']);
        after_colon = matches!(text, [':']) || (after_colon && text.iter().all(|c| c.is_whitespace()));
    }
    if !marked {
        reduced.mark = reduced.shown.len();
    }
    reduced
}

/// A part of a line.
#[derive(Debug, Clone, Copy, Default)]
struct Piece {
    length: usize,
    is_key: bool,
    is_value: bool,
    /// A comment: nothing follows it, and it is not shown.
    ends: bool,
}

/// The piece that begins at `at`. In a flow (`{…}`, `[…]`) commas and brackets part values; elsewhere one goes on to the end.
fn piece(line: &[char], at: usize, flow: bool) -> Piece {
    let structure = |length| Piece { length, ..Piece::default() };
    let blank_follows = |at: usize| line.get(at).is_none_or(|c| c.is_whitespace());
    match line[at] {
        c if c.is_whitespace() => structure(1),
        '{' | '}' | '[' | ']' | ',' | ':' => structure(1),
        '-' if blank_follows(at + 1) => structure(1),
        '#' => Piece { length: line.len() - at, ends: true, ..Piece::default() },
        quote @ ('"' | '\'') => {
            let mut end = at + 1;
            while end < line.len() && line[end] != quote {
                end += if quote == '"' && line[end] == '\\' { 2 } else { 1 };
            }
            let end = (end + 1).min(line.len());
            let colon = line[end..].iter().find(|c| !c.is_whitespace()) == Some(&':');
            let is_key = colon && is_name(&line[at + 1..end.saturating_sub(1).max(at + 1)]);
            Piece { length: end - at, is_key, is_value: !is_key, ends: false }
        }
        _ => {
            let key = line[at..].iter().position(|c| !is_name(&[*c])).map(|length| (length, at + length));
            if let Some((length, end)) = key.filter(|(length, _)| *length > 0)
                && line[end] == ':'
                && blank_follows(end + 1)
            {
                return Piece { length, is_key: true, ..Piece::default() };
            }
            let mut end = at;
            while end < line.len() && !(flow && matches!(line[end], ',' | '}' | ']')) {
                end += 1;
            }
            let trailing = line[at..end].iter().rev().take_while(|c| c.is_whitespace() || **c == ',').count();
            Piece { length: (end - at - trailing).max(1), is_value: true, ..Piece::default() }
        }
    }
}

fn is_name(text: &[char]) -> bool {
    !text.is_empty() && text.iter().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '$'))
}

/// What no secret looks like.
fn is_literal(text: &[char]) -> bool {
    let text: String = text.iter().collect();
    matches!(text.as_str(), "true" | "false" | "null" | "~")
        || (text.len() <= 12 && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'.')))
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
