//! What agents see of which answers.

use serde_json::{Value, json};

use super::*;
use crate::config::GuardrailSettings;

fn server(name: &str) -> Server {
    Server { name: name.to_owned(), prefix: true, toolsets: Vec::new(), routing: Arc::default() }
}

fn with_tasks(name: &str) -> Server {
    let toolset = Toolset { input_tool: Some("input".into()), ..Toolset::new("report", "submit", "status", "cancel") };
    Server { toolsets: vec![Arc::new(toolset)], ..server(name) }
}

/// The view of these servers.
fn assemble(servers: &[(Server, Option<Discovered>)], rules: &Rules) -> View {
    super::assemble(servers.iter().map(|(server, discovered)| (server, discovered.as_ref())), rules)
}

fn withheld(view: &View, why: Why) -> Vec<&str> {
    view.withheld.iter().filter(|tool| tool.why == why).map(|tool| tool.name.as_str()).collect()
}

fn raws(tools: &[&str]) -> Arc<[Box<RawValue>]> {
    tools.iter().map(|text| RawValue::from_string((*text).to_owned()).unwrap()).collect()
}

fn named(names: &[&str]) -> Arc<[Box<RawValue>]> {
    names
        .iter()
        .map(|name| RawValue::from_string(json!({"name": name, "inputSchema": {}}).to_string()).unwrap())
        .collect()
}

fn names(view: &View) -> Vec<&str> {
    view.tools.iter().map(|tool| tool.name.as_str()).collect()
}

