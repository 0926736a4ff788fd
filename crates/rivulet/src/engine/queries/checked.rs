//! The values of queries are bound and checked.

use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use rivulet_dataflow::{LogPosition, QueryId};
use rivulet_operators::application::BindError;
use rivulet_sql::{ParamValue, ParameterRows};

use crate::engine::running::Running;
use crate::service::{ParameterValue, ServiceError};

/// The longest label, in bytes.
const LABEL_BYTES_MAX: usize = 255;

/// The number of queries that are started together when the catalog is loaded.
pub(in crate::engine) const LOAD_BATCH: usize = 4_096;

/// Queries of one application whose values were bound.
pub(super) struct Chunk<Q> {
    pub(super) running: Arc<Running>,
    pub(super) values: ParameterRows,
    /// What each row is for: the index of a request in its batch, or a query that is loaded.
    pub(super) queries: Vec<Q>,
}

/// Queries of one application that were checked. Only their names can still be refused.
pub(super) struct Checked<Q> {
    pub(super) running: Arc<Running>,
    pub(super) rows: RecordBatch,
    /// For each row the topics that its query reads, one for each input. `queries` says what the row is for.
    pub(super) inputs: Vec<Vec<String>>,
    pub(super) queries: Vec<Q>,
}

/// Changes that are newer than the saved state. They are made again at their position.
pub(super) struct ReplayedChange {
    pub(super) position: LogPosition,
    pub(super) number: u64,
    pub(super) query: QueryId,
    pub(super) checked: Arc<Checked<(QueryId, u64, LogPosition)>>,
    pub(super) row: usize,
}

impl<Q: Copy> Chunk<Q> {
    pub(super) fn new(running: Arc<Running>) -> Self {
        Self { values: ParameterRows::new(&running.application), running, queries: Vec::new() }
    }

    /// Checks the values together and binds the topics. The chunk is empty afterwards. Queries that do not fit are
    /// refused.
    pub(super) fn take_checked(&mut self, refuse: impl FnMut(Q, ServiceError)) -> Checked<Q> {
        let running = self.running.clone();
        let (rows, queries) = (self.values.finish(), std::mem::take(&mut self.queries));
        let mut values = running.application.check(&rows).into_iter();
        let topics = running.topics.bind(&rows);
        let inputs = vec![Vec::new(); queries.len()];
        let mut checked = Checked { running: running.clone(), rows: rows.clone(), inputs, queries };
        let check = |row, _, input: &mut Vec<String>| -> Result<(), ServiceError> {
            values.next().expect("a check of each row").map_err(bind_error)?;
            *input = topics(row)?;
            Ok(())
        };
        checked.retain(check, refuse);
        checked
    }
}

impl<Q: Copy> Checked<Q> {
    /// Keeps the queries that pass `check` (given the row, what it is for, and its input topics), and refuses the
    /// others.
    pub(super) fn retain(
        &mut self,
        mut check: impl FnMut(usize, Q, &mut Vec<String>) -> Result<(), ServiceError>,
        mut refuse: impl FnMut(Q, ServiceError),
    ) {
        let mut keep = Vec::with_capacity(self.queries.len());
        for (row, (&query, input)) in self.queries.iter().zip(&mut self.inputs).enumerate() {
            let outcome = check(row, query, input);
            keep.push(outcome.is_ok());
            if let Err(error) = outcome {
                refuse(query, error);
            }
        }
        self.take_out(|row| !keep[row]);
    }

    /// Takes out the queries of the rows for which `is_meant` holds.
    pub(super) fn take_out(&mut self, is_meant: impl Fn(usize) -> bool) -> Self {
        let meant: Vec<bool> = (0..self.queries.len()).map(is_meant).collect();
        fn part<T>(all: &mut Vec<T>, meant: &[bool]) -> Vec<T> {
            let mut place = 0..;
            all.extract_if(.., |_| meant[place.next().expect("endless")]).collect()
        }
        let filtered = |rows, bits| filter_record_batch(rows, &bits).expect("a bit for each row");
        let mut taken = Self {
            running: self.running.clone(),
            rows: self.rows.slice(0, 0),
            inputs: part(&mut self.inputs, &meant),
            queries: part(&mut self.queries, &meant),
        };
        if !taken.queries.is_empty() {
            taken.rows = filtered(&self.rows, BooleanArray::from(meant.clone()));
            self.rows = filtered(&self.rows, meant.iter().map(|meant| Some(!meant)).collect());
        }
        taken
    }
}

pub(super) fn check_label(label: Option<&str>) -> Result<(), ServiceError> {
    match label {
        Some(label) if label.is_empty() || label.len() > LABEL_BYTES_MAX || label.chars().any(char::is_control) => {
            Err(ServiceError::invalid(format!("a label has 1 to {LABEL_BYTES_MAX} bytes and no control characters"))
                .with_hint("leave it out if the query belongs to nothing"))
        }
        _ => Ok(()),
    }
}

pub(in crate::engine) fn param_value<'a>(value: &'a ParameterValue<'_>) -> ParamValue<'a> {
    match value {
        ParameterValue::Null => ParamValue::Null,
        ParameterValue::Bool(value) => ParamValue::Boolean(*value),
        ParameterValue::Int(value) => ParamValue::Integer(*value),
        ParameterValue::Float(value) => ParamValue::Float(*value),
        ParameterValue::Text(value) => ParamValue::Text(value),
    }
}

pub(in crate::engine) fn bind_error(error: BindError) -> ServiceError {
    ServiceError { parameter: error.parameter, hint: error.hint, ..ServiceError::invalid(error.message) }
}
