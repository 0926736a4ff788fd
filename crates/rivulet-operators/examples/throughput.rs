//! What an event costs: a filter with a parameter, and a sliding average over 100,000 queries, in small and large
//! batches; and what the windows of the example applications cost in time and memory once they are full.
//!
//! Run with `cargo run --release -p rivulet-operators --example throughput [slots [name]]`; with a part of a name only
//! those lines.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Float64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_common::ScalarValue;
use datafusion_expr::Operator as Sql;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{Column, Literal, binary};
use rivulet_dataflow::{Batch, Context, Control, Element, Operator, OperatorFactory, Refusals, Slot, SlotTable};
use rivulet_operators::{
    AggregateFunction, AggregateSpec, ChangeOnly, Expressions, Filter, History, HistoryColumn, HistoryFunction,
    MatchCondition, NamedExpression, Navigation, Pattern, PatternMatch, PatternSpec, PatternVariable, Skip, Source,
    WindowAggregate, WindowAggregateSpec, WindowSpec,
};

const SECOND_US: i64 = 1_000_000;

fn main() {
    let slots: u32 = std::env::args().nth(1).and_then(|slots| slots.parse().ok()).unwrap_or(100_000);
    let table = table(slots);
    for rows in [1, 64, 1024].into_iter().filter(|_| wanted("filter value > $target")) {
        let mut filter = filter().create();
        let (ns_per_row, _) = run(filter.as_mut(), &table, slots, rows, 4 * slots as usize);
        println!("filter value > $target          batches of {rows:5}: {ns_per_row:7.1} ns/row");
    }
    for (name, window) in [("tumble(1s)", tumble(1)), ("tumble(30s)", tumble(30)), ("hop(1s, 30s)", hop(1, 30))] {
        for rows in [64, 1024].into_iter().filter(|_| wanted(&format!("avg over {name}"))) {
            let mut operator = average(window.clone()).create();
            announce(operator.as_mut(), &table, slots);
            // Fill the windows first: what counts is the steady state.
            let mut events = Generator::new(slots);
            drive(operator.as_mut(), &table, &mut events, rows, 35 * slots as usize);
            let start = CpuClock::start();
            let measured = 10 * slots as usize;
            let emitted = drive(operator.as_mut(), &table, &mut events, rows, measured);
            let ns_per_row = start.elapsed().as_nanos() as f64 / measured as f64;
            println!(
                "avg over {name:12}           batches of {rows:5}: {ns_per_row:7.1} ns/row, {:.2} rows out a row, {} bytes/slot",
                emitted as f64 / measured as f64,
                operator.memory_bytes() / slots as usize
            );
        }
    }
    // All windows of these are full at the end: as many slots as memory allows.
    shapes(&table, if std::env::args().len() > 2 { slots } else { (slots / 10).min(10_000) });
    for (name, keys) in [("emit on change", vec![]), ("emit on change by key", vec![0])] {
        if wanted(name) {
            let mut change = ChangeOnly::new(timed(), keys, vec![0], 1).unwrap().create();
            drive(change.as_mut(), &table, &mut Generator::new(slots), 1000, slots as usize);
            let (ns_per_row, _) = run(change.as_mut(), &table, slots, 1024, 4 * slots as usize);
            println!("{name:31} batches of  1024: {ns_per_row:7.1} ns/row");
        }
    }
    histories(&table, slots);
    patterns(&table, slots);
    if wanted("tick and export") {
        tick_and_export(&table, slots);
    }
}

/// Whether the lines of this name are asked for.
fn wanted(name: &str) -> bool {
    std::env::args().nth(2).is_none_or(|part| name.contains(&part))
}

/// What a tick over all slots costs in which little is due, and an export of all.
fn tick_and_export(table: &SlotTable, slots: u32) {
    let mut operator = average(hop(1, 30)).create();
    announce(operator.as_mut(), table, slots);
    let mut events = Generator::new(slots);
    drive(operator.as_mut(), table, &mut events, 1024, 35 * slots as usize);
    // Too short for the clock of the processor: the time on the wall.
    let start = Instant::now();
    let mut output = Vec::new();
    let mut refusals = Refusals::new(0);
    let deadline_us = operator.deadline_us().expect("something is open");
    operator.tick(&mut Context::new(deadline_us, table, &mut refusals, &mut output)).unwrap();
    println!("tick over {slots} slots, little due: {:?}", start.elapsed());
    let start = CpuClock::start();
    let frame = operator.export_state(&rivulet_dataflow::StateSelection::All).unwrap().unwrap();
    println!("export of all state: {:?}", start.elapsed());
    let bytes = frame.to_bytes().unwrap();
    println!("export with bytes: {:?}, {} bytes/slot", start.elapsed(), bytes.len() / slots as usize);
}

