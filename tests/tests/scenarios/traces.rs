//! What a collector and the servers see of traces.

use mcp_taskd_tests::collector::{Collector, Span, hex, text};
use mcp_taskd_tests::daemon::{has_ended, id_of};
use mcp_taskd_tests::wait::until;
use serde_json::json;

use crate::{fake, site};

/// `SPAN_KIND_CLIENT`.
const CLIENT: i32 = 3;
/// `STATUS_CODE_ERROR`.
const ERROR: i32 = 2;

fn parent(span: &Span) -> String {
    format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_is_a_span_and_each_poll_leads_to_its_submit_in_whichever_process() {
    let (fake, collector) = (fake().await, Collector::start().await);
    let site = site().server("s", &fake.url);
    let traced = |name: &str| {
        let daemon = site.daemon(name);
        daemon.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint).env("OTEL_BSP_SCHEDULE_DELAY", "100")
    };
    let mut first = traced("first");
    first.start().await;
    let id = id_of(&first.api.submit("s", &json!({"end": "never"}), None).await.unwrap());
    until("a poll", async || first.api.task(&id).await.unwrap()["status"] == "working").await;
    first.stop().await;

    // Another process knows nothing of the submit but the task's id.
    let before = collector.spans().len();
    let mut second = traced("second");
    second.start().await;
    until("a poll's span", async || collector.spans().len() > before).await;
    second.api.cancel(&id).await.unwrap();
    until("the end", async || has_ended(&second.api.task(&id).await.unwrap())).await;
    second.stop().await;

    let spans = collector.spans();
    let named = |name: &str| -> Vec<&Span> { spans.iter().filter(|span| span.name == name).collect() };
    let [submit] = named("tools/call submit_report")[..] else { panic!("{spans:#?}") };
    assert_eq!((submit.kind, submit.links.len(), submit.parent_span_id.len()), (CLIENT, 0, 0));
    for (key, value) in [
        ("mcp.method.name", "tools/call"),
        ("gen_ai.operation.name", "execute_tool"),
        ("gen_ai.tool.name", "submit_report"),
        ("server.address", "127.0.0.1"),
        ("network.transport", "tcp"),
        ("mcp_taskd.server", "s"),
        ("mcp_taskd.task.id", &id),
        ("mcp_taskd.call.purpose", "submit"),
    ] {
        assert_eq!(text(&submit.attributes, key).as_deref(), Some(value), "{key}");
    }
    assert!(text(&submit.attributes, "server.port").is_some_and(|port| fake.url.contains(&port)));
    let (polls, cancels) = (named("tools/call get_report_status"), named("tools/call cancel_report"));
    assert!(polls.len() >= 2 && !cancels.is_empty(), "{spans:#?}");
    for span in polls.iter().chain(&cancels) {
        let [link] = &span.links[..] else { panic!("{span:#?}") };
        assert_eq!((&link.trace_id, &link.span_id), (&submit.trace_id, &submit.span_id));
        assert_ne!(span.trace_id, submit.trace_id, "a task that lives for days is no single trace");
    }
    assert_eq!(collector.resource("service.name").as_deref(), Some("mcp-taskd"));
    for called in fake.state.journal() {
        let told = called.traceparent.expect("in _meta");
        assert_eq!(called.headers["traceparent"], told.as_str());
        assert!(spans.iter().any(|span| parent(span) == told), "{told} of {}", called.tool);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_fails_says_why_in_its_span() {
    let (fake, collector) = (fake().await, Collector::start().await);
    let site = site().server("s", &fake.url);
    let mut daemon =
        site.daemon("taskd").env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &format!("{}/v1/traces", collector.endpoint));
    daemon = daemon.env("OTEL_BSP_SCHEDULE_DELAY", "100").env("OTEL_SERVICE_NAME", "reports-of-acme");
    daemon.start().await;
    daemon.api.submit("s", &json!({"end": "never", "poll_after_seconds": 0.2}), None).await.unwrap();
    fake.state.faults.status.store(503, std::sync::atomic::Ordering::Relaxed);
    let failed = || {
        let spans = collector.spans().into_iter();
        spans.filter(|span| span.status.as_ref().is_some_and(|status| status.code == ERROR)).collect::<Vec<_>>()
    };
    until("a failed poll", async || !failed().is_empty()).await;
    assert_eq!(text(&failed()[0].attributes, "error.type").as_deref(), Some("transport"), "{:#?}", failed()[0]);
    assert_eq!(collector.resource("service.name").as_deref(), Some("reports-of-acme"));
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_endpoint_servers_are_told_of_no_trace() {
    let fake = fake().await;
    let site = site().server("s", &fake.url);
    let mut daemon = site.daemon("taskd").env("OTEL_SERVICE_NAME", "x");
    daemon.start().await;
    let id = id_of(&daemon.api.submit("s", &json!({"polls": 1}), None).await.unwrap());
    until("the end", async || has_ended(&daemon.api.task(&id).await.unwrap())).await;
    daemon.stop().await;
    let journal = fake.state.journal();
    assert!(journal.len() >= 2);
    assert!(journal.iter().all(|called| called.traceparent.is_none() && !called.headers.contains_key("traceparent")));
}
