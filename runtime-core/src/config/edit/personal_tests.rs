//! What users may make of their files.

use serde_json::json;

use super::*;
use crate::task::is_personal;

struct Site {
    folder: tempfile::TempDir,
    files: UserFiles,
}

fn site() -> Site {
    let folder = tempfile::tempdir().unwrap();
    let environment: Environment = [("TOKEN", "hunter2")].into_iter().collect();
    let files = UserFiles::new(folder.path().join("users"), Settings::default(), &environment, None);
    Site { folder, files }
}

impl Site {
    fn edit(&self, user: &str, change: &PersonalChange, admin: bool) -> Result<Connections, String> {
        let made = self.files.edit(user, change, admin, |_| Ok(()));
        made.map_err(|error| error.to_string())
    }

    fn put(&self, server: Value, admin: bool) -> Result<Connections, String> {
        self.edit("ada", &PersonalChange::Edit(Change::Put { name: "mine".into(), server }), admin)
    }

    fn enable(&self, enabled: bool) -> Result<Connections, String> {
        self.edit("ada", &PersonalChange::Edit(Change::Enable { name: "mine".into(), enabled }), false)
    }
}

fn http() -> Value {
    json!({"type": "http", "url": "https://h.example/mcp", "headers": {"Authorization": "$TOKEN"}})
}

fn runtime(connections: &Connections) -> String {
    connections.runtime_names().find(|(name, _)| *name == "mine").unwrap().1
}

#[test]
fn a_connection_is_added_changed_switched_and_removed_124() {
    let site = site();
    assert!(site.files.find("ada").unwrap().is_none());
    let add = |server| PersonalChange::Add { name: "mine".into(), server };
    let added = site.edit("ada", &add(http()), false).unwrap();
    let shown = UserFiles::shown(&added);
    assert_eq!(shown["mine"]["headers"], json!({"Authorization": "***"}));
    let error = site.edit("ada", &add(http()), false).unwrap_err();
    assert!(error.contains("\"mine\"") && error.contains("exists"), "{error}");

    let first = runtime(&added);
    let mut edited = shown["mine"].clone();
    edited["url"] = json!("https://h.example/other");
    let edited = site.put(edited, false).unwrap();
    assert_eq!(edited.servers["mine"]["headers"]["Authorization"], "$TOKEN", "a mask stands for what is stored");
    assert_ne!(runtime(&edited), first, "125");
    assert!(edited.is_gone(&first) && !edited.is_gone(&runtime(&edited)));

    let off = site.enable(false).unwrap();
    assert!(off.is_gone(&runtime(&edited)), "50");
    let on = site.enable(true).unwrap();
    assert_eq!(runtime(&on), runtime(&edited));
    assert!(!on.is_gone(&runtime(&edited)));
    let removed = site.edit("ada", &PersonalChange::Edit(Change::Remove { name: "mine".into() }), false).unwrap();
    assert!(UserFiles::shown(&removed).is_empty() && removed.is_gone(&first) && removed.is_gone(&runtime(&edited)));
    assert!(!removed.is_gone("personal_0123"), "never heard of");
    let again = site.put(http(), false).unwrap();
    assert!(!again.is_gone(&runtime(&again)), "the same definition again is the same name");
    let missing = PersonalChange::Edit(Change::Remove { name: "none".into() });
    assert!(site.edit("ada", &missing, false).unwrap_err().contains("none"));
}

#[test]
fn names_are_of_the_user_the_name_and_the_definition_whatever_its_order_125() {
    let site = site();
    let name_of = |user: &str, name: &str, server: Value| {
        let put = PersonalChange::Edit(Change::Put { name: name.into(), server });
        let made = site.edit(user, &put, false).unwrap();
        made.runtime_names().find(|(known, _)| *known == name).unwrap().1
    };
    let one = name_of("ada", "mine", json!({"type": "http", "url": "https://h/a"}));
    assert!(is_personal(&one), "{one}");
    assert_eq!(name_of("ada", "mine", json!({"url": "https://h/a", "type": "http"})), one);
    assert_ne!(name_of("bob", "mine", json!({"type": "http", "url": "https://h/a"})), one);
    assert_ne!(name_of("ada", "other", json!({"type": "http", "url": "https://h/a"})), one);
}

