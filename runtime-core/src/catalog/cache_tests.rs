//! What a change of configuration, a reset and a failure do to what is known.

use async_trait::async_trait;
use serde_json::value::RawValue;

use super::*;
use crate::upstream::{CallError, CallErrorKind, ToolCall, Upstream};

struct Nobody;

#[async_trait]
impl Upstream for Nobody {
    async fn call_tool(&self, _: ToolCall<'_>) -> Result<Box<RawValue>, CallError> {
        Err(CallError::new(CallErrorKind::Connect, String::new()))
    }

    async fn list_tools(&self) -> Result<Vec<Box<RawValue>>, CallError> {
        Ok(Vec::new())
    }

    async fn close(&self) {}
}

fn given(name: &str, key: &str) -> Given {
    let server = Server { name: name.to_owned(), prefix: true, toolsets: Vec::new(), routing: Arc::default() };
    Given { server, key: key.to_owned(), upstream: Arc::new(Nobody) }
}

fn cache(servers: &[(&str, &str)]) -> Cache {
    let mut cache = Cache::new(Rules::default());
    set(&mut cache, servers);
    cache
}

fn set(cache: &mut Cache, servers: &[(&str, &str)]) -> bool {
    cache.set(servers.iter().map(|(name, key)| given(name, key)).collect())
}

