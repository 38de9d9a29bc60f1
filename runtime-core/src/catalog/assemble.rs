//! From what servers list to what agents see: pure (BEHAVIOURS 38, 39, 100, 101, 130, 143, 147, 150).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde_json::value::RawValue;

use super::definition::{Members, quoted};
use super::{Guardrail, Routing, Tool, View, Why, Withheld};
use crate::config::{MissingTool, RoutingConfig};
use crate::task::Toolset;
use crate::task::limits::clip;

/// Longest name of a tool, as the protocol advises; models' interfaces refuse a whole request for a longer one.
const NAME_MAX_CHARS: usize = 128;
/// Most faults of one server's tools that are told one by one.
const MAX_FAULTS: usize = 10;

/// What is added to a submit tool's description (7).
pub(super) const BACKGROUND_CONTRACT: &str = "This tool starts a background task and returns at once with a local \
     task_id; the task is tracked automatically until it ends, so do not poll it or call this tool again to check on it.";

/// What a submit tool answers here, in place of what it answers on its server.
pub(super) const SUBMIT_OUTPUT_SCHEMA: &str = concat!(
    r#"{"type":"object","properties":{"task_id":{"type":"string"},"task_name":{"type":"string"},"#,
    r#""status":{"type":"string"},"message":{"type":"string"}},"required":["task_id","task_name","status","message"]}"#
);

/// One server as far as the catalogue is concerned.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) prefix: bool,
    pub(super) toolsets: Vec<Arc<Toolset>>,
    pub(super) routing: Arc<RoutingConfig>,
}

impl Server {
    /// What agents call a tool of this server (100).
    pub(super) fn visible_name(&self, raw_name: &str) -> String {
        if self.prefix { format!("{}_{raw_name}", self.name) } else { raw_name.to_owned() }
    }
}

/// What does not depend on servers.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    pub(super) on_missing_tool: MissingTool,
    pub(super) guardrail: Guardrail,
    /// Names of the daemon's own tools, which no server's may take.
    pub(super) reserved: Vec<&'static str>,
}

/// A server's answer to discovery, or why there is none.
pub(super) type Discovered = Result<Arc<[Box<RawValue>]>, String>;

/// The view of what was discovered; a server that was not asked yet has `None`.
pub(super) fn assemble<'a>(
    servers: impl IntoIterator<Item = (&'a Server, Option<&'a Discovered>)>,
    rules: &Rules,
) -> View {
    let mut view = View::default();
    let (mut candidates, mut incomplete) = (Vec::new(), Vec::new());
    let mut is_incomplete = false;
    for (server, discovered) in servers {
        match discovered {
            None => {}
            Some(Err(error)) => {
                view.problems.push(format!("server {}: its tools could not be listed: {error}", server.name));
            }
            Some(Ok(tools)) => {
                let missing = missing(server, tools);
                let tools = visible(server, tools, &mut view);
                if missing.is_empty() {
                    candidates.extend(tools);
                } else {
                    is_incomplete = true;
                    incomplete.extend(tools);
                    let names = missing.join(", ");
                    view.problems.push(format!("server {} does not have the configured tools {names}", server.name));
                }
            }
        }
    }
    if is_incomplete && rules.on_missing_tool == MissingTool::FailAll {
        view.problems
            .push("no server's tools are shown until they match (gateway.on_missing_tool: fail_all)".to_owned());
        incomplete.append(&mut candidates);
    }
    view.withheld.extend(incomplete.into_iter().map(|tool| withheld(tool, Why::MissingTool)));
    let collisions = collisions(&candidates, rules, &mut view);
    for tool in candidates {
        if collisions.contains(&tool.name) {
            continue;
        }
        if rules.guardrail.allows(&tool.name) {
            view.tools.push(Arc::new(tool));
        } else {
            view.withheld.push(withheld(tool, Why::Guardrail));
        }
    }
    view.index = view.tools.iter().enumerate().map(|(at, tool)| (tool.name.clone(), at)).collect();
    view
}

fn withheld(tool: Tool, why: Why) -> Withheld {
    Withheld { name: tool.name, servers: vec![tool.server], why }
}

/// Configured raw tools that the server does not list (39).
fn missing<'a>(server: &'a Server, tools: &[Box<RawValue>]) -> Vec<&'a str> {
    if server.toolsets.is_empty() {
        return Vec::new();
    }
    let listed: HashSet<String> = tools.iter().filter_map(|raw| Members::read(raw)?.text("name")).collect();
    let mut missing = Vec::new();
    for toolset in &server.toolsets {
        missing.extend(toolset.tools().filter(|tool| !listed.contains(*tool)));
    }
    missing
}

