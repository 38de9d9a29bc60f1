//! A fake MCP server with background tasks: fast, faulty on demand, and with a record of the truth of its own.

mod gate;
mod http;
mod http_sse;
mod native;
mod oauth;
mod script;
mod stdio;
mod task;
mod tools;

pub use gate::{Gate, Gates};
pub use http::{CALLER, Called, FakeServer, FakeState, Faults};
pub use http_sse::{Endpoint, FakeSse, SseFaults, SseState};
pub use native::{NATIVE_TOOL, native_tools};
pub use oauth::{AuthorityFaults, AuthorityState, FakeAuthority};
pub use script::{End, Script};
pub use stdio::serve_stdio;
pub use task::{FakeTask, Truth};
pub use tools::{Core, Counters, SharedCore, tools};

/// How the server speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Era {
    /// `initialize` and sessions.
    #[default]
    Legacy,
    /// 2026-07-28: no sessions.
    Modern,
    /// `initialize` without a session id.
    Stateless,
    /// As stateless, and never answers `server/discover`.
    Silent,
}

impl std::str::FromStr for Era {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "legacy" => Ok(Self::Legacy),
            "modern" => Ok(Self::Modern),
            "stateless" => Ok(Self::Stateless),
            "silent" => Ok(Self::Silent),
            other => Err(format!("unknown era {other}")),
        }
    }
}

/// What a fake server is like.
#[derive(Debug, Clone, Default)]
pub struct FakeOptions {
    /// The loopback port; 0 picks one.
    pub port: u16,
    /// How it speaks.
    pub era: Era,
    /// Whether it answers with event streams.
    pub sse: bool,
    /// The script of tasks whose submit brings none.
    pub script: Script,
    /// The tools to list instead of the usual ones.
    pub tools: Option<serde_json::Value>,
    /// Whether it keeps a journal of tool calls, those that a fault swallows included.
    pub journal: bool,
    /// Whose tokens every request must carry, if anybody's.
    pub authority: Option<std::sync::Arc<AuthorityState>>,
}