/// The windows of the example applications, with one event a second and slot, once all windows are full.
fn shapes(table: &SlotTable, slots: u32) {
    use AggregateFunction::{Avg, Count, LastValue, Max, Min, RegrR2, RegrSlope, StddevSamp, Sum, VarPop};
    let value = || -> Arc<dyn PhysicalExpr> { Arc::new(Column::new("value", 0)) };
    let of = |function, arguments: Vec<Arc<dyn PhysicalExpr>>| AggregateSpec {
        name: format!("{function}"),
        function,
        arguments,
        filter: None,
    };
    let one = |function| of(function, vec![value()]);
    // The line is fitted over the event time, which is never null.
    let line = |function| of(function, vec![value(), Arc::new(Column::new("ts", 1))]);
    let rows = || of(Count, vec![]);
    let high: Arc<dyn PhysicalExpr> =
        binary(value(), Sql::Gt, Arc::new(Literal::new(ScalarValue::Float64(Some(70.0)))), &timed()).unwrap();
    let filtered = AggregateSpec { filter: Some(high), ..rows() };
    let shapes = [
        ("ac_control", 1, 30, vec![one(Avg)]),
        ("abnormal_heart_rate", 5, 60, vec![filtered, rows(), one(Max)]),
        ("fire_alarm", 1, 20, vec![line(RegrSlope), one(Max), one(VarPop), line(RegrR2), rows()]),
        ("electricity_warning", 10, 600, vec![one(Sum)]),
        ("elderly_care", 5, 120, vec![one(StddevSamp), rows()]),
        ("medication_management", 10, 60, vec![one(Min), one(Max)]),
        ("soil_moisture", 10, 60, vec![one(Avg)]),
        ("moisture_removal", 5, 30, vec![one(Avg)]),
        ("green_house", 1, 60, vec![one(LastValue), one(Avg), rows(), one(VarPop)]),
        ("average of 1000 panes", 1, 1000, vec![one(Avg)]),
    ];
    for (name, slide_s, width_s, aggregates) in shapes.into_iter().filter(|(name, ..)| wanted(name)) {
        let factory = window(hop(slide_s, width_s), aggregates);
        let mut operator = factory.create();
        announce(operator.as_mut(), table, slots);
        let mut events = Generator::new(slots);
        drive(operator.as_mut(), table, &mut events, 1000, (width_s as usize + 5) * slots as usize);
        let start = CpuClock::start();
        let measured = 20 * slots as usize;
        drive(operator.as_mut(), table, &mut events, 1000, measured);
        println!(
            "{name:22} hop({slide_s:2}s, {width_s:4}s): {:7.1} ns/row, {:6} bytes/slot, {}",
            start.elapsed().as_nanos() as f64 / measured as f64,
            operator.memory_bytes() / slots as usize,
            factory.describe().per_slot.last().expect("a window has panes")
        );
    }
}

/// What a row costs that is compared with those before it, and what is remembered for it.
fn histories(table: &SlotTable, slots: u32) {
    let (input, parameters) = (timed(), schema("target"));
    let evaluation = Expressions::evaluation_schema(&input, &parameters, &[0]);
    let column = |index: usize| Arc::new(Column::new(evaluation.field(index).name(), index)) as Arc<dyn PhysicalExpr>;
    let zero = Arc::new(Literal::new(ScalarValue::Float64(Some(0.0))));
    let hysteresis = HistoryFunction::Hysteresis { value: column(0), low: zero, high: column(2) };
    for (name, function, keyed) in [
        ("lag(value)", HistoryFunction::Lag { value: column(0), rows: 1 }, false),
        ("lag(value, 10)", HistoryFunction::Lag { value: column(0), rows: 10 }, false),
        ("changed(value)", HistoryFunction::Changed { value: column(0) }, false),
        ("hysteresis(value, 0, $target)", hysteresis.clone(), false),
        ("the same by key", hysteresis, true),
    ]
    .into_iter()
    .filter(|(name, ..)| wanted(name))
    {
        let keys = if keyed { vec![NamedExpression::new("value", column(0))] } else { vec![] };
        let columns = vec![HistoryColumn { name: "history".into(), function }];
        let mut operator = History::new(&input, &parameters, vec![0], keys, columns).unwrap().create();
        // Every slot has its memory before the clock starts.
        drive(operator.as_mut(), table, &mut Generator::new(slots), 1000, slots as usize);
        let (ns_per_row, _) = run(operator.as_mut(), table, slots, 1024, 10 * slots as usize);
        let bytes = operator.memory_bytes() / slots as usize;
        println!("{name:31} batches of  1024: {ns_per_row:7.1} ns/row, {bytes} bytes/slot");
    }
}

