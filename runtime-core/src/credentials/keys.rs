//! Where the keys come from: the environment's, or one of this machine's own.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use secrecy::SecretString;

use super::Vault;

/// The file of a key of one's own, in the state directory.
const FILE: &str = "credentials.key";

/// The keys that credentials are stored under.
#[derive(Debug)]
pub struct Keys {
    given: Vec<SecretString>,
    file: PathBuf,
    vault: tokio::sync::OnceCell<Vault>,
}

impl Keys {
    /// `given` (`Settings::credentials_keys`), or where that is empty a key in a file of `state_dir`, which is made when it is
    /// needed first: good for one machine, as nobody else can read it.
    pub fn new(given: &[SecretString], state_dir: &Path) -> Self {
        Self { given: given.to_vec(), file: state_dir.join(FILE), vault: tokio::sync::OnceCell::new() }
    }

    /// The vault with these keys.
    pub(super) async fn vault(&self) -> io::Result<&Vault> {
        self.vault
            .get_or_try_init(|| async {
                if !self.given.is_empty() {
                    return Ok(Vault::new(&self.given));
                }
                let file = self.file.clone();
                let key = tokio::task::spawn_blocking(move || own(&file)).await.map_err(io::Error::other)??;
                Ok(Vault::new(&[key]))
            })
            .await
    }
}

/// The key in `file`, or a new one there.
fn own(file: &Path) -> io::Result<SecretString> {
    let read = || {
        let text = std::fs::read_to_string(file)?;
        match text.trim() {
            "" => Err(io::Error::other("the file with the credentials key is empty")),
            key => Ok(key.into()),
        }
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        read => return read,
    }
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    // A file of tempfile's is its user's alone.
    let folder = file.parent().unwrap_or(Path::new("."));
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    writeln!(new, "{}", BASE64.encode(key))?;
    new.as_file().sync_all()?;
    match new.persist_noclobber(file) {
        Ok(_) => tracing::info!(file = %file.display(), "a key for stored credentials is made"),
        // Another process on this directory was faster.
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error.error),
    }
    read()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_a_given_key_a_machine_makes_one_and_keeps_it_116() {
        let folder = tempfile::tempdir().unwrap();
        let starts = (0..8).map(|_| async {
            let keys = Keys::new(&[], folder.path());
            keys.vault().await.unwrap().seal("text", "here").unwrap()
        });
        let sealed = futures_util::future::join_all(starts).await;
        let later = Keys::new(&[], folder.path());
        for sealed in &sealed {
            assert!(matches!(later.vault().await.unwrap().open(sealed, "here"), super::super::Unsealed::Text(_)));
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = std::fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        let given = Keys::new(&["given".into()], folder.path());
        assert!(matches!(given.vault().await.unwrap().open(&sealed[0], "here"), super::super::Unsealed::Foreign));
    }

    #[tokio::test]
    async fn a_key_that_cannot_be_made_is_an_error_and_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::new(&[], &folder.path().join("later"));
        assert!(keys.vault().await.is_err());
        std::fs::create_dir(folder.path().join("later")).unwrap();
        assert!(keys.vault().await.is_ok());
    }
}
