//! One refresh: the grant, and the chain that a fleet continues together (BEHAVIOURS 111–113, 116).

use std::convert::Infallible;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::{Instant, sleep};

use super::answer::Granted;
use super::chain::{ChainStore, Content, Kept};
use super::endpoint::TOTAL_TIMEOUT;
use super::failure::{Failure, Reason};
use super::held::{Held, Token, now};
use super::metrics::Outcome;
use super::source::Inner;
use crate::config::Grant;

/// Between two looks at what another holder does, and between two attempts to save.
const LOOK_EVERY: Duration = Duration::from_millis(150);
const SAVE_EVERY: Duration = Duration::from_secs(2);

impl Inner {
    /// Comes by a new token, or by one that a peer has come by.
    pub(super) async fn refresh(&self) -> Result<Token, Failure> {
        let refreshed = match (&self.config.grant, &self.store) {
            (Grant::ClientCredentials, _) => self.ask(None, 0, None).await,
            (Grant::RefreshToken(seed), None) => {
                let current = self.current().map_or_else(|| seed.clone(), |(token, _)| token);
                let asked = self.ask(Some(&current), 0, None).await;
                asked.map_err(|failure| self.explained(failure, false, self.state.has_lost()))
            }
            (Grant::RefreshToken(seed), Some(store)) => self.continue_chain(&**store, seed).await,
        };
        match &refreshed {
            Ok((_, outcome)) => self.metrics.refreshed(*outcome),
            Err(failure) => self.metrics.refreshed(Outcome::Failed(failure.reason)),
        }
        Ok(refreshed?.0)
    }

    /// The refresh token of this process, with its version.
    fn current(&self) -> Option<(SecretString, i64)> {
        let held = self.state.read();
        let held = held.as_ref()?;
        Some((held.refresh_token.clone()?, held.version))
    }

    /// Asks the endpoint, and takes what it grants; `holder` is who has to save it.
    async fn ask(
        &self,
        refresh_token: Option<&SecretString>,
        version: i64,
        holder: Option<&str>,
    ) -> Result<(Token, Outcome), Failure> {
        let asked = Instant::now();
        let granted = self.endpoint.ask(&self.config, refresh_token.map(|token| token.expose_secret())).await?;
        let Granted { authorization, refresh_token: rotated, lifetime } = granted;
        if lifetime <= self.config.refresh_skew {
            tracing::debug!(server = self.server, ?lifetime, "tokens end within oauth.refresh_skew_seconds");
        }
        // From when it was asked for: its time does not begin with the answer's arrival.
        let lifetime = lifetime.saturating_sub(asked.elapsed()).max(Duration::from_secs(1).min(lifetime));
        let held = Held {
            token: self.state.token(&authorization)?,
            expires: now() + lifetime,
            request: self.request.clone(),
            refresh_token: rotated.or_else(|| refresh_token.cloned()).filter(|_| self.rotates()),
            version,
            unsaved: holder.map(ToOwned::to_owned),
            ready: holder.is_none(),
            refused: false,
            forced: self.was_refused(),
        };
        self.metrics.expires_in(lifetime);
        tracing::debug!(server = self.server, ?lifetime, "a new OAuth token");
        Ok((self.state.put(held), Outcome::Granted))
    }

    fn rotates(&self) -> bool {
        matches!(self.config.grant, Grant::RefreshToken(_))
    }

    fn was_refused(&self) -> bool {
        self.state.read().as_ref().is_some_and(|held| held.refused)
    }

    /// Uses a peer's token, or gets the right to refresh and does.
    async fn continue_chain(&self, store: &dyn ChainStore, seed: &SecretString) -> Result<(Token, Outcome), Failure> {
        // What a peer knows nothing of would be lost with the next refresh.
        self.save().await?;
        let holder = uuid::Uuid::new_v4().simple().to_string();
        let began = Instant::now();
        let mut first_seen = None;
        loop {
            let kept = store.find(&self.chain).await?;
            let version = kept.as_ref().map_or(0, |kept| kept.version);
            if let Some(adopted) = kept.as_ref().and_then(|kept| self.adopt(kept, first_seen)) {
                return Ok((adopted, Outcome::Adopted));
            }
            first_seen.get_or_insert(version);
            self.catch_up(kept.as_ref()).await?;
            if let Some(kept) = store.claim(&self.chain, &holder, store.lease()).await? {
                if let Some(adopted) = self.adopt(&kept, first_seen) {
                    self.give_back(store, &holder, false).await;
                    return Ok((adopted, Outcome::Adopted));
                }
                match self.refresh_kept(store, seed, &kept, &holder).await {
                    // Somebody else has got ahead.
                    Err(failure) if failure.reason == Reason::InvalidGrant && self.is_outdated(store, &kept).await => {
                        tracing::info!(server = self.server, "another instance has refreshed the token meanwhile");
                        first_seen = Some(kept.version);
                    }
                    refreshed => return refreshed,
                }
            } else if began.elapsed() > TOTAL_TIMEOUT + store.lease() {
                // Its request would be over, and its lease in case it vanished.
                let what = "another instance has the right to refresh its token and does not come to an end";
                return Err(Failure::new(Reason::Unkept, what));
            }
            sleep(LOOK_EVERY.mul_f64(1.0 + fastrand::f64())).await;
        }
    }

