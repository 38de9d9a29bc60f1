//! The bounds on everything that comes from a server or a caller (BEHAVIOURS B).

/// Longest remote task id, in characters (23).
pub const REMOTE_ID_MAX_CHARS: usize = 255;
/// Longest task (toolset) name, in characters (24).
pub const TASK_NAME_MAX_CHARS: usize = 255;
/// Longest name of a server with toolsets, in characters (24).
pub const SERVER_NAME_MAX_CHARS: usize = 128;
/// Longest persisted error, in characters (25).
pub const ERROR_MAX_CHARS: usize = 4_000;
/// Longest snippet of a tool's own error text, in characters (25).
pub const SNIPPET_MAX_CHARS: usize = 500;
/// Longest error text shown by the API, in characters (25).
pub const PUBLIC_ERROR_MAX_CHARS: usize = 500;
/// Longest stored `error_code`, in characters (134).
pub const ERROR_CODE_MAX_CHARS: usize = 64;
/// Largest `input_required` or `result_artifact`, in bytes of compact JSON (26).
pub const SLOT_MAX_BYTES: usize = 65_536;
/// Longest user, thread, run and tool call id and idempotency key, in characters.
pub const CALLER_ID_MAX_CHARS: usize = 255;
/// Largest arguments kept for an idempotent resubmit, in bytes.
pub const KEPT_ARGUMENTS_MAX_BYTES: usize = 1 << 20;

/// The configurable bounds on results (27).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest result kept whole, in bytes of compact JSON.
    pub max_result_bytes: usize,
    /// Length of the preview of a larger one, in characters.
    pub result_preview_max_chars: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_result_bytes: 65_536, result_preview_max_chars: 2_000 }
    }
}

/// The first `max_chars` characters of `text`, with U+0000 (which no text column takes) as U+FFFD (151).
pub fn clip(text: &str, max_chars: usize) -> String {
    text.chars().take(max_chars).map(|c| if c == '\0' { '\u{FFFD}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clip_counts_characters_and_replaces_nul_151() {
        assert_eq!(clip("äöü", 2), "äö");
        assert_eq!(clip("a\0b", 10), "a\u{FFFD}b");
    }
}
