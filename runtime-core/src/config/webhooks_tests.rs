//! What a list of webhooks may say, and what is said of it when it may not.

use secrecy::ExposeSecret as _;

use super::super::{Environment, LoadOptions, Settings};
use super::*;

fn load(yaml: &str, variables: &[(&str, &str)]) -> Result<Vec<Webhook>, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    std::fs::write(&path, yaml).unwrap();
    let environment: Environment = variables.iter().copied().collect();
    let options = LoadOptions { path: Some(path), environment, ..LoadOptions::default() };
    Settings::load(&options).map(|loaded| loaded.settings.webhooks).map_err(|error| error.0)
}

#[test]
fn a_webhook_says_who_is_told_of_what_64() {
    let all = load(
        "webhooks:\n\
         - { url: https://hooks.example.com/a, secret: $HOOK_SECRET }\n\
         - { name: audit, url: 'http://127.0.0.1:9/x', secret: [new-one, whsec_b2xkLW9uZQ==], events: [working], users: [ada] }\n",
        &[("HOOK_SECRET", "from-outside")],
    )
    .unwrap();
    assert_eq!(all[0].events, ["input_required", "completed", "failed", "cancelled", "tracking_degraded"]);
    assert_eq!((all[0].secret[0].expose_secret(), &all[0].users), ("from-outside", &None));
    assert!(all[0].name.starts_with("hooks-example-com-"), "{}", all[0].name);
    assert_eq!(all[1].name, "audit");
    assert_eq!(all[1].keys(), [b"new-one".to_vec(), b"old-one".to_vec()]);
    assert_eq!(
        (&all[1].events[..], all[1].users.as_deref()),
        (&["working".to_owned()][..], Some(&["ada".to_owned()][..]))
    );
}

#[test]
fn a_derived_name_is_stable_and_shows_no_secret() {
    let name = derived_name("https://user:hunter2@hooks.example.com:8443/in?key=hunter3");
    assert_eq!(name, derived_name("https://hooks.example.com:8443/in"));
    assert_ne!(name, derived_name("https://hooks.example.com:8443/out"));
    assert!(name.len() <= NAME_MAX_CHARS && !name.contains("hunter"), "{name}");
    let long = derived_name(&format!("https://{}.example.com/", "a".repeat(200)));
    assert!(long.len() <= NAME_MAX_CHARS, "{long}");
    assert!(derived_name("http://[::1]:80/").bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'));
}

#[test]
fn mistakes_name_key_and_place_and_never_a_secret_37() {
    let entry = |more: &str| format!("webhooks:\n- url: https://h/x?token=hunter2\n  secret: hunter2\n  {more}\n");
    for (yaml, named) in [
        (
            entry("events: [input_require]"),
            "line 4, column 12: webhooks[0].events names a kind that there is not; did you mean input_required?",
        ),
        (entry("event: [working]"), "line 4, column 3: webhooks[0].event is an unknown key; did you mean events?"),
        (entry("events: [hunter2]"), "webhooks[0].events names a kind that there is not"),
        (entry("events: []"), "webhooks[0].events must name at least one"),
        (entry("events: working"), "webhooks[0].events must be a list"),
        (entry("users: []"), "webhooks[0].users must be a list of user ids"),
        (entry("name: 'a b'"), "webhooks[0].name must be 1 to 64"),
        (entry("secret_file: /hunter2"), "webhooks[0].secret_file names a file that cannot be read"),
        ("webhooks: [{ url: 'https://h' }]".into(), "webhooks[0].secret is missing"),
        ("webhooks: [{ secret: hunter2 }]".into(), "webhooks[0].url is missing"),
        ("webhooks: [{ url: 'ftp://hunter2@h', secret: hunter2 }]".into(), "webhooks[0].url must be an http or https"),
        ("webhooks: [{ url: 'https://h', secret: $UNSET }]".into(), "webhooks[0].secret is empty"),
        ("webhooks: [{ url: 'https://h', secret: 'whsec_hunter2!' }]".into(), "webhooks[0].secret begins with whsec_"),
        ("webhooks: [https://hunter2@h]".into(), "webhooks[0] is no mapping"),
        (
            "webhooks: [{ url: 'https://h', secret: a }, { url: 'https://h?x=1', secret: b }]".into(),
            "webhooks[1] has the name of webhooks[0]",
        ),
    ] {
        let error = load(&yaml, &[]).unwrap_err();
        assert!(error.contains(named), "{yaml}: {error}");
        assert!(!error.contains("hunter2"), "{yaml}: {error}");
    }
}

#[test]
fn secrets_come_from_a_file_one_a_line_and_are_masked_wherever_settings_are_shown() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "hunter2-new\nhunter2-old\n").unwrap();
    let yaml = format!(
        "webhooks: [{{ name: a, url: 'https://u:hunter2-url@h/?api_key=hunter2-key', secret_file: '{}' }}]",
        file.path().display()
    );
    let webhooks = load(&yaml, &[]).unwrap();
    let secrets: Vec<_> = webhooks[0].secret.iter().map(SecretString::expose_secret).collect();
    assert_eq!(secrets, ["hunter2-new", "hunter2-old"]);
    let settings = Settings { webhooks, ..Settings::default() };
    for shown in [settings.json().to_string(), format!("{settings:?}")] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    assert_eq!(settings.json()["webhooks"][0]["secret"], serde_json::json!(["***", "***"]));
    assert_eq!(settings.json()["webhooks"][0]["name"], "a");
}