/// `PATTERN (A B)`: where no row begins a match, where conditions look at the row alone, and where one looks at the
/// match.
fn patterns(table: &SlotTable, slots: u32) {
    let input = timed();
    let column = |index: usize| Arc::new(Column::new(input.field(index).name(), index)) as Arc<dyn PhysicalExpr>;
    let number = |value: f64| Arc::new(Literal::new(ScalarValue::Float64(Some(value)))) as Arc<dyn PhysicalExpr>;
    let above = |limit: f64| Some(binary(column(0), Sql::Gt, number(limit), &input).unwrap());
    let last = |variable: usize| Source::Value { value: 0, variable: Some(variable), navigation: Navigation::Last(0) };
    let two = Schema::new(["b", "a"].map(|name| Field::new(name, DataType::Float64, true)).to_vec());
    let later = binary(Arc::new(Column::new("b", 0)), Sql::Gt, Arc::new(Column::new("a", 1)), &two).unwrap();
    let later = MatchCondition { sources: vec![last(1), last(0)], parameters: vec![], expression: later };
    for (name, limit, match_condition) in [
        ("pattern that nobody begins", 1000.0, None),
        ("pattern over rows alone", -1.0, None),
        ("pattern with B.x > A.x", -1.0, Some(later)),
    ]
    .into_iter()
    .filter(|(name, ..)| wanted(name))
    {
        let variable = |name: &str, row_condition, match_condition| PatternVariable {
            name: name.into(),
            row_condition,
            match_condition,
        };
        let spec = PatternSpec {
            input: input.clone(),
            parameter_schema: schema("target"),
            parameters: vec![],
            keys: vec![],
            values: vec![column(1)],
            variables: vec![variable("a", above(limit), None), variable("b", above(limit), match_condition)],
            pattern: Pattern::Sequence(vec![Pattern::Variable(0), Pattern::Variable(1)]),
            results: vec![("a".into(), last(0)), ("b".into(), last(1))],
            skip: Skip::PastLastRow,
            within: Some(seconds(3600)),
            lateness_us: 0,
            idle_timeout_us: i64::MAX,
            arrival_time: false,
        };
        let mut operator = PatternMatch::new(spec).unwrap().create();
        announce(operator.as_mut(), table, slots);
        let (ns_per_row, emitted) = run(operator.as_mut(), table, slots, 1024, 10 * slots as usize);
        let bytes = operator.memory_bytes() / slots as usize;
        println!("{name:31} batches of  1024: {ns_per_row:7.1} ns/row, {emitted} matches, {bytes} bytes/slot");
    }
}

/// Events of all slots in a random order, one a second each.
struct Generator {
    order: Vec<Slot>,
    next: usize,
    round: i64,
}

impl Generator {
    fn new(slots: u32) -> Self {
        let mut order: Vec<Slot> = (0..slots).collect();
        // A shuffle by a linear congruential generator is random enough to defeat the cache.
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        for index in (1..order.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            order.swap(index, (state >> 33) as usize % (index + 1));
        }
        Self { order, next: 0, round: 0 }
    }

    fn batch(&mut self, rows: usize) -> Batch {
        let slots: Vec<Slot> = (0..rows)
            .map(|_| {
                if self.next == self.order.len() {
                    self.next = 0;
                    self.round += 1;
                }
                self.next += 1;
                self.order[self.next - 1]
            })
            .collect();
        let time_us = self.round * SECOND_US + self.next as i64 * SECOND_US / self.order.len() as i64;
        let times = vec![time_us; rows];
        let values: ArrayRef = Arc::new(Float64Array::from_iter_values(slots.iter().map(|slot| f64::from(slot % 100))));
        // Seconds that differ from row to row, so that a line can be fitted.
        let seconds: ArrayRef = Arc::new(Float64Array::from(vec![time_us as f64 / 1e6; rows]));
        let columns = RecordBatch::try_new(timed(), vec![values, seconds]).unwrap();
        Batch::new(slots.into(), times.clone().into(), times.into(), columns)
    }
}

