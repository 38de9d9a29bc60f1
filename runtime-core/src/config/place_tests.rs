//! What is shown of a line, and what is not.

use proptest::prelude::*;

use super::*;

fn shown(line: &str, column: usize) -> String {
    excerpt(line, Place { line: 1, column }).unwrap()
}

#[test]
fn a_mark_stands_below_the_place() {
    assert_eq!(shown("  lease_secnds: 30", 3), "\n    1 |   lease_secnds: 30\n      |   ^");
    assert_eq!(shown("\tx: 1", 2), "\n    1 |  x: 1\n      |  ^");
    assert_eq!(shown("a: ", 99), "\n    1 | a: \n      |    ^");
    assert_eq!(excerpt("a", Place { line: 2, column: 1 }), None);
    assert_eq!(excerpt("a", Place { line: 0, column: 0 }), None);
}

#[test]
fn values_that_may_be_secrets_are_hidden() {
    let line = |text: &str| shown(text, 1).lines().nth(1).unwrap().split_once(" | ").unwrap().1.to_owned();
    for (text, expected) in [
        ("postgres_url: postgres://u:hunter2@h/d", "postgres_url: …"),
        ("password: 1234 # hunter2", "password: …"),
        ("lease_seconds: 4 # hunter2", "lease_seconds: …"),
        ("password: hunter2: hunter2", "password: …: …"),
        ("password: \"hunter2\": hunter2", "password: …: …"),
        ("{enabled: true, token: 12, x: hunter2, y: [1, hunter2]}", "{enabled: true, token: …, x: …, y: [1, …]}"),
        (r#"  "headers": {"A": "hunter2", "B": "hunter2""#, r#"  "headers": {"A": …, "B": …"#),
        (r#""a": "x \" hunter2", "b": 1,"#, r#""a": …, "b": 1,"#),
        ("- hunter2", "- …"),
        ("hunter2 hunter2", "…"),
        ("'hunter2", "…"),
        ("key: |", "key: …"),
    ] {
        assert_eq!(line(text), expected, "{text}");
    }
}

#[test]
fn a_long_line_is_cut_around_the_mark() {
    let text = format!("{{{} wrong: 1, {}}}", "a: 1, ".repeat(100), "b: 2, ".repeat(100));
    let column = text.find("wrong").unwrap() + 1;
    let shown = shown(&text, column);
    let (line, mark) = shown.trim_start_matches('\n').split_once('\n').unwrap();
    assert!(line.chars().count() <= MAX_WIDTH + 8, "{shown}");
    assert_eq!(line.find("wrong").map(|at| line[..at].chars().count()), mark.chars().position(|c| c == '^'), "{shown}");
}

#[test]
fn mistakes_are_told_together_up_to_a_number() {
    let mistakes = |count: usize| -> Vec<Mistake> { (0..count).map(|at| Mistake::new("f", None, at)).collect() };
    assert_eq!(refusal(&mistakes(2), "").0, "f: 0\nf: 1");
    let at = |line| Mistake::new("f", Some(Place { line, column: 1 }), "x");
    let sorted = refusal(&[Mistake::new("f", None, "y"), at(2), at(1)], "a\nb\n");
    assert_eq!(sorted.summary(), "f, line 1, column 1: x; f, line 2, column 1: x; f: y");
    let many = refusal(&mistakes(25), "").0;
    assert!(many.ends_with("f: 19\nand 5 more"), "{many}");
}

proptest! {
    #[test]
    fn no_line_shows_a_word_in_quotes_or_after_a_colon(before in "[a-z]{1,8}", after in r#"[ ,:{}'"\[\]#-]{0,6}"#, column in 0usize..60) {
        for line in [format!("{before}: hunter2{after}"), format!("\"{before}\": \"hunter2{after}"), format!("{{\"{before}\": \"hunter2\"{after}")] {
            prop_assert!(!shown(&line, column).contains("hunter2"), "{line}: {}", shown(&line, column));
        }
    }
}
