//! The answer of the engine: a real flow of the planned query, whose tasks run in an order that follows from a seed,
//! with a checkpoint in the middle from which it goes on at another parallelism.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions, StringArray,
    TimestampMicrosecondArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type, SchemaRef, TimeUnit, TimestampMicrosecondType};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet_dataflow::stage::sink_instances;
use rivulet_dataflow::{
    Batch, CollectedState, Fuse, ManualClock, Polled, Refusals, Sink, SinkError, Snapshot, Source, SourceError,
    TransactionalSink,
};
use rivulet_runtime::{Flow, FlowLimits, FlowParts, Partition, Workers};
use rivulet_sql::{QueryPlan, Scope, Statement, parse_script, plan_query};

use super::interpret::mean;
use super::query::{MIDNIGHT_US, Table, Type, Value};

/// So many milliseconds go by, of a clock that moves only while no task is ready, until all that comes has come.
const QUIET_MS: usize = 200;

/// So many tasks are run until it has to be done.
const STEPS_MAX: usize = 400_000;

/// How a query is run.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    /// Chooses which task runs next.
    pub(crate) seed: u64,
    pub(crate) parallelism: usize,
    pub(crate) batch_rows: usize,
    /// Rows that may wait in front of a task.
    pub(crate) rows_max: usize,
    /// After how many steps there is a checkpoint, from which it goes on in so many instances.
    pub(crate) restart: Option<(usize, usize)>,
    /// Whether the sources never end. Then the answer is what has come out when nothing moves any more.
    pub(crate) endless: bool,
}

/// How often each row is among the results; how many rows were refused, and why the first was; and how many restarts
/// went on in another number of instances, for a flow that is coming to its end has none.
#[derive(Debug, PartialEq)]
pub(crate) struct Answered {
    pub(crate) rows: BTreeMap<Vec<Value>, i64>,
    pub(crate) refused: Option<String>,
    pub(crate) retractions: usize,
    pub(crate) restarts: usize,
}

/// The statement that declares a source.
pub(crate) fn declaration(table: &Table) -> String {
    let columns = table.columns.iter().map(|column| {
        let ty = match column.ty {
            Type::Bool => "BOOLEAN",
            Type::Int => "BIGINT",
            Type::Text => "TEXT",
            Type::Time => "TIMESTAMP EVENT TIME",
            Type::Mean => "DOUBLE",
        };
        let not_null = if column.nullable || column.ty == Type::Time { "" } else { " NOT NULL" };
        format!("{} {ty}{not_null}", column.name)
    });
    let columns = columns.collect::<Vec<_>>().join(", ");
    let name = &table.name;
    format!(
        "CREATE SOURCE {name} ({columns}) FROM 'memory:{name}' WITH (lateness => INTERVAL '{} seconds');\n",
        table.lateness_s
    )
}

/// Plans a query over tables, behind the views that stand in front of it.
pub(crate) fn planned(query: &str, tables: &[Table]) -> Result<QueryPlan, String> {
    planned_beside(Scope::new(), query, tables)
}

/// Does the same beside what is in scope already.
pub(crate) fn planned_beside(mut scope: Scope, query: &str, tables: &[Table]) -> Result<QueryPlan, String> {
    let mut script: String = tables.iter().map(declaration).collect();
    script.push_str(query);
    let mut last = None;
    for (statement, _) in parse_script(&script).map_err(|error| error.to_string())? {
        let done = match statement {
            Statement::CreateSource(create) => create.declare(|_, _| None).and_then(|source| scope.add_source(source)),
            Statement::CreateView(view) => scope.add_view(&view),
            Statement::RunQuery(query) => plan_query(&query, &scope).map(|plan| last = Some(plan)),
            other => return Err(format!("not a statement of big queries: {other:?}")),
        };
        done.map_err(|error| error.to_string())?;
    }
    last.ok_or_else(|| "there is no query".into())
}

