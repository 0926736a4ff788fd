//! The smallest dataflow with state: payloads of digits, numbered by query.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{AsArray, Int64Array, RecordBatch, StringArray, UInt16Array, UInt32Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use parking_lot::Mutex;
use rivulet_dataflow::{
    Batch, Chain, Context, Control, Cut, Decoder, Element, Events, GroupSink, ManualClock, Operator, OperatorError,
    QueryId, Reason, Refusals, Refused, SinkError, Slot, SlotTable, StateError, StateFrame, StateSelection,
};
use rivulet_runtime::{Group, GroupParts, InboxLimits, TaskParts, WorkerSettings, Workers};

use crate::flows::PATIENCE;

/// Decodes a payload of digits into one `BIGINT` column; `panic` makes it panic. Each event takes some time of the
/// clock.
struct Digits {
    clock: Arc<ManualClock>,
    event_us: Arc<AtomicI64>,
}

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
        use rivulet_dataflow::Clock;
        self.clock.set_us(self.clock.now_us() + self.event_us.load(Ordering::Relaxed) * events.rows() as i64);
        batch(slots, times, values)
    }
}

pub(crate) fn batch(slots: Vec<Slot>, times: Vec<i64>, values: Vec<i64>) -> Batch {
    let schema = Arc::new(Schema::new(vec![Field::new("v", DataType::Int64, true)]));
    let columns = RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(values))]).unwrap();
    Batch::new(slots.into(), times.clone().into(), times.into(), columns)
}

/// Replaces each value by `value * 1_000_000 + n`, where n counts the events of its query from 0. An event that came
/// before the last tick is late.
#[derive(Default)]
struct Numbering {
    numbers: HashMap<Slot, i64>,
    ticked_us: i64,
    /// When it wants a tick; told by the test.
    deadline_us: Arc<AtomicI64>,
}

impl Operator for Numbering {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(rows) => {
                let values = rows.column(0).as_primitive::<Int64Type>();
                let late = rows.arrival_us.iter().filter(|arrival_us| **arrival_us <= self.ticked_us).count();
                context.refusals.count(Reason::Late, late as u64);
                let numbered = rows.slots.iter().zip(values.values()).map(|(slot, value)| {
                    let number = self.numbers.entry(*slot).or_default();
                    *number += 1;
                    value * 1_000_000 + *number - 1
                });
                context.emit(batch(rows.slots.to_vec(), rows.arrival_us.to_vec(), numbered.collect()));
            }
            Element::Control(Control::RemoveSlots(slots)) => {
                for slot in slots {
                    self.numbers.remove(&slot);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn deadline_us(&self) -> Option<i64> {
        Some(self.deadline_us.load(Ordering::Relaxed))
    }

    fn tick(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.ticked_us = context.now_us;
        self.deadline_us.store(i64::MAX, Ordering::Relaxed);
        Ok(())
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        let StateSelection::Slots(slots) = selection else { unreachable!("tasks export slots") };
        let known: Vec<(Slot, i64)> = slots.iter().filter_map(|slot| Some((*slot, *self.numbers.get(slot)?))).collect();
        let schema = Schema::new(vec![
            Field::new("slot", DataType::UInt32, false),
            Field::new("key_group", DataType::UInt16, false),
            Field::new("n", DataType::Int64, false),
        ]);
        let rows = RecordBatch::try_new(
            Arc::new(schema),
            vec![
                Arc::new(UInt32Array::from_iter_values(known.iter().map(|row| row.0))),
                Arc::new(UInt16Array::from(vec![0; known.len()])),
                Arc::new(Int64Array::from_iter_values(known.iter().map(|row| row.1))),
            ],
        )?;
        Ok(Some(StateFrame::new("numbering", 1, rows)))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        let numbers = frame.rows.column(2).as_primitive::<Int64Type>();
        self.numbers.extend(frame.slots().iter().copied().zip(numbers.values().iter().copied()));
        Ok(())
    }
}

/// What a [`Kept`] was given, and whether it is full.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) rows: Vec<(QueryId, i64)>,
    pub(crate) refused: usize,
    pub(crate) is_full: bool,
    /// Whether it is full from the next rows on.
    pub(crate) fills: bool,
}

/// Keeps what it is given; full when told so.
#[derive(Clone, Default)]
pub(crate) struct Kept(pub(crate) Arc<Mutex<Taken>>, Vec<(QueryId, i64)>);

impl Kept {
    /// The values of one query, without their numbers, and whether it was numbered without gap or doublet.
    pub(crate) fn of(&self, query: QueryId) -> (Vec<i64>, bool) {
        let taken = self.0.lock();
        let rows: Vec<i64> = taken.rows.iter().filter(|row| row.0 == query).map(|row| row.1).collect();
        let is_numbered = rows.iter().enumerate().all(|(place, row)| row % 1_000_000 == place as i64);
        (rows.into_iter().map(|row| row / 1_000_000).collect(), is_numbered)
    }
}

impl GroupSink for Kept {
    fn write(&mut self, batch: &Batch, _: Option<&[u64]>, slots: &SlotTable) -> Result<(), SinkError> {
        let values = batch.column(0).as_primitive::<Int64Type>();
        let mut taken = self.0.lock();
        for row in 0..batch.rows() {
            slots.for_each_query(batch.slots[row], |query, _, _| self.1.push((query, values.value(row))));
        }
        taken.is_full |= taken.fills;
        Ok(())
    }

