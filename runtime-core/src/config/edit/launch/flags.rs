//! Arguments that make a launcher or an interpreter run code of the caller's.

/// What a launcher does with an option that it does not know.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unknown {
    /// npm's parser takes what follows for its value.
    TakesValue,
    /// uv's has no such options.
    StandsAlone,
}

/// A program that starts another one: what comes before the package's name is its own.
struct Launcher {
    unknown: Unknown,
    /// Options without a value, parted by blanks, as all lists here.
    alone: &'static str,
    /// Options with one.
    with_value: &'static str,
    /// Short options that run code or decide what does.
    letters: &'static str,
    /// Long ones.
    words: &'static str,
}

const NPX: Launcher = Launcher {
    unknown: Unknown::TakesValue,
    alone: "-y --yes --no-yes -q --quiet -s --silent --no --no-install --ignore-existing --prefer-offline --prefer-online \
        --offline -d -dd -ddd -v --version -h --help --verbose --no-color --no-audit --no-fund --no-update-notifier",
    with_value: "-p --package --registry --cache --loglevel -w --workspace",
    letters: "cne",
    words: "call eval exec node-options node-arg script-shell shell git init-module userconfig globalconfig prefix \
        always-spawn",
};

const UVX: Launcher = Launcher {
    unknown: Unknown::StandsAlone,
    alone: "",
    with_value: "--from --with -w --with-editable --with-requirements -p --python --index --default-index -i --index-url \
        --extra-index-url -f --find-links --index-strategy --keyring-provider -P --upgrade-package --resolution \
        --prerelease --exclude-newer -C --config-setting --link-mode --refresh-package --reinstall-package -b \
        --build-constraints --constraints --overrides --env-file --cache-dir --python-preference --color --directory \
        --project --config-file --allow-insecure-host --no-build-package --no-binary-package",
    letters: "ce",
    words: "call eval exec command",
};

/// The first argument that runs code, as it may be named: without its value.
pub(super) fn running_code(command: &str, args: &[&str]) -> Option<String> {
    match command {
        "npx" => launched(&NPX, args),
        "uvx" => launched(&UVX, args),
        program => screened(program, args),
    }
}

/// Looks at the launcher's own options; everything after the package's name, or after `--`, is the server's. A package that
/// is an interpreter is looked at as one.
fn launched(launcher: &Launcher, args: &[&str]) -> Option<String> {
    let mut at = 0;
    while let Some(arg) = args.get(at) {
        at += 1;
        if *arg == "--" {
            return args.get(at).and_then(|package| interpreted(package, &args[at + 1..]));
        }
        if !is_option(arg) {
            return interpreted(arg, &args[at..]);
        }
        let (name, has_value) = arg.split_once('=').map_or((*arg, false), |(name, _)| (name, true));
        // Before the flags: `--cache` is no short form of `--call`.
        let is_known = has(launcher.alone, name) || has(launcher.with_value, name);
        if !is_known && let Some(flag) = flag(arg, launcher.letters, launcher.words) {
            return Some(flag);
        }
        let next = args.get(at).copied().filter(|next| !is_option(next));
        let takes_next = if has(launcher.alone, name) {
            // npm's parser takes these words for the value of a switch.
            launcher.unknown == Unknown::TakesValue && matches!(next, Some("true" | "false" | "null"))
        } else {
            has(launcher.with_value, name) || launcher.unknown == Unknown::TakesValue
        };
        if takes_next && !has_value && next.is_some() {
            at += 1;
        }
    }
    None
}

fn interpreted(package: &str, args: &[&str]) -> Option<String> {
    // `node@22`, `python3.12`, `npm:node@22`
    let name = package.trim_start_matches("npm:").split('@').next().unwrap_or_default();
    is_interpreter(name).then(|| screened(name, args)).flatten()
}

/// Looks at every argument: nobody knows where a program's own options end.
fn screened(program: &str, args: &[&str]) -> Option<String> {
    let (letters, words) = match family(program) {
        // The first two run no code themselves; what they start may.
        "docker" | "podman" | "python" | "pypy" => ("c", ""),
        "node" | "bun" | "deno" | "tsx" => ("cepr", "eval print require import loader experimental-loader env-file"),
        "perl" | "ruby" => ("ceErIM", "eval require"),
        "php" => ("rBRE", "run"),
        _ => ("ce", "eval exec command call"),
    };
    if family(program) == "deno" && args.contains(&"eval") {
        return Some("eval".to_owned());
    }
    args.iter().find_map(|arg| if is_option(arg) { flag(arg, letters, words) } else { None })
}

/// `python3.12` is a python.
fn family(program: &str) -> &str {
    program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.')
}

fn is_interpreter(name: &str) -> bool {
    ["python", "pypy", "node", "bun", "deno", "tsx", "perl", "ruby", "php", "bash", "sh", "zsh", "dash"]
        .contains(&family(name))
}

fn has(list: &str, name: &str) -> bool {
    list.split_ascii_whitespace().any(|known| known == name)
}

fn is_option(arg: &str) -> bool {
    arg.len() > 1 && arg.starts_with('-')
}

/// The flag that `arg` is, alone, in a cluster of short ones or cut short, where it is one of these.
fn flag(arg: &str, letters: &str, words: &str) -> Option<String> {
    let name = arg.split('=').next().unwrap_or_default();
    if let Some(word) = name.strip_prefix("--") {
        let is_one = !word.is_empty() && words.split_ascii_whitespace().any(|known| known.starts_with(word));
        return is_one.then(|| name.to_owned());
    }
    let cluster = name.strip_prefix('-')?;
    // What follows the first letter with a value is that value; a cluster is short ones only as far as they are letters.
    let letter = cluster.chars().take_while(char::is_ascii_alphabetic).find(|letter| letters.contains(*letter))?;
    Some(format!("-{letter}"))
}
