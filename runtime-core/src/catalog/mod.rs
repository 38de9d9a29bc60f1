//! The tools that agents see: discovery, names, toolsets, guardrail (BEHAVIOURS D, M, N, 130).

mod assemble;
mod cache;
mod definition;
mod discovery;
mod guardrail;
mod live;
mod personal;
mod routing;
mod search;
mod shared;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::value::RawValue;

pub use discovery::Catalog;
pub use guardrail::Guardrail;
pub use live::{Live, LiveOptions, Reload};
pub use personal::{Personal, Shown};
pub use routing::{Routing, hints, matching};
pub use search::search;
pub use shared::ResetScope;

use crate::task::Toolset;

/// A tool as an agent sees it.
#[derive(Debug, Clone)]
pub struct Tool {
    /// The visible name.
    pub name: String,
    /// The server that has it.
    pub server: String,
    /// Its name there.
    pub raw_name: String,
    /// The `Tool` object to list: as the server sent it but for the name and, for a submit tool, description and output
    /// schema.
    pub definition: Box<RawValue>,
    /// The toolset it submits to, for a submit tool.
    pub toolset: Option<Arc<Toolset>>,
    /// When a model should prefer it (128).
    pub routing: Routing,
}

/// A tool that a server has and agents do not see, though they would but for this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withheld {
    /// The visible name that it would have.
    pub name: String,
    /// Whose it is; several where their names collide.
    pub servers: Vec<String>,
    /// Why.
    pub why: Why,
}

/// Why a tool is withheld.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The guardrail denies it (130).
    Guardrail,
    /// Another server has one of the same visible name (143).
    Collision,
    /// The name is the daemon's own.
    Reserved,
    /// A server lacks a tool that its toolsets name (39, 147, 150).
    MissingTool,
    /// Models cannot call a tool of this name, or clients would refuse its schema (101).
    Invalid,
}

impl Why {
    /// The word for programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Guardrail => "guardrail",
            Self::Collision => "collision",
            Self::Reserved => "reserved",
            Self::MissingTool => "missing_tool",
            Self::Invalid => "invalid",
        }
    }
}

/// The catalogue at one moment.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Visible tools, in the order of servers and of each server's answer.
    pub tools: Vec<Arc<Tool>>,
    /// What is wrong: servers that could not be discovered, missing configured tools (147), collisions (143), invalid names.
    pub problems: Vec<String>,
    /// What agents do not see, and why.
    pub withheld: Vec<Withheld>,
    /// Where each visible name is in `tools`.
    index: HashMap<String, usize>,
}

impl View {
    /// The tool with this visible name.
    pub fn find(&self, name: &str) -> Option<&Arc<Tool>> {
        self.index.get(name).and_then(|at| self.tools.get(*at))
    }

    /// Whether agents are shown the same as in `other`.
    fn lists_as<'a>(&'a self, other: &'a Self) -> bool {
        let definitions = |view: &'a Self| view.tools.iter().map(|tool| tool.definition.get());
        definitions(self).eq(definitions(other))
    }
}

/// The daemon's tool that finds deferred ones, where `tool_search.enabled`.
pub const TOOL_SEARCH: &str = "tool_search";

/// Most tools that one search finds.
pub const MAX_FOUND: usize = 5;

/// The daemon's own tools (INTERFACE).
pub const BUILTIN_TOOLS: [&str; 3] = ["list_background_tasks", "get_background_task", "cancel_background_task"];
