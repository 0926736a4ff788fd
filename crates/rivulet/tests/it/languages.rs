//! Applications that are not written in SQL: a small language whose code fails, in a whole engine.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, AsArray, Int64Array, RecordBatch, UInt16Array, UInt32Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use rivulet::api::types::Application as ApplicationAnswer;
use rivulet::engine::{Engine, Extensions, Languages};
use rivulet::service::{ErrorKind, LogStatus, QueryFilter, ServiceError};
use rivulet_dataflow::{
    Context, Control, Cut, Description, Element, Line, Operator, OperatorError, OperatorFactory, Slot, StateError,
    StateFrame, StateSelection,
};
use rivulet_operators::application::{
    Address, Application, ApplicationCode, BindError, CodeLoader, FormatSpec, Input, Literal, LoadError, Output,
    Overflow, Parameter, Part, ShownOption, Tables, TopicColumns, text_of,
};
use rivulet_sql::SqlLoader;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::alter::run;
use super::checkpoints::{copy_all, on_demand};
use super::inputs::{BEGIN_MS, message, produce, sums};
use super::kafka_broker::Broker;
use super::server::{Publisher, rivulet};
use super::support::{AsOperator, TestServer, wait_until};

/// The language: a program is `totals NAME times N`, or `counts NAME times N`. It adds up what comes, or counts it, for
/// each query, and multiplies with `N` and the query's `factor`. It panics at 13, and fails at 14 and 15.
struct Arithmetic;

const KIND: &str = "arithmetic";

/// The place of the parameter `factor`.
const FACTOR: usize = 1;

impl CodeLoader for Arithmetic {
    fn load(&self, bytes: &[u8], _: &Tables) -> Result<Application, LoadError> {
        let wrong = |message: &str| LoadError { message: message.into(), position: (0, 0), hint: None };
        let text = std::str::from_utf8(bytes).map_err(|_| wrong("a program is a text"))?;
        let [what, name, "times", times] = text.split_whitespace().collect::<Vec<_>>()[..] else {
            return Err(wrong("a program is written: totals NAME times N"));
        };
        let times = times.parse().map_err(|_| wrong("N is a number"))?;
        assert_ne!(times, 13, "13 times");
        let parameter = |name: &str, data_type, default, in_address| Parameter {
            name: name.into(),
            data_type,
            default,
            in_address,
            is_address: false,
        };
        let parameters = [
            parameter("id", DataType::Utf8, None, true),
            parameter("factor", DataType::Int64, Some(Literal::Integer(1)), false),
        ];
        let fields = parameters.iter().map(|one| Field::new(&one.name, one.data_type.clone(), true));
        let parameter_schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let address = |topic: &str| Address {
            connector: "mqtt".into(),
            template: format!("{topic}/{{id}}"),
            parts: vec![Part::Text(format!("{topic}/")), Part::Parameter(0)],
            position: (0, 0),
        };
        let json = || FormatSpec { name: "json".into(), options: Vec::new(), position: (0, 0) };
        let numbers = |column: &str| Arc::new(Schema::new(vec![Field::new(column, DataType::Int64, true)]));
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let tally = Tally { counts: what == "counts", times };
        Ok(Application {
            name: name.into(),
            id: format!("{:016x}", hasher.finish()),
            kind: KIND,
            bytes: bytes.to_vec(),
            parameters: Arc::new(parameters),
            deciding_parameters: vec![0, FACTOR],
            inputs: vec![Input {
                name: "numbers".into(),
                schema: numbers("n"),
                declared: numbers("n"),
                event_time: None,
                computed: Vec::new(),
                computed_event_time: None,
                topic: TopicColumns::default(),
                source: None,
                address: address("in"),
                format: json(),
                lateness_us: 0,
                idle_timeout_us: 0,
                future_limit_us: i64::MAX,
                overflow: Overflow::Block,
                durability: None,
                late: None,
                dead_letter: Some(address("dead")),
            }],
            row_schema: numbers("n"),
            outputs: vec![Output {
                name: None,
                address: address("out"),
                format: json(),
                options: Vec::new(),
                condition: None,
                schema: numbers("result"),
            }],
            has_output_bits: false,
            dataflow: Line::new(vec![Arc::new(tally)]),
            parameter_schema,
            tables: Vec::new(),
            matching: None,
            cut: Cut::Never("its state is by query"),
            warnings: (times == 1).then(|| "times 1 can be left out".into()).into_iter().collect(),
            code: Arc::new(Code { steps: vec![what.to_owned()] }),
        })
    }

