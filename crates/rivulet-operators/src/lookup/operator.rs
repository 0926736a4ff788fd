//! The lookup at work: events and rows of the table in pairs, some thousands at a time.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, DynComparator, RecordBatch, RecordBatchOptions, UInt32Array, make_comparator,
};
use arrow::compute::{SortOptions, prep_null_mask_filter, take};
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use datafusion_common::{DataFusionError, Result, exec_err};
use rivulet_dataflow::{Batch, Context, Element, Operator, OperatorError};

use super::places::Near;
use super::plan::{Find, Nearby, OrderKey, PairColumn, PairExpressions, Plan};
use super::table::TableRows;
use crate::expression::refuse;

/// The most rows that one event may give.
pub const ROWS_PER_EVENT_MAX: usize = 65_536;

/// How many pairs of an event and a row of the table are tried together. Enough to be fast, and few enough for their
/// columns to stay in the cache.
const PAIRS_MAX: usize = 16_384;

/// How many events search for nearby rows together.
const NEARBY_EVENTS_MAX: usize = 1_024;

/// The most pairs that several events find together. With more pairs, the events are tried in halves. One event finds
/// at most the rows of the table.
const FOUND_MAX: usize = 1 << 20;

pub(super) struct LookupOperator {
    pub(super) plan: Arc<Plan>,
}

impl Operator for LookupOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let Element::Batch(batch) = element else { return Ok(()) };
        let plan = &*self.plan;
        // Taken once: all events of a batch see the same rows.
        let rows = plan.table.rows();
        let parameters = plan.parameters.iter().map(|&one| context.slots.gather(one, &batch.slots)).collect();
        let lookup = BatchLookup { plan, batch: &batch, parameters, table: &rows };
        let together = match plan.find {
            Find::Scan { nearby: None, .. } => (PAIRS_MAX / rows.columns().num_rows().max(1)).max(1),
            Find::Scan { .. } => NEARBY_EVENTS_MAX,
            Find::Key { .. } => batch.rows(),
        };
        let mut open = Vec::new();
        for start in (0..batch.rows()).step_by(together.max(1)) {
            open.push(start..batch.rows().min(start + together));
            // Halves events that fail together until one event remains.
            while let Some(events) = open.pop() {
                match lookup.run(events.clone()) {
                    Ok(found) => context.emit(found),
                    Err(_) if events.len() > 1 => {
                        let middle = events.start + events.len() / 2;
                        open.push(middle..events.end);
                        open.push(events.start..middle);
                    }
                    Err(error) => refuse(&batch, events.start, &error, context),
                }
            }
        }
        Ok(())
    }
}

/// The lookup of one batch in the rows that the table has at that time.
struct BatchLookup<'a> {
    plan: &'a Plan,
    batch: &'a Batch,
    /// The used parameters of each event's query.
    parameters: Vec<ArrayRef>,
    table: &'a TableRows,
}

/// Pairs of an event (its index in the batch) and the row of the table that it found; events ascending.
#[derive(Default)]
struct Pairs {
    events: Vec<u32>,
    rows: Vec<Option<u32>>,
}

impl Pairs {
    fn push(&mut self, event: u32, row: Option<u32>) {
        self.events.push(event);
        self.rows.push(row);
    }

    /// For each of these events, the end of its pairs.
    fn ends(&self, events: Range<usize>) -> Vec<usize> {
        let end = |event: usize| self.events.partition_point(|&one| one as usize <= event);
        events.map(end).collect()
    }
}