/// Runs a query to its end.
pub(crate) fn run(plan: &QueryPlan, tables: &[Table], course: &Course) -> Result<Answered, String> {
    run_through(plan, tables, course, course.restart.as_slice())
}

/// Does the same with these restarts instead of that of the course.
pub(crate) fn run_through(
    plan: &QueryPlan,
    tables: &[Table],
    course: &Course,
    restarts: &[(usize, usize)],
) -> Result<Answered, String> {
    let mut random = StdRng::seed_from_u64(course.seed);
    let clock = Arc::new(ManualClock::new(MIDNIGHT_US));
    let workers = Workers::stepped(clock.clone());
    // Returns whether a task has run.
    let mut step = || {
        let turn: usize = random.random_range(0..1 << 20);
        let has_run = workers.run_one(|ready| turn % ready, Duration::ZERO);
        if !has_run {
            clock.advance_us(1_000);
            workers.keep_time_once();
        }
        has_run
    };
    let (mut flow, mut kept) = start(&workers, plan, tables, course, course.parallelism, None)?;
    let mut rows: Vec<Change> = Vec::new();
    let (mut refused, mut restarted, mut instances) = (None, 0, course.parallelism);
    for &(steps, parallelism) in restarts {
        for _ in 0..steps {
            step();
        }
        let state = Arc::new(CollectedState::default());
        if flow.begin_checkpoint(1, state.clone()).is_ok() {
            let snapshot = (0..STEPS_MAX).find_map(|_| {
                step();
                flow.look_at_checkpoint()
            });
            // One that is coming to its end has no checkpoint.
            if let Some(Ok(mut snapshot)) = snapshot {
                snapshot.state = state.take_all();
                refused = refused.or_else(|| refusal(&flow));
                for (at, sink) in kept.iter().enumerate() {
                    let written = sink.rows.lock();
                    // Those that have come to their end are not in it, and have written all there is.
                    let prepared = snapshot.sinks[0].iter().filter_map(|prepared| prepared.split_once(' '));
                    let mut own = prepared.filter(|(sink, _)| *sink == at.to_string()).map(|(_, rows)| rows);
                    let final_to = own.next_back().map_or(written.len(), |rows| rows.parse().expect("a number"));
                    rows.extend_from_slice(&written[..final_to]);
                }
                drop(flow);
                let restored = Some(saved_and_read(snapshot)?);
                (flow, kept) = start(&workers, plan, tables, course, parallelism, restored)?;
                restarted += usize::from(parallelism != instances);
                instances = parallelism;
            }
        }
    }
    let mut quiet_ms = 0;
    for _ in 0..STEPS_MAX {
        let ended = match flow.wait(Duration::ZERO) {
            None if course.endless && quiet_ms == QUIET_MS => Some(Ok(())),
            ended => ended,
        };
        match ended {
            None => quiet_ms += usize::from(!step()),
            Some(Err(error)) => return Err(error.to_string()),
            Some(Ok(())) => {
                kept.iter().for_each(|sink| rows.append(&mut sink.rows.lock()));
                let retractions = rows.iter().filter(|row| row.1 < 0).count();
                let refused = refused.or_else(|| refusal(&flow));
                let mut answered = Answered { rows: BTreeMap::new(), refused, retractions, restarts: restarted };
                rows.into_iter().for_each(|(row, times)| *answered.rows.entry(row).or_insert(0) += times);
                answered.rows.retain(|_, times| *times != 0);
                return Ok(answered);
            }
        }
    }
    Err("it does not come to its end".into())
}

/// What was refused, in words.
fn refusal(flow: &Flow) -> Option<String> {
    let report = flow.report();
    let count: u64 = report.refused.iter().sum();
    (count > 0).then(|| format!("{count} rows are refused: {:?}", report.refusals))
}

/// A snapshot that has been bytes in between.
fn saved_and_read(mut snapshot: Snapshot) -> Result<Snapshot, String> {
    for frame in snapshot.state.values_mut().flatten() {
        let bytes = frame.to_bytes().map_err(|error| error.to_string())?;
        *frame = rivulet_dataflow::StateFrame::from_bytes(&bytes).map_err(|error| error.to_string())?;
    }
    Ok(snapshot)
}