    fn table_names(&self, _: &[u8]) -> Vec<String> {
        Vec::new()
    }

    fn shown(&self, bytes: &[u8], _: &ShownOption<'_>) -> String {
        text_of(KIND, bytes).into_owned()
    }
}

/// The language of which nobody can read anything in the bytes: SQL, turned over bit by bit.
struct Sealed;

const SEALED: &str = "sealed";

fn sealed(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| !byte).collect()
}

impl CodeLoader for Sealed {
    fn load(&self, bytes: &[u8], tables: &Tables) -> Result<Application, LoadError> {
        let application = SqlLoader.load(&sealed(bytes), tables)?;
        Ok(Application { kind: SEALED, bytes: bytes.to_vec(), ..application })
    }

    fn table_names(&self, bytes: &[u8]) -> Vec<String> {
        SqlLoader.table_names(&sealed(bytes))
    }

    fn shown(&self, bytes: &[u8], shown: &ShownOption<'_>) -> String {
        SqlLoader.shown(&sealed(bytes), shown)
    }
}

struct Code {
    steps: Vec<String>,
}

impl ApplicationCode for Code {
    fn check(&self, rows: &RecordBatch) -> Vec<Result<(), BindError>> {
        let factors = rows.column(FACTOR).as_primitive::<Int64Type>();
        let check = |factor| match factor {
            Some(0) => Err(BindError::new(Some("factor"), "a factor of 0 gives nothing but 0".into())),
            Some(13) => panic!("a factor of 13"),
            _ => Ok(()),
        };
        factors.iter().map(check).collect()
    }

    fn explain(&self, application: &Application) -> String {
        format!("{} of {}", self.steps[0], application.name)
    }

    fn steps(&self, _: usize) -> &[String] {
        &self.steps
    }
}

#[derive(Clone)]
struct Tally {
    counts: bool,
    times: i64,
}

impl OperatorFactory for Tally {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(TallyOperator { plan: self.clone(), sums: HashMap::new() })
    }

    fn describe(&self) -> Description {
        Description { operator: "tally".into(), ..Description::default() }
    }

    fn state(&self) -> Option<rivulet_dataflow::Address> {
        Some(rivulet_dataflow::Address::of("tally"))
    }
}

struct TallyOperator {
    plan: Tally,
    sums: HashMap<Slot, i64>,
}

