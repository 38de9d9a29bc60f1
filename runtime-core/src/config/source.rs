//! The extensions file as something that changes: where it is, and what is in it now (BEHAVIOURS 76, 94, 142).

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::canonical::hex;
use super::{ConfigError, Environment, Extensions};

/// Where servers are looked for when nothing names a file.
const PLACES: [&str; 4] =
    ["extensions_config.json", "../extensions_config.json", "mcp_config.json", "../mcp_config.json"];
/// More is no configuration but a mistake.
const MAX_BYTES: u64 = 16 << 20;

/// Where the extensions file comes from.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// A flag's path.
    pub explicit: Option<PathBuf>,
    /// The environment, which may name the file and is what references in it refer to.
    pub environment: Environment,
    /// Where the usual places are looked for.
    pub directory: PathBuf,
}

/// What tells one content from another. Path and hash of the content do, and nothing that a file system may round or set
/// back: an edit is seen within the same second, of the same size, and with an older time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    path: PathBuf,
    sha256: String,
}

/// A file as it was when it was read. It may hold secrets.
#[derive(Clone)]
pub struct Content {
    /// Where.
    pub path: PathBuf,
    /// What tells it from another.
    pub signature: Signature,
    /// The text.
    pub text: String,
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Content").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Source {
    /// The file there is, or the one that is named whether it is there or not; none where nothing is.
    pub fn find(&self) -> Result<Option<PathBuf>, ConfigError> {
        let named = self.explicit.clone().map(|path| (path, "--extensions-config".to_owned()));
        let named = named.or_else(|| {
            let (name, path) = self.environment.twin("EXTENSIONS_CONFIG_PATH")?;
            Some((path.into(), format!("${name}")))
        });
        match named {
            Some((path, _)) if path.is_file() => Ok(Some(path)),
            Some((path, by)) => Err(ConfigError(format!("{by}: there is no file {}", path.display()))),
            None => Ok(PLACES.iter().map(|place| self.directory.join(place)).find(|path| path.is_file())),
        }
    }

    /// What the file says now; none where there is no file.
    pub fn read(&self) -> Result<Option<Content>, ConfigError> {
        self.find()?.map(Content::read).transpose()
    }

    /// Where a first file would be made.
    pub fn default_path(&self) -> PathBuf {
        self.directory.join(PLACES[0])
    }

    /// Reads and parses.
    pub fn load(&self) -> Result<Extensions, ConfigError> {
        self.read()?.map_or_else(|| Ok(Extensions::default()), |content| content.parse(&self.environment))
    }
}

impl Content {
    /// Reads `path`.
    pub fn read(path: PathBuf) -> Result<Self, ConfigError> {
        let wrong = |what: &str| ConfigError(format!("{} cannot be read: {what}", path.display()));
        let size = std::fs::metadata(&path).map_err(|error| wrong(&error.to_string()))?.len();
        if size > MAX_BYTES {
            return Err(wrong(&format!("it has more than {MAX_BYTES} bytes")));
        }
        let bytes = std::fs::read(&path).map_err(|error| wrong(&error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|_| wrong("it is not UTF-8"))?;
        Ok(Self::of(path, text))
    }

    /// What `path` would be with this text.
    pub fn of(path: PathBuf, text: String) -> Self {
        let sha256 = hex(&Sha256::digest(&text));
        Self { signature: Signature { path: path.clone(), sha256 }, path, text }
    }

    /// What it means.
    pub fn parse(&self, environment: &Environment) -> Result<Extensions, ConfigError> {
        let extensions = Extensions::parse(&self.text, &self.path, environment)?;
        Ok(Extensions { signature: Some(self.signature.clone()), ..extensions })
    }
}

impl Extensions {
    /// Loads the servers: `explicit` (a flag), the environment, then the usual places below `directory` (76).
    ///
    /// Finding nothing is no error; a named file that is not there is one.
    pub fn load(explicit: Option<&Path>, environment: &Environment, directory: &Path) -> Result<Self, ConfigError> {
        let source = Source {
            explicit: explicit.map(Path::to_owned),
            environment: environment.clone(),
            directory: directory.to_owned(),
        };
        source.load()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    fn write(path: &Path, text: &str) {
        std::fs::write(path, text).unwrap();
    }

    fn set_back(path: &Path) {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000)).unwrap();
    }

    #[test]
    fn a_change_is_seen_by_content_whatever_size_and_time_say_94() {
        let folder = tempfile::tempdir().unwrap();
        let source = Source { directory: folder.path().to_owned(), ..Source::default() };
        assert!(source.read().unwrap().is_none(), "nothing there");
        let path = folder.path().join("extensions_config.json");
        let signature = || source.read().unwrap().unwrap().signature;
        write(&path, r#"{"mcpServers": {"a": {"command": "x"}}}"#);
        set_back(&path);
        let first = signature();
        assert_eq!(signature(), first);
        write(&path, r#"{"mcpServers": {"b": {"command": "x"}}}"#);
        set_back(&path);
        assert_ne!(signature(), first, "same size, same time");
        write(&path, r#"{"mcpServers": {"a": {"command": "x"}}}"#);
        assert_eq!(signature(), first, "another time alone is no change");
    }

    #[test]
    fn another_path_is_another_file_94() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let source = Source { directory: inner.clone(), ..Source::default() };
        write(&folder.path().join("mcp_config.json"), "{}");
        let first = source.read().unwrap().unwrap().signature;
        write(&inner.join("extensions_config.json"), "{}");
        assert_ne!(source.read().unwrap().unwrap().signature, first);
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_not_the_same_as_before_96() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("extensions_config.json");
        let source = Source { directory: folder.path().to_owned(), ..Source::default() };
        std::fs::write(&path, b"\xff").unwrap();
        assert!(source.read().unwrap_err().0.contains("UTF-8"));
        std::fs::File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert!(source.read().unwrap_err().0.contains("bytes"));
    }
}
