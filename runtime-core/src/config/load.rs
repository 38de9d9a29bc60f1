//! From flags, environment, file and defaults to [`Settings`] (INTERFACE, BEHAVIOURS 30).

use std::collections::BTreeMap;
use std::path::PathBuf;

use secrecy::ExposeSecret;
use serde_json::{Map, Value};

use super::environment::reference;
use super::place::{Mistake, Place, refusal};
use super::schema::{self, Found, Key};
use super::value::{Input, Origin, secret_file, value};
use super::yaml::{self, Node, Yaml};
use super::{AuthMode, Backend, ConfigError, Environment, Settings, credentials};

/// Environment variables that set keys start with this; levels are parted by two underscores.
const PREFIX: &str = "MCP_TASKD__";
const POSTGRES_URL: &str = "database.postgres_url";

/// Where settings come from. Flags may hold secrets, so that there is no `Debug`.
#[derive(Clone, Default)]
pub struct LoadOptions {
    /// `--config`.
    pub path: Option<PathBuf>,
    /// Where `config.yaml` is looked for; the working directory where empty.
    pub directory: PathBuf,
    /// The environment.
    pub environment: Environment,
    /// Dotted keys set by flags, which win over everything.
    pub overrides: Vec<(String, String)>,
}

/// Settings and how they came about.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// The file that was read, if any.
    pub path: Option<PathBuf>,
    /// What was odd but usable.
    pub warnings: Vec<String>,
}

impl Settings {
    /// Loads and checks the settings. An error tells everything that is wrong, each with file, line, column and key, the
    /// line itself, and no secret's value.
    pub fn load(options: &LoadOptions) -> Result<Loaded, ConfigError> {
        let path = find(options)?;
        let file = path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        let text = match &path {
            None => String::new(),
            Some(path) => {
                std::fs::read_to_string(path).map_err(|error| ConfigError(format!("{file} cannot be read: {error}")))?
            }
        };
        let mut reader = Reader {
            environment: &options.environment,
            given: BTreeMap::new(),
            warnings: Vec::new(),
            mistakes: Vec::new(),
        };
        match yaml::parse(&text, &file) {
            Ok(root) => reader.file(root, &file),
            Err(mistake) => reader.mistakes.push(mistake),
        }
        for (name, value) in options.environment.with_prefix(PREFIX) {
            let key = name.to_lowercase().replace("__", ".");
            reader.text(&key, value, 1, &format!("environment variable {PREFIX}{name}"));
        }
        for (key, value) in &options.overrides {
            reader.text(key, value, 2, &format!("flag for {key}"));
        }
        let settings = reader.settings().map_err(|mistakes| refusal(&mistakes, &text))?;
        Ok(Loaded { settings, path, warnings: reader.warnings })
    }
}

fn find(options: &LoadOptions) -> Result<Option<PathBuf>, ConfigError> {
    let explicit =
        options.path.clone().map(|path| (path, "--config")).or_else(|| {
            options.environment.non_empty("MCP_TASKD_CONFIG").map(|path| (path.into(), "$MCP_TASKD_CONFIG"))
        });
    if let Some((path, by)) = explicit {
        return if path.is_file() {
            Ok(Some(path))
        } else {
            Err(ConfigError(format!("{by}: there is no file {}", path.display())))
        };
    }
    let path = options.directory.join("config.yaml");
    Ok(path.is_file().then_some(path))
}

struct Given {
    /// The layer: 0 file, 1 environment, 2 flags.
    layer: u8,
    origin: Origin,
    input: Input,
    /// Whether it names a file that holds the value.
    twin: bool,
    /// The unset variable that it refers to.
    unset: Option<String>,
    /// Whether it is a variable's value, which may be a secret at the wrong place: messages do not show it.
    referred: bool,
}

struct Reader<'a> {
    environment: &'a Environment,
    given: BTreeMap<&'static str, Given>,
    warnings: Vec<String>,
    mistakes: Vec<Mistake>,
}

