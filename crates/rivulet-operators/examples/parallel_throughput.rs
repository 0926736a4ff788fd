//! What keyed operators of big queries do on one core: rows a second of processor time, the operator alone.
//!
//! Run with `cargo run --release -p rivulet -p rivulet-operators --example parallel_throughput [name]`; with a part of
//! a name only those rows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion_physical_expr::expressions::{Column, binary, lit};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet_dataflow::{Batch, Chain, Context, Element, Operator, OperatorFactory, Refusals, SlotTable, StateFrame};
use rivulet_operators::parallel::{
    Expiry, KeyedAggregate, KeyedAggregateSpec, KeyedJoin, KeyedJoinKind, KeyedJoinSpec, KeyedOver, KeyedOverSpec,
    KeyedWindow, KeyedWindowKind, KeyedWindowSpec, OverFrame, Phase, Ranking, SortKey, TopN, TopNSpec,
};
use rivulet_operators::{AggregateFunction as F, AggregateSpec};

const BATCH_ROWS: usize = 4096;
const SECOND_US: i64 = 1_000_000;

/// `key BIGINT, text TEXT, v BIGINT, ts TIMESTAMP`.
fn input() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("key", DataType::Int64, true),
        Field::new("text", DataType::Utf8, true),
        Field::new("v", DataType::Int64, true),
        Field::new("ts", DataType::Timestamp(TimeUnit::Microsecond, None), true),
    ]))
}

