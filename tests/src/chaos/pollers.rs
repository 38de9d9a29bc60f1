//! Who polls whom, from the fake server's own record.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::fake::Called;

/// A caller that polled a task this often in a row has it to itself.
const SETTLED: usize = 3;
/// A task that was handed over and back this often without settling is contested. Whoever was killed never comes back.
const RETURNS: usize = 3;

/// Tasks that two daemons polled in turns for longer than `bound`: neither had let go.
pub(super) fn contests(journal: &[Called], bound: Duration) -> Vec<String> {
    let mut tasks: HashMap<&str, Vec<(Instant, &str)>> = HashMap::new();
    for called in journal.iter().filter(|called| called.is_poll()) {
        if let (Some(task), Some(caller)) = (&called.task_id, &called.caller) {
            tasks.entry(task).or_default().push((called.at, caller));
        }
    }
    let contested = tasks.into_iter().filter_map(|(task, polls)| {
        let longest = longest_contest(&polls);
        (longest > bound).then(|| format!("{task} was polled by two daemons at once for {longest:?}"))
    });
    contested.collect()
}

/// The longest time in which callers took turns without any of them settling.
fn longest_contest(polls: &[(Instant, &str)]) -> Duration {
    let mut longest = Duration::ZERO;
    let (mut since, mut seen, mut returns, mut in_a_row) = (None, Vec::new(), 0, 1);
    for pair in polls.windows(2) {
        let [(_, before), (at, now)] = pair else { continue };
        if before == now {
            in_a_row += 1;
            if in_a_row >= SETTLED {
                (since, returns) = (None, 0);
                seen.clear();
            }
            continue;
        }
        in_a_row = 1;
        let since = *since.get_or_insert(*at);
        seen.push(*before);
        returns += usize::from(seen.contains(now));
        if returns >= RETURNS {
            longest = longest.max(*at - since);
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn journal(callers: &str) -> Vec<Called> {
        let start = Instant::now();
        let polls = callers.chars().enumerate().map(|(second, caller)| Called {
            at: start + Duration::from_secs(second as u64),
            tool: "get_report_status".to_owned(),
            task_id: Some("remote-1".to_owned()),
            traceparent: None,
            headers: HeaderMap::new(),
            caller: Some(caller.to_string()),
        });
        polls.collect()
    }

    #[test]
    fn taking_turns_for_long_is_a_contest_and_handing_over_is_none() {
        let found = |callers: &str| contests(&journal(callers), Duration::from_secs(10)).len();
        assert_eq!(found("aaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbb"), 0);
        assert_eq!(found("aabbccaabbcc"), 0, "each took over from one that was killed, within the bound");
        assert_eq!(found("abababababababababab"), 1, "a zombie");
        assert_eq!(found("aabbaabbaabbaabb"), 1, "a zombie");
        assert_eq!(found("aaaabaaaabaaaabaaaabaaaab"), 0, "handed over and back");
    }
}
