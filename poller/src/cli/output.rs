//! How lists and details are printed.

use std::io::Write as _;

use serde_json::value::RawValue;

use super::table::{Column, Table};
use crate::exit::{Failure, Result};

/// A row: a JSON object, exact.
pub type Row = Box<RawValue>;

/// `--output`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One JSON object a line.
    Jsonl,
}

/// Prints a list.
pub fn print_list(rows: &[Row], format: Format, columns: &[Column]) -> Result<()> {
    let text = match format {
        Format::Table => Table::new(columns, rows).render(),
        Format::Json => {
            let rows: Vec<_> = rows.iter().map(|row| row.get()).collect();
            format!("[{}]\n", rows.join(","))
        }
        Format::Jsonl => rows.iter().flat_map(|row| [row.get(), "\n"]).collect(),
    };
    print(&text)
}

/// Prints one object: a line a member for people, else as it is.
pub fn print_object(row: &RawValue, format: Format) -> Result<()> {
    match format {
        Format::Table => print(&super::table::members(row)),
        Format::Json | Format::Jsonl => print(&format!("{}\n", row.get())),
    }
}

/// Writes data to standard output; a reader that went away is no error.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("standard output cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}
