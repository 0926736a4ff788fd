//! A group stepped by a test: the real decoder, operators and runtime of an application, with a clock that stands still
//! until the test moves it. Only the sockets and the clock are replaced.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{AsArray, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{SchemaRef, UInt32Type};
use parking_lot::Mutex;
use rivulet_connectors::formats::{EncodedRows, Encoder, Format, InputFormat, Times, several_inputs};
use rivulet_connectors::mqtt::TopicPart;
use rivulet_dataflow::{
    Batch, Clock, Cut, Decoder, Event, GroupSink, Inbox, InputIndex, Line, ManualClock, Push, QueryId, Refusals,
    SinkError, Slot, SlotTable, StateFrame, StateMap, StateSelection,
};
use rivulet_runtime::{
    Activation, Alter, Group, GroupMetrics, GroupParts, GroupSnapshot, InboxLimits, Joined, Saved, Spill, SpillStatus,
    Task, TaskParts,
};
use rivulet_sql::application::{Alteration, alteration};
use rivulet_sql::{Application, Input, ParamValue, ParameterRows, StateMigration, Statement};

/// The results of each query, in order, as JSON.
pub type Results = BTreeMap<QueryId, Vec<String>>;

/// The results of each query by their numbers; repeated results count once.
#[derive(Default)]
struct Numbered {
    results: BTreeMap<QueryId, BTreeMap<u64, String>>,
    /// Repeated results that differ from the first one.
    differing: Vec<String>,
}

/// A group, its clock, and what it has emitted.
pub struct TestGroup {
    sql: String,
    application: Application,
    group: Arc<Group>,
    clock: Arc<ManualClock>,
    results: Arc<Mutex<Results>>,
    numbered: Arc<Mutex<Numbered>>,
    /// Whether silent queries can be spilled.
    spills: bool,
    /// Whether equal queries share a slot.
    shares: bool,
}

/// The most bytes of the file to which silent queries are spilled.
const SPILL_BYTES_MAX: u64 = 1 << 30;

impl TestGroup {
    /// Makes a group of the application in `sql` (the text of one `CREATE APPLICATION`), at `now_us`.
    ///
    /// # Panics
    ///
    /// If the text is not one valid `CREATE APPLICATION` with JSON input.
    pub fn new(sql: &str, now_us: i64) -> Self {
        Self::with_results(sql, now_us, Arc::default(), Arc::default(), false)
    }

    /// Does the same, with equal queries computed once: see [`TestGroup::join`].
    ///
    /// # Panics
    ///
    /// As [`TestGroup::new`] does.
    pub fn sharing(sql: &str, now_us: i64) -> Self {
        Self::with_results(sql, now_us, Arc::default(), Arc::default(), true)
    }

    fn with_results(
        sql: &str,
        now_us: i64,
        results: Arc<Mutex<Results>>,
        numbered: Arc<Mutex<Numbered>>,
        shares: bool,
    ) -> Self {
        let mut statements = rivulet_sql::parse_script(sql).unwrap_or_else(|error| panic!("{}", error.render(sql)));
        let Some((Statement::CreateApplication(create), _)) = statements.pop() else {
            panic!("not a CREATE APPLICATION: {sql}")
        };
        let application =
            rivulet_sql::plan_application(&create).unwrap_or_else(|error| panic!("{}\n{sql}", error.render(sql)));
        let (dataflow, output) = (application.dataflow.clone(), application.outputs[0].schema.clone());
        let (inputs, row_schema) = (application.inputs.clone(), application.row_schema.clone());
        let (kept, of_sink, has_output_bits) = (results.clone(), numbered.clone(), application.has_output_bits);
        let event_time = application.inputs[0].event_time.filter(|_| inputs.len() == 1);
        let make = move || TaskParts {
            decoder: json_decoder(&inputs, &row_schema),
            chain: dataflow.chain(),
            sink: Box::new(Kept {
                encoder: Format::Json.encoder(output.clone()).expect("any schema is written as JSON"),
                rows: EncodedRows::default(),
                written: Vec::new(),
                results: kept.clone(),
                numbered: of_sink.clone(),
                has_output_bits,
            }),
        };
        let parts = GroupParts {
            name: application.name.clone(),
            parameters: application.parameter_schema.clone(),
            make: Box::new(make),
            limits: InboxLimits::default(),
            topic_inputs: u32::MAX,
            event_time_column: event_time,
            task_queries_max: None,
            batch_rows_max: None,
            equal_by: shares.then(|| application.deciding_parameters.clone()),
            cut: application.cut.clone(),
            passes_on: false,
            is_checkpointed: true,
        };
        let clock = Arc::new(ManualClock::new(now_us));
        let group = Group::stepped(parts, clock.clone());
        Self { sql: sql.to_owned(), application, group, clock, results, numbered, spills: false, shares }
    }

