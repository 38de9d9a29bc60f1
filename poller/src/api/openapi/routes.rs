//! A router whose every route is described.

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, on};
use http::Method;
use serde_json::Value;

use super::{Document, Operation};
use crate::api::Api;

/// Routes, and the document that tells of them.
#[derive(Debug, Default)]
pub struct Routes {
    router: Router<Api>,
    document: Document,
}

impl Routes {
    /// Adds `GET path`.
    #[must_use]
    pub fn get<H: Handler<T, Api>, T: 'static>(self, path: &str, handler: H, operation: Operation) -> Self {
        self.on(&Method::GET, MethodFilter::GET, path, handler, operation)
    }

    /// Adds `POST path`.
    #[must_use]
    pub fn post<H: Handler<T, Api>, T: 'static>(self, path: &str, handler: H, operation: Operation) -> Self {
        self.on(&Method::POST, MethodFilter::POST, path, handler, operation)
    }

    /// Adds `PUT path`.
    #[must_use]
    pub fn put<H: Handler<T, Api>, T: 'static>(self, path: &str, handler: H, operation: Operation) -> Self {
        self.on(&Method::PUT, MethodFilter::PUT, path, handler, operation)
    }

    /// Adds `PATCH path`.
    #[must_use]
    pub fn patch<H: Handler<T, Api>, T: 'static>(self, path: &str, handler: H, operation: Operation) -> Self {
        self.on(&Method::PATCH, MethodFilter::PATCH, path, handler, operation)
    }

    /// Adds `DELETE path`.
    #[must_use]
    pub fn delete<H: Handler<T, Api>, T: 'static>(self, path: &str, handler: H, operation: Operation) -> Self {
        self.on(&Method::DELETE, MethodFilter::DELETE, path, handler, operation)
    }

    fn on<H: Handler<T, Api>, T: 'static>(
        mut self,
        method: &Method,
        filter: MethodFilter,
        path: &str,
        handler: H,
        operation: Operation,
    ) -> Self {
        self.document.add(method, path, operation);
        Self { router: self.router.route(path, on(filter, handler)), document: self.document }
    }

    /// Adds the routes of a room.
    #[must_use]
    pub fn with(self, add: impl FnOnce(Self) -> Self) -> Self {
        add(self)
    }

    /// The router.
    pub fn router(self) -> Router<Api> {
        self.router
    }

    /// The document.
    pub fn document(self) -> Value {
        self.document.finish()
    }
}
