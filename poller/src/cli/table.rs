//! Tables that fit the terminal.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use console::{Style, Term};
use indexmap::IndexMap;
use serde_json::value::RawValue;

use super::output::Row;

const GAP: &str = "  ";
const MIN_WIDTH: usize = 6;

/// A column: the member it shows, its title, and what gives way where the terminal is narrow.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    key: &'static str,
    title: &'static str,
    give: Give,
}

/// What a column does for want of room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Give {
    /// Stays whole.
    Nothing,
    /// Is cut.
    Cut,
    /// Is cut, and left out where that is not enough.
    LeftOut,
}

impl Column {
    /// A column that is always shown whole.
    pub const fn whole(key: &'static str, title: &'static str) -> Self {
        Self { key, title, give: Give::Nothing }
    }

    /// A column that gives way where the terminal is narrow.
    pub const fn cut(key: &'static str, title: &'static str) -> Self {
        Self { key, title, give: Give::Cut }
    }

    /// A column that is left out where the terminal has no room for it.
    pub const fn extra(key: &'static str, title: &'static str) -> Self {
        Self { key, title, give: Give::LeftOut }
    }
}

/// Rows under titles.
#[derive(Debug)]
pub struct Table<'a> {
    columns: &'a [Column],
    rows: Vec<Vec<String>>,
}

impl<'a> Table<'a> {
    /// Takes each column's member out of each row.
    pub fn new(columns: &'a [Column], rows: &[Row]) -> Self {
        let cells = |row: &Row| {
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(row.get()).unwrap_or_default();
            columns.iter().map(|column| members.get(column.key).map_or_else(String::new, |value| cell(value))).collect()
        };
        Self { columns, rows: rows.iter().map(cells).collect() }
    }

    /// The table for the terminal on standard output: as wide as it is there, else as wide as need be.
    pub fn render(&self) -> String {
        let term = Term::stdout();
        let width = if term.is_term() { term.size_checked().map(|(_, columns)| usize::from(columns)) } else { None };
        self.render_to(width)
    }

    fn render_to(&self, width: Option<usize>) -> String {
        let columns = self.fitted(width.unwrap_or(usize::MAX));
        let bold = Style::new().for_stdout().bold();
        let titles = columns.iter().map(|&(at, width)| (self.columns[at].title, width));
        let mut text = format!("{}\n", bold.apply_to(line(titles)));
        for row in &self.rows {
            text.push_str(&line(columns.iter().map(|&(at, width)| (row[at].as_str(), width))));
            text.push('\n');
        }
        text
    }

    /// The columns there is room for, each with its width: those that may be left out go from the right, then the widest
    /// of those that may be cut are cut.
    fn fitted(&self, width: usize) -> Vec<(usize, usize)> {
        let natural = |at: usize| {
            let cells = self.rows.iter().map(|row| console::measure_text_width(&row[at])).max().unwrap_or(0);
            cells.max(self.columns[at].title.len())
        };
        let mut shown: Vec<_> = (0..self.columns.len()).map(|at| (at, natural(at))).collect();
        let least = |&(at, width): &(usize, usize)| match self.columns[at].give {
            Give::Nothing => width,
            Give::Cut | Give::LeftOut => width.min(MIN_WIDTH.max(self.columns[at].title.len())),
        };
        let gaps = |count: usize| GAP.len() * count.saturating_sub(1);
        while shown.iter().map(least).sum::<usize>() + gaps(shown.len()) > width {
            let Some(last) = shown.iter().rposition(|&(at, _)| self.columns[at].give == Give::LeftOut) else { break };
            shown.remove(last);
        }
        while shown.iter().map(|(_, width)| width).sum::<usize>() + gaps(shown.len()) > width {
            let widest = shown.iter_mut().filter(|column| column.1 > least(column)).max_by_key(|(_, width)| *width);
            let Some((_, width)) = widest else { break };
            *width -= 1;
        }
        shown
    }
}

fn line<'a>(cells: impl Iterator<Item = (&'a str, usize)>) -> String {
    let cells: Vec<_> = cells
        .map(|(cell, width)| console::pad_str(cell, width, console::Alignment::Left, Some("…")).into_owned())
        .collect();
    cells.join(GAP).trim_end().to_owned()
}

/// An object as lines of names and values.
pub fn members(row: &RawValue) -> String {
    let members: IndexMap<String, &RawValue> = serde_json::from_str(row.get()).unwrap_or_default();
    let width = members.keys().map(String::len).max().unwrap_or(0);
    members.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name:width$}  {}", cell(value));
        text
    })
}

/// A value on one line; control characters would play with the terminal.
fn cell(value: &RawValue) -> String {
    let text = match serde_json::from_str::<Option<String>>(value.get()) {
        Ok(text) => text.unwrap_or_else(|| "-".into()),
        Err(_) => value.get().to_owned(),
    };
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [Column::whole("id", "ID"), Column::whole("n", "N"), Column::cut("error", "ERROR")];

    fn rows(texts: &[&str]) -> Vec<Row> {
        texts.iter().map(|text| RawValue::from_string((*text).into()).unwrap()).collect()
    }

    #[test]
    fn a_table_fits_the_terminal_and_says_where_it_was_cut() {
        let rows = rows(&[
            r#"{"id":"mcp-task-1","n":1.10,"error":"a long story about\nsomething"}"#,
            r#"{"id":"b","n":null}"#,
        ]);
        let table = Table::new(&COLUMNS, &rows);
        assert_eq!(
            table.render_to(None),
            "ID          N     ERROR\nmcp-task-1  1.10  a long story about something\nb           -\n"
        );
        assert_eq!(
            table.render_to(Some(30)),
            "ID          N     ERROR\nmcp-task-1  1.10  a long stor…\nb           -\n"
        );
        assert!(table.render_to(Some(1)).contains("mcp-task-1"), "what may not be cut stays whole");
    }

    #[test]
    fn what_there_is_no_room_for_is_left_out_from_the_right() {
        const COLUMNS: [Column; 4] = [
            Column::whole("id", "ID"),
            Column::extra("user", "USER"),
            Column::extra("at", "AT"),
            Column::cut("e", "E"),
        ];
        let rows = rows(&[r#"{"id":"mcp-task-1","user":"somebody","at":"yesterday","e":"a long story"}"#]);
        let table = |width| Table::new(&COLUMNS, &rows).render_to(Some(width)).lines().nth(1).unwrap().to_owned();
        assert_eq!(table(60), "mcp-task-1  somebody  yesterday  a long story");
        assert_eq!(table(40), "mcp-task-1  somebody  yesterd…  a long …");
        assert_eq!(table(26), "mcp-task-1  someb…  a lon…");
        assert_eq!(table(20), "mcp-task-1  a long …");
        assert_eq!(table(5), "mcp-task-1  a lon…");
    }

    #[test]
    fn an_object_is_a_line_a_member() {
        let row = &rows(&[r#"{"task_id":"x","result":{"n":1e400}}"#])[0];
        assert_eq!(members(row), "task_id  x\nresult   {\"n\":1e400}\n");
    }

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        let row = &rows(&[r#"{"a":"\u001b[31mred"}"#])[0];
        assert!(!members(row).contains('\u{1b}'));
    }
}
