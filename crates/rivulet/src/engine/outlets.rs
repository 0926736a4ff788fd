//! The outputs of all applications that are not topics.
//!
//! What must hold: rows that an output of an earlier version, or of an earlier process, has not delivered are delivered
//! by the next one, or by the earlier one itself beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_dataflow::StateError;
use serde::{Deserialize, Serialize};

use super::outlet::{LOOK_PERIOD, Outlet, SavedOutlet};
use super::saved_rows;
use super::threads::{Bell, Threads};
use crate::catalog::ApplicationNumber;
use crate::run::CONNECTORS;

/// How often sinks get the chance to deliver rows.
const TICK: Duration = Duration::from_millis(20);

/// How often it is looked whether there are any, beside the bell.
const IDLE_PERIOD: Duration = Duration::from_secs(10);

/// How long a checkpoint waits for an output to deliver its rows.
const CAPTURE_MAX: Duration = Duration::from_secs(1);

/// How long the delivery of remaining rows may take when the server stops or an application is dropped.
const FINISH_MAX: Duration = Duration::from_secs(3);

/// How many outputs of earlier versions of an application go on delivering; beyond that the oldest gives up.
const RETIRED_MAX: usize = 8;

/// The version of the form in which a checkpoint has an application's outputs. Version 1 has no rows that wait.
const VERSION: u32 = 2;

/// What a checkpoint has of the outputs of an application.
#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    outputs: Vec<SavedOutlet>,
}

/// What a checkpoint is to have, as bytes; empty for no outputs.
pub(super) fn saved(outputs: Vec<SavedOutlet>) -> Vec<u8> {
    if outputs.is_empty() {
        return Vec::new();
    }
    serde_json::to_vec(&Saved { version: VERSION, outputs }).expect("texts and numbers are always JSON")
}

/// Reads what a checkpoint has.
///
/// # Errors
/// It is of a later version, or not of this form.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<SavedOutlet>, StateError> {
    let saved: Saved = serde_json::from_slice(bytes)
        .map_err(|error| StateError::Corrupt(format!("what is saved of outputs is not understood: {error}")))?;
    match saved.version {
        1..=VERSION => Ok(saved.outputs),
        found => Err(StateError::Version { operator: "the outputs of an application".into(), found, known: VERSION }),
    }
}

/// The outlets of a server.
#[derive(Default)]
pub(super) struct Outlets {
    state: Mutex<State>,
    /// Rings when there are outlets to call.
    bell: Arc<Bell>,
}

#[derive(Default)]
struct State {
    running: BTreeMap<ApplicationNumber, Vec<Arc<Outlet>>>,
    /// Outlets of earlier versions, as long as they have rows left; with a deadline if the application is dropped.
    retired: Vec<(ApplicationNumber, Arc<Outlet>, Option<Instant>)>,
    /// What an earlier process has saved, until the application runs.
    saved: BTreeMap<ApplicationNumber, Vec<SavedOutlet>>,
}

impl Outlets {
    /// Keeps what an earlier process has saved, until the applications run.
    pub(super) fn expect(&self, saved: BTreeMap<ApplicationNumber, Vec<SavedOutlet>>) {
        self.state.lock().saved = saved;
    }

    /// Adds the outlets of an application that runs from now on. They may replace those of the version before.
    pub(super) fn begin(&self, number: ApplicationNumber, outlets: Vec<Arc<Outlet>>) {
        let mut state = self.state.lock();
        let mut saved = state.saved.remove(&number).unwrap_or_default();
        outlets.iter().for_each(|outlet| outlet.resume(&mut saved));
        saved.into_iter().for_each(|left| deliver_left(number, &outlets, left));
        outlets.iter().for_each(Outlet::tick);
        state.retire(number, None);
        if !outlets.is_empty() {
            state.running.insert(number, outlets);
            self.bell.ring();
        }
    }

    /// An application is dropped: for a moment its outputs may still deliver their rows.
    pub(super) fn drop_of(&self, number: ApplicationNumber) {
        let mut state = self.state.lock();
        state.saved.remove(&number);
        state.retire(number, Some(Instant::now() + FINISH_MAX));
    }

