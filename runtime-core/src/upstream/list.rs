//! Following `tools/list` through its pages, within bounds.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::jsonrpc::Request;
use super::{CallError, CallErrorKind};

/// Most pages that are asked for.
const MAX_PAGES: usize = 200;
/// Most tools that are taken.
const MAX_TOOLS: usize = 10_000;

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
    pages: usize,
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
        // A cursor that does not move would go round for ever.
        if page.next.is_none() || page.next == self.cursor {
            return Ok(Some(std::mem::take(&mut self.tools)));
        }
        if self.tools.len() > MAX_TOOLS || self.pages >= MAX_PAGES {
            return Err(protocol(format!("tools/list has more than {MAX_TOOLS} tools or {MAX_PAGES} pages")));
        }
        self.cursor = page.next;
        Ok(None)
    }
}
