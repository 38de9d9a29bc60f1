//! `tasks …`.

use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use mcp_taskd_core::store::TaskFilter;
use mcp_taskd_core::task::{Json, Status};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::output::{Format, Row, print, print_list, print_object};
use super::source::{NewTask, Source, Target, Use};
use super::table::Column;
use super::{Global, Narrow, Server, TasksCommand, parse_id};
use crate::auth::DEFAULT_ID;
use crate::exit::{Failure, Result};

/// How long one look at a watched task waits for a change.
const LOOK: Duration = Duration::from_secs(30);

const COLUMNS: [Column; 7] = [
    Column::whole("task_id", "TASK"),
    Column::cut("task_name", "NAME"),
    Column::whole("status", "STATUS"),
    Column::cut("user_id", "USER"),
    Column::cut("thread_id", "THREAD"),
    Column::whole("created_at", "CREATED"),
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
        arguments: read_arguments(&submit.arguments)?,
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

fn read_arguments(text: &str) -> Result<Row> {
    let text = match text.strip_prefix('@') {
        None => text.to_owned(),
        Some("-") => std::io::read_to_string(std::io::stdin()).map_err(anyhow::Error::from)?,
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("--arguments @{path} cannot be read: {error}")))?,
    };
    let json = Json::parse(&text).map_err(|error| Failure::usage(format!("--arguments: {error}")))?;
    if !json.as_str().starts_with('{') {
        return Err(Failure::usage("--arguments must be a JSON object"));
    }
    Ok(RawValue::from_string(json.as_str().to_owned()).map_err(anyhow::Error::from)?)
}

/// What a watcher tells of a task.
#[derive(Debug, Deserialize)]
struct Summary {
    task_id: String,
    task_name: String,
    status: Status,
    updated_at: String,
    error: Option<String>,
    tracking_degraded: bool,
    cancel_requested: bool,
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
        if let Some(error) = &self.error {
            line.push_str(": ");
            line.extend(error.chars().map(|c| if c.is_control() { ' ' } else { c }));
        }
        line
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

async fn watch(source: &Source, target: &Target, output: Format) -> Result<u8> {
    let live = output == Format::Table && console::Term::stdout().is_term() && console::Term::stderr().is_term();
    let spinner = live.then(|| {
        let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})").ok();
        let spinner = ProgressBar::new_spinner();
        if let Some(style) = style {
            spinner.set_style(style);
        }
        spinner.enable_steady_tick(Duration::from_millis(120));
        spinner
    });
    let mut wait = Duration::ZERO;
    let mut last = String::new();
    loop {
        let row = source.task(target, wait).await?;
        wait = LOOK;
        let summary = Summary::of(&row)?;
        let line = summary.line();
        if line != last {
            match (&spinner, output) {
                (Some(spinner), _) => spinner.set_message(line.clone()),
                (None, Format::Table) => print(&format!("{line}\n"))?,
                (None, Format::Json | Format::Jsonl) => print_object(&row, output)?,
            }
            last = line;
        }
        if let Some(code) = summary.code() {
            if let Some(spinner) = spinner {
                spinner.finish_and_clear();
                print(&format!("{last}\n"))?;
            }
            return Ok(code);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_an_object_given_or_in_a_file() {
        assert_eq!(read_arguments(r#"{ "n": 1.10 }"#).unwrap().get(), r#"{"n":1.10}"#);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), r#"{"a":[1]}"#).unwrap();
        assert_eq!(read_arguments(&format!("@{}", file.path().display())).unwrap().get(), r#"{"a":[1]}"#);
        for wrong in ["[]", "x", "@/there/is/none"] {
            assert_eq!(read_arguments(wrong).unwrap_err().exit, crate::exit::Exit::Usage, "{wrong}");
        }
    }

    #[test]
    fn a_watcher_ends_with_the_tasks_status() {
        let mut task = crate::view::tests::task("mcp-task-1");
        let policy = mcp_taskd_core::task::Policy::default();
        let mut code = |status| {
            task.tracked.status = status;
            Summary::of(&crate::view::raw(&crate::view::operator_detail(&task, &policy))).unwrap().code()
        };
        assert_eq!(code(Status::Completed), Some(0));
        assert_eq!(code(Status::Failed), Some(2));
        assert_eq!(code(Status::Cancelled), Some(3));
        assert_eq!(code(Status::InputRequired), None);
    }
}
