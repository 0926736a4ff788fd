//! The queries of an application, with their given values, bound to the parameters of another version.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::SchemaRef;
use arrow::row::{RowConverter, SortField};
use rivulet_dataflow::{QueryId, Slot};
use rivulet_operators::application::{self, Application};
use rivulet_sql::{ParameterRows, StateWish};

use crate::engine::queries::checked::{LOAD_BATCH, bind_error, param_value};
use crate::engine::queries::{Queries, State};
use crate::engine::running::{Prepared, Running};
use crate::engine::upgrade::state_would_be_lost;
use crate::service::{ErrorKind, ServiceError};

/// The queries of an application, bound to the parameters of another version.
pub(super) struct Bound {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    /// In ascending order: each query with its batch and row.
    pub(super) places: Vec<(QueryId, usize, usize)>,
    /// Parameters that queries have given and that no longer exist.
    pub(super) dropped: BTreeSet<String>,
}

impl Queries {
    /// Binds the queries of an application, with their given values, to the parameters of its new version.
    ///
    /// # Errors
    /// They do not fit it, or would lose state and the statement does not allow that.
    pub(super) fn bind_again(
        &self,
        state: &State,
        before: &Running,
        prepared: &Prepared,
        wish: StateWish,
        migration: &application::StateMigration,
    ) -> Result<Bound, ServiceError> {
        let application = &prepared.application;
        let gone = |name: &str| before.application.parameter(name).is_some() && application.parameter(name).is_none();
        let mut rows = ParameterRows::new(application);
        let mut bound = Bound {
            schema: application.parameter_schema.clone(),
            batches: Vec::new(),
            places: Vec::new(),
            dropped: BTreeSet::new(),
        };
        let (mut waiting, mut refused) = (Vec::new(), Vec::new());
        self.catalog.scan_queries(|query| {
            let runs = state.registry.get(query.id).is_some_and(|entry| entry.life.slot().is_some());
            if query.application != before.number || !runs {
                return;
            }
            for (name, _) in query.parameters.iter().filter(|(name, _)| gone(name)) {
                if !bound.dropped.contains(&**name) {
                    bound.dropped.insert(name.to_string());
                }
            }
            let values = query.parameters.iter().filter(|(name, _)| !gone(name));
            match rows.push(values.map(|(name, value)| (name.as_ref(), param_value(value)))) {
                Ok(()) => waiting.push(query.id),
                Err(error) => refused.push((query.id, bind_error(error))),
            }
            if waiting.len() == LOAD_BATCH {
                bound.add(prepared, rows.finish(), &mut waiting, &mut refused);
            }
        })?;
        bound.add(prepared, rows.finish(), &mut waiting, &mut refused);
        let count = refused.len();
        match refused.into_iter().next() {
            Some((query, error)) => Err(do_not_fit(&application.name, count, &state.registry.name(query), error)),
            None if wish == StateWish::Keep && !migration.lost.is_empty() && !bound.places.is_empty() => Err(
                state_would_be_lost(&application.name, "its queries", &migration.lost, &discarding(&application.name)),
            ),
            None => Ok(bound),
        }
    }
}

impl Bound {
    /// Checks bound values: one row for each of the queries that wait.
    fn add(
        &mut self,
        prepared: &Prepared,
        rows: RecordBatch,
        waiting: &mut Vec<QueryId>,
        refused: &mut Vec<(QueryId, ServiceError)>,
    ) {
        let topics = prepared.topics.bind(&rows);
        let checked = prepared.application.check(&rows).into_iter().zip(waiting.drain(..)).enumerate();
        for (row, (checked, query)) in checked {
            match checked.map_err(bind_error).and_then(|()| topics(row).map(drop)) {
                Ok(()) => self.places.push((query, self.batches.len(), row)),
                Err(error) => refused.push((query, error)),
            }
        }
        drop(topics);
        self.batches.push(rows);
    }

    /// The parameters of queries, one row for each.
    pub(super) fn rows(&self, queries: &[QueryId]) -> RecordBatch {
        let place = |query: &QueryId| {
            let found = self.places.binary_search_by_key(query, |(query, ..)| *query);
            let (_, batch, row) = self.places[found.expect("every query with a slot was bound")];
            (batch, row)
        };
        let places: Vec<(usize, usize)> = queries.iter().map(place).collect();
        if self.schema.fields().is_empty() || places.is_empty() {
            let options = RecordBatchOptions::new().with_row_count(Some(places.len()));
            let columns = self.schema.fields().iter().map(|field| arrow::array::new_empty_array(field.data_type()));
            return RecordBatch::try_new_with_options(self.schema.clone(), columns.collect(), &options)
                .expect("as many rows as there are columns for");
        }
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        interleave_record_batch(&batches, &places).expect("all batches have the parameters of the application")
    }

    /// Queries that share a slot with an earlier query, to which they are not equal in the new version.
    pub(super) fn unequal(&self, state: &State, before: &Running, after: &Application) -> Vec<(Slot, QueryId)> {
        if before.group.further_queries() == 0 {
            return Vec::new();
        }
        let mut by_slot: BTreeMap<Slot, Vec<QueryId>> = BTreeMap::new();
        for &(query, ..) in &self.places {
            if let Some(slot) = state.registry.get(query).and_then(|entry| entry.life.slot()) {
                by_slot.entry(slot).or_default().push(query);
            }
        }
        by_slot.retain(|_, queries| queries.len() > 1);
        let deciding = &after.deciding_parameters;
        if by_slot.is_empty() || deciding.is_empty() {
            return Vec::new();
        }
        let fields = deciding.iter().map(|&one| SortField::new(self.schema.field(one).data_type().clone())).collect();
        let converter = RowConverter::new(fields).expect("parameters have types that can be compared");
        let mut unequal = Vec::new();
        for (slot, queries) in by_slot {
            let rows = self.rows(&queries).project(deciding).expect("the parameters are there");
            let keys = converter.convert_columns(rows.columns()).expect("they have the types of their declaration");
            let others = (1..queries.len()).filter(|&other| keys.row(other) != keys.row(0));
            unequal.extend(others.map(|other| (slot, queries[other])));
        }
        unequal
    }
}

fn do_not_fit(name: &str, count: usize, query: &str, error: ServiceError) -> ServiceError {
    let which = match count {
        1 => format!("its query '{query}' does not fit"),
        _ => format!("{count} of its queries do not fit, for example '{query}'"),
    };
    let refused =
        ServiceError::new(ErrorKind::Conflict, format!("'{name}' is not replaced, for {which}: {}", error.message));
    let hint = "a new parameter needs a DEFAULT, and one that stays the type of its values";
    refused.with_hint(match error.hint {
        Some(of_error) => format!("{of_error}; {hint}"),
        None => hint.into(),
    })
}

fn discarding(name: &str) -> String {
    format!("CREATE OR REPLACE APPLICATION {} WITH (state => 'discard') ...", rivulet_sql::name_in_sql(name))
}
