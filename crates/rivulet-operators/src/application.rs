//! An application: all that the engine needs to run code that was registered once for any number of queries, whatever
//! the language of the code.
//!
//! [`Application`] is what the engine looks at: parameters, inputs, outputs, operators. [`ApplicationCode`] is what
//! only the language of the code can answer. A loader for each kind of code makes an application from the bytes that
//! the catalog keeps.

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
    /// Checks each row of bound parameters by the application's own rules, for example that windows have a length.
    /// Returns one result for each row. The rows have the application's parameter schema.
    fn check(&self, rows: &RecordBatch) -> Vec<Result<(), BindError>>;

    /// Describes the application in words, for `EXPLAIN`.
    fn explain(&self, application: &Application) -> String;

    /// What the operator at this index does for all queries, in the language of the code. Together with its kind, the
    /// form of its state and the parameters that stand there as `$name`, these words are the signature of its state: an
    /// operator of the next version with the same signature takes the state over.
    fn steps(&self, place: usize) -> &[String];

    /// The same as [`ApplicationCode::steps`], written in one way however the code is worded. If the words of an
    /// operator have changed and their meaning has not, the operator keeps its state.
    fn meaning(&self, place: usize) -> &[String] {
        self.steps(place)
    }
}

/// Makes applications from code of one kind.
pub trait CodeLoader: Send + Sync {
    /// Makes an application from code, over these reference tables. The application has the kind of this loader, and
    /// bytes from which the loader makes the same application again.
    ///
    /// # Errors
    /// What is wrong with the code, and where.
    fn load(&self, bytes: &[u8], tables: &Tables) -> Result<Application, LoadError>;

    /// Returns the names of the reference tables in the code, as far as the code can be read. It also serves code that
    /// cannot be loaded now.
    fn table_names(&self, bytes: &[u8]) -> Vec<String>;

    /// Names the parts of the code that still get the meaning of an earlier version of the program, and what to write
    /// instead.
    fn warnings(&self, _bytes: &[u8]) -> Vec<String> {
        Vec::new()
    }

    /// The code as it is shown to users: `shown` replaces the value of each option of its sources and outputs. Code
    /// from which the options cannot be read is described instead. It also serves code that cannot be loaded now.
    fn shown(&self, bytes: &[u8], shown: &ShownOption<'_>) -> String;
}

/// Returns the value of an option as users may see it: a secret is replaced. The arguments are the connector, whether
/// the option is that of an output, and the name and value of the option.
pub type ShownOption<'a> = dyn for<'v> Fn(&str, bool, &str, &'v str) -> Cow<'v, str> + 'a;

/// Code that cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", hint.as_ref().map(|hint| format!("\nhint: {hint}")).unwrap_or_default())]
pub struct LoadError {
    /// What is wrong, in one sentence without a full stop.
    pub message: String,
    /// Line and column in the code, from 1; zeros if the code is not a text.
    pub position: (u32, u32),
    /// What to do about it.
    pub hint: Option<String>,
}

/// A registered application: its declarations, its operators, and its code.
///
/// It is loaded once and serves any number of queries.
#[derive(Clone)]
pub struct Application {
    /// The name.
    pub name: String,
    /// The identity: SHA-256 (hex) of what the code says. The same code has the same identity. The layout of a text
    /// does not count.
    pub id: String,
    /// The kind of code, for example `sql`. It decides which loader reads the bytes.
    pub kind: &'static str,
    /// The bytes that the catalog keeps: the loader makes the same application from them. For a text, these are the
    /// text as written.
    pub bytes: Vec<u8>,
    /// The parameters in order of declaration. The implicit parameters, which are topics, come last.
    pub parameters: Arc<[Parameter]>,
    /// The indices of the parameters that stand in an expression or in the address of an input. Queries with equal
    /// values of these parameters give equal rows for equal events; the other parameters only say where results go.
    pub deciding_parameters: Vec<usize>,
    /// The inputs, in order of declaration: at least one.
    pub inputs: Vec<Input>,
    /// The columns of decoded rows. With one input these are its columns. With several inputs they are the number of
    /// the input (`UInt8`) and then the columns of all inputs, nullable.
    pub row_schema: SchemaRef,
    /// The outputs: at least one.
    pub outputs: Vec<Output>,
    /// Whether result rows end with a column of bits (`UInt32`) that says to which outputs they go; the lowest bit is
    /// for the first output. Otherwise every row goes to every output.
    pub has_output_bits: bool,
    /// The operators.
    pub dataflow: Line,
    /// The parameters as the schema of slot tables.
    pub parameter_schema: SchemaRef,
    /// The reference tables in which the application looks events up, in order.
    pub tables: Vec<TableUse>,
    /// The part of WHERE by which an index finds the queries on one topic that a row can concern.
    pub matching: Option<Match>,
    /// How the dataflow runs as several instances side by side, if it can. Then a single query may use more than one
    /// worker.
    pub cut: Cut,
    /// Warnings for its author, in words. They are shown with the application.
    pub warnings: Vec<String>,
    /// The code itself.
    pub code: Arc<dyn ApplicationCode>,
}

/// The reference tables that exist, by name: a table, or why it has no rows.
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
    /// No index: every row is tried for each event.
    None,
    /// A hash index of this column.
    Key(String),
    /// An index of geographic places, in these columns.
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
    /// The value if a query gives none, in the parameter's type. A query must give a parameter without default.
    pub default: Option<Literal>,
    /// Whether the parameter stands in an address, so that it cannot be null or empty.
    pub in_address: bool,
    /// Whether the parameter is a whole address, so that a prefix `mqtt:` is accepted (and dropped).
    pub is_address: bool,
}

/// What an application reads.
#[derive(Clone, Debug)]
pub struct Input {
    /// The name, as in FROM.
    pub name: String,
    /// The declared columns as rows have them. The implicit `arrival_time` is not among them.
    pub schema: SchemaRef,
    /// The same columns as payloads must have them: a whole number may have fewer bits than in a row.
    pub declared: SchemaRef,
    /// The index of the EVENT TIME column. Without one, the arrival time is the event time.
    pub event_time: Option<usize>,
    /// The columns that are computed from the others, in words: name and expression. They are not in `schema`.
    pub computed: Vec<(String, String)>,
    /// The index in `computed` of the column that is the event time.
    pub computed_event_time: Option<usize>,
    /// Which columns come from the topic of an event.
    pub topic: TopicColumns,
    /// Where events come from.
    pub address: Address,
    /// How the source is read, if the input does not read a topic.
    pub source: Option<SourceInput>,
    /// The format of payloads.
    pub format: FormatSpec,
    /// How far a row may be behind the newest row of its query and still count, in microseconds.
    pub lateness_us: i64,
    /// After how long without an event a query's clock goes on by itself, in microseconds.
    pub idle_timeout_us: i64,
    /// How far a row's event time may lie after its arrival, in microseconds.
    pub future_limit_us: i64,
    /// What happens to an event when the inbox is full.
    pub overflow: Overflow,
    /// What survives the end of the process; `None` if the input does not say.
    pub durability: Option<Durability>,
    /// Where late rows go, if they are wanted.
    pub late: Option<Address>,
    /// Where payloads and rows go that cannot be processed, if they are wanted.
    pub dead_letter: Option<Address>,
}

/// The columns of an input that come from the topic of an event. They are `Utf8`, and no column is named twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicColumns {
    /// The column that holds the whole topic.
    pub whole: Option<usize>,
    /// The columns that hold what the wildcards of the address stand for, in the order of the wildcards. If there are
    /// fewer columns than wildcards, they hold the first ones.
    pub levels: Vec<usize>,
    /// Line and column, from 1, where the text names `levels`; zeros if it does not.
    pub levels_position: (u32, u32),
}

