//! What dependencies may bring along: the rules of `deny.toml`, checked on `cargo metadata` with every change.
//!
//! `cargo deny check` itself runs at a release: it also knows advisories, and takes minutes to build.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The packages that are built for Linux, by `cargo metadata`.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let nodes = metadata["resolve"]["nodes"].as_array().expect("a resolved graph");
    let built: BTreeSet<&str> = nodes.iter().filter_map(|node| node["id"].as_str()).collect();
    let packages = metadata["packages"].as_array().expect("packages").iter();
    packages.filter(|package| package["id"].as_str().is_some_and(|id| built.contains(id))).cloned().collect()
}

fn named(package: &Value) -> String {
    let text = |key: &str| package[key].as_str().unwrap_or_default();
    format!("{}@{}", text("name"), text("version"))
}

fn is_ours(package: &Value) -> bool {
    package["source"].is_null()
}

/// The texts in quotes of the lines of a list in `deny.toml`: of each line the first, which says what it is about.
fn listed(list: &str) -> Vec<String> {
    let page = read("deny.toml");
    let (_, rest) = page.split_once(&format!("\n{list} = [\n")).unwrap_or_else(|| panic!("deny.toml has no {list}"));
    let lines = rest.lines().take_while(|line| *line != "]");
    lines.filter_map(|line| line.split('"').nth(1)).map(str::to_owned).collect()
}

/// Whether a licence expression can be met with allowed licences: `OR` needs one side, `AND` both.
fn is_met(expression: &str, allowed: &[String]) -> bool {
    let tokens = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut tokens = tokens.split_whitespace().peekable();
    let met = any_of(&mut tokens, allowed);
    assert!(tokens.next().is_none(), "{expression} cannot be read");
    met
}

type Tokens<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(tokens: &mut Tokens<'_>, allowed: &[String]) -> bool {
    let mut met = all_of(tokens, allowed);
    while tokens.next_if_eq(&"OR").is_some() {
        met |= all_of(tokens, allowed);
    }
    met
}

fn all_of(tokens: &mut Tokens<'_>, allowed: &[String]) -> bool {
    let mut met = one(tokens, allowed);
    while tokens.next_if_eq(&"AND").is_some() {
        met &= one(tokens, allowed);
    }
    met
}

fn one(tokens: &mut Tokens<'_>, allowed: &[String]) -> bool {
    let token = tokens.next().expect("a licence");
    if token == "(" {
        let met = any_of(tokens, allowed);
        assert_eq!(tokens.next(), Some(")"));
        return met;
    }
    let mut licence = token.to_owned();
    if tokens.next_if_eq(&"WITH").is_some() {
        licence = format!("{licence} WITH {}", tokens.next().expect("an exception"));
    }
    allowed.contains(&licence)
}

#[test]
fn every_dependency_has_a_licence_that_is_allowed() {
    let allowed = listed("allow");
    let licence = |package: &Value| package["license"].as_str().unwrap_or_default().to_owned();
    let wrong: Vec<_> = packages()
        .iter()
        .filter(|package| !is_ours(package))
        .filter(|package| licence(package).is_empty() || !is_met(&licence(package), &allowed))
        .map(|package| format!("{}: {:?}", named(package), licence(package)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn licence_expressions_are_read_as_spdx_has_them() {
    let allowed = ["MIT".to_owned(), "Apache-2.0 WITH LLVM-exception".to_owned()];
    for (expression, met) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("Unlicense/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("(GPL-3.0 OR MIT) AND MIT", true),
        ("GPL-3.0 OR MIT AND GPL-3.0", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Apache-2.0", false),
    ] {
        assert_eq!(is_met(expression, &allowed), met, "{expression}");
    }
}

#[test]
fn dependencies_come_from_the_registry_alone_and_none_is_banned() {
    let banned = listed("deny");
    let registry = format!("registry+{}", "https://github.com/rust-lang/crates.io-index");
    for package in packages() {
        let name = package["name"].as_str().expect("a name");
        assert!(!banned.iter().any(|banned| banned == name), "{} is banned by deny.toml", named(&package));
        let source = package["source"].as_str();
        assert!(source.is_none_or(|source| source == registry), "{} comes from {source:?}", named(&package));
        if is_ours(&package) {
            assert!(name.starts_with("mcp-taskd"), "{name} is a path dependency");
        }
    }
}

#[test]
fn no_dependency_is_there_twice_but_those_that_deny_toml_names() {
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages() {
        versions.entry(package["name"].as_str().expect("a name").to_owned()).or_default().push(named(&package));
    }
    let skipped: BTreeSet<String> = listed("skip").into_iter().collect();
    let mut older = BTreeSet::new();
    for (_, mut several) in versions.into_iter().filter(|(_, versions)| versions.len() > 1) {
        several.sort_by_key(|name| {
            let version = name.split('@').nth(1).unwrap_or_default().split(['.', '-', '+']);
            version.take(3).map(|part| part.parse::<u64>().unwrap_or_default()).collect::<Vec<_>>()
        });
        several.pop();
        older.extend(several);
    }
    let unnamed: Vec<_> = older.difference(&skipped).collect();
    assert!(unnamed.is_empty(), "add to `skip` in deny.toml, or do without: {unnamed:#?}");
    let gone: Vec<_> = skipped.difference(&older).collect();
    assert!(gone.is_empty(), "take out of `skip` in deny.toml: {gone:#?}");
}

#[test]
fn the_toolchain_is_the_one_that_the_manifest_asks_for_and_no_dependency_wants_a_newer_one() {
    let toolchain = read("rust-toolchain.toml");
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).expect("a channel");
    let channel = channel.trim_matches('"');
    let version =
        |text: &str| -> Vec<u64> { text.split('.').take(2).map(|part| part.parse().expect("a number")).collect() };
    for package in packages() {
        let Some(wanted) = package["rust_version"].as_str() else { continue };
        assert!(version(wanted) <= version(channel), "{} wants Rust {wanted}", named(&package));
        if is_ours(&package) {
            assert_eq!(version(wanted), version(channel), "rust-version and rust-toolchain.toml");
        }
    }
}
