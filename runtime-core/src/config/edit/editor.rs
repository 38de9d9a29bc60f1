//! From a change to a written file: what would not load, or would need a restart, is refused before anything is written.

use std::path::Path;

use serde_json::{Map, Value};

use super::file::{FileError, Locked};
use super::{Change, LaunchPolicy, Refused, apply, changed, shown};
use crate::config::{ConfigError, Content, Drift, Extensions, Frozen, Settings, Source, check};

/// Changes the extensions file of a running process.
#[derive(Debug, Clone)]
pub struct Editor {
    source: Source,
    settings: Settings,
    frozen: Frozen,
    policy: LaunchPolicy,
}

/// Why the file was not changed.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The change itself.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Running tasks depend on what would change (33).
    #[error(transparent)]
    Restart(#[from] Drift),
    /// The file that is there cannot be read.
    #[error(transparent)]
    Unreadable(#[from] ConfigError),
    /// It cannot be written; the text names paths and is for the log (93).
    #[error(transparent)]
    NotWritten(#[from] FileError),
}

impl Editor {
    /// An editor of `source`'s file, in a process that started with `frozen`.
    pub fn new(source: Source, settings: Settings, frozen: Frozen) -> Self {
        let policy = LaunchPolicy::of(&source.environment);
        Self { source, settings, frozen, policy }
    }

    /// The servers as they may be shown. Blocks.
    pub fn shown(&self) -> Result<Map<String, Value>, ConfigError> {
        let document = self.source.read()?.map(|content| document(&content)).transpose()?;
        Ok(shown(&document.unwrap_or_default()))
    }

    /// Makes `change`, and gives the servers as they then are shown. Blocks.
    ///
    /// With `after_restart` also a change that takes effect only when this process is started again is written.
    pub fn edit(&self, change: &Change, after_restart: bool) -> Result<Map<String, Value>, EditError> {
        let (path, there) = match self.source.find()? {
            Some(path) => (path, true),
            None => (self.source.default_path(), false),
        };
        let locked = Locked::wait(&path)?;
        // Only now, since whoever held the lock has written.
        let before = if there { document(&Content::read(path.clone())?)? } else { Value::Object(Map::new()) };
        let next = apply(&before, change, &self.policy)?;
        // As texts: another order is a change too.
        let text = |document: &Value| format!("{document:#}\n");
        if text(&next) != text(&before) {
            let content = Content::of(path, text(&next));
            self.check(&before, &next, &content, after_restart)?;
            locked.write(&content.text)?;
        }
        Ok(shown(&next))
    }

    /// Whether this process could load what is about to be written.
    fn check(&self, before: &Value, next: &Value, content: &Content, after_restart: bool) -> Result<(), EditError> {
        let invalid = |error: ConfigError| Refused::Invalid(plain(&error.summary(), &content.path));
        let extensions = content.parse(&self.source.environment).map_err(invalid)?;
        check(&self.settings, &extensions).map_err(invalid)?;
        for name in changed(before, next) {
            if let Some(why) = skipped(&extensions, next, &name) {
                return Err(Refused::Invalid(plain(why, &content.path)).into());
            }
        }
        if !after_restart {
            self.frozen.check(&extensions)?;
        }
        Ok(())
    }
}

/// Why an enabled server would be left out by loading (79).
fn skipped<'a>(extensions: &'a Extensions, document: &Value, name: &str) -> Option<&'a str> {
    let is_off = document["mcpServers"][name]["enabled"] == Value::Bool(false);
    if is_off || extensions.servers.contains_key(name) {
        return None;
    }
    let about = format!("mcpServers.{name} is skipped");
    let warning = extensions.warnings.iter().find(|warning| warning.contains(&about));
    Some(warning.map_or("the server would be skipped", String::as_str))
}

/// An error's text without the path and the place in a file that was not written: they say nothing to who sent the change.
fn plain(error: &str, path: &Path) -> String {
    let file = path.display().to_string();
    let mut parts = error.split(&file);
    let before = parts.next().unwrap_or_default();
    let after = parts.map(|part| part.split_once(": ").map_or(part, |(_, what)| what));
    [before].into_iter().chain(after).collect()
}