    /// Starts the thread that calls the sinks regularly.
    pub(super) fn watch(self: &Arc<Self>, threads: &Arc<Threads>) -> io::Result<()> {
        let outlets = self.clone();
        let tick = move || if outlets.tick() { TICK } else { IDLE_PERIOD };
        threads.start_paced("rivulet-outlets", &self.bell, Duration::ZERO, tick)
    }

    /// Calls all sinks. Returns whether there are any.
    fn tick(&self) -> bool {
        let all = self.all();
        for (_, outlet) in &all {
            outlet.tick();
            outlet.look();
        }
        let (now, mut gone) = (Instant::now(), Vec::<Arc<Outlet>>::new());
        {
            let State { running, retired, .. } = &mut *self.state.lock();
            retired.retain(|(_, outlet, deadline)| {
                // What its sink keeps on disk is delivered by the output that has its place.
                let has_heir = running.values().flatten().any(|running| running.has_disk_of(outlet));
                let is_finished = outlet.is_finished() && (has_heir || !outlet.leaves_rows());
                let is_over = is_finished || deadline.is_some_and(|deadline| deadline <= now);
                match is_over {
                    true if is_finished => outlet.end(),
                    true => outlet.give_up("its application is dropped"),
                    false => {}
                }
                gone.extend((is_over && !has_heir).then(|| outlet.clone()));
                !is_over
            });
        }
        gone.iter().for_each(|outlet| outlet.forget());
        !all.is_empty()
    }

    /// Whether no application has outputs that are not topics.
    pub(super) fn are_none(&self) -> bool {
        self.state.lock().running.is_empty()
    }

    /// The applications that stand still because an output has no room and its receiver takes nothing.
    pub(super) fn standing(&self) -> BTreeSet<ApplicationNumber> {
        let state = self.state.lock();
        let stands = |outlets: &Vec<Arc<Outlet>>| outlets.iter().any(|outlet| outlet.stands_since_us().is_some());
        state.running.iter().filter(|(_, outlets)| stands(outlets)).map(|(number, _)| *number).collect()
    }

    fn all(&self) -> Vec<(ApplicationNumber, Arc<Outlet>)> {
        let state = self.state.lock();
        let running = state.running.iter().flat_map(|(number, of)| of.iter().map(|outlet| (*number, outlet.clone())));
        let retired = state.retired.iter().map(|(number, outlet, _)| (*number, outlet.clone()));
        running.chain(retired).collect()
    }

    /// What a checkpoint is to keep of the outputs of an application, which were given all results of what it has
    /// captured; `None` if it has none. Where it `waits`, it does so until they are delivered that cannot be kept. What
    /// an earlier version has left to a receiver that fails for long is not waited for: that address may be the very
    /// mistake that was put right. It is tried on, as long as the server runs.
    ///
    /// # Errors
    /// Why some have not been delivered, and would not be given again.
    pub(super) fn capture(&self, number: ApplicationNumber, waits: bool) -> Option<Result<Vec<SavedOutlet>, String>> {
        let (running, retired) = {
            let state = self.state.lock();
            let retired = state.retired.iter().filter(|(of, ..)| *of == number);
            let retired: Vec<Arc<Outlet>> = retired.map(|(_, outlet, _)| outlet.clone()).collect();
            (state.running.get(&number).cloned().unwrap_or_default(), retired)
        };
        if running.is_empty() && retired.is_empty() {
            return None;
        }
        let of_running = running.iter().map(|outlet| outlet.capture(waits, CAPTURE_MAX));
        let of_retired = retired.iter().filter_map(|outlet| match outlet.capture(waits, CAPTURE_MAX) {
            Err(problem) if outlet.is_failing() => {
                tracing::warn!(
                    application = number,
                    "an earlier version left rows, which no checkpoint has: {problem}"
                );
                None
            }
            captured => Some(captured),
        });
        let captured = of_running.chain(of_retired).collect::<Result<Vec<_>, _>>();
        Some(captured.map(|saved| saved.into_iter().flatten().collect()))
    }

    /// The captured state is saved, with this epoch.
    pub(super) fn commit(&self, epoch: u64) {
        self.all().iter().for_each(|(_, outlet)| outlet.commit(epoch));
    }

    /// No row follows: delivers the remaining rows, and closes files.
    pub(super) fn finish(&self) {
        let deadline = Instant::now() + FINISH_MAX;
        for (_, outlet) in self.all() {
            outlet.finish(deadline.saturating_duration_since(Instant::now()));
            outlet.close_files();
        }
    }

