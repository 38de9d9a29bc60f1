//! `doctor`: everything that may be wrong, looked at once, from outside the running daemon.

mod bundle;
mod servers;
mod store;
mod webhooks;

use clap::Args;
use serde::Serialize;

use super::Global;
use super::output::{Format, print, print_list};
use super::table::Column;
use crate::exit::{Exit, Result};
use crate::view;
use crate::wiring::{self, Configuration};

const COLUMNS: [Column; 3] =
    [Column::whole("check", "CHECK"), Column::whole("status", "STATUS"), Column::cut("detail", "DETAIL")];

/// `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Writes everything that helps others to help, as one JSON document without secrets
    #[arg(long, conflicts_with = "output")]
    bundle: bool,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

/// How something was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    /// Worth knowing.
    Warning,
    /// The daemon cannot work like this.
    Failed,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    #[serde(rename = "check")]
    name: String,
    status: Status,
    detail: String,
    /// What a failure of it ends the command with.
    #[serde(skip)]
    exit: Exit,
}

impl Check {
    fn new(name: impl Into<String>, status: Status, detail: impl Into<String>) -> Self {
        Self { name: name.into(), status, detail: detail.into(), exit: Exit::Failed }
    }

    fn ok(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(name, Status::Ok, detail)
    }

    fn warning(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(name, Status::Warning, detail)
    }

    fn failed(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(name, Status::Failed, detail)
    }

    fn exits(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }
}

/// What was found.
#[derive(Debug, Default)]
struct Findings {
    checks: Vec<Check>,
    /// What the store said, for the bundle.
    store: store::Said,
}

/// Looks at everything; the number is the exit code: that of the first failure, 0 where there is none.
pub async fn run(global: &Global, doctor: Doctor) -> Result<u8> {
    let mut findings = Findings::default();
    let loaded = wiring::load(&global.origins());
    match &loaded {
        Err(error) => {
            findings.checks.push(Check::failed("configuration", error.summary()).exits(Exit::Config));
            if !doctor.bundle {
                // The lines of the files, which a table has no room for.
                eprintln!("mcp-taskd: {error}");
            }
        }
        Ok(configuration) => {
            findings.checks.push(configured(configuration));
            let (store, servers) = tokio::join!(store::look(&configuration.settings), servers::look(configuration));
            findings.checks.extend(store.checks);
            findings.store = store.said;
            findings.checks.extend(servers);
            findings.checks.extend(store.webhooks);
        }
    }
    if doctor.bundle {
        print(&format!("{:#}\n", bundle::write(loaded.as_ref().ok(), &findings)))?;
    } else {
        let rows: Vec<_> = findings.checks.iter().map(view::raw).collect();
        print_list(&rows, doctor.output, &COLUMNS)?;
    }
    Ok(code(&findings.checks))
}

fn code(checks: &[Check]) -> u8 {
    checks.iter().find(|check| check.status == Status::Failed).map_or(0, |check| check.exit as u8)
}

fn configured(configuration: &Configuration) -> Check {
    let warnings: Vec<_> = configuration.warnings.iter().chain(&configuration.extensions.warnings).cloned().collect();
    if warnings.is_empty() {
        let from = configuration.extensions.path.as_ref().map(|path| format!("; servers from {}", path.display()));
        Check::ok(
            "configuration",
            format!("can be used{}", from.unwrap_or_else(|| "; there is no file of servers".into())),
        )
    } else {
        Check::warning("configuration", warnings.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_gives_the_exit_code_and_a_warning_none() {
        let warning = Check::warning("configuration", "odd");
        assert_eq!(code(std::slice::from_ref(&warning)), 0);
        let checks = [warning, Check::failed("store", "away").exits(Exit::Unavailable), Check::failed("server s", "x")];
        assert_eq!(code(&checks), 69);
        assert_eq!(code(&checks[2..]), 1);
    }
}
