//! The document, and how it is served.

use std::collections::BTreeSet;
use std::path::Path;

use super::super::tests::{Client, body, text};
use crate::api::document;
use crate::stub::{Stub, daemon};

fn client() -> Client {
    let (daemon, stub) = daemon(Stub::default());
    Client::on(daemon, stub)
}

#[test]
fn the_document_in_the_repository_is_the_one_that_is_served() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
    crate::snapshot::check(&path, &format!("{:#}\n", document()));
}

#[test]
fn every_operation_has_a_name_of_its_own_and_every_reference_leads_somewhere() {
    let document = document();
    let mut names = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let name = operation["operationId"].as_str().unwrap();
            assert!(names.insert(name.to_owned()), "{method} {path}: {name} is used twice");
            assert!(operation["responses"].as_object().is_some_and(|answers| !answers.is_empty()), "{name}");
        }
    }
    for reference in document.to_string().split(r##""$ref":"#"##).skip(1) {
        let pointer = reference.split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
}

#[tokio::test]
async fn the_document_and_its_viewer_are_served_to_anybody_and_need_nothing_from_elsewhere() {
    let client = client();
    let served = client.send(http::Method::GET, "/openapi.json", &[("host", "taskd.example")], "").await;
    assert_eq!(
        (served.status(), &served.headers()["content-type"]),
        (http::StatusCode::OK, &"application/json".parse().unwrap())
    );
    assert_eq!(body(served).await["openapi"], "3.1.0");
    for (path, media_type) in [
        ("/docs", "text/html; charset=utf-8"),
        ("/docs/viewer.js", "text/javascript; charset=utf-8"),
        ("/docs/viewer.css", "text/css; charset=utf-8"),
    ] {
        let served = client.get(path).await;
        assert_eq!(served.status(), 200, "{path}");
        assert_eq!(served.headers()["content-type"], media_type, "{path}");
        let policy = served.headers()["content-security-policy"].to_str().unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        let text = text(served).await;
        assert!(!text.contains("//cdn") && !text.contains("http://") && !text.contains("https://"), "{path}");
        assert!(!text.contains("innerHTML"), "{path}");
    }
}
