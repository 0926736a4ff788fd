//! A group run by hand: the real decoder, operators and runtime of an application, stepped by the test, with a clock that
//! stands still until the test moves it. Nothing is replaced but the sockets and the clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rivulet_connectors::formats::{EncodedRows, Encoder, Format};
use rivulet_dataflow::{
    Batch, Inbox, ManualClock, Push, QueryId, Refusals, Sink, SinkError, Slot, SlotTable, StateFrame, StateSelection,
};
use rivulet_runtime::{Group, GroupMetrics, GroupParts, InboxLimits, ReadyQueue};
use rivulet_sql::{Application, ParamValue, ParameterRows, Statement};

/// The results of each query, in order, as JSON.
pub type Results = BTreeMap<QueryId, Vec<String>>;

/// A group, its clock, and what it has emitted.
pub struct TestGroup {
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
        let mut statements = rivulet_sql::parse_script(sql).unwrap_or_else(|error| panic!("{}", error.render(sql)));
        let Some((Statement::CreateApplication(create), _)) = statements.pop() else {
            panic!("not a CREATE APPLICATION: {sql}")
        };
        let application =
            rivulet_sql::plan_application(&create).unwrap_or_else(|error| panic!("{}\n{sql}", error.render(sql)));
        let results = Arc::<Mutex<Results>>::default();
        let encoder = Format::Json.encoder(application.output.schema.clone()).expect("any schema is written as JSON");
        let input = &application.input;
        let parts = GroupParts {
            name: application.name.clone(),
            slots: SlotTable::new(application.parameter_schema.clone()),
            decoder: Format::Json.decoder(input.schema.clone(), input.event_time).expect("the input is JSON"),
            chain: application.dataflow.chain(),
            sink: Box::new(Kept { encoder, rows: EncodedRows::default(), results: results.clone() }),
            limits: InboxLimits::default(),
            event_time_column: input.event_time,
        };
        let clock = Arc::new(ManualClock::new(now_us));
        let group = Group::new(0, parts, clock.clone(), Arc::new(ReadyQueue::default()));
        Self { application, group, clock, results }
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
        assert_eq!(self.group.inbox().push(slot, arrival_us, payload.as_bytes()), Push::Taken);
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

    /// Takes over exported state.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn import(&self, frames: &[Option<StateFrame>]) {
        self.group.import_state(frames).expect("state can be imported");
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
