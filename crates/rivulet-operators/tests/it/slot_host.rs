//! An application stepped by calls, without the runtime: queries come and go, events and time are given, queries move
//! to another host, and all begins again from snapshots and the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Column;
use proptest::prelude::*;
use rivulet_dataflow::slot_host::{Failure, SlotReport};
use rivulet_dataflow::{
    Batch, Chunk, Decoder, Event, Events, GroupSink, Line, LogPosition, OperatorFactory, Picked, QueryId, Reason,
    Refusals, SinkError, Slot, SlotHost, SlotTable, StateFrame,
};
use rivulet_operators::{AggregateFunction, History, HistoryColumn, HistoryFunction, WindowAggregate};

use crate::common::{Row, aggregate, batch, column, parameters, row, spec, table, tumble};

/// After how long without an event windows close by the clock.
const IDLE_TIMEOUT_US: i64 = 30;

/// The sum of each window, and that of the window before.
fn line() -> Line {
    let mut spec = spec(tumble(), false, vec![aggregate(AggregateFunction::Sum, vec![column(1)])]);
    (spec.parameters, spec.idle_timeout_us) = (vec![0], IDLE_TIMEOUT_US);
    let window = WindowAggregate::new(spec).unwrap();
    let columns = window.output_schema().clone();
    let last = columns.fields().len() - 1;
    let sum: Arc<dyn PhysicalExpr> = Arc::new(Column::new(columns.field(last).name(), last));
    let before = HistoryFunction::Lag { value: sum, rows: 1 };
    let before = HistoryColumn { name: before.to_string(), function: before };
    let history = History::new(&columns, &parameters(), vec![], vec![], vec![before]).unwrap();
    Line::new(vec![Arc::new(window) as Arc<dyn OperatorFactory>, Arc::new(history)])
}

/// Reads payloads such as `12 5`: the time and the number.
struct Lines;

impl Decoder for Lines {
    fn decode(&mut self, events: &Events, refusals: &mut Refusals) -> Batch {
        let read = |row: usize, refusals: &mut Refusals| -> Option<Row> {
            let event = events.event(row);
            let text = std::str::from_utf8(event.payload).unwrap();
            assert_ne!(text, "panic", "as asked");
            let numbers = text.split_once(' ').map(|(time, n)| (time.parse::<i64>(), n.parse::<i64>()));
            let Some((Ok(time), Ok(n))) = numbers else {
                refusals.refuse_event(Some(0), event, || "not two numbers".into());
                return None;
            };
            Some(Row { time, arrival: event.arrival_us, n: Some(n), ..row_of(event.slot) })
        };
        let rows: Vec<Row> = (0..events.rows()).filter_map(|row| read(row, refusals)).collect();
        batch(&rows)
    }
}

fn row_of(slot: Slot) -> Row {
    row(slot, 0, 0.0)
}

/// The end of a window, its sum, and the sum of the window before.
type Sum = (i64, i64, Option<i64>);

/// The results of each query by their numbers.
#[derive(Debug, Default)]
struct Kept {
    results: BTreeMap<QueryId, BTreeMap<u64, Sum>>,
    refused: usize,
    flushes: usize,
}

impl GroupSink for Kept {
    fn write(&mut self, batch: &Batch, numbers: Option<&[u64]>, slots: &SlotTable) -> Result<(), SinkError> {
        let number = |index: usize| batch.column(index).as_primitive::<Int64Type>();
        let ends = batch.column(1).as_primitive::<TimestampMicrosecondType>();
        for row in 0..batch.rows() {
            let result = (ends.value(row), number(2).value(row), number(3).iter().nth(row).unwrap());
            let query = slots.query(batch.slots[row]).expect("results are those of queries");
            let before = self.results.entry(query).or_default().insert(numbers.expect("they are kept")[row], result);
            assert_eq!(before, None, "no result comes twice");
        }
        Ok(())
    }

    fn refused(&mut self, refusals: &Refusals, _: &SlotTable) -> Result<(), SinkError> {
        self.refused += refusals.records().len();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.flushes += 1;
        Ok(())
    }

    fn has_room(&self) -> bool {
        true
    }
}

/// What drives a host, as another engine would.
struct Driver {
    host: SlotHost,
    slots: BTreeMap<QueryId, Slot>,
}

impl Driver {
    fn new() -> Self {
        let host = SlotHost::new(SlotTable::new(parameters()), Box::new(Lines), line().chain()).with_progress();
        Self { host, slots: BTreeMap::new() }
    }

    /// Adds queries with windows of these widths.
    fn add(&mut self, queries: &[(QueryId, i64)], sink: &mut Kept) {
        let widths: Vec<(i64, i64)> = queries.iter().map(|(_, width)| (*width, *width)).collect();
        let rows: Vec<Slot> = (0..queries.len() as Slot).collect();
        let names: Vec<QueryId> = queries.iter().map(|(query, _)| *query).collect();
        let slots = self.host.add(&names, &table(&widths).parameters(&rows), 0, sink);
        self.slots.extend(names.into_iter().zip(slots));
    }