impl BatchLookup<'_> {
    /// Computes the output of these events.
    fn run(&self, events: Range<usize>) -> Result<Batch> {
        let pairs = match &self.plan.find {
            Find::Key { column, keeps_unmatched, .. } => self.by_key(*column, *keeps_unmatched, events.clone())?,
            Find::Scan { nearby, order, limit, .. } => {
                let pairs = match nearby {
                    None => self.by_condition(events.clone())?,
                    Some(nearby) => self.near(nearby, events.clone())?,
                };
                match order.is_empty() && limit.is_none() {
                    true => pairs,
                    false => self.ordered(pairs, order, limit.is_some())?,
                }
            }
        };
        if self.plan.aggregates.is_none() {
            self.check_rows(&pairs)?;
        }
        let ends = pairs.ends(events.clone());
        let Pairs { events: found, rows } = pairs;
        let results = self.evaluate(&self.plan.results, &UInt32Array::from(found.clone()), &UInt32Array::from(rows))?;
        let (batch, results) = match &self.plan.aggregates {
            None => (self.batch.take(&found)?, results),
            Some(aggregates) => {
                let mut arguments = results.iter();
                let results = aggregates.iter().map(|one| {
                    let values = one.argument.as_ref().and_then(|_| arguments.next());
                    one.function.compute(values, &ends)
                });
                (self.batch.slice(events.start, events.len()), results.collect::<Result<_>>()?)
            }
        };
        let options = RecordBatchOptions::new().with_row_count(Some(batch.rows()));
        let columns = batch.columns.columns().iter().cloned().chain(results).collect();
        let columns = RecordBatch::try_new_with_options(self.plan.output.clone(), columns, &options)?;
        Ok(batch.with_columns(columns))
    }

    fn by_key(&self, column: usize, keeps_unmatched: bool, events: Range<usize>) -> Result<Pairs> {
        let places = UInt32Array::from_iter_values(events.start as u32..events.end as u32);
        let nowhere = UInt32Array::new_null(places.len());
        let keys = self.evaluate(&self.plan.condition, &places, &nowhere)?;
        let mut pairs = Pairs::default();
        // One more than allowed is enough to know that there are too many.
        let most = match self.plan.aggregates.is_some() {
            true if events.len() == 1 => usize::MAX,
            true => FOUND_MAX,
            false => ROWS_PER_EVENT_MAX,
        };
        self.table.index(column).find(&keys[0], |place, row| {
            if (row.is_some() || keeps_unmatched) && pairs.events.len() <= most {
                pairs.push(events.start as u32 + place, row);
            }
        });
        self.check_found(&pairs, events.len())?;
        Ok(pairs)
    }

    /// Fails if there are more pairs than one event may give.
    fn check_rows(&self, pairs: &Pairs) -> Result<()> {
        match pairs.events.len() > ROWS_PER_EVENT_MAX {
            true => exec_err!("the event finds more than {ROWS_PER_EVENT_MAX} rows of {}", self.plan.table.name()),
            false => Ok(()),
        }
    }

    /// Fails if too many rows have been found already, so that no more are collected.
    fn check_found(&self, found: &Pairs, events: usize) -> Result<()> {
        let is_each_a_row = self.plan.aggregates.is_none()
            && matches!(&self.plan.find, Find::Scan { order, limit: None, .. } if order.is_empty());
        if is_each_a_row {
            self.check_rows(found)?;
        }
        match events > 1 && found.events.len() > FOUND_MAX {
            true => exec_err!("{events} events together find more than {FOUND_MAX} rows"),
            false => Ok(()),
        }
    }

    /// The same as [`Self::by_condition`], for the rows that the index of places returns.
    fn near(&self, nearby: &Nearby, events: Range<usize>) -> Result<Pairs> {
        let places = UInt32Array::from_iter_values(events.start as u32..events.end as u32);
        let nowhere = UInt32Array::new_null(places.len());
        let bounds = self.evaluate(&self.plan.nearby, &places, &nowhere)?;
        let (latitudes, longitudes) =
            (bounds[0].as_primitive::<Float64Type>(), bounds[1].as_primitive::<Float64Type>());
        let index = self.table.places(nearby.columns);
        let (mut found, mut candidates) = (Pairs::default(), Vec::new());
        let (mut pair_events, mut pair_rows) = (Vec::new(), Vec::new());
        let together = events.len();
        for (place, event) in events.enumerate() {
            self.check_found(&found, together)?;
            let is_known = bounds.iter().all(|bound| bound.is_valid(place));
            let near = || match &nearby.radius {
                Some(_) => Near::Within(bounds[2].as_primitive::<Float64Type>().value(place)),
                None => {
                    let limit = bounds[2].as_primitive::<Int64Type>().value(place);
                    Near::Nearest(usize::try_from(limit).unwrap_or(0))
                }
            };
            if is_known && index.candidates(latitudes.value(place), longitudes.value(place), near(), &mut candidates) {
                pair_events.resize(pair_events.len() + candidates.len(), event as u32);
                pair_rows.append(&mut candidates);
            } else {
                // Every row may be found. The pairs of earlier events go first.
                self.keep_passing(&mut pair_events, &mut pair_rows, &mut found)?;
                let mut of_event = self.by_condition(event..event + 1)?;
                found.events.append(&mut of_event.events);
                found.rows.append(&mut of_event.rows);
            }
            if pair_rows.len() >= PAIRS_MAX {
                self.keep_passing(&mut pair_events, &mut pair_rows, &mut found)?;
            }
        }
        self.keep_passing(&mut pair_events, &mut pair_rows, &mut found)?;
        Ok(found)
    }

    /// Moves the pairs for which the condition is true to `found`, and forgets the others.
    fn keep_passing(&self, events: &mut Vec<u32>, rows: &mut Vec<u32>, found: &mut Pairs) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        self.passing(&std::mem::take(events).into(), &std::mem::take(rows).into(), found)
    }

    /// Returns the pairs for which the condition is true, rows ascending for each event.
    fn by_condition(&self, events: Range<usize>) -> Result<Pairs> {
        let rows = self.table.columns().num_rows();
        let mut found = Pairs::default();
        // There is more than one piece only if a single event has this many rows to try.
        for start in (0..rows).step_by(PAIRS_MAX) {
            let piece = start as u32..rows.min(start + PAIRS_MAX) as u32;
            let pair_rows = UInt32Array::from_iter_values(events.clone().flat_map(|_| piece.clone()));
            let pair_events = UInt32Array::from_iter_values(
                events.clone().flat_map(|event| piece.clone().map(move |_| event as u32)),
            );
            self.passing(&pair_events, &pair_rows, &mut found)?;
            self.check_found(&found, events.len())?;
        }
        Ok(found)
    }

    /// Adds the pairs for which the condition is true to `found`.
    fn passing(&self, events: &UInt32Array, rows: &UInt32Array, found: &mut Pairs) -> Result<()> {
        let mut pass = |pair: usize| found.push(events.value(pair), Some(rows.value(pair)));
        if self.plan.condition.expressions.is_empty() {
            (0..rows.len()).for_each(&mut pass);
            return Ok(());
        }
        let condition = self.evaluate(&self.plan.condition, events, rows)?.swap_remove(0);
        if *condition.data_type() == DataType::Null {
            return Ok(());
        }
        let condition = condition.as_boolean();
        match condition.null_count() {
            0 => condition.values().set_indices().for_each(&mut pass),
            _ => prep_null_mask_filter(condition).values().set_indices().for_each(&mut pass),
        }
        Ok(())
    }

    /// Returns the pairs of each event in order, up to the limit.
    fn ordered(&self, pairs: Pairs, keys: &[OrderKey], has_limit: bool) -> Result<Pairs> {
        let events = UInt32Array::from(pairs.events);
        let rows = UInt32Array::from(pairs.rows);
        let mut columns = self.evaluate(&self.plan.order, &events, &rows)?;
        let limits = if has_limit { columns.pop() } else { None };
        let limits = limits.as_ref().map(|limits| limits.as_primitive::<Int64Type>());
        let comparators = keys
            .iter()
            .zip(&columns)
            .map(|(key, column)| {
                let options = SortOptions { descending: key.descending, nulls_first: key.nulls_first };
                Ok(make_comparator(column, column, options)?)
            })
            .collect::<Result<Vec<DynComparator>>>()?;
        // Equal pairs stay in the order of the table, so that the result does not depend on the sorting algorithm.
        let compare = |one: &usize, other: &usize| {
            let mut orders = comparators.iter().map(|compare| compare(*one, *other));
            orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal).then(one.cmp(other))
        };
        let mut kept = Pairs::default();
        let mut group: Vec<usize> = Vec::new();
        let mut start = 0;
        while start < events.len() {
            let event = events.value(start);
            let end = start + events.values()[start..].partition_point(|&one| one == event);
            let limit = limits.filter(|limits| limits.is_valid(start)).map_or(usize::MAX, |limits| {
                // A negative limit leaves nothing.
                usize::try_from(limits.value(start)).unwrap_or(0)
            });
            group.clear();
            group.extend(start..end);
            if !comparators.is_empty() {
                if limit < group.len() && limit > 0 {
                    group.select_nth_unstable_by(limit - 1, compare);
                    group.truncate(limit);
                }
                if limit > 0 {
                    group.sort_unstable_by(compare);
                }
            }
            for &pair in group.iter().take(limit) {
                kept.push(event, Some(rows.value(pair)));
            }
            start = end;
        }
        Ok(kept)
    }

    /// Evaluates expressions for pairs of an event and a row of the table. A null row has nulls in all columns.
    fn evaluate(&self, pairs: &PairExpressions, events: &UInt32Array, rows: &UInt32Array) -> Result<Vec<ArrayRef>> {
        if pairs.expressions.is_empty() {
            return Ok(Vec::new());
        }
        let column = |column: &PairColumn| match *column {
            PairColumn::Event(index) => take(self.batch.column(index), events, None),
            PairColumn::Table(index) => take(self.table.columns().column(index), rows, None),
            PairColumn::Parameter(index) => take(&self.parameters[index], events, None),
        };
        let columns = pairs.columns.iter().map(column).collect::<Result<Vec<_>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(events.len()));
        let batch = RecordBatch::try_new_with_options(pairs.schema.clone(), columns, &options)?;
        let evaluate = |expression: &Arc<dyn datafusion_physical_expr::PhysicalExpr>| {
            expression.evaluate(&batch)?.into_array_of_size(batch.num_rows())
        };
        pairs.expressions.iter().map(evaluate).collect::<Result<Vec<_>, DataFusionError>>()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float64Array, Int64Array};
    use arrow::datatypes::{Field, Schema};
    use datafusion_physical_expr::PhysicalExpr;
    use datafusion_physical_expr::expressions::{Column, lit};
    use rivulet_dataflow::{Reason, Refusals};

    use super::*;
    use crate::lookup::{Lookup, LookupResults, LookupSpec, Table, TableAggregate, TableFunction};
    use crate::testing::{batch, parameter_table, process_context};

    /// A lookup in which each event finds all rows of a table by their places.
    fn plan(rows: usize, results: LookupResults) -> Arc<Plan> {
        let field = |name: &str| Field::new(name, DataType::Float64, true);
        let input = Schema::new(vec![field("c0"), field("c1")]);
        let places: ArrayRef = Arc::new(Float64Array::from(vec![0.5; rows]));
        let schema = Arc::new(Schema::new(vec![field("latitude"), field("longitude")]));
        let table = Arc::new(Table::new("t", RecordBatch::try_new(schema, vec![places.clone(), places]).unwrap()));
        let column = |name: &str, index| -> Arc<dyn PhysicalExpr> { Arc::new(Column::new(name, index)) };
        let nearby = Nearby { columns: [0, 1], place: [column("c0", 0), column("c1", 1)], radius: Some(lit(10.0)) };
        let find = Find::Scan { nearby: Some(nearby), condition: None, order: vec![], limit: None };
        let parameter_schema = Arc::new(Schema::empty());
        let spec = LookupSpec { input: Arc::new(input), parameter_schema, parameters: vec![], table, find, results };
        Lookup::new(spec).unwrap().plan
    }

    fn events(count: usize) -> Batch {
        let places: ArrayRef = Arc::new(Float64Array::from(vec![0.5; count]));
        batch(&vec![(0, 0); count], vec![places.clone(), places])
    }

    #[test]
    fn events_that_find_too_much_together_are_tried_in_halves() {
        let count = TableAggregate { name: "n".into(), function: TableFunction::Count, argument: None };
        let plan = plan(2_000, LookupResults::Aggregates(vec![count]));
        let (events, table) = (events(NEARBY_EVENTS_MAX), plan.table.rows());
        let lookup = BatchLookup { plan: &plan, batch: &events, parameters: vec![], table: &table };
        let error = lookup.run(0..NEARBY_EVENTS_MAX).unwrap_err().to_string();
        assert!(error.contains("together find more than"), "{error}");
        let slots = parameter_table("unused", Arc::new(Int64Array::from(vec![0])));
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let mut context = process_context(&slots, &mut refusals, &mut output);
        LookupOperator { plan: plan.clone() }.process(Element::Batch(events.clone()), &mut context).unwrap();
        let counts = output.iter().flat_map(|batch| batch.column(2).as_primitive::<Int64Type>().values().to_vec());
        assert_eq!(counts.collect::<Vec<_>>(), vec![2_000; NEARBY_EVENTS_MAX]);
        assert_eq!(refusals.counted(Reason::Expression), 0);
    }

    #[test]
    fn rows_are_not_collected_beyond_what_an_event_may_give() {
        let plan = plan(ROWS_PER_EVENT_MAX + 1, LookupResults::Rows(vec![]));
        let (events, table) = (events(3), plan.table.rows());
        let lookup = BatchLookup { plan: &plan, batch: &events, parameters: vec![], table: &table };
        let Find::Scan { nearby: Some(nearby), .. } = &plan.find else { panic!("it looks near") };
        assert!(lookup.near(nearby, 0..3).is_err());
    }
}
