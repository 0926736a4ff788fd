//! `blackhole:` takes rows and keeps nothing: for measurements, and to run a query only for its errors.

use std::sync::Arc;

use rivulet_dataflow::{Batch, Sink, SinkError};

use super::description::{Instance, Opening};
use super::{ConnectorDescription, ConnectorError, DirectionDescription, Health, Options, SinkSpec};

/// The description of the connector.
pub(super) const CONNECTOR: ConnectorDescription = ConnectorDescription {
    name: "blackhole",
    summary: "Takes rows and keeps nothing: for measurements, and to run a query for its errors alone.",
    address: "anything; it is not looked at",
    source: None,
    sink: Some(DirectionDescription {
        help: "Takes rows and changes of rows at any speed.",
        formats: &[],
        guarantees: &[],
        options: &[],
    }),
    example: "CREATE SINK nowhere TO 'blackhole:';",
    open: Opening { sink: Some(open), ..Opening::NONE },
};

fn open(spec: &SinkSpec, _options: &Options, _instance: Instance) -> Result<Box<dyn Sink>, ConnectorError> {
    Ok(Box::new(Blackhole { health: spec.host.health.clone() }))
}

struct Blackhole {
    health: Arc<Health>,
}

impl Sink for Blackhole {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        // Uses the batch as a real sink would, so that the compiler does not remove the computation of it.
        std::hint::black_box(batch);
        self.health.hand_and_take(batch.rows(), 0);
        Ok(())
    }
}
