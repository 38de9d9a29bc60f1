//! Query parameters, cursors and `Link` headers.

use std::fmt::Write as _;
use std::time::Duration;

use axum::extract::{FromRequestParts, Query};
use http::request::Parts;
use http::{HeaderValue, Uri};
use mcp_taskd_core::store::{Page, TaskFilter};
use mcp_taskd_core::task::{Status, TaskRecord};
use serde_json::json;

use super::openapi::Param;
use super::problem::Problem;

/// The longest that `?wait=` waits.
const MAX_WAIT_SECONDS: f64 = 60.0;
const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 100;

/// The parameters of a query, in their order.
#[derive(Debug, Default)]
pub struct Params(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Params {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
        query.map(|Query(pairs)| Self(pairs)).map_err(|_| Problem::invalid("the query string cannot be read"))
    }
}

impl Params {
    /// The last value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// `true`, `false`, `1`, `0`, or alone.
    pub fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.get(name) {
            None | Some("false" | "0") => Ok(false),
            Some("true" | "1" | "") => Ok(true),
            Some(_) => Err(Problem::invalid(format!("{name} must be true or false"))),
        }
    }

    /// `wait`, in seconds, clamped to 60.
    pub fn wait(&self) -> Result<Duration, Problem> {
        let Some(text) = self.get("wait") else { return Ok(Duration::ZERO) };
        match text.parse::<f64>() {
            Ok(seconds) if seconds >= 0.0 => Ok(Duration::from_secs_f64(seconds.min(MAX_WAIT_SECONDS))),
            _ => Err(Problem::invalid("wait must be a number of seconds, 0 or more")),
        }
    }

    /// `limit`, within 1–100.
    pub fn limit(&self) -> Result<u32, Problem> {
        let Some(text) = self.get("limit") else { return Ok(DEFAULT_LIMIT) };
        match text.parse::<u32>() {
            Ok(limit) if (1..=MAX_LIMIT).contains(&limit) => Ok(limit),
            _ => Err(Problem::invalid(format!("limit must be a whole number from 1 to {MAX_LIMIT}"))),
        }
    }

    /// `status` and `active_only`.
    pub fn filter(&self) -> Result<TaskFilter, Problem> {
        let status = match self.get("status") {
            None => None,
            Some(text) => {
                Some(text.parse().map_err(|_| Problem::invalid(format!("status: {text:?} is no task status")))?)
            }
        };
        Ok(TaskFilter { status, active_only: self.flag("active_only")?, ..TaskFilter::default() })
    }

    /// `limit` and `cursor`; one row more than asked for, so that the last page is known as such.
    pub fn page(&self) -> Result<Page, Problem> {
        let after = match self.get("cursor") {
            None => None,
            Some(text) => Some(parse_cursor(text).ok_or_else(|| Problem::invalid("cursor cannot be used"))?),
        };
        Ok(Page { limit: self.limit()? + 1, after })
    }

    /// The `Link` to the page after `last`, on the same path with the same parameters.
    pub fn next_link(&self, uri: &Uri, last: &TaskRecord) -> Option<HeaderValue> {
        self.link_behind(uri, last.created_at, &last.id)
    }

    /// The `Link` to the page behind what was made at `created_at` and has this id.
    pub fn link_behind(&self, uri: &Uri, created_at: i64, id: &str) -> Option<HeaderValue> {
        let mut query = String::new();
        for (name, value) in self.0.iter().filter(|(name, _)| name != "cursor") {
            let _ = write!(query, "{}={}&", encode(name), encode(value));
        }
        let cursor = cursor(created_at, id);
        HeaderValue::try_from(format!("<{}?{query}cursor={cursor}>; rel=\"next\"", uri.path())).ok()
    }
}

/// [`Params::page`] and [`Params::filter`], described.
pub fn list_params() -> [Param; 4] {
    let [limit, cursor] = page_params();
    [
        limit,
        cursor,
        Param::query("status", "Only in this status.", json!({ "enum": Status::ALL.map(Status::as_str) })),
        Param::query("active_only", "Only tasks that have not ended.", json!({ "type": "boolean" })),
    ]
}

