//! The declaration of a source or sink of a big query.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow::datatypes::SchemaRef;
use rivulet_dataflow::carried;
use serde::de::DeserializeOwned;

use super::error::ConnectorError;
use super::secrets::Secrets;
use super::{Health, MqttConnection};
use crate::files::Files;
use crate::links::Links;
use crate::reach::Reach;

/// A format by name, with its options, as in the statement.
pub type FormatText = (String, Vec<(String, String)>);

/// Checks a payload before its sender is told that it was taken. The error says what is wrong with it.
pub type PayloadCheck = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// What the process that runs a query provides to its sources and sinks.
#[derive(Clone, Default)]
pub struct ConnectorContext {
    /// Its connection to an MQTT broker, or its own broker.
    pub mqtt: Option<Arc<dyn MqttConnection>>,
    /// Its links to other servers, and the scope of the streams that it receives.
    pub links: Option<(Arc<Links>, String)>,
    /// The files that statements may name; none by default.
    pub files: Files,
    /// The hosts that statements may reach; by default none of this machine.
    pub reach: Reach,
    /// The secrets that options may name; none by default.
    pub secrets: Secrets,
    /// Whether standard input and output belong to the user who runs the query; a server has none.
    pub has_standard_streams: bool,
    /// The identity of the server, the same after a restart; empty if there is no server.
    pub server: String,
    /// Distinguishes results since the server was restored from a backup; empty if it never was.
    pub restored: String,
    /// The query that is to run.
    pub query: String,
    /// Whether everything since the last checkpoint is read and written once more after a crash.
    pub comes_again: bool,
    /// Set once it is known that the query makes checkpoints: each calls [`rivulet_dataflow::Source::position`], and
    /// then, when it is durable, [`rivulet_dataflow::Source::confirm`].
    pub makes_checkpoints: Arc<AtomicBool>,
    /// Set while a source of the query is so full that others behind its connection wait.
    pub holds_up: Arc<AtomicBool>,
    /// Whether the source is only inspected, so that nothing may be taken from other readers of the same source.
    pub only_looks: bool,
    /// Whether the host tells a source when its rows are safe ([`rivulet_dataflow::Source::confirm`]), so that senders
    /// wait for that.
    pub confirms: bool,
    /// What payloads have to be; `None` if any will do. A source whose senders wait for an answer refuses the others.
    pub check: Option<PayloadCheck>,
    /// The health of the source or sink that is opened with this.
    pub health: Arc<Health>,
}

impl ConnectorContext {
    /// The host of a process that provides nothing, with the rights of its user.
    pub fn of_user() -> Self {
        let (files, reach) = (Files::of_user(), Reach::everything());
        Self { files, reach, has_standard_streams: true, ..Self::default() }
    }
}

impl fmt::Debug for ConnectorContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectorContext")
            .field("mqtt", &self.mqtt.is_some())
            .field("query", &self.query)
            .finish_non_exhaustive()
    }
}

/// A source to open.
#[derive(Clone, Debug)]
pub struct SourceSpec {
    /// The part of the address before the colon.
    pub connector: String,
    /// The part of the address behind it.
    pub address: String,
    /// The format of the rows; `None` if the connector knows it, as files do by their extension.
    pub format: Option<FormatText>,
    /// The declared columns.
    pub schema: SchemaRef,
    /// The declared columns that are read, ascending: polled rows have the schema projected to these, [`carried`].
    pub columns: Vec<usize>,
    /// The index of the event time among the declared columns. It is never null.
    pub event_time_column: Option<usize>,
    /// Whether rows get an event time that is computed from the columns that are read.
    pub has_computed_time: bool,
    /// Options by name, as text.
    pub options: Vec<(String, String)>,
    /// What the process provides.
    pub host: ConnectorContext,
    /// Where its partitions go on, as they stated it themselves ([`rivulet_dataflow::Source::position`]). One source is
    /// opened for each, in this order; sources for new partitions may follow.
    pub resume: Option<Vec<Option<String>>>,
}

impl SourceSpec {
    /// Where its partitions go on, in the connector's own terms; `None` if it begins anew.
    ///
    /// # Errors
    /// A checkpoint is not understood.
    pub fn resumed<T: DeserializeOwned>(&self, connector: &'static str) -> Result<Option<Vec<T>>, ConnectorError> {
        let Some(positions) = &self.resume else { return Ok(None) };
        let hint = "drop the query and create it again to begin anew";
        let wrong = |problem: String| ConnectorError::open(connector, &self.address, problem, hint);
        let read = |position: &Option<String>| {
            let text = position.as_deref().ok_or_else(|| wrong("a checkpoint does not say where to go on".into()))?;
            serde_json::from_str(text).map_err(|error| {
                wrong(format!("a checkpoint says where to go on as '{text}', which is not understood: {error}"))
            })
        };
        positions.iter().map(read).collect::<Result<Vec<T>, _>>().map(Some)
    }

    /// The schema of polled rows.
    ///
    /// # Panics
    /// If a column that is read is not declared.
    pub fn read_schema(&self) -> SchemaRef {
        Arc::new(carried(&self.schema.project(&self.columns).expect("columns that are read are declared")))
    }
}

/// A sink to open.
#[derive(Clone, Debug)]
pub struct SinkSpec {
    /// The part of the address before the colon.
    pub connector: String,
    /// The part of the address behind it.
    pub address: String,
    /// The format of the rows; `None` if the connector knows it, as files do by their extension.
    pub format: Option<FormatText>,
    /// The columns of the rows.
    pub schema: SchemaRef,
    /// Whether rows may be retractions ([`rivulet_dataflow::Batch::retracts`]).
    pub changes: bool,
    /// The columns that identify a row, for a sink that keeps the newest row of each key; if the query's result has
    /// such columns.
    pub key: Option<Vec<usize>>,
    /// Options by name, as text.
    pub options: Vec<(String, String)>,
    /// What the process provides.
    pub host: ConnectorContext,
    /// `Some` if checkpoints are made, so that written rows become final with them. It has what the instances of the
    /// sink stated for the checkpoint from which the query goes on ([`rivulet_dataflow::TransactionalSink::prepare`]);
    /// empty if the query begins anew.
    pub checkpoints: Option<Vec<String>>,
    /// The additional columns of its rows, if it is an output of an application.
    pub output: Option<OutputRows>,
}

/// The columns that rows of an application's output have behind the columns of the sink: the query of each row
/// (`UInt64`), its identity (`Utf8`: unique, the same when it comes again, empty if not known), and, if it
/// `has_addresses`, its address (`Utf8`), which replaces the sink's address with parameters as `{name}`.
///
/// Such a sink ends with its application and never fails by itself: rows that it cannot deliver wait, or are left out
/// and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputRows {
    /// Whether each row has an address of its own.
    pub has_addresses: bool,
}

/// Up to which checkpoint the results of a query are final, according to its sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalUpTo {
    /// The sink can go on from any checkpoint that the query goes on from.
    Any,
    /// No result is final: the query begins anew.
    Nothing,
    /// The results up to a checkpoint are final, and none after it.
    Epoch {
        /// The number of the checkpoint.
        number: u64,
        /// How an operator gives the sink another number: a sentence that ends in "to" and that number.
        set_by: &'static str,
    },
    /// All results are final: the query has come to the end of its input.
    Ended,
}
