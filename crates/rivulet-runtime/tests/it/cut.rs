//! Tasks in parts, with real threads: only the time differs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::{AsArray, Int64Array, RecordBatch, UInt16Array, UInt32Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use rivulet_dataflow::{
    Batch, Chain, Context, Control, Cut, Element, Inbox, KeyHash, Operator, OperatorError, Push, Slot, StateError,
    StateFrame, StateSelection,
};
use rivulet_runtime::{Group, WorkerSettings, Workers};

use crate::support::{Bench, batch, homes, wait};

/// The key of a value is its remainder.
const KEYS: i64 = 13;

const EVENTS: i64 = 1_500_000;

/// Replaces each value by `value * 1_000_000 + n`, where n counts the events of its query and key from 0.
#[derive(Default)]
pub(crate) struct NumberingByKey {
    numbers: BTreeMap<(Slot, i64), i64>,
}

fn key_hash(value: i64) -> u16 {
    KeyHash::of(&(value % KEYS).to_le_bytes()).bits()
}

impl Operator for NumberingByKey {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(rows) => {
                let values = rows.column(0).as_primitive::<Int64Type>();
                let numbered = rows.slots.iter().zip(values.values()).map(|(slot, value)| {
                    let number = self.numbers.entry((*slot, value % KEYS)).or_default();
                    *number += 1;
                    value * 1_000_000 + *number - 1
                });
                context.emit(batch(rows.slots.to_vec(), rows.arrival_us.to_vec(), numbered.collect()));
            }
            Element::Control(Control::RemoveSlots(slots)) => self.numbers.retain(|(slot, _), _| !slots.contains(slot)),
            _ => {}
        }
        Ok(())
    }

    fn key_hashes(&mut self, batch: Batch, _context: &mut Context<'_>) -> Result<(Batch, Vec<u16>), OperatorError> {
        let key_hashes = batch.column(0).as_primitive::<Int64Type>().values().iter().map(|&value| key_hash(value));
        let key_hashes = key_hashes.collect();
        Ok((batch, key_hashes))
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        let is_meant = |slot: Slot, key: i64| match selection {
            StateSelection::All => true,
            StateSelection::Slots(slots) => slots.contains(&slot),
            StateSelection::KeyGroups(..) => selection.selects_key(KeyHash::from_bits(key_hash(key))),
        };
        let known: Vec<(Slot, i64, i64)> = self
            .numbers
            .iter()
            .filter(|((slot, key), _)| is_meant(*slot, *key))
            .map(|(&(slot, key), &number)| (slot, key, number))
            .collect();
        let schema = Schema::new(vec![
            Field::new("slot", DataType::UInt32, false),
            Field::new("key_group", DataType::UInt16, false),
            Field::new("key", DataType::Int64, false),
            Field::new("n", DataType::Int64, false),
        ]);
        let rows = RecordBatch::try_new(
            Arc::new(schema),
            vec![
                Arc::new(UInt32Array::from_iter_values(known.iter().map(|row| row.0))),
                Arc::new(UInt16Array::from_iter_values(known.iter().map(|row| key_hash(row.1)))),
                Arc::new(Int64Array::from_iter_values(known.iter().map(|row| row.1))),
                Arc::new(Int64Array::from_iter_values(known.iter().map(|row| row.2))),
            ],
        )?;
        Ok(Some(StateFrame::new("numbering by key", 1, rows)))
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        let column = |index: usize| frame.rows.column(index).as_primitive::<Int64Type>().values().to_vec();
        self.numbers.retain(|(slot, _), _| !frame.slots().contains(slot));
        let keys = frame.slots().iter().copied().zip(column(2));
        self.numbers.extend(keys.zip(column(3)));
        Ok(())
    }
}

/// Events come until the task was changed so often, at least.
const TURNS_MIN: usize = 100;

/// Pushes numbers to two queries while their task is cut, joined, split, and changed in between; then waits until all
/// is done.
fn push_while_it_changes(group: &Arc<Group>, slots: &[Slot], workers: Workers) {
    let is_pushed = AtomicBool::new(false);
    let turns = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for value in 0..EVENTS {
                // On a busy machine the other thread may come to its turn late.
                let turn = value as usize * TURNS_MIN / EVENTS as usize;
                if turns.load(Ordering::Acquire) < turn {
                    wait("a further change", || turns.load(Ordering::Acquire) >= turn);
                }
                // One of the two has nearly all.
                let slot = slots[usize::from(value % 100 == 0)];
                while group.push(slot, 0, value.to_string().as_bytes()) == Push::Full {
                    std::thread::yield_now();
                }
            }
            is_pushed.store(true, Ordering::Release);
        });
        for turn in 0.. {
            if is_pushed.load(Ordering::Acquire) {
                break;
            }
            let tasks: Vec<_> = group.tasks().filter(|task| task.queries() > 0).cloned().collect();
            let first = &tasks[0];
            group.cut_on(first, [&[1, 2][..], &[3], &[], &[0, 1, 2, 3]][turn % 4]);
            match turn {
                // A running task looks at what is wanted before its next activation, and events may have run out by
                // then.
                0 => wait("a cut while events come", || {
                    group.cut_on(first, &[1, 2]);
                    first.parts() > 1
                }),
                _ => std::thread::sleep(Duration::from_millis(3)),
            }
            match turn % 5 {
                0 => drop(group.metrics()),
                1 if tasks.len() == 1 => drop(group.split(first).expect("state can be moved")),
                2 if tasks.len() > 1 => group.merge(&tasks[1], first).expect("state can be moved"),
                3 => {
                    let state = group.export_state(&StateSelection::All).expect("state can be exported");
                    assert!(state.len() <= 1);
                }
                _ => group.remove(&group.add(&[1_000 + turn as u64], &homes(&["guest"]))),
            }
            turns.store(turn + 1, Ordering::Release);
        }
    });
    for task in group.tasks() {
        group.cut_on(task, &[]);
    }
    wait("all events", || group.waiting().0 == 0 && group.metrics().events == EVENTS as u64);
    assert_eq!(workers.stop(), 0);
}

