//! An application: all that the engine needs to run code that was registered once for any number of queries, whatever
//! language the code is written in.
//!
//! [`Application`] is what the engine looks at: parameters, inputs, outputs, operators. [`ApplicationCode`] is what
//! only the language of the code can answer. A loader for each kind of code makes an application of the bytes that the
//! catalog keeps.

mod address;
mod literal;
mod migration;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use rivulet_dataflow::{Cut, Line, panic_text};

use crate::{Match, Table};

pub use address::{Address, FormatSpec, Part};
pub use literal::{Literal, interval_text};
pub use migration::{Alteration, StateMigration, alteration, migration};

/// What only the language of an application's code can answer.
pub trait ApplicationCode: Send + Sync {
    /// Checks each row of bound parameters by the application's own rules, for example that windows have a length. One
    /// result for each row. The rows have the application's parameter schema.
    fn check(&self, rows: &RecordBatch) -> Vec<Result<(), BindError>>;

    /// The application in words, for `EXPLAIN`.
    fn explain(&self, application: &Application) -> String;

    /// What the operator at a place does for all queries, in the language of the code. With its kind, the form of its
    /// state and the parameters that stand there as `$name`, that is the signature of its state: an operator of the
    /// next version with the same signature takes the state over.
    fn steps(&self, place: usize) -> &[String];

    /// The same, written in one way however the code says it: state stays where the words have changed and this has
    /// not.
    fn meaning(&self, place: usize) -> &[String] {
        self.steps(place)
    }
}

/// Makes applications of code of one kind.
pub trait CodeLoader: Send + Sync {
    /// Makes an application of code, over these reference tables. It has the kind of this loader, and bytes of which
    /// the loader makes the same application again.
    ///
    /// # Errors
    /// What is wrong with the code, and where.
    fn load(&self, bytes: &[u8], tables: &Tables) -> Result<Application, LoadError>;

    /// The names of the reference tables in the code, as far as it can be read; also of code that cannot be loaded now.
    fn table_names(&self, bytes: &[u8]) -> Vec<String>;

    /// What in the code is read as an earlier version read it, and what to write instead.
    fn warnings(&self, _bytes: &[u8]) -> Vec<String> {
        Vec::new()
    }
}

/// Code that cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", hint.as_ref().map(|hint| format!("\nhint: {hint}")).unwrap_or_default())]
pub struct LoadError {
    /// What is wrong, in one sentence without a full stop.
    pub message: String,
    /// Line and column in the code, from 1; zeros if it is no text.
    pub position: (u32, u32),
    /// What to do about it.
    pub hint: Option<String>,
}

/// A registered application: its declarations, its operators, and its code.
///
/// Loaded once; serves any number of queries.
#[derive(Clone)]
pub struct Application {
    /// The name.
    pub name: String,
    /// The identity: SHA-256 (hex) of what the code says. The same code has the same identity; of a text, however it is
    /// laid out.
    pub id: String,
    /// The kind of code, for example `sql`: which loader reads the bytes.
    pub kind: &'static str,
    /// What the catalog keeps: the loader makes the same application of it. Of a text the text as written.
    pub bytes: Vec<u8>,
    /// The parameters in order of declaration; the implicit ones, which are topics, come last.
    pub parameters: Arc<[Parameter]>,
    /// The places of those that stand in an expression or in the address of an input. Queries that are equal in them
    /// give equal rows for equal events; the other parameters only say where results go.
    pub deciding_parameters: Vec<usize>,
    /// What it reads, in order of declaration: at least one.
    pub inputs: Vec<Input>,
    /// The columns of decoded rows: those of the input; of several inputs the number of the input (`UInt8`), then the
    /// columns of all of them, nullable.
    pub row_schema: SchemaRef,
    /// What it writes: at least one.
    pub outputs: Vec<Output>,
    /// Whether result rows end with a column of bits (`UInt32`, the lowest for the first output) that says to which
    /// outputs they go. Otherwise every row goes to every output.
    pub has_output_bits: bool,
    /// The operators.
    pub dataflow: Line,
    /// The parameters as the schema of slot tables.
    pub parameter_schema: SchemaRef,
    /// The reference tables it looks events up in, in order.
    pub tables: Vec<TableUse>,
    /// What of WHERE tells by an index which queries on one topic a row can concern.
    pub matching: Option<Match>,
    /// How the dataflow runs as several instances side by side, if it can: so a single query may have more than one
    /// worker.
    pub cut: Cut,
    /// What its author should know, in words: what is shown with the application.
    pub warnings: Vec<String>,
    /// The code itself.
    pub code: Arc<dyn ApplicationCode>,
}

