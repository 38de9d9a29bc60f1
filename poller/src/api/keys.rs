//! API keys, for administrators.

use axum::extract::{Path, State};
use axum::response::Response;
use http::{HeaderValue, StatusCode, Uri, header};
use mcp_taskd_core::service::ServiceError;
use mcp_taskd_core::store::ApiKeys;
use schemars::JsonSchema;
use serde_json::Value;

use super::config::Document;
use super::openapi::{Routes, operation};
use super::problem::Problem;
use super::query::{Params, cut, page_params};
use super::thread::{json, with_link};
use super::{AdminCaller, Api};
use crate::auth::{KeyView, NewKey, issue};

/// The routes of this room.
pub fn routes(routes: Routes) -> Routes {
    let described = |id, summary| operation(id, "admin", summary).problem(409, &["keys_not_in_use"]);
    routes
        .get(
            "/api/keys",
            list,
            described("listKeys", "API keys, newest first")
                .takes(page_params())
                .answers::<Vec<KeyView<'static>>>(200, "A page of keys.")
                .with_header(200, "Link", "The next page, where there is one (`rel=\"next\"`)."),
        )
        .post(
            "/api/keys",
            create,
            described("createKey", "Makes an API key")
                .about("The answer is the only one that has the key in it.")
                .body::<Order>()
                .answers::<KeyView<'static>>(201, "The key.")
                .with_header(201, "Location", "The key's own path.")
                .problem(400, &["invalid_request"])
                .problem(413, &["payload_too_large"]),
        )
        .delete(
            "/api/keys/{key_id}",
            revoke,
            described("revokeKey", "Revokes an API key; repeating it changes nothing")
                .answers::<KeyView<'static>>(200, "The key as it is now.")
                .problem(404, &["not_found"]),
        )
}

/// A key that somebody asks for.
#[derive(JsonSchema)]
#[schemars(rename = "NewKey", deny_unknown_fields)]
#[expect(dead_code, reason = "its fields are read by the schema")]
struct Order {
    /// Whose it is.
    user_id: String,
    /// What it allows.
    #[schemars(extend("items" = { "enum": ["tasks", "operator", "admin", "act-as"] }))]
    scopes: Vec<String>,
    /// How long it is good for; until it is revoked where there is none.
    expires_in_seconds: Option<u64>,
}

/// What a request for a key says.
fn order(mut body: Document) -> Result<NewKey, Problem> {
    body.only(&["user_id", "scopes", "expires_in_seconds"])?;
    let words = |value: Value| -> Option<Vec<String>> {
        value.as_array()?.iter().map(|word| word.as_str().map(str::to_owned)).collect()
    };
    let user_id = body.take("user_id")?.as_str().map(str::to_owned);
    let expires_in_seconds = match body.take("expires_in_seconds").unwrap_or(Value::Null) {
        Value::Null => None,
        value => Some(value.as_u64().ok_or_else(|| Problem::invalid("expires_in_seconds must be a whole number"))?),
    };
    let order = NewKey {
        user_id: user_id.ok_or_else(|| Problem::invalid("user_id must be a string"))?,
        scopes: words(body.take("scopes")?).ok_or_else(|| Problem::invalid("scopes must be a list of strings"))?,
        expires_in_seconds,
    };
    order.problem().map_or(Ok(order), |problem| Err(Problem::invalid(problem)))
}

/// The register, where keys are what callers are known by. Otherwise nobody but the owner of the store makes keys: where anybody
/// on this machine may call, anybody could make one for the day when that ends.
fn keys(api: &Api) -> Result<&dyn ApiKeys, Problem> {
    api.daemon.authenticator.keys().ok_or_else(|| {
        let detail =
            "auth.mode is not api_key, so this daemon has no use for keys; `mcp-taskd keys` without --url makes them";
        Problem::new(StatusCode::CONFLICT, "keys_not_in_use", detail)
    })
}

/// `POST /api/keys`: the only answer that has the key in it.
pub async fn create(State(api): State<Api>, admin: AdminCaller, body: Document) -> Result<Response, Problem> {
    let keys = keys(&api)?;
    let order = order(body)?;
    let now = api.daemon.now_ms();
    let (key, record) = issue(keys, &order, now).await?;
    tracing::info!(
        by = admin.0.user_id,
        key = record.id,
        user = record.user_id,
        scopes = record.scopes,
        "an API key is made"
    );
    let mut response = json(StatusCode::CREATED, &KeyView::new(&record, now).with_key(&key));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Ok(location) = HeaderValue::try_from(format!("/api/keys/{}", record.id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// `GET /api/keys`: newest first.
pub async fn list(State(api): State<Api>, _: AdminCaller, params: Params, uri: Uri) -> Result<Response, Problem> {
    let page = params.page()?;
    let mut rows = keys(&api)?.list_keys(&page).await?;
    let more = cut(&mut rows, &page);
    let now = api.daemon.now_ms();
    let next = rows.last().filter(|_| more).and_then(|last| params.link_behind(&uri, last.created_at, &last.id));
    Ok(with_link(json(StatusCode::OK, &rows.iter().map(|key| KeyView::new(key, now)).collect::<Vec<_>>()), next))
}

/// `DELETE /api/keys/{key_id}`: refused from now on; repeating it changes nothing.
pub async fn revoke(
    State(api): State<Api>,
    admin: AdminCaller,
    id: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Result<Response, Problem> {
    let keys = keys(&api)?;
    let now = api.daemon.now_ms();
    let record = match id {
        Ok(Path(id)) => keys.revoke_key(&id, now).await?,
        Err(_) => None,
    };
    let record = record.ok_or_else(|| ServiceError::NotFound("no such key".into()))?;
    tracing::info!(by = admin.0.user_id, key = record.id, user = record.user_id, "an API key is revoked");
    Ok(json(StatusCode::OK, &KeyView::new(&record, now)))
}