#[test]
fn a_native_toolset_hides_nothing_and_misses_its_submit_tool_alone_38_39() {
    let toolset = Toolset {
        name: "render".into(),
        submit_tool: "render".into(),
        status_tool: String::new(),
        cancel_tool: String::new(),
        input_tool: None,
        idempotent_submit: false,
    };
    let native = || Server { toolsets: vec![Arc::new(toolset.clone())], ..server("s") };
    let render = r#"{"name":"render","inputSchema":{},"execution":{"taskSupport":"required"}}"#;
    let view =
        assemble(&[(native(), Some(Ok(raws(&[render, r#"{"name":"echo","inputSchema":{}}"#]))))], &Rules::default());
    assert_eq!(names(&view), ["s_render", "s_echo"]);
    let tool = view.find("s_render").unwrap();
    assert!(tool.toolset.is_some() && !tool.definition.get().contains("taskSupport"), "it is a submit tool here");
    let view = assemble(&[(native(), Some(Ok(named(&["echo"]))))], &Rules::default());
    assert!(view.problems[0].ends_with("does not have the configured tools render"), "{:?}", view.problems);
}

#[test]
fn tools_are_prefixed_and_routed_to_the_server_that_has_them_100() {
    let unprefixed = Server { prefix: false, ..server("plain") };
    let view = assemble(
        &[
            (server("web"), Some(Ok(named(&["scraper_run", "web_x"])))),
            (server("web_scraper"), Some(Ok(named(&["go"])))),
            (unprefixed, Some(Ok(named(&["plain_go"])))),
        ],
        &Rules::default(),
    );
    assert_eq!(names(&view), ["web_scraper_run", "web_web_x", "web_scraper_go", "plain_go"]);
    let tool = view.find("web_scraper_run").unwrap();
    assert_eq!((tool.server.as_str(), tool.raw_name.as_str()), ("web", "scraper_run"), "never guessed from the prefix");
    assert!(view.find("web_nothing").is_none());
    assert!(view.problems.is_empty());
}

#[test]
fn a_tool_that_would_spoil_the_list_for_strict_clients_is_dropped_alone() {
    let tools =
        raws(&[r#"{"name":"none"}"#, r#"{"name":"text","inputSchema":"x"}"#, r#"{"name":"ok","inputSchema":{}}"#]);
    let view = assemble(&[(server("s"), Some(Ok(tools)))], &Rules::default());
    assert_eq!(names(&view), ["s_ok"]);
    assert!(view.problems.len() == 2 && view.problems[0].contains("inputSchema"), "{:?}", view.problems);
}

#[test]
fn a_name_that_models_cannot_call_drops_that_tool_alone_101() {
    let view = assemble(&[(server("s"), Some(Ok(named(&["a.b", "ok", "", "ü"]))))], &Rules::default());
    assert_eq!(names(&view), ["s_ok"]);
    assert_eq!(view.problems.len(), 3, "{:?}", view.problems);
    assert_eq!(withheld(&view, Why::Invalid), ["s_a.b", "s_ü"]);
}

#[test]
fn names_that_mean_harm_are_told_in_bounds_28_101() {
    let (long, fits) = ("x".repeat(1 << 20), "y".repeat(126));
    let mut all = vec!["../etc", "<b>", "a\u{1b}[2J", "\u{202e}b", "a b", "a\nb", long.as_str(), fits.as_str()];
    let many: Vec<String> = (0..5_000).map(|n| format!("n.{n}")).collect();
    all.extend(many.iter().map(String::as_str));
    let view = assemble(&[(server("s"), Some(Ok(named(&all))))], &Rules::default());
    assert_eq!(names(&view), [format!("s_{fits}")]);
    assert_eq!(view.problems.len(), MAX_FAULTS + 1);
    assert!(view.problems.last().unwrap().contains("4997 more"), "{:?}", view.problems.last());
    for problem in &view.problems {
        assert!(problem.len() < 400 && !problem.contains(char::is_control), "{problem:?}");
    }
    assert!(view.withheld.iter().all(|tool| tool.name.chars().count() <= NAME_MAX_CHARS));
}

#[test]
fn ordinary_tools_stay_byte_for_byte_but_for_their_name() {
    let text =
        r#"{"z":1.50,"name":"echo","inputSchema":{"b":{ },"a":1e3},"execution":{"taskSupport":"required"},"x":null}"#;
    let view = assemble(&[(server("s"), Some(Ok(raws(&[text]))))], &Rules::default());
    assert_eq!(view.tools[0].definition.get(), text.replace("\"echo\"", "\"s_echo\""));
    let plain = Server { prefix: false, ..server("s") };
    let view = assemble(&[(plain, Some(Ok(raws(&[text]))))], &Rules::default());
    assert_eq!(view.tools[0].definition.get(), text);
}

#[test]
fn submit_tools_stay_with_a_contract_and_the_others_are_hidden_7_38() {
    let submit = r#"{"name":"submit","description":"Makes a report. ","inputSchema":{"b":1,"a":2},"outputSchema":{"x":1},
        "execution":{"taskSupport":"required"},"annotations":{"title":"T"}}"#;
    let tools = [
        submit,
        r#"{"name":"status"}"#,
        r#"{"name":"cancel"}"#,
        r#"{"name":"input"}"#,
        r#"{"name":"other","inputSchema":{}}"#,
    ];
    let view = assemble(&[(with_tasks("s"), Some(Ok(raws(&tools))))], &Rules::default());
    assert_eq!(names(&view), ["s_submit", "s_other"]);
    let tool = &view.tools[0];
    assert_eq!(tool.toolset.as_ref().unwrap().name, "report");
    let definition: Value = serde_json::from_str(tool.definition.get()).unwrap();
    let description = definition["description"].as_str().unwrap();
    assert!(description.starts_with("Makes a report.") && description.ends_with(BACKGROUND_CONTRACT));
    assert!(
        tool.definition.get().contains(r#""inputSchema":{"b":1,"a":2}"#),
        "the argument schema is the server's own"
    );
    assert!(definition["outputSchema"]["properties"].get("task_name").is_some());
    assert!(definition.get("execution").is_none());
    assert_eq!(definition["annotations"]["title"], "T");
    let bare =
        assemble(&[(with_tasks("s"), Some(Ok(named(&["submit", "status", "cancel", "input"]))))], &Rules::default());
    let definition: Value = serde_json::from_str(bare.tools[0].definition.get()).unwrap();
    assert_eq!(definition["description"], BACKGROUND_CONTRACT);
}

#[test]
fn a_missing_configured_tool_withholds_everything_or_that_server_39_147_150() {
    let servers = [(with_tasks("s"), Some(Ok(named(&["submit", "other"])))), (server("t"), Some(Ok(named(&["x"]))))];
    let view = assemble(&servers, &Rules::default());
    assert!(view.tools.is_empty());
    assert!(view.problems[0].contains("status, cancel, input"), "{:?}", view.problems);
    assert_eq!(withheld(&view, Why::MissingTool), ["s_submit", "s_other", "t_x"]);
    let rules = Rules { on_missing_tool: MissingTool::HideServer, ..Rules::default() };
    let view = assemble(&servers, &rules);
    assert_eq!(names(&view), ["t_x"], "150");
    assert_eq!(withheld(&view, Why::MissingTool), ["s_submit", "s_other"]);
    assert_eq!(view.problems.len(), 1);
}

#[test]
fn a_server_that_could_not_be_asked_takes_nobody_with_it_39_99() {
    let servers = [(with_tasks("s"), Some(Err("refused".to_owned()))), (server("t"), Some(Ok(named(&["x"]))))];
    let view = assemble(&servers, &Rules::default());
    assert_eq!(names(&view), ["t_x"]);
    assert!(view.problems[0].contains("server s") && view.problems[0].contains("refused"));
}

#[test]
fn colliding_tools_are_withheld_and_both_servers_named_143() {
    let plain = |name: &str| Server { prefix: false, ..server(name) };
    let view = assemble(
        &[
            (plain("a"), Some(Ok(named(&["x", "get_background_task", "y", "y"])))),
            (plain("b"), Some(Ok(named(&["x"])))),
        ],
        &Rules { reserved: vec!["get_background_task"], ..Rules::default() },
    );
    assert_eq!(names(&view), ["y"]);
    let problem = view.problems.iter().find(|problem| problem.contains("tool x")).unwrap();
    assert!(problem.contains("a and b"), "{problem}");
    let collision = view.withheld.iter().find(|tool| tool.why == Why::Collision).unwrap();
    assert_eq!(
        (collision.name.as_str(), collision.servers.as_slice()),
        ("x", ["a".to_owned(), "b".to_owned()].as_slice())
    );
    assert_eq!(withheld(&view, Why::Reserved), ["get_background_task"]);
    assert!(view.problems.iter().any(|problem| problem.contains("get_background_task")));
}

#[test]
fn tools_carry_their_routing_and_their_schemas_stay_128() {
    let routing = crate::config::RoutingConfig {
        server: crate::config::RoutingFields { priority: Some(7), ..Default::default() },
        ..Default::default()
    };
    let routed = Server { routing: Arc::new(routing), ..server("s") };
    let view = assemble(&[(routed, Some(Ok(named(&["find"]))))], &Rules::default());
    assert_eq!(view.tools[0].routing.priority, 7);
    assert_eq!(view.tools[0].definition.get(), r#"{"name":"s_find","inputSchema":{}}"#);
}

#[test]
fn the_guardrail_judges_visible_names_130() {
    let mut settings = GuardrailSettings { enabled: true, ..GuardrailSettings::default() };
    settings.provider.config.denied_tools = vec!["s_forget".into()];
    let rules = Rules { guardrail: Guardrail::new(&settings), ..Rules::default() };
    let view = assemble(&[(server("s"), Some(Ok(named(&["forget", "find"]))))], &rules);
    assert_eq!(names(&view), ["s_find"]);
    assert_eq!(withheld(&view, Why::Guardrail), ["s_forget"]);
}