impl Operator for TallyOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => {
                let factors = context.slots.gather(FACTOR, &batch.slots);
                let factors = factors.as_primitive::<Int64Type>();
                let values = batch.column(0).as_primitive::<Int64Type>();
                // Kept aside until no row can fail any more.
                let (mut sums, mut results) = (HashMap::new(), Vec::with_capacity(batch.rows()));
                for row in 0..batch.rows() {
                    let (slot, value) = (batch.slots[row], values.value(row));
                    match value {
                        13 => panic!("13 brings bad luck"),
                        14 => return Err(OperatorError::about(vec![slot], "14 is not allowed")),
                        15 => return Err(OperatorError::new("15 is not allowed")),
                        _ => {}
                    }
                    let sum = sums.entry(slot).or_insert_with(|| self.sums.get(&slot).copied().unwrap_or(0));
                    *sum += if self.plan.counts { 1 } else { value };
                    results.push(*sum * factors.value(row) * self.plan.times);
                }
                self.sums.extend(sums);
                let column: Arc<dyn Array> = Arc::new(Int64Array::from(results));
                context.emit(batch.with_columns(RecordBatch::try_from_iter([("result", column)])?));
            }
            Element::Control(Control::RemoveSlots(slots)) => self.sums.retain(|slot, _| !slots.contains(slot)),
            _ => {}
        }
        Ok(())
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        let is_selected = |slot: &Slot| match selection {
            StateSelection::Slots(slots) => slots.binary_search(slot).is_ok(),
            _ => true,
        };
        let rows: Vec<(Slot, i64)> =
            self.sums.iter().filter(|(slot, _)| is_selected(slot)).map(|(slot, sum)| (*slot, *sum)).collect();
        let schema = Schema::new(vec![
            Field::new("slot", DataType::UInt32, false),
            Field::new("key_group", DataType::UInt16, false),
            Field::new("sum", DataType::Int64, false),
        ]);
        let columns: Vec<Arc<dyn Array>> = vec![
            Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| row.0))),
            Arc::new(UInt16Array::from(vec![0; rows.len()])),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))),
        ];
        Ok(Some(StateFrame::new("tally", 1, RecordBatch::try_new(Arc::new(schema), columns)?)))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        let sums = frame.rows.column(2).as_primitive::<Int64Type>();
        self.sums.extend(frame.slots().iter().copied().zip(sums.values().iter().copied()));
        Ok(())
    }

    fn runs_user_code(&self) -> bool {
        true
    }
}

fn open_with(folder: &Path, languages: Languages) -> Arc<Engine> {
    Engine::open_with(on_demand(folder), Extensions { languages, ..Extensions::default() }).expect("an engine")
}

fn open(folder: &Path) -> Arc<Engine> {
    open_with(folder, Languages::default().with(KIND, Arithmetic).with(SEALED, Sealed))
}

fn create(engine: &Engine, id: &str, factor: i64) -> Result<String, ServiceError> {
    run(engine, &format!("CREATE QUERY {id} FROM APPLICATION sums WITH (id => '{id}', factor => {factor})"))
}

struct Client {
    listener: Publisher,
    publisher: Publisher,
}

impl Client {
    fn of(engine: &Engine) -> Self {
        let broker = engine.embedded_broker_address().expect("a broker");
        let mut listener = Publisher::connect(broker);
        listener.subscribe("out/#");
        listener.subscribe("dead/#");
        Self { listener, publisher: Publisher::connect(broker) }
    }

    fn send(&mut self, id: &str, n: i64) {
        self.publisher.publish(&format!("in/{id}"), &format!("{{\"n\": {n}}}"));
    }

    fn next(&mut self) -> (String, Value) {
        self.listener.next_json()
    }

    /// The result of an event that is the only one under way.
    fn result(&mut self, id: &str, n: i64) -> i64 {
        self.send(id, n);
        let (topic, message) = self.next();
        assert_eq!(topic, format!("out/{id}"), "{message}");
        message["result"].as_i64().expect("a number")
    }
}

fn refused(engine: &Engine, reason: &str) -> u64 {
    engine.status().total.refused.get(reason).copied().unwrap_or(0)
}

