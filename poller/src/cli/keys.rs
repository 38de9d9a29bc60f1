//! `keys`: who may call a daemon with `auth.mode: api_key`.

use clap::{Args, Subcommand};

use super::output::{Format, Row, print, print_list, print_object};
use super::source::{Source, Use};
use super::table::Column;
use super::{Global, Server, parse_id};
use crate::auth::{ApiKey, NewKey};
use crate::exit::{Failure, Result};

const KEYS: [Column; 6] = [
    Column::whole("key_id", "KEY"),
    Column::cut("user_id", "USER"),
    Column::cut("scopes", "SCOPES"),
    Column::whole("status", "STATUS"),
    Column::whole("expires_at", "EXPIRES"),
    Column::whole("last_used_at", "LAST USED"),
];

/// `keys`.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Makes a key and prints it, this once
    Create(Create),
    /// Every key, newest first; never the keys themselves
    List(List),
    /// Takes a key back, everywhere within ten seconds
    Revoke(Revoke),
}

/// `keys create`.
#[derive(Debug, Args)]
pub struct Create {
    /// Whose key it is
    #[arg(long, value_parser = parse_id)]
    user: String,
    /// What it allows, parted by commas: tasks, operator, admin, act-as
    #[arg(long, value_delimiter = ',', required = true, value_name = "SCOPES")]
    scopes: Vec<String>,
    /// How long it is good for, such as 90d, 12h or 30m; until it is revoked where nothing is said
    #[arg(long, value_name = "TIME", value_parser = parse_life)]
    expires: Option<u64>,
    #[command(flatten)]
    server: Server,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

/// `keys list`.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    server: Server,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

/// `keys revoke`.
#[derive(Debug, Args)]
pub struct Revoke {
    /// The key's id; a whole key, such as one that leaked, will do
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    server: Server,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

/// Runs a command.
pub async fn run(global: &Global, command: KeysCommand) -> Result<()> {
    match command {
        KeysCommand::Create(create) => {
            let order = NewKey { user_id: create.user, scopes: create.scopes, expires_in_seconds: create.expires };
            if let Some(problem) = order.problem() {
                return Err(Failure::usage(problem));
            }
            let row = on(global, &create.server, async |source| source.create_key(&order).await).await?;
            match create.output {
                Format::Table => {
                    eprintln!("This is shown once; only a hash of it is kept.");
                    print(&format!("{}\n", member(&row, "key")?))
                }
                format => print_object(&row, format),
            }
        }
        KeysCommand::List(list) => {
            let rows = on(global, &list.server, async |source| source.keys().await).await?;
            print_list(&rows, list.output, &KEYS)
        }
        KeysCommand::Revoke(revoke) => {
            // What is no key of ours is an id, or nothing.
            let id = ApiKey::parse(&revoke.id).map_or(revoke.id, |key| key.id().to_owned());
            let row = on(global, &revoke.server, async |source| source.revoke_key(&id).await).await?;
            match revoke.output {
                Format::Table => print(&format!("revoked {}\n", member(&row, "key_id")?)),
                format => print_object(&row, format),
            }
        }
    }
}

/// Does something with the store or the daemon, and lets go of it whatever comes of that.
async fn on<T>(global: &Global, server: &Server, act: impl AsyncFnOnce(&Source) -> Result<T>) -> Result<T> {
    let source = Source::open(global, server, Use::Read).await?;
    let done = act(&source).await;
    source.close().await?;
    done
}

fn member(row: &Row, name: &str) -> Result<String> {
    let members: serde_json::Value = serde_json::from_str(row.get()).map_err(anyhow::Error::from)?;
    members[name].as_str().map(str::to_owned).ok_or_else(|| Failure::failed(format!("the answer has no {name}")))
}

/// A time such as `90d`, in seconds.
fn parse_life(text: &str) -> std::result::Result<u64, String> {
    let expected = || "expected a number and s, m, h, d or w, such as 90d".to_owned();
    let unit = text.chars().next_back().ok_or_else(expected)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        'w' => 7 * 86_400,
        _ => return Err(expected()),
    };
    let count: u64 = text[..text.len() - 1].parse().map_err(|_| expected())?;
    count.checked_mul(seconds).filter(|seconds| *seconds > 0).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_a_number_and_a_unit() {
        assert_eq!(parse_life("90d"), Ok(90 * 86_400));
        assert_eq!(parse_life("30m"), Ok(1_800));
        for bad in ["", "d", "90", "90 d", "-1d", "1.5h", "0d", "9999999999999999999w", "1ä"] {
            assert!(parse_life(bad).is_err(), "{bad:?}");
        }
    }
}