#[expect(clippy::unnecessary_wraps, reason = "what a server answers")]
fn tools(names: &[&str]) -> Discovered {
    let tool = |name: &&str| RawValue::from_string(format!(r#"{{"name":"{name}","inputSchema":{{}}}}"#)).unwrap();
    Ok(names.iter().map(tool).collect())
}

fn failed() -> Discovered {
    Err("refused".to_owned())
}

fn names(cache: &Cache) -> Vec<&str> {
    cache.view().tools.iter().map(|tool| tool.name.as_str()).collect()
}

/// Whom the cache would ask now.
fn asked(cache: &mut Cache, now: Instant) -> Vec<(String, u64)> {
    cache.due(now, true).into_iter().map(|ask| (ask.name, ask.ticket)).collect()
}

/// A cache in which each server has one tool, `x`.
fn filled(servers: &[(&str, &str)]) -> Cache {
    let (mut cache, now) = (cache(servers), Instant::now());
    for (_, ticket) in asked(&mut cache, now) {
        cache.record(ticket, tools(&["x"]), now);
    }
    assert!(cache.complete().is_some());
    cache
}

#[test]
fn only_the_server_that_changed_is_asked_again_95() {
    let (mut cache, now) = (filled(&[("a", "1"), ("b", "1")]), Instant::now());
    assert!(set(&mut cache, &[("b", "1"), ("a", "1")]), "agents see another order");
    assert_eq!(names(&cache), ["b_x", "a_x"]);
    assert!(cache.complete().is_some() && asked(&mut cache, now).is_empty());

    set(&mut cache, &[("b", "1"), ("a", "2")]);
    assert_eq!(names(&cache), ["b_x"], "the other one's tools stay");
    assert!(cache.complete().is_none());
    let due = asked(&mut cache, now);
    assert!(due.len() == 1 && due[0].0 == "a");
    assert!(cache.record(due[0].1, tools(&["y"]), now), "agents are told");
    assert_eq!(names(&cache), ["b_x", "a_y"]);
    assert!(!set(&mut cache, &[("b", "1"), ("a", "2")]), "nothing new");
}

#[test]
fn an_answer_to_what_was_asked_before_a_change_or_a_reset_is_discarded_96_97() {
    let (mut cache, now) = (cache(&[("a", "1"), ("b", "1")]), Instant::now());
    let before = asked(&mut cache, now);
    set(&mut cache, &[("a", "2"), ("b", "1")]);
    for (_, ticket) in &before {
        cache.record(*ticket, tools(&["old"]), now);
    }
    assert_eq!(names(&cache), ["b_old"], "the unchanged one's counts");
    let again = asked(&mut cache, now);
    assert!(again.len() == 1 && again[0].0 == "a");
    cache.forget();
    cache.record(again[0].1, tools(&["old"]), now);
    assert!(names(&cache).is_empty() && cache.complete().is_none());
    assert_eq!(asked(&mut cache, now).len(), 2, "all are asked again");
}

#[test]
fn one_that_fails_is_left_out_alone_and_asked_again_later_95() {
    let (mut cache, now) = (cache(&[("a", "1"), ("b", "1")]), Instant::now());
    let due = asked(&mut cache, now);
    cache.record(due[0].1, failed(), now);
    cache.record(due[1].1, tools(&["x"]), now);
    assert_eq!(names(&cache), ["b_x"]);
    assert!(!cache.begin(now));
    assert!(cache.complete().is_some() && cache.due(now, true).is_empty());
    let later = now + MIN_RETRY;
    let due = asked(&mut cache, later);
    assert_eq!(due.len(), 1);
    cache.record(due[0].1, failed(), later);
    assert!(cache.due(later + MIN_RETRY, true).is_empty(), "ever more rarely");
    assert_eq!(cache.due(later + MIN_RETRY * 2, true).len(), 1);
}

#[test]
fn where_all_fail_nothing_is_published_and_the_next_caller_has_them_asked_95() {
    let (mut cache, now) = (filled(&[("a", "1")]), Instant::now());
    assert!(cache.was_published());
    set(&mut cache, &[("a", "2")]);
    let due = asked(&mut cache, now);
    assert!(!cache.record(due[0].1, failed(), now), "agents are not told that there is nothing");
    assert!(cache.complete().unwrap().problems[0].contains("server a"));
    assert!(cache.begin(now + FLOOR / 2));
    assert!(cache.complete().is_some(), "a caller that comes at once shares the outcome");
    assert!(cache.begin(now + FLOOR));
    assert!(cache.complete().is_none() && !cache.view().problems.is_empty(), "what is wrong stays known");
    let due = asked(&mut cache, now + FLOOR);
    cache.record(due[0].1, tools(&["x"]), now + FLOOR);
    assert_eq!(names(&cache), ["a_x"]);
}

#[test]
fn no_tools_and_no_servers_are_valid_answers_95_96() {
    let (mut cache, now) = (cache(&[("a", "1")]), Instant::now());
    let due = asked(&mut cache, now);
    cache.record(due[0].1, tools(&[]), now);
    assert!(cache.was_published() && cache.due(now + MAX_RETRY, true).is_empty(), "not asked again");
    let mut cache = filled(&[("a", "1")]);
    assert!(set(&mut cache, &[]), "the last server is gone, and agents are told");
    assert!(cache.complete().unwrap().tools.is_empty() && cache.upstreams().is_empty());
}

#[test]
fn a_server_that_says_so_is_asked_again_and_its_tools_stand_meanwhile_98() {
    let (mut cache, now) = (filled(&[("a", "1"), ("b", "1")]), Instant::now());
    let [ticket, _] = [cache.slots[0].ticket, cache.slots[1].ticket];
    assert!(cache.due(now, false).is_empty());
    assert!(cache.expire(ticket));
    let due = cache.due(now, false);
    assert_eq!(due.iter().map(|ask| ask.ticket).collect::<Vec<_>>(), [ticket]);
    assert_eq!(names(&cache), ["a_x", "b_x"]);
    assert!(cache.complete().is_some(), "nobody waits for it");
    assert!(cache.expire(ticket), "it says so again while it is asked");
    assert!(cache.due(now, false).is_empty(), "one question at a time");
    assert!(cache.record(ticket, tools(&["x", "y"]), now), "agents see another tool");
    assert_eq!(cache.due(now, false).len(), 1);
    cache.forget();
    assert!(!cache.expire(ticket), "the ticket is worth nothing any more");
}