    fn refused(&mut self, refusals: &Refusals, _slots: &SlotTable) -> Result<(), SinkError> {
        self.0.lock().refused += refusals.records().len();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.0.lock().rows.append(&mut self.1);
        Ok(())
    }

    fn has_room(&self) -> bool {
        !self.0.lock().is_full
    }
}

fn parameters() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("home", DataType::Utf8, true)]))
}

/// A sink, a clock, and how much of its time an event takes: what a test looks at and turns.
#[derive(Clone)]
pub(crate) struct Bench {
    pub(crate) sink: Kept,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) event_us: Arc<AtomicI64>,
    /// When the operators want a tick.
    pub(crate) deadline_us: Arc<AtomicI64>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self {
            sink: Kept::default(),
            clock: Arc::new(ManualClock::new(1_000_000)),
            event_us: Arc::default(),
            deadline_us: Arc::new(AtomicI64::new(i64::MAX)),
        }
    }

    /// Workers with nothing to do but what the test hands them: time is that of the manual clock.
    pub(crate) fn stepped_workers(&self) -> Workers {
        let settings = WorkerSettings {
            threads: 2,
            policy: "pinned".parse().expect("a policy"),
            balance_period: Some(Duration::from_secs(3_600)),
            ..Default::default()
        };
        Workers::start(settings, self.clock.clone()).unwrap()
    }

    /// A group with other operators than the usual, and how it may be cut because of them.
    pub(crate) fn parts_with(&self, cut: Cut, chain: impl Fn() -> Chain + Send + Sync + 'static) -> GroupParts {
        let bench = self.clone();
        let make = move || TaskParts {
            decoder: Box::new(Digits { clock: bench.clock.clone(), event_us: bench.event_us.clone() }),
            chain: chain(),
            sink: Box::new(bench.sink.clone()),
        };
        GroupParts { make: Box::new(make), cut, ..self.parts() }
    }

    pub(crate) fn parts(&self) -> GroupParts {
        let bench = self.clone();
        GroupParts {
            name: "digits".into(),
            parameters: parameters(),
            make: Box::new(move || TaskParts {
                decoder: Box::new(Digits { clock: bench.clock.clone(), event_us: bench.event_us.clone() }),
                chain: Chain::new(vec![Box::new(Numbering {
                    deadline_us: bench.deadline_us.clone(),
                    ..Numbering::default()
                })]),
                sink: Box::new(bench.sink.clone()),
            }),
            limits: InboxLimits::default(),
            topic_inputs: 0,
            event_time_column: None,
            task_queries_max: None,
            batch_rows_max: None,
            equal_by: None,
            cut: Cut::Never("its state is of no key"),
            passes_on: false,
            is_checkpointed: false,
        }
    }

    /// Rows of these values, as the decoder makes them.
    pub(crate) fn rows(&self, values: &[i64]) -> Batch {
        batch(vec![0; values.len()], vec![0; values.len()], values.to_vec())
    }

    pub(crate) fn group(&self) -> Arc<Group> {
        Group::stepped(self.parts(), self.clock.clone())
    }
}

/// Parameters for as many queries as names.
pub(crate) fn homes<T: AsRef<str>>(homes: &[T]) -> RecordBatch {
    let names: StringArray = homes.iter().map(|home| Some(home.as_ref())).collect();
    RecordBatch::try_new(parameters(), vec![Arc::new(names)]).unwrap()
}

/// Waits until something is so. How long that takes says nothing: the machine may be busy with other tests.
pub(crate) fn wait(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
