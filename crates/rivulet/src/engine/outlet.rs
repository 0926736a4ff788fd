//! Outputs of applications that are not topics: sinks of connectors, as big queries have them, each shared by all tasks
//! of its application.
//!
//! A sink is opened on a thread of its own, and again and again if that fails. Its rows come in the order in which the
//! tasks hand them over. Each has its query, its identity, and its address if that is made from parameters.
//!
//! Checkpoints use [`TransactionalSink`](rivulet_dataflow::TransactionalSink): what a sink prepares is saved beside the
//! state of the application, and given back to it after a restart. A sink that prepares nothing has to be drained; no
//! rows come meanwhile, for a moment. Rows in front of a sink that cannot be opened are saved as they are.
//!
//! What must hold: no method waits for a device, except [`Outlet::capture`] and [`Outlet::finish`], for a bounded time,
//! and [`Outlet::forget`]. While a sink is not open or has no room, the tasks are not scheduled, so only rows that were
//! in flight then wait here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arrow::datatypes::{Field, SchemaRef};
use parking_lot::Mutex;
use rivulet_connectors::clock::SystemClock;
use rivulet_connectors::connector::{Condition, Direction, Health, SinkSpec};
use rivulet_dataflow::{Batch, Clock, QueryId, Sink, SinkError};
use serde::{Deserialize, Serialize};

use super::attempts::Attempts;
use super::saved_rows;
use crate::run::CONNECTORS;
use crate::service::EndHealth;

/// The first pause after a failed attempt to open a sink; it doubles.
const OPEN_PAUSE: Duration = Duration::from_millis(500);

/// After this long without room and without a row that was taken an application stands still: where an attempt has
/// failed, and where the receiver does not answer.
const STANDS_TROUBLED: Duration = Duration::from_millis(500);
const STANDS_SILENT: Duration = Duration::from_secs(30);

/// How often a waiting caller checks whether a sink has prepared for a checkpoint, or is drained.
pub(super) const LOOK_PERIOD: Duration = Duration::from_millis(2);

/// What a checkpoint has of an output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedOutlet {
    /// The name of the output; empty if it has none.
    pub(super) output: String,
    pub(super) connector: String,
    /// What the connector has prepared, in a form of its own; empty if it has prepared nothing.
    pub(super) prepared: String,
    /// Rows that wait for a sink that is not open, batch by batch.
    #[serde(default)]
    pub(super) rows: Vec<String>,
}

/// An output that is not a topic.
pub(super) struct Outlet {
    /// The name of the output; empty if it has none.
    name: String,
    /// Its name in the log and in answers.
    title: String,
    spec: SinkSpec,
    /// Whether checkpoints save what is prepared.
    has_checkpoints: bool,
    pub(super) health: Arc<Health>,
    /// The columns of its rows, which are those of the first batch.
    pub(super) schema: OnceLock<SchemaRef>,
    state: Mutex<State>,
    /// Since when it has had no room, and its receiver has taken nothing.
    stuck: Mutex<Option<Stuck>>,
    /// No more rows may come: a checkpoint waits for the earlier ones.
    is_held: AtomicBool,
}

#[derive(Clone, Copy)]
struct Stuck {
    since: Instant,
    since_us: i64,
    /// The number of rows that were delivered by then.
    settled: u64,
}

#[derive(Default)]
struct State {
    stage: Stage,
    attempts: Attempts,
    /// What an earlier run has prepared and no sink has been given yet.
    prepared: Vec<String>,
    /// Rows that came while the sink was not open.
    backlog: Vec<Batch>,
    /// The epoch with which the prepared rows were saved, if the sink has yet to make them final.
    committing: Option<u64>,
    /// Whether the sink has prepared anything since that epoch.
    has_prepared: bool,
    /// What the open sink has prepared last, and how many rows its receiver had taken by then.
    prepared_last: (String, u64),
    /// No row follows, and the rows so far become final without a checkpoint.
    is_last: bool,
}

#[derive(Default)]
enum Stage {
    #[default]
    Closed,
    Opening,
    Open(Box<dyn Sink>),
    /// The sink takes no more rows.
    Over,
}

