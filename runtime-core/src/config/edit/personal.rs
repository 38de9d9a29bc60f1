//! Users' own connections on disk: one file a user, theirs alone (BEHAVIOURS 124, 126, 141).

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::file::{FileError, Locked};
use super::{Change, EditError, LaunchPolicy, Refused, apply, at, changed, shown};
use crate::config::canonical::hex;
use crate::config::personal::{self, Connection, Connections};
use crate::config::{ConfigError, Environment, Settings};

/// Most bytes of a user's file.
const MAX_BYTES: usize = 256 << 10;

/// What a user asks for.
#[derive(Clone)]
pub enum PersonalChange {
    /// A connection of a name that is not taken.
    Add {
        /// Its name.
        name: String,
        /// Its definition.
        server: Value,
    },
    /// Anything that administrators may ask for of the extensions file.
    Edit(Change),
}

/// Encrypts what lies in a file (141).
pub trait Seal: std::fmt::Debug + Send + Sync {
    /// The text as it may lie around, for the place that `context` names.
    fn seal(&self, text: &str, context: &str) -> Option<String>;

    /// The text that was sealed for that place; none where it was sealed with another key.
    fn open(&self, sealed: &str, context: &str) -> Option<SecretString>;
}

/// A sealed file.
#[derive(Serialize, Deserialize)]
struct Sealed {
    sealed: String,
}

/// The folder with every user's file.
#[derive(Debug, Clone)]
pub struct UserFiles {
    folder: PathBuf,
    settings: Settings,
    policy: LaunchPolicy,
    seal: Option<Arc<dyn Seal>>,
}

impl UserFiles {
    /// The files below `folder`, sealed where there is something to seal them with; nothing is made yet.
    pub fn new(folder: PathBuf, settings: Settings, environment: &Environment, seal: Option<Arc<dyn Seal>>) -> Self {
        Self { folder, settings, policy: LaunchPolicy::of(environment), seal }
    }

    /// Where a user's file is, whether it is there or not.
    fn path(&self, user: &str) -> PathBuf {
        file_in(&self.folder.join(hex(&Sha256::digest(user))))
    }

    /// What tells a user's file from what it was; none where there is none. Blocks.
    pub fn stamp(&self, user: &str) -> Option<Stamp> {
        stamp(&self.path(user))
    }

    /// A user's connections; none where they have no file here. Blocks.
    pub fn find(&self, user: &str) -> Result<Option<Connections>, ConfigError> {
        let found = self.read(&self.path(user))?;
        match found {
            Some(found) if found.user() != user => Err(ConfigError("the file is another user's".to_owned())),
            found => Ok(found),
        }
    }

    /// Everybody's, and why some of them cannot be read. Blocks.
    pub fn all(&self) -> (Vec<Connections>, Vec<String>) {
        let (mut found, mut problems) = (Vec::new(), Vec::new());
        for folder in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            match self.read(&file_in(&folder.path())) {
                Ok(connections) => found.extend(connections),
                Err(error) => problems.push(error.0),
            }
        }
        (found, problems)
    }

    fn read(&self, path: &Path) -> Result<Option<Connections>, ConfigError> {
        let unusable = |what: &str| ConfigError(format!("{}: {what}", path.display()));
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unusable(&error.to_string())),
        };
        let text = match serde_json::from_str::<Sealed>(&text) {
            Ok(Sealed { sealed }) => {
                let opened = self.seal.as_ref().and_then(|seal| seal.open(&sealed, &place(path)));
                let opened = opened.ok_or_else(|| unusable("it is sealed with another MCP_TASKD_CREDENTIALS_KEY"))?;
                opened.expose_secret().to_owned()
            }
            // Written while there was no key.
            Err(_) => text,
        };
        Connections::read(&text).map(Some).map_err(unusable)
    }

    fn write(&self, locked: &Locked, path: &Path, text: String) -> Result<(), EditError> {
        let written = match &self.seal {
            None => Some(text),
            Some(seal) => {
                seal.seal(&text, &place(path)).and_then(|sealed| serde_json::to_string(&Sealed { sealed }).ok())
            }
        };
        let written = written.ok_or_else(|| FileError::Io {
            path: path.to_owned(),
            error: std::io::Error::other("it cannot be sealed"),
        })?;
        Ok(locked.write(&written)?)
    }

    /// The connections as they may be shown (84, 85).
    pub fn shown(connections: &Connections) -> Map<String, Value> {
        shown(&document(connections))
    }

    /// Makes a change for `user`; the connections as they then are. `admin` says whether they may point anywhere, and
    /// `verify` has the last word on a connection that is switched on. Blocks.
    pub fn edit(
        &self,
        user: &str,
        change: &PersonalChange,
        admin: bool,
        verify: impl Fn(&Connection) -> Result<(), String>,
    ) -> Result<Connections, EditError> {
        let path = self.path(user);
        create(&path)?;
        let locked = Locked::wait(&path)?;
        // Only now, since whoever held the lock has written.
        let before = self.find(user)?.unwrap_or_else(|| Connections::none_of(user));
        let mut next = edited(&before, change, admin, &self.policy)?;
        for name in changed(&document(&before), &document(&next)) {
            let server = &next.servers[&name];
            if server["enabled"] != Value::Bool(false) {
                let invalid = |why: String| Refused::Invalid(format!("{}: {why}", at(&name)));
                let connection = next.connection(&name, server, &self.settings).map_err(invalid)?;
                verify(&connection).map_err(|why| Refused::Forbidden(format!("{}: {why}", at(&name))))?;
            }
        }
        next.issue();
        let text = next.text();
        if text.len() > MAX_BYTES {
            return Err(Refused::Invalid(format!("a user's connections may have at most {MAX_BYTES} bytes")).into());
        }
        if text != before.text() {
            self.write(&locked, &path, text)?;
        }
        Ok(next)
    }
}

