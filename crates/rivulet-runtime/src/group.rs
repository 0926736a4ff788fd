//! A group: the queries of one application that run together, as one dataflow over a table of slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::TimestampMicrosecondType;
use parking_lot::Mutex;
use rivulet_dataflow::{
    Batch, Chain, Clock, Control, Decoder, Element, Events, QueryId, Reason, Refusals, Sink, Slot, SlotTable,
    StateError, StateFrame, StateSelection,
};

use crate::{GroupInbox, GroupMetrics, InboxLimits, ReadyQueue};

/// A group's number, unique in the process.
pub type GroupId = u32;

/// How far behind the clock timers run. An event that a source has stamped but not yet delivered must not find that a
/// timer for a later instant was served before it.
const TICK_GRACE_US: i64 = 5_000;

/// How many refused rows of one activation keep their content for the dead-letter output; the others are only counted.
const REFUSED_CONTENT_MAX: usize = 256;

/// What a group is made of.
pub struct GroupParts {
    /// The application's name, for people.
    pub name: String,
    /// The (empty) table of queries, with the application's parameters as columns.
    pub slots: SlotTable,
    /// Turns payloads into rows.
    pub decoder: Box<dyn Decoder>,
    /// The application's operators.
    pub chain: Chain,
    /// Takes the results.
    pub sink: Box<dyn Sink>,
    /// The bounds of the inbox.
    pub limits: InboxLimits,
    /// The index of the event-time column, if the input has one.
    pub event_time_column: Option<usize>,
}

/// The queries of one application that run together: the unit of scheduling.
pub struct Group {
    id: GroupId,
    name: String,
    inbox: Arc<GroupInbox>,
    clock: Arc<dyn Clock>,
    /// When the chain next wants a tick (clock time), `i64::MAX` if never; readable without the task's lock.
    deadline_us: AtomicI64,
    task: Mutex<Task>,
}

/// What only the thread that runs the group may touch.
struct Task {
    slots: SlotTable,
    decoder: Box<dyn Decoder>,
    chain: Chain,
    sink: Box<dyn Sink>,
    event_time_column: Option<usize>,
    /// The arena that is not in the inbox.
    spare: Events,
    refusals: Refusals,
    metrics: GroupMetrics,
    /// Whether slots were retired whose events may still be in the inbox.
    has_retired: bool,
}

/// What one activation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// It processed this many events (0: only timers were due).
    Ran(usize),
    /// The sink has no room: the events stay in the inbox.
    Blocked,
}

impl Group {
    /// A group without queries; it is run by whoever takes it from `ready`.
    pub fn new(id: GroupId, parts: GroupParts, clock: Arc<dyn Clock>, ready: Arc<ReadyQueue>) -> Arc<Self> {
        let group = Arc::new(Self {
            id,
            name: parts.name,
            inbox: Arc::new(GroupInbox::new(parts.limits, ready)),
            clock,
            deadline_us: AtomicI64::new(i64::MAX),
            task: Mutex::new(Task {
                slots: parts.slots,
                decoder: parts.decoder,
                chain: parts.chain,
                sink: parts.sink,
                event_time_column: parts.event_time_column,
                spare: Events::default(),
                refusals: Refusals::new(REFUSED_CONTENT_MAX),
                metrics: GroupMetrics::default(),
                has_retired: false,
            }),
        });
        group.inbox.belongs_to(&group);
        group
    }

    /// The group's number.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// The application's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where sources put events of this group's queries.
    pub fn inbox(&self) -> &Arc<GroupInbox> {
        &self.inbox
    }

    /// Adds queries, one for each row of `parameters`, and returns their slots. Events may be routed to the slots from
    /// then on. Waits for a running activation to end; the other queries notice nothing.
    pub fn add(&self, queries: &[QueryId], parameters: &RecordBatch) -> Vec<Slot> {
        let mut task = self.task.lock();
        if task.has_retired && self.inbox.waiting().0 == 0 {
            // The routes of retired slots were removed before they retired, so an empty inbox holds none of their events.
            task.slots.recycle();
            task.has_retired = false;
        }
        let slots = task.slots.add(queries, parameters);
        self.control(&mut task, Control::AddSlots(slots.clone()));
        slots
    }

    /// Removes queries. Their routes must be gone already: nothing pushes events for these slots any more.
    pub fn remove(&self, slots: &[Slot]) {
        let mut task = self.task.lock();
        self.control(&mut task, Control::RemoveSlots(slots.to_vec()));
        task.slots.retire(slots);
        task.has_retired = true;
    }