/// How an input is read whose events do not come from MQTT but from a source that gives one stream for all queries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceInput {
    /// The key that distinguishes the events of a query from those of other queries. Without it, every query gets every
    /// event.
    pub key: Option<Address>,
    /// The field of the payload that is the key of an event, and its position in the text. Without it, the key is the
    /// one that the source gives the event.
    pub key_field: Option<(String, (u32, u32))>,
    /// The columns that come from the source and not from payloads.
    pub columns: Vec<SourceColumn>,
    /// The options of the source: name, value, and position in the text.
    pub options: Vec<(String, Literal, (u32, u32))>,
}

/// A column that comes from the source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceColumn {
    /// The option that names the column.
    pub option: &'static str,
    /// What the column holds.
    pub part: SourcePart,
    /// The index of the column.
    pub column: usize,
    /// Line and column of its name in the text, from 1.
    pub position: (u32, u32),
}

/// What a source says about an event beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePart {
    /// Its key: `Utf8`.
    Key,
    /// The number of its partition: `Int64`.
    Partition,
    /// Its offset in the partition: `Int64`.
    Offset,
    /// When it was sent: `Timestamp(Microsecond, None)`.
    Time,
}

impl SourceInput {
    /// Returns the same without positions in the text.
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
    /// The parameters that decide which events belong to a query: they stand in the address or the key.
    pub fn address_parameters(&self) -> impl Iterator<Item = usize> + '_ {
        let key = self.source.as_ref().and_then(|source| source.key.as_ref());
        self.address.parameters().chain(key.into_iter().flat_map(Address::parameters))
    }
}

/// An output of an application.
#[derive(Clone, Debug)]
pub struct Output {
    /// The name. An output has one if there are several outputs.
    pub name: Option<String>,
    /// Where results go.
    pub address: Address,
    /// How results are written. Without a name, as the connector of the address does by itself.
    pub format: FormatSpec,
    /// Options for the connector of the address. Only the connector knows what they mean.
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
    /// Line and column of the name in the text of the application, from 1; zeros if it is not in the text.
    pub position: (u32, u32),
}

/// What happens to an event that finds the inbox full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The source stops reading until there is room; nothing is lost.
    #[default]
    Block,
    /// The oldest waiting events are dropped and counted: an eighth of those in the inbox of the task, of any of its
    /// queries.
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

/// What survives the end of the process for an input, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Nothing.
    None,
    /// The state of its queries, as of the last checkpoint.
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
    /// Checks each row of bound parameters by the application's own rules. Returns one result for each row. If the code
    /// panics or does not answer for each row, all rows are refused.
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

    /// Describes the application in words, for `EXPLAIN`.
    pub fn explain(&self) -> String {
        self.code.explain(self)
    }

    /// The code as users read it.
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
    /// The parameter that the error is about, if it is about one.
    pub parameter: Option<String>,
    /// What was expected and what was found.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl BindError {
    /// Makes an error. The message says what is wrong in one sentence without a full stop.
    pub fn new(parameter: Option<&str>, message: String) -> Self {
        Self { parameter: parameter.map(str::to_owned), message, hint: None }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// The code of an application as users read it: a text as it is; of other code only its size.
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
