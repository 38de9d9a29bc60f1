//! Answers that mean harm: cut at the cap or at the deadline, and an error, never a verdict (FAILURES 28, BEHAVIOURS 146).

use std::time::Duration;

use mcp_taskd_core::upstream::{BODY_MAX_BYTES, CallError, CallErrorKind};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::setup::{call, over_http};

const PATIENT: Duration = Duration::from_secs(60);

/// How a server answers a `tools/call`.
#[derive(Clone)]
struct Hostile {
    /// Status line and headers.
    head: String,
    /// Sent first; `$id` is the request's.
    body: Vec<u8>,
    /// Sent again and again, with this pause in between.
    endless: Option<(Vec<u8>, Duration)>,
}

impl Hostile {
    fn new(media_type: &str, body: impl Into<Vec<u8>>) -> Self {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\nconnection: close\r\n");
        Self { head, body: body.into(), endless: None }
    }

    fn header(mut self, line: &str) -> Self {
        self.head = format!("{}{line}\r\n", self.head);
        self
    }

    fn endless(self, piece: impl Into<Vec<u8>>, pause: Duration) -> Self {
        Self { endless: Some((piece.into(), pause)), ..self }
    }

    /// Serves one answer a connection, on a loopback port; its URL.
    async fn serve(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let hostile = self.clone();
                // The client hangs up in the middle; that is the point.
                tokio::spawn(async move { hostile.answer(stream).await });
            }
        });
        url
    }

    async fn answer(self, mut stream: TcpStream) -> std::io::Result<()> {
        let request = read_request(&mut stream).await?;
        let id = request["id"].to_string();
        if request["method"] != "tools/call" {
            let result = r#"{"supportedVersions":["2026-07-28"],"capabilities":{}}"#;
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
            return stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await;
        }
        stream.write_all(format!("{}\r\n", self.head).as_bytes()).await?;
        stream.write_all(&replace(&self.body, &id)).await?;
        while let Some((piece, pause)) = &self.endless {
            stream.write_all(piece).await?;
            if !pause.is_zero() {
                tokio::time::sleep(*pause).await;
            }
        }
        Ok(())
    }
}

fn replace(body: &[u8], id: &str) -> Vec<u8> {
    match std::str::from_utf8(body) {
        Ok(text) => text.replace("$id", id).into_bytes(),
        Err(_) => body.to_vec(),
    }
}

