//! What is read of a process from outside: CPU and memory from `/proc`, metrics from `/metrics`.

use std::collections::BTreeMap;

use anyhow::Context as _;

/// The unit of CPU times in `/proc`: Linux shows them in hundredths of a second on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU seconds that a process has used so far, in user and kernel together.
pub fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may contain anything; what follows it is numbers.
    let (_, rest) = stat.rsplit_once(')').context("/proc/…/stat has a name")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |index: usize| -> anyhow::Result<f64> { Ok(fields.get(index).context("a field")?.parse()?) };
    Ok((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

/// `VmRSS` or `VmHWM` of a process, in MiB.
pub fn memory_mib(pid: u32, field: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).context("a field of /proc/…/status")?;
    let kib: f64 = line.trim_matches([':', '\t', ' ', 'k', 'B']).parse()?;
    Ok(kib / 1_024.0)
}

/// How many threads a process has.
pub fn threads(pid: u32) -> anyhow::Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/task"))?.count())
}

/// The series of one reading of `/metrics`, by name and labels.
#[derive(Debug, Clone, Default)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Reads the text format.
    pub fn read(text: &str) -> Self {
        let lines = text.lines().filter(|line| line.starts_with("mcp_taskd_"));
        let series = lines.filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.trim_start_matches("mcp_taskd_").to_owned(), value.parse().ok()?))
        });
        Self(series.collect())
    }

    /// What has been added since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let difference = |(series, value): (&String, &f64)| {
            (series.clone(), value - before.0.get(series).copied().unwrap_or_default())
        };
        Self(self.0.iter().map(difference).collect())
    }

    /// The sum of a name's series whose labels contain `labels`.
    pub fn sum(&self, name: &str, labels: &str) -> f64 {
        let of_name =
            |series: &str| series.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'));
        self.0.iter().filter(|(series, _)| of_name(series) && series.contains(labels)).map(|(_, value)| value).sum()
    }

    /// Status calls that have ended.
    pub fn polls(&self) -> f64 {
        self.sum("polls_total", "")
    }

    /// Rows written but for the lazy counters of unchanged polls, and those.
    pub fn rows_written(&self) -> (f64, f64) {
        let touched = self.sum("rows_written_total", "statement=\"touch\"");
        (self.sum("rows_written_total", "") - touched, touched)
    }

    /// The upper bound of the bucket that holds the quantile of a histogram.
    pub fn quantile_bound(&self, name: &str, quantile: f64) -> f64 {
        let total = self.sum(&format!("{name}_count"), "");
        let prefix = format!("{name}_bucket{{le=\"");
        let mut buckets: Vec<(f64, f64)> = self
            .0
            .iter()
            .filter_map(|(series, count)| {
                let bound = series.strip_prefix(&prefix)?.strip_suffix("\"}")?;
                Some((bound.parse().unwrap_or(f64::INFINITY), *count))
            })
            .collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        buckets.iter().find(|(_, count)| *count >= total * quantile).map_or(f64::NAN, |(bound, _)| *bound)
    }
}

/// The middle value.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
    }
}