/// Runs `total` rows through an operator; returns the rows that came out. Batches are made outside of the clock only
/// approximately: making one is a few nanoseconds a row.
fn drive(operator: &mut dyn Operator, table: &SlotTable, events: &mut Generator, rows: usize, total: usize) -> usize {
    let (mut output, mut refusals, mut emitted) = (Vec::new(), Refusals::new(0), 0);
    for _ in 0..total / rows {
        let batch = events.batch(rows);
        let now_us = batch.arrival_us[rows - 1];
        operator.process(Element::Batch(batch), &mut Context::new(now_us, table, &mut refusals, &mut output)).unwrap();
        emitted += output.drain(..).map(|batch| batch.rows()).sum::<usize>();
    }
    assert!(refusals.is_empty());
    emitted
}

fn run(operator: &mut dyn Operator, table: &SlotTable, slots: u32, rows: usize, total: usize) -> (f64, usize) {
    let mut events = Generator::new(slots);
    drive(operator, table, &mut events, rows, total / 10);
    let start = CpuClock::start();
    let emitted = drive(operator, table, &mut events, rows, total);
    (start.elapsed().as_nanos() as f64 / total as f64, emitted)
}

fn announce(operator: &mut dyn Operator, table: &SlotTable, slots: u32) {
    let (mut output, mut refusals) = (Vec::new(), Refusals::new(0));
    let all = (0..slots).collect();
    operator
        .process(Element::Control(Control::AddSlots(all)), &mut Context::new(0, table, &mut refusals, &mut output))
        .unwrap();
}

fn schema(name: &str) -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new(name, DataType::Float64, true)]))
}

/// The events: `value`, and `ts` in seconds, which is never null.
fn timed() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("value", DataType::Float64, true),
        Field::new("ts", DataType::Float64, false),
    ]))
}

fn table(slots: u32) -> SlotTable {
    let schema = schema("target");
    let mut table = SlotTable::new(schema.clone());
    let targets: ArrayRef = Arc::new(Float64Array::from_iter_values((0..slots).map(|slot| f64::from(slot % 77))));
    let queries: Vec<u64> = (0..u64::from(slots)).collect();
    table.add(&queries, &RecordBatch::try_new(schema, vec![targets]).unwrap());
    table
}

fn filter() -> Filter {
    let (input, parameters) = (timed(), schema("target"));
    let evaluation = Expressions::evaluation_schema(&input, &parameters, &[0]);
    let column = |index: usize| Arc::new(Column::new(evaluation.field(index).name(), index)) as Arc<dyn PhysicalExpr>;
    let condition = binary(column(0), Sql::Gt, column(2), &evaluation).unwrap();
    Filter::new(&input, &parameters, vec![0], condition).unwrap()
}

fn seconds(seconds: i64) -> Arc<dyn PhysicalExpr> {
    Arc::new(Literal::new(ScalarValue::new_interval_mdn(0, 0, seconds * 1_000_000_000)))
}

fn tumble(width_s: i64) -> WindowSpec {
    WindowSpec::Tumble { width: seconds(width_s) }
}

fn hop(slide_s: i64, width_s: i64) -> WindowSpec {
    WindowSpec::Hop { slide: seconds(slide_s), width: seconds(width_s) }
}

fn average(spec: WindowSpec) -> WindowAggregate {
    let average = AggregateSpec {
        name: "average".into(),
        function: AggregateFunction::Avg,
        arguments: vec![Arc::new(Column::new("value", 0))],
        filter: None,
    };
    window(spec, vec![average])
}

fn window(window: WindowSpec, aggregates: Vec<AggregateSpec>) -> WindowAggregate {
    WindowAggregate::new(WindowAggregateSpec {
        input: timed(),
        parameter_schema: schema("target"),
        parameters: vec![],
        window,
        keys: vec![],
        aggregates,
        lateness_us: 0,
        idle_timeout_us: 30 * SECOND_US,
        arrival_time: false,
        conditions: vec![],
        over_windows: false,
        tells_clocks: false,
    })
    .unwrap()
}

/// Time that this thread has spent on a processor: what others do on the machine does not count, except for the cache.
/// Linux says so in a file; elsewhere it is the time on the wall.
struct CpuClock {
    wall: Instant,
    cpu: Option<Duration>,
}

impl CpuClock {
    fn start() -> Self {
        Self { wall: Instant::now(), cpu: Self::read() }
    }

    fn read() -> Option<Duration> {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    }

    fn elapsed(&self) -> Duration {
        match (self.cpu, Self::read()) {
            (Some(start), Some(now)) => now - start,
            _ => self.wall.elapsed(),
        }
    }
}
