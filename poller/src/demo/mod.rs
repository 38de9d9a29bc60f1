//! `mcp-taskd demo`: a report server, the daemon, an agent, and a kill in between, on this machine and in a minute.

mod agent;
mod daemon;
mod server;
mod show;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tokio::time::Instant;

use agent::Agent;
use daemon::Daemon;
use server::Reports;
use show::Show;

/// How long the reports may take, all in all.
const ALL_WITHIN: Duration = Duration::from_secs(60);

/// Runs the demo; with `keep` the daemon goes on serving until it is interrupted.
pub async fn run(keep: bool) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new().prefix("mcp-taskd-demo-").tempdir()?;
    let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20)).build()?;
    let mut show = Show::new();

    let reports = Arc::new(Reports::default());
    let report_server = server::start(Arc::clone(&reports)).await?;
    show.say(&format!("report server (MCP)        {report_server}"));
    let mut daemon = Daemon::configure(folder.path(), &report_server)?;
    daemon.start(&http).await?;
    show.say(&format!("daemon, embedded SQLite    {}   pid {}", daemon.url, daemon.pid().unwrap_or_default()));

    let agent = Agent::connect(&daemon.url, &http).await?;
    show.say(&format!("the agent sees             {}", agent.tools().await?.join(", ")));
    show.say("                           (no status tool, no cancel tool: those are the daemon's)");
    let names = submit(&agent, &mut show).await?;
    let mut told = Told::default();
    let kill_at = Instant::now() + Duration::from_secs(3);
    while Instant::now() < kill_at {
        told.look(&agent, &names, &mut show).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    agent.close().await;
    let polls = reports.calls("get_report_status");
    show.say(&format!("kill -9 {}: the reports run on, and nobody asks for them", daemon.pid().unwrap_or_default()));
    daemon.kill().await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let took = daemon.start(&http).await?;
    let restarted = Instant::now();
    while reports.calls("get_report_status") == polls {
        if restarted.elapsed() > Duration::from_secs(20) {
            bail!("no report was polled after the restart; the daemon's log is {}", daemon.log().display());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    show.say(&format!(
        "restarted in {} ms; the first report was polled again {} ms later",
        took.as_millis(),
        restarted.elapsed().as_millis(),
    ));

    let agent = Agent::connect(&daemon.url, &http).await?;
    follow(&agent, &names, &mut told, &mut show).await?;
    show.settle();
    summary(&agent, &names, &reports, &show).await?;
    agent.close().await;

    if keep {
        show.plain(&format!("The daemon goes on at {0}. What to try next:\n{1}", daemon.url, hints(&daemon.url)));
        show.plain(&format!("Its configuration and log are in {}.", folder.path().display()));
        show.plain("Serving until interrupted (ctrl-c).");
        tokio::select! {
            ended = daemon.wait() => ended?,
            interrupted = tokio::signal::ctrl_c() => interrupted?,
        }
        daemon.stop().await?;
    } else {
        let took = daemon.stop().await?;
        show.say(&format!("SIGTERM: drained and gone in {} ms", took.as_millis()));
        show.plain(&format!(
            "\nThe daemon was at {0} and has stopped; `{1} demo --keep` leaves it serving. What to try then:\n{2}",
            daemon.url,
            program(),
            hints(&daemon.url),
        ));
    }
    Ok(())
}

/// Submits the reports as an agent does; their names by id.
async fn submit(agent: &Agent, show: &mut Show) -> anyhow::Result<HashMap<String, String>> {
    let reports = [
        ("sales", json!({"title": "sales", "seconds": 7})),
        ("budget", json!({"title": "budget", "seconds": 5, "kind": "asks"})),
        ("archive", json!({"title": "archive", "seconds": 3_600})),
        ("audit", json!({"title": "audit", "seconds": 8, "kind": "fails"})),
        ("stock", json!({"title": "stock", "seconds": 1})),
    ];
    let mut names = HashMap::new();
    for (name, arguments) in reports {
        let answer = agent.call("reports_submit_report", arguments).await?;
        let id = answer["task_id"].as_str().context("a submit answers a task_id")?.to_owned();
        show.task(&id, name, "submitted", &id);
        names.insert(id, name.to_owned());
    }
    Ok(names)
}

/// Follows the reports to their end, as the program around an agent does: answers what is asked, cancels one.
async fn follow(
    agent: &Agent,
    names: &HashMap<String, String>,
    told: &mut Told,
    show: &mut Show,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + ALL_WITHIN;
    let archive = names.iter().find(|(_, name)| *name == "archive").map(|(id, _)| id.clone());
    let mut to_cancel = archive;
    let mut to_answer = true;
    while Instant::now() < deadline {
        let tasks = told.look(agent, names, show).await?;
        if tasks.iter().all(ended) {
            return Ok(());
        }
        if let Some(id) = to_cancel.take() {
            show.say("the agent cancels archive, and forgets about it");
            agent.call("cancel_background_task", json!({"task_id": id})).await?;
        }
        let asking = tasks.iter().find(|task| task["status"] == "input_required");
        if let (Some(task), true) = (asking, to_answer) {
            let id = task["task_id"].as_str().unwrap_or_default();
            let detail = agent.task(id).await?;
            show.say(&format!("budget asks {}; the answer is EUR", detail["input_required"]));
            agent.answer(id, json!({"currency": "EUR"})).await?;
            to_answer = false;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("the reports have not ended within {ALL_WITHIN:?}")
}

/// What has been shown of each task.
#[derive(Default)]
struct Told(HashMap<String, String>);

impl Told {
    async fn look(
        &mut self,
        agent: &Agent,
        names: &HashMap<String, String>,
        show: &mut Show,
    ) -> anyhow::Result<Vec<Value>> {
        let tasks = agent.tasks().await?;
        for task in tasks.iter().rev() {
            let text = |key: &str| task[key].as_str().unwrap_or_default().to_owned();
            let (id, status) = (text("task_id"), text("status"));
            let Some(name) = names.get(&id) else { continue };
            let before = self.0.insert(id.clone(), status.clone());
            if before.is_some_and(|before| before == status) || status == "submitted" {
                continue;
            }
            show.task(&id, name, &status, &text("error"));
        }
        Ok(tasks)
    }
}

fn ended(task: &Value) -> bool {
    task["status"].as_str().is_some_and(|status| matches!(status, "completed" | "failed" | "cancelled"))
}

async fn summary(agent: &Agent, names: &HashMap<String, String>, reports: &Reports, show: &Show) -> anyhow::Result<()> {
    show.plain("");
    let mut rows: Vec<_> = names.iter().collect();
    rows.sort_by_key(|(_, name)| name.as_str());
    for (id, name) in rows {
        let task = agent.task(id).await?;
        let outcome = ["result", "error"].into_iter().map(|key| &task[key]).find(|value| !value.is_null());
        let outcome = outcome.map(ToString::to_string).unwrap_or_default();
        show.plain(&format!("  {name:<8} {:<10} {outcome}", task["status"].as_str().unwrap_or_default()));
    }
    let unchanged = agent.metric("mcp_taskd_polls_total", "outcome=\"unchanged\"").await?;
    let written = agent.metric("mcp_taskd_rows_written_total", "statement=\"poll\"").await?;
    show.plain(&format!(
        "\n  The server answered {} status calls. Since the restart {unchanged} found nothing new and wrote nothing;\n  \
         {written} rows were written for what had changed.\n",
        reports.calls("get_report_status"),
    ));
    Ok(())
}

fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "mcp-taskd".to_owned())
}

fn hints(url: &str) -> String {
    let program = program();
    format!(
        "\x20 curl -s {url}/api/threads/default/mcp-tasks      the tasks of a thread\n\
         \x20 curl -s {url}/metrics | grep mcp_taskd_polls     what polling costs\n\
         \x20 {program} tasks list --url {url}\n\
         \x20 an MCP client (Claude, LangChain, …) at {url}/mcp",
    )
}
