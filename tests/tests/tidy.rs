//! The rules of the house that a compiler does not know: layers, where libraries may be used, migrations in pairs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The rooms of `runtime-core`, and those each may use beside itself (docs/ARCHITECTURE.md).
const LAYERS: &[(&str, &[&str])] = &[
    ("clock", &[]),
    ("metrics", &[]),
    ("task", &["clock"]),
    ("contract", &["task"]),
    ("config", &["task"]),
    ("store", &["task", "clock"]),
    ("upstream", &["config", "task", "clock"]),
    // Joins what the upstream asks of a keeper of tokens to what the store has.
    ("credentials", &["upstream", "store", "config"]),
    ("catalog", &["upstream", "store", "config", "task", "clock"]),
    ("driver", &["upstream", "config", "contract", "task"]),
    ("world", &["clock"]),
    ("worker", &["driver", "contract", "store", "task", "clock", "world", "upstream"]),
    ("service", &["worker", "driver", "contract", "store", "task", "upstream"]),
    ("runtime", &["service", "worker", "driver", "upstream", "config", "store", "world"]),
];

/// Libraries, and the only places that may name them.
const HOMES: &[(&str, &[&str])] = &[
    ("sqlx", &["runtime-core/src/store/sql"]),
    (
        "reqwest",
        &[
            "runtime-core/src/upstream",
            "poller/src/auth/jwt",
            "poller/src/demo",
            "poller/src/cli",
            "poller/src/trace",
            "poller/src/delivery",
        ],
    ),
    ("opentelemetry", &["poller/src/trace"]),
    ("process_wrap", &["runtime-core/src/upstream"]),
    ("rmcp", &["poller/src/gateway", "poller/src/demo"]),
    (
        "axum",
        &[
            "poller/src/api",
            "poller/src/auth/jwt/tests.rs",
            "poller/src/demo",
            "poller/src/gateway",
            "poller/src/listener.rs",
        ],
    ),
    ("hyper_util", &["poller/src/listener.rs"]),
    ("clap", &["poller/src"]),
    ("jsonwebtoken", &["poller/src/auth/jwt"]),
];

/// What a pure room must not know of.
const IMPURE: &[&str] = &["tokio", "sqlx", "reqwest", "rmcp", "axum", "std::fs", "std::net", "std::env", "fastrand"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn sources(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).expect("inside the workspace").to_string_lossy().into_owned();
                found.push((name, std::fs::read_to_string(&path).expect("readable")));
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "{folder} has no sources");
    found
}

/// The code of a file less comments and tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn mentions(code: &str, path: &str) -> bool {
    code.match_indices(path).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + path.len()..].chars().next();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_') && after.is_some_and(|c| c == ':' || c == ';')
    })
}

#[test]
fn a_room_uses_only_what_is_below_it() {
    let mut wrong = Vec::new();
    for (name, text) in sources("runtime-core/src") {
        let room = name.trim_start_matches("runtime-core/src/").split(['/', '.']).next().unwrap_or_default().to_owned();
        if room == "lib" {
            continue;
        }
        let (_, allowed) = LAYERS
            .iter()
            .find(|(layer, _)| *layer == room)
            .unwrap_or_else(|| panic!("{name}: the room {room} has no place among the layers"));
        let code = code(&text);
        for (layer, _) in LAYERS {
            let used = code.contains(&format!("crate::{layer}::")) || code.contains(&format!("crate::{layer};"));
            if used && *layer != room && !allowed.contains(layer) {
                wrong.push(format!("{name} uses {layer}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn libraries_stay_in_their_rooms() {
    let mut wrong = Vec::new();
    for (name, text) in sources("runtime-core/src").into_iter().chain(sources("poller/src")) {
        let code = code(&text);
        for (library, homes) in HOMES {
            if mentions(&code, library) && !homes.iter().any(|home| name.starts_with(home)) {
                wrong.push(format!("{name} names {library}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn task_and_contract_are_pure() {
    let mut wrong = Vec::new();
    for (name, text) in sources("runtime-core/src/task").into_iter().chain(sources("runtime-core/src/contract")) {
        let code = code(&text);
        wrong.extend(IMPURE.iter().filter(|path| mentions(&code, path)).map(|path| format!("{name} names {path}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn migrations_have_the_same_numbers_and_names_on_both_engines() {
    let names = |engine: &str| -> BTreeSet<String> {
        let folder = root().join("migrations").join(engine);
        let entries = std::fs::read_dir(folder).expect("a folder of migrations");
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    };
    assert_eq!(names("sqlite"), names("postgres"));
    let numbers: Vec<_> = names("sqlite").iter().map(|name| name[..4].parse::<usize>().expect("a number")).collect();
    assert!(numbers.is_sorted_by(|one, next| one < next), "each number is one migration's: {numbers:?}");
}

#[test]
fn every_file_says_what_it_owns() {
    let all = ["runtime-core/src", "poller/src", "tests/src"].into_iter().flat_map(sources);
    let silent: Vec<_> = all.filter(|(_, text)| !text.starts_with("//!")).map(|(name, _)| name).collect();
    assert!(silent.is_empty(), "{silent:#?}");
}

/// `docs/RELIABILITY.md` has a row for each failure of the catalogue, and each names tests, which exist.
#[test]
fn every_failure_of_the_catalogue_names_tests_that_exist() {
    let page = std::fs::read_to_string(root().join("docs/RELIABILITY.md")).expect("the page");
    let code: String = ["runtime-core/src", "poller/src", "tests/src", "tests/tests"]
        .into_iter()
        .flat_map(sources)
        .map(|(_, text)| text)
        .collect();
    let mut rows = 0;
    for row in page.lines() {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let Some(number) = cells.first().and_then(|cell| cell.parse::<usize>().ok()) else { continue };
        rows += 1;
        assert_eq!(number, rows, "failures are listed in order");
        let is_name = |name: &&str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let shown_by = cells.last().copied().unwrap_or_default();
        let names: Vec<_> = shown_by.split('`').skip(1).step_by(2).filter(is_name).collect();
        assert!(!names.is_empty(), "failure {number} is shown by nothing");
        for name in names {
            assert!(code.contains(&format!("fn {name}(")), "failure {number}: there is no test {name}");
        }
    }
    assert_eq!(rows, 42);
}

/// The code map of `docs/ARCHITECTURE.md` leads to what is there.
#[test]
fn every_place_on_the_code_map_exists() {
    let page = std::fs::read_to_string(root().join("docs/ARCHITECTURE.md")).expect("the page");
    let map = page.split("\n## ").find(|section| section.starts_with("Code map\n")).expect("the map");
    let cells = map.lines().filter_map(|row| row.strip_prefix("| `")?.split('`').next());
    let places: Vec<String> = cells
        .flat_map(|cell| match cell.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?))) {
            Some((before, (names, after))) => {
                names.split(',').map(|name| format!("{before}{name}{after}")).collect::<Vec<_>>()
            }
            None => vec![cell.to_owned()],
        })
        .collect();
    assert!(places.len() > 40, "{places:?}");
    let gone: Vec<_> = places.iter().filter(|place| !root().join(place).exists()).collect();
    assert!(gone.is_empty(), "{gone:?}");
}