impl Outlet {
    /// The output `name` of an application, which is not opened yet.
    pub(super) fn new(application: &str, name: Option<&str>, spec: SinkSpec, has_checkpoints: bool) -> Self {
        let title = match name {
            Some(name) => format!("output '{name}' of the application '{application}'"),
            None => format!("output of the application '{application}'"),
        };
        let health = Arc::new(Health::new(title.clone()));
        let mut spec = spec;
        spec.host.health = health.clone();
        let (state, stuck, is_held) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        let (name, schema) = (name.unwrap_or_default().into(), OnceLock::new());
        Self { name, title, spec, has_checkpoints, health, schema, state, stuck, is_held }
    }

    /// Takes what an earlier run has saved of this output out of `saved`.
    pub(super) fn resume(&self, saved: &mut Vec<SavedOutlet>) {
        let is_own = |one: &mut SavedOutlet| one.output == self.name && one.connector == self.spec.connector;
        saved.extract_if(.., is_own).for_each(|one| self.put_back(one));
    }

    fn put_back(&self, saved: SavedOutlet) {
        let mut state = self.state.lock();
        state.prepared.extend(Some(saved.prepared).filter(|one| !one.is_empty()));
        for rows in &saved.rows {
            match saved_rows::decode(rows) {
                Ok(batch) if self.is_for(&batch) => state.backlog.push(batch),
                Ok(batch) => self.lose(batch.rows(), "a new version has other columns"),
                Err(error) => tracing::error!("the {} has lost rows that waited: {error}", self.title),
            }
        }
    }

    /// Whether a batch has the columns that its sink expects.
    fn is_for(&self, batch: &Batch) -> bool {
        let (expected, found) = (self.spec.schema.fields(), batch.columns.schema());
        let own = 2 * usize::from(self.has_owners()) + usize::from(self.has_addresses());
        let is_same = |(one, other): (&Arc<Field>, &Arc<Field>)| {
            one.name() == other.name() && one.data_type() == other.data_type()
        };
        found.fields().len() == expected.len() + own && expected.iter().zip(found.fields()).all(is_same)
    }

    /// Whether its rows go through this connector.
    pub(super) fn is_of(&self, connector: &str) -> bool {
        self.spec.connector == connector
    }

    /// Takes over what an earlier run has saved of an output that is there no more.
    pub(super) fn take_over(&self, left: SavedOutlet) {
        tracing::info!("the {} delivers what the output '{}' has left", self.title, left.output);
        self.put_back(left);
    }

    #[cfg(test)]
    pub(super) fn prepared(&self) -> Vec<String> {
        self.state.lock().prepared.clone()
    }

    /// Whether rows have an address of their own.
    pub(super) fn has_addresses(&self) -> bool {
        self.spec.output.is_some_and(|output| output.has_addresses)
    }

    /// Whether rows name their query.
    pub(super) fn has_owners(&self) -> bool {
        self.spec.output.is_some()
    }

    /// Takes rows.
    pub(super) fn write(&self, batch: Batch) {
        let state = &mut *self.state.lock();
        match &mut state.stage {
            Stage::Open(sink) if state.backlog.is_empty() => {
                let written = sink.write(&batch).and_then(|()| sink.flush());
                if let Err(error) = written {
                    state.backlog.push(batch);
                    self.close(state, &error);
                }
            }
            // The sink is gone.
            Stage::Over => self.health.leave_out(batch.rows(), "the application has ended"),
            _ => state.backlog.push(batch),
        }
    }

    /// Whether there is room for more rows.
    pub(super) fn has_room(&self) -> bool {
        if self.is_held.load(Ordering::Acquire) {
            return false;
        }
        let state = self.state.lock();
        match &state.stage {
            Stage::Open(sink) => state.backlog.is_empty() && sink.has_room(),
            Stage::Over => true,
            Stage::Closed | Stage::Opening => false,
        }
    }

    /// Notes whether rows find their way out. Called every few milliseconds.
    pub(super) fn look(&self) {
        if self.is_held.load(Ordering::Acquire) {
            return;
        }
        let has_room = self.has_room();
        let mut stuck = self.stuck.lock();
        if has_room {
            *stuck = None;
            return;
        }
        // What is left out after `retry_for` was taken by nobody.
        let settled = self.health.report().rows;
        if stuck.is_none_or(|stuck| stuck.settled != settled) {
            *stuck = Some(Stuck { since: Instant::now(), since_us: SystemClock.now_us(), settled });
        }
    }

