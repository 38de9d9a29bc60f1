//! `tasks …`.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use mcp_taskd_core::store::TaskFilter;
use mcp_taskd_core::task::Status;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::output::{Format, print, print_list, print_object};
use super::source::{NewTask, Source, Target, Use};
use super::table::Column;
use super::{Global, Narrow, Server, TasksCommand, document, parse_id};
use crate::auth::DEFAULT_ID;
use crate::exit::{Failure, Result};

/// How long one look at a watched task waits for a change.
const LOOK: Duration = Duration::from_secs(30);
/// The same where a terminal shows how the task stands.
const LIVE_LOOK: Duration = Duration::from_secs(2);

const COLUMNS: [Column; 7] = [
    Column::whole("task_id", "TASK"),
    Column::cut("task_name", "NAME"),
    Column::whole("status", "STATUS"),
    Column::extra("user_id", "USER"),
    Column::extra("thread_id", "THREAD"),
    Column::extra("created_at", "CREATED"),
    Column::cut("error", "ERROR"),
];

/// `tasks list`.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    narrow: Narrow,
    /// Only in this status
    #[arg(long, value_parser = parse_status)]
    status: Option<Status>,
    /// Only tasks that have not ended
    #[arg(long)]
    active: bool,
    /// How many at most
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

/// `tasks get`, `cancel`, `poll-now`.
#[derive(Debug, Args)]
pub struct Get {
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    narrow: Narrow,
    /// The task
    #[arg(value_name = "TASK_ID", value_parser = parse_id)]
    id: String,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

/// `tasks input`.
#[derive(Debug, Args)]
pub struct Input {
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    narrow: Narrow,
    /// The task
    #[arg(value_name = "TASK_ID", value_parser = parse_id)]
    id: String,
    /// The answer: any JSON, such as '"EUR"' or '{"currency": "EUR"}', or @FILE with it, or @- for standard input
    #[arg(value_name = "JSON|@FILE")]
    input: String,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

/// `tasks watch`.
#[derive(Debug, Args)]
pub struct Watch {
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    narrow: Narrow,
    /// The task
    #[arg(value_name = "TASK_ID", value_parser = parse_id)]
    id: String,
    /// How to print: a line a change, or the task as JSON at each change
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

/// `tasks submit`.
#[derive(Debug, Args)]
pub struct Submit {
    #[command(flatten)]
    server_url: Server,
    /// The MCP server
    #[arg(long)]
    server: String,
    /// The task, as the server's toolset calls it
    #[arg(long)]
    task: String,
    /// The arguments: a JSON object, or @FILE with one, or @- for standard input
    #[arg(long, default_value = "{}", value_name = "JSON|@FILE")]
    arguments: String,
    /// Whose task it is
    #[arg(long, value_parser = parse_id)]
    user: Option<String>,
    /// In which thread
    #[arg(long, default_value = DEFAULT_ID, value_parser = parse_id)]
    thread: String,
    /// Makes the submit repeatable: the same key gives the same task
    #[arg(long, value_name = "KEY", value_parser = parse_id)]
    idempotency_key: Option<String>,
    /// Follows the task until it ends
    #[arg(long)]
    watch: bool,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

fn parse_status(text: &str) -> std::result::Result<Status, String> {
    text.parse().map_err(|_| format!("one of {}", Status::ALL.map(Status::as_str).join(", ")))
}

fn target(narrow: &Narrow, id: &str) -> Target {
    Target { user_id: narrow.user.clone(), thread_id: narrow.thread.clone(), id: id.to_owned() }
}

/// Runs a command; the number is the exit code.
pub async fn run(global: &Global, command: TasksCommand) -> Result<u8> {
    match command {
        TasksCommand::List(list) => {
            let source = Source::open(global, &list.server, Use::Read).await?;
            let filter = TaskFilter {
                user_id: list.narrow.user,
                thread_id: list.narrow.thread,
                status: list.status,
                active_only: list.active,
                named: None,
            };
            let rows = source.tasks(&filter, list.limit).await;
            rows.iter().for_each(|rows| source.note_none(rows, list.output));
            source.close().await?;
            print_list(&rows?, list.output, &COLUMNS)?;
        }
        TasksCommand::Get(get) => {
            let source = Source::open(global, &get.server, Use::Read).await?;
            let row = source.task(&target(&get.narrow, &get.id), Duration::ZERO).await;
            source.close().await?;
            print_object(&row?, get.output)?;
        }
        TasksCommand::Cancel(get) => {
            let source = Source::open(global, &get.server, Use::Write).await?;
            let row = source.cancel(&target(&get.narrow, &get.id)).await;
            source.close().await?;
            print_object(&row?, get.output)?;
        }
        TasksCommand::Input(answer) => {
            let input = document::read("JSON", &answer.input)?;
            let source = Source::open(global, &answer.server, Use::Write).await?;
            let row = source.input(&target(&answer.narrow, &answer.id), &input).await;
            source.close().await?;
            print_object(&row?, answer.output)?;
        }
        TasksCommand::PollNow(get) => {
            let source = Source::open(global, &get.server, Use::Write).await?;
            let row = source.poll_now(&target(&get.narrow, &get.id)).await;
            source.close().await?;
            print_object(&row?, get.output)?;
        }
        TasksCommand::Watch(watched) => {
            let source = Source::open(global, &watched.server, Use::Read).await?;
            if source.nobody_polls().await {
                eprintln!("mcp-taskd: no live worker polls on this store; start one with `mcp-taskd serve`");
            }
            let code = watch(&source, &target(&watched.narrow, &watched.id), watched.output).await;
            source.close().await?;
            return code;
        }
        TasksCommand::Submit(submit) => return run_submit(global, submit).await,
    }
    Ok(0)
}

async fn run_submit(global: &Global, submit: Submit) -> Result<u8> {
    let task = NewTask {
        user_id: submit.user,
        thread_id: submit.thread,
        server: submit.server,
        task: submit.task,
        arguments: document::read_object("--arguments", &submit.arguments)?,
        idempotency_key: submit.idempotency_key,
    };
    // Without a daemon the process that watches also polls.
    let purpose = if submit.watch { Use::Poll } else { Use::Write };
    let source = Source::open(global, &submit.server_url, purpose).await?;
    let code = submit_and_watch(&source, &task, submit.watch, submit.output).await;
    source.close().await?;
    code
}

async fn submit_and_watch(source: &Source, task: &NewTask, follow: bool, output: Format) -> Result<u8> {
    // A submit runs to its end even if a signal comes meanwhile: its outcome would be unknown otherwise.
    let row = source.submit(task).await?;
    if !follow {
        print_object(&row, output)?;
        return Ok(0);
    }
    let id = Summary::of(&row)?.task_id;
    let target = Target { user_id: None, thread_id: None, id };
    tokio::select! {
        code = watch(source, &target, output) => code,
        () = source.interrupted() => Err(Failure::failed(format!("stopped watching; {} goes on", target.id))),
    }
}

/// What a watcher tells of a task.
#[derive(Debug, Deserialize)]
struct Summary {
    task_id: String,
    task_name: String,
    status: Status,
    updated_at: String,
    error: Option<String>,
    input_required: Option<Box<RawValue>>,
    tracking_degraded: bool,
    cancel_requested: bool,
    poll_attempt_count: i64,
    last_poll_error: Option<String>,
}

impl Summary {
    fn of(row: &RawValue) -> Result<Self> {
        Ok(serde_json::from_str(row.get()).map_err(anyhow::Error::from)?)
    }

