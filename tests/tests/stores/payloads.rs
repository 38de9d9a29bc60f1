//! What is stored is what the server said (BEHAVIOURS B, 151).

use mcp_taskd_core::store::Applied;
use mcp_taskd_core::task::{Json, Snapshot, Status};

use crate::bench::{Bench, behaviours, with_snapshot};

behaviours! {
    payloads_come_back_byte_for_byte_151,
    a_batch_of_large_payloads_goes_through,
}

fn samples() -> Vec<String> {
    vec![
        "null".into(),
        "false".into(),
        "123456789012345678901234567890.000100".into(),
        "-0".into(),
        "1e400".into(),
        "0.1e-7".into(),
        r#""""#.into(),
        r#""nul \u0000 and \\u0000, quote \" and slash \\""#.into(),
        r#""emoji 🦀, é, and combining e\u0301""#.into(),
        r#"{"b":1,"a":[{},[],""],"a ":{"$.x":"'; DROP TABLE mcp_tasks; --"}}"#.into(),
        r#"["$1","{active}","%s","\n\t\r"]"#.into(),
        format!("\"{}\"", "é".repeat(32 * 1024 - 1)),
    ]
}

async fn payloads_come_back_byte_for_byte_151(bench: &Bench) {
    let worker = bench.worker("w").await;
    for (index, text) in samples().into_iter().enumerate() {
        let task = bench.held(&worker, &format!("t{index}")).await;
        let json = Json::parse(&text).unwrap();
        let mut snapshot = Snapshot::bare(Status::InputRequired);
        snapshot.outcome.result = Some(json.clone());
        snapshot.outcome.input_required = Some(json.clone());
        snapshot.outcome.result_artifact = Some(json);
        snapshot.outcome.result_preview = Some("tab\t \\u0000 'quote' 🦀".into());
        snapshot.outcome.result_truncated = true;
        snapshot.outcome.error = Some("{\"looks\":\"like JSON\"}".into());
        snapshot.outcome.error_code = Some("42".into());
        let write = with_snapshot(&task, snapshot.clone());
        assert_eq!(bench.store.apply(&worker, &[write]).await.unwrap(), [Applied::Done { epoch: 3 }]);
        let record = bench.get(&task.id).await;
        assert_eq!(record.outcome, snapshot.outcome, "{text}");
        assert_eq!(record.digest.as_deref(), Some(snapshot.digest().as_str()));
    }
}

async fn a_batch_of_large_payloads_goes_through(bench: &Bench) {
    let worker = bench.worker("w").await;
    let mut writes = Vec::new();
    for index in 0..40 {
        let task = bench.held(&worker, &format!("t{index:02}")).await;
        let mut snapshot = Snapshot::bare(Status::Completed);
        snapshot.outcome.result = Some(Json::parse(&format!("[{index},\"{}\"]", "x".repeat(65_000))).unwrap());
        writes.push(with_snapshot(&task, snapshot));
    }
    let applied = bench.store.apply(&worker, &writes).await.unwrap();
    assert!(applied.iter().all(|applied| *applied == Applied::Done { epoch: 3 }));
    for write in &writes {
        assert_eq!(bench.get(&write.id).await.outcome, write.change.outcome.clone().unwrap().0);
    }
}
