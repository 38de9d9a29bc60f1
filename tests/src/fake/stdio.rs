//! The fake server over stdio, one JSON-RPC message a line, with tools that misbehave as processes do.

use std::process::Stdio;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::tools::{Call, Core, Incoming, Refusal, message};
use super::{Era, FakeOptions};

/// Serves standard input until it ends.
///
/// Beside the usual tools there are `crash` (the process ends in mid-call, with last words), `hang` (no answer),
/// `grandchild` (starts a process that outlives this one unless its group is ended), `complain` (a flood on standard error
/// before the answer), `babble` (what is no protocol on standard output), `change` (a notice that the tools changed), and `end`
/// (the subscription to such notices ends, by an answer or, with `abrupt`, by a notification). In the modern era nobody is told
/// who has not asked.
pub async fn serve_stdio(options: FakeOptions) {
    let core = Core { script: options.script.clone(), tools: options.tools.clone(), ..Core::default() };
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut output = tokio::io::stdout();
    let mut subscription: Option<String> = None;
    eprintln!("fake-mcp: serving on stdio");
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(incoming) = serde_json::from_str::<Incoming<'_>>(&line) else { continue };
        core.counters.requests.fetch_add(1, Ordering::Relaxed);
        let (Some(id), Some(method)) = (incoming.id, incoming.method.as_deref()) else { continue };
        let id = id.get();
        let answer = match (method, options.era) {
            ("server/discover", Era::Silent) => continue,
            ("server/discover", Era::Legacy | Era::Stateless) => {
                message(id, Err(Refusal(-32_601, "Method not found".to_owned())))
            }
            ("initialize", Era::Modern) => message(id, Err(Refusal(-32_601, "Method not found".to_owned()))),
            ("subscriptions/listen", Era::Modern) => {
                subscription = Some(id.to_owned());
                notice("subscriptions/acknowledged", Some(id))
            }
            ("tools/call", _) => match misbehave(&incoming) {
                Some(Misbehaviour::Crash) => {
                    eprintln!("fake-mcp: the disk is full, {}", std::env::var("FAKE_MARKER").unwrap_or_default());
                    std::process::exit(17)
                }
                Some(Misbehaviour::Complain) => {
                    (0..20_000).for_each(|line| eprintln!("fake-mcp: complaint {line} {}", "x".repeat(100)));
                    message(id, core.dispatch("ping", None))
                }
                Some(Misbehaviour::Babble) => {
                    let mut garbage = b"starting\n\xff\xfe\n{\"jsonrpc\": \n[1,2\n{}\nnull\n\n".to_vec();
                    garbage.resize(1 << 20, b'x');
                    garbage.push(b'\n');
                    if output.write_all(&garbage).await.is_err() {
                        break;
                    }
                    message(id, core.dispatch("ping", None))
                }
                Some(Misbehaviour::Change) => {
                    let answer = message(id, core.dispatch("ping", None));
                    match (&subscription, options.era) {
                        (None, Era::Modern) => answer,
                        (asked, _) => format!("{}\n{answer}", notice("tools/list_changed", asked.as_deref())),
                    }
                }
                Some(Misbehaviour::End { abrupt }) => {
                    let asked = subscription.take().unwrap_or_default();
                    let end = if abrupt {
                        json!({"method": "notifications/cancelled", "params": {"requestId": number(&asked)}})
                            .to_string()
                    } else {
                        message(&asked, Ok("{}".to_owned()))
                    };
                    format!("{end}\n{}", message(id, core.dispatch("ping", None)))
                }
                Some(Misbehaviour::Hang) => continue,
                Some(Misbehaviour::Grandchild) => message(id, Ok(grandchild())),
                None => message(id, core.dispatch(method, incoming.params)),
            },
            _ => message(id, core.dispatch(method, incoming.params)),
        };
        if output.write_all(format!("{answer}\n").as_bytes()).await.is_err() || output.flush().await.is_err() {
            break;
        }
    }
}

enum Misbehaviour {
    Crash,
    Hang,
    Grandchild,
    Complain,
    Babble,
    Change,
    End { abrupt: bool },
}

fn misbehave(incoming: &Incoming<'_>) -> Option<Misbehaviour> {
    let call: Call<'_> = serde_json::from_str(incoming.params?.get()).ok()?;
    match call.name.as_ref() {
        "crash" => Some(Misbehaviour::Crash),
        "hang" => Some(Misbehaviour::Hang),
        "grandchild" => Some(Misbehaviour::Grandchild),
        "complain" => Some(Misbehaviour::Complain),
        "babble" => Some(Misbehaviour::Babble),
        "change" => Some(Misbehaviour::Change),
        "end" => Some(Misbehaviour::End { abrupt: incoming.params?.get().contains("abrupt") }),
        _ => None,
    }
}

/// A notification, of a subscription where there is one.
fn notice(what: &str, subscription: Option<&str>) -> String {
    let meta =
        subscription.map_or_else(|| json!({}), |id| json!({"io.modelcontextprotocol/subscriptionId": number(id)}));
    json!({"jsonrpc": "2.0", "method": format!("notifications/{what}"), "params": {"_meta": meta}}).to_string()
}

fn number(id: &str) -> Value {
    serde_json::from_str(id).unwrap_or_default()
}

/// Starts a long sleep that holds none of this process's pipes, and tells its process id.
fn grandchild() -> String {
    let child = std::process::Command::new("sleep")
        .arg("600")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let pid = child.map(|child| child.id()).unwrap_or_default();
    json!({"content": [], "structuredContent": {"pid": pid}}).to_string()
}