fn start(
    bench: &Bench,
    cut: Cut,
    chain: impl Fn() -> Chain + Send + Sync + 'static,
) -> (Workers, Arc<Group>, Vec<Slot>) {
    let settings = WorkerSettings { threads: 4, balance_period: None, ..Default::default() };
    let workers = Workers::start(settings, bench.clock.clone()).unwrap();
    let group = workers.create_group(bench.parts_with(cut, chain));
    let slots = group.add(&[0, 1], &homes(&["hot", "cold"]));
    (workers, group, slots)
}

/// The values that were pushed to a query.
fn pushed(query: u64) -> impl Iterator<Item = i64> {
    (0..EVENTS).filter(move |value| (value % 100 == 0) == (query == 1))
}

#[test]
fn without_state_results_leave_in_order_while_it_is_cut_and_joined() {
    let bench = Bench::new();
    let (workers, group, slots) = start(&bench, Cut::Anywhere, || Chain::new(Vec::new()));
    push_while_it_changes(&group, &slots, workers);
    let rows = bench.sink.0.lock().rows.clone();
    for query in 0..2 {
        let values = rows.iter().filter(|(of, _)| *of == query).map(|(_, value)| *value);
        assert!(values.eq(pushed(query)), "query {query}");
    }
    assert_eq!(group.metrics().processing_latency_us.count(), EVENTS as u64, "the latency of every event is known");
}

#[test]
fn by_key_nothing_is_lost_doubled_or_reordered_while_it_is_cut_and_joined() {
    let bench = Bench::new();
    let numbering = || Chain::new(vec![Box::new(NumberingByKey::default()) as Box<dyn Operator>]);
    let (workers, group, slots) = start(&bench, Cut::ByKey(0), numbering);
    push_while_it_changes(&group, &slots, workers);
    let rows = bench.sink.0.lock().rows.clone();
    for (query, key) in (0..2).flat_map(|query| (0..KEYS).map(move |key| (query, key))) {
        let of_key = |value: &i64| value % KEYS == key;
        let found = rows.iter().filter(|(of, row)| *of == query && of_key(&(row / 1_000_000))).map(|(_, row)| *row);
        let expected = pushed(query).filter(of_key).zip(0..).map(|(value, number)| value * 1_000_000 + number);
        assert!(found.eq(expected), "query {query}, key {key}");
    }
    assert_eq!(group.metrics().processing_latency_us.count(), EVENTS as u64, "the latency of every event is known");
}

#[test]
fn the_balancer_cuts_a_query_that_is_too_much_and_joins_it_when_it_is_not() {
    let bench = Bench::new();
    bench.event_us.store(100, Ordering::Relaxed);
    let workers = bench.stepped_workers();
    let group = workers.create_group(bench.parts_with(Cut::Anywhere, || Chain::new(Vec::new())));
    let slot = group.add(&[0], &homes(&["hot"]))[0];
    let round = |events: u64| {
        let expected = group.metrics().events + events;
        for value in 0..events {
            assert_eq!(group.push(slot, 0, value.to_string().as_bytes()), Push::Taken);
        }
        wait("these events", || group.metrics().events == expected && group.waiting().0 == 0);
        workers.balance(Duration::from_secs(1));
    };
    // 12,000 events of 100 us each in what counts as one second.
    round(12_000);
    round(100);
    assert_eq!(
        (group.parts_of(slot), workers.status().iter().map(|worker| worker.tasks).collect::<Vec<_>>()),
        (2, vec![1, 1])
    );
    // The parts rest for some periods, then they are one again.
    (0..6).for_each(|_| round(100));
    assert_eq!(group.parts_of(slot), 1);
}

#[test]
fn a_hot_query_among_others_gets_a_task_of_its_own_before_it_is_cut() {
    let bench = Bench::new();
    bench.event_us.store(100, Ordering::Relaxed);
    let workers = bench.stepped_workers();
    let group = workers.create_group(bench.parts_with(Cut::Anywhere, || Chain::new(Vec::new())));
    let slots = group.add(&(0..50).collect::<Vec<_>>(), &homes(&["x"; 50]));
    for value in 0..12_000 {
        assert_eq!(group.push(slots[7], 0, value.to_string().as_bytes()), Push::Taken);
    }
    // Counted, too: what the balancer sees of an activation is known at its end.
    wait("these events", || group.metrics().events == 12_000 && group.waiting().0 == 0);
    // What waits is what tells which one it is: without room in the sink it stays.
    bench.sink.0.lock().is_full = true;
    for value in 0..100 {
        assert_eq!(group.push(slots[7], 0, value.to_string().as_bytes()), Push::Taken);
    }
    workers.balance(Duration::from_secs(1));
    bench.sink.0.lock().is_full = false;
    wait("the cut", || group.waiting().0 == 0 && group.parts_of(slots[7]) == 2);
    assert_eq!(group.parts_of(slots[8]), 1);
    let values = bench.sink.of(7).0;
    assert_eq!((group.waiting().0, values.len()), (0, 12_100));
}

#[test]
fn what_cannot_be_cut_stays_whole() {
    let bench = Bench::new();
    let group = bench.group();
    group.add(&[0], &homes(&["x"]));
    let task = group.tasks().next().expect("a task").clone();
    group.cut_on(&task, &[1, 2]);
    group.run();
    assert_eq!((task.parts(), matches!(group.cut(), Cut::Never(_))), (1, true));
}
