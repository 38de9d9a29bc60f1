//! A child's error output: drained, so that it never blocks on it, into the log, within bounds.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::time::Instant;

use super::session::{Line, next_line};
use crate::task::limits::clip;
use crate::upstream::scrub::Scrubber;

/// Longest line that is logged as one, in bytes.
const LINE_MAX_BYTES: usize = 4_096;
/// Most lines that are logged of one process in a [`WINDOW`].
const LINES: u32 = 100;
const WINDOW: Duration = Duration::from_secs(10);
/// How much of the last line is kept for errors.
const LAST_MAX_CHARS: usize = 200;

/// Logs `errors` to their end; the last line that was not blank.
pub(super) async fn drain(errors: impl AsyncRead + Unpin, server: String, scrubber: Scrubber) -> Option<String> {
    let mut errors = BufReader::new(errors);
    let mut throttle = Throttle::new(Instant::now());
    let (mut line, mut last) = (Vec::new(), None);
    loop {
        match next_line(&mut errors, &mut line, LINE_MAX_BYTES).await {
            Ok(Line::End) | Err(_) if line.is_empty() => return last,
            // A last line without an end is one too.
            Ok(Line::End | Line::Whole) | Err(_) => {}
            // What follows is read as further lines.
            Ok(Line::TooLong) => {
                let rest = errors.buffer().len();
                let take = rest.min(LINE_MAX_BYTES.saturating_sub(line.len()).max(1));
                line.extend_from_slice(&errors.buffer()[..take]);
                errors.consume(take);
            }
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        if let Some(left_out) = throttle.admit(Instant::now()) {
            if left_out > 0 {
                tracing::debug!(server, left_out, "stderr: more than {LINES} lines in {WINDOW:?}; some are left out");
            }
            tracing::debug!(server, "stderr: {}", scrubber.scrub(text));
        }
        last = Some(clip(&scrubber.scrub(text), LAST_MAX_CHARS));
    }
}

/// Lets a number of lines through a window.
struct Throttle {
    since: Instant,
    passed: u32,
    left_out: u64,
}

impl Throttle {
    fn new(now: Instant) -> Self {
        Self { since: now, passed: 0, left_out: 0 }
    }

    /// Whether a line is let through, and how many were left out before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= WINDOW {
            (self.since, self.passed) = (now, 0);
        }
        if self.passed >= LINES {
            self.left_out += 1;
            return None;
        }
        self.passed += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_words_are_kept_scrubbed_and_clipped() {
        let words = |text: Vec<u8>| async move {
            drain(text.as_slice(), "s".to_owned(), Scrubber::new([("API_KEY", "hunter2")])).await
        };
        assert_eq!(words(b"a\nno hunter2 today \n\n".to_vec()).await.as_deref(), Some("no *** today"));
        assert_eq!(words(b"a\ncut off".to_vec()).await.as_deref(), Some("cut off"));
        assert_eq!(words(Vec::new()).await, None);
        let long = words([b"x".repeat(1 << 20), b"\n".to_vec()].concat()).await.unwrap();
        assert!(long.chars().count() <= LAST_MAX_CHARS, "{}", long.len());
    }

    #[test]
    fn a_flood_is_thinned_out_and_counted_28() {
        let start = Instant::now();
        let mut throttle = Throttle::new(start);
        assert_eq!((0..1_000).filter_map(|_| throttle.admit(start)).collect::<Vec<_>>(), vec![0; LINES as usize]);
        assert_eq!(throttle.admit(start + WINDOW), Some(1_000 - u64::from(LINES)));
        assert_eq!(throttle.admit(start + WINDOW), Some(0));
    }
}
