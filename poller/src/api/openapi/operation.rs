//! What one method of one path takes and answers.

use std::collections::BTreeMap;

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

use super::Schemas;
use crate::api::problem;

/// A parameter of the query or a header.
#[derive(Debug, Clone)]
pub struct Param {
    name: &'static str,
    place: &'static str,
    about: &'static str,
    schema: Value,
}

impl Param {
    /// A parameter of the query.
    pub fn query(name: &'static str, about: &'static str, schema: Value) -> Self {
        Self { name, place: "query", about, schema }
    }

    /// A header.
    pub fn header(name: &'static str, about: &'static str, schema: Value) -> Self {
        Self { name, place: "header", about, schema }
    }
}

type Schema = Box<dyn Fn(&mut SchemaGenerator) -> Value + Send>;

struct Answer {
    about: &'static str,
    content: Vec<(&'static str, Schema)>,
    headers: Vec<(&'static str, &'static str)>,
}

/// An operation, as it is being described.
pub struct Operation {
    id: &'static str,
    tag: &'static str,
    summary: &'static str,
    about: &'static str,
    /// Whether it asks who calls.
    asks: bool,
    params: Vec<Param>,
    body: Option<(Schema, bool)>,
    answers: BTreeMap<u16, Answer>,
    /// Codes of problems by status.
    problems: BTreeMap<u16, Vec<&'static str>>,
}

/// An operation with what every route of the API may answer: refusals of who calls and of what is asked, and failures here.
pub fn operation(id: &'static str, tag: &'static str, summary: &'static str) -> Operation {
    Operation { asks: true, ..Operation::bare(id, tag, summary) }
        .problem(401, &["unauthenticated"])
        .problem(403, &["host_not_allowed", "origin_not_allowed", "missing_scope", "other_user"])
        .problem(422, &["invalid_request"])
        .problem(500, &["internal"])
        .problem(429, &["rate_limited"])
        .problem(503, &["store_unavailable", "auth_unavailable"])
}

impl Operation {
    /// An operation that is open to all, without any answers yet.
    pub fn bare(id: &'static str, tag: &'static str, summary: &'static str) -> Self {
        let (params, answers, problems) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Self { id, tag, summary, about: "", asks: false, params, body: None, answers, problems }
    }

    /// More than the summary says.
    #[must_use]
    pub fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }

    /// Takes parameters.
    #[must_use]
    pub fn takes(mut self, params: impl IntoIterator<Item = Param>) -> Self {
        self.params.extend(params);
        self
    }

    /// Takes a JSON body.
    #[must_use]
    pub fn body<T: JsonSchema>(self) -> Self {
        Self { body: Some((Box::new(|generator| generator.subschema_for::<T>().to_value()), true)), ..self }
    }

    /// Takes a JSON body, or none.
    #[must_use]
    pub fn optional_body<T: JsonSchema>(self) -> Self {
        Self { body: Some((Box::new(|generator| generator.subschema_for::<T>().to_value()), false)), ..self }
    }

    /// Answers JSON.
    #[must_use]
    pub fn answers<T: JsonSchema>(self, status: u16, about: &'static str) -> Self {
        self.answer(status, about, "application/json", |generator| generator.subschema_for::<T>().to_value())
    }

    /// Answers a text.
    #[must_use]
    pub fn answers_text(self, status: u16, about: &'static str, media_type: &'static str) -> Self {
        self.answer(status, about, media_type, |_| json!({ "type": "string" }))
    }

    fn answer(
        mut self,
        status: u16,
        about: &'static str,
        media_type: &'static str,
        schema: impl Fn(&mut SchemaGenerator) -> Value + Send + 'static,
    ) -> Self {
        let answer =
            self.answers.entry(status).or_insert_with(|| Answer { about, content: Vec::new(), headers: Vec::new() });
        answer.content.push((media_type, Box::new(schema)));
        self
    }

    /// Adds a header to an answer that was described before.
    #[must_use]
    pub fn with_header(mut self, status: u16, name: &'static str, about: &'static str) -> Self {
        if let Some(answer) = self.answers.get_mut(&status) {
            answer.headers.push((name, about));
        }
        self
    }

    /// Answers a problem with one of these codes.
    #[must_use]
    pub fn problem(mut self, status: u16, codes: &[&'static str]) -> Self {
        self.problems.entry(status).or_default().extend(codes);
        self
    }

    /// The operation object.
    pub(super) fn document(self, path: &str, schemas: &mut Schemas) -> Value {
        let in_path = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
        let mut params: Vec<Value> = in_path.map(in_path_schema).collect();
        params.extend(self.params.into_iter().map(|param| {
            json!({ "name": param.name, "in": param.place, "description": param.about, "schema": param.schema })
        }));
        let mut responses = serde_json::Map::new();
        for (status, answer) in self.answers {
            let mut response = json!({ "description": answer.about });
            for (media_type, schema) in answer.content {
                response["content"][media_type] = json!({ "schema": schema(&mut schemas.sent) });
            }
            for (name, about) in answer.headers {
                response["headers"][name] = json!({ "description": about, "schema": { "type": "string" } });
            }
            responses.insert(status.to_string(), response);
        }
        for (status, codes) in self.problems {
            responses.insert(status.to_string(), refused(status, &codes));
        }
        responses.sort_keys();
        let mut document = json!({
            "operationId": self.id,
            "tags": [self.tag],
            "summary": self.summary,
            "parameters": params,
            "responses": responses,
        });
        if !self.asks {
            document["security"] = json!([]);
        }
        if !self.about.is_empty() {
            document["description"] = self.about.into();
        }
        if let Some((body, required)) = self.body {
            let content = json!({ "application/json": { "schema": body(&mut schemas.read) } });
            document["requestBody"] = json!({ "required": required, "content": content });
        }
        document
    }
}

fn in_path_schema(name: &str) -> Value {
    json!({
        "name": name,
        "in": "path",
        "required": true,
        "schema": { "type": "string", "minLength": 1, "maxLength": 255 },
    })
}

fn refused(status: u16, codes: &[&str]) -> Value {
    let schema = json!({ "allOf": [
        { "$ref": "#/components/schemas/Problem" },
        { "properties": { "code": { "enum": codes } } },
    ]});
    let mut response = json!({
        "description": codes.join(", "),
        "content": { problem::CONTENT_TYPE: { "schema": schema } },
    });
    if matches!(status, 429 | 503) {
        response["headers"]["Retry-After"] = json!({ "description": "Seconds.", "schema": { "type": "string" } });
    }
    response
}
