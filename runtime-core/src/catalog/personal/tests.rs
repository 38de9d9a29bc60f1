//! Connections in effect: who may use them, and what becomes of them.

use serde_json::json;

use super::*;
use crate::config::edit::Change;
use crate::upstream::Options;

fn personal(folder: &Path) -> Arc<Personal> {
    let factory = Factory::new(&Options::new(folder)).unwrap();
    Arc::new(Personal::new(folder, &Settings::default(), &Environment::default(), None, &factory))
}

fn tasks(url: &str) -> Value {
    json!({"type": "http", "url": url, "task_toolsets": [
        {"name": "r", "submit_tool": "a", "status_tool": "b", "cancel_tool": "c"}]})
}

async fn put(personal: &Arc<Personal>, user: &str, server: Value, admin: bool) -> Result<String, EditError> {
    let change = PersonalChange::Edit(Change::Put { name: "mine".into(), server });
    let shown = personal.edit(user, change, admin).await?;
    Ok(shown.runtime_names["mine"].as_str().unwrap().to_owned())
}

fn gone(found: &Result<Connected, NotConnected>) -> bool {
    matches!(found, Err(NotConnected::Gone(_)))
}

fn elsewhere(found: &Result<Connected, NotConnected>) -> bool {
    matches!(found, Err(NotConnected::Elsewhere(_)))
}

#[tokio::test]
async fn a_connection_is_its_owners_until_it_is_changed_50_126() {
    let folder = tempfile::tempdir().unwrap();
    let personal = personal(folder.path());
    let name = put(&personal, "ada", tasks("https://h.example/a"), false).await.unwrap();
    assert!(personal.find(&name, "ada").is_ok());
    assert!(elsewhere(&personal.find(&name, "bob")), "nobody else has it");
    assert!(elsewhere(&personal.find("reports", "ada")));
    assert_eq!(*personal.names(), *std::slice::from_ref(&name));

    let other = put(&personal, "ada", tasks("https://h.example/b"), false).await.unwrap();
    assert!(gone(&personal.find(&name, "ada")) && personal.find(&other, "ada").is_ok());
    let off = PersonalChange::Edit(Change::Enable { name: "mine".into(), enabled: false });
    personal.edit("ada", off, false).await.unwrap();
    assert!(gone(&personal.find(&other, "ada")) && personal.names().is_empty());
    put(&personal, "ada", tasks("https://h.example/a"), false).await.unwrap();
    assert!(personal.find(&name, "ada").is_ok(), "the same definition has the same name");
    let removed = PersonalChange::Edit(Change::Remove { name: "mine".into() });
    personal.edit("ada", removed, false).await.unwrap();
    assert!(gone(&personal.find(&name, "ada")));
}

#[tokio::test]
async fn what_a_process_does_not_have_is_not_what_was_deleted_50() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, there) = (personal(one.path()), personal(two.path()));
    let name = put(&here, "ada", tasks("https://h.example/a"), false).await.unwrap();
    assert!(elsewhere(&there.find(&name, "ada")), "no file of hers");
    put(&there, "ada", tasks("https://h.example/other"), false).await.unwrap();
    assert!(elsewhere(&there.find(&name, "ada")), "a file without it");
    let again = personal(one.path());
    assert!(again.find(&name, "ada").is_ok() && *again.names() == [name], "after a restart it is there");
}

#[tokio::test(start_paused = true)]
async fn an_edit_by_another_process_is_seen_within_a_second_126() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (personal(folder.path()), personal(folder.path()));
    let name = put(&one, "ada", tasks("https://h.example/a"), false).await.unwrap();
    assert!(two.find(&name, "ada").is_ok(), "a first look");
    let removed = PersonalChange::Edit(Change::Remove { name: "mine".into() });
    one.edit("ada", removed, false).await.unwrap();
    tokio::time::advance(LOOK_EVERY).await;
    assert!(gone(&two.find(&name, "ada")));
    let name = put(&one, "bob", tasks("https://h.example/b"), false).await.unwrap();
    assert!(two.names().is_empty());
    two.search();
    assert_eq!(*two.names(), [name]);
}

#[tokio::test]
async fn a_user_cannot_point_at_an_address_that_is_not_public_and_an_administrator_can_126() {
    let folder = tempfile::tempdir().unwrap();
    let personal = personal(folder.path());
    for url in
        ["http://127.0.0.1:1/", "http://[::ffff:10.0.0.1]/", "http://169.254.169.254/latest", "http://2130706433/"]
    {
        let refused = put(&personal, "ada", json!({"type": "http", "url": url}), false).await.unwrap_err();
        let said = refused.to_string();
        assert!(said.contains("not public") && !said.contains("169"), "{said}");
    }
    let name = put(&personal, "ada", tasks("http://127.0.0.1:1/"), true).await.unwrap();
    assert!(personal.find(&name, "ada").unwrap().trusted);
}
