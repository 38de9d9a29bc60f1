//! When an agent's list of tools is another than the one it was shown: the catalogue changed, or its session was shown
//! deferred tools.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, broadcast, watch};
use tokio_util::sync::CancellationToken;

use super::promotion::Place;
use crate::daemon::Tools;

/// What one listener hears.
pub struct Changes {
    tools: Arc<dyn Tools>,
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
        tools: Arc<dyn Tools>,
        promotions: Option<broadcast::Receiver<Place>>,
        place: Place,
        stop: CancellationToken,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let catalogue = tools.changes();
        Self { tools, catalogue, promotions, place, stop, _permit: permit }
    }

    /// The next change; `None` once there will be no more. Changes that come together are one. Cancel-safe.
    pub async fn next(&mut self) -> Option<()> {
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                changed = self.catalogue.changed() => {
                    if changed.is_err() {
                        // Another catalogue took its place.
                        self.catalogue = self.tools.changes();
                        self.catalogue.has_changed().ok()?;
                    }
                    return Some(());
                }
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

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;
    use crate::gateway::promotion::Within;

    #[tokio::test]
    async fn a_catalogue_in_place_of_another_is_a_change_and_is_heard_from_then_on() {
        let (daemon, stub) = crate::stub::daemon(crate::stub::Stub::default());
        let place = Place { user_id: "ada".into(), within: Within::Thread("t".into()) };
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let stop = CancellationToken::new();
        let mut changes = Changes::new(daemon.tools, None, place, stop.clone(), permit);
        changes.catalogue = watch::Sender::new(0).subscribe();
        assert_eq!(changes.next().await, Some(()));
        stub.changed.send_modify(|changes| *changes += 1);
        assert_eq!(changes.next().await, Some(()));
        stop.cancel();
        assert_eq!(changes.next().await, None);
    }
}
