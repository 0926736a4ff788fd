//! A group run by hand: the real decoder, operators and runtime of an application, stepped by the test, with a clock that
//! stands still until the test moves it. Nothing is replaced but the sockets and the clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rivulet_connectors::formats::{EncodedRows, Encoder, Format};
use rivulet_dataflow::{
    Batch, Clock, Inbox, ManualClock, Push, QueryId, Refusals, Sink, SinkError, Slot, SlotTable, StateFrame,
    StateSelection,
};
use rivulet_runtime::{Group, GroupMetrics, GroupParts, InboxLimits, TaskParts};
use rivulet_sql::{Application, ParamValue, ParameterRows, Statement};

/// The results of each query, in order, as JSON.
pub type Results = BTreeMap<QueryId, Vec<String>>;

/// A group, its clock, and what it has emitted.
pub struct TestGroup {
    sql: String,
    application: Application,
    group: Arc<Group>,
    clock: Arc<ManualClock>,
    results: Arc<Mutex<Results>>,
}

impl TestGroup {
    /// A group of the application in `sql` (the text of one `CREATE APPLICATION`), at `now_us`.
    ///
    /// # Panics
    /// If the text is not one valid `CREATE APPLICATION` with JSON input.
    pub fn new(sql: &str, now_us: i64) -> Self {
        Self::with_results(sql, now_us, Arc::default())
    }

    fn with_results(sql: &str, now_us: i64, results: Arc<Mutex<Results>>) -> Self {
        let mut statements = rivulet_sql::parse_script(sql).unwrap_or_else(|error| panic!("{}", error.render(sql)));
        let Some((Statement::CreateApplication(create), _)) = statements.pop() else {
            panic!("not a CREATE APPLICATION: {sql}")
        };
        let application =
            rivulet_sql::plan_application(&create).unwrap_or_else(|error| panic!("{}\n{sql}", error.render(sql)));
        let (dataflow, output) = (application.dataflow.clone(), application.output.schema.clone());
        let (input, event_time) = (application.input.schema.clone(), application.input.event_time);
        let kept = results.clone();
        let make = move || TaskParts {
            decoder: Format::Json.decoder(input.clone(), event_time).expect("the input is JSON"),
            chain: dataflow.chain(),
            sink: Box::new(Kept {
                encoder: Format::Json.encoder(output.clone()).expect("any schema is written as JSON"),
                rows: EncodedRows::default(),
                results: kept.clone(),
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
        };
        let clock = Arc::new(ManualClock::new(now_us));
        let group = Group::by_hand(parts, clock.clone());
        Self { sql: sql.to_owned(), application, group, clock, results }
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
        let fresh = Self::with_results(&self.sql, self.clock.now_us(), self.results.clone());
        let slots: Vec<Slot> = (0..self.group.slots()).collect();
        let known = self.group.with_queries(&slots, |table, row| (table.query(row), table.parameters(&[row])));
        let Some((_, somebodys)) = known.iter().flatten().next().cloned() else { return fresh };
        let mut empty = Vec::new();
        for (slot, query) in slots.into_iter().zip(known) {
            // A slot that nobody has is held by somebody, so that the ones after it are the same.
            let (query, parameters) = query.unwrap_or_else(|| {
                empty.push(slot);
                (None, somebodys.clone())
            });
            assert_eq!(fresh.group.add(&[query.unwrap_or(QueryId::MAX - 1)], &parameters), [slot]);
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
        let mut rows = ParameterRows::new(&self.application);
        rows.push(parameters.iter().copied()).unwrap_or_else(|error| panic!("{error}"));
        let rows = rows.finish();
        for checked in self.application.check(&rows) {
            checked.unwrap_or_else(|error| panic!("{error}"));
        }
        self.group.add(&[query], &rows)[0]
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

/// Keeps results by query.
struct Kept {
    encoder: Box<dyn Encoder>,
    rows: EncodedRows,
    results: Arc<Mutex<Results>>,
}

impl Sink for Kept {
    fn write(&mut self, batch: &Batch, slots: &SlotTable) -> Result<(), SinkError> {
        self.rows.clear();
        self.encoder.encode(batch, &mut self.rows);
        let mut results = self.results.lock();
        for (row, &slot) in batch.slots.iter().enumerate() {
            let query = slots.query(slot).expect("results belong to a query");
            results.entry(query).or_default().push(String::from_utf8(self.rows.row(row).to_vec()).unwrap());
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