fn start(
    workers: &Workers,
    plan: &QueryPlan,
    tables: &[Table],
    course: &Course,
    parallelism: usize,
    restored: Option<Snapshot>,
) -> Result<(Flow, Vec<Kept>), String> {
    let mut sources: Vec<Vec<Partition>> = Vec::new();
    for (place, source) in plan.sources.iter().enumerate() {
        let table = tables.iter().find(|table| table.name == source.declaration.name.text).ok_or("no such table")?;
        let schema = source.declaration.schema.project(&source.columns).map_err(|error| error.to_string())?;
        let schema = Arc::new(schema);
        let made = |partition: usize, next: usize, newest_us: Option<i64>| Partition {
            event_time_column: source.event_time,
            lateness_us: source.declaration.lateness_us,
            newest_us,
            ..Partition::from(Box::new(Rows::new(table, &source.columns, &schema, (partition, next), course.endless))
                as Box<dyn Source>)
        };
        let partitions = table.rows.iter().map(|row| row.0 + 1).max().unwrap_or(1);
        sources.push(match &restored {
            None => (0..partitions).map(|partition| made(partition, 0, None)).collect(),
            Some(snapshot) => snapshot.sources[place]
                .iter()
                .map(|state| {
                    let (partition, next) = state.position.as_deref()?.split_once(' ')?;
                    Some(made(partition.parse().ok()?, next.parse().ok()?, state.newest_us))
                })
                .collect::<Option<_>>()
                .ok_or("a partition without position")?,
        });
    }
    let partitions: Vec<usize> = sources.iter().map(Vec::len).collect();
    // It may go on with its operators one by one, or fused again.
    let is_fused = (course.seed >> usize::from(restored.is_some())) & 1 == 0;
    let dataflow = plan.dataflow.clone().with_fuse(if is_fused { Fuse::Auto } else { Fuse::None });
    let instances = sink_instances(&dataflow, &partitions, parallelism)[0];
    let kept: Vec<Kept> = (0..instances).map(|instance| Kept { instance, ..Kept::default() }).collect();
    let flow = workers.start_flow(FlowParts {
        name: "q".into(),
        dataflow,
        sources,
        sinks: vec![kept.iter().map(|sink| Box::new(sink.clone()) as Box<dyn Sink>).collect()],
        parallelism,
        limits: FlowLimits { rows_max: course.rows_max, bytes_max: 1 << 20, batch_rows: course.batch_rows },
        letters: None,
        tap: None,
        restored,
    });
    Ok((flow.map_err(|error| error.to_string())?, kept))
}

/// The rows of a partition of a table.
struct Rows {
    partition: usize,
    next: usize,
    rows: RecordBatch,
    is_endless: bool,
}

impl Rows {
    fn new(
        table: &Table,
        columns: &[usize],
        schema: &SchemaRef,
        (partition, next): (usize, usize),
        is_endless: bool,
    ) -> Self {
        let rows: Vec<&Vec<Value>> = table.rows.iter().filter(|row| row.0 == partition).map(|row| &row.1).collect();
        let arrays = columns.iter().zip(schema.fields()).map(|(&column, field)| {
            let values = array(rows.iter().map(|row| &row[column]), table.columns[column].ty);
            cast(&values, field.data_type()).expect("the column has the type that was declared")
        });
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let rows = RecordBatch::try_new_with_options(schema.clone(), arrays.collect(), &options);
        Self { partition, next, rows: rows.expect("the columns are as long"), is_endless }
    }
}

impl Source for Rows {
    fn poll(&mut self, rows_max: usize, now_us: i64, _: &mut Refusals) -> Result<Polled, SourceError> {
        let count = rows_max.min(self.rows.num_rows() - self.next);
        if count == 0 {
            return Ok(if self.is_endless { Polled::Nothing(Duration::from_millis(10)) } else { Polled::End });
        }
        let columns = self.rows.slice(self.next, count);
        self.next += count;
        Ok(Polled::Rows { columns, retracts: None, arrival_us: now_us })
    }