/// [`Params::page`], described.
pub fn page_params() -> [Param; 2] {
    let limit = json!({ "type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT });
    [
        Param::query("limit", "How many at most.", limit),
        Param::query("cursor", "From the `Link` of the page before.", json!({ "type": "string" })),
    ]
}

/// [`Params::wait`], described.
pub fn wait_param() -> Param {
    let about = "Waits up to so many seconds, at most 60, for a change of status, input, result or degradation.";
    Param::query("wait", about, json!({ "type": "number", "minimum": 0 }))
}

/// Cuts the row that only shows that there is a next page; returns whether there is one.
pub fn cut<T>(rows: &mut Vec<T>, page: &Page) -> bool {
    let wanted = page.limit as usize - 1;
    let more = rows.len() > wanted;
    rows.truncate(wanted);
    more
}

/// An opaque cursor that points behind a task.
pub fn cursor(created_at: i64, id: &str) -> String {
    format!("{created_at}:{id}").bytes().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The place that a [`cursor`] points behind.
pub fn parse_cursor(text: &str) -> Option<(i64, String)> {
    if text.len() > 512 || !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    let bytes: Option<Vec<u8>> =
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect();
    let plain = String::from_utf8(bytes?).ok()?;
    let (created_at, id) = plain.split_once(':')?;
    (!id.contains('\0')).then_some((created_at.parse().ok()?, id.to_owned()))
}

/// Percent-encodes what is not unreserved.
pub fn encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => encoded.push(byte.into()),
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn params(query: &str) -> Params {
        let uri: Uri = format!("/x?{query}").parse().unwrap();
        Params(Query::<Vec<(String, String)>>::try_from_uri(&uri).unwrap().0)
    }

    #[test]
    fn limit_is_1_to_100_and_50_without_one_29() {
        assert_eq!(params("").limit().unwrap(), 50);
        assert_eq!(params("limit=1").limit().unwrap(), 1);
        assert_eq!(params("limit=100").limit().unwrap(), 100);
        for bad in ["0", "101", "-1", "1.5", "x", ""] {
            assert_eq!(params(&format!("limit={bad}")).limit().unwrap_err().status, 422, "{bad}");
        }
    }

    #[test]
    fn wait_is_clamped_to_60_seconds() {
        assert_eq!(params("").wait().unwrap(), Duration::ZERO);
        assert_eq!(params("wait=1.5").wait().unwrap(), Duration::from_millis(1_500));
        assert_eq!(params("wait=1e300").wait().unwrap(), Duration::from_mins(1));
        for bad in ["-1", "NaN", "soon"] {
            assert_eq!(params(&format!("wait={bad}")).wait().unwrap_err().status, 422, "{bad}");
        }
    }

    #[test]
    fn filters_are_checked() {
        let filter = params("status=input_required&active_only=true").filter().unwrap();
        assert_eq!((filter.status, filter.active_only), (Some(Status::InputRequired), true));
        assert!(params("status=done").filter().unwrap_err().detail.contains("status"));
        assert!(params("active_only=maybe").filter().unwrap_err().detail.contains("active_only"));
    }

    #[test]
    fn the_next_page_keeps_the_other_parameters() {
        let task = crate::view::tests::task("mcp-task-1");
        let uri = "/api/threads/a%20b/mcp-tasks?limit=2&status=working&cursor=00".parse().unwrap();
        let link = params("limit=2&status=working&cursor=00").next_link(&uri, &task).unwrap();
        let link = link.to_str().unwrap();
        assert!(link.starts_with("</api/threads/a%20b/mcp-tasks?limit=2&status=working&cursor="), "{link}");
        assert!(link.ends_with(">; rel=\"next\""), "{link}");
        let text = link.split("cursor=").nth(1).unwrap().split('>').next().unwrap();
        assert_eq!(parse_cursor(text), Some((1_800_000_000_000, "mcp-task-1".into())));
    }

    #[test]
    fn one_row_more_than_asked_for_means_a_next_page() {
        let page = params("limit=2").page().unwrap();
        assert_eq!(page.limit, 3);
        let (mut two, mut three) = (vec![1, 2], vec![1, 2, 3]);
        assert!(!cut(&mut two, &page));
        assert!(cut(&mut three, &page));
        assert_eq!((two.len(), three.len()), (2, 2));
    }

    proptest! {
        #[test]
        fn cursors_round_trip_and_arbitrary_ones_never_panic(at in any::<i64>(), id in "[^\0]{0,40}", junk in any::<String>()) {
            prop_assert_eq!(parse_cursor(&cursor(at, &id)), Some((at, id)));
            let _ = parse_cursor(&junk);
        }
    }
}