    fn control(&self, task: &mut Task, control: Control) {
        let now_us = self.clock.now_us();
        task.run_chain(Step::Element(Element::Control(control)), now_us, &self.name);
        self.note_deadline(task);
    }

    /// Takes over state that was exported from a group of the same application; slots as in this group.
    pub fn import_state(&self, frames: &[Option<StateFrame>]) -> Result<(), StateError> {
        let mut task = self.task.lock();
        let result = task.chain.import_state(frames);
        self.note_deadline(&task);
        result
    }

    /// The selected state of every operator.
    pub fn export_state(&self, selection: &StateSelection) -> Result<Vec<Option<StateFrame>>, StateError> {
        self.task.lock().chain.export_state(selection)
    }

    /// Processes everything that waits in the inbox as one batch, then what timers are due.
    ///
    /// Called by one worker at a time; a second caller waits.
    pub fn run(&self) -> Activation {
        let mut task = self.task.lock();
        if !task.sink.has_room() {
            return Activation::Blocked;
        }
        let start_us = self.clock.now_us();
        let spare = std::mem::take(&mut task.spare);
        let mut events = self.inbox.take(spare);
        if task.has_retired {
            events.retain_slots(|slot| task.slots.query(slot).is_some());
            task.slots.recycle();
            task.has_retired = false;
        }
        let rows = events.rows();
        if rows > 0 {
            let event_times = task.decode_and_run(&events, start_us, &self.name);
            self.finish(&mut task);
            let end_us = self.clock.now_us();
            task.metrics.events += rows as u64;
            task.metrics.batches += 1;
            task.metrics.batch_events_max = task.metrics.batch_events_max.max(rows as u64);
            for &arrival_us in events.arrival_us() {
                task.metrics.processing_latency_us.record(end_us - arrival_us);
            }
            if let Some(times) = event_times {
                for &time_us in times.as_primitive::<TimestampMicrosecondType>().values() {
                    task.metrics.event_latency_us.record(end_us.saturating_sub(time_us));
                }
            }
            task.metrics.busy_us += (end_us - start_us).max(0) as u64;
        }
        let tick_us = start_us - TICK_GRACE_US;
        if task.chain.deadline_us().is_some_and(|deadline_us| deadline_us <= tick_us) {
            task.run_chain(Step::Tick, tick_us, &self.name);
            self.finish(&mut task);
        }
        self.note_deadline(&task);
        let payload_bytes = events.payload_bytes();
        events.clear();
        events.shrink_for(rows, payload_bytes);
        task.spare = events;
        Activation::Ran(rows)
    }

    /// Ends the group's input: closes what is open and hands it to the sink.
    pub fn end(&self) {
        self.run();
        let mut task = self.task.lock();
        let now_us = self.clock.now_us();
        task.run_chain(Step::Element(Element::End), now_us, &self.name);
        self.finish(&mut task);
        self.note_deadline(&task);
    }

    fn finish(&self, task: &mut Task) {
        let name = self.name.as_str();
        let Task { sink, slots, refusals, metrics, .. } = task;
        if !refusals.is_empty() {
            for reason in Reason::ALL {
                metrics.refused[reason as usize] += refusals.counted(reason);
            }
            if !refusals.records().is_empty()
                && let Err(error) = sink.refused(refusals, slots)
            {
                tracing::warn!(application = name, %error, "dead letters were not written");
            }
            refusals.clear();
        }
        if let Err(error) = sink.flush() {
            tracing::warn!(application = name, %error, "results were not sent");
        }
    }

    fn note_deadline(&self, task: &Task) {
        self.deadline_us.store(task.chain.deadline_us().unwrap_or(i64::MAX), Ordering::Release);
    }

    /// Whether a timer is due at `now_us`.
    pub fn is_due(&self, now_us: i64) -> bool {
        self.deadline_us.load(Ordering::Acquire) <= now_us - TICK_GRACE_US
    }

    /// The counters, with dropped events as refused for [`Reason::Overflow`].
    pub fn metrics(&self) -> GroupMetrics {
        let mut metrics = self.task.lock().metrics.clone();
        metrics.refused[Reason::Overflow as usize] += self.inbox.dropped();
        metrics
    }

    /// The number of queries.
    pub fn queries(&self) -> usize {
        self.task.lock().slots.live()
    }

    /// Reads the table of queries.
    pub fn with_slots<T>(&self, read: impl FnOnce(&SlotTable) -> T) -> T {
        read(&self.task.lock().slots)
    }