    /// Since when its application stands still on account of it, microseconds since the epoch: there is no room, and
    /// its receiver takes nothing. A receiver that is slow and takes something holds up the sources instead.
    pub(super) fn stands_since_us(&self) -> Option<i64> {
        let stuck = (*self.stuck.lock())?;
        let patience = if self.health.is_troubled() { STANDS_TROUBLED } else { STANDS_SILENT };
        (stuck.since.elapsed() >= patience).then_some(stuck.since_us)
    }

    /// Opens the sink, or makes it continue with its rows. Called every few milliseconds.
    pub(super) fn tick(self: &Arc<Self>) {
        let state = &mut *self.state.lock();
        match &mut state.stage {
            Stage::Closed if state.attempts.is_due() => self.begin_to_open(state),
            Stage::Open(sink) => {
                let gone_on = go_on(&mut **sink, &mut state.backlog, &mut state.committing);
                let is_last = state.is_last && state.backlog.is_empty() && state.committing.is_none();
                let gone_on = gone_on.and_then(|()| {
                    if let Some(sink) = sink.transactional().filter(|_| is_last && self.has_checkpoints) {
                        sink.close()?;
                        if sink.prepare()?.is_some() {
                            (state.is_last, state.committing) = (false, Some(0));
                        }
                    } else if is_last {
                        state.is_last = false;
                    }
                    Ok(())
                });
                if let Err(error) = gone_on {
                    self.close(state, &error);
                }
            }
            _ => {}
        }
    }

    /// Another version has replaced it, or its application is dropped: no row follows. Its rows become final without a
    /// checkpoint; after a crash they may be written twice.
    pub(super) fn retire(&self) {
        self.state.lock().is_last = true;
    }

    fn begin_to_open(self: &Arc<Self>, state: &mut State) {
        state.stage = Stage::Opening;
        let (outlet, prepared) = (self.clone(), state.prepared.clone());
        let open = move || {
            let checkpoints = outlet.has_checkpoints.then_some(prepared);
            let opened = CONNECTORS.open_sink(&SinkSpec { checkpoints, ..outlet.spec.clone() }, 0, 1);
            let mut state = outlet.state.lock();
            if !matches!(state.stage, Stage::Opening) {
                return;
            }
            match opened {
                Ok(sink) => {
                    state.stage = Stage::Open(sink);
                    state.prepared.clear();
                    state.prepared_last = (String::new(), outlet.health.report().rows);
                    state.attempts.succeed();
                }
                Err(error) => outlet.put_off(&mut state, &error.to_string()),
            }
        };
        if let Err(error) = std::thread::Builder::new().name("rivulet-outlet".into()).spawn(open) {
            self.put_off(state, &format!("no thread: {error}"));
        }
    }

    fn put_off(&self, state: &mut State, problem: &str) {
        state.stage = Stage::Closed;
        state.attempts.fail(problem, OPEN_PAUSE);
        self.health.retry(problem);
    }

    /// The sink has failed: it is opened anew. Rows that it was given and has not delivered are lost, and counted.
    fn close(&self, state: &mut State, error: &SinkError) {
        // Rows in files become final with a checkpoint. The next sink makes those final that one may have; others that
        // were taken are lost like those that wait.
        let is_final_later = self.has_checkpoints && !self.has_owners();
        if let Stage::Open(sink) = &mut state.stage
            && sink.transactional().is_some_and(|_| is_final_later)
        {
            let (prepared, rows) = std::mem::take(&mut state.prepared_last);
            self.health.hand(usize::try_from(self.health.report().rows.saturating_sub(rows)).unwrap_or(0));
            state.prepared.extend(Some(prepared).filter(|one| !one.is_empty()));
        }
        let waiting = self.waiting_rows();
        if waiting > 0 {
            self.lose(waiting, &error.0);
        }
        state.committing = None;
        state.has_prepared = false;
        self.put_off(state, &error.0);
    }