#[test]
fn a_user_may_connect_to_web_servers_and_without_oauth_126() {
    let site = site();
    for server in [
        json!({"command": "npx", "args": ["hunter2"]}),
        json!({"type": "stdio", "command": "npx"}),
        json!({"type": "http", "url": "https://h/", "oauth": {"client_secret": "hunter2"}}),
        json!({"type": "http", "url": "https://h/", "oauth": {"enabled": false}}),
    ] {
        let change = PersonalChange::Edit(Change::Put { name: "mine".into(), server: server.clone() });
        let refused = site.files.edit("ada", &change, false, |_| Ok(())).unwrap_err();
        assert!(matches!(refused, EditError::Refused(Refused::Forbidden(_))), "{refused:?}");
        assert!(refused.to_string().contains("mcp_servers.mine") && !refused.to_string().contains("hunter2"));
    }
    let verify = |_: &Connection| Err("its address is not public".to_owned());
    let change = PersonalChange::Edit(Change::Put { name: "mine".into(), server: http() });
    let refused = site.files.edit("ada", &change, false, verify).unwrap_err();
    assert!(
        matches!(&refused, EditError::Refused(Refused::Forbidden(why)) if why.contains("not public")),
        "{refused:?}"
    );
    assert!(site.files.find("ada").unwrap().is_none(), "nothing was written");

    let trusted = |connections: &Connections| connections.enabled(&Settings::default()).0[0].trusted;
    let made = site.put(json!({"command": "npx"}), true).unwrap();
    assert!(trusted(&made), "an administrator may");
    assert!(!trusted(&site.put(http(), false).unwrap()), "and what the user makes of it is the user's own");
    // A mask stands for what is stored, and what an administrator stored does not go where somebody else says.
    let secret = json!({"type": "http", "url": "https://h.example/mcp", "headers": {"Authorization": "hunter2"}});
    site.put(secret, true).unwrap();
    let elsewhere = json!({"type": "http", "url": "https://e.example/mcp", "headers": {"Authorization": "***"}});
    assert!(site.put(elsewhere.clone(), false).is_err());
    let made = site.put(elsewhere, true).unwrap();
    assert_eq!(made.servers["mine"]["headers"]["Authorization"], "hunter2");
}

#[test]
fn a_definition_means_what_it_says_and_is_bounded_124_126() {
    let site = site();
    let mut server = http();
    server["tool_name_prefix"] = json!(false);
    server["session_init_timeout"] = json!(null);
    server["tool_call_timeout"] = json!(9_000);
    let made = site.put(server.clone(), false).unwrap();
    let (connections, problems) = made.enabled(&Settings::default());
    let config = &connections[0].config;
    assert!(problems.is_empty() && config.tool_name_prefix);
    assert_eq!(config.name, runtime(&made));
    assert_eq!(config.session_init_timeout, Some(std::time::Duration::from_secs(60)));
    assert_eq!(config.tool_call_timeout, Some(std::time::Duration::from_secs(60)));
    let crate::config::Transport::Http { headers, .. } = &config.transport else { panic!("not http") };
    assert_eq!(
        secrecy::ExposeSecret::expose_secret(&headers[0].1),
        "$TOKEN",
        "the daemon's variables are not the user's"
    );
    let error = site.put(json!({"type": "http", "url": "ftp://hunter2"}), false).unwrap_err();
    assert!(error.contains("mine") && !error.contains("hunter2"), "{error}");
    for number in 0..63 {
        let put = PersonalChange::Edit(Change::Put { name: format!("s{number}"), server: http() });
        site.edit("ada", &put, false).unwrap();
    }
    let put = |server| PersonalChange::Edit(Change::Put { name: "more".into(), server });
    assert!(site.edit("ada", &put(http()), false).unwrap_err().contains("64"));
    let mut huge = http();
    huge["description"] = json!("x".repeat(300_000));
    assert!(site.edit("bob", &put(huge), false).unwrap_err().contains("bytes"));
}

