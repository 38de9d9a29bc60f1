//! An OAuth server for the fakes: grants, rotating refresh tokens with reuse detection, and answers that fail.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;

/// What goes wrong, switched at run time.
#[derive(Debug, Default)]
pub struct AuthorityFaults {
    /// An HTTP error status instead of a grant; 0 is none.
    pub status: AtomicU16,
    /// `Retry-After` seconds with that status; 0 is none.
    pub retry_after: AtomicU64,
    /// Requests are held until [`AuthorityState::release`], before anything is granted.
    pub hold: AtomicBool,
    /// Requests are held likewise, after it was granted: the refresh token is used up.
    pub hold_answer: AtomicBool,
    /// The answer is this text.
    pub answer: Mutex<Option<String>>,
    /// The refusal's description repeats what was sent.
    pub echo: AtomicBool,
}

/// The server's books.
#[derive(Debug, Default)]
pub struct AuthorityState {
    /// Requests for a token.
    pub requests: AtomicU64,
    /// Requests to guarded servers that carried no valid token.
    pub refusals: AtomicU64,
    /// Refresh tokens that came a second time, each of which revokes its chain.
    pub reuses: AtomicU64,
    /// Seconds that access tokens are good for; 0 is an hour.
    pub lifetime: AtomicU64,
    /// Refresh tokens stay good, and answers bring no other.
    pub keeps_tokens: AtomicBool,
    /// What goes wrong.
    pub faults: AuthorityFaults,
    held: Notify,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    next: u64,
    /// Access tokens with their end.
    access: HashMap<String, (Instant, String)>,
    /// Refresh tokens: the chain that each is of, and whether it is used up.
    refresh: HashMap<String, (String, bool)>,
    revoked: HashSet<String>,
    forms: Vec<HashMap<String, String>>,
    /// The `Authorization` headers that guarded servers saw, with the request's method.
    seen: Vec<(String, String)>,
}

impl AuthorityState {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a chain with a refresh token.
    pub fn seed(&self, token: &str) {
        self.books().refresh.insert(token.to_owned(), (token.to_owned(), false));
    }

    /// How often it was asked.
    pub fn count(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The fields of every request so far.
    pub fn forms(&self) -> Vec<HashMap<String, String>> {
        self.books().forms.clone()
    }

    /// What guarded servers saw so far: methods and `Authorization` headers.
    pub fn seen(&self) -> Vec<(String, String)> {
        self.books().seen.clone()
    }

    /// Every token that was ever issued or begun with.
    pub fn tokens(&self) -> Vec<String> {
        let books = self.books();
        books.access.keys().chain(books.refresh.keys()).cloned().collect()
    }

    /// Access tokens are not good any more; refresh tokens are.
    pub fn revoke_access(&self) {
        self.books().access.clear();
    }

    /// Nothing of any chain is good any more.
    pub fn revoke_all(&self) {
        let mut books = self.books();
        books.access.clear();
        let chains: Vec<_> = books.refresh.values().map(|(chain, _)| chain.clone()).collect();
        books.revoked.extend(chains);
    }

    /// Lets held requests go on.
    pub fn release(&self) {
        self.faults.hold.store(false, Ordering::Relaxed);
        self.faults.hold_answer.store(false, Ordering::Relaxed);
        self.held.notify_waiters();
    }

    async fn held(&self, switch: &AtomicBool) {
        let released = self.held.notified();
        if switch.load(Ordering::Relaxed) {
            released.await;
        }
    }

    fn takes(&self, method: &str, headers: &HeaderMap) -> bool {
        let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mut books = self.books();
        books.seen.push((method.to_owned(), value.to_owned()));
        let token = value.split_once(' ').map(|(_, token)| token).unwrap_or_default();
        books.access.get(token).is_some_and(|(ends, chain)| *ends > Instant::now() && !books.revoked.contains(chain))
    }

    /// What the request is granted, or why not.
    fn grant(&self, form: &HashMap<String, String>) -> Result<Value, &'static str> {
        let field = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
        let mut books = self.books();
        books.next += 1;
        let number = books.next;
        let lifetime = match self.lifetime.load(Ordering::Relaxed) {
            0 => 3_600,
            seconds => seconds,
        };
        let access = format!("access-{number}-{}", uuid::Uuid::new_v4().simple());
        let ends = Instant::now() + Duration::from_secs(lifetime);
        let mut answer = json!({"access_token": access, "token_type": "Bearer", "expires_in": lifetime});
        match field("grant_type") {
            "client_credentials" if (field("client_id"), field("client_secret")) == ("id", "s3cret-of-client") => {
                books.access.insert(access, (ends, "client".to_owned()));
            }
            "client_credentials" => return Err("invalid_client"),
            "refresh_token" => {
                let token = field("refresh_token").to_owned();
                let (chain, used) = books.refresh.get(&token).cloned().ok_or("invalid_grant")?;
                if used {
                    self.reuses.fetch_add(1, Ordering::Relaxed);
                    books.revoked.insert(chain.clone());
                }
                if books.revoked.contains(&chain) {
                    return Err("invalid_grant");
                }
                if !self.keeps_tokens.load(Ordering::Relaxed) {
                    let next = format!("refresh-{number}-{}", uuid::Uuid::new_v4().simple());
                    answer["refresh_token"] = json!(next);
                    books.refresh.insert(next, (chain.clone(), false));
                    books.refresh.insert(token, (chain.clone(), true));
                }
                books.access.insert(access, (ends, chain));
            }
            _ => return Err("unsupported_grant_type"),
        }
        Ok(answer)
    }
}

