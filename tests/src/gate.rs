//! An interceptor's endpoint: it writes down what it is asked, and answers as it is told.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::StatusCode;
use serde_json::Value;
use tokio::net::TcpListener;

/// What a gate answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// This body.
    Json(Value),
    /// An error status.
    Status(u16),
    /// Nothing, ever.
    Hang,
}

#[derive(Debug)]
struct Inner {
    answer: Mutex<Answer>,
    asked: Mutex<Vec<Value>>,
}

/// A running endpoint; it ends when dropped.
#[derive(Debug)]
pub struct Gate {
    /// Its URL.
    pub url: String,
    inner: Arc<Inner>,
    serving: tokio::task::JoinHandle<()>,
}

impl Gate {
    /// Starts one on a loopback port.
    pub async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a loopback port");
        let url = format!("http://{}/gate", listener.local_addr().expect("an address"));
        let inner = Arc::new(Inner { answer: Mutex::new(answer), asked: Mutex::default() });
        let routes = Router::new().route("/gate", post(receive)).with_state(Arc::clone(&inner));
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, routes).await;
        });
        Self { url, inner, serving }
    }

    /// Answers like this from now on.
    pub fn answers(&self, answer: Answer) {
        *lock(&self.inner.answer) = answer;
    }

    /// What it was asked so far.
    pub fn asked(&self) -> Vec<Value> {
        lock(&self.inner.asked).clone()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn receive(State(inner): State<Arc<Inner>>, body: axum::body::Bytes) -> Response {
    lock(&inner.asked).push(serde_json::from_slice(&body).unwrap_or_default());
    let answer = lock(&inner.answer).clone();
    match answer {
        Answer::Json(body) => axum::Json(body).into_response(),
        Answer::Status(status) => StatusCode::from_u16(status).unwrap_or(StatusCode::IM_A_TEAPOT).into_response(),
        Answer::Hang => std::future::pending().await,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