    /// Memory held by parameters, state and waiting events, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let task = self.task.lock();
        task.slots.memory_bytes() + task.chain.memory_bytes() + task.spare.memory_bytes() + self.inbox.memory_bytes()
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group({} '{}')", self.id, self.name)
    }
}

enum Step {
    Element(Element),
    Tick,
}

impl Task {
    /// Decodes events and runs the chain on their rows; returns the column of event times.
    fn decode_and_run(&mut self, events: &Events, now_us: i64, name: &str) -> Option<ArrayRef> {
        let Self { decoder, refusals, .. } = self;
        let batch = match catch_unwind(AssertUnwindSafe(|| decoder.decode(events, refusals))) {
            Ok(batch) => batch,
            Err(panic) => {
                self.failed(events.rows() as u64, &panic_text(&*panic), name);
                return None;
            }
        };
        let event_times = self.event_time_column.map(|column| batch.column(column).clone());
        self.run_chain(Step::Element(Element::Batch(batch)), now_us, name);
        event_times
    }

    /// Runs the chain and hands what comes out to the sink. A failure or panic of an operator costs this batch and
    /// nothing else: it is counted, logged, and the group goes on.
    fn run_chain(&mut self, step: Step, now_us: i64, name: &str) {
        let Self { chain, slots, refusals, sink, metrics, .. } = self;
        let rows = match &step {
            Step::Element(Element::Batch(batch)) => batch.rows() as u64,
            _ => 0,
        };
        let mut sink_error = None;
        let mut take = |batch: Batch| {
            metrics.results += batch.rows() as u64;
            if let Err(error) = sink.write(&batch, slots) {
                sink_error.get_or_insert(error);
            }
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| match step {
            Step::Element(element) => chain.process(element, now_us, slots, refusals, &mut take),
            Step::Tick => chain.tick(now_us, slots, refusals, &mut take),
        }));
        if let Some(error) = sink_error {
            tracing::warn!(application = name, %error, "results were not written");
        }
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.failed(rows, &error.to_string(), name),
            Err(panic) => self.failed(rows, &panic_text(&*panic), name),
        }
    }

    fn failed(&mut self, rows: u64, failure: &str, name: &str) {
        self.refusals.count(Reason::Internal, rows);
        tracing::error!(application = name, rows, "this batch is lost because of a defect in the engine: {failure}");
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panic")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};
    use rivulet_dataflow::{Inbox, ManualClock, Push, Refused, SinkError};

    use super::*;

    /// Decodes a payload of digits into one `BIGINT` column.
    struct Digits;

    impl Decoder for Digits {
        fn decode(&mut self, events: &Events, refusals: &mut Refusals) -> Batch {
            let (mut slots, mut times, mut values) = (vec![], vec![], vec![]);
            for row in 0..events.rows() {
                let (slot, payload) = (events.slots()[row], events.payload(row));
                assert_ne!(payload, b"panic", "as asked");
                match std::str::from_utf8(payload).ok().and_then(|text| text.parse::<i64>().ok()) {
                    Some(value) => {
                        slots.push(slot);
                        times.push(events.arrival_us()[row]);
                        values.push(value);
                    }
                    None => refusals.refuse(slot, Reason::Decode, events.arrival_us()[row], || {
                        ("not digits".into(), Refused::Payload(payload.into()))
                    }),
                }
            }
            let schema = Arc::new(Schema::new(vec![Field::new("v", DataType::Int64, true)]));
            let columns = RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(values))]).unwrap();
            Batch::new(slots.into(), times.clone().into(), times.into(), columns)
        }
    }

    /// Keeps what it is given; full when told so.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Taken>>);

    /// Rows taken, refusals taken, and whether there is no room.
    type Taken = (Vec<(QueryId, i64)>, usize, bool);

    impl Sink for Kept {
        fn write(&mut self, batch: &Batch, slots: &SlotTable) -> Result<(), SinkError> {
            let values = batch.column(0).as_primitive::<arrow::datatypes::Int64Type>();
            let rows = (0..batch.rows()).map(|row| (slots.query(batch.slots[row]).unwrap(), values.value(row)));
            self.0.lock().0.extend(rows);
            Ok(())
        }

        fn refused(&mut self, refusals: &Refusals, _slots: &SlotTable) -> Result<(), SinkError> {
            self.0.lock().1 += refusals.records().len();
            Ok(())
        }

        fn flush(&mut self) -> Result<(), SinkError> {
            Ok(())
        }

        fn has_room(&self) -> bool {
            !self.0.lock().2
        }
    }

    fn parts(sink: Kept) -> GroupParts {
        GroupParts {
            name: "digits".into(),
            slots: SlotTable::new(Arc::new(Schema::new(vec![Field::new("home", DataType::Utf8, true)]))),
            decoder: Box::new(Digits),
            chain: Chain::new(vec![]),
            sink: Box::new(sink),
            limits: InboxLimits::default(),
            event_time_column: None,
        }
    }

    fn homes(homes: &[&str]) -> RecordBatch {
        let schema = Arc::new(Schema::new(vec![Field::new("home", DataType::Utf8, true)]));
        RecordBatch::try_new(schema, vec![Arc::new(StringArray::from(homes.to_vec()))]).unwrap()
    }

    fn group(sink: &Kept) -> (Arc<Group>, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(1_000_000));
        (Group::new(0, parts(sink.clone()), clock.clone(), Arc::new(ReadyQueue::default())), clock)
    }

    #[test]
    fn a_broken_event_harms_nobody_else() {
        let sink = Kept::default();
        let (group, clock) = group(&sink);
        let slots = group.add(&[70, 71], &homes(&["a", "b"]));
        for (slot, payload) in [(slots[0], "1"), (slots[1], "x"), (slots[1], "2")] {
            assert_eq!(group.inbox().push(slot, clock.now_us() - 40, payload.as_bytes()), Push::Taken);
        }
        assert_eq!(group.run(), Activation::Ran(3));
        assert_eq!(sink.0.lock().0, [(70, 1), (71, 2)]);
        let metrics = group.metrics();
        assert_eq!((metrics.events, metrics.batches, metrics.results), (3, 1, 2));
        assert_eq!(metrics.refused[Reason::Decode as usize], 1);
        assert_eq!(metrics.processing_latency_us.quantile_us(0.5), 40);
        assert_eq!(sink.0.lock().1, 1);
    }

    #[test]
    fn a_panic_costs_one_batch_and_is_counted() {
        let sink = Kept::default();
        let (group, _) = group(&sink);
        let slot = group.add(&[70], &homes(&["a"]))[0];
        assert_eq!(group.inbox().push(slot, 0, b"panic"), Push::Taken);
        group.run();
        assert_eq!(group.inbox().push(slot, 0, b"5"), Push::Taken);
        group.run();
        assert_eq!(sink.0.lock().0, [(70, 5)]);
        assert_eq!(group.metrics().refused[Reason::Internal as usize], 1);
    }

    #[test]
    fn events_of_a_removed_query_never_reach_the_next_one() {
        let sink = Kept::default();
        let (group, _) = group(&sink);
        let slot = group.add(&[70], &homes(&["a"]))[0];
        assert_eq!(group.inbox().push(slot, 0, b"1"), Push::Taken);
        group.remove(&[slot]);
        assert_ne!(group.add(&[71], &homes(&["b"]))[0], slot);
        group.run();
        assert_eq!(sink.0.lock().0, []);
        assert_eq!(group.add(&[72], &homes(&["c"]))[0], slot);
    }

    #[test]
    fn a_full_sink_leaves_events_in_the_inbox() {
        let sink = Kept::default();
        let (group, _) = group(&sink);
        let slot = group.add(&[70], &homes(&["a"]))[0];
        assert_eq!(group.inbox().push(slot, 0, b"1"), Push::Taken);
        sink.0.lock().2 = true;
        assert_eq!(group.run(), Activation::Blocked);
        assert_eq!(group.inbox().waiting(), (1, 1));
        sink.0.lock().2 = false;
        assert_eq!(group.run(), Activation::Ran(1));
    }

    #[test]
    fn workers_process_everything_in_order_and_stop() {
        let clock = Arc::new(ManualClock::new(0));
        let workers = crate::Workers::start(2, clock).unwrap();
        let sinks: Vec<Kept> = (0..20).map(|_| Kept::default()).collect();
        let groups: Vec<_> = sinks.iter().map(|sink| workers.create_group(parts(sink.clone()))).collect();
        for group in &groups {
            group.add(&[1], &homes(&["a"]));
        }
        for value in 0..5_000i64 {
            for group in &groups {
                assert_eq!(group.inbox().push(0, 0, value.to_string().as_bytes()), Push::Taken);
            }
        }
        workers.stop();
        for (group, sink) in groups.iter().zip(&sinks) {
            group.run();
            assert!(sink.0.lock().0.iter().map(|row| row.1).eq(0..5_000), "in order, none lost, none doubled");
        }
    }
}