/// The reference tables that there are, by name: a table, or why it has no rows.
pub type Tables = BTreeMap<String, Result<Arc<Table>, String>>;

/// How an application looks events up in a reference table.
#[derive(Clone, Debug)]
pub struct TableUse {
    /// The table.
    pub table: Arc<Table>,
    /// How rows are found.
    pub index: TableIndex,
}

/// What finds the rows of a table for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableIndex {
    /// Nothing: every row is tried for each event.
    None,
    /// A hash index of this column.
    Key(String),
    /// An index of places, in these columns.
    Places {
        /// The column of latitudes.
        latitude: String,
        /// The column of longitudes.
        longitude: String,
    },
}

/// A declared parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The name; `$name` in the SELECT, `{name}` in addresses.
    pub name: String,
    /// `Utf8`, `Int64`, `Float64`, `Boolean`, `Timestamp(Microsecond, None)` or `Interval(MonthDayNano)`.
    pub data_type: DataType,
    /// The value if none is given, in the parameter's type; a parameter without default must be given.
    pub default: Option<Literal>,
    /// Whether it stands in an address, so that it cannot be null or empty.
    pub in_address: bool,
    /// Whether it is a whole address, so that a prefix `mqtt:` is accepted (and dropped).
    pub is_address: bool,
}

/// What an application reads.
#[derive(Clone, Debug)]
pub struct Input {
    /// The name, as in FROM.
    pub name: String,
    /// The declared columns. The implicit `arrival_time` is not among them.
    pub schema: SchemaRef,
    /// The index of the EVENT TIME column; without one the arrival time is the event time.
    pub event_time: Option<usize>,
    /// The columns that are computed of the others, in words: name and expression. They are not in `schema`.
    pub computed: Vec<(String, String)>,
    /// The index of the one of them that is the event time.
    pub computed_event_time: Option<usize>,
    /// Which columns come from the topic of an event.
    pub topic: TopicColumns,
    /// Where events come from.
    pub address: Address,
    /// How that is read, where it is no topic.
    pub source: Option<SourceInput>,
    /// How payloads are written.
    pub format: FormatSpec,
    /// How far a row may be behind the newest one of its query and still count, microseconds.
    pub lateness_us: i64,
    /// After how long without an event a query's clock goes on by itself, microseconds.
    pub idle_timeout_us: i64,
    /// How far a row's event time may lie after its arrival, microseconds.
    pub future_limit_us: i64,
    /// What happens to an event when the inbox is full.
    pub overflow: Overflow,
    /// What of it survives the end of the process; `None` if that is not said here.
    pub durability: Option<Durability>,
    /// Where late rows go, if anybody wants them.
    pub late: Option<Address>,
    /// Where payloads and rows go that cannot be processed, if anybody wants them.
    pub dead_letter: Option<Address>,
}

/// The columns of an input that come from the topic of an event: `Utf8`, and none of them twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicColumns {
    /// The one that is the whole topic.
    pub whole: Option<usize>,
    /// Those that are what the wildcards of the address stand for, in their order: of the first of them, if there are
    /// fewer columns.
    pub levels: Vec<usize>,
    /// Line and column, from 1, where `levels` are named; zeros if nowhere.
    pub levels_position: (u32, u32),
}

/// How an input is read whose events come from another source than MQTT, which gives one stream for all queries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceInput {
    /// The key by which the events of a query are told from those of others; without it every query gets every event.
    pub key: Option<Address>,
    /// The field of the payload that is the key of an event, and where it is named; without it the key that the source
    /// gives the event.
    pub key_field: Option<(String, (u32, u32))>,
    /// The columns that come from the source and not from payloads.
    pub columns: Vec<SourceColumn>,
    /// The options of the source: name, value, and where they stand.
    pub options: Vec<(String, Literal, (u32, u32))>,
}

/// A column that comes from the source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceColumn {
    /// The option that names it.
    pub option: &'static str,
    /// What it has.
    pub part: SourcePart,
    /// Its index.
    pub column: usize,
    /// Line and column where it is named, from 1.
    pub position: (u32, u32),
}

/// What a source says of an event beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePart {
    /// Its key: `Utf8`.
    Key,
    /// The number of its partition: `Int64`.
    Partition,
    /// Its offset there: `Int64`.
    Offset,
    /// When it was sent: `Timestamp(Microsecond, None)`.
    Time,
}