    /// A peer's token, where it is as good as a new one, or newer than what was there when this refresh began.
    fn adopt(&self, kept: &Kept, first_seen: Option<i64>) -> Option<Token> {
        let Content::Tokens(tokens) = &kept.content else { return None };
        let is_newer = first_seen.is_some_and(|first| kept.version > first);
        let margin = if is_newer { Duration::ZERO } else { self.config.refresh_skew };
        if tokens.request != self.request || tokens.remaining <= margin {
            return None;
        }
        let forced = {
            let held = self.state.read();
            let refused = held.as_ref().filter(|held| held.refused);
            let same = |held: &Held| held.token.header.as_bytes() == tokens.authorization.expose_secret().as_bytes();
            if refused.is_some_and(same) {
                return None;
            }
            refused.is_some()
        };
        let held = Held {
            token: self.state.token(&tokens.authorization).ok()?,
            expires: now() + tokens.remaining,
            request: tokens.request.clone(),
            refresh_token: Some(tokens.refresh_token.clone()),
            version: kept.version,
            unsaved: None,
            ready: true,
            refused: false,
            forced,
        };
        self.metrics.expires_in(tokens.remaining);
        tracing::debug!(server = self.server, "the OAuth token of another instance is used");
        Some(self.state.put(held))
    }

    /// Saves this process's tokens again where the store has fallen behind them, as after a failover that lost commits.
    async fn catch_up(&self, kept: Option<&Kept>) -> Result<(), Failure> {
        if let Some(held) = self.state.write().as_mut()
            && kept.is_some_and(|kept| kept.version < held.version)
        {
            held.unsaved = Some(uuid::Uuid::new_v4().simple().to_string());
        }
        self.save().await
    }

    async fn is_outdated(&self, store: &dyn ChainStore, kept: &Kept) -> bool {
        matches!(store.find(&self.chain).await, Ok(Some(now)) if now.version > kept.version)
    }

    /// Refreshes with the right to do so; the right goes back with the tokens, or here.
    async fn refresh_kept(
        &self,
        store: &dyn ChainStore,
        seed: &SecretString,
        kept: &Kept,
        holder: &str,
    ) -> Result<(Token, Outcome), Failure> {
        let current = self.current();
        let version = current.as_ref().map_or(0, |(_, version)| *version).max(kept.version) + 1;
        let ours = || current.map_or_else(|| seed.clone(), |(token, _)| token);
        let refresh_token = match &kept.content {
            Content::Tokens(tokens) => tokens.refresh_token.clone(),
            Content::Nothing | Content::Sealed => ours(),
        };
        // A token of the store's is to be seen as little as one's own.
        self.state.secrets.remember(refresh_token.expose_secret());
        let asked = tokio::select! {
            biased;
            asked = self.ask(Some(&refresh_token), version, Some(holder)) => asked,
            never = self.keep_lease(store, holder) => match never {},
        };
        match asked {
            Ok(asked) => {
                // Whoever has seen this token used finds it stored. What cannot be stored now is stored later.
                let _ = self.save().await;
                self.state.announce(&asked.0);
                Ok(asked)
            }
            Err(failure) => {
                self.give_back(store, holder, failure.lost).await;
                let is_sealed = matches!(kept.content, Content::Sealed);
                Err(self.explained(failure, is_sealed, kept.interrupted || self.state.has_lost()))
            }
        }
    }

    async fn keep_lease(&self, store: &dyn ChainStore, holder: &str) -> Infallible {
        loop {
            sleep(store.lease() / 3).await;
            match store.renew(&self.chain, holder, store.lease()).await {
                Ok(true) => {}
                Ok(false) => tracing::warn!(server = self.server, "the right to refresh has gone to another instance"),
                Err(error) => tracing::warn!(server = self.server, %error, "the right to refresh cannot be renewed"),
            }
        }
    }

    async fn give_back(&self, store: &dyn ChainStore, holder: &str, lost: bool) {
        if let Err(error) = store.release(&self.chain, holder, lost).await {
            // It ends by itself.
            tracing::warn!(server = self.server, %error, "the right to refresh cannot be given back");
        }
    }

    /// Saves what is not saved yet, if anything.
    pub(super) async fn save(&self) -> Result<(), Failure> {
        let Some(store) = &self.store else { return Ok(()) };
        let unsaved = {
            let held = self.state.read();
            held.as_ref().and_then(|held| Some((held.unsaved.clone()?, held.version, held.tokens()?)))
        };
        let Some((holder, version, tokens)) = unsaved else { return Ok(()) };
        let is_kept = store.save(&self.chain, &holder, version, &tokens).await?;
        if let Some(held) = self.state.write().as_mut().filter(|held| held.unsaved.as_ref() == Some(&holder)) {
            held.unsaved = None;
            if !is_kept {
                // Those of a peer are newer: the chain is continued from there.
                held.version = 0;
            }
        }
        Ok(())
    }

    /// Saves until it is done: whatever happens to the store meanwhile, the tokens are used.
    pub(super) async fn persist(&self) {
        let mut first = true;
        while let Err(failure) = self.save().await {
            if std::mem::take(&mut first) {
                let (server, error) = (&self.server, failure.detail);
                tracing::warn!(server, error, "new OAuth tokens cannot be stored yet; they are used, and stored later");
            }
            sleep(SAVE_EVERY.mul_f64(1.0 + fastrand::f64())).await;
        }
    }

    /// What to do about a refresh token that is refused (116).
    fn explained(&self, mut failure: Failure, is_sealed: bool, is_interrupted: bool) -> Failure {
        if failure.reason == Reason::InvalidGrant {
            let server = &self.server;
            failure.message.push_str(&format!(
                "; its refresh token is not valid any more: set a new mcpServers.{server}.oauth.refresh_token"
            ));
            if is_sealed {
                failure.message.push_str(
                    "; the stored one cannot be decrypted here: every instance needs the same MCP_TASKD_CREDENTIALS_KEY",
                );
            }
            if is_interrupted {
                failure.message.push_str("; the answer to an earlier refresh was lost, and the next token with it");
            }
        }
        failure
    }
}
