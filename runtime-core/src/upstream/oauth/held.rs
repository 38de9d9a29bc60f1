//! The tokens that a connection has, in this process (BEHAVIOURS 112, 113, 115).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use http::HeaderValue;
use secrecy::{ExposeSecret as _, SecretString};

use super::chain::Tokens;
use super::failure::{Failure, Reason};
use crate::clock::{Clock as _, SystemClock};
use crate::upstream::scrub::Recent;

/// An access token as requests carry it.
#[derive(Debug, Clone)]
pub(in crate::upstream) struct Token {
    /// The value of `Authorization`.
    pub(in crate::upstream) header: HeaderValue,
    /// Tells tokens apart.
    pub(super) serial: u64,
}

/// A set of tokens.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) token: Token,
    /// When the access token ends, on the boot clock.
    pub(super) expires: Duration,
    /// What it was asked for with.
    pub(super) request: String,
    /// What continues the chain; none with `client_credentials`.
    pub(super) refresh_token: Option<SecretString>,
    /// The version it has in the store, or will have; 0 where the store is ahead.
    pub(super) version: i64,
    /// As whom it is still to be saved; none where there is nothing to save.
    pub(super) unsaved: Option<String>,
    /// Whether it may be used: what continues the chain is stored, or that was tried.
    pub(super) ready: bool,
    /// Whether the server has refused it.
    pub(super) refused: bool,
    /// Whether it was asked for because the server had refused the one before.
    pub(super) forced: bool,
}

impl Held {
    /// The same for the store.
    pub(super) fn tokens(&self) -> Option<Tokens> {
        Some(Tokens {
            authorization: self.token.header.to_str().ok()?.into(),
            request: self.request.clone(),
            remaining: self.expires.saturating_sub(now()),
            refresh_token: self.refresh_token.clone()?,
        })
    }
}

/// What the sources of one connection share, for as long as they continue the same chain.
#[derive(Debug, Default)]
pub(super) struct State {
    held: RwLock<Option<Held>>,
    serials: AtomicU64,
    /// The last token that the server has taken.
    accepted: AtomicU64,
    /// Whether a request got no answer since the last tokens came.
    lost: AtomicBool,
    /// The tokens there were lately: none of them is to be seen anywhere.
    pub(super) secrets: Arc<Recent>,
}

impl State {
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Option<Held>> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Option<Held>> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token, where it was asked for with `request` and is good for longer than `margin`.
    pub(super) fn find(&self, request: &str, margin: Duration) -> Option<Token> {
        let held = self.read();
        let good = held.as_ref().filter(|held| {
            held.ready && !held.refused && held.request == request && held.expires > now().saturating_add(margin)
        });
        good.map(|held| held.token.clone())
    }

    /// Makes a token of a header's value.
    pub(super) fn token(&self, authorization: &SecretString) -> Result<Token, Failure> {
        let text = authorization.expose_secret();
        let mut header = HeaderValue::from_str(text)
            .map_err(|_| Failure::new(Reason::Unusable, "its token cannot be sent as a header (not shown)"))?;
        header.set_sensitive(true);
        self.secrets.remember(text.split_once(' ').map_or(text, |(_, token)| token));
        Ok(Token { header, serial: self.serials.fetch_add(1, Ordering::Relaxed) + 1 })
    }

    /// Takes new tokens.
    pub(super) fn put(&self, held: Held) -> Token {
        if let Some(refresh_token) = &held.refresh_token {
            self.secrets.remember(refresh_token.expose_secret());
        }
        let token = held.token.clone();
        self.lost.store(false, Ordering::Relaxed);
        *self.write() = Some(held);
        token
    }

    /// Lets a token be used.
    pub(super) fn announce(&self, token: &Token) {
        if let Some(held) = self.write().as_mut().filter(|held| held.token.serial == token.serial) {
            held.ready = true;
        }
    }

    /// Takes note that the server took this token.
    pub(super) fn accept(&self, token: &Token) {
        // On every request: only a change is worth a write.
        if self.accepted.load(Ordering::Relaxed) != token.serial {
            self.accepted.store(token.serial, Ordering::Relaxed);
        }
    }

    pub(super) fn has_accepted(&self, token: &Token) -> bool {
        self.accepted.load(Ordering::Relaxed) == token.serial
    }

    /// Takes note that a request may have used the refresh token up.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

/// Boot time: a machine that slept has old tokens.
pub(super) fn now() -> Duration {
    SystemClock.boot()
}
