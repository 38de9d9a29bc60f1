//! Following `tools/list` through its pages, within bounds.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::request::Request;
use super::{CallError, CallErrorKind};

/// Most pages that are asked for.
const MAX_PAGES: usize = 200;
/// Most tools that are taken.
const MAX_TOOLS: usize = 10_000;
/// Most that the pages may be together: what is taken is kept for as long as the server is configured.
const MAX_BYTES: usize = 32 << 20;

/// The request for the page at `cursor`.
pub(super) fn page(cursor: Option<&str>) -> Request<'_> {
    Request { cursor, ..Request::new("tools/list") }
}

/// All tools, of the pages that `ask` brings; it gets each page's cursor.
pub(super) async fn follow<F, A>(mut ask: F) -> Result<Vec<Box<RawValue>>, CallError>
where
    F: FnMut(Option<String>) -> A,
    A: Future<Output = Result<Box<RawValue>, CallError>>,
{
    let mut listing = Listing::default();
    loop {
        let result = ask(listing.cursor.clone()).await?;
        if let Some(tools) = listing.add(&result)? {
            return Ok(tools);
        }
    }
}

/// The tools of the pages so far.
#[derive(Debug, Default)]
struct Listing {
    tools: Vec<Box<RawValue>>,
    cursor: Option<String>,
    seen: HashSet<String>,
    pages: usize,
    bytes: usize,
}

impl Listing {
    /// Takes a page in; gives all tools after the last one.
    fn add(&mut self, result: &RawValue) -> Result<Option<Vec<Box<RawValue>>>, CallError> {
        #[derive(Deserialize)]
        struct Page {
            #[serde(default)]
            tools: Vec<Box<RawValue>>,
            #[serde(rename = "nextCursor", default)]
            next: Option<String>,
        }
        let protocol = |what: String| CallError::new(CallErrorKind::Protocol, what);
        let page: Page = serde_json::from_str(result.get())
            .map_err(|_| protocol("tools/list was answered without a list of tools".to_owned()))?;
        self.tools.extend(page.tools);
        self.pages += 1;
        self.bytes += result.get().len();
        // Some servers end with a blank cursor, and one that comes again would go round for ever.
        self.cursor = page.next.filter(|next| !next.is_empty() && self.seen.insert(next.clone()));
        let is_over = self.cursor.is_none();
        if self.tools.len() > MAX_TOOLS || self.bytes > MAX_BYTES || (self.pages >= MAX_PAGES && !is_over) {
            let mib = MAX_BYTES >> 20;
            return Err(protocol(format!(
                "tools/list has more than {MAX_TOOLS} tools, {MAX_PAGES} pages or {mib} MiB"
            )));
        }
        Ok(is_over.then(|| std::mem::take(&mut self.tools)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is made of a server's pages, each of which names its tool and the next page; how many were asked for.
    fn listed(page: impl Fn(usize, Option<&str>) -> serde_json::Value) -> (Result<usize, CallError>, usize) {
        let (mut listing, mut asked) = (Listing::default(), 0);
        loop {
            let answer = page(asked, listing.cursor.as_deref()).to_string();
            asked += 1;
            match listing.add(&RawValue::from_string(answer).unwrap()) {
                Ok(None) => {}
                Ok(Some(tools)) => return (Ok(tools.len()), asked),
                Err(error) => return (Err(error), asked),
            }
        }
    }

    #[test]
    fn cursors_are_followed_to_the_end_and_never_in_a_circle_28() {
        let to_the_third = |asked: usize, cursor: Option<&str>| {
            assert_eq!(cursor.map(str::to_owned), (asked > 0).then(|| asked.to_string()));
            json!({"tools": [{}], "nextCursor": (asked < 2).then(|| (asked + 1).to_string())})
        };
        assert!(matches!(listed(to_the_third), (Ok(3), 3)));
        for circle in [&["a"][..], &["a", "b"], &["a", "b", "c"]] {
            let (tools, asked) = listed(|asked, _| json!({"tools": [{}], "nextCursor": circle[asked % circle.len()]}));
            assert_eq!((tools.unwrap(), asked), (circle.len() + 1, circle.len() + 1), "{circle:?}");
        }
        assert!(
            matches!(listed(|_, _| json!({"tools": [{}, {}], "nextCursor": ""})), (Ok(2), 1)),
            "a blank one ends it"
        );
    }

    #[test]
    fn a_list_without_end_is_refused_however_it_grows_28() {
        let (endless, asked) = listed(|asked, _| json!({"tools": [], "nextCursor": asked.to_string()}));
        assert_eq!((endless.unwrap_err().kind, asked), (CallErrorKind::Protocol, MAX_PAGES));
        let (many, asked) = listed(|_, _| json!({"tools": vec![0; MAX_TOOLS + 1]}));
        assert_eq!((many.unwrap_err().kind, asked), (CallErrorKind::Protocol, 1), "on one page too");
        let large = "x".repeat(10 << 20);
        let (heavy, asked) = listed(|asked, _| json!({"tools": [large], "nextCursor": asked.to_string()}));
        assert_eq!((heavy.unwrap_err().kind, asked), (CallErrorKind::Protocol, 4));
        let (large, _) = listed(|_, _| json!({"tools": [large]}));
        assert_eq!(large.unwrap(), 1, "ten megabytes are a list");
    }
}
