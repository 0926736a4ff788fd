//! What a source or sink of a big query was declared as.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;

use super::MqttHost;

/// A format by name, with its options, as the statement has them.
pub type FormatText = (String, Vec<(String, String)>);

/// What the process that runs a query has already, and its sources and sinks use.
#[derive(Clone, Default)]
pub struct Host {
    /// Its connection to an MQTT broker, or its own broker.
    pub mqtt: Option<Arc<dyn MqttHost>>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("mqtt", &self.mqtt.is_some()).finish()
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
    /// Those of them that are read, ascending: polled rows have the schema projected to these.
    pub columns: Vec<usize>,
    /// The event time among the declared columns. It is never null.
    pub event_time_column: Option<usize>,
    /// Options by name, as text.
    pub options: Vec<(String, String)>,
    /// What there is already.
    pub host: Host,
}

impl SourceSpec {
    /// The schema of polled rows.
    pub(crate) fn read_schema(&self) -> SchemaRef {
        Arc::new(self.schema.project(&self.columns).expect("columns that are read are declared"))
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
    /// The columns by which rows are told apart where a sink keeps the newest of each, if the query's result has such columns.
    pub key: Option<Vec<usize>>,
    /// Options by name, as text.
    pub options: Vec<(String, String)>,
    /// What there is already.
    pub host: Host,
}
