//! From flags, environment, file and defaults to [`Settings`] (INTERFACE, BEHAVIOURS 30).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use secrecy::ExposeSecret;
use serde_json::{Map, Value};

use super::environment::reference;
use super::schema::{self, Found, Key, Kind};
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
    /// Loads and checks the settings. Errors name file, line, column and key, and no secret's value.
    pub fn load(options: &LoadOptions) -> Result<Loaded, ConfigError> {
        let path = find(options)?;
        let mut reader = Reader { environment: &options.environment, given: BTreeMap::new(), warnings: Vec::new() };
        if let Some(path) = &path {
            let file = path.display().to_string();
            let text = std::fs::read_to_string(path)
                .map_err(|error| ConfigError(format!("{file} cannot be read: {error}")))?;
            reader.file(yaml::parse(&text, &file)?, &file)?;
        }
        for (name, value) in options.environment.with_prefix(PREFIX) {
            let key = name.to_lowercase().replace("__", ".");
            reader.text(&key, value, 1, &format!("environment variable {PREFIX}{name}"))?;
        }
        for (key, value) in &options.overrides {
            reader.text(key, value, 2, &format!("flag for {key}"))?;
        }
        let settings = reader.settings()?;
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

/// A key's value before it is checked.
enum Input {
    /// As the file has it.
    Yaml(Yaml),
    /// Text from outside the file, to be read as the key asks.
    Text(String),
}

struct Given {
    /// The layer: 0 file, 1 environment, 2 flags.
    layer: u8,
    /// Where it stood, for messages.
    origin: String,
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
}

impl Reader<'_> {
    fn file(&mut self, root: Node, file: &str) -> Result<(), ConfigError> {
        match root.value {
            Yaml::Null => Ok(()),
            Yaml::Mapping(members) => self.section("", members, file),
            _ => Err(ConfigError(format!("{file} is no mapping of sections"))),
        }
    }

    fn section(
        &mut self,
        section: &str,
        members: Vec<(serde_saphyr::Spanned<String>, Node)>,
        file: &str,
    ) -> Result<(), ConfigError> {
        for (name, node) in members {
            let at = format!("{file}, line {}, column {}", name.referenced.line(), name.referenced.column());
            let path = if section.is_empty() { name.value.clone() } else { format!("{section}.{}", name.value) };
            match schema::find(&path) {
                Some(Found::Key(key)) => self.leaf(key, false, node, at)?,
                Some(Found::Twin(key)) => self.leaf(key, true, node, at)?,
                Some(Found::Section) => match node.value {
                    Yaml::Null => {}
                    Yaml::Mapping(members) => self.section(&path, members, file)?,
                    _ => return Err(ConfigError(format!("{at}: {path} is no mapping"))),
                },
                None => self.unknown(section, &name.value, &at)?,
            }
        }
        Ok(())
    }

    fn unknown(&mut self, section: &str, name: &str, at: &str) -> Result<(), ConfigError> {
        let names = schema::names_in(section);
        let nearest = schema::nearest(name, names.iter().map(String::as_str));
        if section.is_empty() && nearest.is_none_or(|(_, distance)| distance > 2) {
            self.warnings.push(format!("{at}: section {name} is not one of this program's and is ignored"));
            return Ok(());
        }
        let path = if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") };
        let hint = nearest.map(|(name, _)| format!("; did you mean {name}?")).unwrap_or_default();
        Err(ConfigError(format!("{at}: unknown key {path}{hint}")))
    }

    fn leaf(&mut self, key: &'static Key, twin: bool, node: Node, origin: String) -> Result<(), ConfigError> {
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
        self.give(key, Given { layer: 0, origin, input, twin, unset, referred })
    }

    fn text(&mut self, path: &str, value: &str, layer: u8, origin: &str) -> Result<(), ConfigError> {
        let (key, twin) = match schema::find(path) {
            Some(Found::Key(key)) => (key, false),
            Some(Found::Twin(key)) => (key, true),
            Some(Found::Section) => return Err(ConfigError(format!("{origin}: {path} is a section, not a key"))),
            None => {
                let nearest = schema::nearest(path, schema::KEYS.iter().map(|key| key.path));
                let hint = nearest.map(|(name, _)| format!("; did you mean {name}?")).unwrap_or_default();
                return Err(ConfigError(format!("{origin}: unknown key {path}{hint}")));
            }
        };
        let (origin, input) = (origin.to_owned(), Input::Text(value.to_owned()));
        let given = Given { layer, origin, input, twin, unset: None, referred: false };
        self.give(key, given)
    }

    fn give(&mut self, key: &'static Key, given: Given) -> Result<(), ConfigError> {
        if let Some(other) = self.given.get(key.path)
            && other.layer == given.layer
            && other.twin != given.twin
        {
            let path = key.path;
            return Err(ConfigError(format!("{}: give either {path} or {path}_file, not both", given.origin)));
        }
        self.given.insert(key.path, given);
        Ok(())
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

    fn settings(&mut self) -> Result<Settings, ConfigError> {
        let given = std::mem::take(&mut self.given);
        let postgres_url = given.get(POSTGRES_URL).and_then(|given| given.unset.clone());
        let mut origins = BTreeMap::new();
        let mut root = Map::new();
        for (path, given) in given {
            let Some(Found::Key(key)) = schema::find(path) else { continue };
            let value = if given.twin {
                secret_file(key, given.input, &given.origin, given.referred)?
            } else {
                value(key, given.input, &given.origin, given.referred)?
            };
            origins.insert(path, given.origin);
            put(&mut root, path, value);
        }
        let mut settings: Settings = serde_json::from_value(Value::Object(root))
            .map_err(|error| ConfigError(format!("the configuration cannot be used: {error}")))?;
        self.default_postgres_url(&mut settings, postgres_url.as_deref())?;
        settings.credentials_keys = credentials::keys(self.environment, &mut self.warnings)?;
        let origin = |path: &str| origins.get(path).map(|origin| format!("{origin}: ")).unwrap_or_default();
        if settings.auth.mode == AuthMode::None && !settings.server.listen.ip().is_loopback() {
            return Err(ConfigError(format!(
                "{}auth.mode none lets anybody in, so server.listen must be a loopback address, not {}",
                origin("server.listen"),
                settings.server.listen
            )));
        }
        let url = settings.database.postgres_url.as_ref().map(ExposeSecret::expose_secret);
        if settings.database.backend == Backend::Postgres
            && !url.is_some_and(|url| url.starts_with("postgres://") || url.starts_with("postgresql://"))
        {
            return Err(ConfigError(format!(
                "{}database.postgres_url must begin with postgres:// or postgresql://",
                origin("database.postgres_url")
            )));
        }
        Ok(settings)
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

fn secret_file(key: &Key, input: Input, origin: &str, referred: bool) -> Result<Value, ConfigError> {
    let path = match input {
        Input::Yaml(Yaml::Null) => return Ok(Value::Null),
        Input::Text(path) | Input::Yaml(Yaml::Text(path)) if !path.is_empty() => path,
        _ => return Err(ConfigError(format!("{origin}: {}_file must be the path of a file", key.path))),
    };
    std::fs::read_to_string(Path::new(&path)).map(|text| text.trim_end_matches(['\r', '\n']).into()).map_err(|error| {
        // The secret itself, given where its file belongs, is no path to show.
        let shown = if referred || path.contains("://") { "the file" } else { &path };
        ConfigError(format!("{origin}: {}_file: {shown} cannot be read: {error}", key.path))
    })
}

/// The key's value as JSON; a text from outside the file is read as the key asks.
fn value(key: &Key, input: Input, origin: &str, referred: bool) -> Result<Value, ConfigError> {
    let path = key.path;
    let wrong = |what: &str| Err(ConfigError(format!("{origin}: {path} must be {what}")));
    let not = |value: &dyn std::fmt::Display| if referred { String::new() } else { format!(", not {value}") };
    let input = match input {
        Input::Text(text) if key.nullable && (text.is_empty() || text == "null") => Input::Yaml(Yaml::Null),
        Input::Text(text) => match key.kind {
            Kind::Bool | Kind::Integer(..) | Kind::Names | Kind::List | Kind::Mapping => {
                Input::Yaml(yaml::parse(&text, origin)?.value)
            }
            Kind::Text | Kind::Choice(_) | Kind::Address | Kind::Secret => Input::Yaml(Yaml::Text(text)),
        },
        input @ Input::Yaml(_) => input,
    };
    let Input::Yaml(tree) = input else { unreachable!("texts were turned into trees") };
    if tree == Yaml::Null {
        return match key.kind {
            _ if key.nullable => Ok(Value::Null),
            // A list whose entries are all commented out.
            Kind::List | Kind::Names => Ok(Value::Array(Vec::new())),
            _ => wrong("given a value"),
        };
    }
    match (key.kind, tree) {
        (Kind::Bool, Yaml::Bool(value)) => Ok(value.into()),
        (Kind::Bool, _) => wrong("true or false"),
        (Kind::Integer(min, max), Yaml::Integer(value)) => {
            if (min..=max).contains(&value) {
                Ok(value.into())
            } else {
                wrong(&format!("an integer from {min} to {max}{}", not(&value)))
            }
        }
        (Kind::Integer(min, max), tree) => {
            let given = match tree {
                Yaml::Float(value) => not(&value),
                Yaml::Bool(value) => not(&value),
                _ => String::new(),
            };
            wrong(&format!("an integer from {min} to {max}{given}"))
        }
        (Kind::Text, Yaml::Text(value)) if !value.is_empty() => Ok(value.into()),
        (Kind::Text, _) => wrong("a text that is not empty"),
        (Kind::Secret, Yaml::Text(value)) => Ok(value.into()),
        (Kind::Secret, _) => wrong("a text"),
        (Kind::Choice(words), Yaml::Text(value)) if words.contains(&value.as_str()) => Ok(value.into()),
        (Kind::Choice(words), tree) => {
            let given = if let Yaml::Text(value) = tree { not(&value) } else { String::new() };
            wrong(&format!("one of {}{given}", words.join(", ")))
        }
        (Kind::Address, Yaml::Text(value)) => match value.parse::<std::net::SocketAddr>() {
            Ok(address) => Ok(address.to_string().into()),
            Err(_) => wrong(&format!("an address and a port such as 127.0.0.1:8787{}", not(&value))),
        },
        (Kind::Address, _) => wrong("an address and a port such as 127.0.0.1:8787"),
        (Kind::Names, Yaml::List(nodes)) if nodes.iter().all(|node| matches!(node.value, Yaml::Text(_))) => {
            Ok(Yaml::List(nodes).into_json())
        }
        (Kind::Names, _) => wrong("a list of texts"),
        (Kind::List, tree @ Yaml::List(_)) | (Kind::Mapping, tree @ Yaml::Mapping(_)) => Ok(tree.into_json()),
        (Kind::List, _) => wrong("a list"),
        (Kind::Mapping, _) => wrong("a mapping"),
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