impl SourceInput {
    /// The same but for where it stands in the text.
    #[must_use]
    pub fn without_places(&self) -> Self {
        let mut plain = self.clone();
        plain.key.iter_mut().for_each(|key| key.position = (0, 0));
        plain.key_field.iter_mut().for_each(|(_, position)| *position = (0, 0));
        plain.columns.iter_mut().for_each(|column| column.position = (0, 0));
        plain.options.iter_mut().for_each(|(.., position)| *position = (0, 0));
        plain.options.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        plain
    }
}

impl Input {
    /// The parameters that say which events are those of a query: they stand in the address or the key.
    pub fn address_parameters(&self) -> impl Iterator<Item = usize> + '_ {
        let key = self.source.as_ref().and_then(|source| source.key.as_ref());
        self.address.parameters().chain(key.into_iter().flat_map(Address::parameters))
    }
}

/// What an application writes.
#[derive(Clone, Debug)]
pub struct Output {
    /// The name; one of several has one.
    pub name: Option<String>,
    /// Where results go.
    pub address: Address,
    /// How they are written.
    pub format: FormatSpec,
    /// What is said to the connector of the address, which alone knows what it means.
    pub options: Vec<OutputOption>,
    /// The condition on rows, as written.
    pub condition: Option<String>,
    /// The columns, the same for all outputs: `Utf8`, `Int64`, `Float64`, `Boolean` or `Timestamp(Microsecond, None)`,
    /// all nullable.
    pub schema: SchemaRef,
}

/// An option of an output.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputOption {
    /// The name, in lower case.
    pub name: String,
    /// The value.
    pub value: Literal,
    /// Line and column where the name stands in the text of the application, from 1; zeros if it stands in none.
    pub position: (u32, u32),
}

/// What happens to an event that finds the inbox full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The source stops reading until there is room; nothing is lost.
    #[default]
    Block,
    /// The oldest waiting event is dropped and counted.
    DropOldest,
    /// The new event is dropped and counted.
    DropNewest,
}

impl Overflow {
    /// The name in SQL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::DropOldest => "drop_oldest",
            Self::DropNewest => "drop_newest",
        }
    }
}

/// What of an input survives the end of the process, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Nothing.
    None,
    /// The state of its queries as it was last saved.
    Checkpoint,
    /// The same, and every event that was acknowledged since.
    Log,
}

impl Durability {
    /// All of them, in order.
    pub const ALL: [Self; 3] = [Self::None, Self::Checkpoint, Self::Log];

    /// The name in SQL and in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Checkpoint => "checkpoint",
            Self::Log => "log",
        }
    }
}

impl Application {
    /// Checks each row of bound parameters by the application's own rules. One result for each row. If the code panics
    /// or does not answer for each row, all rows are refused.
    ///
    /// # Panics
    /// If `rows` does not have the application's parameter schema.
    pub fn check(&self, rows: &RecordBatch) -> Vec<Result<(), BindError>> {
        assert_eq!(rows.num_columns(), self.parameters.len(), "one column for each parameter");
        let checked = catch_unwind(AssertUnwindSafe(|| self.code.check(rows)));
        let why = match checked {
            Ok(results) if results.len() == rows.num_rows() => return results,
            Ok(results) => format!("{} answers for {} queries", results.len(), rows.num_rows()),
            Err(panic) => panic_text(&*panic).to_owned(),
        };
        let error = BindError::new(None, format!("the code of '{}' cannot check parameters: {why}", self.name));
        vec![Err(error); rows.num_rows()]
    }

    /// The application in words, for `EXPLAIN`.
    pub fn explain(&self) -> String {
        self.code.explain(self)
    }

    /// The code for people to read.
    pub fn text(&self) -> Cow<'_, str> {
        text_of(self.kind, &self.bytes)
    }

    /// The index of the parameter with this name.
    pub fn parameter(&self, name: &str) -> Option<usize> {
        self.parameters.iter().position(|parameter| parameter.name == name)
    }
}

/// Values that do not fit an application's parameters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", hint.as_ref().map(|hint| format!("\nhint: {hint}")).unwrap_or_default())]
pub struct BindError {
    /// The parameter it is about, where it is about one.
    pub parameter: Option<String>,
    /// What was expected and what was found.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl BindError {
    /// What is wrong, in one sentence without a full stop.
    pub fn new(parameter: Option<&str>, message: String) -> Self {
        Self { parameter: parameter.map(str::to_owned), message, hint: None }
    }

    /// The error with what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// The code of an application for people to read: a text as it is, of other code only how much it is.
pub fn text_of<'a>(kind: &str, bytes: &'a [u8]) -> Cow<'a, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => format!("({} bytes of {kind})", bytes.len()).into(),
    }
}

impl fmt::Debug for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Application").field("name", &self.name).field("id", &self.id).finish_non_exhaustive()
    }
}