    fn give(&mut self, mut chunk: Chunk, now_us: i64, sink: &mut Kept) -> SlotReport {
        self.host.skip_repeated(&mut chunk);
        self.host.accept(&mut chunk);
        if chunk.rows() > 0
            && let Some(batch) = self.host.decode(&chunk)
        {
            self.host.process(batch, now_us, sink);
        }
        self.host.flush(sink);
        self.host.report()
    }

    fn events(&self, events: &[(QueryId, i64, LogPosition, &str)]) -> Chunk {
        let mut raw = Events::default();
        for &(query, arrival_us, position, text) in events {
            let (slot, payload) = (self.slots[&query], text.as_bytes());
            raw.push_event(Event { input: 0, slot, arrival_us, position, topic: b"", payload });
        }
        Chunk::Raw(raw)
    }

    /// Ticks as a driver does: only when operators want it.
    fn tick(&mut self, now_us: i64, sink: &mut Kept) {
        if self.host.deadline_us().is_some_and(|deadline_us| deadline_us <= now_us) {
            self.host.tick(now_us, sink);
            self.host.flush(sink);
        }
    }

    /// Moves a query to another host.
    fn hand(&mut self, query: QueryId, to: &mut Self, sink: &mut Kept) {
        let slot = self.slots.remove(&query).expect("it is here");
        let copy = self.host.copy(&[slot]).unwrap();
        to.slots.insert(query, to.host.put(copy, 0, sink).unwrap()[0]);
        self.host.remove(&[slot], 0, sink);
        self.host.recycle();
    }

    /// A new host with the queries of this one, from a snapshot. Slots are numbered anew.
    fn restarted(&mut self, sink: &mut Kept) -> Self {
        self.host.change_all();
        let changed = self.host.changed(0, Slot::MAX, 100);
        let snapshot = self.host.snapshot(changed).unwrap();
        let through_bytes = |frame: StateFrame| StateFrame::from_bytes(&frame.to_bytes().unwrap()).unwrap();
        let frames: Vec<_> = snapshot.frames.into_iter().map(|frame| frame.map(through_bytes)).collect();
        let mut next = Self::new();
        let queries: Vec<QueryId> = snapshot.queries.iter().map(|(_, query)| *query).rev().collect();
        let mut slots: Vec<Slot> = snapshot.slots.clone();
        slots.reverse();
        let new = next.host.add(&queries, &self.host.table().parameters(&slots), 0, sink);
        next.slots.extend(queries.into_iter().zip(new.iter().copied()));
        let new: Vec<Slot> = new.into_iter().rev().collect();
        next.host.restore(&new, &snapshot.slots, &frames, &snapshot.marks, 0, sink).unwrap();
        next
    }
}

fn of(sink: &Kept, query: QueryId) -> Vec<Sum> {
    sink.results.get(&query).into_iter().flat_map(BTreeMap::values).copied().collect()
}

#[test]
fn queries_are_stepped_without_a_runtime() {
    let (mut driver, sink) = (Driver::new(), &mut Kept::default());
    driver.add(&[(7, 10), (8, 20)], sink);
    let events =
        driver.events(&[(7, 1, 0, "1 5"), (8, 1, 0, "x"), (7, 2, 0, "3 6"), (8, 3, 0, "3 1"), (7, 12, 0, "12 2")]);
    let report = driver.give(events, 12, sink);
    assert_eq!((report.results, report.refused[Reason::Decode as usize], report.failures), (1, 1, vec![]));
    assert_eq!((of(sink, 7), of(sink, 8), sink.refused), (vec![(10, 11, None)], vec![], 1));

    // Both are silent: their windows close when they have been for long enough.
    assert!(driver.host.deadline_us().is_some_and(|deadline_us| deadline_us <= 3 + IDLE_TIMEOUT_US));
    driver.tick(2 + IDLE_TIMEOUT_US, sink);
    assert_eq!((of(sink, 7).len(), of(sink, 8).len()), (1, 0));
    driver.tick(12 + IDLE_TIMEOUT_US, sink);
    assert_eq!((of(sink, 7), of(sink, 8)), (vec![(10, 11, None), (20, 2, Some(11))], vec![(20, 1, None)]));

    // Events of a query that was removed while they waited are counted and reach no other query.
    let events = driver.events(&[(7, 50, 0, "50 1"), (8, 50, 0, "50 1")]);
    let slot = driver.slots.remove(&7).unwrap();
    driver.host.remove(&[slot], 50, sink);
    let report = driver.give(events, 50, sink);
    assert_eq!((report.refused[Reason::Removed as usize], report.refused.iter().sum::<u64>()), (1, 1));
    driver.host.recycle();
    driver.add(&[(9, 10)], sink);
    assert_eq!(driver.slots[&9], slot);

    // Rows that other queries read too need no decoder.
    let rows = batch(&[Row { time: 61, arrival: 61, n: Some(4), ..row_of(0) }]);
    driver.give(Chunk::Rows(Picked::new(&rows, vec![0, 0], vec![driver.slots[&8], driver.slots[&9]])), 61, sink);
    driver.host.end(61, sink);
    assert_eq!((of(sink, 8).last(), of(sink, 9)), (Some(&(80, 4, Some(1))), vec![(70, 4, None)]));
}