    /// Nothing is delivered any more; what the last checkpoint has is made final.
    pub(super) fn end(&self) {
        let deadline = Instant::now() + FINISH_MAX;
        for (_, outlet) in self.all() {
            while outlet.is_committing() && Instant::now() < deadline {
                outlet.tick();
                std::thread::sleep(LOOK_PERIOD);
            }
            outlet.end();
        }
    }
}

/// Rows that an earlier process has saved of an output that is there no more. They have their addresses, so an output
/// with another name delivers them, if it is clear which one: the only output of the same connector.
fn deliver_left(number: ApplicationNumber, outlets: &[Arc<Outlet>], left: SavedOutlet) {
    let mut of_connector = outlets.iter().filter(|outlet| outlet.is_of(&left.connector));
    match (of_connector.next(), of_connector.next()) {
        (Some(only), None) => only.take_over(left),
        _ => {
            let SavedOutlet { output, connector, prepared, rows } = left;
            let rows: usize = rows.iter().filter_map(|one| Some(saved_rows::decode(one).ok()?.rows())).sum();
            tracing::error!(
                application = number,
                output,
                connector,
                rows = CONNECTORS.prepared_rows(&connector, &prepared) + rows,
                "rows that wait are lost: the application has no such output any more, and none that must have taken \
                 its place"
            );
        }
    }
}

