//! What an administrator may have started over the API (BEHAVIOURS 91): commands, their arguments, their environment.
//!
//! The file itself is the operator's and may start anything; what comes by HTTP may start a package by npx or uvx, and what
//! the operator allows besides. No text quotes a value.

mod flags;

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::super::environment::Environment;

/// Started without being asked about.
const LAUNCHERS: [&str; 2] = ["npx", "uvx"];

/// Variables that make a program load or run code of somebody else's. Parted by blanks; a star stands for any
/// ending.
const INJECTING: &str = "BASH_ENV BASH_FUNC_* BUN_OPTIONS CLASSPATH DENO_DIR DYLD_* ENV GCONV_PATH GIT_ASKPASS GIT_CONFIG* GIT_EDITOR \
    GIT_EXEC_PATH GIT_SSH GIT_SSH_COMMAND IFS JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS LD_* NODE_EXTRA_CA_CERTS \
    NODE_OPTIONS NODE_PATH NODE_REPL_EXTERNAL_MODULE NPM_CONFIG_CALL NPM_CONFIG_GIT NPM_CONFIG_GLOBALCONFIG \
    NPM_CONFIG_INIT_MODULE NPM_CONFIG_NODE_OPTIONS NPM_CONFIG_PREFIX NPM_CONFIG_SCRIPT_SHELL NPM_CONFIG_SHELL \
    NPM_CONFIG_USERCONFIG OPENSSL_CONF OPENSSL_MODULES PATH PERL5DB PERL5LIB PERL5OPT PERLLIB PROMPT_COMMAND \
    PYTHONBREAKPOINT PYTHONHOME PYTHONINSPECT PYTHONPATH PYTHONSTARTUP PYTHONUSERBASE RUBYLIB RUBYOPT SHELLOPTS \
    UV_CONFIG_FILE UV_PYTHON* _JAVA_OPTIONS";

/// Which programs may be started.
#[derive(Debug, Clone)]
pub struct LaunchPolicy {
    allowed: BTreeSet<String>,
}

impl LaunchPolicy {
    /// npx, uvx and what `MCP_TASKD_MCP_STDIO_COMMAND_ALLOWLIST` (or its twin) names, parted by commas.
    pub fn of(environment: &Environment) -> Self {
        let further = super::allowed_commands(environment).unwrap_or_default();
        let names = LAUNCHERS.into_iter().chain(further.split(',').map(str::trim)).filter(|name| !name.is_empty());
        Self { allowed: names.map(str::to_owned).collect() }
    }

    /// Refuses a stdio server that must not be started; the error starts with the key. Other servers pass.
    pub(super) fn check(&self, server: &Map<String, Value>) -> Result<(), String> {
        if kind(server) != "stdio" {
            return Ok(());
        }
        let Some(command) = server.get("command").and_then(Value::as_str).filter(|command| !command.is_empty()) else {
            return Err("command: a stdio server needs one".to_owned());
        };
        if !command.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'+')) {
            return Err(
                "command must be the bare name of a program, without path, blanks or shell characters".to_owned()
            );
        }
        if !self.allowed.contains(command) {
            let allowed: Vec<&str> = self.allowed.iter().map(String::as_str).collect();
            return Err(format!(
                "command is not one that may be started over this API; allowed are {} \
                 (MCP_TASKD_MCP_STDIO_COMMAND_ALLOWLIST names more)",
                allowed.join(", ")
            ));
        }
        let args = texts(server.get("args")).ok_or("args must be a list of texts")?;
        if let Some(flag) = flags::running_code(command, &args) {
            return Err(format!("args has {flag}, which runs code that is not the server's"));
        }
        let env = server.get("env").and_then(Value::as_object);
        if let Some(name) = env.and_then(|env| env.keys().find(|name| injects(name))) {
            return Err(format!("env has {name}, which can make the program run other code"));
        }
        Ok(())
    }
}

/// Whether two definitions start the same thing in the same way.
pub(super) fn same(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    kind(a) == kind(b) && ["command", "args", "env", "cwd"].iter().all(|key| a.get(*key) == b.get(*key))
}

fn kind(server: &Map<String, Value>) -> &str {
    let given = ["type", "transport"].iter().find_map(|key| server.get(*key).filter(|kind| !kind.is_null()));
    given.map_or("stdio", |kind| kind.as_str().unwrap_or_default())
}

fn texts(value: Option<&Value>) -> Option<Vec<&str>> {
    match value {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(items)) => items.iter().map(Value::as_str).collect(),
        Some(_) => None,
    }
}

