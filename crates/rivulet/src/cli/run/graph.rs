//! A job as a graph in JSON: named sources, operators, sinks, and the links between them. It becomes a script of
//! statements, so there is one planner for both.
//!
//! Each line of the script belongs to a place of the graph, so an error of the planner is told with a JSON pointer.
//! What must hold: no member of the graph is passed over, and the partitioning of a link changes no result, except
//! that a `route` says which rows its target takes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Display;

use rivulet_sql::{Statement, parse_script, relations_of};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::service::ServiceError;

const MEMBERS: &str = "a job has sources, operators, sinks, links and with; a source or sink has name, address, \
                       columns, format and with; an operator has name and select; a link has from, to and \
                       partitioning";

const SOURCES: &str = "sources";
const OPERATORS: &str = "operators";
const SINKS: &str = "sinks";

/// The outermost object. Its lists are read one by one, so that an error has the pointer of the element.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Job {
    sources: Vec<Box<RawValue>>,
    operators: Vec<Box<RawValue>>,
    sinks: Vec<Box<RawValue>>,
    links: Vec<Box<RawValue>>,
    #[serde(default)]
    with: Vec<String>,
}

/// A source or a sink.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct End {
    name: String,
    address: String,
    #[serde(default)]
    columns: Vec<String>,
    format: Option<String>,
    #[serde(default)]
    with: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Operator {
    name: String,
    select: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Link {
    from: String,
    to: String,
    #[serde(default)]
    partitioning: Partitioning,
}

/// How the rows of a link come to the instances of its target; with `Route`, which rows.
#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Partitioning {
    #[default]
    Forward,
    RoundRobin,
    Broadcast,
    /// By these columns.
    Hash(Vec<String>),
    /// The rows of which this column is the name of the target.
    Route(String),
}

