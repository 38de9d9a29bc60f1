//! Which deferred tools a session has been shown: kept in memory, within bounds.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use indexmap::IndexSet;
use tokio::sync::broadcast;

/// Sessions that are remembered; of more, the one used longest ago is forgotten. It searches again.
const MAX_SESSIONS: usize = 4_096;
/// Tools remembered for one session; of more, the first ones are forgotten.
const MAX_TOOLS: usize = 256;
/// Changes that a slow listener may fall behind; beyond, it takes every session for changed.
const BACKLOG: usize = 256;

/// Whose promotions: a user's MCP session, or the thread of a caller without one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// The user; nobody else's session is ever meant.
    pub user_id: String,
    /// The session's id, or the thread's.
    pub within: Within,
}

/// What tells one conversation of a user from another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Within {
    /// `Mcp-Session-Id`.
    Session(String),
    /// The thread.
    Thread(String),
}

#[derive(Debug, Default)]
struct Entry {
    tools: IndexSet<String>,
    used: u64,
}

#[derive(Debug, Default)]
struct State {
    places: HashMap<Place, Entry>,
    tick: u64,
}

/// What every session has been shown.
#[derive(Debug)]
pub struct Promotions {
    state: Mutex<State>,
    changed: broadcast::Sender<Place>,
}

impl Default for Promotions {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: broadcast::Sender::new(BACKLOG) }
    }
}

impl Promotions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tools that were promoted, by name; some may not exist any more.
    pub fn of(&self, place: &Place) -> IndexSet<String> {
        let mut state = self.state();
        state.tick += 1;
        let tick = state.tick;
        state.places.get_mut(place).map_or_else(IndexSet::new, |entry| {
            entry.used = tick;
            entry.tools.clone()
        })
    }

    /// Adds tools to those that were promoted; whether there is a new one.
    pub fn promote<'a>(&self, place: &Place, names: impl IntoIterator<Item = &'a str>) -> bool {
        let mut names = names.into_iter().peekable();
        if names.peek().is_none() {
            return false;
        }
        let mut state = self.state();
        state.tick += 1;
        let tick = state.tick;
        if !state.places.contains_key(place) && state.places.len() >= MAX_SESSIONS {
            let oldest = state.places.iter().min_by_key(|(_, entry)| entry.used).map(|(place, _)| place.clone());
            oldest.and_then(|place| state.places.remove(&place));
        }
        let entry = state.places.entry(place.clone()).or_default();
        entry.used = tick;
        let mut new = false;
        for name in names {
            new |= entry.tools.insert(name.to_owned());
        }
        let surplus = entry.tools.len().saturating_sub(MAX_TOOLS);
        entry.tools.drain(..surplus);
        new
    }

    /// Tells whoever listens that a session's list of tools is another now.
    pub fn announce(&self, place: &Place) {
        // Without listeners there is nobody to tell.
        let _ = self.changed.send(place.clone());
    }

    /// Forgets a session that has ended.
    pub fn forget(&self, place: &Place) {
        self.state().places.remove(place);
    }

    /// Hears of [`Promotions::announce`].
    pub fn changes(&self) -> broadcast::Receiver<Place> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(user: &str, session: usize) -> Place {
        Place { user_id: user.into(), within: Within::Session(session.to_string()) }
    }

    #[test]
    fn promotions_add_up_and_are_one_users_one_sessions() {
        let promotions = Promotions::default();
        assert!(promotions.promote(&place("ada", 1), ["a", "b"]));
        assert!(!promotions.promote(&place("ada", 1), ["b"]), "nothing new");
        assert!(promotions.promote(&place("ada", 1), ["b", "c"]));
        assert!(!promotions.promote(&place("bob", 1), []));
        assert_eq!(promotions.of(&place("ada", 1)).len(), 3);
        assert!(promotions.of(&place("ada", 2)).is_empty() && promotions.of(&place("bob", 1)).is_empty());
        promotions.forget(&place("ada", 1));
        assert!(promotions.of(&place("ada", 1)).is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded_and_what_is_used_stays() {
        let promotions = Promotions::default();
        for session in 0..MAX_SESSIONS {
            promotions.promote(&place("ada", session), ["a"]);
        }
        promotions.of(&place("ada", 0));
        promotions.promote(&place("ada", MAX_SESSIONS), ["a"]);
        assert_eq!(promotions.state().places.len(), MAX_SESSIONS);
        assert!(!promotions.of(&place("ada", 0)).is_empty() && promotions.of(&place("ada", 1)).is_empty());
        let names: Vec<String> = (0..=MAX_TOOLS).map(|at| at.to_string()).collect();
        promotions.promote(&place("bob", 0), names.iter().map(String::as_str));
        let kept = promotions.of(&place("bob", 0));
        assert!(kept.len() == MAX_TOOLS && !kept.contains("0") && kept.contains(&MAX_TOOLS.to_string()));
    }
}