#[test]
fn an_application_in_another_language_runs_as_one_in_sql_does() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    let info = engine.create_application_of(KIND, b"totals sums times 2").expect("registered");
    assert_eq!((info.name.as_str(), info.sql.as_str()), ("sums", "totals sums times 2"));
    assert_eq!(info.parameters.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["id", "factor"]);
    assert_eq!(engine.create_application_of(KIND, b"totals sums times 2").expect("the same").id, info.id);
    assert_eq!(engine.explain("sums").expect("words"), "totals of sums");
    let wrong = engine.create_application_of(KIND, b"what?").expect_err("no program");
    assert!(wrong.message.contains("totals NAME") && wrong.line.is_none(), "{wrong:?}");
    let sql = b"CREATE APPLICATION steps (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:steps/{id}' FORMAT JSON \
                OUTPUT 'mqtt:step/{id}' FORMAT JSON AS SELECT n - lag(n) AS step FROM numbers;\n";
    assert_eq!(engine.create_application_of("sql", sql).expect("SQL is a language like others").name, "steps");
    let unknown = engine.create_application_of("cobol", b"").expect_err("no language");
    assert_eq!(unknown.hint.as_deref(), Some("this server loads: arithmetic, sealed, sql"));

    create(&engine, "a", 1).expect("a query");
    create(&engine, "b", 10).expect("a query");
    let refused = create(&engine, "c", 0).expect_err("the code checks parameters");
    assert!(refused.message.contains("nothing but 0"), "{refused}");
    let panicked = create(&engine, "c", 13).expect_err("a panic of its check refuses the query");
    assert!(panicked.message.contains("cannot check parameters: a factor of 13"), "{panicked}");
    let panicked = engine.create_application_of(KIND, b"totals sums times 13").expect_err("and one of the loader");
    assert!(panicked.kind == ErrorKind::Invalid && panicked.message.contains("13 times"), "{panicked}");
    let mut client = Client::of(&engine);
    assert_eq!((client.result("a", 1), client.result("b", 1), client.result("a", 2)), (2, 20, 6));

    // State outlives the process, and a new version takes it over if its signature is the same.
    engine.shutdown();
    drop((client, engine));
    let engine = open(folder.path());
    assert!(engine.problems().is_empty(), "{:?}", engine.problems());
    let mut client = Client::of(&engine);
    assert_eq!(client.result("a", 3), 12);
    let info = engine.replace_application_of(KIND, b"totals sums times 3", false).expect("it can go on");
    let replaced = info.replacement.expect("what became of it");
    assert_eq!((replaced.queries, replaced.state_discarded.len()), (2, 0));
    assert_eq!(client.result("a", 4), 30);
    let lost = engine.replace_application_of(KIND, b"counts sums times 3", false).expect_err("state would be lost");
    assert!(lost.message.contains("'totals' has become 'counts'"), "{lost}");
    let info = engine.replace_application_of(KIND, b"counts sums times 1", true).expect("as it is wished");
    assert_eq!(info.warnings, ["times 1 can be left out"]);
    assert_eq!(info.replacement.expect("what became of it").state_discarded.len(), 1);
    assert_eq!(client.result("b", 7), 10);
    engine.shutdown();
    drop((client, engine));

    // A server without the language keeps the application, and says why it does not run.
    let engine = open_with(folder.path(), Languages::default());
    let info = engine.application("sums").expect("it is known");
    let why = info.not_running.expect("it does not run");
    assert!(why.contains("no code of the kind 'arithmetic' is known"), "{why}");
    assert_eq!(info.sql, "(19 bytes of arithmetic)", "nobody knows what is secret in it");
    assert_eq!(create(&engine, "d", 1).expect_err("nothing new").kind, ErrorKind::Conflict);
    engine.shutdown();
    drop(engine);
    let doctor = rivulet().args(["doctor", "--data-dir"]).arg(folder.path().join("data")).output().expect("it runs");
    let found = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(found.contains("'sums' is code of the kind 'arithmetic', which was not examined"), "{found}");
    let engine = open(folder.path());
    assert_eq!(Client::of(&engine).result("b", 7), 20);
    assert_eq!(engine.queries(&QueryFilter { limit: 10, ..QueryFilter::default() }).len(), 2);
}

