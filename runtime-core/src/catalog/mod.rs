//! The tools that agents see: discovery, names, toolsets, guardrail (BEHAVIOURS D, M, N, 130).

use std::sync::Arc;

use serde_json::value::RawValue;

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
}

/// The catalogue at one moment.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Visible tools, in the order of servers and of each server's answer.
    pub tools: Vec<Arc<Tool>>,
    /// What is wrong: servers that could not be discovered, missing configured tools (147), collisions (143), invalid names.
    pub problems: Vec<String>,
}

impl View {
    /// The tool with this visible name.
    pub fn find(&self, name: &str) -> Option<&Arc<Tool>> {
        self.tools.iter().find(|tool| tool.name == name)
    }
}
