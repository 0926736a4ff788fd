//! A group run by hand: the real decoder, operators and runtime of an application, stepped by the test, with a clock that
//! stands still until the test moves it. Nothing is replaced but the sockets and the clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{SchemaRef, UInt32Type};
use parking_lot::Mutex;
use rivulet_connectors::formats::{EncodedRows, Encoder, Format, InputFormat, several_inputs};
use rivulet_dataflow::{
    Batch, Clock, Decoder, Inbox, InputIndex, ManualClock, Push, QueryId, Refusals, Sink, SinkError, Slot, SlotTable,
    StateFrame, StateSelection,
};
use rivulet_runtime::{Group, GroupMetrics, GroupParts, InboxLimits, Joined, Spill, SpillStatus, Task, TaskParts};
use rivulet_sql::{Application, Input, ParamValue, ParameterRows, Statement};

/// The results of each query, in order, as JSON.
pub type Results = BTreeMap<QueryId, Vec<String>>;

/// A group, its clock, and what it has emitted.
pub struct TestGroup {
    sql: String,
    application: Application,
    group: Arc<Group>,
    clock: Arc<ManualClock>,
    results: Arc<Mutex<Results>>,
    /// Whether silent queries can be spilled.
    spills: bool,
    /// Whether equal queries share a slot.
    shares: bool,
}

/// The most bytes of the file to which silent queries are spilled.
const SPILL_BYTES_MAX: u64 = 1 << 30;

impl TestGroup {
    /// A group of the application in `sql` (the text of one `CREATE APPLICATION`), at `now_us`.
    ///
    /// # Panics
    /// If the text is not one valid `CREATE APPLICATION` with JSON input.
    pub fn new(sql: &str, now_us: i64) -> Self {
        Self::with_results(sql, now_us, Arc::default(), false)
    }

    /// The same, with equal queries that are computed once: see [`TestGroup::join`].
    ///
    /// # Panics
    /// As [`TestGroup::new`] does.
    pub fn sharing(sql: &str, now_us: i64) -> Self {
        Self::with_results(sql, now_us, Arc::default(), true)
    }

    fn with_results(sql: &str, now_us: i64, results: Arc<Mutex<Results>>, shares: bool) -> Self {
        let mut statements = rivulet_sql::parse_script(sql).unwrap_or_else(|error| panic!("{}", error.render(sql)));
        let Some((Statement::CreateApplication(create), _)) = statements.pop() else {
            panic!("not a CREATE APPLICATION: {sql}")
        };
        let application =
            rivulet_sql::plan_application(&create).unwrap_or_else(|error| panic!("{}\n{sql}", error.render(sql)));
        let (dataflow, output) = (application.dataflow.clone(), application.outputs[0].schema.clone());
        let (inputs, row_schema) = (application.inputs.clone(), application.row_schema.clone());
        let (kept, has_output_bits) = (results.clone(), application.has_output_bits);
        let event_time = application.inputs[0].event_time.filter(|_| inputs.len() == 1);
        let make = move || TaskParts {
            decoder: decoder(&inputs, &row_schema),
            chain: dataflow.chain(),
            sink: Box::new(Kept {
                encoder: Format::Json.encoder(output.clone()).expect("any schema is written as JSON"),
                rows: EncodedRows::default(),
                results: kept.clone(),
                has_output_bits,
            }),
        };
        let parts = GroupParts {
            name: application.name.clone(),
            parameters: application.parameter_schema.clone(),
            make: Box::new(make),
            limits: InboxLimits::default(),
            event_time_column: event_time,
            task_queries_max: None,
            batch_rows_max: None,
            equal_by: shares.then(|| application.deciding_parameters.clone()),
            passes_on: false,
        };
        let clock = Arc::new(ManualClock::new(now_us));
        let group = Group::by_hand(parts, clock.clone());
        Self { sql: sql.to_owned(), application, group, clock, results, spills: false, shares }
    }

    /// The same group, able to spill silent queries to a file in the folder of the system for such.
    ///
    /// # Panics
    /// If the file cannot be made.
    #[must_use]
    pub fn spilling(self) -> Self {
        let spill = Spill::new(&std::env::temp_dir(), Duration::ZERO, SPILL_BYTES_MAX, || false);
        self.group.enable_spilling(spill.expect("a file can be made"));
        Self { spills: true, ..self }
    }

