//! Which visible names agents may use (BEHAVIOURS 130).

use std::collections::HashSet;

use crate::config::GuardrailSettings;

/// The allow list and the deny list; without them everything is allowed.
#[derive(Debug, Clone, Default)]
pub struct Guardrail {
    denied: HashSet<String>,
    allowed: Option<HashSet<String>>,
}

impl Guardrail {
    /// The guardrail as configured; one that is not enabled allows everything.
    pub fn new(settings: &GuardrailSettings) -> Self {
        if !settings.enabled {
            return Self::default();
        }
        let config = &settings.provider.config;
        Self {
            denied: config.denied_tools.iter().cloned().collect(),
            allowed: config.allowed_tools.as_ref().map(|names| names.iter().cloned().collect()),
        }
    }

    /// Whether a tool may be seen and called. A denied name stays denied even if it is on the allow list.
    pub fn allows(&self, visible_name: &str) -> bool {
        !self.denied.contains(visible_name)
            && self.allowed.as_ref().is_none_or(|allowed| allowed.contains(visible_name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guardrail(enabled: bool, denied: &[&str], allowed: Option<&[&str]>) -> Guardrail {
        let mut settings = GuardrailSettings { enabled, ..GuardrailSettings::default() };
        settings.provider.config.denied_tools = denied.iter().map(ToString::to_string).collect();
        settings.provider.config.allowed_tools = allowed.map(|names| names.iter().map(ToString::to_string).collect());
        Guardrail::new(&settings)
    }

    #[test]
    fn an_empty_allow_list_denies_all_and_an_absent_one_nothing_130() {
        assert!(guardrail(true, &[], None).allows("a"));
        assert!(!guardrail(true, &[], Some(&[])).allows("a"));
        assert!(guardrail(true, &[], Some(&["a"])).allows("a"));
        assert!(!guardrail(true, &["a"], Some(&["a"])).allows("a"), "denied wins");
        assert!(guardrail(false, &["a"], Some(&[])).allows("a"), "not enabled");
    }
}
