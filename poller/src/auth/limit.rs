//! How often somebody may do something: a rate and a burst for each key, in bounded memory.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Whoever is remembered; of more, the one that has used up least is forgotten.
const MAX_KEYS: usize = 8_192;

/// A limiter. For each key it keeps one time: when all that was taken will have been paid back (GCRA).
#[derive(Debug)]
pub struct Limiter<K> {
    /// What one takes costs.
    every: Duration,
    /// How far ahead of now a key may be.
    burst: Duration,
    paid_at: Mutex<HashMap<K, Instant>>,
}

impl<K: Hash + Eq + Clone> Limiter<K> {
    /// `burst` at once, and one more each time `every` has passed.
    pub fn new(every: Duration, burst: u32) -> Self {
        Self { every, burst: every * burst.saturating_sub(1), paid_at: Mutex::default() }
    }

    /// Takes one; or how long to wait for it.
    pub fn take(&self, key: &K, now: Instant) -> Result<(), Duration> {
        let mut paid_at = self.paid_at.lock().unwrap_or_else(PoisonError::into_inner);
        let paid = paid_at.get(key).copied().filter(|paid| *paid > now).unwrap_or(now);
        if let Some(wait) = (paid - now).checked_sub(self.burst).filter(|wait| !wait.is_zero()) {
            return Err(wait);
        }
        if !paid_at.contains_key(key) && paid_at.len() >= MAX_KEYS {
            paid_at.retain(|_, paid| *paid > now);
            if paid_at.len() >= MAX_KEYS {
                let least = paid_at.iter().min_by_key(|(_, paid)| **paid).map(|(key, _)| key.clone());
                least.and_then(|key| paid_at.remove(&key));
            }
        }
        paid_at.insert(key.clone(), paid + self.every);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_let_through_and_then_the_rate() {
        let (limiter, start) = (Limiter::new(Duration::from_secs(1), 3), Instant::now());
        for _ in 0..3 {
            assert_eq!(limiter.take(&"a", start), Ok(()));
        }
        assert_eq!(limiter.take(&"a", start), Err(Duration::from_secs(1)));
        assert_eq!(limiter.take(&"b", start), Ok(()), "others have their own");
        let later = start + Duration::from_secs(1);
        assert_eq!(limiter.take(&"a", later), Ok(()));
        assert_eq!(limiter.take(&"a", later), Err(Duration::from_secs(1)));
        let rested = start + Duration::from_secs(100);
        assert_eq!((0..9).take_while(|_| limiter.take(&"a", rested).is_ok()).count(), 3, "rest is not saved up");
    }

    #[test]
    fn what_is_remembered_is_bounded_and_whoever_is_over_stays_so() {
        let (limiter, now) = (Limiter::new(Duration::from_secs(1), 2), Instant::now());
        for _ in 0..2 {
            limiter.take(&0, now).unwrap();
        }
        for key in 1..MAX_KEYS + 100 {
            limiter.take(&key, now).unwrap();
        }
        assert!(limiter.paid_at.lock().unwrap().len() <= MAX_KEYS);
        assert!(limiter.take(&0, now).is_err());
    }
}
