//! Users' own connections while the daemon runs: their files, the ways to their servers, and the tools that only they see
//! (BEHAVIOURS T).

mod user;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::{Guardrail, Tool};
use crate::config::edit::{EditError, PersonalChange, Seal, Stamp, UserFiles};
use crate::config::{ConfigError, Connection, Environment, Extensions, PersonalConnections, Settings};
use crate::task::is_personal;
use crate::upstream::{Connected, Connections, Factory, NotConnected, Reach, SharedUpstream};
use user::User;

/// How long what was seen of a user's file is good for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often files of users are looked for that others have made.
const SEARCH_EVERY: Duration = Duration::from_secs(10);
/// How long a user's list of tools waits for their own servers.
const PATIENCE: Duration = Duration::from_secs(10);

/// A user's connections as they are shown.
#[derive(Debug, Clone, Default)]
pub struct Shown {
    /// Their definitions, secrets masked.
    pub servers: Map<String, Value>,
    /// The names under which they run.
    pub runtime_names: Map<String, Value>,
}

/// All users' connections.
pub struct Personal {
    files: UserFiles,
    settings: Settings,
    guardrail: Guardrail,
    factory: Factory,
    users: Mutex<HashMap<String, Arc<User>>>,
    /// The names of those with task toolsets.
    names: RwLock<Arc<[String]>>,
}

impl std::fmt::Debug for Personal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Personal").field("names", &self.names().len()).finish_non_exhaustive()
    }
}

impl Personal {
    /// The connections that lie in `state_dir`, sealed where there is something to seal them with; connects to none of them
    /// yet. Blocks.
    pub fn new(
        state_dir: &Path,
        settings: &Settings,
        environment: &Environment,
        seal: Option<Arc<dyn Seal>>,
        factory: &Factory,
    ) -> Self {
        let personal = Self {
            files: UserFiles::new(state_dir.join("users"), settings.clone(), environment, seal),
            settings: settings.clone(),
            guardrail: Guardrail::new(&settings.guardrails),
            // What operators' interceptors add is the deployment's, and a user's server may be anybody's.
            factory: factory.for_users(),
            users: Mutex::default(),
            names: RwLock::new(Arc::new([])),
        };
        for problem in personal.search() {
            tracing::error!(problem, "a user's connections cannot be read");
        }
        personal
    }

    /// A user's connections as they may be shown.
    pub async fn shown(self: &Arc<Self>, user: &str) -> Result<Shown, EditError> {
        let (personal, user) = (Arc::clone(self), user.to_owned());
        super::live::blocking(move || match personal.files.find(&user) {
            Ok(Some(connections)) => Ok(shown(&connections)),
            Ok(None) => Ok(Shown::default()),
            Err(error) => Err(EditError::from(error)),
        })
        .await
    }

    /// Changes a user's connections, and takes the change in; the connections as they are then shown.
    pub async fn edit(self: &Arc<Self>, user: &str, change: PersonalChange, admin: bool) -> Result<Shown, EditError> {
        let (personal, user) = (Arc::clone(self), user.to_owned());
        super::live::blocking(move || {
            let verify = |connection: &Connection| {
                let key = format!("mcpServers.{}.", connection.config.name);
                personal.open(connection).map(drop).map_err(|error| error.0.replace(&key, ""))
            };
            let connections = personal.files.edit(&user, &change, admin, verify)?;
            let shown = shown(&connections);
            // What the file says by now may be another's: the next look tells.
            personal.take(&user, Some(connections), None);
            Ok(shown)
        })
        .await
    }

    /// The tools of a user's own servers.
    pub async fn tools(&self, user: &str) -> Vec<Arc<Tool>> {
        match self.user(user) {
            Some(user) => user.tools(PATIENCE).await,
            None => Vec::new(),
        }
    }

    /// The tool of a user's own with this visible name.
    pub async fn find_tool(&self, user: &str, name: &str) -> Option<Arc<Tool>> {
        self.user(user)?.find_tool(name, PATIENCE).await
    }

    /// Whether the guardrail lets a toolset of a personal connection be submitted to (130).
    pub fn allows_submit(&self, server: &str, user: &str, task: &str) -> bool {
        let Ok(connected) = self.find(server, user) else { return true };
        let mut toolsets = connected.config.toolsets.iter().filter(|toolset| toolset.name == task);
        toolsets.all(|toolset| self.guardrail.allows(&format!("{server}_{}", toolset.submit_tool)))
    }

