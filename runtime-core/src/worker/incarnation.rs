//! One life of a worker: a fresh id, and a lock on a file named by it that proves the process alive (DESIGN, Takeover).

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::store::{WorkerId, WorkerRecord};
use crate::world::Ids;

/// A worker's identity from a registration to its death.
#[derive(Debug)]
pub struct Incarnation {
    /// Host and random part.
    pub id: WorkerId,
    path: PathBuf,
    /// Held until the process ends, however that happens; its release is what proves that end.
    _lock: File,
}

impl Incarnation {
    /// A new identity whose lock is held. The lock comes before the registration, so that a registered id whose lock is
    /// free belongs to a process that has ended.
    pub fn begin(state_dir: &Path, host: &str, ids: &Ids) -> std::io::Result<Self> {
        let folder = folder(state_dir);
        std::fs::create_dir_all(&folder)?;
        let host: String = host.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(40).collect();
        let id: WorkerId = format!("{host}-{}", ids.fresh()).into();
        let path = folder.join(format!("{id}.lock"));
        // It gets its name only once it is locked, so that a file of that name whose lock is free is always a dead process's.
        let unnamed = folder.join(format!("{id}.new"));
        let lock = OpenOptions::new().create_new(true).write(true).open(&unnamed)?;
        lock.try_lock()?;
        std::fs::rename(&unnamed, &path)?;
        Ok(Self { id, path, _lock: lock })
    }

    /// Removes the file of an identity that is dead in the store, or was never there. Until then it stays, however the
    /// process ends: without it nobody could tell that it has.
    pub fn leave(&self) {
        // What cannot be removed is swept by `Predecessors` later.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn folder(state_dir: &Path) -> PathBuf {
    state_dir.join("workers")
}

/// The lock files of earlier processes on this machine.
#[derive(Debug, Clone)]
pub(super) struct Predecessors {
    folder: Arc<Path>,
}

impl Predecessors {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { folder: folder(state_dir).into() }
    }

    /// Whether `worker` ran on this machine with this state directory and has ended: its lock is free.
    pub(super) fn has_ended(&self, worker: &WorkerId) -> bool {
        let Some(path) = self.path(worker) else { return false };
        match OpenOptions::new().write(true).open(path) {
            Ok(file) => match file.try_lock() {
                Ok(()) => true,
                Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
            },
            Err(_) => false,
        }
    }

    /// Removes the lock file of a worker that has ended, and is dead in the store too.
    pub(super) fn forget(&self, worker: &WorkerId) {
        if self.has_ended(worker)
            && let Some(path) = self.path(worker)
        {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Removes the files of processes that have ended and that the store does not know (any more).
    pub(super) fn sweep(&self, known: &[WorkerRecord]) {
        let Ok(files) = std::fs::read_dir(&self.folder) else { return };
        let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
        for worker in names.filter_map(|name| Some(WorkerId::from(name.strip_suffix(".lock")?))) {
            if !known.iter().any(|row| row.info.id == worker) {
                self.forget(&worker);
            }
        }
    }

    /// The file of an id from the store, which must not lead out of the folder.
    fn path(&self, worker: &WorkerId) -> Option<PathBuf> {
        let plain = worker.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        plain.then(|| self.folder.join(format!("{worker}.lock")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_lock_proves_a_predecessor_dead_and_a_held_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let predecessors = Predecessors::new(dir.path());
        let first = Incarnation::begin(dir.path(), "host.example", &Ids::Random).unwrap();
        let second = Incarnation::begin(dir.path(), "host.example", &Ids::Random).unwrap();
        assert_ne!(first.id, second.id);
        assert!(!predecessors.has_ended(&first.id));
        // However a process ends: the lock goes, the file stays.
        let ended = Arc::clone(&first.id);
        let path = predecessors.path(&ended).unwrap();
        drop(first);
        assert!(predecessors.has_ended(&ended));
        predecessors.forget(&ended);
        assert!(!path.exists());
        predecessors.forget(&second.id);
        assert!(predecessors.path(&second.id).unwrap().exists(), "a living one is not forgotten");
        assert!(!predecessors.has_ended(&"never-here".into()));
        assert!(!predecessors.has_ended(&"../workers/x".into()));
    }

    #[test]
    fn what_is_left_of_processes_that_nobody_knows_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        let predecessors = Predecessors::new(dir.path());
        let [left, ended, alive] = [(); 3].map(|()| Incarnation::begin(dir.path(), "h", &Ids::Random).unwrap());
        left.leave();
        drop(ended);
        predecessors.sweep(&[]);
        let files = std::fs::read_dir(folder(dir.path())).unwrap();
        let names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(names, [format!("{}.lock", alive.id)]);
    }
}
