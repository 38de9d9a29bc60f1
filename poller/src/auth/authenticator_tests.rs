//! The door, without a network around it.

use mcp_taskd_core::clock::SystemClock;
use mcp_taskd_core::store::memory::MemoryStore;

use super::*;
use crate::auth::{ApiKey, NewKey, issue};

struct Door {
    authenticator: Authenticator,
    registry: prometheus::Registry,
}

impl Door {
    fn new(max_requests_per_second: u32) -> Self {
        let registry = prometheus::Registry::new();
        let auth = AuthSettings { mode: AuthMode::ApiKey, max_requests_per_second, ..AuthSettings::default() };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let keys = Arc::new(MemoryStore::new(Arc::clone(&clock)));
        let authenticator = Authenticator::configured(&auth, keys, clock, &registry).unwrap();
        Self { authenticator, registry }
    }

    async fn key(&self, scopes: &[&str]) -> ApiKey {
        let scopes = scopes.iter().map(|&word| word.to_owned()).collect();
        let order = NewKey { user_id: "ada".into(), scopes, expires_in_seconds: None };
        issue(self.authenticator.keys().unwrap(), &order, SystemClock.now_ms()).await.unwrap().0
    }

    async fn ask(&self, pairs: &[(&str, &str)], address: &str) -> Result<Identity, Denied> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap());
        }
        let uri = Uri::from_static("/mcp");
        let call = Call { uri: &uri, headers: &headers, address: address.parse().ok(), route: "/mcp" };
        self.authenticator.admit(&call).await.map(|admitted| admitted.identity)
    }

    fn count(&self, name: &str, label: &str) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == format!("mcp_taskd_{name}")).unwrap();
        let series = family.get_metric().iter();
        let series = series.filter(|series| series.get_label().iter().any(|pair| pair.value() == label));
        series.map(|series| series.get_counter().get_value()).sum()
    }
}

fn unauthenticated(reason: Reason) -> Result<Identity, Denied> {
    Err(Denied::Unauthenticated(reason))
}

#[tokio::test]
async fn only_the_header_carries_a_credential_and_only_once() {
    let door = Door::new(100);
    let key = door.key(&["tasks"]).await;
    let key = key.expose();
    for good in [format!("Bearer {key}"), format!("bearer {key}"), format!("BEARER   {key} ")] {
        assert_eq!(door.ask(&[("authorization", &good)], "10.0.0.1").await.unwrap().user_id, "ada", "{good:?}");
    }
    assert_eq!(door.ask(&[], "10.0.0.1").await, unauthenticated(Reason::Missing));
    assert_eq!(door.ask(&[("x-api-key", key)], "10.0.0.1").await, unauthenticated(Reason::Missing));
    let twice = [("authorization", &*format!("Bearer {key}")), ("authorization", "Bearer x")];
    assert_eq!(door.ask(&twice, "10.0.0.1").await, unauthenticated(Reason::Malformed));
    for bad in [key.to_owned(), format!("Basic {key}"), "Bearer ".into(), format!("Bearer {}", "x".repeat(20_000))] {
        assert_eq!(door.ask(&[("authorization", &bad)], "10.0.0.1").await, unauthenticated(Reason::Malformed));
    }
    assert!(door.count("auth_failures_total", "malformed") > 4.0);
    assert!(door.count("auth_failures_total", "missing") > 1.0);
    assert!((door.count("auth_failures_total", "revoked")).abs() < f64::EPSILON, "known series start at 0");
}

#[tokio::test]
async fn another_user_may_be_named_only_by_those_who_act_as_others() {
    let door = Door::new(100);
    let (own, any) = (door.key(&["tasks"]).await, door.key(&["tasks", "act-as"]).await);
    let as_eve = async |key: &ApiKey| {
        let authorization = format!("Bearer {}", key.expose());
        door.ask(&[("authorization", &authorization), ("x-user-id", "eve")], "10.0.0.1").await
    };
    assert_eq!(as_eve(&own).await, Err(Denied::OtherUser));
    assert_eq!(as_eve(&any).await.unwrap().user_id, "eve");
    assert!((door.count("auth_failures_total", "user") - 1.0).abs() < f64::EPSILON);
}

#[tokio::test(start_paused = true)]
async fn guessing_is_slowed_down_by_address_and_good_credentials_are_not() {
    let door = Door::new(1_000);
    let key = format!("Bearer {}", door.key(&["tasks"]).await.expose());
    let guess = async |address: &str| {
        let guess = format!("Bearer {}", ApiKey::generate().unwrap().expose());
        door.ask(&[("authorization", &guess)], address).await
    };
    // Who comes without any has guessed nothing: every client of MCP begins so.
    for _ in 0..2 * FAILURES {
        assert_eq!(door.ask(&[], "10.0.0.1").await, unauthenticated(Reason::Missing));
    }
    // A key that was seen here goes on however many others from its address are refused: they may share a proxy.
    door.ask(&[("authorization", &key)], "10.0.0.1").await.unwrap();
    for _ in 0..FAILURES {
        assert_eq!(guess("10.0.0.1").await, unauthenticated(Reason::Unknown));
    }
    let Err(Denied::Limited(wait)) = guess("10.0.0.1").await else { panic!("not limited") };
    assert!(wait <= FAILURE_EVERY);
    let unseen = format!("Bearer {}", door.key(&["tasks"]).await.expose());
    for key in [&key, &unseen] {
        assert!(door.ask(&[("authorization", key)], "10.0.0.1").await.is_ok());
    }
    assert_eq!(guess("10.0.0.2").await, unauthenticated(Reason::Unknown));
    assert!((door.count("rate_limited_total", "/mcp") - 1.0).abs() < f64::EPSILON);
    tokio::time::advance(FAILURE_EVERY).await;
    assert_eq!(guess("10.0.0.1").await, unauthenticated(Reason::Unknown));
}

#[tokio::test(start_paused = true)]
async fn one_key_may_call_so_often_and_no_more() {
    let door = Door::new(5);
    let (one, other) = (door.key(&["tasks"]).await, door.key(&["tasks"]).await);
    let ask =
        async |key: &ApiKey| door.ask(&[("authorization", &format!("Bearer {}", key.expose()))], "10.0.0.1").await;
    for _ in 0..10 {
        assert!(ask(&one).await.is_ok());
    }
    assert!(matches!(ask(&one).await, Err(Denied::Limited(wait)) if wait <= Duration::from_millis(200)));
    assert!(ask(&other).await.is_ok(), "others have their own");
    tokio::time::advance(Duration::from_millis(200)).await;
    assert!(ask(&one).await.is_ok());
}

#[test]
fn a_network_of_ipv6_is_one_caller() {
    let at = |text: &str| place(text.parse().ok());
    assert_eq!(at("2001:db8:1:2:3::4"), at("2001:db8:1:2::9"));
    assert_ne!(at("2001:db8:1:2::1"), at("2001:db8:1:3::1"));
    assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
}