#[cfg(unix)]
#[test]
fn the_file_is_its_owners_alone_and_lies_under_a_hash_of_the_user_124() {
    use std::os::unix::fs::PermissionsExt as _;
    let site = site();
    let user = "../../ada";
    site.edit(user, &PersonalChange::Add { name: "mine".into(), server: http() }, false).unwrap();
    let path = site.files.path(user);
    assert!(path.starts_with(site.folder.path().join("users")) && path.ends_with("integrations/mcp.json"));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let (all, problems) = site.files.all();
    assert_eq!((all[0].user(), problems.len()), (user, 0));
    assert!(site.files.find("ada").unwrap().is_none());
    std::fs::create_dir_all(site.files.path("eve").parent().unwrap()).unwrap();
    std::fs::copy(&path, site.files.path("eve")).unwrap();
    assert!(site.files.find("eve").is_err(), "another user's file");
    std::fs::write(site.files.path("eve"), "{").unwrap();
    assert!(site.edit("eve", &PersonalChange::Add { name: "x".into(), server: http() }, false).is_err());
    assert_eq!(std::fs::read_to_string(site.files.path("eve")).unwrap(), "{", "left to the operator");
}

/// Turns a text around, for one place.
#[derive(Debug)]
struct Backwards;

impl Seal for Backwards {
    fn seal(&self, text: &str, context: &str) -> Option<String> {
        Some(format!("{context}|{}", text.chars().rev().collect::<String>()))
    }

    fn open(&self, sealed: &str, context: &str) -> Option<SecretString> {
        let text = sealed.strip_prefix(context)?.strip_prefix('|')?;
        Some(text.chars().rev().collect::<String>().into())
    }
}

#[test]
fn a_file_is_sealed_where_there_is_a_key_and_opened_in_its_own_place_only_141() {
    let folder = tempfile::tempdir().unwrap();
    let files = |seal: Option<Arc<dyn Seal>>| {
        UserFiles::new(folder.path().to_owned(), Settings::default(), &Environment::default(), seal)
    };
    let (plain, sealed) = (files(None), files(Some(Arc::new(Backwards))));
    let put = |files: &UserFiles, user: &str, name: &str| {
        let server = json!({"type": "http", "url": "https://h/", "headers": {"Authorization": "hunter2"}});
        let change = PersonalChange::Edit(Change::Put { name: name.into(), server });
        files.edit(user, &change, false, |_| Ok(())).unwrap()
    };
    put(&plain, "ada", "one");
    assert_eq!(sealed.find("ada").unwrap().unwrap().servers.len(), 1, "from before there was a key");
    put(&sealed, "ada", "two");
    let text = std::fs::read_to_string(sealed.path("ada")).unwrap();
    assert!(!text.contains("hunter2") && !text.contains("mcpServers"), "{text}");
    assert_eq!(sealed.find("ada").unwrap().unwrap().servers.len(), 2);
    let error = plain.find("ada").unwrap_err().0;
    assert!(error.contains("MCP_TASKD_CREDENTIALS_KEY") && !error.contains("hunter2"), "{error}");
    std::fs::create_dir_all(sealed.path("eve").parent().unwrap()).unwrap();
    std::fs::copy(sealed.path("ada"), sealed.path("eve")).unwrap();
    assert!(sealed.find("eve").is_err());
    let (all, problems) = sealed.all();
    assert_eq!((all.len(), problems.len()), (1, 1));
}
