//! The demonstration.

use crate::exit::{Failure, Result};

/// Runs the demonstration; with `keep` it goes on serving afterwards.
#[expect(clippy::unused_async, reason = "it will wait")]
pub async fn run(_keep: bool) -> Result<()> {
    Err(Failure::failed("the demo is not built yet"))
}