    /// Spills the queries that had no event in the last `sweeps` calls of this, and for which nothing is due within
    /// `horizon_us`.
    ///
    /// # Panics
    /// If the disk fails.
    pub fn spill(&self, sweeps: u8, horizon_us: i64) -> usize {
        self.group.spill_silent(sweeps, horizon_us).expect("there is room on disk")
    }

    /// What became of silent queries.
    pub fn spill_status(&self) -> SpillStatus {
        self.group.spill_status()
    }

    /// Memory held by parameters, state and waiting events, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.group.memory_bytes()
    }

    /// The tasks that have queries.
    pub fn tasks(&self) -> Vec<Arc<Task>> {
        self.group.tasks().filter(|task| task.queries() > 0).cloned().collect()
    }

    /// Moves half of the queries of a task to another one.
    ///
    /// # Panics
    /// If state cannot be moved.
    pub fn split(&self, task: &Arc<Task>) {
        self.group.split(task).expect("state can be moved");
    }

    /// Moves the queries of a task to another one.
    ///
    /// # Panics
    /// If state cannot be moved.
    pub fn merge(&self, task: &Arc<Task>, into: &Arc<Task>) {
        self.group.merge(task, into).expect("state can be moved");
    }

    /// Processes what waits, then moves everything into a fresh group: the same queries in the same slots, and their state
    /// through bytes. What the fresh group emits is added to what this one has emitted.
    ///
    /// # Panics
    /// If the state cannot be exported and imported.
    #[must_use]
    pub fn moved(self) -> Self {
        self.run();
        let frames = self.export(None);
        let fresh = Self::with_results(&self.sql, self.clock.now_us(), self.results.clone(), self.shares);
        let fresh = if self.spills { fresh.spilling() } else { fresh };
        let slots: Vec<Slot> = (0..self.group.slots()).collect();
        let known = self.group.with_queries(&slots, |table, row| {
            (table.query(row), table.parameters(&[row]), table.further_queries(row))
        });
        let Some((_, somebodys, _)) = known.iter().flatten().next().cloned() else { return fresh };
        let mut empty = Vec::new();
        for (slot, query) in slots.into_iter().zip(known) {
            // A slot that nobody has is held by somebody, so that the ones after it are the same.
            let (query, parameters, further) = query.unwrap_or_else(|| {
                empty.push(slot);
                (None, somebodys.clone(), None)
            });
            assert_eq!(fresh.group.add(&[query.unwrap_or(QueryId::MAX - 1)], &parameters), [slot]);
            if let Some((queries, parameters)) = further {
                fresh.group.share(slot, &queries, &parameters);
            }
        }
        fresh.group.remove(&empty);
        fresh.run();
        fresh.group.import_state(&frames).expect("state can be imported");
        fresh
    }

    /// Adds a query with these parameters and returns its slot.
    ///
    /// # Panics
    /// If the parameters do not fit.
    pub fn add(&self, query: QueryId, parameters: &[(&str, ParamValue<'_>)]) -> Slot {
        self.group.add(&[query], &self.bound(parameters))[0]
    }

    /// Adds a query, which shares a slot with equal ones where that is possible.
    ///
    /// # Panics
    /// If the parameters do not fit.
    pub fn join(&self, query: QueryId, parameters: &[(&str, ParamValue<'_>)]) -> Joined {
        self.group.join(&[query], &self.bound(parameters))[0]
    }

    /// Takes a query out, which may share its slot.
    pub fn leave(&self, slot: Slot, query: QueryId) {
        self.group.remove(&self.group.leave(&[(slot, query)]));
    }

    /// Sees to it that a query is alone in its slot, and returns that.
    ///
    /// # Panics
    /// If its state cannot be copied.
    pub fn part(&self, slot: Slot, query: QueryId) -> Slot {
        self.group.part(slot, query).expect("state can be copied")
    }

    /// How many queries share a slot with one before them.
    pub fn further_queries(&self) -> usize {
        self.group.further_queries()
    }

    fn bound(&self, parameters: &[(&str, ParamValue<'_>)]) -> RecordBatch {
        let mut rows = ParameterRows::new(&self.application);
        rows.push(parameters.iter().copied()).unwrap_or_else(|error| panic!("{error}"));
        let rows = rows.finish();
        for checked in self.application.check(&rows) {
            checked.unwrap_or_else(|error| panic!("{error}"));
        }
        rows
    }

    /// Removes a query.
    pub fn remove(&self, slot: Slot) {
        self.group.remove(&[slot]);
    }

    /// Moves the clock to `arrival_us` and puts an event into the inbox.
    ///
    /// # Panics
    /// If the inbox is full.
    pub fn push(&self, slot: Slot, arrival_us: i64, payload: &str) {
        self.clock.set_us(arrival_us);
        assert_eq!(self.group.push(slot, arrival_us, payload.as_bytes()), Push::Taken);
    }

    /// The same for an event of one of the further inputs, by its place among the declared ones.
    ///
    /// # Panics
    /// If the inbox is full.
    pub fn push_from(&self, input: InputIndex, slot: Slot, arrival_us: i64, payload: &str) {
        self.clock.set_us(arrival_us);
        assert_eq!(self.group.push_from(input, slot, arrival_us, payload.as_bytes()), Push::Taken);
    }

    /// Runs the group on what is in the inbox, and what timers are due.
    pub fn run(&self) {
        self.group.run();
    }

    /// Moves the clock and runs the group.
    pub fn run_at(&self, now_us: i64) {
        self.clock.set_us(now_us);
        self.run();
    }

    /// Ends the input: what is open is closed.
    pub fn end(&self) {
        self.group.end();
    }

    /// The state of some slots (all without), through bytes as it would be saved.
    ///
    /// # Panics
    /// If it cannot be exported, or does not survive its bytes.
    pub fn export(&self, slots: Option<Vec<Slot>>) -> Vec<Option<StateFrame>> {
        let selection = slots.map_or(StateSelection::All, StateSelection::Slots);
        let frames = self.group.export_state(&selection).expect("state can be exported");
        frames
            .into_iter()
            .map(|frame| frame.map(|frame| StateFrame::from_bytes(&frame.to_bytes().unwrap()).unwrap()))
            .collect()
    }

    /// What each query has emitted, in order.
    pub fn results(&self) -> Results {
        self.results.lock().clone()
    }

    /// The group's counters.
    pub fn metrics(&self) -> GroupMetrics {
        self.group.metrics()
    }
}

/// The decoder of an application whose inputs are all JSON.
fn decoder(inputs: &[Input], row_schema: &SchemaRef) -> Box<dyn Decoder> {
    if let [input] = inputs {
        return Format::Json.decoder(input.schema.clone(), input.event_time).expect("the input is JSON");
    }
    let formats = inputs.iter().map(|input| InputFormat {
        format: Format::Json,
        schema: input.schema.clone(),
        event_time_column: input.event_time,
    });
    several_inputs(formats.collect(), row_schema.clone()).expect("all inputs are JSON")
}

/// Keeps results by query. Where there are conditions for outputs, the bits of those that a row goes to stand before it.
struct Kept {
    has_output_bits: bool,
    encoder: Box<dyn Encoder>,
    rows: EncodedRows,
    results: Arc<Mutex<Results>>,
}

impl Sink for Kept {
    fn write(&mut self, batch: &Batch, slots: &SlotTable) -> Result<(), SinkError> {
        self.rows.clear();
        let columns = batch.columns.num_columns() - usize::from(self.has_output_bits);
        let shown: Vec<usize> = (0..columns).collect();
        let shown = batch.with_columns(batch.columns.project(&shown).expect("columns of the batch"));
        self.encoder.encode(&shown, &mut self.rows);
        let mut results = self.results.lock();
        for (row, &slot) in batch.slots.iter().enumerate() {
            assert!(slots.query(slot).is_some(), "results belong to a query");
            let mut result = String::from_utf8(self.rows.row(row).to_vec()).unwrap();
            if self.has_output_bits {
                let bits = batch.columns.columns().last().expect("the bits").as_primitive::<UInt32Type>().value(row);
                result.insert_str(0, &format!("{bits:b} "));
            }
            slots.for_each_query(slot, |query, _, _| results.entry(query).or_default().push(result.clone()));
        }
        Ok(())
    }

    fn refused(&mut self, _refusals: &Refusals, _slots: &SlotTable) -> Result<(), SinkError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    fn has_room(&self) -> bool {
        true
    }
}
