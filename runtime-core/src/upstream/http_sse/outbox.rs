//! Where a session's messages are posted, once its server has said where that is.

use std::sync::{Arc, OnceLock};

use http::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, Url};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::upstream::CallError;
use crate::upstream::http::{MAX_NOTIFICATIONS, NOTIFY_TIMEOUT, Target};

/// The way from here to the server.
pub(super) struct Outbox {
    target: Target,
    endpoint: OnceLock<Url>,
    /// The protocol version, once it is agreed on.
    version: OnceLock<HeaderValue>,
    notifications: Arc<Semaphore>,
}

impl Outbox {
    pub(super) fn new(target: &Target) -> Self {
        Self {
            target: target.clone(),
            endpoint: OnceLock::new(),
            version: OnceLock::new(),
            notifications: Arc::new(Semaphore::new(MAX_NOTIFICATIONS)),
        }
    }

    /// Takes the endpoint that the server names in `text`; the first one counts.
    pub(super) fn address(&self, text: &str) -> Result<(), String> {
        let endpoint = resolve(&self.target.url, text)?;
        let _ = self.endpoint.set(endpoint);
        Ok(())
    }

    pub(super) fn agree(&self, version: HeaderValue) {
        let _ = self.version.set(version);
    }

    /// Posts a message with headers of its own; the server's answer to it arrives on the stream.
    pub(super) fn post(
        &self,
        body: Vec<u8>,
        own: &[(HeaderName, HeaderValue)],
    ) -> impl Future<Output = Result<Response, CallError>> + Send + use<> {
        let mut headers: HeaderMap = self.target.headers.clone();
        headers.extend(own.iter().cloned());
        if let Some(version) = self.version.get() {
            headers.insert("mcp-protocol-version", version.clone());
        }
        // Nothing is posted before the endpoint is known.
        let url = self.endpoint.get().unwrap_or(&self.target.url).clone();
        self.target.post(url, headers, body)
    }

    /// Posts what needs no answer, without waiting; where too many are under way already, not at all.
    pub(super) fn notify(&self, body: Vec<u8>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let Ok(permit) = Arc::clone(&self.notifications).try_acquire_owned() else { return };
        let sent = self.post(body, &[]);
        runtime.spawn(async move {
            let _ = timeout(NOTIFY_TIMEOUT, sent).await;
            drop(permit);
        });
    }
}

/// The endpoint that `text` names, as seen from `base`. It must be of the same origin: credentials are sent along, and a
/// server must not be able to have them sent elsewhere.
fn resolve(base: &Url, text: &str) -> Result<Url, String> {
    let mut url = base.join(text.trim()).map_err(|_| "the endpoint event names no URL".to_owned())?;
    if url.origin() != base.origin() {
        let (theirs, ours) = (url.origin().ascii_serialization(), base.origin().ascii_serialization());
        return Err(format!("the endpoint event names another origin ({theirs}) than the server's own ({ours})"));
    }
    url.set_fragment(None);
    // Neither can fail on an http URL with a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_relative_or_of_the_same_origin() {
        let base: Url = "https://h.example:8443/a/sse?key=1".parse().unwrap();
        for (text, url) in [
            ("/messages?session=1", "https://h.example:8443/messages?session=1"),
            ("messages/?session=1", "https://h.example:8443/a/messages/?session=1"),
            ("?session=1", "https://h.example:8443/a/sse?session=1"),
            (" https://H.example:8443/m#f ", "https://h.example:8443/m"),
            ("https://user:pw@h.example:8443/m", "https://h.example:8443/m"),
        ] {
            assert_eq!(resolve(&base, text).unwrap().as_str(), url, "{text}");
        }
        for text in [
            "http://h.example:8443/m",
            "https://h.example/m",
            "https://evil.example:8443/m",
            "//evil.example:8443/m",
            "https://h.example:8443.evil.example/m",
            "file:///etc/passwd",
            "javascript:1",
            "https://",
        ] {
            assert!(resolve(&base, text).is_err(), "{text}");
        }
        let error = resolve(&base, "https://evil.example/m?token=hunter2").unwrap_err();
        assert!(error.contains("https://evil.example") && !error.contains("hunter2"), "{error}");
    }
}