    /// What a checkpoint is to have, so that no row up to now is lost; nothing if all rows were delivered. If it
    /// `waits`, it waits for a device up to `limit`; otherwise rows that are not delivered at once are left to the next
    /// checkpoint.
    ///
    /// # Errors
    /// Why some rows have not been delivered.
    pub(super) fn capture(&self, waits: bool, limit: Duration) -> Result<Vec<SavedOutlet>, String> {
        let deadline = Instant::now() + limit;
        self.is_held.store(true, Ordering::Release);
        // What is taken back from a device that is away is there in a moment.
        let goes_on = || self.hands_over() || (waits && !self.health.is_troubled());
        let captured = loop {
            match self.try_capture() {
                Ok(Some(prepared)) => break Ok((prepared, Vec::new())),
                Err(problem) => break self.waiting().ok_or(problem),
                Ok(None) if !goes_on() || Instant::now() >= deadline => {
                    let problem = self.health.report().last_error;
                    break self.waiting().ok_or_else(|| problem.unwrap_or_else(|| "rows are on their way".into()));
                }
                Ok(None) => std::thread::sleep(LOOK_PERIOD),
            }
        };
        self.is_held.store(false, Ordering::Release);
        let saved = |(prepared, rows): (Vec<String>, Vec<String>)| {
            let one = |prepared, rows| {
                let (output, connector) = (self.name.clone(), self.spec.connector.clone());
                SavedOutlet { output, connector, prepared, rows }
            };
            let prepared = prepared.into_iter().filter(|one| !one.is_empty()).map(|prepared| one(prepared, Vec::new()));
            prepared.chain((!rows.is_empty()).then(|| one(String::new(), rows))).collect()
        };
        captured.map(saved).map_err(|problem| format!("the {} has not delivered its rows: {problem}", self.title))
    }

    /// What waits for a sink that is not open: what an earlier run has prepared, and rows. `None` if it is open.
    fn waiting(&self) -> Option<(Vec<String>, Vec<String>)> {
        let state = self.state.lock();
        if matches!(state.stage, Stage::Open(_)) {
            return None;
        }
        Some((state.prepared.clone(), state.backlog.iter().map(saved_rows::encode).collect::<Result<_, _>>().ok()?))
    }

    /// What is prepared; `None` if some rows are not prepared or delivered yet.
    fn try_capture(&self) -> Result<Option<Vec<String>>, String> {
        let state = &mut *self.state.lock();
        let Stage::Open(sink) = &mut state.stage else {
            let is_missing = !state.backlog.is_empty();
            return if is_missing { Ok(None) } else { Ok(Some(state.prepared.clone())) };
        };
        let gone_on = go_on(&mut **sink, &mut state.backlog, &mut state.committing);
        let prepared = gone_on.and_then(|()| {
            if !state.backlog.is_empty() || state.committing.is_some() {
                return Ok(None);
            }
            match sink.transactional().filter(|_| self.has_checkpoints) {
                Some(sink) => sink.prepare(),
                None => sink.drain().map(|is_drained| is_drained.then(String::new)),
            }
        });
        match prepared {
            Ok(prepared) => {
                state.has_prepared |= prepared.is_some();
                if let Some(prepared) = &prepared {
                    state.prepared_last = (prepared.clone(), self.health.report().rows);
                }
                Ok(prepared.map(|one| vec![one]))
            }
            Err(error) => {
                self.close(state, &error);
                Err(error.0)
            }
        }
    }

    /// Whether its sink takes rows back from a device that is away, to give them to the checkpoint.
    fn hands_over(&self) -> bool {
        matches!(&self.state.lock().stage, Stage::Open(sink) if sink.hands_over())
    }

    /// Whether rows that its sink keeps on disk have not arrived.
    pub(super) fn leaves_rows(&self) -> bool {
        self.hands_over() && self.waiting_rows() > 0
    }

    /// Whether its sink keeps rows where that of the other one does.
    pub(super) fn has_disk_of(&self, other: &Self) -> bool {
        self.spec.connector == other.spec.connector && self.spec.host.query == other.spec.host.query
    }

    /// Nobody has its place: removes what its sink has kept on disk.
    pub(super) fn forget(&self) {
        let host = &self.spec.host;
        host.links.iter().for_each(|(links, _)| links.forget(&host.server, &host.query));
    }

