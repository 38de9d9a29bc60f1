//! What the demo shows: a live line a task on a terminal, plain lines elsewhere.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tokio::time::Instant;

/// The display, and the time since the demo began.
pub(super) struct Show {
    started: Instant,
    live: Option<MultiProgress>,
    bars: HashMap<String, ProgressBar>,
}

impl Show {
    pub(super) fn new() -> Self {
        let live = std::io::stdout()
            .is_terminal()
            .then(|| MultiProgress::with_draw_target(indicatif::ProgressDrawTarget::stdout()));
        Self { started: Instant::now(), live, bars: HashMap::new() }
    }

    /// A line that stays.
    pub(super) fn say(&self, text: &str) {
        let line = format!("{:6.2} s  {text}", self.started.elapsed().as_secs_f64());
        match &self.live {
            // A line that cannot be drawn above the bars is still a line.
            Some(live) if live.println(&line).is_ok() => {}
            _ => println!("{line}"),
        }
    }

    /// A line without a time.
    pub(super) fn plain(&self, text: &str) {
        match &self.live {
            Some(live) if live.println(text).is_ok() => {}
            _ => println!("{text}"),
        }
    }

    /// Takes the live lines away; what follows is plain.
    pub(super) fn settle(&mut self) {
        self.bars.drain().for_each(|(_, bar)| bar.finish_and_clear());
        self.live = None;
    }

    /// A task's status has changed.
    pub(super) fn task(&mut self, id: &str, name: &str, status: &str, note: &str) {
        let Some(live) = &self.live else {
            self.say(&format!("{name:<10} {status}{}{note}", if note.is_empty() { "" } else { ": " }));
            return;
        };
        let bar = self.bars.entry(id.to_owned()).or_insert_with(|| {
            let bar = live.add(ProgressBar::new_spinner());
            let style = ProgressStyle::with_template("          {spinner} {prefix:<10} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.set_prefix(name.to_owned());
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        let message = format!("{status}{}{note}", if note.is_empty() { "" } else { ": " });
        if matches!(status, "completed" | "failed" | "cancelled") {
            bar.finish_with_message(message);
        } else {
            bar.set_message(message);
        }
    }
}
