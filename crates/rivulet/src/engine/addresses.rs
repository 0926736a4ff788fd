//! The addresses of outputs that are not topics: one address for all queries, or one for each, made from parameters.
//!
//! What must hold: the connector checked the values that a row's address is made from when the query was created; the
//! host of the address was checked too.

use std::fmt;

use rivulet_connectors::connector::{ByRow, ConnectorError, SinkSpec};
use rivulet_dataflow::{Slot, SlotTable};
use rivulet_operators::application::{Address, Part};

use crate::service::{ErrorKind, ServiceError};

/// The address of an output whose connector is not MQTT.
#[derive(Clone, Debug)]
pub(super) struct SinkAddress {
    address: Address,
    /// The names of the application's parameters.
    names: Vec<String>,
    /// How the address of each query is made; `None` if there is one for all.
    pub(super) by_row: Option<ByRow>,
    /// The connector's specification of the sink.
    pub(super) spec: SinkSpec,
}

impl SinkAddress {
    /// Checks that the connector can make addresses from parameters, if there are any.
    pub(super) fn new(
        address: &Address,
        names: &[&str],
        by_row: Option<ByRow>,
        spec: SinkSpec,
    ) -> Result<Self, ServiceError> {
        let has_parameters = address.parameters().next().is_some();
        if has_parameters && by_row.is_none() {
            let message = format!("an address of '{}:' has no parameters", address.connector);
            return Err(ServiceError::invalid(message)
                .with_hint("write one address for all queries, and select what tells them apart: $home AS home")
                .at_place(address.position));
        }
        let by_row = by_row.filter(|_| has_parameters);
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Ok(Self { address: address.clone(), names, by_row, spec })
    }

    /// The parameters in the address.
    pub(super) fn parameters(&self) -> impl Iterator<Item = usize> + '_ {
        self.address.parameters()
    }

    /// Whether the address is just one parameter, whose value is used unchanged.
    fn is_whole(&self) -> bool {
        matches!(self.address.parts[..], [Part::Parameter(_)])
    }

    /// Checks the address of one query.
    ///
    /// # Errors
    /// A value cannot be part of it, it is invalid, or it leads to a host to which the server does not post.
    pub(super) fn check<'v>(&self, value: impl Fn(usize) -> &'v str) -> Result<(), ServiceError> {
        let Some(by_row) = self.by_row else { return Ok(()) };
        let mut address = String::new();
        for part in &self.address.parts {
            match *part {
                Part::Text(ref text) => address.push_str(text),
                Part::Parameter(index) if self.is_whole() => address.push_str(value(index)),
                Part::Parameter(index) => (by_row.value)(value(index), &mut address).map_err(|problem| {
                    let (name, value) = (&self.names[index], value(index));
                    let message = format!("the parameter '{name}' with the value '{value}' does not fit into '{self}'");
                    ServiceError::invalid(format!("{message}: {problem}"))
                        .with_hint("give it another value; one that is a whole address stands alone: 'https:{hook}'")
                })?,
            }
        }
        let spec = SinkSpec { address, ..self.spec.clone() };
        (by_row.check)(&spec)
            .map_err(|error: ConnectorError| ServiceError::from_text(ErrorKind::Invalid, &error.to_string()))
    }

    /// Appends the address of a slot, whose values were checked.
    pub(super) fn write(&self, slots: &SlotTable, slot: Slot, value: &mut String, out: &mut String) {
        for part in &self.address.parts {
            match *part {
                Part::Text(ref text) => out.push_str(text),
                Part::Parameter(index) => {
                    value.clear();
                    slots.write_text(index, slot, value);
                    match self.by_row.filter(|_| !self.is_whole()) {
                        // Its errors about the value were returned when the query was created.
                        Some(by_row) => _ = (by_row.value)(value, out),
                        None => out.push_str(value),
                    }
                }
            }
        }
    }
}

impl fmt::Display for SinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}