/// Names in order, each with its list and its place there.
type Names<'g> = BTreeMap<&'g str, (&'static str, usize)>;

/// The links that lead to each operator and sink, with their places.
type Inputs<'g> = HashMap<&'g str, Vec<(usize, &'g Link)>>;

struct Graph {
    sources: Vec<End>,
    operators: Vec<Operator>,
    sinks: Vec<End>,
    links: Vec<Link>,
    /// Options of every query.
    with: Vec<String>,
}

/// The script of a job: texts of whole lines, each with the JSON pointer of its place in the graph.
#[derive(Debug, Default)]
pub(super) struct Statements {
    parts: Vec<(String, String)>,
}

/// Makes the statements of a job: each source, operator and sink becomes one that creates it, and the links into a sink
/// become its query.
///
/// # Errors
/// The text is not JSON (the error has line and column), or no job (the message ends with a JSON pointer). What is
/// wrong within an SQL text is left to the planner: see [`Statements::place`].
pub(super) fn statements(json: &str) -> Result<Statements, ServiceError> {
    let graph = Graph::read(json)?;
    let names = graph.names()?;
    graph.check_links(&names)?;
    let (mut inputs, mut small) = (Inputs::new(), HashMap::new());
    for (number, link) in graph.links.iter().enumerate() {
        inputs.entry(link.to.as_str()).or_default().push((number, link));
        if matches!(link.partitioning, Partitioning::Broadcast) {
            small.insert(link.from.as_str(), number);
        }
    }
    graph.check_ends(&names, &inputs)?;
    let mut out = Statements::default();
    // A source may name a sink of refused rows, which is declared before it.
    for (place, sink) in graph.sinks.iter().enumerate() {
        out.end(["SINK", "TO"], &format!("/{SINKS}/{place}"), sink, None);
    }
    for (place, source) in graph.sources.iter().enumerate() {
        out.end(["SOURCE", "FROM"], &format!("/{SOURCES}/{place}"), source, small.get(source.name.as_str()));
    }
    for name in graph.ordered(&inputs)? {
        let place = names[name].1;
        let (operator, inputs) = (&graph.operators[place], &inputs[name]);
        operator.check_reads(&format!("/{OPERATORS}/{place}/select"), inputs, &names)?;
        out.operator(&format!("/{OPERATORS}/{place}"), operator, inputs);
    }
    for (place, sink) in graph.sinks.iter().enumerate() {
        if let Some(inputs) = inputs.get(sink.name.as_str()) {
            out.query(&format!("/{SINKS}/{place}"), sink, inputs, &graph.with);
        }
    }
    Ok(out)
}

impl Graph {
    fn read(json: &str) -> Result<Self, ServiceError> {
        let job: Job = serde_json::from_str(json).map_err(|error| {
            let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
            let what = if error.is_data() { "" } else { "not JSON: " };
            ServiceError::invalid(format!("{what}{}", words(&error)))
                .at(number(error.line()), number(error.column()))
                .with_hint(MEMBERS)
        })?;
        Ok(Self {
            sources: list(&job.sources, SOURCES)?,
            operators: list(&job.operators, OPERATORS)?,
            sinks: list(&job.sinks, SINKS)?,
            links: list(&job.links, "links")?,
            with: job.with,
        })
    }

    fn names(&self) -> Result<Names<'_>, ServiceError> {
        let sources = self.sources.iter().enumerate().map(|(place, one)| (&one.name, (SOURCES, place)));
        let operators = self.operators.iter().enumerate().map(|(place, one)| (&one.name, (OPERATORS, place)));
        let sinks = self.sinks.iter().enumerate().map(|(place, one)| (&one.name, (SINKS, place)));
        let mut names = Names::new();
        for (name, (list, place)) in sources.chain(operators).chain(sinks) {
            if let Some((other, first)) = names.insert(name, (list, place)) {
                return Err(wrong(format!("the name '{name}' is used twice"), &format!("/{list}/{place}/name"))
                    .with_hint(format!("/{other}/{first} has it too; links find their ends by name")));
            }
        }
        Ok(names)
    }

    /// Checks what each link connects.
    fn check_links(&self, names: &Names<'_>) -> Result<(), ServiceError> {
        let mut known = HashSet::new();
        for (number, Link { from, to, partitioning }) in self.links.iter().enumerate() {
            let list_of = |end: &str, name: &str| match names.get(name) {
                Some((list, _)) => Ok(*list),
                None => Err(wrong(format!("nothing has the name '{name}'"), &format!("/links/{number}/{end}"))
                    .suggesting(name, names.keys().copied(), "links find their ends by name")),
            };
            let ends = (list_of("from", from)?, list_of("to", to)?);
            let (place, message, hint) = match (ends, partitioning) {
                ((SINKS, _), _) => ("from", format!("the sink '{from}' gives no rows"), "link its inputs instead"),
                ((_, SOURCES), _) => ("to", format!("the source '{to}' takes no rows"), "link to an operator or sink"),
                (_, Partitioning::Broadcast) if ends != (SOURCES, OPERATORS) => {
                    let message = format!("the rows of '{from}' cannot be broadcast to '{to}'");
                    ("partitioning", message, "only a source can be broadcast, and only to an operator")
                }
                (_, Partitioning::Hash(columns)) if columns.is_empty() => {
                    ("partitioning/hash", "hash needs a column".to_owned(), "write {\"hash\": [\"column\"]}")
                }
                _ if !known.insert((from, to)) => {
                    ("to", format!("a second link leads from '{from}' to '{to}'"), "leave one of them out")
                }
                _ => continue,
            };
            return Err(wrong(message, &format!("/links/{number}/{place}")).with_hint(hint));
        }
        Ok(())
    }

    /// Checks that every operator and sink has an input, and that the rows of every source and operator go somewhere.
    fn check_ends(&self, names: &Names<'_>, inputs: &Inputs<'_>) -> Result<(), ServiceError> {
        let giving: HashSet<&str> = self.links.iter().map(|link| link.from.as_str()).collect();
        for (name, (list, place)) in names {
            // A sink may take the refused rows of a source.
            let takes_refused =
                || *list == SINKS && self.sources.iter().flat_map(|one| &one.with).any(|it| it.contains(&text(name)));
            let message = if *list != SOURCES && !inputs.contains_key(*name) && !takes_refused() {
                format!("no link leads to '{name}'")
            } else if *list != SINKS && !giving.contains(*name) {
                format!("no link takes the rows of '{name}'")
            } else {
                continue;
            };
            let hint = "add a link, {\"from\": \"...\", \"to\": \"...\"}, or leave it out";
            return Err(wrong(message, &format!("/{list}/{place}")).with_hint(hint));
        }
        Ok(())
    }

    /// The names of the operators, each behind those that it reads.
    fn ordered<'g>(&'g self, inputs: &Inputs<'g>) -> Result<Vec<&'g str>, ServiceError> {
        let mut ready: HashSet<&str> = self.sources.iter().map(|source| source.name.as_str()).collect();
        let mut ordered = Vec::with_capacity(self.operators.len());
        for operator in &self.operators {
            // Each one waits for the one behind it.
            let mut path = vec![operator.name.as_str()];
            while let Some(&last) = path.last() {
                let Some((number, link)) = inputs[last].iter().find(|(_, link)| !ready.contains(link.from.as_str()))
                else {
                    path.pop();
                    if ready.insert(last) {
                        ordered.push(last);
                    }
                    continue;
                };
                let start = path.iter().position(|name| *name == link.from);
                path.push(&link.from);
                if let Some(start) = start {
                    path[start..].reverse();
                    let message = format!("the links make a circle: {}", path[start..].join(" -> "));
                    return Err(wrong(message, &format!("/links/{number}"))
                        .with_hint("no result can be an input of what it is made of: leave one of these links out"));
                }
            }
        }
        Ok(ordered)
    }
}

impl Operator {
    /// Checks that FROM and the links name the same inputs. What cannot be parsed is refused where the script is.
    fn check_reads(&self, pointer: &str, inputs: &[(usize, &Link)], names: &Names<'_>) -> Result<(), ServiceError> {
        let Ok(parsed) = parse_script(&format!("CREATE VIEW v AS {}", self.select)) else { return Ok(()) };
        let [(Statement::CreateView(view), _)] = parsed.as_slice() else {
            return Err(wrong("an operator is one SELECT", pointer).with_hint("write an operator for each"));
        };
        let relations = relations_of(&view.query)?;
        let known = |parts: &[String]| {
            parts.first().filter(|_| parts.len() == 1).and_then(|name| names.get_key_value(name.as_str()))
        };
        let read: BTreeSet<&str> =
            relations.iter().filter_map(|(parts, _)| known(parts)).map(|(name, _)| *name).collect();
        let linked: BTreeSet<&str> = inputs.iter().map(|(_, link)| link.from.as_str()).collect();
        match read.symmetric_difference(&linked).next() {
            Some(name) if linked.contains(name) => {
                Err(wrong(format!("FROM does not name the input '{name}'"), pointer)
                    .with_hint("leave the link out; or write a name with capital letters in double quotes"))
            }
            Some(name) => Err(wrong(format!("no link leads here from '{name}'"), pointer).with_hint("add the link")),
            None => Ok(()),
        }
    }
}

impl Statements {
    /// The statements.
    pub(super) fn sql(&self) -> String {
        self.parts.iter().map(|(_, text)| format!("{text}\n")).collect()
    }

    /// Where a line of the statements, from 1, comes from: the JSON pointer, the text of that place, and the line in
    /// this text.
    pub(super) fn place(&self, line: u32) -> Option<(&str, &str, u32)> {
        let mut lines = self.parts.iter().flat_map(|(pointer, text)| {
            (1..).zip(text.split('\n')).map(move |(number, _)| (pointer.as_str(), text.as_str(), number))
        });
        lines.nth(usize::try_from(line).ok()?.checked_sub(1)?)
    }

    fn add(&mut self, pointer: impl Into<String>, text: impl Into<String>) {
        self.parts.push((pointer.into(), text.into()));
    }

    /// Adds a list in parentheses, unless it is empty.
    fn list(&mut self, opening: &str, items: Vec<(String, String)>) {
        let last = items.len().saturating_sub(1);
        for (place, (pointer, item)) in items.into_iter().enumerate() {
            let before = if place == 0 { opening } else { "" };
            let behind = if place == last { "\n)" } else { "," };
            self.add(pointer, format!("{before}{item}{behind}"));
        }
    }

    /// Creates a source or a sink. `broadcast` is the link that sends a source to every instance.
    fn end(&mut self, [what, word]: [&str; 2], pointer: &str, end: &End, broadcast: Option<&usize>) {
        self.add(format!("{pointer}/name"), format!("CREATE {what} {}", quoted(&end.name)));
        self.list("(", items(&end.columns, &format!("{pointer}/columns")));
        self.add(format!("{pointer}/address"), format!("{word} {}", text(&end.address)));
        if let Some(format) = &end.format {
            self.add(format!("{pointer}/format"), format!("FORMAT {format}"));
        }
        let mut options = items(&end.with, &format!("{pointer}/with"));
        options.extend(broadcast.map(|link| (format!("/links/{link}/partitioning"), "size => 'small'".to_owned())));
        self.list("WITH (", options);
        self.add(pointer, ";");
    }

    /// Creates the view of an operator.
    fn operator(&mut self, pointer: &str, operator: &Operator, inputs: &[(usize, &Link)]) {
        self.check_hashes(inputs);
        self.add(format!("{pointer}/name"), format!("CREATE VIEW {} AS", quoted(&operator.name)));
        // Within the view, the name of an input with a route means the rows of this target.
        let mut word = "WITH";
        for (number, link) in inputs {
            if matches!(link.partitioning, Partitioning::Route(_)) {
                let named = format!("{word} {} AS ({})", quoted(&link.from), rows(link));
                self.add(format!("/links/{number}/partitioning"), named);
                word = ",";
            }
        }
        let select = operator.select.trim_start();
        let select = match select.get(..4) {
            Some(own) if word == "," && own.eq_ignore_ascii_case("with") => format!(",{}", &select[4..]),
            _ => operator.select.clone(),
        };
        self.add(format!("{pointer}/select"), format!("{select}\n;"));
    }

    /// Creates the query that writes into a sink.
    fn query(&mut self, pointer: &str, sink: &End, inputs: &[(usize, &Link)], with: &[String]) {
        self.check_hashes(inputs);
        let name = quoted(&sink.name);
        self.add(pointer, format!("CREATE QUERY {name} AS INSERT INTO {name}"));
        let mut before = "";
        for (number, link) in inputs {
            self.add(format!("/links/{number}"), format!("{before}{}", rows(link)));
            before = "UNION ALL ";
        }
        self.list("WITH (", items(with, "/with"));
        self.add(pointer, ";");
    }

    /// Has the planner check that the columns of each hash are there, by a view that nothing reads.
    fn check_hashes(&mut self, inputs: &[(usize, &Link)]) {
        for (number, link) in inputs {
            let Partitioning::Hash(columns) = &link.partitioning else { continue };
            let pointer = format!("/links/{number}/partitioning");
            self.add(pointer.as_str(), format!("CREATE VIEW {} AS SELECT", quoted(&pointer)));
            for (place, column) in columns.iter().enumerate() {
                let comma = if place == 0 { "" } else { "," };
                self.add(format!("{pointer}/hash/{place}"), format!("{comma}{}", quoted(column)));
            }
            self.add(format!("/links/{number}/from"), format!("FROM {};", quoted(&link.from)));
        }
    }
}

/// The elements of a list of the graph.
fn list<T: DeserializeOwned>(elements: &[Box<RawValue>], name: &str) -> Result<Vec<T>, ServiceError> {
    let read = elements.iter().enumerate().map(|(place, element)| {
        serde_json::from_str(element.get())
            .map_err(|error| wrong(words(&error), &format!("/{name}/{place}")).with_hint(MEMBERS))
    });
    read.collect()
}

/// The words of an error of the parser, without the position behind them.
fn words(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&position).unwrap_or(&text).to_owned()
}