    fn line(&self) -> String {
        let mut line = format!("{} {} {} {}", self.updated_at, self.task_id, self.task_name, self.status);
        if self.cancel_requested && !self.status.is_terminal() {
            line.push_str(", cancel requested");
        }
        if self.tracking_degraded {
            line.push_str(", tracking degraded");
        }
        let asks = self.input_required.as_ref().filter(|_| self.status == Status::InputRequired).map(|asks| asks.get());
        for text in asks.into_iter().chain(self.error.as_deref()) {
            line.push_str(": ");
            line.push_str(&printable(text));
        }
        line
    }

    /// How the task stands, for a line that is written over.
    fn standing(&self) -> String {
        let mut standing = format!("{} {}, {} polls", self.task_name, self.status, self.poll_attempt_count);
        if let Some(error) = &self.last_poll_error {
            let _ = write!(standing, ", the last one failed: {}", printable(error));
        }
        standing
    }

    /// The exit code once the task has ended.
    fn code(&self) -> Option<u8> {
        match self.status {
            Status::Completed => Some(0),
            Status::Failed => Some(2),
            Status::Cancelled => Some(3),
            _ => None,
        }
    }
}

/// Control characters would play with the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

async fn watch(source: &Source, target: &Target, output: Format) -> Result<u8> {
    let live = output == Format::Table && console::Term::stdout().is_term() && console::Term::stderr().is_term();
    let view = live.then(View::new);
    let mut wait = Duration::ZERO;
    let mut last = String::new();
    loop {
        let row = source.task(target, wait).await?;
        // What a live view shows beside the status changes without a change of the task.
        wait = if live { LIVE_LOOK } else { LOOK };
        let summary = Summary::of(&row)?;
        let line = summary.line();
        if let Some(view) = &view {
            view.show(&summary);
        }
        if line != last {
            match (&view, output) {
                (Some(view), _) if summary.code().is_none() => view.log(&line),
                // The last line is data.
                (Some(_), _) => {}
                (None, Format::Table) => print(&format!("{line}\n"))?,
                (None, Format::Json | Format::Jsonl) => print_object(&row, output)?,
            }
            if summary.status == Status::InputRequired && output == Format::Table {
                let hint = format!("mcp-taskd: answer it with `mcp-taskd tasks input {} JSON`", summary.task_id);
                view.as_ref().map_or_else(|| eprintln!("{hint}"), |view| view.log(&hint));
            }
            last = line;
        }
        if let Some(code) = summary.code() {
            if let Some(view) = view {
                view.0.finish_and_clear();
                print(&format!("{last}\n"))?;
            }
            return Ok(code);
        }
    }
}

/// What a terminal shows of a watched task: a line a change, and below them how it stands now.
struct View(ProgressBar);

impl View {
    fn new() -> Self {
        let spinner = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
            spinner.set_style(style);
        }
        spinner.enable_steady_tick(Duration::from_millis(120));
        Self(spinner)
    }