/// One that was in the inbox when its group fell behind comes from the log too.
#[test]
fn an_event_that_is_twice_in_a_chunk_counts_once() {
    let (mut driver, sink) = (Driver::new(), &mut Kept::default());
    driver.add(&[(7, 10)], sink);
    driver.host.begin_behind(&[], 9);
    let [one, other] = [(7, 1, 3, "1 5"), (7, 2, 4, "3 6")];
    driver.give(driver.events(&[one, other, one, other, (7, 12, 5, "12 2")]), 12, sink);
    assert_eq!(of(sink, 7), vec![(10, 11, None)]);
}

#[test]
fn a_panic_costs_its_events_and_does_not_get_out() {
    let (mut driver, sink) = (Driver::new(), &mut Kept::default());
    driver.add(&[(7, 10)], sink);
    let report = driver.give(driver.events(&[(7, 1, 0, "panic"), (7, 1, 0, "1 5")]), 1, sink);
    assert_eq!(report.refused[Reason::Internal as usize], 2);
    assert!(matches!(&report.failures[..], [Failure::Operator(error, 2)] if error.message.contains("as asked")));
    driver.give(driver.events(&[(7, 2, 0, "2 1"), (7, 10, 0, "10 1")]), 10, sink);
    assert_eq!(of(sink, 7), [(10, 1, None)]);
}

#[derive(Clone, Debug)]
enum Step {
    Event {
        query: usize,
        gap_us: i64,
        n: i64,
    },
    Tick {
        by_us: i64,
    },
    /// A query goes to the other host.
    Move {
        query: usize,
    },
    /// Both hosts begin again from snapshots, and the log is repeated.
    Restart,
}

/// Three queries, by their widths.
const QUERIES: [(QueryId, i64); 3] = [(70, 4), (71, 9), (72, 25)];

/// Runs steps on two hosts; moves and restarts only if they are wanted.
fn run(steps: &[Step], is_disturbed: bool) -> Kept {
    let mut sink = Kept::default();
    let mut hosts = [Driver::new(), Driver::new()];
    hosts[0].add(&QUERIES, &mut sink);
    let (mut now_us, mut log) = (0, Vec::new());
    for step in steps {
        match *step {
            Step::Event { query, gap_us, n } => {
                now_us += gap_us;
                log.push((QUERIES[query].0, now_us, log.len() as u64 + 1, format!("{now_us} {n}")));
                let (query, arrival_us, position, text) = log.last().unwrap();
                let host = hosts.iter_mut().find(|host| host.slots.contains_key(query)).unwrap();
                let events = host.events(&[(*query, *arrival_us, *position, text)]);
                host.give(events, now_us, &mut sink);
            }
            Step::Tick { by_us } => {
                now_us += by_us;
                hosts.iter_mut().for_each(|host| host.tick(now_us, &mut sink));
            }
            Step::Move { query } if is_disturbed => {
                let query = QUERIES[query].0;
                let [one, other] = &mut hosts;
                match one.slots.contains_key(&query) {
                    true => one.hand(query, other, &mut sink),
                    false => other.hand(query, one, &mut sink),
                }
            }
            Step::Restart if is_disturbed => {
                for host in &mut hosts {
                    *host = host.restarted(&mut sink);
                    let own = log.iter().filter(|(query, ..)| host.slots.contains_key(query));
                    let own: Vec<_> =
                        own.map(|(query, at, position, text)| (*query, *at, *position, &**text)).collect();
                    let events = host.events(&own);
                    let report = host.give(events, now_us, &mut sink);
                    assert_eq!((report.results, report.refused), (0, Default::default()), "all of it is in the state");
                }
            }
            Step::Move { .. } | Step::Restart => {}
        }
    }
    hosts.iter_mut().for_each(|host| host.host.end(now_us, &mut sink));
    sink
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3usize, 0..9i64, -3..9i64).prop_map(|(query, gap_us, n)| Step::Event { query, gap_us, n }),
        1 => (0..60i64).prop_map(|by_us| Step::Tick { by_us }),
        1 => (0..3usize).prop_map(|query| Step::Move { query }),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn results_are_the_same_wherever_queries_go_and_whenever_hosts_restart(steps in prop::collection::vec(step(), 0..60)) {
        prop_assert_eq!(run(&steps, true).results, run(&steps, false).results);
    }
}