impl Reader<'_> {
    fn file(&mut self, root: Node, file: &str) {
        match root.value {
            Yaml::Null => {}
            Yaml::Mapping(members) => self.section("", members, file),
            _ => self.mistakes.push(Mistake::new(file, None, "it is no mapping of sections")),
        }
    }

    fn section(&mut self, section: &str, members: Vec<(serde_saphyr::Spanned<String>, Node)>, file: &str) {
        for (name, node) in members {
            let origin = Origin::new(file, Some(Place::from(name.referenced)));
            let path = if section.is_empty() { name.value.clone() } else { format!("{section}.{}", name.value) };
            match schema::find(&path) {
                Some(Found::Key(key)) => self.leaf(key, false, node, origin),
                Some(Found::Twin(key)) => self.leaf(key, true, node, origin),
                Some(Found::Section) => match node.value {
                    Yaml::Null => {}
                    Yaml::Mapping(members) => self.section(&path, members, file),
                    _ => self.mistakes.push(origin.mistake(format!("{path} is no mapping"))),
                },
                None => self.unknown(section, &name.value, &origin),
            }
        }
    }

    fn unknown(&mut self, section: &str, name: &str, origin: &Origin) {
        let names = schema::names_in(section);
        let names = || names.iter().map(String::as_str);
        if section.is_empty() && schema::hint(name, names(), schema::SLIP).is_empty() {
            let what = format!("section {name} is not one of this program's and is ignored");
            self.warnings.push(origin.mistake(what).said());
            return;
        }
        let path = if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") };
        let hint = schema::hint(name, names(), usize::MAX);
        self.mistakes.push(origin.mistake(format!("unknown key {path}{hint}")));
    }

    fn leaf(&mut self, key: &'static Key, twin: bool, node: Node, origin: Origin) {
        let (mut unset, mut referred) = (None, false);
        let input = match node.value {
            Yaml::Text(text) => match reference(&text) {
                Some(name) => {
                    referred = true;
                    Input::Text(self.resolve(name, key.path, &mut unset))
                }
                None => Input::Yaml(Yaml::Text(text)),
            },
            tree => Input::Yaml(self.resolve_in(tree, key.path)),
        };
        self.give(key, Given { layer: 0, origin, input, twin, unset, referred });
    }

    fn text(&mut self, path: &str, value: &str, layer: u8, origin: &str) {
        let origin = Origin::new(origin, None);
        let (key, twin) = match schema::find(path) {
            Some(Found::Key(key)) => (key, false),
            Some(Found::Twin(key)) => (key, true),
            Some(Found::Section) => {
                return self.mistakes.push(origin.mistake(format!("{path} is a section, not a key")));
            }
            None => {
                let hint = schema::hint(path, schema::KEYS.iter().map(|key| key.path), usize::MAX);
                return self.mistakes.push(origin.mistake(format!("unknown key {path}{hint}")));
            }
        };
        let input = Input::Text(value.to_owned());
        self.give(key, Given { layer, origin, input, twin, unset: None, referred: false });
    }

    fn give(&mut self, key: &'static Key, given: Given) {
        if let Some(other) = self.given.get(key.path)
            && other.layer == given.layer
            && other.twin != given.twin
        {
            let path = key.path;
            self.mistakes.push(given.origin.mistake(format!("give either {path} or {path}_file, not both")));
        }
        self.given.insert(key.path, given);
    }

    fn resolve(&mut self, name: &str, path: &str, unset: &mut Option<String>) -> String {
        if let Some(value) = self.environment.get(name) {
            return value.to_owned();
        }
        // Whether an unset $DATABASE_URL matters depends on the backend; that is judged later.
        if path != POSTGRES_URL {
            self.warnings.push(format!("{path}: environment variable {name} is not set; using an empty string"));
        }
        *unset = Some(name.to_owned());
        String::new()
    }

    fn resolve_in(&mut self, tree: Yaml, path: &str) -> Yaml {
        match tree {
            Yaml::Text(text) => match reference(&text) {
                Some(name) => Yaml::Text(self.resolve(name, path, &mut None)),
                None => Yaml::Text(text),
            },
            Yaml::List(mut nodes) => {
                for node in &mut nodes {
                    node.value = self.resolve_in(std::mem::replace(&mut node.value, Yaml::Null), path);
                }
                Yaml::List(nodes)
            }
            Yaml::Mapping(mut members) => {
                for (_, node) in &mut members {
                    node.value = self.resolve_in(std::mem::replace(&mut node.value, Yaml::Null), path);
                }
                Yaml::Mapping(members)
            }
            scalar => scalar,
        }
    }

    /// The settings, or all that is wrong. What several keys together get wrong is told once each of them is right.
    fn settings(&mut self) -> Result<Settings, Vec<Mistake>> {
        let given = std::mem::take(&mut self.given);
        let postgres_url = given.get(POSTGRES_URL).and_then(|given| given.unset.clone());
        let mut origins = BTreeMap::new();
        let mut root = Map::new();
        for (path, given) in given {
            let Some(Found::Key(key)) = schema::find(path) else { continue };
            let read = if given.twin { secret_file } else { value };
            match read(key, given.input, &given.origin, given.referred) {
                Ok(value) => put(&mut root, path, value),
                Err(mistake) => self.mistakes.push(mistake),
            }
            origins.insert(path, given.origin);
        }
        if !self.mistakes.is_empty() {
            return Err(std::mem::take(&mut self.mistakes));
        }
        let mut settings: Settings = serde_json::from_value(Value::Object(root))
            .map_err(|error| vec![ConfigError(format!("the configuration cannot be used: {error}")).into()])?;
        self.default_postgres_url(&mut settings, postgres_url.as_deref()).map_err(|error| vec![error.into()])?;
        settings.credentials_keys =
            credentials::keys(self.environment, &mut self.warnings).map_err(|error| vec![error.into()])?;
        let together = together(&settings, |path| origins.get(path).cloned().unwrap_or_default());
        if together.is_empty() { Ok(settings) } else { Err(together) }
    }

    /// `$DATABASE_URL` is the default, and needed only where it is used.
    fn default_postgres_url(&self, settings: &mut Settings, unset: Option<&str>) -> Result<(), ConfigError> {
        if settings.database.backend != Backend::Postgres || settings.database.postgres_url.is_some() {
            return Ok(());
        }
        settings.database.postgres_url = self.environment.non_empty("DATABASE_URL").map(Into::into);
        if settings.database.postgres_url.is_none() {
            let why = format!("environment variable {} is not set", unset.unwrap_or("DATABASE_URL"));
            return Err(ConfigError(format!("database.postgres_url is needed by database.backend postgres: {why}")));
        }
        Ok(())
    }
}

/// What keys that are right by themselves get wrong together.
fn together(settings: &Settings, origin: impl Fn(&str) -> Origin) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    if settings.auth.mode == AuthMode::None && !settings.server.listen.ip().is_loopback() {
        mistakes.push(origin("server.listen").mistake(format!(
            "auth.mode none lets anybody in, so server.listen must be a loopback address, not {}",
            settings.server.listen
        )));
    }
    let url = settings.database.postgres_url.as_ref().map(ExposeSecret::expose_secret);
    if settings.database.backend == Backend::Postgres
        && !url.is_some_and(|url| url.starts_with("postgres://") || url.starts_with("postgresql://"))
    {
        let what = "database.postgres_url must begin with postgres:// or postgresql://";
        mistakes.push(origin(POSTGRES_URL).mistake(what));
    }
    mistakes
}

fn put(root: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            root.insert(path.to_owned(), value);
        }
        Some((section, rest)) => {
            let inner = root.entry(section).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                put(inner, rest, value);
            }
        }
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
