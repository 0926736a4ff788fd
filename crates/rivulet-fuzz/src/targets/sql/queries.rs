//! Big queries that were planned, run to their end over a few rows of each source: with one source whole and row by
//! row, with the same results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use parking_lot::Mutex;
use rivulet_dataflow::stage::sink_instances;
use rivulet_dataflow::{Batch, ManualClock, Polled, Refusals, Sink, SinkError, Source, SourceError};
use rivulet_runtime::{FlowLimits, FlowParts, Partition, Workers};
use rivulet_sql::QueryPlan;

use crate::rows::{BEGIN_US, Values, in_words, sample};

const ROWS: usize = 24;

/// So many tasks are run until it has to be done.
const STEPS_MAX: usize = 20_000;

/// Runs a query.
pub(super) fn run(plan: &QueryPlan) {
    let whole = results(plan, Values::Usual, ROWS, 1);
    // Of two sources it is open whose rows are first.
    if plan.sources.len() == 1 {
        let one_by_one = results(plan, Values::Usual, 1, 1);
        if let (Some(Ok(whole)), Some(Ok(one_by_one))) = (&whole, &one_by_one) {
            assert_eq!(whole, one_by_one, "results do not depend on how rows are cut");
        }
    }
    results(plan, Values::Ends, 5, 2);
}

/// How often each row is among the results, in words; or why the query failed. `None` where rows cannot be made.
fn results(
    plan: &QueryPlan,
    values: Values,
    at_once: usize,
    parallelism: usize,
) -> Option<Result<BTreeMap<String, i64>, String>> {
    let mut sources = Vec::new();
    for planned in &plan.sources {
        let schema = Arc::new(planned.declaration.schema.project(&planned.columns).expect("the columns are there"));
        let rows = Rows { rows: sample(&schema, ROWS, values)?, next: 0 };
        sources.push(vec![Partition {
            event_time_column: planned.event_time,
            lateness_us: planned.declaration.lateness_us,
            ..Partition::from(Box::new(rows) as Box<dyn Source>)
        }]);
    }
    let partitions: Vec<usize> = sources.iter().map(Vec::len).collect();
    let kept = Arc::<Mutex<BTreeMap<String, i64>>>::default();
    let sink = || Box::new(Kept(kept.clone())) as Box<dyn Sink>;
    let sinks = sink_instances(&plan.dataflow, &partitions, parallelism);
    let clock = Arc::new(ManualClock::new(BEGIN_US));
    let workers = Workers::stepped(clock.clone());
    let flow = workers
        .start_flow(FlowParts {
            name: "q".into(),
            dataflow: plan.dataflow.clone(),
            sources,
            sinks: sinks.into_iter().map(|instances| (0..instances).map(|_| sink()).collect()).collect(),
            parallelism,
            limits: FlowLimits { batch_rows: at_once, ..FlowLimits::default() },
            letters: None,
            tap: None,
            restored: None,
        })
        .expect("there is no state that could not fit");
    for _ in 0..STEPS_MAX {
        match flow.wait(Duration::ZERO) {
            Some(Ok(())) => {
                let mut results = std::mem::take(&mut *kept.lock());
                results.retain(|_, times| *times != 0);
                assert!(
                    results.values().all(|&times| times > 0),
                    "nothing is taken back that was not given: {results:?}"
                );
                return Some(Ok(results));
            }
            Some(Err(error)) => return Some(Err(error.to_string())),
            None => {
                if !workers.run_one(|_| 0, Duration::ZERO) {
                    clock.advance_us(1_000);
                    workers.keep_time_once();
                }
            }
        }
    }
    panic!("a query over {ROWS} rows does not come to its end");
}

/// Rows that have an end.
struct Rows {
    rows: RecordBatch,
    next: usize,
}

impl Source for Rows {
    fn poll(&mut self, rows_max: usize, now_us: i64, _: &mut Refusals) -> Result<Polled, SourceError> {
        let count = rows_max.min(self.rows.num_rows() - self.next);
        if count == 0 {
            return Ok(Polled::End);
        }
        let columns = self.rows.slice(self.next, count);
        self.next += count;
        Ok(Polled::Rows { columns, retracts: None, arrival_us: now_us })
    }

    fn is_bounded(&self) -> bool {
        true
    }
}

/// Counts rows.
struct Kept(Arc<Mutex<BTreeMap<String, i64>>>);

impl Sink for Kept {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let mut kept = self.0.lock();
        for (row, words) in in_words(&batch.columns).into_iter().enumerate() {
            *kept.entry(words).or_default() += if batch.is_retraction(row) { -1 } else { 1 };
        }
        Ok(())
    }
}
