//! Serving HTTP to whoever connects: bounded in connections, and in the time that a caller may take to say what it wants.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Extension, Request};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tower_http::timeout::RequestBodyTimeoutLayer;

/// Connections at a time, where the process may open that many descriptors twice.
const MAX_CONNECTIONS: usize = 4_096;

/// What one caller may take.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// From connecting, or from the answer before, to the whole head of a request. Also how long a connection is kept that asks
    /// for nothing; as long as proxies usually keep theirs.
    head: Duration,
    /// Between two pieces of a body.
    body: Duration,
}

const PATIENCE: Patience = Patience { head: Duration::from_mins(1), body: Duration::from_secs(30) };

/// Serves `routes` until `closing`, then until every request under way has its answer.
pub async fn run(listener: TcpListener, routes: Router, closing: CancellationToken) {
    serve(listener, routes, closing, max_connections(), PATIENCE).await;
}

/// At most half of the descriptors that the process may open: calls to servers and the store have the other.
fn max_connections() -> usize {
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let half = descriptors.map_or(usize::MAX, |all| usize::try_from(all / 2).unwrap_or(usize::MAX));
    half.clamp(1, MAX_CONNECTIONS)
}

async fn serve(
    listener: TcpListener,
    routes: Router,
    closing: CancellationToken,
    connections: usize,
    patience: Patience,
) {
    let routes = routes.layer(RequestBodyTimeoutLayer::new(patience.body));
    let room = Arc::new(Semaphore::new(connections));
    let graceful = GracefulShutdown::new();
    let mut full = false;
    while let Some((stream, peer)) = closing.run_until_cancelled(accept(&listener)).await {
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            // Whoever is turned away knows at once, and may try another replica.
            if !std::mem::replace(&mut full, true) {
                tracing::warn!(connections, "as many connections as there may be: others are closed");
            }
            continue;
        };
        full = false;
        let connection = connection(stream, peer, &routes, patience, &graceful);
        tokio::spawn(async move {
            connection.await;
            drop(permit);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// The next connection. What fails is one connection's matter, or passes: then the listener pauses.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) if is_of_the_connection(&error) => {}
            Err(error) => {
                tracing::error!(%error, "no connection can be accepted");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    routes: &Router,
    patience: Patience,
    graceful: &GracefulShutdown,
) -> impl Future<Output = ()> + use<> {
    let _ = stream.set_nodelay(true);
    // Which protocol is spoken, and what asks first, is not hyper's to bound.
    let (asked, mut first) = watch::channel(false);
    let service = routes.clone().layer(Extension(ConnectInfo(peer))).map_request(move |request: Request<Incoming>| {
        asked.send_replace(true);
        request.map(axum::body::Body::new)
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(patience.head);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(patience.head).keep_alive_timeout(patience.body);
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).into_owned();
    let served = graceful.watch(served);
    async move {
        let silent = async {
            if tokio::time::timeout(patience.head, first.wait_for(|asked| *asked)).await.is_ok() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            result = served => if let Err(error) = result {
                tracing::debug!(error, %peer, "a connection ended");
            },
            () = silent => tracing::debug!(%peer, "a connection that asked for nothing was closed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::Notify;

    use super::*;

    const SHORT: Patience = Patience { head: Duration::from_millis(50), body: Duration::from_millis(50) };
    /// Nothing here lets a test wait that long.
    const LONG: Duration = Duration::from_mins(10);

    struct Served {
        address: SocketAddr,
        /// `/slow` was asked.
        asked: Arc<Notify>,
        /// Lets it answer.
        go: Arc<Notify>,
        closing: CancellationToken,
        ended: tokio::task::JoinHandle<()>,
    }

    async fn served(connections: usize, patience: Patience) -> Served {
        let (asked, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let slow = {
            let (asked, go) = (Arc::clone(&asked), Arc::clone(&go));
            move || async move {
                asked.notify_one();
                go.notified().await;
            }
        };
        let routes = Router::new()
            .route("/", get(|ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.ip().to_string() }))
            .route("/slow", get(slow))
            .route("/whole", post(|_: Bytes| async {}));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let closing = CancellationToken::new();
        let ended = tokio::spawn(serve(listener, routes, closing.clone(), connections, patience));
        Served { address, asked, go, closing, ended }
    }

    async fn say(address: SocketAddr, words: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(words.as_bytes()).await.unwrap();
        stream
    }

    /// What comes until the server closes the connection.
    async fn rest(stream: &mut TcpStream) -> String {
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text).await;
        String::from_utf8_lossy(&text).into_owned()
    }

    const WHOLE: &str = "GET / HTTP/1.1\r\nhost: here\r\n\r\n";

    #[tokio::test]
    async fn who_asks_for_nothing_or_never_ends_asking_is_shown_out() {
        let served = served(9, SHORT).await;
        for words in ["", "P", "PRI * HTTP/2.0\r\n", "GET / HTTP/1.1\r\nhost: he", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
            let mut stream = say(served.address, words).await;
            assert!(!rest(&mut stream).await.contains("200 OK"), "{words:?}");
        }
    }

    #[tokio::test]
    async fn a_connection_answers_again_and_is_closed_when_nothing_more_is_asked() {
        let served = served(9, SHORT).await;
        let mut stream = say(served.address, WHOLE).await;
        stream.write_all(WHOLE.as_bytes()).await.unwrap();
        let answers = rest(&mut stream).await;
        assert_eq!(answers.matches("127.0.0.1").count(), 2, "{answers}");
    }

    #[tokio::test]
    async fn an_answer_may_take_longer_than_any_patience() {
        let served = served(9, SHORT).await;
        let mut stream = say(served.address, "GET /slow HTTP/1.1\r\nhost: here\r\n\r\n").await;
        // By the time that this one is shown out, the other has waited as long.
        rest(&mut say(served.address, "").await).await;
        rest(&mut say(served.address, "").await).await;
        served.go.notify_one();
        assert!(rest(&mut stream).await.contains("200 OK"));
    }

    #[tokio::test]
    async fn a_body_that_stalls_is_refused() {
        let served = served(9, Patience { head: LONG, ..SHORT }).await;
        let words = "POST /whole HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\n\r\nhal";
        let mut stream = say(served.address, words).await;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 400");
    }

    #[tokio::test]
    async fn one_connection_too_many_is_closed_and_the_next_after_somebody_left_is_served() {
        let served = served(1, Patience { head: LONG, body: LONG }).await;
        let mut first = say(served.address, WHOLE).await;
        let mut answer = [0; 15];
        first.read_exact(&mut answer).await.unwrap();
        assert_eq!(rest(&mut say(served.address, WHOLE).await).await, "");
        drop(first);
        until(async || {
            let closing = WHOLE.replace("host: here", "host: here\r\nconnection: close");
            rest(&mut say(served.address, &closing).await).await.contains("200 OK")
        })
        .await;
    }

    async fn until(mut holds: impl AsyncFnMut() -> bool) {
        while !holds().await {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn closing_ends_idle_connections_and_waits_for_answers() {
        let served = served(9, Patience { head: LONG, body: LONG }).await;
        let mut idle = say(served.address, WHOLE).await;
        let mut busy = say(served.address, "GET /slow HTTP/1.1\r\nhost: here\r\n\r\n").await;
        let mut answer = [0; 15];
        idle.read_exact(&mut answer).await.unwrap();
        served.asked.notified().await;
        served.closing.cancel();
        rest(&mut idle).await;
        assert!(!served.ended.is_finished());
        served.go.notify_one();
        assert!(rest(&mut busy).await.contains("200 OK"));
        served.ended.await.unwrap();
    }

    #[tokio::test]
    async fn http_2_is_spoken_too() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let served = served(9, PATIENCE).await;
        let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
        let answer = client.get(format!("http://{}/", served.address)).send().await.unwrap();
        assert_eq!(answer.version(), http::Version::HTTP_2);
        assert_eq!(answer.text().await.unwrap(), "127.0.0.1");
    }
}