fn document(content: &Content) -> Result<Value, ConfigError> {
    // Parsed as loading does, for the same words about what is wrong.
    let text = content.text.trim_start_matches('\u{feff}');
    let value: Value = serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        ConfigError(format!("{}, line {line}, column {column}: not usable as JSON", content.path.display()))
    })?;
    match &value {
        Value::Object(root)
            if root.get("mcpServers").is_none_or(|servers| servers.is_object() || servers.is_null()) =>
        {
            Ok(value)
        }
        _ => Err(ConfigError(format!("{}: mcpServers is no object of servers", content.path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct Site {
        folder: tempfile::TempDir,
        editor: Editor,
    }

    /// An editor of a file with this document, started with it.
    fn site(document: &Value) -> Site {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("extensions_config.json"), document.to_string()).unwrap();
        let source = Source { directory: folder.path().to_owned(), ..Source::default() };
        let frozen = Frozen::of(&source.load().unwrap());
        Site { editor: Editor::new(source, Settings::default(), frozen), folder }
    }

    fn text(site: &Site) -> String {
        std::fs::read_to_string(site.folder.path().join("extensions_config.json")).unwrap()
    }

    fn put(name: &str, server: Value) -> Change {
        Change::Put { name: name.into(), server }
    }

    fn tasks(url: &str) -> Value {
        json!({"type": "http", "url": url, "task_toolsets": [
            {"name": "r", "submit_tool": "a", "status_tool": "b", "cancel_tool": "c"}]})
    }

    #[test]
    fn what_would_not_load_is_refused_before_it_is_written_88() {
        let site = site(&json!({"mcpServers": {"old": {"type": "http"}}}));
        let before = text(&site);
        for (server, named) in [
            (json!({"command": "npx", "routing": {"weight": 1}}), "mcpServers.s.routing"),
            (json!({"type": "http", "url": "ftp://h"}), "mcpServers.s is skipped: its url"),
            (json!({"type": "http", "url": "http://h", "tool_call_timeout": 0}), "mcpServers.s.tool_call_timeout"),
            (json!({"type": "http", "url": "http://h", "oauth": {}}), "mcpServers.s.oauth"),
        ] {
            let refused = site.editor.edit(&put("s", server), false).unwrap_err();
            assert!(matches!(refused, EditError::Refused(Refused::Invalid(_))), "{refused:?}");
            let said = refused.to_string();
            assert!(said.contains(named) && !said.contains(site.folder.path().to_str().unwrap()), "{said}");
        }
        assert_eq!(text(&site), before);
        let off = json!({"type": "http", "url": "http://h", "enabled": false, "oauth": {"client_secret": "s"}});
        let shown = site.editor.edit(&put("s", off), false).unwrap();
        assert_eq!(shown["s"]["oauth"], json!({"client_secret": null}), "kept while it is off");
        assert!(text(&site).contains(r#""old""#), "what was unusable before is no reason to refuse");
    }

    #[test]
    fn what_running_tasks_depend_on_needs_a_restart_33() {
        let site = site(&json!({"mcpServers": {"s": tasks("http://h")}}));
        let before = text(&site);
        let refused = site.editor.edit(&put("s", tasks("http://other")), false).unwrap_err();
        assert!(matches!(refused, EditError::Restart(_)) && refused.to_string().contains("mcpServers.s"), "{refused}");
        assert_eq!(text(&site), before);
        let mut described = tasks("http://h");
        described["description"] = json!("d");
        site.editor.edit(&put("s", described), false).unwrap();
        site.editor.edit(&put("s", tasks("http://other")), true).unwrap();
        assert!(text(&site).contains("http://other"), "for the next start");
    }

    #[test]
    fn a_change_that_changes_nothing_writes_nothing_and_a_first_one_makes_the_file_92() {
        let site = site(&json!({"mcpServers": {"s": {"command": "npx", "enabled": true}}}));
        let before = text(&site);
        site.editor.edit(&Change::Enable { name: "s".into(), enabled: true }, false).unwrap();
        assert_eq!(text(&site), before);
        std::fs::remove_file(site.folder.path().join("extensions_config.json")).unwrap();
        assert!(site.editor.shown().unwrap().is_empty());
        site.editor.edit(&put("s", json!({"command": "npx"})), false).unwrap();
        assert_eq!(text(&site), "{\n  \"mcpServers\": {\n    \"s\": {\n      \"command\": \"npx\"\n    }\n  }\n}\n");
    }

    #[test]
    fn a_file_that_is_broken_is_left_to_its_operator() {
        let site = site(&json!({}));
        let path = site.folder.path().join("extensions_config.json");
        for broken in ["{", "[]", r#"{"mcpServers": []}"#] {
            std::fs::write(&path, broken).unwrap();
            let refused = site.editor.edit(&put("s", json!({"command": "npx"})), false).unwrap_err();
            assert!(matches!(refused, EditError::Unreadable(_)), "{refused:?}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), broken);
            assert!(site.editor.shown().is_err());
        }
        let plain = |text: &str| plain(text, Path::new("/a/b"));
        assert_eq!(plain("/a/b: x is wrong"), "x is wrong");
        assert_eq!(plain("/a/b, line 1, column 2: x: no; /a/b: y"), "x: no; y");
    }
}