    /// The captured state is saved, with this epoch.
    pub(super) fn commit(&self, epoch: u64) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.has_prepared) && matches!(state.stage, Stage::Open(_)) {
            state.committing = Some(epoch);
        }
    }

    /// No row follows. Delivers the remaining rows, up to `limit`.
    pub(super) fn finish(self: &Arc<Self>, limit: Duration) {
        let deadline = Instant::now() + limit;
        while !self.is_finished() && !self.health.is_troubled() && Instant::now() < deadline {
            self.tick();
            std::thread::sleep(LOOK_PERIOD);
        }
    }

    /// Whether no rows are left to be delivered.
    pub(super) fn is_finished(&self) -> bool {
        let state = &mut *self.state.lock();
        match &mut state.stage {
            Stage::Open(sink) => {
                let is_done = state.backlog.is_empty() && state.committing.is_none() && !state.is_last;
                // Without checkpoints, files get their names now.
                is_done && if self.has_checkpoints { sink.drain() } else { sink.finish() }.unwrap_or(true)
            }
            Stage::Closed | Stage::Opening => state.backlog.is_empty() && state.prepared.is_empty(),
            Stage::Over => true,
        }
    }

    /// Closes open files before the last checkpoint, so that they become final with it.
    pub(super) fn close_files(&self) {
        let state = &mut *self.state.lock();
        if let Stage::Open(sink) = &mut state.stage
            && let Some(Err(error)) = sink.transactional().map(|sink| sink.close())
        {
            self.close(state, &error);
        }
    }

    /// Whether rows in a checkpoint are yet to become final.
    pub(super) fn is_committing(&self) -> bool {
        let state = self.state.lock();
        state.committing.is_some() && matches!(state.stage, Stage::Open(_))
    }

    /// Whether a problem of it is one of all queries, and not of receivers of some.
    pub(super) fn concerns_all(&self) -> bool {
        self.stands_since_us().is_some() || self.health.report().failing_query.is_none()
    }

    /// Whether its receiver has not worked for long.
    pub(super) fn is_failing(&self) -> bool {
        self.health.report().condition == Condition::Failing
    }

    /// Nothing is delivered any more, for this reason: what is left is lost, and counted.
    pub(super) fn give_up(&self, why: &str) {
        let rows = {
            let state = self.state.lock();
            let prepared = state.prepared.iter().map(|one| CONNECTORS.prepared_rows(&self.spec.connector, one));
            state.backlog.iter().map(Batch::rows).chain(prepared).sum::<usize>()
        };
        self.lose(rows.saturating_add(self.waiting_rows()), why);
        self.end();
    }

    /// Rows that its sink has and has not delivered.
    fn waiting_rows(&self) -> usize {
        usize::try_from(self.health.report().waiting_rows).unwrap_or(usize::MAX)
    }

    /// Counts rows that are lost, for this reason.
    fn lose(&self, rows: usize, why: &str) {
        self.health.leave_out(rows, why);
        tracing::error!(rows, "the {} has lost rows that it had: {why}", self.title);
    }

    /// Nothing is delivered any more.
    pub(super) fn end(&self) {
        self.state.lock().stage = Stage::Over;
    }

    /// How it gets on; while it does not work, with the queries whose receivers fail. `query_name` gives that of one.
    pub(super) fn health(&self, query_name: impl Fn(QueryId) -> String) -> EndHealth {
        let report = self.health.report();
        let of_queries = match (report.failing_query, report.failing_queries) {
            (Some(query), 1) => format!("; it is the receiver of the query '{}'", query_name(query)),
            (Some(query), many) => {
                format!("; the receivers of {many} queries fail, among them that of '{}'", query_name(query))
            }
            (None, _) => String::new(),
        };
        let name = if self.name.is_empty() { "output" } else { &self.name };
        let mut health = EndHealth::new(name, Direction::Sink, report);
        health.stands_still_since_ms = self.stands_since_us().map(|since_us| since_us.div_euclid(1_000));
        if let Some(error) = health.last_error.as_mut().filter(|_| health.condition != Condition::Ok) {
            *error += &of_queries;
        }
        health
    }
}

/// Makes a sink final up to the epoch `committing`, and gives it rows that came while it was not open.
fn go_on(sink: &mut dyn Sink, backlog: &mut Vec<Batch>, committing: &mut Option<u64>) -> Result<(), SinkError> {
    if let Some(epoch) = *committing {
        let is_final = sink.transactional().map_or(Ok(true), |sink| sink.commit(epoch))?;
        if !is_final {
            return Ok(());
        }
        *committing = None;
    }
    while !backlog.is_empty() && sink.has_room() {
        sink.write(&backlog[0])?;
        backlog.remove(0);
    }
    sink.flush()
}
