//! From a parsed command line to an exit code.

use super::output::{print, print_list};
use super::source::{Source, Use};
use super::table::Column;
use super::{
    Cli, Command, ConfigCommand, ConfigFile, Global, MigrateCommand, WorkersCommand, doctor, events, keys, reference,
    tasks,
};
use crate::app::{self, Role};
use crate::demo;
use crate::exit::{Failure, Result};

const WORKERS: [Column; 8] = [
    Column::whole("worker_id", "WORKER"),
    Column::cut("host", "HOST"),
    Column::extra("pid", "PID"),
    Column::extra("role", "ROLE"),
    Column::whole("live", "LIVE"),
    Column::whole("polls", "POLLS"),
    Column::whole("held", "HELD"),
    Column::extra("lease_expires_at", "LEASE EXPIRES"),
];

/// Runs a command; the number is the exit code.
pub async fn run(cli: Cli) -> Result<u8> {
    let global = cli.global;
    let origins = global.origins();
    match cli.command.unwrap_or(Command::Serve { role: Role::All }) {
        Command::Serve { role } => app::serve(&origins, role).await?,
        Command::Demo { keep } => demo::run(keep).await?,
        Command::Mcp { user } => app::mcp(&origins, user).await?,
        Command::CheckConfig { connect } => check_config(&global, connect).await?,
        Command::Config(ConfigCommand::Schema { file }) => {
            let schema = match file {
                ConfigFile::Config => crate::wiring::schema(),
                ConfigFile::Extensions => crate::wiring::extensions_schema(),
            };
            print(&format!("{schema:#}\n"))?;
        }
        Command::Config(ConfigCommand::Show) => {
            let shown = crate::wiring::show(&app::load(&origins)?);
            print(&format!("{shown:#}\n"))?;
        }
        Command::Migrate(MigrateCommand::Up) => {
            let applied = app::migrate(&origins).await?;
            let lines: String = applied.iter().flat_map(|&name| ["applied ", name, "\n"]).collect();
            print(if lines.is_empty() { "the schema is up to date\n" } else { &lines })?;
        }
        Command::Migrate(MigrateCommand::Status) => {
            let (known, applied) = app::schema_version(&origins).await?;
            let applied = applied.unwrap_or(0);
            print(&format!("applied {applied}\nknown {known}\n"))?;
            if applied < known {
                return Ok(1);
            }
        }
        Command::Workers(WorkersCommand::List { server, output }) => {
            let source = Source::open(&global, &server, Use::Read).await?;
            let rows = source.workers().await;
            rows.iter().for_each(|rows| source.note_none(rows, output));
            source.close().await?;
            print_list(&rows?, output, &WORKERS)?;
        }
        Command::Tasks(command) => return tasks::run(&global, command).await,
        Command::Events(command) => events::run(&global, command).await?,
        Command::Keys(command) => keys::run(&global, command).await?,
        Command::Doctor(doctor) => return doctor::run(&global, doctor).await,
        Command::Completions { shell } => print(&reference::completions(shell))?,
        Command::Man { command } => print(&reference::manual(&command)?)?,
    }
    Ok(0)
}

async fn check_config(global: &Global, connect: bool) -> Result<()> {
    let configuration = app::load(&global.origins())?;
    if connect {
        let problems = app::check_connections(&configuration).await?;
        if !problems.is_empty() {
            return Err(Failure::failed(problems.join("\n")));
        }
    }
    let servers = configuration.extensions.servers.values().filter(|server| server.enabled).count();
    let servers = if servers == 1 { "1 MCP server is".to_owned() } else { format!("{servers} MCP servers are") };
    print(&format!("the configuration can be used; {servers} enabled\n"))
}