/// A running OAuth server; it ends when dropped.
#[derive(Debug)]
pub struct FakeAuthority {
    /// Its token endpoint.
    pub url: String,
    /// Its books.
    pub state: Arc<AuthorityState>,
    serving: tokio::task::JoinHandle<()>,
}

impl FakeAuthority {
    /// Starts a server on a loopback port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a loopback port");
        let url = format!("http://{}/token", listener.local_addr().expect("an address"));
        let state = Arc::<AuthorityState>::default();
        let routes = Router::new().route("/token", post(answer)).with_state(Arc::clone(&state));
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, routes).await;
        });
        Self { url, state, serving }
    }

    /// A server's `oauth` that asks here with the client's own credentials.
    pub fn client(&self) -> Value {
        json!({"token_url": self.url, "client_id": "id", "client_secret": "s3cret-of-client"})
    }

    /// A server's `oauth` that asks here with a chain that begins with `seed`, which is made known.
    pub fn chain(&self, seed: &str) -> Value {
        self.state.seed(seed);
        json!({"token_url": self.url, "grant_type": "refresh_token", "client_id": "id", "refresh_token": seed})
    }
}

impl Drop for FakeAuthority {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(State(state): State<Arc<AuthorityState>>, body: Bytes) -> Response {
    let form = fields(&body);
    state.requests.fetch_add(1, Ordering::Relaxed);
    state.books().forms.push(form.clone());
    state.held(&state.faults.hold).await;
    let status = state.faults.status.load(Ordering::Relaxed);
    if status > 0 {
        let mut response = Response::builder().status(status);
        let seconds = state.faults.retry_after.load(Ordering::Relaxed);
        if seconds > 0 {
            response = response.header(header::RETRY_AFTER, seconds);
        }
        return response.body(Body::from("out of order on purpose")).expect("a valid response");
    }
    let granted = state.grant(&form);
    state.held(&state.faults.hold_answer).await;
    let text = state.faults.answer.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (status, text) = match (text, granted) {
        (Some(text), _) => (StatusCode::OK, text),
        (None, Ok(granted)) => (StatusCode::OK, granted.to_string()),
        (None, Err(error)) => {
            let echoed = state.faults.echo.load(Ordering::Relaxed).then(|| format!("{form:?}"));
            let description = echoed.unwrap_or_else(|| "refused on purpose".to_owned());
            (StatusCode::BAD_REQUEST, json!({"error": error, "error_description": description}).to_string())
        }
    };
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// The fields of a form.
fn fields(body: &[u8]) -> HashMap<String, String> {
    let query = String::from_utf8_lossy(body);
    let url = reqwest::Url::parse(&format!("http://form/?{query}")).expect("a form");
    url.query_pairs().into_owned().collect()
}

/// `routes` for those only who carry a valid token, where there is an authority.
pub(super) fn guarded(routes: Router, authority: Option<Arc<AuthorityState>>) -> Router {
    let Some(authority) = authority else { return routes };
    routes.layer(middleware::from_fn_with_state(authority, guard))
}

async fn guard(State(authority): State<Arc<AuthorityState>>, request: Request, next: Next) -> Response {
    if authority.takes(request.method().as_str(), request.headers()) {
        return next.run(request).await;
    }
    authority.refusals.fetch_add(1, Ordering::Relaxed);
    let said = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    (StatusCode::UNAUTHORIZED, format!("the credential {said:?} is not valid")).into_response()
}