#[test]
fn code_in_another_language_is_registered_over_http_and_from_the_command_line() {
    let folder = TempDir::new().expect("a folder");
    let server = TestServer::start(open(folder.path()));
    let client = server.client();
    let path = "/api/v1/applications?language=arithmetic";
    let sums: ApplicationAnswer = client.post_bytes(path, b"totals sums times 2").expect("registered");
    assert_eq!((sums.name.as_str(), sums.sql.as_str()), ("sums", "totals sums times 2"));
    let replace = format!("{path}&replace=true");
    let sums: ApplicationAnswer = client.post_bytes(&replace, b"totals sums times 3").expect("replaced");
    assert!(sums.replacement.is_some_and(|replacement| replacement.is_changed));
    let unknown = client.post_bytes::<ApplicationAnswer>("/api/v1/applications?language=cobol", b"").expect_err("none");
    assert!(unknown.to_string().contains("no code of the kind 'cobol' is known"), "{unknown}");

    let file = folder.path().join("program");
    let program = |code: &str, more: &[&str]| {
        std::fs::write(&file, code).expect("a file");
        let mut program = rivulet();
        program
            .args(["--json", "app", "register", "--language", KIND, "--server", &server.url()])
            .args(more)
            .arg(&file);
        let done = program.output().expect("it runs");
        let said = if done.status.success() { done.stdout } else { done.stderr };
        serde_json::from_slice::<Value>(&said).expect("JSON")
    };
    assert_eq!(program("counts many times 1", &[])["name"], "many");
    assert_eq!(program("counts many times 2", &[])["error"]["kind"], "already_exists");
    assert_eq!(program("counts many times 2", &["--replace"])["replacement"]["is_changed"], true);
}

#[test]
fn what_is_shown_of_code_is_asked_of_its_language() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    let sql = "CREATE APPLICATION secret INPUT numbers (n BIGINT) FROM 'mqtt:in' FORMAT JSON \
               OUTPUT 'http:127.0.0.1:1/in' FORMAT JSON WITH (headers.authorization => 'Bearer rose') \
               AS SELECT n FROM numbers";
    let hidden = sql.replace("Bearer rose", "***");
    let info = engine.create_application_of(SEALED, &sealed(sql.as_bytes())).expect("registered");
    assert_eq!(info.sql, hidden);
    engine.shutdown();
    drop(engine);
    let engine = open_with(folder.path(), Languages::default());
    assert_eq!(engine.application("secret").expect("it is known").sql, format!("({} bytes of sealed)", sql.len()));
}

#[test]
fn an_input_of_code_in_another_language_goes_on_at_its_position_after_a_crash() {
    let Some(broker) = Broker::start_or_skip() else { return };
    let (folder, crashed) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let messages = |range: std::ops::Range<i64>| range.map(|n| message("d", n, BEGIN_MS + n)).collect::<Vec<_>>();
    produce(&broker.address, "in", &messages(0..100));
    let engine = open(folder.path());
    let read = |engine: &Engine| engine.applications()[0].health[0].rows;
    engine.create_application_of(SEALED, &sealed(sums(&broker).as_bytes())).expect("registered");
    run(&engine, "CREATE QUERY one FROM APPLICATION sums WITH (device => 'd')").expect("a query");
    wait_until("the messages have come", || read(&engine) == 100);
    // All of them are in the log on disk, and no checkpoint was made.
    let is_on_disk = |log: LogStatus| log.next > 100 && log.durable + 1 == log.next;
    wait_until("they are on disk", || engine.status().log.is_some_and(is_on_disk));
    copy_all(&folder.path().join("data"), &crashed.path().join("data"));
    engine.shutdown();
    drop(engine);
    let engine = open(crashed.path());
    let mut listener = Publisher::connect(engine.embedded_broker_address().expect("a broker"));
    listener.subscribe("out/#");
    produce(&broker.address, "in", &[message("d", 0, BEGIN_MS + 2 * 3_600_000)]);
    let (_, payload) = listener.next();
    let result: Value = serde_json::from_slice(&payload).expect("JSON");
    assert_eq!(result, json!({ "n": 99 * 100 / 2, "events": 100 }), "none is read twice");
    assert_eq!(read(&engine), 1);
    engine.shutdown();
}

