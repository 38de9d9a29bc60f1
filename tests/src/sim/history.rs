//! What happened, line by line; two runs of one seed must have the same.

use std::fmt::Write as _;

/// The hash of every line, and the lines themselves where they are asked for.
#[derive(Debug)]
pub(super) struct History {
    hash: u64,
    lines: Option<Vec<String>>,
    buffer: String,
}

impl History {
    pub(super) fn new(keep: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, lines: keep.then(Vec::new), buffer: String::new() }
    }

    /// Adds a line that happened `at_ms` after the start.
    pub(super) fn add(&mut self, at_ms: u64, line: std::fmt::Arguments<'_>) {
        self.buffer.clear();
        let (seconds, ms) = (at_ms / 1_000, at_ms % 1_000);
        // Writing to a string does not fail.
        let _ = write!(self.buffer, "{seconds:>4}.{ms:03} {line}");
        for byte in self.buffer.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if let Some(lines) = &mut self.lines {
            lines.push(self.buffer.clone());
        }
    }

    /// FNV-1a over all lines.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// The lines, where they were kept.
    pub(super) fn take_lines(&mut self) -> Vec<String> {
        self.lines.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