fn injects(name: &str) -> bool {
    let name = name.trim().to_ascii_uppercase();
    INJECTING.split_ascii_whitespace().any(|known| match known.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == known,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(server: &Value) -> Result<(), String> {
        let environment = [("DEER_FLOW_MCP_STDIO_COMMAND_ALLOWLIST", "python, node,docker,bash,my-server")];
        LaunchPolicy::of(&environment.into_iter().collect()).check(server.as_object().unwrap())
    }

    #[test]
    fn only_bare_names_on_the_list_are_started_91() {
        for command in ["npx", "uvx", "python", "my-server"] {
            assert_eq!(check(&json!({"command": command})), Ok(()), "{command}");
        }
        for command in ["/usr/bin/npx", "./npx", "npx -y", "npx;id", "$NPX", "np x", "ruby", "npx.cmd", "NPX", ""] {
            assert!(check(&json!({"command": command})).unwrap_err().starts_with("command"), "{command}");
        }
        assert!(check(&json!({})).is_err(), "stdio is the default");
        assert!(check(&json!({"transport": "stdio", "command": "ruby"})).is_err());
        assert_eq!(check(&json!({"type": "http", "url": "http://h", "command": "ruby"})), Ok(()), "http skips all");
        assert!(check(&json!({"type": ["stdio"], "command": "ruby"})).is_ok(), "loading refuses what is no text");
        let none = LaunchPolicy::of(&Environment::default());
        assert!(none.check(json!({"command": "python"}).as_object().unwrap()).is_err());
    }

    #[test]
    fn the_allow_list_has_two_names_142() {
        let variables =
            [("MCP_TASKD_MCP_STDIO_COMMAND_ALLOWLIST", "a"), ("DEER_FLOW_MCP_STDIO_COMMAND_ALLOWLIST", "b")];
        let policy = LaunchPolicy::of(&variables.into_iter().collect());
        let check = |command: &str| policy.check(json!({"command": command}).as_object().unwrap());
        assert!(check("a").is_ok() && check("b").is_err());
    }

    #[test]
    fn arguments_that_run_code_are_named_and_their_values_are_not_91() {
        for (command, args, flag) in [
            ("npx", json!(["-c", "hunter2"]), "-c"),
            ("npx", json!(["-y", "--call=hunter2"]), "--call"),
            ("npx", json!(["--yes", "false", "-c", "hunter2"]), "-c"),
            ("npx", json!(["--odd", "value", "--call", "hunter2"]), "--call"),
            ("npx", json!(["-p", "pkg", "-c", "hunter2"]), "-c"),
            ("npx", json!(["-ychunter2"]), "-c"),
            ("npx", json!(["--cal", "hunter2"]), "--cal"),
            ("npx", json!(["--node-options=--require hunter2", "pkg"]), "--node-options"),
            ("npx", json!(["--script-shell", "hunter2", "pkg"]), "--script-shell"),
            ("npx", json!(["-y", "node", "-e", "hunter2"]), "-e"),
            ("npx", json!(["-y", "node@22", "--eval=hunter2"]), "--eval"),
            ("uvx", json!(["-c", "hunter2", "pkg"]), "-c"),
            ("uvx", json!(["--from", "pkg", "--eval", "hunter2"]), "--eval"),
            ("uvx", json!(["python", "-c", "hunter2"]), "-c"),
            ("uvx", json!(["--python", "3.12", "python3.12", "-Ic", "hunter2"]), "-c"),
            ("python", json!(["-c", "hunter2"]), "-c"),
            ("python", json!(["server.py", "-Ichunter2"]), "-c"),
            ("node", json!(["--require", "hunter2"]), "--require"),
            ("node", json!(["-pe", "hunter2"]), "-p"),
            ("bash", json!(["-lc", "hunter2"]), "-c"),
            ("docker", json!(["run", "image", "sh", "-c", "hunter2"]), "-c"),
            ("my-server", json!(["--eval", "hunter2"]), "--eval"),
        ] {
            let error = check(&json!({"command": command, "args": args})).unwrap_err();
            assert!(error.contains(&format!("args has {flag},")), "{command} {args}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn what_comes_after_the_package_is_the_servers_91() {
        for (command, args) in [
            ("npx", json!(["-y", "@scope/server", "-c", "config.json", "--eval"])),
            ("npx", json!(["--", "pkg", "-c", "x"])),
            ("npx", json!(["--package", "pkg", "bin", "-c", "x"])),
            ("npx", json!(["--cache", "/c", "--registry=https://r", "-y", "pkg"])),
            ("uvx", json!(["--from", "pkg", "bin", "-c", "x"])),
            ("uvx", json!(["--odd", "pkg", "-c", "x"])),
            ("uvx", json!(["--with=other", "pkg", "--exec"])),
            ("python", json!(["-m", "server", "--config", "c.json"])),
            ("docker", json!(["run", "-i", "--rm", "-e", "KEY", "image"])),
            ("my-server", json!(["--port", "1", "-v", "db=-c"])),
            ("npx", json!(null)),
        ] {
            assert_eq!(check(&json!({"command": command, "args": args})), Ok(()), "{command} {args}");
        }
        assert!(check(&json!({"command": "npx", "args": [1]})).unwrap_err().contains("args"));
        assert!(check(&json!({"command": "npx", "args": "pkg"})).unwrap_err().contains("args"));
    }

    #[test]
    fn variables_that_inject_code_are_refused_91() {
        for name in
            ["PYTHONPATH", "NODE_OPTIONS", "LD_PRELOAD", "ld_audit", "DYLD_X", "npm_config_script_shell", "PATH"]
        {
            let error = check(&json!({"command": "npx", "env": {"OK": "x", name: "hunter2"}})).unwrap_err();
            assert!(error.contains(name) && !error.contains("hunter2"), "{error}");
        }
        assert_eq!(
            check(&json!({"command": "npx", "env": {"GITHUB_TOKEN": "$T", "NPM_CONFIG_REGISTRY": "r"}})),
            Ok(())
        );
    }
}