/// Batches of rows with so many keys, `rate` of them in each second of event time.
fn batches(rows: usize, keys: u64, rate: i64) -> Vec<Batch> {
    let mut random = StdRng::seed_from_u64(7);
    (0..rows / BATCH_ROWS)
        .map(|number| {
            let keys: Vec<i64> = (0..BATCH_ROWS).map(|_| random.random_range(0..keys) as i64).collect();
            let times: Vec<i64> =
                (0..BATCH_ROWS).map(|row| (number * BATCH_ROWS + row) as i64 * SECOND_US / rate).collect();
            let address = |key: &i64| {
                let bits = (*key as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                format!("{}.{}.{}.{}", bits >> 56, (bits >> 48) & 255, (bits >> 40) & 255, key & 255)
            };
            let columns: Vec<ArrayRef> = vec![
                Arc::new(Int64Array::from(keys.clone())),
                Arc::new(keys.iter().map(|key| Some(address(key))).collect::<StringArray>()),
                Arc::new(Int64Array::from_iter_values((0..BATCH_ROWS).map(|_| random.random_range(0..10_000)))),
                Arc::new(TimestampMicrosecondArray::from(times.clone())),
            ];
            let columns = RecordBatch::try_new(input(), columns).unwrap();
            Batch::new(vec![0; BATCH_ROWS].into(), times.clone().into(), times.into(), columns)
        })
        .collect()
}

fn column(index: usize) -> Arc<dyn datafusion_physical_expr::PhysicalExpr> {
    Arc::new(Column::new(input().field(index).name(), index))
}

fn of(function: F, argument: Option<usize>) -> AggregateSpec {
    AggregateSpec { name: "a".into(), function, arguments: argument.map(column).into_iter().collect(), filter: None }
}

fn window(window: KeyedWindowKind, keys: &[usize], aggregates: Vec<AggregateSpec>) -> Box<dyn OperatorFactory> {
    let spec = KeyedWindowSpec {
        input: input(),
        keys: keys.to_vec(),
        window,
        aggregates,
        phase: Phase::Whole,
        input_retracts: false,
        state_ttl_us: None,
    };
    Box::new(KeyedWindow::new(spec).unwrap())
}

fn tumble(seconds: i64) -> KeyedWindowKind {
    KeyedWindowKind::Tumble { width_us: seconds * SECOND_US, offset_us: 0 }
}

fn hop(slide_s: i64, width_s: i64) -> KeyedWindowKind {
    KeyedWindowKind::Hop { slide_us: slide_s * SECOND_US, width_us: width_s * SECOND_US, offset_us: 0 }
}

/// Runs the batches through the operator, each followed by its watermark, from input to input in turn.
fn measure(name: &str, factory: &dyn OperatorFactory, batches: &[Batch], inputs: usize) {
    if std::env::args().nth(1).is_some_and(|wanted| !name.contains(&wanted)) {
        return;
    }
    let slots = SlotTable::new(Arc::new(Schema::empty()));
    let mut refusals = Refusals::new(0);
    let mut operator: Box<dyn Operator> = factory.create();
    let (mut output, mut emitted, mut memory) = (Vec::new(), 0, 0);
    let start = CpuClock::start();
    for (turn, batch) in batches.iter().enumerate() {
        let watermark_us = batch.event_time_us[0];
        let mut context = Context::new(watermark_us, &slots, &mut refusals, &mut output);
        operator.process_input(turn % inputs, Element::Batch(batch.clone()), &mut context).unwrap();
        operator.process(Element::Watermark(watermark_us), &mut context).unwrap();
        emitted += output.drain(..).map(|batch: Batch| batch.rows()).sum::<usize>();
        if turn == batches.len() - 1 {
            memory = operator.memory_bytes();
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let rows = batches.len() * BATCH_ROWS;
    println!(
        "{name:44} {:6.2} M rows/s, {:.3} rows out a row, {:7.1} MB at the end",
        rows as f64 / seconds / 1e6,
        emitted as f64 / rows as f64,
        memory as f64 / 1e6
    );
    // Only what is large tells anything.
    if memory > 1 << 24 {
        let chain = Chain::new(vec![operator]);
        export(&chain);
        save(&chain, true);
        save(&chain, false);
    }
}

/// What it costs to have all state as a checkpoint has it until it is written: in pieces, as bytes. Those that are as
/// they were written are not kept.
fn save(chain: &Chain, has_changed: bool) {
    /// As the server cuts it.
    const ROWS_OF_ONE_PIECE: usize = 4_096;
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let before = status_mb("VmRSS:");
    let start = CpuClock::start();
    let (mut pieces, mut kept): (usize, Vec<Vec<u8>>) = (0, Vec::new());
    let mut into = |_, _, frame: StateFrame| {
        let mut bytes = frame.to_bytes()?;
        bytes.shrink_to_fit();
        pieces += 1;
        kept.extend(has_changed.then_some(bytes));
        Ok(())
    };
    chain.export_parts(ROWS_OF_ONE_PIECE, &mut into).unwrap();
    println!(
        "{:44} {:6.0} ms for {pieces} pieces, {:.1} MB of them kept, at most {:.1} MB more in memory",
        if has_changed { "    checkpoint" } else { "    checkpoint of what has not changed" },
        start.elapsed().as_secs_f64() * 1e3,
        kept.iter().map(Vec::len).sum::<usize>() as f64 / 1e6,
        status_mb("VmHWM:") - before
    );
}

/// What it costs to export all state key group by key group.
fn export(chain: &Chain) {
    // Has the system forget the peak until now.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let before = status_mb("VmRSS:");
    let (mut frames, mut largest) = (0, 0);
    let start = CpuClock::start();
    let mut into = |_, _, frame: StateFrame| {
        frames += 1;
        largest = largest.max(frame.rows.get_array_memory_size());
        Ok(())
    };
    chain.export_parts(0, &mut into).unwrap();
    println!(
        "{:44} {:6.0} ms for {frames} key groups, the largest {:.1} MB, at most {:.1} MB more in memory",
        "    export",
        start.elapsed().as_secs_f64() * 1e3,
        largest as f64 / 1e6,
        status_mb("VmHWM:") - before
    );
}

/// A figure of this process in megabytes, where the system tells it.
fn status_mb(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).map_or(f64::NAN, |kib: f64| kib / 1e3)
}

/// The processor time of this thread, where the system tells it, else the time on the wall.
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

fn main() {
    let thousands = batches(8_000_000, 5_000, 1_000_000);
    let million = batches(8_000_000, 1_000_000, 1_000_000);
    let count = || vec![of(F::Count, None)];
    measure("tumble 1 s, count by BIGINT, 5 K keys", &*window(tumble(1), &[0], count()), &thousands, 1);
    measure("tumble 30 s, count by BIGINT, 1 M keys", &*window(tumble(30), &[0], count()), &million, 1);
    measure("tumble 1 s, count by text, 5 K keys", &*window(tumble(1), &[1], count()), &thousands, 1);
    measure("tumble 30 s, count by text, 1 M keys", &*window(tumble(30), &[1], count()), &million, 1);
    let first_last = || vec![of(F::Count, None), of(F::Min, Some(3)), of(F::Max, Some(3))];
    measure("tumble 30 s, count, min, max, text, 1 M keys", &*window(tumble(30), &[1], first_last()), &million, 1);
    measure("tumble 1 s, max without keys", &*window(tumble(1), &[], vec![of(F::Max, Some(2))]), &thousands, 1);
    measure("tumble 1 s, count by two BIGINT, 1 M keys", &*window(tumble(1), &[0, 2], count()), &thousands, 1);
    let slow = batches(8_000_000, 5_000, 100_000);
    measure("hop 1 s / 60 s, count by BIGINT, 5 K keys", &*window(hop(1, 60), &[0], count()), &slow, 1);
    measure("hop 1 s / 60 s, max by BIGINT, 5 K keys", &*window(hop(1, 60), &[0], vec![of(F::Max, Some(2))]), &slow, 1);
    measure("hop 2 s / 10 s, count by BIGINT, 5 K keys", &*window(hop(2, 10), &[0], count()), &slow, 1);
    let session = KeyedWindowKind::Session { gap_us: SECOND_US / 100 };
    measure("session 10 ms, count by BIGINT, 5 K keys", &*window(session, &[0], count()), &thousands, 1);

    let aggregate = |keys: &[usize], aggregates| {
        let spec = KeyedAggregateSpec {
            input: input(),
            keys: keys.to_vec(),
            aggregates,
            input_retracts: false,
            state_ttl_us: None,
        };
        KeyedAggregate::new(spec).unwrap()
    };
    measure(
        "aggregate, count and sum by BIGINT, 5 K keys",
        &aggregate(&[0], vec![of(F::Count, None), of(F::Sum, Some(2))]),
        &thousands,
        1,
    );
    let filtered = |function, argument, bound: i64| AggregateSpec {
        filter: Some(binary(column(2), datafusion_expr::Operator::Lt, lit(bound), &input()).unwrap()),
        ..of(function, Some(argument))
    };
    let distinct: Vec<AggregateSpec> = [0, 2]
        .into_iter()
        .flat_map(|argument| {
            [100, 1000, 5000]
                .map(|bound| filtered(F::CountDistinct, argument, bound))
                .into_iter()
                .chain([of(F::CountDistinct, Some(argument))])
        })
        .collect();
    measure("aggregate, 8 distinct counts without keys", &aggregate(&[], distinct), &thousands, 1);

    let expiry = Some(Expiry { column: 3, after_us: SECOND_US });
    let join = KeyedJoin::new(KeyedJoinSpec {
        left: input(),
        right: input(),
        keys: vec![(0, 0)],
        kind: KeyedJoinKind::Inner,
        residual: None,
        expiry: [expiry, expiry],
        state_ttl_us: None,
        output: vec![0, 2, 6],
    })
    .unwrap();
    measure("join BIGINT, 1 s of 1 M/s kept, 1 M keys", &join, &million, 2);

    let order = vec![SortKey { column: 2, descending: true, nulls_first: false }];
    let spec = TopNSpec {
        input: input(),
        partition: vec![0],
        order,
        ranking: Ranking::RowNumber,
        limit: 10,
        with_rank: false,
        input_retracts: false,
        state_ttl_us: None,
    };
    measure("first 10 by BIGINT, 5 K keys", &TopN::new(spec).unwrap(), &thousands, 1);
    let order = vec![SortKey { column: 3, descending: true, nulls_first: false }];
    let spec = TopNSpec {
        input: input(),
        partition: vec![0],
        order,
        ranking: Ranking::RowNumber,
        limit: 1,
        with_rank: false,
        input_retracts: false,
        state_ttl_us: None,
    };
    measure("last row by BIGINT, 1 M keys", &TopN::new(spec).unwrap(), &million, 1);
    let order = vec![SortKey { column: 3, descending: false, nulls_first: false }];
    let frame = OverFrame::Rows { preceding: Some(10) };
    let aggregates = vec![of(F::Avg, Some(2))];
    let spec = KeyedOverSpec {
        input: input(),
        partition: vec![0],
        order,
        frame,
        aggregates,
        lags: vec![],
        input_retracts: false,
        state_ttl_us: None,
    };
    measure("avg over 10 rows by BIGINT, 5 K keys", &KeyedOver::new(spec).unwrap(), &thousands, 1);
}
