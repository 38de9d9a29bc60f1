//! `events …`.

use std::time::Duration;

use clap::Args;
use mcp_taskd_core::store::TaskFilter;
use serde::Deserialize;

use super::output::{Format, Row, print, print_list};
use super::source::{Source, Use};
use super::table::Column;
use super::{EventsCommand, Global, Narrow, Server};
use crate::delivery::Order;
use crate::exit::Result;

const COLUMNS: [Column; 5] = [
    Column::whole("sequence", "SEQUENCE"),
    Column::whole("task_id", "TASK"),
    Column::whole("kind", "KIND"),
    Column::extra("status", "STATUS"),
    Column::extra("created_at", "CREATED"),
];

/// Events that a replay asks for at a time.
const PAGE: u32 = 100;
/// How often a replay that follows asks for more.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// `events list`.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    narrow: Narrow,
    /// Only events after this sequence
    #[arg(long, value_name = "SEQUENCE", default_value_t = 0)]
    after: i64,
    /// How many at most
    #[arg(long, default_value_t = 1_000)]
    limit: u32,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

/// `events replay`.
#[derive(Debug, Args)]
pub struct Replay {
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    narrow: Narrow,
    /// From this sequence on
    #[arg(long, value_name = "SEQUENCE", default_value_t = 0)]
    from: i64,
    /// Up to this sequence, instead of to the newest
    #[arg(long, value_name = "SEQUENCE", conflicts_with = "follow")]
    to: Option<i64>,
    /// Goes on with new events as they happen
    #[arg(long)]
    follow: bool,
    /// Has them delivered to this webhook once more instead: one message a task, about its newest event
    #[arg(long, value_name = "WEBHOOK", conflicts_with = "follow")]
    sink: Option<String>,
    /// Only this task's
    #[arg(long, value_name = "ID")]
    task: Option<String>,
}

/// Runs a command.
pub async fn run(global: &Global, command: EventsCommand) -> Result<()> {
    match command {
        EventsCommand::List(list) => {
            let source = Source::open(global, &list.server, Use::Read).await?;
            let rows = source.events(list.after, &filter(list.narrow), list.limit).await;
            rows.iter().for_each(|rows| source.note_none(rows, list.output));
            source.close().await?;
            print_list(&rows?, list.output, &COLUMNS)
        }
        EventsCommand::Replay(replay) => {
            let source = Source::open(global, &replay.server, Use::Read).await?;
            let replayed = match &replay.sink {
                Some(sink) => deliver(&source, sink, &replay).await,
                None => send(&source, replay).await,
            };
            source.close().await?;
            replayed
        }
    }
}

fn filter(narrow: Narrow) -> TaskFilter {
    TaskFilter { user_id: narrow.user, thread_id: narrow.thread, ..TaskFilter::default() }
}

#[derive(Deserialize)]
struct Place<'a> {
    sequence: i64,
    task_id: std::borrow::Cow<'a, str>,
}

impl Place<'_> {
    fn is_asked_for(&self, to: Option<i64>, of_task: Option<&str>) -> bool {
        to.is_none_or(|to| self.sequence <= to) && of_task.is_none_or(|task| task == self.task_id)
    }
}

fn place(row: &Row) -> Result<Place<'_>> {
    Ok(serde_json::from_str(row.get()).map_err(anyhow::Error::from)?)
}

/// Has events delivered to a webhook once more, and says how many messages that makes.
async fn deliver(source: &Source, sink: &str, replay: &Replay) -> Result<()> {
    let mut order = Order {
        sink: sink.to_owned(),
        from: replay.from,
        to: replay.to,
        task_id: replay.task.clone(),
        user_id: replay.narrow.user.clone(),
        thread_id: replay.narrow.thread.clone(),
    };
    let mut deliveries = 0;
    loop {
        let replayed = source.replay(&order).await?;
        deliveries += replayed.deliveries;
        match replayed.next {
            Some(next) => order.from = next,
            None => break,
        }
    }
    print(&format!("{}\n", serde_json::json!({ "deliveries": deliveries })))
}

async fn send(source: &Source, replay: Replay) -> Result<()> {
    let filter = filter(replay.narrow);
    let of_task = replay.task.as_deref();
    let mut after = replay.from.saturating_sub(1);
    loop {
        let mut rows = source.events(after, &filter, PAGE).await?;
        let read = rows.len() as u32;
        if let Some(last) = rows.last() {
            after = place(last)?.sequence;
        }
        rows.retain(|row| place(row).is_ok_and(|place| place.is_asked_for(replay.to, of_task)));
        print_list(&rows, Format::Jsonl, &[])?;
        match (read < PAGE, replay.follow) {
            (_, false) if replay.to.is_some_and(|to| after >= to) => return Ok(()),
            (false, _) => {}
            (true, false) => return Ok(()),
            (true, true) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}
