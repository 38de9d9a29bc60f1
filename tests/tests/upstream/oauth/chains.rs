//! Chains of refresh tokens that outlive a process, and that several continue together (BEHAVIOURS 116).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mcp_taskd_core::catalog::{Live, LiveOptions};
use mcp_taskd_core::config::edit::Change;
use mcp_taskd_core::config::{Settings, Source};
use mcp_taskd_core::store::sql::SqlStore;
use mcp_taskd_core::store::{ChainKey, TokenChains};
use mcp_taskd_core::upstream::{CallErrorKind, Factory, Options};
use mcp_taskd_tests::wait;
use serde_json::json;

use super::setup::{KEY, Party, echo, kept_in, memory};

#[tokio::test]
async fn a_restart_and_a_peer_continue_the_stored_chain_and_not_the_seed_113_116() {
    let party = Party::new().await;
    let (rows, oauth) = (memory(), party.authority.chain("the-seed"));
    let replica = || party.replica(&oauth, Some(kept_in(&rows, &[KEY])));
    echo(&replica()).await.unwrap();
    let next = replica();
    echo(&next).await.unwrap();
    assert_eq!(party.asked(), 1, "its token is still good");
    party.authority.state.revoke_access();
    echo(&replica()).await.unwrap();
    assert_eq!(party.asked(), 2, "one that the server refuses is refreshed");
    echo(&next).await.unwrap();
    assert_eq!((party.asked(), party.reuses()), (2, 0), "and a peer uses what that has brought");
}

#[tokio::test]
async fn what_is_stored_can_be_read_by_nobody_without_the_key_116() {
    let party = Party::new().await;
    let folder = tempfile::tempdir().unwrap();
    let store = SqlStore::connect_sqlite(folder.path().join("db")).await.unwrap();
    store.migrate().await.unwrap();
    let rows: Arc<dyn TokenChains> = Arc::new(store.clone());
    let upstream = party.replica(&party.authority.chain("the-seed"), Some(kept_in(&rows, &[KEY])));
    for _ in 0..3 {
        echo(&upstream).await.unwrap();
        party.authority.state.revoke_access();
    }
    store.close().await;
    let mut stored = Vec::new();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        stored.extend(std::fs::read(entry.unwrap().path()).unwrap());
    }
    let has = |text: &str| stored.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(has("oauth_tokens") && has("v1."), "it is there");
    for token in party.authority.state.tokens().iter().chain([&"the-seed".to_owned(), &KEY.to_owned()]) {
        assert!(!has(token), "{token}");
    }
}

#[tokio::test]
async fn tokens_that_cannot_be_stored_are_used_and_stored_before_the_next_refresh_116() {
    let party = Party::new().await;
    let (rows, oauth) = (memory(), party.authority.chain("the-seed"));
    let chains = kept_in(&rows, &[KEY]);
    let upstream = party.replica(&oauth, Some(chains.clone()));
    chains.deaf.store(true, Relaxed);
    echo(&upstream).await.unwrap();
    party.authority.state.revoke_access();
    let error = echo(&upstream).await.unwrap_err();
    assert_eq!((error.kind, party.asked()), (CallErrorKind::Auth, 1), "no other refresh token is used up: {error}");
    assert!(error.message.contains("stored tokens") && !error.message.contains("on purpose"), "{error}");
    chains.deaf.store(false, Relaxed);
    wait::until("it is stored and refreshed", || async { echo(&upstream).await.is_ok() }).await;
    assert_eq!((party.asked(), party.reuses()), (2, 0));
    // And without any further call: a peer finds it.
    chains.deaf.store(true, Relaxed);
    party.authority.state.revoke_access();
    echo(&upstream).await.unwrap();
    chains.deaf.store(false, Relaxed);
    let id = ChainKey { server_name: "s".to_owned(), fingerprint: fingerprint(&party, &oauth) };
    wait::until("it is stored in the background", || async {
        rows.find_chain(&id).await.unwrap().is_some_and(|row| row.version == 3)
    })
    .await;
    echo(&party.replica(&oauth, Some(kept_in(&rows, &[KEY])))).await.unwrap();
    assert_eq!((party.asked(), party.reuses()), (3, 0));
}

fn fingerprint(party: &Party, oauth: &serde_json::Value) -> String {
    let extensions = crate::setup::extensions(&party.definition(oauth));
    extensions.servers["s"].oauth.as_ref().unwrap().fingerprint()
}

#[tokio::test]
async fn without_the_store_nothing_is_refreshed_and_a_good_token_works_116() {
    let party = Party::new().await;
    let chains = kept_in(&memory(), &[KEY]);
    let upstream = party.replica(&party.authority.chain("the-seed"), Some(chains.clone()));
    chains.down.store(true, Relaxed);
    let error = echo(&upstream).await.unwrap_err();
    assert_eq!((error.kind, party.asked()), (CallErrorKind::Auth, 0), "{error}");
    assert!(!error.message.contains("on purpose"), "what the store said is for the log: {error}");
    chains.down.store(false, Relaxed);
    wait::until("the store is back", || async { echo(&upstream).await.is_ok() }).await;
    chains.down.store(true, Relaxed);
    for _ in 0..3 {
        echo(&upstream).await.unwrap();
    }
    assert_eq!(party.asked(), 1);
}

