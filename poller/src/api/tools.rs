//! The catalogue: what agents see, with routing data, and what they do not see and why (BEHAVIOURS 128, 143, 147, 150).

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use super::Api;
use super::openapi::{Routes, operation};
use super::problem::Problem;
use super::thread::json;
use crate::auth::{Identity, Scope};

/// The routes of this room.
pub fn routes(routes: Routes) -> Routes {
    let described =
        operation("listTools", "information", "The tools that agents see, and what they do not see and why");
    routes.get("/api/mcp/tools", tools, described.answers::<Catalogue<'static>>(200, "The catalogue."))
}

/// When a tool should be preferred.
#[derive(Serialize, JsonSchema)]
struct Routing<'a> {
    mode: &'static str,
    priority: u8,
    keywords: &'a [String],
}

/// A tool that agents see.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Tool")]
struct CatalogueTool<'a> {
    name: &'a str,
    server: &'a str,
    raw_name: &'a str,
    task: Option<&'a str>,
    routing: Routing<'a>,
    /// The server's own definition, under the visible name.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    definition: &'a RawValue,
}

/// A tool that agents do not see.
#[derive(Serialize, JsonSchema)]
struct Withheld<'a> {
    name: &'a str,
    servers: &'a [String],
    reason: &'static str,
}

/// What agents see.
#[derive(Serialize, JsonSchema)]
struct Catalogue<'a> {
    tools: Vec<CatalogueTool<'a>>,
    withheld: Vec<Withheld<'a>>,
    problems: &'a [String],
}

/// `GET /api/mcp/tools`.
pub async fn tools(State(api): State<Api>, caller: Identity) -> Result<Response, Problem> {
    caller.require(Scope::Tasks)?;
    let tools = &api.daemon.tools;
    let visible = tools.tools(&caller.user_id).await;
    let (withheld, mut problems) = (tools.last_withheld(), tools.last_problems());
    if caller.require(Scope::Admin).is_ok() {
        problems.extend(api.daemon.live.last_reload().error);
    }
    let visible = visible.iter().map(|tool| CatalogueTool {
        name: &tool.name,
        server: &tool.server,
        raw_name: &tool.raw_name,
        task: tool.toolset.as_ref().map(|toolset| toolset.name.as_str()),
        routing: Routing {
            mode: tool.routing.mode.as_str(),
            priority: tool.routing.priority,
            keywords: &tool.routing.keywords,
        },
        definition: &tool.definition,
    });
    let withheld =
        withheld.iter().map(|tool| Withheld { name: &tool.name, servers: &tool.servers, reason: tool.why.as_str() });
    let catalogue = Catalogue { tools: visible.collect(), withheld: withheld.collect(), problems: &problems };
    Ok(json(StatusCode::OK, &catalogue))
}
