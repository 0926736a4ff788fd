//! What a source or sink of a big query was declared as.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow::datatypes::SchemaRef;
use rivulet_dataflow::carried;
use serde::de::DeserializeOwned;

use super::{ConnectorError, Health, MqttHost};
use crate::files::Files;
use crate::reach::Reach;

/// A format by name, with its options, as the statement has them.
pub type FormatText = (String, Vec<(String, String)>);

/// What the process that runs a query has already, and its sources and sinks use.
#[derive(Clone, Default)]
pub struct Host {
    /// Its connection to an MQTT broker, or its own broker.
    pub mqtt: Option<Arc<dyn MqttHost>>,
    /// The files that statements may name; none by default.
    pub files: Files,
    /// The hosts that may be posted to; by default none of this machine.
    pub reach: Reach,
    /// Whether standard input and output are those of whoever runs the query; a server has none.
    pub has_standard_streams: bool,
    /// What tells the server from others, also after a restart; empty where there is none.
    pub server: String,
    /// The query that is to run.
    pub query: String,
    /// Whether all that came since its last checkpoint is read and written once more after a crash.
    pub comes_again: bool,
    /// Whether a source of it is so full that others behind its connection wait.
    pub holds_up: Arc<AtomicBool>,
    /// Whether whoever reads only looks, so that nothing may be taken from others who read the same.
    pub only_looks: bool,
    /// Whether the host says of a source when what it has brought is safe ([`rivulet_dataflow::Source::confirm`]), so
    /// that senders wait for that.
    pub confirms: bool,
    /// Where the source or sink that is opened with this says how it gets on.
    pub health: Arc<Health>,
}

impl Host {
    /// That of a process that has nothing, and the rights of its user.
    pub fn of_user() -> Self {
        let (files, reach) = (Files::of_user(), Reach::everything());
        Self { files, reach, has_standard_streams: true, ..Self::default() }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("mqtt", &self.mqtt.is_some()).field("query", &self.query).finish_non_exhaustive()
    }
}

/// A source to open.
#[derive(Clone, Debug)]
pub struct SourceSpec {
    /// What stands before the colon of the address.
    pub connector: String,
    /// What stands behind it.
    pub address: String,
    /// How rows are written; `None` where the connector tells by itself, as files do by their ending.
    pub format: Option<FormatText>,
    /// The declared columns.
    pub schema: SchemaRef,
    /// Those of them that are read, ascending: polled rows have the schema projected to these, [`carried`].
    pub columns: Vec<usize>,
    /// The event time among the declared columns. It is never null.
    pub event_time_column: Option<usize>,
    /// Whether rows get an event time that is computed of the columns that are read.
    pub has_computed_time: bool,
    /// Options by name, as text.
    pub options: Vec<(String, String)>,
    /// What there is already.
    pub host: Host,
    /// Where its partitions go on, as they said it themselves ([`rivulet_dataflow::Source::position`]). One source is
    /// opened for each, in this order; behind them may come such as are new.
    pub resume: Option<Vec<Option<String>>>,
}

impl SourceSpec {
    /// Where its partitions go on, in the connector's own words; `None` if it begins anew.
    ///
    /// # Errors
    /// A checkpoint is not understood.
    pub fn resumed<T: DeserializeOwned>(&self, connector: &'static str) -> Result<Option<Vec<T>>, ConnectorError> {
        let Some(positions) = &self.resume else { return Ok(None) };
        let wrong = |problem: String| ConnectorError::Open {
            connector,
            address: self.address.clone(),
            problem,
            hint: "drop the query and create it again to begin anew".into(),
        };
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
    /// What stands before the colon of the address.
    pub connector: String,
    /// What stands behind it.
    pub address: String,
    /// How rows are written; `None` where the connector tells by itself, as files do by their ending.
    pub format: Option<FormatText>,
    /// The columns of the rows.
    pub schema: SchemaRef,
    /// Whether rows may take back others ([`rivulet_dataflow::Batch::retracts`]).
    pub changes: bool,
    /// The columns by which rows are told apart where a sink keeps the newest of each, if the query's result has such
    /// columns.
    pub key: Option<Vec<usize>>,
    /// Options by name, as text.
    pub options: Vec<(String, String)>,
    /// What there is already.
    pub host: Host,
    /// Where checkpoints are made, so that what is written becomes final with them: what the instances of the sink have
    /// said to the checkpoint from which the query goes on ([`rivulet_dataflow::TransactionalSink::prepare`]); nothing
    /// where it begins anew.
    pub checkpoints: Option<Vec<String>>,
    /// Whether it is an output of an application: what its rows have in addition.
    pub output: Option<OutputRows>,
}

/// What the rows of an output of an application have behind the columns of the sink: the query of each (`UInt64`), what
/// tells it from every other row (`Utf8`, the same when it comes again, empty where that is not known), and, if it
/// `has_addresses`, where it goes (`Utf8`) in the place of the sink's address, which shows parameters as `{name}`.
///
/// Such a sink ends with its application and never fails by itself: what it cannot deliver waits, or is left out and
/// counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputRows {
    /// Whether each row has an address of its own.
    pub has_addresses: bool,
}

/// Up to where the results of a query are final, as its sink has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalUpTo {
    /// Whatever checkpoint the query goes on from, the sink does too.
    Any,
    /// None is: the query begins anew.
    Nothing,
    /// Those of a checkpoint are, and nothing behind them.
    Epoch {
        /// The number of the checkpoint.
        number: u64,
        /// How an operator gives the sink another number: a sentence that ends in "to" and that number.
        set_by: &'static str,
    },
    /// All are: the query has come to the end of its input.
    Ended,
}
