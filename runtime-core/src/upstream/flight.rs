//! One attempt at a time to bring something up, its outcome shared by everybody who waited for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::CallError;

/// A value that is made on demand, replaced when it goes stale, and never made twice at a time.
pub(super) struct Flight<T> {
    current: RwLock<Option<Arc<T>>>,
    /// Held by the attempt under way; the error of the last one.
    gate: tokio::sync::Mutex<Option<CallError>>,
    attempts: AtomicU64,
}

impl<T> Default for Flight<T> {
    fn default() -> Self {
        Self { current: RwLock::new(None), gate: tokio::sync::Mutex::new(None), attempts: AtomicU64::new(0) }
    }
}

impl<T> Flight<T> {
    /// The value, if there is one.
    pub(super) fn peek(&self) -> Option<Arc<T>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The value where it is not `stale`, or one that `make` makes.
    ///
    /// Callers that waited for a failed attempt share its error: a hundred waiters on a dead server wait once, not a
    /// hundred times. If the caller that makes it goes away, the next one starts afresh.
    pub(super) async fn get(
        &self,
        stale: impl Fn(&Arc<T>) -> bool,
        make: impl Future<Output = Result<T, CallError>>,
    ) -> Result<Arc<T>, CallError> {
        let fresh = || self.peek().filter(|value| !stale(value));
        if let Some(value) = fresh() {
            return Ok(value);
        }
        let seen = self.attempts.load(Ordering::Acquire);
        let mut failure = self.gate.lock().await;
        if let Some(value) = fresh() {
            return Ok(value);
        }
        if self.attempts.load(Ordering::Acquire) != seen
            && let Some(error) = &*failure
        {
            return Err(error.clone());
        }
        let made = make.await;
        self.attempts.fetch_add(1, Ordering::AcqRel);
        match made {
            Ok(value) => {
                let value = Arc::new(value);
                *failure = None;
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&value));
                Ok(value)
            }
            Err(error) => {
                *failure = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Takes the value out.
    pub(super) fn take(&self) -> Option<Arc<T>> {
        self.current.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes the value out where it is this very one (105).
    pub(super) fn evict(&self, value: &Arc<T>) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, value)) {
            *current = None;
        }
    }
}
