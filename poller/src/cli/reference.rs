//! The command line about itself: completions, manual pages.

use clap::CommandFactory as _;

use super::Cli;
use crate::exit::{Failure, Result};

const NAME: &str = "mcp-taskd";

/// A shell's completion script.
pub fn completions(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The manual page of a command, of the program where `path` is empty.
pub fn manual(path: &[String]) -> Result<String> {
    let mut command = Cli::command();
    command.build();
    let mut name = NAME.to_owned();
    for part in path {
        let found = command.find_subcommand(part).cloned();
        command = found.ok_or_else(|| Failure::usage(format!("{name} has no command {part}")))?;
        name = format!("{name}-{part}");
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).title(name).render(&mut page).map_err(anyhow::Error::from)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use clap::Command;

    use super::*;

    /// The help of every command, in the order of the command line.
    fn help(mut command: Command, title: &str, page: &mut String) {
        let _ = write!(page, "\n## {title}\n\n```text\n{}\n```\n", command.render_long_help().to_string().trim_end());
        for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
            help(inner.clone(), &format!("{title} {}", inner.get_name()), page);
        }
    }

    #[test]
    fn the_reference_is_the_help_of_every_command() {
        let mut command = Cli::command().term_width(100);
        command.build();
        let mut page = String::from(
            "# Command line\n\nGenerated from the program's help; `UPDATE_SNAPSHOTS=1 cargo test -p mcp-taskd reference` writes it anew.\n",
        );
        help(command, NAME, &mut page);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/CLI.md");
        crate::snapshot::check(&path, &page);
    }

    #[test]
    fn every_command_has_a_manual_page_and_wrong_ones_are_wrong_usage() {
        let page = |path: &[&str]| manual(&path.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>());
        assert!(page(&[]).unwrap().contains("mcp\\-taskd"));
        let watch = page(&["tasks", "watch"]).unwrap();
        assert!(
            watch.contains("Follows a task until it ends") && watch.contains("mcp\\-taskd\\-tasks\\-watch"),
            "{watch}"
        );
        assert_eq!(page(&["tasks", "fly"]).unwrap_err().exit as u8, 64);
    }

    #[test]
    fn completions_know_the_commands() {
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            assert!(completions(shell).contains("poll-now"), "{shell}");
        }
    }
}