    /// Returns the same group, able to spill silent queries to a file in the system's folder for temporary files.
    ///
    /// # Panics
    ///
    /// If the file cannot be made.
    #[must_use]
    pub fn spilling(self) -> Self {
        let spill = Spill::new(&std::env::temp_dir(), Duration::ZERO, SPILL_BYTES_MAX, || false);
        self.group.enable_spilling(spill.expect("a file can be made"));
        Self { spills: true, ..self }
    }

    /// Spills the queries that had no event during the last `sweeps` calls of this, and for which nothing is due within
    /// `horizon_us`.
    ///
    /// # Panics
    ///
    /// If the disk fails.
    pub fn spill(&self, sweeps: u8, horizon_us: i64) -> usize {
        self.group.spill_silent(sweeps, horizon_us).expect("there is room on disk")
    }

    /// What became of spilled queries.
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

    /// Whether and how a query of the application can run in several parts.
    pub fn cut(&self) -> &Cut {
        self.group.cut()
    }

    /// Makes a task run in this number of parts from its next activation on, if its queries allow it.
    pub fn run_in_parts(&self, task: &Task, parts: usize) {
        self.group.cut_on(task, &vec![0; parts.saturating_sub(1)]);
    }

    /// Processes waiting events, then moves everything into a new group: the same queries in the same slots, and their
    /// state through bytes. The results of the new group are added to those of this one.
    ///
    /// # Panics
    ///
    /// If the state cannot be exported and imported.
    #[must_use]
    pub fn moved(self) -> Self {
        self.run();
        let frames = self.export(None);
        let fresh = self.fresh();
        let slots: Vec<Slot> = (0..self.group.slots()).collect();
        let known = self.group.with_queries(&slots, |table, row| {
            (table.query(row), table.parameters(&[row]), table.further_queries(row))
        });
        let Some((_, somebodys, _)) = known.iter().flatten().next().cloned() else { return fresh };
        let mut empty = Vec::new();
        for (slot, query) in slots.into_iter().zip(known) {
            // A free slot gets a query for now, so that later slots keep their indices.
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

    /// Makes an empty group of the same application. Its results are added to those of this one.
    fn fresh(&self) -> Self {
        let (results, numbered) = (self.results.clone(), self.numbered.clone());
        let fresh = Self::with_results(&self.sql, self.clock.now_us(), results, numbered, self.shares);
        if self.spills { fresh.spilling() } else { fresh }
    }

    /// Returns a snapshot of what changed since the last one, or of everything.
    ///
    /// # Panics
    ///
    /// If anything cannot be saved.
    pub fn snapshot(&self, everything: bool) -> GroupSnapshot {
        // Pieces of a few parts each.
        let captured = self.group.snapshot(everything, 1_000, &mut |_| {});
        assert_eq!(captured.failures, (0, None), "state can be exported");
        captured
    }

    /// Replaces this group by one of a new version of the application. It has the same queries in the same slots, and
    /// as much of the state as it can use. `bind` gives the parameters of the queries, one row each, in the order of
    /// `queries`. Waiting events go to the new group. Also returns the snapshot from just before, its operators, and
    /// where their state goes.
    ///
    /// # Panics
    ///
    /// If the parameters do not fit, or state cannot be taken over.
    #[must_use]
    pub fn replaced(
        self,
        sql: &str,
        queries: &[QueryId],
        bind: impl FnOnce(&mut ParameterRows),
    ) -> (Self, GroupSnapshot, (Line, StateMap)) {
        let (results, numbered) = (self.results.clone(), self.numbered.clone());
        let after = Self::with_results(sql, self.clock.now_us(), results, numbered, self.shares);
        let after = if self.spills { after.spilling() } else { after };
        let StateMigration { map, lost } = rivulet_sql::migration(&self.application, &after.application);
        assert!(lost.is_empty(), "{lost:?}");
        let rows = after.bound_all(bind);
        let parameters = |wanted: &[QueryId]| {
            let place = |query| queries.iter().position(|other| other == query).expect("every query is bound") as u32;
            let places: UInt32Array = wanted.iter().map(place).collect::<Vec<_>>().into();
            take_record_batch(&rows, &places).expect("rows of this batch")
        };
        self.group.quiesce();
        after.group.quiesce();
        if self.group.tasks().next().is_some() {
            assert_eq!(self.group.run(), Activation::Blocked, "nothing is done meanwhile");
        }
        let captured = self.snapshot(true);
        let migration = rivulet_runtime::StateMigration { state: &map, parameters: &parameters };
        after.group.migrate_from(&self.group, &migration).expect("state can be taken over");
        self.group.hand_over(&after.group);
        self.group.retire();
        after.group.go_on();
        assert_eq!((self.group.waiting().0, self.group.queries()), (0, 0));
        (after, captured, (self.application.dataflow.clone(), map))
    }

    /// Restarts this group: makes an empty one and adds queries with the state of these snapshots. `bind` gives the
    /// parameters of the queries, one row each. For snapshots of an earlier version, `before` has its operators and
    /// says where their state goes. Also returns the slots. Everything else of the group is lost.
    ///
    /// # Panics
    ///
    /// If the parameters do not fit, or anything is lost.
    #[must_use]
    pub fn restarted(
        self,
        captures: &[GroupSnapshot],
        before: Option<&(Line, StateMap)>,
        queries: &[QueryId],
        bind: impl FnOnce(&mut ParameterRows),
    ) -> (Self, Vec<Slot>) {
        let fresh = self.fresh();
        let pieces = captures.iter().flat_map(|captured| captured.pieces.iter().cloned().map(Into::into));
        let saved = Saved::read(pieces).expect("what was captured can be read");
        let parameters = fresh.bound_all(bind);
        let joined = fresh.group.join_restored(queries, &parameters, &|query| saved.shared(query));
        let slots: Vec<Slot> = joined.iter().map(|joined| joined.slot).collect();
        let slot_of = |query| queries.iter().position(|&other| other == query).map(|place| slots[place]);
        let (line, map) = before.map_or((&fresh.application.dataflow, None), |(line, map)| (line, Some(map)));
        let restored = fresh.group.restore_from(&saved, line.addresses(), map, &slot_of, true);
        assert_eq!((restored.lost, restored.error), (0, None), "what was captured is restored");
        (fresh, slots)
    }

    /// Adds a query with these parameters and returns its slot.
    ///
    /// # Panics
    /// If the parameters do not fit.
    pub fn add(&self, query: QueryId, parameters: &[(&str, ParamValue<'_>)]) -> Slot {
        self.group.add(&[query], &self.bound(parameters))[0]
    }

    /// Adds a query, which shares a slot with equal queries if possible.
    ///
    /// # Panics
    ///
    /// If the parameters do not fit.
    pub fn join(&self, query: QueryId, parameters: &[(&str, ParamValue<'_>)]) -> Joined {
        self.group.join(&[query], &self.bound(parameters))[0]
    }

    /// Removes a query, which may share its slot.
    pub fn leave(&self, slot: Slot, query: QueryId) {
        self.group.remove(&self.group.leave(&[(slot, query)]));
    }

    /// Makes a query the only one in its slot, and returns the slot.
    ///
    /// # Panics
    ///
    /// If its state cannot be copied.
    pub fn part(&self, slot: Slot, query: QueryId) -> Slot {
        self.group.part(slot, query).expect("state can be copied")
    }

    /// Alters a query while it runs, and returns its new slot.
    ///
    /// # Panics
    ///
    /// If the values do not fit, or state cannot be taken over.
    pub fn alter(&self, slot: Slot, query: QueryId, parameters: &[(&str, ParamValue<'_>)], number: u64) -> Slot {
        self.run();
        let (values, alteration) = self.alteration(slot, query, parameters);
        let slot = self.part(slot, query);
        self.group.suspend();
        let alter = Alter { slot, query, row: 0, map: alteration.map.as_ref(), number };
        self.group.alter(&[alter], &values).expect("state can be taken over");
        self.group.go_on();
        slot
    }

    /// Does what [`TestGroup::alter`] must be equal to, for the only query of a group: drops the query and creates it
    /// anew, with the state that does not depend on the altered values.
    ///
    /// # Panics
    ///
    /// If the values do not fit, or state cannot be taken over.
    #[must_use]
    pub fn recreated(self, query: QueryId, parameters: &[(&str, ParamValue<'_>)]) -> Self {
        self.run();
        let (values, alteration) = self.alteration(0, query, parameters);
        let frames = self.export(None);
        let kept = alteration.map.map_or(Ok(frames.clone()), |map| map.apply(&frames));
        let fresh = self.fresh();
        assert_eq!(fresh.group.add(&[query], &values), [0]);
        fresh.group.import_state(&kept.expect("frames of this chain")).expect("state can be imported");
        fresh
    }

    /// Returns the altered values of a query, and what becomes of its state.
    fn alteration(
        &self,
        slot: Slot,
        query: QueryId,
        parameters: &[(&str, ParamValue<'_>)],
    ) -> (RecordBatch, Alteration) {
        let values = self.bound(parameters);
        let before = self.group.with_each(&[(slot, query)], |table, row| table.parameters(&[row])).pop().flatten();
        let before = before.expect("the query is there");
        let differs = |&place: &usize| before.column(place) != values.column(place);
        let changed: Vec<usize> = (0..values.num_columns()).filter(differs).collect();
        let alteration = alteration(&self.application, &changed);
        (values, alteration)
    }

    /// The number of queries that share a slot with an earlier one.
    pub fn further_queries(&self) -> usize {
        self.group.further_queries()
    }

    fn bound(&self, parameters: &[(&str, ParamValue<'_>)]) -> RecordBatch {
        self.bound_all(|rows| rows.push(parameters.iter().copied()).unwrap_or_else(|error| panic!("{error}")))
    }

    fn bound_all(&self, bind: impl FnOnce(&mut ParameterRows)) -> RecordBatch {
        let mut rows = ParameterRows::new(&self.application);
        bind(&mut rows);
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

    /// Does the same for an event of another input, by its index among the declared ones.
    ///
    /// # Panics
    ///
    /// If the inbox is full.
    pub fn push_from(&self, input: InputIndex, slot: Slot, arrival_us: i64, payload: &str) {
        self.push_message(input, slot, arrival_us, "", payload);
    }

    /// Does the same for an event that was sent to a topic.
    ///
    /// # Panics
    ///
    /// If the inbox is full.
    pub fn push_message(&self, input: InputIndex, slot: Slot, arrival_us: i64, topic: &str, payload: &str) {
        self.clock.set_us(arrival_us);
        let (topic, payload) = (topic.as_bytes(), payload.as_bytes());
        assert_eq!(self.group.push_from(input, slot, arrival_us, topic, payload), Push::Taken);
    }

    /// Puts an event of a log into the inbox. The clock moves to the event's arrival time, unless it is later already.
    ///
    /// # Panics
    ///
    /// If the inbox is full.
    pub fn push_logged(&self, event: Event<'_>) {
        self.clock.set_us(self.clock.now_us().max(event.arrival_us));
        assert_eq!(self.group.push_event(event, false), Push::Taken);
    }

    /// Limits timers to `at_us`, until this is called again.
    pub fn hold_timers_at(&self, at_us: i64) {
        self.group.hold_timers_at(at_us);
    }

    /// Runs the group for the events in the inbox and for due timers.
    pub fn run(&self) {
        self.group.run();
    }

    /// Moves the clock and runs the group.
    pub fn run_at(&self, now_us: i64) {
        self.clock.set_us(now_us);
        self.run();
    }

    /// Sets the clock forward by `by_us`, as a leap during which no time passes.
    pub fn leap(&self, by_us: i64) {
        self.clock.leap_us(by_us);
    }

    /// Ends the input: open windows are closed.
    pub fn end(&self) {
        self.group.end();
    }

    /// Exports the state of some slots (`None` for all), through bytes as it would be saved.
    ///
    /// # Panics
    ///
    /// If it cannot be exported, or changes when it is written and read.
    pub fn export(&self, slots: Option<Vec<Slot>>) -> Vec<Option<StateFrame>> {
        let selection = slots.map_or(StateSelection::All, StateSelection::Slots);
        let frames = self.group.export_state(&selection).expect("state can be exported");
        frames
            .into_iter()
            .map(|frame| frame.map(|frame| StateFrame::from_bytes(&frame.to_bytes().unwrap()).unwrap()))
            .collect()
    }

    /// The results of each query so far, in order.
    pub fn results(&self) -> Results {
        self.results.lock().clone()
    }

    /// The same results, each once, in order of their numbers.
    ///
    /// # Panics
    ///
    /// If a repeated result differs from the first one.
    pub fn numbered_results(&self) -> Results {
        let numbered = self.numbered.lock();
        assert!(numbered.differing.is_empty(), "{:?}", numbered.differing);
        numbered.results.iter().map(|(&query, results)| (query, results.values().cloned().collect())).collect()
    }

    /// The group's counters.
    pub fn metrics(&self) -> GroupMetrics {
        self.group.metrics()
    }
}

/// The decoder of an application whose inputs are all JSON.
fn json_decoder(inputs: &[Input], row_schema: &SchemaRef) -> Box<dyn Decoder> {
    let mut formats: Vec<InputFormat> = inputs.iter().map(json_format).collect();
    let decoder = match formats.len() {
        1 => formats.remove(0).decoder(),
        _ => several_inputs(formats, row_schema.clone()),
    };
    decoder.expect("all inputs are JSON")
}

fn json_format(input: &Input) -> InputFormat {
    let levels = input.topic.levels.iter().copied().zip(TopicPart::of_wildcards(&input.address.template));
    let mut topic_columns: Vec<_> =
        input.topic.whole.map(|one| (one, TopicPart::Whole)).into_iter().chain(levels).collect();
    topic_columns.sort_unstable_by_key(|(column, _)| *column);
    let (schema, event_time_column) = (input.declared.clone(), input.event_time);
    InputFormat { format: Format::Json, times: Times::default(), schema, event_time_column, topic_columns }
}

/// Keeps results by query. If outputs have conditions, each result is preceded by the bits of its outputs.
struct Kept {
    has_output_bits: bool,
    encoder: Box<dyn Encoder>,
    rows: EncodedRows,
    /// Results that are not flushed yet.
    written: Vec<(QueryId, String)>,
    results: Arc<Mutex<Results>>,
    numbered: Arc<Mutex<Numbered>>,
}

impl Kept {
    fn take(&mut self, batch: &Batch, numbers: Option<&[u64]>, slots: &SlotTable) {
        self.rows.clear();
        let columns = batch.columns.num_columns() - usize::from(self.has_output_bits);
        let shown: Vec<usize> = (0..columns).collect();
        let shown = batch.with_columns(batch.columns.project(&shown).expect("columns of the batch"));
        self.encoder.encode(&shown, &mut self.rows);
        let mut numbered = self.numbered.lock();
        for (row, &slot) in batch.slots.iter().enumerate() {
            assert!(slots.query(slot).is_some(), "results belong to a query");
            let mut result = String::from_utf8(self.rows.row(row).to_vec()).unwrap();
            if self.has_output_bits {
                let bits = batch.columns.columns().last().expect("the bits").as_primitive::<UInt32Type>().value(row);
                result.insert_str(0, &format!("{bits:b} "));
            }
            slots.for_each_query(slot, |query, _, _| {
                self.written.push((query, result.clone()));
                let Some(numbers) = numbers else { return };
                let before = numbered.results.entry(query).or_default().insert(numbers[row], result.clone());
                if let Some(before) = before.filter(|before| *before != result) {
                    numbered.differing.push(format!("{query}-{}: {before}, then {result}", numbers[row]));
                }
            });
        }
    }
}

impl GroupSink for Kept {
    /// Results of a query that runs in parts have no numbers.
    fn write(&mut self, batch: &Batch, numbers: Option<&[u64]>, slots: &SlotTable) -> Result<(), SinkError> {
        self.take(batch, numbers, slots);
        Ok(())
    }

    fn refused(&mut self, _refusals: &Refusals, _slots: &SlotTable) -> Result<(), SinkError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        let mut results = self.results.lock();
        self.written.drain(..).for_each(|(query, result)| results.entry(query).or_default().push(result));
        Ok(())
    }

    fn has_room(&self) -> bool {
        true
    }
}
