//! What a server says of itself when it is greeted.

use serde_json::Value;
use serde_json::value::RawValue;

/// What a server offers, by its answer to `initialize` or `server/discover`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Offers {
    /// It tells of changes to its tools.
    pub(super) changes: bool,
    /// A call of a tool may ask for a task (2025-11-25).
    pub(super) tasks: bool,
}

impl Offers {
    /// What a greeting's answer says; nothing where it is unreadable.
    pub(super) fn read(greeted: &RawValue) -> Self {
        let greeted: Value = serde_json::from_str(greeted.get()).unwrap_or_default();
        let capabilities = &greeted["capabilities"];
        Self {
            changes: capabilities["tools"]["listChanged"] == true,
            tasks: capabilities["tasks"]["requests"]["tools"]["call"].is_object(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_offers_what_its_capabilities_name() {
        let offers = |text: &str| Offers::read(&RawValue::from_string(text.to_owned()).unwrap());
        assert_eq!(
            offers(r#"{"capabilities":{"tools":{"listChanged":true},"tasks":{"requests":{"tools":{"call":{}}}}}}"#),
            Offers { changes: true, tasks: true }
        );
        for none in ["7", "{}", r#"{"capabilities":{"tools":{},"tasks":{"list":{},"requests":{"tools":{}}}}}"#] {
            assert_eq!(offers(none), Offers::default(), "{none}");
        }
    }
}
