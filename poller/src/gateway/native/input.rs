//! What a task waits for as requests to a client, and a client's answers as input; pure.
//!
//! A stored payload that is a map of MCP's own input requests is passed on as it is, and so are the answers to it. Any other is
//! one question: `question` (or `message`, `prompt`) is asked, and answered by the string `answer`, one of `choices` where those
//! are strings; or by the members of `requestedSchema` where the payload brings one.

use indexmap::IndexMap;
use mcp_taskd_core::task::Json;
use rmcp::model::ClientCapabilities;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::view::raw;

const ELICITATION: &str = "elicitation/create";
const SAMPLING: &str = "sampling/createMessage";
const ROOTS: &str = "roots/list";

/// Where the answer to a question without a schema is.
const ANSWER: &str = "answer";
/// The most that a question shows of a payload that has none.
const SHOWN_MAX_CHARS: usize = 500;

/// Which requests a client answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answers {
    elicitation: bool,
    sampling: bool,
    roots: bool,
}

impl Answers {
    /// By what the client declares.
    pub fn of(capabilities: &ClientCapabilities) -> Self {
        Self {
            elicitation: capabilities.elicitation.is_some(),
            sampling: capabilities.sampling.is_some(),
            roots: capabilities.roots.is_some(),
        }
    }

    fn take(self, method: &str) -> bool {
        match method {
            ELICITATION => self.elicitation,
            SAMPLING => self.sampling,
            ROOTS => self.roots,
            _ => false,
        }
    }
}

type Requests<'a> = IndexMap<String, &'a RawValue>;

#[derive(Deserialize)]
struct Request {
    method: String,
}

/// The payload as requests of a server that speaks MCP Tasks itself; `None` where it is a question of another kind.
fn native(payload: &Json) -> Option<Vec<(String, String, &RawValue)>> {
    let requests: Requests<'_> = serde_json::from_str(payload.as_str()).ok()?;
    let known = requests.into_iter().map(|(key, raw)| {
        let Request { method } = serde_json::from_str(raw.get()).ok()?;
        [ELICITATION, SAMPLING, ROOTS].contains(&method.as_str()).then_some((key, method, raw))
    });
    known.collect::<Option<Vec<_>>>().filter(|requests| !requests.is_empty())
}

/// A question of a server's own.
struct Question {
    key: String,
    message: String,
    schema: Value,
    /// Whether the answer is the whole content rather than one member of it.
    whole: bool,
}

impl Question {
    fn of(payload: &Json) -> Self {
        let members: Map<String, Value> = serde_json::from_str(payload.as_str()).unwrap_or_default();
        let own = members.get("requestedSchema").filter(|schema| schema["type"] == "object");
        Self {
            key: key(payload),
            message: text(&members).unwrap_or_else(|| payload.as_str().chars().take(SHOWN_MAX_CHARS).collect()),
            whole: own.is_some(),
            schema: own.cloned().unwrap_or_else(|| answer_schema(&members)),
        }
    }
}

/// The same question has the same key in every answer and on every replica, another question another one.
fn key(payload: &Json) -> String {
    let digest = Sha256::digest(payload.as_str());
    digest[..8].iter().fold("input-".to_owned(), |key, byte| format!("{key}{byte:02x}"))
}

fn text(members: &Map<String, Value>) -> Option<String> {
    let texts = ["question", "message", "prompt"].into_iter().filter_map(|name| members.get(name)?.as_str());
    texts.map(str::to_owned).find(|text| !text.trim().is_empty())
}

fn answer_schema(members: &Map<String, Value>) -> Value {
    let choices = members.get("choices").and_then(Value::as_array).filter(|choices| !choices.is_empty());
    let choices = choices.filter(|choices| choices.iter().all(Value::is_string));
    let mut answer = json!({ "type": "string", "title": "Answer" });
    if let Some(choices) = choices {
        answer["enum"] = choices.clone().into();
    }
    json!({ "type": "object", "properties": { ANSWER: answer }, "required": [ANSWER] })
}

/// The question in words, for a status.
pub fn message(payload: &Json) -> Option<String> {
    match native(payload) {
        Some(_) => None,
        None => Some(Question::of(payload).message),
    }
}