/// An error at a place of the graph.
fn wrong(message: impl Display, pointer: &str) -> ServiceError {
    ServiceError::invalid(format!("{message}, at {pointer}"))
}

/// The texts of a list, each with its pointer.
fn items(list: &[String], pointer: &str) -> Vec<(String, String)> {
    list.iter().enumerate().map(|(place, item)| (format!("{pointer}/{place}"), item.clone())).collect()
}

/// The rows that a link brings.
fn rows(link: &Link) -> String {
    let all = format!("SELECT * FROM {}", quoted(&link.from));
    match &link.partitioning {
        Partitioning::Route(column) => format!("{all} WHERE {} = {}", quoted(column), text(&link.to)),
        _ => all,
    }
}

/// A name in SQL. It is always in quotes, because it is exactly what the graph says.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text in SQL.
fn text(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{Script, Step};

    const SOURCE: &str = r#"{"name": "bids", "address": "nexmark:bid", "with": ["events => 10"]}"#;
    const SINK: &str = r#"{"name": "out", "address": "blackhole:"}"#;

    /// A job with one source and one sink.
    fn job(operators: &str, links: &str) -> String {
        format!(r#"{{"sources": [{SOURCE}], "operators": [{operators}], "sinks": [{SINK}], "links": [{links}]}}"#)
    }

    /// Why a job is refused: message and hint.
    fn refused(json: &str) -> (String, String) {
        let error = statements(json).expect_err(json);
        (error.message, error.hint.unwrap_or_default())
    }

    /// The names of the queries of a script.
    fn planned(sql: &str) -> Vec<String> {
        let mut script = Script::parse(sql).unwrap();
        let mut names = Vec::new();
        while let Some(step) = script.next_step().unwrap() {
            let Step::Run(query) = step else { panic!("it runs queries") };
            names.push(query.name);
        }
        names
    }

    /// The pointer of what the planner refuses, the line there, and the error.
    fn refused_by_planner(json: &str) -> (String, u32, ServiceError) {
        let script = statements(json).unwrap_or_else(|error| panic!("{json}: {error}"));
        let run = || -> Result<(), ServiceError> {
            let mut statements = Script::parse(&script.sql())?;
            while statements.next_step()?.is_some() {}
            Ok(())
        };
        let error = run().expect_err(json);
        let (pointer, _, line) = script.place(error.line.expect("a line")).expect("a place");
        (pointer.to_owned(), line, error)
    }

    #[test]
    fn a_job_becomes_statements_in_the_order_of_its_links() {
        let operators = r#"{"name": "dear", "select": "SELECT auction FROM rated"}, {"name": "rated",
            "select": "SELECT auction, CASE WHEN price > 9 THEN 'dear' ELSE 'out' END AS kind FROM bids"}"#;
        let links = r#"{"from": "rated", "to": "dear", "partitioning": {"route": "kind"}},
            {"from": "bids", "to": "rated", "partitioning": "broadcast"},
            {"from": "rated", "to": "Dear's"},
            {"from": "dear", "to": "out", "partitioning": {"hash": ["auction"]}}"#;
        let second = r#"{"name": "Dear's", "address": "blackhole:", "columns": ["auction BIGINT", "kind TEXT"]}"#;
        let json = job(operators, links).replace(SINK, &format!("{SINK}, {second}"));
        let json = format!("{}, \"with\": [\"fuse => 'none'\"]}}", json.strip_suffix('}').unwrap());
        let script = statements(&json).unwrap();
        let expected = "CREATE SINK \"out\" TO 'blackhole:' ; \
            CREATE SINK \"Dear's\" (auction BIGINT, kind TEXT ) TO 'blackhole:' ; \
            CREATE SOURCE \"bids\" FROM 'nexmark:bid' WITH (events => 10, size => 'small' ) ; \
            CREATE VIEW \"rated\" AS \
            SELECT auction, CASE WHEN price > 9 THEN 'dear' ELSE 'out' END AS kind FROM bids ; \
            CREATE VIEW \"dear\" AS WITH \"rated\" AS (SELECT * FROM \"rated\" WHERE \"kind\" = 'dear') \
            SELECT auction FROM rated ; \
            CREATE VIEW \"/links/3/partitioning\" AS SELECT \"auction\" FROM \"dear\"; \
            CREATE QUERY \"out\" AS INSERT INTO \"out\" SELECT * FROM \"dear\" WITH (fuse => 'none' ) ; \
            CREATE QUERY \"Dear's\" AS INSERT INTO \"Dear's\" SELECT * FROM \"rated\" WITH (fuse => 'none' ) ;";
        let sql = script.sql();
        assert_eq!(sql.split_whitespace().collect::<Vec<_>>().join(" "), expected);
        assert_eq!(planned(&sql), ["out", "Dear's"]);
    }

    #[test]
    fn a_query_with_a_with_of_its_own_has_routes_too() {
        let rated = "SELECT *, CASE WHEN price > 9 THEN 'all' ELSE 'out' END AS kind FROM bids";
        let all = " with dear AS (SELECT * FROM rated WHERE price > 99) SELECT * FROM dear";
        let operators = format!(r#"{{"name": "rated", "select": "{rated}"}}, {{"name": "all", "select": "{all}"}}"#);
        let links = r#"{"from": "bids", "to": "rated"}, {"from": "all", "to": "out"},
            {"from": "rated", "to": "all", "partitioning": {"route": "kind"}},
            {"from": "rated", "to": "out", "partitioning": {"route": "kind"}}"#;
        let sql = statements(&job(&operators, links)).unwrap().sql();
        assert!(sql.contains("\"kind\" = 'all')\n, dear AS ("), "{sql}");
        // Links into one sink are one query.
        assert!(sql.contains("\"all\"\nUNION ALL SELECT * FROM \"rated\" WHERE \"kind\" = 'out'\n;"), "{sql}");
        assert_eq!(planned(&sql), ["out"]);
    }

    #[test]
    fn text_that_is_not_json_has_line_and_column() {
        let error = statements("{\"sources\": [],\n  \"sinks\": [}").unwrap_err();
        assert!(error.message.starts_with("not JSON: expected value"), "{error}");
        assert_eq!((error.line, error.column), (Some(2), Some(13)));
        let error = statements("{\"sources\": [], \"sinks\": [],\n \"edges\": []}").unwrap_err();
        assert!(error.message.contains("unknown field `edges`") && error.line == Some(2), "{error}");
        assert!(statements("").unwrap_err().message.starts_with("not JSON: "));
    }

    #[test]
    fn an_element_of_another_form_has_its_pointer() {
        let link = r#"{"from": "bids", "to": "out"}"#;
        for (json, expected) in [
            (job(r#"{"name": "a"}"#, link), "missing field `select`, at /operators/0"),
            (job(r#"{"name": "a", "select": "x", "keys": []}"#, link), "unknown field `keys`"),
            (job(r#"{"name": "a", "name": "b", "select": "x"}"#, link), "duplicate field `name`, at /operators/0"),
            (job("7", link), "expected an object, at /operators/0"),
            (job("", r#"{"from": "bids", "to": "out", "partitioning": "sideways"}"#), "unknown variant `sideways`"),
            (job("", r#"{"from": "bids", "to": "out", "partitioning": "hash"}"#), ", at /links/0"),
        ] {
            let (message, hint) = refused(&json);
            assert!(message.contains(expected) && hint.contains("an operator has name and select"), "{message}");
        }
    }

    #[test]
    fn a_name_that_is_used_twice_is_refused() {
        let (message, hint) = refused(&job(r#"{"name": "out", "select": "SELECT * FROM bids"}"#, ""));
        assert_eq!(message, "the name 'out' is used twice, at /sinks/0/name");
        assert!(hint.starts_with("/operators/0 has it too"), "{hint}");
    }

    #[test]
    fn links_that_make_a_circle_are_refused() {
        let operators = r#"{"name": "a", "select": "SELECT * FROM c"}, {"name": "b", "select": "SELECT * FROM a"},
            {"name": "c", "select": "SELECT * FROM b UNION ALL SELECT * FROM bids"}"#;
        let links = r#"{"from": "a", "to": "b"}, {"from": "b", "to": "c"}, {"from": "c", "to": "a"},
            {"from": "bids", "to": "c"}, {"from": "a", "to": "out"}"#;
        let (message, hint) = refused(&job(operators, links));
        assert_eq!(message, "the links make a circle: a -> b -> c -> a, at /links/0");
        assert!(hint.contains("leave one of these links out"));
        let one = r#"{"name": "a", "select": "SELECT * FROM a"}"#;
        let links = r#"{"from": "a", "to": "a"}, {"from": "bids", "to": "out"}"#;
        assert_eq!(refused(&job(one, links)).0, "the links make a circle: a -> a, at /links/0");
    }

    #[test]
    fn links_that_connect_nothing_are_refused() {
        let view = r#"{"name": "view", "select": "SELECT * FROM bids"}"#;
        for (links, expected, hint) in [
            (
                r#"{"from": "bids", "to": "veiw"}"#,
                "nothing has the name 'veiw', at /links/0/to",
                "did you mean 'view'?",
            ),
            (r#"{"from": "out", "to": "view"}"#, "the sink 'out' gives no rows, at /links/0/from", ""),
            (r#"{"from": "view", "to": "bids"}"#, "the source 'bids' takes no rows, at /links/0/to", ""),
            (
                r#"{"from": "bids", "to": "view"}, {"from": "bids", "to": "view"}"#,
                "a second link leads from 'bids' to 'view', at /links/1/to",
                "",
            ),
            (
                r#"{"from": "view", "to": "out", "partitioning": "broadcast"}"#,
                "the rows of 'view' cannot be broadcast to 'out', at /links/0/partitioning",
                "only a source can be broadcast",
            ),
            (
                r#"{"from": "bids", "to": "view", "partitioning": {"hash": []}}"#,
                "hash needs a column, at /links/0/partitioning/hash",
                "",
            ),
        ] {
            let (message, told) = refused(&job(view, links));
            assert_eq!(message, expected);
            assert!(!told.is_empty() && told.contains(hint), "{told}");
        }
    }

    #[test]
    fn what_has_no_input_or_leads_nowhere_is_refused() {
        let view = r#"{"name": "view", "select": "SELECT * FROM bids"}"#;
        let to_sink = r#"{"from": "bids", "to": "out"}"#;
        let of_view = format!(r#"{to_sink}, {{"from": "view", "to": "out"}}"#);
        assert_eq!(refused(&job(view, &of_view)).0, "no link leads to 'view', at /operators/0");
        let into_view = format!(r#"{to_sink}, {{"from": "bids", "to": "view"}}"#);
        assert_eq!(refused(&job(view, &into_view)).0, "no link takes the rows of 'view', at /operators/0");
        assert_eq!(refused(&job("", "")).0, "no link takes the rows of 'bids', at /sources/0");
        // A sink of refused rows needs no link.
        let letters = format!(r#"{SINK}, {{"name": "bad", "address": "blackhole:"}}"#);
        let json = job("", to_sink).replace(SINK, &letters);
        assert_eq!(refused(&json).0, "no link leads to 'bad', at /sinks/1");
        assert!(statements(&json.replace("\"events => 10\"", "\"dead_letter => 'bad'\"")).is_ok());
    }

    #[test]
    fn from_and_links_name_the_same_inputs() {
        let links = r#"{"from": "bids", "to": "view"}, {"from": "view", "to": "out"}"#;
        let view = |select: &str| job(&format!(r#"{{"name": "view", "select": "{select}"}}"#), links);
        let (message, hint) = refused(&view("SELECT 1 AS one"));
        assert_eq!(message, "FROM does not name the input 'bids', at /operators/0/select");
        assert!(hint.contains("double quotes"));
        let (message, hint) = refused(&view("SELECT * FROM bids, out"));
        assert_eq!(message, "no link leads here from 'out', at /operators/0/select");
        assert_eq!(hint, "add the link");
        let two = view("SELECT * FROM bids; SELECT * FROM bids");
        assert_eq!(refused(&two).0, "an operator is one SELECT, at /operators/0/select");
    }

    #[test]
    fn what_the_planner_refuses_has_its_place_in_the_graph() {
        let view = |select: &str, link: &str| {
            let links = format!(r#"{{"from": "bids", "to": "view"{link}}}, {{"from": "view", "to": "out"}}"#);
            job(&format!(r#"{{"name": "view", "select": "{select}"}}"#), &links)
        };
        let all = "SELECT * FROM bids";
        for (json, pointer, line, word) in [
            (view("SELECT\\n  auctoin FROM bids", ""), "/operators/0/select", 2, "auctoin"),
            (view("SELEKT * FROM bids", ""), "/operators/0/select", 1, "SELECT"),
            (view("SELECT * FROM bids INTO out", ""), "/operators/0/select", 1, "sink"),
            (
                view(all, r#", "partitioning": {"hash": ["auction", "bider"]}"#),
                "/links/0/partitioning/hash/1",
                1,
                "bider",
            ),
            (view(all, r#", "partitioning": {"route": "kind"}"#), "/links/0/partitioning", 1, "kind"),
            (view(all, "").replace("events => 10", "event => 10"), "/sources/0/with/0", 1, "event"),
            (
                view(all, "").replace(r#"bid""#, r#"bid", "columns": ["a BIGINT", "b BIGNT"]"#),
                "/sources/0/columns/1",
                1,
                "",
            ),
            (
                view(all, "").replace(r#"nexmark:bid""#, r#"nexmrk:bid", "columns": ["a BIGINT"]"#),
                "/sources/0/address",
                1,
                "nexmrk",
            ),
            (view(all, "").replace("blackhole:", "blackhoel:"), "/sinks/0/address", 1, "blackhoel"),
        ] {
            let (found, at, error) = refused_by_planner(&json);
            assert_eq!((found.as_str(), at), (pointer, line), "{json}: {error}");
            assert!(error.message.contains(word), "{error}");
        }
    }
}
