//! Native task objects, rule by rule, in both generations.

use proptest::prelude::*;

use super::*;
use crate::task::limits::{ERROR_CODE_MAX_CHARS, SLOT_MAX_BYTES, SNIPPET_MAX_CHARS};
use crate::task::{Failure, FailureKind};

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn created(text: &str) -> Result<Created, NotCreated> {
    read_created(&raw(text), "render", &Limits::default())
}

/// Why a submit was refused, and what is to be cancelled.
fn refusal(text: &str) -> Refusal {
    match created(text) {
        Err(NotCreated::Refused(refusal)) => refusal,
        other => panic!("{text:.80}: {other:?}"),
    }
}

fn handle(text: &str) -> Handle {
    match created(text) {
        Ok(Created::Task(handle)) => handle,
        other => panic!("{other:?}"),
    }
}

fn task(text: &str) -> TaskReading {
    read_task(&raw(text), "r-1", &Limits::default())
}

fn snapshot(text: &str) -> Snapshot {
    match task(text) {
        TaskReading::Read(StatusReading::Snapshot(snapshot)) => *snapshot,
        other => panic!("{text}: {other:?}"),
    }
}

/// A task of 2026-07-28 with these further members.
fn modern(status: &str, more: &str) -> String {
    format!(
        r#"{{"resultType":"complete","taskId":"r-1","status":"{status}","createdAt":"2026-11-25T10:30:00Z",
            "lastUpdatedAt":"2026-11-25T10:40:00Z","ttlMs":60000{more}}}"#
    )
}