/// The `inputRequests` of a payload, of those kinds that the client answers.
pub fn requests(payload: &Json, answers: Answers) -> Box<RawValue> {
    if let Some(native) = native(payload) {
        let taken = native.into_iter().filter(|(_, method, _)| answers.take(method));
        return raw(&taken.map(|(key, _, request)| (key, request)).collect::<Requests<'_>>());
    }
    if !answers.elicitation {
        return raw(&Map::new());
    }
    let question = Question::of(payload);
    let params = json!({ "mode": "form", "message": question.message, "requestedSchema": question.schema });
    raw(&json!({ question.key: { "method": ELICITATION, "params": params } }))
}

/// A client's answer to an elicitation.
#[derive(Deserialize)]
struct Elicited {
    action: String,
    #[serde(default)]
    content: Map<String, Value>,
}

/// The input that these responses make; `None` where they answer nothing that is outstanding. A question that is declined
/// stays: somebody else may answer it, and the task may be cancelled.
pub fn input<'a>(
    payload: &Json,
    responses: impl Iterator<Item = (&'a str, &'a Value)>,
) -> Result<Option<Box<RawValue>>, String> {
    if let Some(native) = native(payload) {
        let outstanding = responses.filter(|(name, _)| native.iter().any(|(key, ..)| key == name));
        let answered: Map<String, Value> = outstanding.map(|(name, value)| (name.to_owned(), value.clone())).collect();
        return Ok((!answered.is_empty()).then(|| raw(&answered)));
    }
    let question = Question::of(payload);
    let Some((_, response)) = { responses }.find(|(name, _)| *name == question.key) else { return Ok(None) };
    let elicited = Elicited::deserialize(response)
        .map_err(|_| format!("the response {:?} needs an action, and content where it is \"accept\"", question.key))?;
    match elicited.action.as_str() {
        "accept" if question.whole => Ok(Some(raw(&elicited.content))),
        "accept" => match elicited.content.get(ANSWER) {
            Some(answer) => Ok(Some(raw(answer))),
            None => Err(format!("the content of the response {:?} needs the member {ANSWER:?}", question.key)),
        },
        "decline" | "cancel" => Ok(None),
        _ => Err(format!("the action of the response {:?} must be accept, decline or cancel", question.key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Answers = Answers { elicitation: true, sampling: true, roots: true };

    fn payload(value: &Value) -> Json {
        Json::parse(&value.to_string()).unwrap()
    }

    fn asked(value: &Value, answers: Answers) -> Value {
        serde_json::from_str(requests(&payload(value), answers).get()).unwrap()
    }

    fn answered(question: &Value, responses: &Value) -> Result<Option<String>, String> {
        let responses = responses.as_object().unwrap();
        let input = input(&payload(question), responses.iter().map(|(key, value)| (key.as_str(), value)));
        input.map(|input| input.map(|raw| raw.get().to_owned()))
    }

    #[test]
    fn a_question_with_choices_is_one_form_with_one_member() {
        let question = json!({ "question": "In which currency?", "choices": ["EUR", "USD"] });
        let asked = asked(&question, ALL);
        let (key, request) = asked.as_object().unwrap().iter().next().unwrap();
        assert_eq!(asked.as_object().unwrap().len(), 1);
        assert_eq!(request["method"], "elicitation/create");
        assert_eq!(request["params"]["message"], "In which currency?");
        assert_eq!(request["params"]["requestedSchema"]["properties"]["answer"]["enum"], json!(["EUR", "USD"]));
        assert_eq!(super::tests::asked(&question, ALL), asked, "the key is the question's");
        let accept =
            json!({ key: { "action": "accept", "content": { "answer": "EUR" } }, "other": { "action": "accept" } });
        assert_eq!(answered(&question, &accept).unwrap().as_deref(), Some(r#""EUR""#));
        for nothing in ["decline", "cancel"] {
            assert_eq!(answered(&question, &json!({ key: { "action": nothing } })).unwrap(), None, "{nothing}");
        }
        for wrong in [json!({ "action": "accept" }), json!({ "action": "maybe" }), json!("EUR")] {
            assert!(answered(&question, &json!({ key: wrong })).unwrap_err().contains(key.as_str()), "{wrong}");
        }
        assert_eq!(
            answered(&question, &json!({ "input-0": { "action": "accept" } })).unwrap(),
            None,
            "not outstanding"
        );
    }

    #[test]
    fn another_question_has_another_key_and_one_without_words_is_shown() {
        let keys: Vec<String> = [json!({ "question": "a" }), json!({ "question": "b" }), json!({ "amount": 7 })]
            .iter()
            .map(|question| asked(question, ALL).as_object().unwrap().keys().next().unwrap().clone())
            .collect();
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys.iter().all(|key| key.len() == 22), "{keys:?}");
        assert_eq!(message(&payload(&json!({ "amount": 7 }))).unwrap(), r#"{"amount":7}"#);
        let odd = asked(&json!({ "question": "n?", "choices": [1, 2] }), ALL);
        assert_eq!(
            odd.as_object().unwrap().values().next().unwrap()["params"]["requestedSchema"]["properties"]["answer"]
                .get("enum"),
            None
        );
    }

    #[test]
    fn a_schema_that_the_payload_brings_is_asked_for_and_answered_as_a_whole() {
        let schema = json!({ "type": "object", "properties": { "iban": { "type": "string" } } });
        let question = json!({ "message": "Whose account?", "requestedSchema": schema });
        let asked = asked(&question, ALL);
        let (key, request) = asked.as_object().unwrap().iter().next().unwrap();
        assert_eq!(request["params"]["requestedSchema"], schema);
        let accept = json!({ key: { "action": "accept", "content": { "iban": "x" } } });
        assert_eq!(answered(&question, &accept).unwrap().as_deref(), Some(r#"{"iban":"x"}"#));
    }

    #[test]
    fn mcps_own_requests_pass_unchanged_and_so_do_the_answers_to_those_outstanding() {
        let native = json!({
            "name": { "method": "elicitation/create", "params": { "message": "Who?", "x": 1 } },
            "draft": { "method": "sampling/createMessage", "params": {} },
        });
        assert_eq!(asked(&native, ALL), native);
        assert_eq!(requests(&payload(&native), ALL).get(), payload(&native).as_str(), "to the character");
        let only = Answers { elicitation: true, ..Answers::default() };
        assert_eq!(asked(&native, only), json!({ "name": native["name"] }), "nothing that the client does not do");
        let responses = json!({ "name": { "action": "decline" }, "old": {} });
        assert_eq!(answered(&native, &responses).unwrap().as_deref(), Some(r#"{"name":{"action":"decline"}}"#));
        assert_eq!(answered(&native, &json!({ "old": {} })).unwrap(), None);
        assert_eq!(message(&payload(&native)), None);
    }

    #[test]
    fn a_client_that_cannot_be_asked_is_not() {
        assert_eq!(asked(&json!({ "question": "a" }), Answers::default()), json!({}));
    }
}