/// The server's tools that are for agents, under their visible names.
fn visible(server: &Server, tools: &[Box<RawValue>], view: &mut View) -> Vec<Tool> {
    let View { problems, withheld, .. } = view;
    let mut faults = Faults::default();
    let invalid = |name: &str| Withheld {
        name: clip(name, NAME_MAX_CHARS),
        servers: vec![server.name.clone()],
        why: Why::Invalid,
    };
    let hidden: HashSet<&str> = server.toolsets.iter().flat_map(|toolset| toolset.hidden_tools()).collect();
    let submits: HashMap<&str, &Arc<Toolset>> =
        server.toolsets.iter().map(|toolset| (toolset.submit_tool.as_str(), toolset)).collect();
    let mut seen = HashSet::new();
    let mut visible = Vec::new();
    for raw in tools {
        let members = Members::read(raw);
        let raw_name = members.as_ref().and_then(|members| members.text("name")).filter(|name| !name.is_empty());
        let Some((members, raw_name)) = members.zip(raw_name) else {
            faults.add("a tool without a name is left out".to_owned());
            continue;
        };
        if hidden.contains(raw_name.as_str()) {
            continue;
        }
        let name = server.visible_name(&raw_name);
        let shown = clip(&name, NAME_MAX_CHARS);
        if !is_valid(&name) {
            faults.add(format!(
                "the tool {shown:?} is left out: names may only have letters, digits, _ and -, {NAME_MAX_CHARS} at most"
            ));
            withheld.push(invalid(&name));
            continue;
        }
        if !seen.insert(raw_name.clone()) {
            faults.add(format!("it lists the tool {raw_name} twice; the first counts"));
            continue;
        }
        if !members.is_object("inputSchema") {
            // Clients refuse the whole list for it.
            faults.add(format!("the tool {raw_name} is left out: its inputSchema is no object"));
            withheld.push(invalid(&name));
            continue;
        }
        let toolset = submits.get(raw_name.as_str()).map(|toolset| Arc::clone(toolset));
        let definition = match &toolset {
            Some(_) => submit_definition(&members, &name),
            None if name == raw_name => raw.clone(),
            None => members.with(&[("name", Some(&quoted(&name)))]),
        };
        let routing = Routing::resolve(&server.routing, &raw_name);
        visible.push(Tool { name, server: server.name.clone(), raw_name, definition, toolset, routing });
    }
    problems.extend(faults.told(&server.name));
    visible
}

/// What is wrong with one server's tools: it may have thousands.
#[derive(Default)]
struct Faults {
    first: Vec<String>,
    more: usize,
}

impl Faults {
    fn add(&mut self, fault: String) {
        if self.first.len() < MAX_FAULTS {
            self.first.push(fault);
        } else {
            self.more += 1;
        }
    }

    fn told(self, server: &str) -> impl Iterator<Item = String> {
        let more = (self.more > 0).then(|| format!("{} more of its tools are faulty", self.more));
        self.first.into_iter().chain(more).map(move |fault| format!("server {server}: {fault}"))
    }
}

/// A submit tool as agents see it: it returns at once, and clients need not know MCP Tasks for it.
fn submit_definition(members: &Members<'_>, name: &str) -> Box<RawValue> {
    let description = match members.text("description") {
        Some(text) if !text.trim().is_empty() => format!("{}\n\n{BACKGROUND_CONTRACT}", text.trim_end()),
        _ => BACKGROUND_CONTRACT.to_owned(),
    };
    members.with(&[
        ("name", Some(&quoted(name))),
        ("description", Some(&quoted(&description))),
        ("outputSchema", Some(SUBMIT_OUTPUT_SCHEMA)),
        // What it says of native tasks is about the server's own answers, which the daemon takes.
        ("execution", None),
    ])
}

/// Visible names that more than one tool has (143), or that are the daemon's own.
fn collisions(candidates: &[Tool], rules: &Rules, view: &mut View) -> HashSet<String> {
    let mut owners: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for tool in candidates {
        owners.entry(&tool.name).or_default().push(&tool.server);
    }
    let mut collisions = HashSet::new();
    for (name, servers) in owners {
        let why = if rules.reserved.contains(&name) {
            view.problems.push(format!(
                "the tool {name} of server {} is withheld: the name is the daemon's own",
                servers.join(", ")
            ));
            Why::Reserved
        } else if servers.len() > 1 {
            view.problems.push(format!("the tool {name} is withheld: servers {} both have it", servers.join(" and ")));
            Why::Collision
        } else {
            continue;
        };
        let servers = servers.into_iter().map(str::to_owned).collect();
        view.withheld.push(Withheld { name: name.to_owned(), servers, why });
        collisions.insert(name.to_owned());
    }
    collisions
}

fn is_valid(name: &str) -> bool {
    (1..=NAME_MAX_CHARS).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

#[cfg(test)]
#[path = "assemble_tests.rs"]
mod tests;