    fn position(&mut self) -> Option<String> {
        Some(format!("{} {}", self.partition, self.next))
    }

    fn is_bounded(&self) -> bool {
        !self.is_endless
    }
}

/// A row, and how many times it came; less than zero where it was taken back.
type Change = (Vec<Value>, i64);

/// Rows as they were written, and whether they came or were taken back. What is final is a number of them.
#[derive(Clone, Default)]
struct Kept {
    instance: usize,
    rows: Arc<Mutex<Vec<Change>>>,
}

impl Sink for Kept {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let columns: Vec<Vec<Value>> = batch.columns.columns().iter().map(values).collect();
        let rows = (0..batch.rows()).map(|row| {
            let times = if batch.is_retraction(row) { -1 } else { 1 };
            (columns.iter().map(|column| column[row].clone()).collect(), times)
        });
        self.rows.lock().extend(rows);
        Ok(())
    }

    fn transactional(&mut self) -> Option<&mut dyn TransactionalSink> {
        Some(self)
    }
}

impl TransactionalSink for Kept {
    fn prepare(&mut self) -> Result<Option<String>, SinkError> {
        Ok(Some(format!("{} {}", self.instance, self.rows.lock().len())))
    }
}

fn array<'v>(values: impl Iterator<Item = &'v Value>, ty: Type) -> ArrayRef {
    let wrong = |value: &Value| -> ! { panic!("{value:?} is no {ty:?}") };
    match ty {
        Type::Bool => Arc::new(
            values
                .map(|value| match value {
                    Value::Null => None,
                    Value::Bool(value) => Some(*value),
                    other => wrong(other),
                })
                .collect::<BooleanArray>(),
        ),
        Type::Int => Arc::new(
            values
                .map(|value| match value {
                    Value::Null => None,
                    Value::Int(value) => Some(*value),
                    other => wrong(other),
                })
                .collect::<Int64Array>(),
        ),
        Type::Text => Arc::new(
            values
                .map(|value| match value {
                    Value::Null => None,
                    Value::Text(value) => Some(value.as_str()),
                    other => wrong(other),
                })
                .collect::<StringArray>(),
        ),
        Type::Time | Type::Mean => Arc::new(
            values
                .map(|value| match value {
                    Value::Null => None,
                    Value::Time(value) => Some(*value),
                    other => wrong(other),
                })
                .collect::<TimestampMicrosecondArray>(),
        ),
    }
}

/// The values of a column that came out.
fn values(column: &ArrayRef) -> Vec<Value> {
    let as_type = |ty: &DataType| cast(column, ty).expect("the value of a result fits");
    let of = |value: &dyn Fn(usize) -> Value| {
        let rows = 0..column.len();
        rows.map(|row| if column.is_null(row) { Value::Null } else { value(row) }).collect::<Vec<_>>()
    };
    match column.data_type() {
        DataType::Null => vec![Value::Null; column.len()],
        DataType::Boolean => of(&|row| Value::Bool(column.as_boolean().value(row))),
        DataType::Timestamp(..) => {
            let times = as_type(&DataType::Timestamp(TimeUnit::Microsecond, None));
            of(&|row| Value::Time(times.as_primitive::<TimestampMicrosecondType>().value(row)))
        }
        DataType::Float64 | DataType::Float32 => {
            let means = as_type(&DataType::Float64);
            of(&|row| Value::Mean(mean(means.as_primitive::<Float64Type>().value(row))))
        }
        other if other.is_numeric() => {
            let numbers = as_type(&DataType::Int64);
            of(&|row| Value::Int(numbers.as_primitive::<Int64Type>().value(row)))
        }
        _ => {
            let texts = as_type(&DataType::Utf8);
            of(&|row| Value::Text(texts.as_string::<i32>().value(row).to_owned()))
        }
    }
}
