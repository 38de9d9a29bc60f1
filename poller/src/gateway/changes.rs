//! When an agent's list of tools is another than the one it was shown: the catalogue changed, or its session was shown
//! deferred tools.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, broadcast, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::promotion::Place;
use crate::daemon::Tools;

/// How often the catalogue is looked at for a listener: that is when servers that failed are asked again, and an agent
/// that waits to be told does not look by itself.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// What one listener hears.
pub struct Changes {
    tools: Arc<dyn Tools>,
    catalogue: watch::Receiver<u64>,
    look: Interval,
    promotions: Option<broadcast::Receiver<Place>>,
    place: Place,
    stop: CancellationToken,
    /// Listeners are counted.
    _permit: OwnedSemaphorePermit,
}

impl Changes {
    /// Hears what changes from now on, until `stop`.
    pub fn new(
        tools: Arc<dyn Tools>,
        promotions: Option<broadcast::Receiver<Place>>,
        place: Place,
        stop: CancellationToken,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let catalogue = tools.changes();
        let mut look = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { tools, catalogue, look, promotions, place, stop, _permit: permit }
    }

    /// The next change; `None` once there will be no more. Changes that come together are one. Cancel-safe.
    pub async fn next(&mut self) -> Option<()> {
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                changed = self.catalogue.changed() => return changed.ok(),
                promoted = heard(&mut self.promotions) => match promoted {
                    Ok(place) if place != self.place => {}
                    Err(broadcast::error::RecvError::Closed) => self.promotions = None,
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return Some(()),
                },
                _ = self.look.tick() => tokio::select! {
                    () = self.stop.cancelled() => return None,
                    _ = self.tools.tools() => {}
                },
            }
        }
    }
}

async fn heard(promotions: &mut Option<broadcast::Receiver<Place>>) -> Result<Place, broadcast::error::RecvError> {
    match promotions {
        Some(promotions) => promotions.recv().await,
        None => std::future::pending().await,
    }
}
