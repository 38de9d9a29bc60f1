//! The command line (INTERFACE, Commands): data on standard output, diagnostics on standard error.

mod doctor;
mod document;
mod events;
mod keys;
mod local;
mod output;
mod reference;
mod remote;
mod run;
mod source;
mod table;
mod tasks;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub use run::run;

use crate::app::Role;
use crate::telemetry::LogFormat;
use crate::wiring::Origins;
use output::Format;

/// Keeps track of background tasks on MCP servers: submits, polls, cancels, remembers.
#[derive(Debug, Parser)]
#[command(name = "mcp-taskd", version, propagate_version = true)]
pub struct Cli {
    /// Where the configuration comes from, and how logs look.
    #[command(flatten)]
    pub global: Global,
    /// What to do; `serve` where nothing is said.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Flags of every command.
#[derive(Debug, Clone, Default, Args)]
pub struct Global {
    /// The configuration file [default: $MCP_TASKD_CONFIG, then ./config.yaml]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The file of MCP servers [default: $DEER_FLOW_EXTENSIONS_CONFIG_PATH, then ./extensions_config.json and others]
    #[arg(long, global = true, value_name = "FILE")]
    extensions_config: Option<PathBuf>,
    /// Sets a key of the configuration, such as mcp_tasks.lease_seconds=30; may be repeated
    #[arg(long = "set", global = true, value_name = "KEY=VALUE", value_parser = parse_override)]
    overrides: Vec<(String, String)>,
    /// How log lines look [default: pretty on a terminal, journald where systemd reads them, else json]
    #[arg(long, global = true, value_enum)]
    log_format: Option<LogFormat>,
}

impl Global {
    /// Where the configuration comes from.
    pub fn origins(&self) -> Origins {
        Origins {
            config: self.config.clone(),
            extensions_config: self.extensions_config.clone(),
            overrides: self.overrides.clone(),
        }
    }

    /// How log lines look.
    pub fn log_format(&self) -> Option<LogFormat> {
        self.log_format
    }
}

fn parse_override(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".into()),
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serves the API and the MCP gateway, and polls (the default)
    Serve {
        /// What this process of a fleet does
        #[arg(long, value_enum, default_value_t)]
        role: Role,
    },
    /// Shows everything at work, on a bundled MCP server
    Demo {
        /// Goes on serving afterwards
        #[arg(long)]
        keep: bool,
    },
    /// Serves the MCP gateway on standard input and output, for desktop agents
    Mcp {
        /// Whose tasks these are
        #[arg(long, env = "MCP_TASKD_USER", default_value = "default", value_parser = parse_id)]
        user: String,
    },
    /// Checks the configuration
    CheckConfig {
        /// Also reaches the store and lists every server's tools
        #[arg(long)]
        connect: bool,
    },
    /// Shows the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Sees to the database's schema
    #[command(subcommand)]
    Migrate(MigrateCommand),
    /// Looks for what may be wrong: configuration, store, clocks, servers
    Doctor(doctor::Doctor),
    /// Looks at the workers of the fleet
    #[command(subcommand)]
    Workers(WorkersCommand),
    /// Looks at tasks, submits, answers and cancels them
    #[command(subcommand)]
    Tasks(TasksCommand),
    /// Looks at what happened
    #[command(subcommand)]
    Events(EventsCommand),
    /// Makes, lists and takes back the keys of callers
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Writes a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Writes the manual page
    Man {
        /// Of this command, such as `tasks watch`
        #[arg(value_name = "COMMAND")]
        command: Vec<String>,
    },
}

/// `config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// The effective configuration, secrets masked
    Show,
    /// The JSON Schema of a configuration file
    Schema {
        /// Which file
        #[arg(value_enum, default_value_t)]
        file: ConfigFile,
    },
}

/// A configuration file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ConfigFile {
    /// config.yaml
    #[default]
    Config,
    /// extensions_config.json
    Extensions,
}

