//! Figures against targets: a line each, and one line of JSON at the end.

use serde_json::{Map, Value, json};

/// What a figure has to keep to.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    /// At least.
    Min(f64),
    /// At most.
    Max(f64),
}

/// What has been measured so far.
#[derive(Debug, Default)]
pub struct Report {
    figures: Map<String, Value>,
    missed: Vec<String>,
}

impl Report {
    /// A figure with a target.
    pub fn judge(&mut self, name: &str, value: f64, target: Target, remark: &str) {
        let (met, sign, bound) = match target {
            Target::Min(bound) => (value >= bound, '≥', bound),
            Target::Max(bound) => (value <= bound, '≤', bound),
        };
        let verdict = if met { "pass" } else { "FAIL" };
        println!("  {verdict}  {name:<28} {value:>9.3}  (target {sign} {bound})  {remark}");
        if !met {
            self.missed.push(name.to_owned());
        }
        self.figures.insert(name.to_owned(), json!(value));
    }

    /// A figure without one.
    pub fn note(&mut self, name: &str, value: f64, remark: &str) {
        println!("        {name:<28} {value:>9.3}  {remark}");
        self.figures.insert(name.to_owned(), json!(value));
    }

    /// The last line; whether every target was met.
    pub fn finish(self) -> bool {
        println!("{}", json!({"figures": self.figures, "missed": self.missed}));
        self.missed.is_empty()
    }
}