    fn show(&self, summary: &Summary) {
        self.0.set_message(summary.standing());
    }

    fn log(&self, line: &str) {
        self.0.println(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_ends_with_the_tasks_status() {
        let mut task = crate::view::tests::task("mcp-task-1");
        let policy = mcp_taskd_core::task::Policy::default();
        let mut code = |status| {
            task.tracked.status = status;
            Summary::of(&crate::view::raw(&crate::view::operator_detail(
                &task,
                &policy,
                &crate::view::Notification::default(),
            )))
            .unwrap()
            .code()
        };
        assert_eq!(code(Status::Completed), Some(0));
        assert_eq!(code(Status::Failed), Some(2));
        assert_eq!(code(Status::Cancelled), Some(3));
        assert_eq!(code(Status::InputRequired), None);
    }

    #[test]
    fn a_live_view_tells_of_polls_and_their_errors_without_playing_with_the_terminal() {
        let mut task = crate::view::tests::task("mcp-task-1");
        (task.tracked.status, task.tracked.poll_attempt_count) = (Status::Working, 3);
        task.last_poll_error = Some("no \u{1b}[31manswer".into());
        let detail = crate::view::raw(&crate::view::operator_detail(
            &task,
            &mcp_taskd_core::task::Policy::default(),
            &crate::view::Notification::default(),
        ));
        let standing = Summary::of(&detail).unwrap().standing();
        assert_eq!(standing, "report working, 3 polls, the last one failed: no  [31manswer");
    }
}
