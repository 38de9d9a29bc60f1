//! What MCP clients are told of how to come in: protected-resource metadata (RFC 9728) and challenges.

use http::{HeaderMap, Uri};
use serde_json::{Value, json};

use super::{Denied, Reason, origin};

/// Where the metadata is; behind it may be the resource's own path.
pub const METADATA_PATH: &str = "/.well-known/oauth-protected-resource";
/// The path of the resource, where nobody says otherwise.
pub(super) const GATEWAY: &str = "/mcp";
/// The scope that the gateway needs; what it does not need it does not ask clients for.
const SCOPE: &str = "tasks";

/// The gateway as a protected resource.
#[derive(Debug, Clone, Default)]
pub struct Resource {
    url: Option<Uri>,
    issuer: Option<String>,
}

impl Resource {
    /// The resource at `url`, whose tokens are `issuer`'s. Without a usable address it is where a request says it is.
    pub fn new(url: Option<&str>, issuer: Option<String>) -> Self {
        let url = url.and_then(|url| url.parse::<Uri>().ok());
        let url = url.filter(|url| matches!(url.scheme_str(), Some("http" | "https")) && url.authority().is_some());
        Self { url, issuer }
    }

    /// The configured address.
    pub fn url(&self) -> Option<&Uri> {
        self.url.as_ref()
    }

    /// The document.
    pub fn metadata(&self, uri: &Uri, headers: &HeaderMap) -> Option<Value> {
        let (base, path) = self.address(uri, headers)?;
        let mut document = json!({
            "resource": format!("{base}{path}"),
            "resource_name": "mcp-taskd",
            "bearer_methods_supported": ["header"],
            "scopes_supported": [SCOPE],
        });
        if let Some(issuer) = &self.issuer {
            document["authorization_servers"] = json!([issuer]);
        }
        Some(document)
    }

    /// What `WWW-Authenticate` says with a refusal, where it says anything.
    pub fn challenge(&self, denied: &Denied, uri: &Uri, headers: &HeaderMap) -> Option<String> {
        let challenge = match denied {
            Denied::Unauthenticated(Reason::Missing) => format!("Bearer realm=\"mcp-taskd\", scope=\"{SCOPE}\""),
            Denied::Unauthenticated(reason) => format!(
                "Bearer realm=\"mcp-taskd\", error=\"invalid_token\", error_description=\"{}\", scope=\"{SCOPE}\"",
                reason.detail()
            ),
            Denied::Scope(scope) => {
                format!("Bearer realm=\"mcp-taskd\", error=\"insufficient_scope\", scope=\"{scope}\"")
            }
            _ => return None,
        };
        Some(match self.address(uri, headers) {
            Some((base, path)) => format!("{challenge}, resource_metadata=\"{base}{METADATA_PATH}{path}\""),
            None => challenge,
        })
    }

    /// The origin and the path of the resource. What a request says of it goes back to that request alone.
    fn address(&self, uri: &Uri, headers: &HeaderMap) -> Option<(String, String)> {
        if let Some(url) = &self.url {
            let path = url.path().trim_end_matches('/').to_owned();
            return Some((format!("{}://{}", url.scheme_str()?, url.authority()?), path));
        }
        let host = origin::host(uri, headers).filter(|host| !host.as_str().contains('@'))?;
        let secure = headers.get("x-forwarded-proto").is_some_and(|value| value.as_bytes() == b"https");
        Some((format!("{}://{host}", if secure { "https" } else { "http" }), GATEWAY.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn the_metadata_is_where_the_challenge_says_rfc_9728() {
        let uri = Uri::from_static("/mcp");
        let resource = Resource::new(Some("https://tasks.example/base/mcp"), Some("https://id.example".into()));
        let document = resource.metadata(&uri, &headers(&[("host", "10.0.0.1")])).unwrap();
        assert_eq!(document["resource"], "https://tasks.example/base/mcp");
        assert_eq!(document["authorization_servers"], json!(["https://id.example"]));
        let challenge = resource.challenge(&Denied::Unauthenticated(Reason::Missing), &uri, &HeaderMap::new()).unwrap();
        assert!(
            challenge.ends_with(
                r#"resource_metadata="https://tasks.example/.well-known/oauth-protected-resource/base/mcp""#
            )
        );
        assert!(!challenge.contains("error="), "RFC 6750: nothing was sent, so nothing is wrong with it");

        let derived = Resource::new(None, None);
        let host = headers(&[("host", "taskd:8787"), ("x-forwarded-proto", "https")]);
        let document = derived.metadata(&uri, &host).unwrap();
        assert_eq!(document["resource"], "https://taskd:8787/mcp");
        assert!(document.get("authorization_servers").is_none());
        let scope = derived.challenge(&Denied::Scope("admin"), &uri, &headers(&[("host", "h")])).unwrap();
        assert_eq!(
            scope,
            r#"Bearer realm="mcp-taskd", error="insufficient_scope", scope="admin", resource_metadata="http://h/.well-known/oauth-protected-resource/mcp""#
        );
        assert_eq!(derived.challenge(&Denied::Host, &uri, &host), None);
    }

    #[test]
    fn a_host_that_is_none_is_not_repeated() {
        let derived = Resource::new(Some("urn:no-address"), None);
        for host in ["a\"b", "user@host", "a b", ""] {
            let headers = headers(&[("host", host)]);
            assert_eq!(derived.metadata(&Uri::from_static("/mcp"), &headers), None, "{host}");
            let denied = Denied::Unauthenticated(Reason::Unknown);
            let challenge = derived.challenge(&denied, &Uri::from_static("/mcp"), &headers).unwrap();
            assert!(!challenge.contains("resource_metadata"), "{challenge}");
        }
    }
}
