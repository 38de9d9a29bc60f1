//! The OpenAPI document, made from what the routes say of themselves; no route exists without saying it.
//!
//! Schemas are those of the types that are really sent, in JSON Schema 2020-12, the dialect of OpenAPI 3.1.

mod operation;
mod routes;
mod viewer;

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

pub use operation::{Operation, Param, operation};
pub use routes::Routes;
pub use viewer::routes;

use super::problem::ProblemBody;

/// A document that grows by operations.
#[derive(Debug, Default)]
pub struct Document {
    paths: Map<String, Value>,
    schemas: Schemas,
}

/// Schemas of what is sent, where an absent value is null, and of what is read, where it may be left out.
#[derive(Debug)]
struct Schemas {
    sent: SchemaGenerator,
    read: SchemaGenerator,
}

impl Default for Schemas {
    fn default() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        Self {
            sent: settings.clone().for_serialize().into_generator(),
            read: settings.for_deserialize().into_generator(),
        }
    }
}

impl Document {
    /// Adds what a method of a path does.
    pub fn add(&mut self, method: &http::Method, path: &str, operation: Operation) {
        let members = operation.document(path, &mut self.schemas);
        self.paths.entry(path).or_insert_with(|| json!({}))[method.as_str().to_ascii_lowercase()] = members;
    }

    /// The whole of it.
    pub fn finish(mut self) -> Value {
        self.schemas.sent.subschema_for::<ProblemBody>();
        let mut schemas = self.schemas.read.take_definitions(true);
        schemas.extend(self.schemas.sent.take_definitions(true));
        schemas.sort_keys();
        self.paths.sort_keys();
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "mcp-taskd",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "Background tasks on MCP servers: submit, watch, answer, cancel; and what operators and \
                                administrators need. Agents use `/mcp` instead.",
                "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
            },
            "servers": [{ "url": "/" }],
            "tags": [
                { "name": "tasks", "description": "A thread's tasks, for their user." },
                { "name": "operator", "description": "All users' tasks, and who works on them. Scope `operator`." },
                { "name": "admin", "description": "The MCP servers' configuration, API keys. Scope `admin`." },
                { "name": "connections", "description": "A user's own MCP servers. Scope `tasks`." },
                { "name": "information", "description": "What runs here." },
                { "name": "probes", "description": "For service managers and monitoring; without authentication." },
            ],
            // One or none: it depends on `auth.mode`.
            "security": [{ "credential": [] }, {}],
            "paths": self.paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": { "credential": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key (`auth.mode: api_key`) or a token (`jwt`); with `auth.mode: none` none is asked for.",
                }},
            },
        })
    }
}

#[cfg(test)]
mod tests;