#[test]
fn a_failure_of_its_code_costs_its_query_and_nobody_else() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    engine.create_application_of(KIND, b"totals sums times 1").expect("registered");
    for id in ["a", "b", "c"] {
        create(&engine, id, 1).expect("a query");
    }
    let mut client = Client::of(&engine);
    const ROUNDS: i64 = 60;
    for round in 0..ROUNDS {
        client.send("a", 1);
        client.send("b", [1, 14, 15, 13][if round == 30 { 3 } else { round as usize % 3 }]);
        client.send("c", 2);
    }
    let (mut results, mut letters) = (HashMap::<String, Vec<i64>>::new(), HashMap::<String, u64>::new());
    for _ in 0..3 * ROUNDS {
        let (topic, message) = client.next();
        match topic.as_str() {
            "dead/b" => {
                assert_eq!((message["reason"].as_str(), message["query"].as_str()), (Some("user_code"), Some("b")));
                *letters.entry(message["detail"].as_str().expect("why").to_owned()).or_default() += 1;
            }
            topic => results.entry(topic.to_owned()).or_default().push(message["result"].as_i64().expect("a number")),
        }
    }
    assert_eq!(results["out/a"], (1..=ROUNDS).collect::<Vec<_>>(), "no row is lost and none is processed twice");
    assert_eq!(results["out/c"], (1..=ROUNDS).map(|n| 2 * n).collect::<Vec<_>>());
    let why: u64 = letters.values().sum();
    assert!(letters.keys().all(|why| why.ends_with("is not allowed") || why == "13 brings bad luck"), "{letters:?}");
    // The rows of the query beside a failing one in its batch go with it.
    assert!(why >= 2 * ROUNDS as u64 / 3, "{letters:?}");
    let of_b: Vec<i64> = results.get("out/b").cloned().unwrap_or_default();
    assert_eq!(of_b, (1..=of_b.len() as i64).collect::<Vec<_>>(), "what failed has left no trace in the state");
    assert_eq!(of_b.len() as u64 + why, ROUNDS as u64);
    assert_eq!((refused(&engine, "user_code"), refused(&engine, "internal")), (why, 0));
    let counted = engine
        .metrics()
        .lines()
        .any(|line| line.contains("reason=\"user_code\"") && line.ends_with(&format!(" {why}")));
    assert!(counted, "{}", engine.metrics());

    // The query itself goes on too, also after a restart.
    client.send("b", 13);
    assert_eq!(client.next().1["detail"].as_str(), Some("13 brings bad luck"));
    assert_eq!(client.result("b", 1), of_b.len() as i64 + 1);
    engine.shutdown();
    drop((client, engine));
    let engine = open(folder.path());
    let mut client = Client::of(&engine);
    assert_eq!((client.result("b", 1), client.result("a", 1)), (of_b.len() as i64 + 2, ROUNDS + 1));
}

/// Written by the version before kinds of code were noted (format 6), in November 2026: an application, the version
/// before it, a query.
fn catalog_6() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this");
    Path::new(&package).join("tests/data/catalog-6/catalog.redb")
}

#[test]
fn a_catalog_without_kinds_of_code_is_read() {
    let folder = TempDir::new().expect("a folder");
    std::fs::create_dir(folder.path().join("data")).expect("a folder");
    std::fs::copy(catalog_6(), folder.path().join("data/catalog.redb")).expect("copied");
    let catalog = rivulet::catalog::Catalog::open(&folder.path().join("data")).expect("a catalog");
    let stored = catalog.applications().expect("read").pop().expect("an application");
    assert_eq!((stored.kind.as_str(), stored.name.name.as_str()), ("sql", "steps"));
    let versions = catalog.versions(stored.number).expect("read");
    assert!(versions.len() == 1 && versions[0].kind == "sql" && versions[0].text().contains("n - lag(n) AS step"));
    drop(catalog);
    let engine = open(folder.path());
    let mut client = Client::of(&engine);
    client.send("a", 1);
    client.next();
    client.send("a", 4);
    assert_eq!(client.next().1["step"], 30);
}