    /// Ends all sessions.
    pub async fn close(&self) {
        let users: Vec<_> = self.users().drain().map(|(_, user)| user).collect();
        futures_util::future::join_all(users.iter().map(|user| user.close())).await;
    }

    fn users(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<User>>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, connection: &Connection) -> Result<SharedUpstream, ConfigError> {
        let reach = if connection.trusted { Reach::Anywhere } else { Reach::Public };
        self.factory.within(reach).open(&connection.config, &Extensions::default())
    }

    /// The user as their file has them now; none where they have no file here.
    fn user(&self, user: &str) -> Option<Arc<User>> {
        let known = self.users().get(user).cloned();
        let fresh = known.as_ref().is_some_and(|known| known.looked_within(LOOK_EVERY));
        if fresh {
            return known;
        }
        let stamp = self.files.stamp(user);
        match known {
            Some(known) if known.stamp == stamp => {
                known.look();
                Some(known)
            }
            None if stamp.is_none() => None,
            known => match self.files.find(user) {
                Ok(connections) => self.take(user, connections, stamp),
                Err(error) => {
                    tracing::error!(%error, "a user's connections cannot be read; they are as they were");
                    known.inspect(|known| known.look())
                }
            },
        }
    }

    /// Puts a user's connections into effect, read from a file with this stamp.
    fn take(&self, user: &str, connections: Option<PersonalConnections>, stamp: Option<Stamp>) -> Option<Arc<User>> {
        let mut users = self.users();
        let taken = connections.map(|connections| self.put(&mut users, connections, stamp));
        if taken.is_none()
            && let Some(old) = users.remove(user)
        {
            old.retire_all();
        }
        self.rename(&users);
        taken
    }

    fn put(
        &self,
        users: &mut HashMap<String, Arc<User>>,
        connections: PersonalConnections,
        stamp: Option<Stamp>,
    ) -> Arc<User> {
        let name = connections.user().to_owned();
        let next = User::new(connections, stamp, users.get(&name), &self.settings, |one| self.open(one));
        let next = Arc::new(next);
        users.insert(name, Arc::clone(&next));
        next
    }

    fn rename(&self, users: &HashMap<String, Arc<User>>) {
        let names = users.values().flat_map(|user| user.names_with_toolsets()).collect();
        *self.names.write().unwrap_or_else(PoisonError::into_inner) = names;
    }

    /// Looks for users whose files others have made: a process that shares the folder, or an earlier life of this one. Gives
    /// why some of them cannot be read.
    fn search(&self) -> Vec<String> {
        let (all, problems) = self.files.all();
        // What another process changed for a user who is known here counts for claims too.
        let known: Vec<String> = self.users().keys().cloned().collect();
        known.iter().for_each(|user| drop(self.user(user)));
        let mut users = self.users();
        let known = users.len();
        for connections in all {
            if !users.contains_key(connections.user()) {
                self.put(&mut users, connections, None);
            }
        }
        if users.len() > known {
            self.rename(&users);
        }
        problems
    }

    /// Looks for them every ten seconds until `stop`.
    pub async fn run(self: &Arc<Self>, stop: &CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(SEARCH_EVERY)).await.is_some() {
            let personal = Arc::clone(self);
            // One that panics is tried again.
            let _ = tokio::task::spawn_blocking(move || personal.search()).await;
        }
    }
}

impl Connections for Personal {
    fn find(&self, server: &str, user: &str) -> Result<Connected, NotConnected> {
        let elsewhere = || NotConnected::Elsewhere(format!("the personal connection {server} is not known here"));
        if !is_personal(server) {
            return Err(elsewhere());
        }
        self.user(user).ok_or_else(elsewhere)?.find(server)
    }

    fn names(&self) -> Arc<[String]> {
        Arc::clone(&self.names.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn shown(connections: &PersonalConnections) -> Shown {
    Shown {
        servers: UserFiles::shown(connections),
        runtime_names: connections.runtime_names().map(|(name, runtime)| (name.to_owned(), runtime.into())).collect(),
    }
}

#[cfg(test)]
mod tests;