/// A task of 2025-11-25.
fn legacy(status: &str, more: &str) -> String {
    format!(r#"{{"taskId":"r-1","status":"{status}","ttl":null,"_meta":{{}}{more}}}"#)
}

fn violation(text: &str) -> String {
    let snapshot = snapshot(text);
    assert_eq!(snapshot.status, Status::Failed, "{text}");
    assert_eq!(snapshot.outcome.error_code.as_deref(), Some(code::CONTRACT_VIOLATION), "{text}");
    snapshot.outcome.error.unwrap()
}

#[test]
fn both_generations_hand_over_a_task_1_3() {
    let new = handle(
        r#"{"resultType":"task","taskId":"r-1","status":"working","ttlMs":60000,"pollIntervalMs":2500,"more":[]}"#,
    );
    let (hint, ttl) = (Some(Duration::from_millis(2_500)), Some(Duration::from_mins(1)));
    assert_eq!(new, Handle { remote_id: "r-1".to_owned(), hint, ttl });
    let old = handle(r#"{"task":{"taskId":"r-1","status":"working","ttl":60000,"pollInterval":2500},"_meta":{}}"#);
    assert_eq!(old, new);
    let bare = handle(r#"{"taskId":"r-1","status":"input_required","ttlMs":null}"#);
    assert_eq!(bare, Handle::new("r-1".to_owned()));
    let ended = handle(r#"{"resultType":"task","taskId":"r-1","status":"completed","pollIntervalMs":9000}"#);
    assert_eq!(ended.hint, Some(Duration::ZERO), "what has ended is asked for its result at once");
}

#[test]
fn bad_advice_about_a_new_task_is_ignored_13_136() {
    for bad in ["0", "-1", "1e999", "\"5\"", "true", "{}"] {
        let new = handle(&format!(r#"{{"taskId":"r-1","status":"working","ttlMs":{bad},"pollIntervalMs":{bad}}}"#));
        assert_eq!(new, Handle::new("r-1".to_owned()), "{bad}");
    }
    let new = handle(r#"{"taskId":"r-1","status":"working","ttlMs":1e300,"pollIntervalMs":1e300}"#);
    assert_eq!((new.hint, new.ttl), (Some(Duration::from_hours(24)), None), "a ttl that no clock holds is none");
    let new = handle(r#"{"taskId":"r-1","status":"working","ttlMs":604800000}"#);
    assert_eq!(new.ttl, Some(Duration::from_hours(7 * 24)), "a ttl is not bounded as a hint is");
}

#[test]
fn a_task_without_a_usable_id_or_status_is_refused_and_cancelled_where_it_can_be_2_23_152() {
    for text in [
        r#"{"resultType":"task","status":"working"}"#,
        r#"{"taskId":"","status":"working"}"#,
        r#"{"taskId":7,"status":"working"}"#,
        r#"{"taskId":"a","taskId":"b","status":"working"}"#,
        "{}",
        r#"{"task":{"status":"working"}}"#,
    ] {
        assert_eq!(refusal(text).orphan, None, "{text}");
    }
    let id = |chars: usize| "ü".repeat(chars);
    let of = |id: &str| format!(r#"{{"taskId":"{id}","status":"working"}}"#);
    assert!(created(&of(&id(255))).is_ok());
    assert_eq!(refusal(&of(&id(256))).orphan, Some(id(256)));
    assert_eq!(refusal(&of(r"a\u0000")).orphan.as_deref(), Some("a\0"));
    for status in ["\"Working\"", "\"running\"", "1", "null"] {
        let refused = refusal(&format!(r#"{{"resultType":"task","taskId":"r-1","status":{status}}}"#));
        assert_eq!(refused.orphan.as_deref(), Some("r-1"), "{status}");
    }
}

#[test]
fn an_answer_that_is_the_tools_result_is_the_works_end() {
    let ended = |text: &str| match created(text) {
        Ok(Created::Ended(snapshot)) => snapshot,
        other => panic!("{other:?}"),
    };
    let read = ended(r#"{"resultType":"complete","content":[],"structuredContent":{"n":1e400}}"#);
    assert_eq!((read.status, read.outcome.result.unwrap().as_str()), (Status::Completed, r#"{"n":1e400}"#));
    let read = ended(r#"{"content":[{"type":"text","text":"done"}],"structuredContent":null}"#);
    assert_eq!(read.outcome.result.unwrap().as_str(), r#"[{"type":"text","text":"done"}]"#);
    let refused = refusal(r#"{"isError":true,"content":[{"type":"text","text":"no such film"}]}"#);
    assert_eq!(refused.message, "render returned an error: no such film", "5: it is the caller's to mend");
    let asks = refusal(r#"{"resultType":"input_required","inputRequests":{},"requestState":"s"}"#);
    assert!(asks.message.contains("asks for input before it starts"), "{asks}");
}

#[test]
fn an_answer_to_a_submit_that_cannot_be_judged_tells_nothing_of_the_work_145_146() {
    let deep = format!(r#"{{"content":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    for text in ["7", "[]", "null", "\"what?\"", &deep] {
        let unreadable = created(text).unwrap_err();
        assert!(
            matches!(&unreadable, NotCreated::Unreadable(why) if why.contains("cannot be judged")),
            "{unreadable:?}"
        );
    }
}

#[test]
fn the_five_statuses_are_read_and_no_other_spelling_9_18() {
    for build in [modern, legacy] {
        assert_eq!(snapshot(&build("working", r#","statusMessage":"half""#)).status, Status::Working);
        let cancelled = snapshot(&build("cancelled", r#","statusMessage":"not needed""#));
        assert_eq!(cancelled.status, Status::Cancelled);
        assert_eq!(cancelled.outcome.error.as_deref(), Some("not needed"));
        for name in ["Working", "running", "submitted", ""] {
            violation(&build(name, ""));
        }
    }
    violation(r#"{"taskId":"r-1"}"#);
    violation(r#"{"taskId":"r-1","status":1}"#);
    let progress = |text: &str| snapshot(&modern("working", &format!(r#","statusMessage":"{text}""#))).digest();
    assert_eq!(progress("a third"), progress("half"), "progress in words is no change");
}

#[test]
fn the_id_must_be_the_tasks_own_8() {
    for id in ["\"\"", "\"r-2\"", "7", "null", "\"r-1\\u0000\""] {
        violation(&format!(r#"{{"taskId":{id},"status":"working"}}"#));
    }
    violation(r#"{"status":"working"}"#);
}

#[test]
fn what_the_tool_answered_is_the_result_14_27() {
    let completed = |result: &str| snapshot(&modern("completed", &format!(r#","result":{result}"#)));
    let read = completed(r#"{"content":[{"type":"text","text":"x"}],"structuredContent":{"b":1.50,"a":2}}"#);
    assert_eq!(read.outcome.result.unwrap().as_str(), r#"{"b":1.50,"a":2}"#);
    let read = completed(r#"{"content":[{"type":"hologram","x":[1]}]}"#);
    assert_eq!(read.outcome.result.unwrap().as_str(), r#"[{"type":"hologram","x":[1]}]"#);
    let read = completed(&format!(r#"{{"structuredContent":{{"z":"{}"}}}}"#, "z".repeat(70_000)));
    assert_eq!(
        (read.status, read.outcome.result.clone(), read.outcome.result_truncated),
        (Status::Completed, None, true)
    );
    for bad in ["{}", "7", "\"done\"", "[]", "null", r#"{"content":null}"#] {
        violation(&modern("completed", &format!(r#","result":{bad}"#)));
    }
    violation(&modern("completed", ""));
}

#[test]
fn a_tool_that_reports_an_error_is_completed_with_the_error_beside_its_result() {
    let long = "é".repeat(900);
    let read = snapshot(&modern(
        "completed",
        &format!(r#","result":{{"isError":true,"content":[{{"type":"text","text":"{long}"}}]}}"#),
    ));
    assert_eq!((read.status, read.outcome.error_code.as_deref()), (Status::Completed, Some(code::TOOL_ERROR)));
    assert!(read.outcome.error.unwrap().chars().count() <= SNIPPET_MAX_CHARS + 40);
    assert!(read.outcome.result.unwrap().as_str().contains(&long));
}

#[test]
fn a_failed_task_tells_its_error_25() {
    let failed = |error: &str| snapshot(&modern("failed", &format!(r#","error":{error}"#))).outcome;
    let read = failed(r#"{"code":-32603,"message":"API rate limit exceeded","data":{}}"#);
    assert_eq!(read.error.as_deref(), Some("API rate limit exceeded"));
    assert_eq!(read.error_code.as_deref(), Some("-32603"));
    let read = failed(&format!(r#"{{"code":1e99,"message":"{}"}}"#, "m".repeat(5_000)));
    assert_eq!((read.error.unwrap().chars().count(), read.error_code), (4_000, None));
    for odd in ["{}", "7", "\"x\"", r#"{"message":[]}"#] {
        assert_eq!(failed(odd).error.as_deref(), Some("The task failed without a message"), "{odd}");
    }
    assert_eq!(snapshot(&modern("failed", r#","statusMessage":"broke""#)).outcome.error.as_deref(), Some("broke"));
}

#[test]
fn what_a_task_asks_is_an_object_within_64_kib_to_the_byte_10_26() {
    let asks = |requests: &str| modern("input_required", &format!(r#","inputRequests":{requests}"#));
    let read = snapshot(&asks(r#"{"q1": {"method":"elicitation/create","params":{"message":"?"}}}"#));
    assert_eq!(read.status, Status::InputRequired);
    assert_eq!(
        read.outcome.input_required.unwrap().as_str(),
        r#"{"q1":{"method":"elicitation/create","params":{"message":"?"}}}"#
    );
    for bad in ["[]", "\"name?\"", "7"] {
        violation(&asks(bad));
    }
    violation(&modern("input_required", ""));
    let sized = |bytes: usize| asks(&format!(r#"{{"q":"{}"}}"#, "x".repeat(bytes - 8)));
    let kept = snapshot(&sized(SLOT_MAX_BYTES)).outcome.input_required.unwrap();
    assert_eq!(kept.as_str().len(), SLOT_MAX_BYTES);
    violation(&sized(SLOT_MAX_BYTES + 1));
    assert_eq!(snapshot(&asks("{}")).status, Status::Working, "everything is answered");
    let old = snapshot(&legacy("input_required", r#","statusMessage":"which one?""#));
    assert_eq!(old.outcome.input_required.unwrap().as_str(), r#"{"statusMessage":"which one?"}"#);
}

#[test]
fn the_same_question_asked_again_is_no_news() {
    let asks =
        |requests: &str| snapshot(&modern("input_required", &format!(r#","inputRequests":{requests}"#))).digest();
    let first = asks(r#"{"a":{"method":"elicitation/create","params":{"x":1,"y":2}},"b":{}}"#);
    assert_eq!(first, asks(r#"{"b":{},"a":{"params":{"y":2,"x":1},"method":"elicitation/create"}}"#));
    assert_ne!(first, asks(r#"{"c":{}}"#));
}

#[test]
fn an_older_servers_result_is_fetched_where_it_has_one() {
    let TaskReading::Fetch(ended) = task(&legacy("completed", r#","pollInterval":500"#)) else {
        panic!("expected a fetch");
    };
    let StatusReading::Snapshot(read) =
        read_result(*ended, &raw(r#"{"content":[],"structuredContent":{"a":1},"_meta":{}}"#), &Limits::default())
    else {
        panic!("expected a snapshot");
    };
    assert_eq!((read.status, read.outcome.result.unwrap().as_str()), (Status::Completed, r#"{"a":1}"#));
    let TaskReading::Fetch(failed) = task(&legacy("failed", r#","statusMessage":"went wrong""#)) else {
        panic!("expected a fetch");
    };
    assert_eq!(failed.outcome.error.as_deref(), Some("went wrong"));
    let reported = raw(r#"{"isError":true,"content":[{"type":"text","text":"no paper"}]}"#);
    let StatusReading::Snapshot(read) = read_result((*failed).clone(), &reported, &Limits::default()) else {
        panic!("expected a snapshot");
    };
    assert_eq!(
        (read.status, read.outcome.error.as_deref()),
        (Status::Failed, Some("The tool returned an error: no paper"))
    );
    let read = failed_with(*failed, Some(-32_000), &"m".repeat(5_000));
    assert_eq!((read.status, read.outcome.error_code.as_deref()), (Status::Failed, Some("-32000")));
    assert_eq!(read.outcome.error.unwrap().len(), ERROR_MAX_CHARS);
    assert!(matches!(task(&legacy("cancelled", "")), TaskReading::Read(_)), "a cancelled task has no result");
}

#[test]
fn bad_advice_about_a_running_task_is_ignored_with_a_warning_13_136_154() {
    for bad in ["0", "-1", "1e999", "\"5\"", "true", "[]"] {
        let read = snapshot(&modern("working", &format!(r#","pollIntervalMs":{bad},"statusMessage":7"#)));
        assert_eq!((read.status, read.hint, read.ttl), (Status::Working, None, Some(Duration::from_mins(1))), "{bad}");
        let warning = read.warning.unwrap();
        assert!(warning.contains("poll interval") && warning.contains("statusMessage"), "{warning}");
    }
    let read = snapshot(&modern("working", r#","pollIntervalMs":1e300"#));
    assert_eq!((read.hint, read.warning), (Some(Duration::from_hours(24)), None));
}

#[test]
fn an_answer_that_is_no_task_object_or_too_deep_is_retried_146() {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for text in
        ["7", "[]", "null", &modern("completed", &format!(r#","result":{{"structuredContent":{{"a":{deep}}}}}"#))]
    {
        let TaskReading::Read(StatusReading::Failure(Failure { kind, .. })) = task(text) else {
            panic!("expected a failure of {text:.40}");
        };
        assert_eq!(kind, FailureKind::Protocol);
    }
}

#[test]
fn a_task_that_is_gone_ends_in_the_servers_words_11() {
    let read = not_found(" Task has expired ");
    assert_eq!((read.status, read.outcome.error.as_deref()), (Status::Failed, Some("Task has expired")));
    assert_eq!(read.outcome.error_code.as_deref(), Some(code::TASK_NOT_FOUND));
    assert_eq!(not_found("").outcome.error.as_deref(), Some("Remote MCP task was not found"));
}

proptest! {
    #[test]
    fn arbitrary_members_never_panic_and_never_overstep_the_bounds(
        status in "working|input_required|completed|failed|cancelled|other",
        message in any::<String>(), code in any::<i64>(), result in any::<String>(), interval in any::<f64>(),
        modern in any::<bool>(),
    ) {
        let mut object = serde_json::json!({
            "taskId": "r-1", "status": status, "statusMessage": message, "pollInterval": interval,
            "result": {"content": [{"type": "text", "text": result}], "isError": code % 2 == 0},
            "error": {"code": code, "message": message}, "inputRequests": {"q": result},
        });
        if modern {
            object["resultType"] = "complete".into();
        }
        if let TaskReading::Read(StatusReading::Snapshot(snapshot)) = task(&object.to_string()) {
            let outcome = snapshot.outcome;
            prop_assert!(outcome.error.as_ref().is_none_or(|text| text.chars().count() <= ERROR_MAX_CHARS));
            prop_assert!(!outcome.error.unwrap_or_default().contains('\0'));
            prop_assert!(outcome.error_code.unwrap_or_default().chars().count() <= ERROR_CODE_MAX_CHARS);
            prop_assert!(snapshot.hint.unwrap_or_default() <= Duration::from_hours(24));
        }
        let _ = created(&object.to_string());
    }
}
