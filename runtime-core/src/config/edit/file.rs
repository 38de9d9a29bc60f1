//! Reading and writing the file, one writer at a time on this machine, all or nothing (BEHAVIOURS 92, 93).

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long another writer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// Why the file could not be had. For the log: the texts name paths.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Somebody else kept writing.
    #[error("{0}: another process holds the lock")]
    Busy(PathBuf),
    /// The file system.
    #[error("{path}: {error}")]
    Io {
        /// Where.
        path: PathBuf,
        /// What.
        error: io::Error,
    },
}

/// The file while nobody else writes it: neither in this process nor in another that asks for the lock.
#[derive(Debug)]
pub(super) struct Locked {
    /// Where it really is, links followed.
    target: PathBuf,
    _lock: File,
}

impl Locked {
    /// Waits for the lock, ten seconds at most; blocks. The lock is a file beside the target, since the target itself is
    /// another one after each write.
    pub(super) fn wait(path: &Path) -> Result<Self, FileError> {
        let target = target(path)?;
        let lock_path = beside(&target, "lock");
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let lock = options.open(&lock_path).map_err(|error| io_error(&lock_path, error))?;
        let until = Instant::now() + PATIENCE;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { target, _lock: lock }),
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOOK),
                Err(TryLockError::WouldBlock) => return Err(FileError::Busy(lock_path)),
                Err(TryLockError::Error(error)) => return Err(io_error(&lock_path, error)),
            }
        }
    }

    /// Puts `text` in the place of what is there, which keeps its mode and its owner; a new file is its user's alone. After a
    /// crash the file is either the old one or the new one.
    pub(super) fn write(&self, text: &str) -> Result<(), FileError> {
        self.replace(text).map_err(|error| io_error(&self.target, error))
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        let folder = self.target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new().prefix(".mcp-taskd-").tempfile_in(folder)?;
        file.write_all(text.as_bytes())?;
        if let Ok(metadata) = std::fs::metadata(&self.target) {
            keep_owner(file.path(), &metadata);
            file.as_file().set_permissions(metadata.permissions())?;
        }
        file.as_file().sync_all()?;
        file.persist(&self.target)?;
        // The name must last too; not every file system lets a folder be synchronised.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

/// Where a write goes: a link stays one, and what it points to is written.
fn target(path: &Path) -> Result<PathBuf, FileError> {
    match path.canonicalize() {
        Ok(target) => Ok(target),
        Err(error) if error.kind() == ErrorKind::NotFound => match std::fs::read_link(path) {
            Ok(link) => Ok(path.parent().unwrap_or(Path::new("")).join(link)),
            Err(_) => std::path::absolute(path).map_err(|error| io_error(path, error)),
        },
        Err(error) => Err(io_error(path, error)),
    }
}

fn beside(target: &Path, ending: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{ending}"))
}

/// Only a privileged process can give files away; for any other the owner is its own anyway.
fn keep_owner(path: &Path, like: &std::fs::Metadata) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let _ = std::os::unix::fs::chown(path, Some(like.uid()), Some(like.gid()));
    }
    #[cfg(not(unix))]
    let _ = (path, like);
}

fn io_error(path: &Path, error: io::Error) -> FileError {
    FileError::Io { path: path.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) -> Result<(), FileError> {
        Locked::wait(path)?.write(text)
    }

    #[cfg(unix)]
    #[test]
    fn mode_and_link_are_kept_and_nothing_is_left_behind_92() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        let file = real.join("e.json");
        std::fs::write(&file, "old").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("real/e.json", &link).unwrap();
        write(&link, "new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        let names: Vec<_> = std::fs::read_dir(&real).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "the file and its lock: {names:?}");
        let fresh = folder.path().join("fresh.json");
        write(&fresh, "{}").unwrap();
        assert_eq!(std::fs::metadata(&fresh).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_write_that_fails_leaves_the_file_as_it_was_93() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("folder");
        std::fs::create_dir(&taken).unwrap();
        assert!(write(&taken, "x").is_err(), "a folder cannot be replaced by a file");
        assert!(write(&folder.path().join("nowhere").join("e.json"), "x").is_err());
        let names = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 2, "no half-written file stays");
    }

    #[test]
    fn writers_wait_for_each_other_and_no_edit_is_lost_92() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("e.json");
        std::fs::write(&path, "0").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let locked = Locked::wait(&path).unwrap();
                        let count: u32 = std::fs::read_to_string(&path).unwrap().parse().unwrap();
                        locked.write(&(count + 1).to_string()).unwrap();
                    }
                });
            }
        });
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "40");
    }
}