impl State {
    fn retire(&mut self, number: ApplicationNumber, deadline: Option<Instant>) {
        let before = self.running.remove(&number).unwrap_or_default();
        before.iter().for_each(|outlet| outlet.retire());
        self.retired.extend(before.into_iter().map(|outlet| (number, outlet, deadline)));
        if deadline.is_some() {
            self.retired.iter_mut().filter(|(of, ..)| *of == number).for_each(|(_, _, until)| *until = deadline);
        }
        let of_it = self.retired.iter().filter(|(of, ..)| *of == number).count();
        let mut given_up = of_it.saturating_sub(RETIRED_MAX);
        self.retired.retain(|(of, outlet, _)| {
            let is_given_up = given_up > 0 && *of == number;
            if is_given_up {
                given_up -= 1;
                outlet.give_up("many later versions have taken its place");
            }
            !is_given_up
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{RecordBatch, RecordBatchOptions};
    use arrow::datatypes::{DataType, Field, Schema};
    use rivulet_connectors::connector::{ConnectorContext, SinkSpec};
    use rivulet_dataflow::Batch;

    use super::*;

    /// An output to a Kafka that is not there, with a row.
    fn away() -> Arc<Outlet> {
        named(None)
    }

    fn spec() -> SinkSpec {
        SinkSpec {
            connector: "kafka".into(),
            address: "127.0.0.1:1/x".into(),
            format: None,
            schema: Arc::new(Schema::empty()),
            changes: false,
            key: None,
            options: Vec::new(),
            host: ConnectorContext::default(),
            checkpoints: None,
            output: None,
        }
    }

    fn named(name: Option<&str>) -> Arc<Outlet> {
        let (schema, one_row) = (Arc::new(Schema::empty()), RecordBatchOptions::new().with_row_count(Some(1)));
        let outlet = Arc::new(Outlet::new("hooks", name, spec(), true));
        outlet.write(Batch {
            slots: vec![0].into(),
            event_time_us: vec![0].into(),
            arrival_us: vec![0].into(),
            columns: RecordBatch::try_new_with_options(schema, vec![], &one_row).expect("a batch"),
            retracts: None,
            positions: None,
        });
        outlet
    }

    #[test]
    fn a_receiver_of_an_earlier_version_that_fails_for_long_holds_up_no_checkpoint() {
        let (outlets, outlet) = (Outlets::default(), away());
        outlets.state.lock().running.insert(7, vec![outlet.clone()]);
        outlet.health.fail("nobody is there");
        outlets.state.lock().retire(7, None);
        outlets.capture(7, true).expect("there is one").expect("what it has");
        assert!(!outlet.is_finished(), "it is tried on");
        assert_eq!(outlets.capture(8, true), None);
    }

    #[test]
    fn what_an_output_has_left_goes_to_the_only_one_that_can_have_its_place() {
        let left = |output: &str, connector: &str| SavedOutlet {
            output: output.into(),
            connector: connector.into(),
            prepared: format!("rows of {output}"),
            rows: Vec::new(),
        };
        let prepared = |names: &[&str], saved: Vec<SavedOutlet>| {
            let (mut saved, all) = (saved, names.iter().map(|name| named(Some(name))));
            let all: Vec<Arc<Outlet>> = all.collect();
            all.iter().for_each(|outlet| outlet.resume(&mut saved));
            saved.into_iter().for_each(|left| deliver_left(7, &all, left));
            all.iter().map(|outlet| outlet.prepared()).collect::<Vec<_>>()
        };
        let both = vec![left("b", "kafka"), left("a", "kafka"), left("a", "http")];
        assert_eq!(prepared(&["b"], both.clone()), [["rows of b", "rows of a"]]);
        // Which of several outputs has its place is not known, and each may have secrets of its own.
        assert_eq!(prepared(&["b", "c"], both), [vec!["rows of b".to_owned()], vec![]]);
    }

    #[test]
    fn rows_that_only_a_checkpoint_has_are_counted_when_they_are_given_up() {
        let request = r#"{"url":"http://127.0.0.1:1/x","rows":3,"key":"k","body":"{}"}"#;
        let prepared = format!(r#"{{"version":1,"requests":[{request},{request}]}}"#);
        let outlet = Outlet::new("hooks", None, SinkSpec { connector: "http".into(), ..spec() }, true);
        let saved = SavedOutlet { output: String::new(), connector: "http".into(), prepared, rows: Vec::new() };
        outlet.resume(&mut vec![saved]);
        outlet.give_up("its application is dropped");
        assert_eq!(outlet.health.report().left_out, 6);
    }

    #[test]
    fn rows_that_wait_for_a_sink_that_is_not_open_are_saved_and_go_on_waiting() {
        let (outlets, outlet) = (Outlets::default(), away());
        outlets.state.lock().running.insert(7, vec![outlet.clone()]);
        outlet.health.retry("nobody is there");
        let saved = outlets.capture(7, true).expect("there is one").expect("what it has");
        assert_eq!((saved.len(), saved[0].rows.len()), (1, 1));
        // In the next process, with its columns and with others.
        for (fields, is_lost) in [(vec![], false), (vec![Field::new("other", DataType::Int64, true)], true)] {
            let spec = SinkSpec { schema: Arc::new(Schema::new(fields)), ..spec() };
            let next = Outlet::new("hooks", None, spec, true);
            next.resume(&mut saved.clone());
            assert_eq!((next.is_finished(), next.health.report().left_out), (is_lost, u64::from(is_lost)));
            next.give_up("its application is dropped");
            assert_eq!(next.health.report().left_out, 1, "they are counted");
        }
    }

    #[test]
    fn so_many_earlier_versions_go_on_delivering() {
        let (outlets, first) = (Outlets::default(), away());
        for one in [first.clone()].into_iter().chain((0..RETIRED_MAX).map(|_| away())) {
            assert!(!first.is_finished());
            let mut state = outlets.state.lock();
            state.running.insert(7, vec![one]);
            state.retire(7, None);
        }
        assert_eq!(outlets.state.lock().retired.len(), RETIRED_MAX);
        assert!(first.is_finished(), "the oldest has given up");
    }

    #[test]
    fn what_is_saved_of_outputs_is_read_again_and_a_later_form_is_named() {
        let (output, connector) = ("hook".to_owned(), "http".to_owned());
        let one = SavedOutlet { output, connector, prepared: "{\"a\":1}".into(), rows: vec!["rows".into()] };
        assert_eq!(read(&saved(vec![one.clone()])).expect("it is read"), std::slice::from_ref(&one));
        assert!(saved(Vec::new()).is_empty());
        let first = br#"{"version":1,"outputs":[{"output":"hook","connector":"http","prepared":"{\"a\":1}"}]}"#;
        assert_eq!(read(first).expect("it is read"), [SavedOutlet { rows: Vec::new(), ..one }]);
        assert!(matches!(read(br#"{"version":3,"outputs":[]}"#), Err(StateError::Version { found: 3, .. })));
        assert!(matches!(read(br#"{"version":0,"outputs":[]}"#), Err(StateError::Version { found: 0, .. })));
        assert!(matches!(read(b"{"), Err(StateError::Corrupt(_))));
    }
}
