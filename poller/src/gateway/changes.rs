//! When an agent's list of tools is another than the one it was shown: the catalogue changed, or its session was shown
//! deferred tools.

use tokio::sync::{OwnedSemaphorePermit, broadcast, watch};
use tokio_util::sync::CancellationToken;

use super::promotion::Place;

/// What one listener hears.
pub struct Changes {
    catalogue: watch::Receiver<u64>,
    promotions: Option<broadcast::Receiver<Place>>,
    place: Place,
    stop: CancellationToken,
    /// Listeners are counted.
    _permit: OwnedSemaphorePermit,
}

impl Changes {
    /// Hears what changes from now on, until `stop`.
    pub fn new(
        mut catalogue: watch::Receiver<u64>,
        promotions: Option<broadcast::Receiver<Place>>,
        place: Place,
        stop: CancellationToken,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        catalogue.mark_unchanged();
        Self { catalogue, promotions, place, stop, _permit: permit }
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