async fn read_request(stream: &mut TcpStream) -> std::io::Result<Value> {
    let (mut read, mut chunk) = (Vec::new(), [0; 4_096]);
    loop {
        let length = stream.read(&mut chunk).await?;
        read.extend_from_slice(&chunk[..length]);
        let text = String::from_utf8_lossy(&read);
        if let Some((_, body)) = text.split_once("\r\n\r\n")
            && let Ok(request) = serde_json::from_str(body)
        {
            return Ok(request);
        }
        if length == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

async fn ask(hostile: Hostile, deadline: Duration) -> Result<Value, CallError> {
    let upstream = over_http(&hostile.serve().await, &json!({"session_init_timeout": 30}));
    call(&upstream, "status", &json!({}), Some(deadline)).await
}

async fn refused(hostile: Hostile) -> String {
    let error = ask(hostile, PATIENT).await.unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Protocol, "{error}");
    assert!(error.message.chars().count() < 600, "{error}");
    error.message
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const GOOD: &str = r#"{"jsonrpc":"2.0","id":$id,"result":{"content":[],"structuredContent":{"n":1}}}"#;

#[tokio::test]
async fn a_good_answer_from_this_server_is_read() {
    let answer = ask(Hostile::new(JSON, GOOD), PATIENT).await.unwrap();
    assert_eq!(answer["structuredContent"]["n"], 1);
}

#[tokio::test]
async fn a_gigabyte_is_refused_before_it_is_read_28() {
    let hostile = Hostile::new(JSON, "{").header("content-length: 1073741824").endless(" ", Duration::from_millis(50));
    assert!(refused(hostile).await.contains(&BODY_MAX_BYTES.to_string()));
}

#[tokio::test]
async fn an_endless_body_is_cut_at_the_cap_28() {
    let hostile = Hostile::new(JSON, "[").endless(vec![b' '; 1 << 16], Duration::ZERO);
    assert!(refused(hostile).await.contains(&BODY_MAX_BYTES.to_string()));
}

#[tokio::test]
async fn an_endless_stream_of_events_is_cut_at_the_cap_28() {
    let line = format!("data: {}\n", "x".repeat(1 << 16));
    assert!(
        refused(Hostile::new(EVENTS, "").endless(line, Duration::ZERO)).await.contains(&BODY_MAX_BYTES.to_string())
    );
    let events = "data: {\"id\":0,\"method\":\"ping\"}\n\n".repeat(1 << 11);
    assert!(
        refused(Hostile::new(EVENTS, "").endless(events, Duration::ZERO)).await.contains(&BODY_MAX_BYTES.to_string())
    );
}

#[tokio::test]
async fn a_trickle_ends_at_the_deadline_28() {
    for (media_type, piece) in [(JSON, " "), (EVENTS, ": still here\n\n")] {
        let hostile = Hostile::new(media_type, "").endless(piece, Duration::from_millis(20));
        let error = ask(hostile, Duration::from_millis(700)).await.unwrap_err();
        assert_eq!((error.kind, error.maybe_executed), (CallErrorKind::Timeout, true), "{error}");
    }
}

#[tokio::test]
async fn other_encodings_are_no_answer_146() {
    let utf16: Vec<u8> = GOOD.replace("$id", "1").encode_utf16().flat_map(u16::to_le_bytes).collect();
    refused(Hostile::new(JSON, utf16)).await;
    refused(Hostile::new(JSON, *b"{\"id\":1,\"result\":\"\xff\xfe\"}")).await;
    // Nothing is decompressed, so no bomb goes off.
    let bomb = [b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec(), vec![0; 1_000]].concat();
    refused(Hostile::new(JSON, bomb).header("content-encoding: gzip")).await;
}

#[tokio::test]
async fn nesting_beyond_any_bound_neither_kills_the_process_nor_ends_a_task_146() {
    let deep = format!(r#"{{"id":$id,"error":{}{}}}"#, "[".repeat(1 << 20), "]".repeat(1 << 20));
    let error = ask(Hostile::new(JSON, deep), PATIENT).await.unwrap_err();
    assert!(matches!(error.kind, CallErrorKind::Rpc | CallErrorKind::Protocol), "{error}");
    refused(Hostile::new(JSON, "[".repeat(4 << 20))).await;
}

#[tokio::test]
async fn a_member_named_twice_makes_no_answer_146() {
    refused(Hostile::new(JSON, r#"{"id":$id,"result":{"a":1},"result":{"a":2}}"#)).await;
    refused(Hostile::new(JSON, r#"{"id":7000,"id":$id,"result":{}}"#)).await;
}

#[tokio::test]
async fn of_two_answers_with_one_id_the_first_counts() {
    let two = r#"[{"id":$id,"result":{"n":1}},{"id":$id,"result":{"n":2}}]"#;
    assert_eq!(ask(Hostile::new(JSON, two), PATIENT).await.unwrap()["n"], 1);
    let events = "data: {\"id\":$id,\"result\":{\"n\":1}}\n\ndata: {\"id\":$id,\"result\":{\"n\":2}}\n\n";
    assert_eq!(ask(Hostile::new(EVENTS, events), PATIENT).await.unwrap()["n"], 1);
}

#[tokio::test]
async fn a_flood_of_headers_is_an_error_of_that_call_28() {
    let many = (0..5_000).fold(Hostile::new(JSON, GOOD), |hostile, n| hostile.header(&format!("x-{n}: {n}")));
    let error = ask(many, PATIENT).await.unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Transport, "{error}");
    let long = Hostile::new(JSON, GOOD).header(&format!("x-long: {}", "y".repeat(2 << 20)));
    let error = ask(long, PATIENT).await.unwrap_err();
    assert_eq!(error.kind, CallErrorKind::Transport, "{error}");
}