fn file_in(folder: &Path) -> PathBuf {
    folder.join("integrations").join("mcp.json")
}

/// What a sealed file belongs to: the same text in another user's place cannot be opened.
fn place(file: &Path) -> String {
    let user = file.ancestors().nth(2).and_then(Path::file_name).unwrap_or_default();
    format!("personal connections {}", user.to_string_lossy())
}

/// What changes with every write of a file: time, size and number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp(Option<std::time::SystemTime>, u64, u64);

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(path).ok()?;
    #[cfg(unix)]
    let number = std::os::unix::fs::MetadataExt::ino(&metadata);
    #[cfg(not(unix))]
    let number = 0;
    Some(Stamp(metadata.modified().ok(), metadata.len(), number))
}

fn document(connections: &Connections) -> Value {
    json!({"mcpServers": connections.servers})
}

/// The connections after `change` (124, 126).
fn edited(
    before: &Connections,
    change: &PersonalChange,
    admin: bool,
    policy: &LaunchPolicy,
) -> Result<Connections, Refused> {
    let change = match change {
        PersonalChange::Add { name, .. } if before.servers.contains_key(name) => {
            return Err(Refused::Exists(name.clone()));
        }
        PersonalChange::Add { name, server } => &Change::Put { name: name.clone(), server: server.clone() },
        PersonalChange::Edit(change) => change,
    };
    if let Change::Put { name, server } = change
        && !admin
    {
        let forbidden = |why| Refused::Forbidden(format!("{}: {why}", at(name)));
        personal::restricted(server).map_err(forbidden)?;
    }
    let mut stored = document(before);
    if let Change::Put { name, .. } = change
        && !admin
        && before.trusted.contains(name)
        && let Some(servers) = stored["mcpServers"].as_object_mut()
    {
        // Nobody else may send what an administrator stored to an address of their own.
        servers.shift_remove(name);
    }
    let next = apply(&stored, change, policy)?;
    let Value::Object(servers) = next["mcpServers"].clone() else { return Err(Refused::Invalid(String::new())) };
    if servers.len() > personal::MAX_SERVERS {
        let why = format!("a user may have at most {} connections", personal::MAX_SERVERS);
        return Err(Refused::Invalid(why));
    }
    let mut trusted: BTreeSet<String> =
        before.trusted.iter().filter(|name| servers.contains_key(*name)).cloned().collect();
    if let Change::Put { name, .. } = change {
        if admin {
            trusted.insert(name.clone());
        } else {
            trusted.remove(name);
        }
    }
    Ok(Connections { servers, trusted, ..before.clone() })
}

/// Makes the folders of a user's file: theirs alone.
fn create(path: &Path) -> Result<(), FileError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|error| FileError::Io { path: folder.to_owned(), error })
}

#[cfg(test)]
#[path = "personal_tests.rs"]
mod tests;