#[tokio::test]
async fn a_key_is_replaced_without_losing_the_chain_and_a_foreign_one_says_so_116() {
    let party = Party::new().await;
    let (rows, oauth) = (memory(), party.authority.chain("the-seed"));
    let with = |keys: &[&str]| party.replica(&oauth, Some(kept_in(&rows, keys)));
    echo(&with(&["old-key"])).await.unwrap();
    party.authority.state.revoke_access();
    echo(&with(&["new-key", "old-key"])).await.unwrap();
    party.authority.state.revoke_access();
    echo(&with(&["new-key"])).await.unwrap();
    assert_eq!((party.asked(), party.reuses()), (3, 0));

    party.authority.state.revoke_access();
    let error = echo(&with(&["another-key"])).await.unwrap_err();
    for said in ["invalid_grant", "mcpServers.s.oauth.refresh_token", "MCP_TASKD_CREDENTIALS_KEY"] {
        assert!(error.message.contains(said), "{error}");
    }
}

#[tokio::test]
async fn what_a_chain_continues_is_told_by_its_configuration_116() {
    let party = Party::new().await;
    let (rows, oauth) = (memory(), party.authority.chain("the-seed"));
    let with = |change: serde_json::Value| {
        let mut oauth = oauth.clone();
        oauth.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        party.replica(&oauth, Some(kept_in(&rows, &[KEY])))
    };
    let last = || party.authority.state.forms().pop().unwrap()["refresh_token"].clone();
    echo(&with(json!({}))).await.unwrap();
    echo(&with(json!({"client_secret": "new"}))).await.unwrap();
    assert_eq!(party.asked(), 1, "another secret keeps chain and token");
    echo(&with(json!({"extra_token_params": {"resource": "r"}}))).await.unwrap();
    assert_eq!(party.asked(), 2, "a token that was asked for in another way is not used");
    assert!(last().starts_with("refresh-1-"), "but the chain is continued: {}", last());
    party.authority.state.seed("another-seed");
    echo(&with(json!({"refresh_token": "another-seed"}))).await.unwrap();
    assert_eq!(last(), "another-seed");
    echo(&with(json!({"extra_token_params": {"resource": "r"}}))).await.unwrap();
    assert_eq!(
        (party.asked(), party.reuses()),
        (3, 0),
        "the former chain is there still, as for a peer not yet updated"
    );
    // A revoked chain is left by configuring another seed.
    party.authority.state.revoke_all();
    assert!(echo(&with(json!({}))).await.unwrap_err().message.contains("set a new"));
    party.authority.state.seed("third-seed");
    echo(&with(json!({"refresh_token": "third-seed"}))).await.unwrap();
}

#[tokio::test]
async fn saving_a_configuration_forgets_the_chains_of_servers_that_are_gone_and_keeps_the_disabled_116() {
    let party = Party::new().await;
    let rows = memory();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("extensions_config.json");
    let oauth = party.authority.chain("the-seed");
    let mut servers = party.definition(&oauth);
    servers["other"] = servers["s"].clone();
    party.authority.state.seed("second-seed");
    servers["other"]["oauth"]["refresh_token"] = json!("second-seed");
    std::fs::write(&file, json!({"mcpServers": servers}).to_string()).unwrap();
    let source = Source { directory: folder.path().to_owned(), ..Source::default() };
    let extensions = source.load().unwrap();
    let chains = kept_in(&rows, &[KEY]);
    let factory = Factory::new(&Options { chains: Some(chains), ..Options::new(folder.path()) }).unwrap();
    let options = LiveOptions { source, settings: Settings::default(), shared: None };
    let live = Live::new(&extensions, factory, options, &prometheus::Registry::new()).unwrap();
    assert_eq!(live.view().await.problems, Vec::<String>::new());
    let key = |name: &str| {
        let fingerprint = extensions.servers[name].oauth.as_ref().unwrap().fingerprint();
        ChainKey { server_name: name.to_owned(), fingerprint }
    };
    let stored = async |name: &str| rows.find_chain(&key(name)).await.unwrap().is_some();
    assert!(stored("s").await && stored("other").await);
    live.edit(Change::Enable { name: "s".to_owned(), enabled: false }, false).await.unwrap();
    assert!(stored("s").await && stored("other").await, "switched on again it goes on");
    live.edit(Change::Remove { name: "other".to_owned() }, false).await.unwrap();
    assert!(stored("s").await && !stored("other").await);
    live.close().await;
}