/// `migrate`.
#[derive(Debug, Subcommand)]
pub enum MigrateCommand {
    /// Brings the schema up to date
    Up,
    /// Shows the schema's version
    Status,
}

/// `workers`.
#[derive(Debug, Subcommand)]
pub enum WorkersCommand {
    /// Every worker that the store knows
    List {
        /// Where to ask
        #[command(flatten)]
        server: Server,
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        output: Format,
    },
}

/// `tasks`.
#[derive(Debug, Subcommand)]
pub enum TasksCommand {
    /// Tasks, newest first
    List(tasks::List),
    /// One task
    Get(tasks::Get),
    /// Follows a task until it ends: exits 0 completed, 2 failed, 3 cancelled
    Watch(tasks::Watch),
    /// Starts a task
    Submit(tasks::Submit),
    /// Requests the cancel of a task
    Cancel(tasks::Get),
    /// Answers a task that requires input
    Input(tasks::Input),
    /// Makes a task due at once
    PollNow(tasks::Get),
}

/// `events`.
#[derive(Debug, Subcommand)]
pub enum EventsCommand {
    /// Events, oldest first
    List(events::List),
    /// Sends events once more, one JSON object a line, to whoever lost its place; or to a webhook
    Replay(events::Replay),
}

/// Where to ask: a daemon, or the configured store.
#[derive(Debug, Clone, Default, Args)]
pub struct Server {
    /// A daemon's address, instead of the configured store; its key is taken from $MCP_TASKD_API_KEY
    #[arg(long, env = "MCP_TASKD_URL", value_name = "URL")]
    pub url: Option<String>,
}

/// Narrows what is seen; all users' tasks where nothing is given.
#[derive(Debug, Clone, Default, Args)]
pub struct Narrow {
    /// Only this user's
    #[arg(long, value_parser = parse_id)]
    pub user: Option<String>,
    /// Only in this thread
    #[arg(long, value_parser = parse_id)]
    pub thread: Option<String>,
}

fn parse_id(text: &str) -> Result<String, String> {
    if crate::auth::is_valid_id(text) {
        Ok(text.to_owned())
    } else {
        Err("must be 1 to 255 characters without control characters".into())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn nothing_means_serve_and_flags_may_stand_anywhere() {
        let cli = Cli::try_parse_from(["mcp-taskd"]).unwrap();
        assert!(cli.command.is_none());
        let cli = Cli::try_parse_from([
            "mcp-taskd",
            "serve",
            "--role",
            "gateway",
            "--config",
            "c.yaml",
            "--set",
            "server.listen=127.0.0.1:0",
        ])
        .unwrap();
        assert!(matches!(cli.command, Some(Command::Serve { role: Role::Gateway })));
        let origins = cli.global.origins();
        assert_eq!(origins.config.unwrap().to_str(), Some("c.yaml"));
        assert_eq!(origins.overrides, [("server.listen".to_owned(), "127.0.0.1:0".to_owned())]);
    }

    #[test]
    fn wrong_usage_is_64_and_help_is_0() {
        let code = |args: &[&str]| crate::usage_code(&Cli::try_parse_from(args).unwrap_err());
        for wrong in [
            &["mcp-taskd", "fly"][..],
            &["mcp-taskd", "--set", "x"],
            &["mcp-taskd", "tasks"],
            &["mcp-taskd", "tasks", "submit", "--server", "s"],
            &["mcp-taskd", "tasks", "get"],
            &["mcp-taskd", "tasks", "input", "mcp-task-1"],
            &["mcp-taskd", "serve", "--role", "king"],
            &["mcp-taskd", "tasks", "list", "--limit", "0"],
        ] {
            assert_eq!(code(wrong), 64, "{wrong:?}");
        }
        assert_eq!(code(&["mcp-taskd", "--help"]), 0);
        assert_eq!(code(&["mcp-taskd", "--version"]), 0);
        assert_eq!(code(&["mcp-taskd", "help", "tasks"]), 0);
    }
}
