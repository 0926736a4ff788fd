//! What the tests of windows share: an input, an application over it, and a hand that steps the operator.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Float64Array, Int64Array, IntervalMonthDayNanoArray, RecordBatch, StringArray,
};
use arrow::datatypes::{
    DataType, Field, Float64Type, Int64Type, IntervalMonthDayNano, IntervalUnit, Schema, SchemaRef, UInt64Type,
};
use datafusion_common::ScalarValue;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{Column, Literal, lit};
use rivulet_dataflow::{Batch, Context, Control, Element, Operator, OperatorFactory, Refusals, Slot, SlotTable};
use rivulet_operators::{
    AggregateFunction, AggregateSpec, NamedExpression, WindowAggregate, WindowAggregateSpec, WindowSpec,
};

/// A row of the test input: `v DOUBLE, n BIGINT, s TEXT, key BIGINT`.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) slot: Slot,
    pub(crate) time: i64,
    pub(crate) arrival: i64,
    pub(crate) v: Option<f64>,
    pub(crate) n: Option<i64>,
    pub(crate) s: Option<&'static str>,
    pub(crate) key: Option<i64>,
}

pub(crate) fn row(slot: Slot, time: i64, v: f64) -> Row {
    Row { slot, time, arrival: time, v: Some(v), n: Some(v as i64), s: None, key: None }
}

pub(crate) fn input() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("v", DataType::Float64, true),
        Field::new("n", DataType::Int64, true),
        Field::new("s", DataType::Utf8, true),
        Field::new("key", DataType::Int64, true),
    ]))
}

pub(crate) fn column(index: usize) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(input().field(index).name(), index))
}

pub(crate) fn parameter(index: usize) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(parameters().field(index).name(), index))
}

/// The parameters: `width INTERVAL, slide INTERVAL, rows BIGINT, slide_rows BIGINT`.
pub(crate) fn parameters() -> SchemaRef {
    let interval = DataType::Interval(IntervalUnit::MonthDayNano);
    Arc::new(Schema::new(vec![
        Field::new("width", interval.clone(), true),
        Field::new("slide", interval, true),
        Field::new("rows", DataType::Int64, true),
        Field::new("slide_rows", DataType::Int64, true),
    ]))
}

/// A table of queries with these widths and slides, in microseconds and in rows.
pub(crate) fn table(lengths: &[(i64, i64)]) -> SlotTable {
    let interval = |us: i64| IntervalMonthDayNano { months: 0, days: 0, nanoseconds: us * 1000 };
    let intervals = |values: Vec<i64>| -> ArrayRef {
        Arc::new(IntervalMonthDayNanoArray::from(values.into_iter().map(interval).collect::<Vec<_>>()))
    };
    let (widths, slides): (Vec<i64>, Vec<i64>) = lengths.iter().copied().unzip();
    let columns: Vec<ArrayRef> = vec![
        intervals(widths.clone()),
        intervals(slides.clone()),
        Arc::new(Int64Array::from(widths)),
        Arc::new(Int64Array::from(slides)),
    ];
    let mut table = SlotTable::new(parameters());
    let queries: Vec<u64> = (0..lengths.len() as u64).map(|query| 1000 + query).collect();
    table.add(&queries, &RecordBatch::try_new(parameters(), columns).unwrap());
    table
}

pub(crate) fn tumble() -> WindowSpec {
    WindowSpec::Tumble { width: parameter(0) }
}

pub(crate) fn hop() -> WindowSpec {
    WindowSpec::Hop { slide: parameter(1), width: parameter(0) }
}

pub(crate) fn cumulate() -> WindowSpec {
    WindowSpec::Cumulate { step: parameter(1), width: parameter(0) }
}

/// The windows, so many microseconds later.
pub(crate) fn shifted(window: WindowSpec, offset_us: i64) -> WindowSpec {
    let offset = ScalarValue::new_interval_mdn(0, 0, offset_us * 1000);
    WindowSpec::Shifted { window: Box::new(window), offset: Arc::new(Literal::new(offset)) }
}

pub(crate) fn session() -> WindowSpec {
    WindowSpec::Session { gap: parameter(0) }
}

pub(crate) fn count(slide: bool) -> WindowSpec {
    WindowSpec::Count { rows: parameter(2), slide_rows: slide.then(|| parameter(3)) }
}

pub(crate) fn aggregate(function: AggregateFunction, arguments: Vec<Arc<dyn PhysicalExpr>>) -> AggregateSpec {
    AggregateSpec { name: function.name().replace(' ', "_"), function, arguments, filter: None }
}

pub(crate) fn fraction(p: f64) -> Arc<dyn PhysicalExpr> {
    Arc::new(Literal::new(ScalarValue::Float64(Some(p))))
}

pub(crate) fn text(text: &str) -> Arc<dyn PhysicalExpr> {
    Arc::new(Literal::new(ScalarValue::from(text)))
}

/// `n > 0`.
pub(crate) fn positive() -> Arc<dyn PhysicalExpr> {
    datafusion_physical_expr::expressions::binary(column(1), datafusion_expr::Operator::Gt, lit(0i64), &input())
        .unwrap()
}

/// `v < 0`.
pub(crate) fn cold() -> Arc<dyn PhysicalExpr> {
    datafusion_physical_expr::expressions::binary(column(0), datafusion_expr::Operator::Lt, lit(0.0), &input()).unwrap()
}

/// A specification without lateness and idle timeout.
pub(crate) fn spec(window: WindowSpec, keyed: bool, aggregates: Vec<AggregateSpec>) -> WindowAggregateSpec {
    WindowAggregateSpec {
        input: input(),
        parameter_schema: parameters(),
        parameters: vec![],
        window,
        keys: if keyed { vec![NamedExpression::new("key", column(3))] } else { vec![] },
        aggregates,
        lateness_us: 0,
        idle_timeout_us: i64::MAX,
        arrival_time: false,
        conditions: vec![],
        over_windows: false,
        tells_clocks: false,
    }
}

pub(crate) fn batch(rows: &[Row]) -> Batch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|row| row.v).collect::<Float64Array>()),
        Arc::new(rows.iter().map(|row| row.n).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|row| row.s).collect::<StringArray>()),
        Arc::new(rows.iter().map(|row| row.key).collect::<Int64Array>()),
    ];
    Batch::new(
        rows.iter().map(|row| row.slot).collect(),
        rows.iter().map(|row| row.time).collect(),
        rows.iter().map(|row| row.arrival).collect(),
        RecordBatch::try_new(input(), columns).unwrap(),
    )
}

/// A value of an output row that can be compared bit by bit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Value {
    Null,
    Integer(i64),
    /// The bits of a floating point number.
    Float(u64),
    Text(String),
}

impl Value {
    pub(crate) fn float(value: f64) -> Self {
        Self::Float(if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() })
    }
}

/// A closed window as it came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) slot: Slot,
    pub(crate) key: Option<i64>,
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) values: Vec<Value>,
}

/// An operator, its queries, and what it has put out.
pub(crate) struct Hand {
    pub(crate) factory: WindowAggregate,
    pub(crate) operator: Box<dyn Operator>,
    pub(crate) table: SlotTable,
    pub(crate) keyed: bool,
    pub(crate) windows: Vec<Window>,
    pub(crate) arrivals: Vec<i64>,
    pub(crate) refusals: Refusals,
}

impl Hand {
    pub(crate) fn new(spec: WindowAggregateSpec, lengths: &[(i64, i64)]) -> Self {
        let keyed = !spec.keys.is_empty();
        let factory = WindowAggregate::new(spec).unwrap();
        let operator = factory.create();
        let mut hand = Self {
            factory,
            operator,
            table: table(lengths),
            keyed,
            windows: Vec::new(),
            arrivals: Vec::new(),
            refusals: Refusals::new(usize::MAX),
        };
        let slots = hand.table.slots().collect();
        hand.step(0, |operator, context| operator.process(Element::Control(Control::AddSlots(slots)), context));
        hand
    }

    pub(crate) fn rows(&mut self, rows: &[Row]) {
        let now = rows.last().map_or(0, |row| row.arrival);
        let batch = batch(rows);
        self.step(now, |operator, context| operator.process(Element::Batch(batch), context));
    }

    pub(crate) fn element(&mut self, element: Element) {
        self.step(0, |operator, context| operator.process(element, context));
    }

    /// Ticks as a host does: only if the deadline is reached.
    pub(crate) fn tick(&mut self, now: i64) {
        if self.operator.deadline_us().is_some_and(|deadline| deadline <= now) {
            self.step(now, |operator, context| operator.tick(context));
        }
    }

    pub(crate) fn refused(&self, reason: rivulet_dataflow::Reason) -> u64 {
        self.refusals.counted(reason)
    }

    /// Start and end of each window so far.
    pub(crate) fn bounds(&self) -> Vec<(i64, i64)> {
        self.windows.iter().map(|window| (window.start, window.end)).collect()
    }

    fn step(
        &mut self,
        now: i64,
        step: impl FnOnce(&mut dyn Operator, &mut Context<'_>) -> Result<(), rivulet_dataflow::OperatorError>,
    ) {
        let mut output = Vec::new();
        step(self.operator.as_mut(), &mut Context::new(now, &self.table, &mut self.refusals, &mut output)).unwrap();
        for batch in output {
            assert_eq!(batch.columns.schema_ref(), self.factory.output_schema());
            self.read(&batch);
        }
    }

    fn read(&mut self, batch: &Batch) {
        let keys = usize::from(self.keyed);
        let time = |index: usize, row: usize| {
            batch.column(index).as_primitive::<arrow::datatypes::TimestampMicrosecondType>().value(row)
        };
        for row in 0..batch.rows() {
            let key = batch.columns.columns()[..keys]
                .first()
                .filter(|key| key.is_valid(row))
                .map(|key| key.as_primitive::<Int64Type>().value(row));
            let values = batch.columns.columns()[keys + 2..].iter().map(|column| value(column.as_ref(), row)).collect();
            let (start, end) = (time(keys, row), time(keys + 1, row));
            self.windows.push(Window { slot: batch.slots[row], key, start, end, values });
            self.arrivals.push(batch.arrival_us[row]);
        }
    }
}

pub(crate) fn value(column: &dyn Array, row: usize) -> Value {
    if column.is_null(row) {
        return Value::Null;
    }
    match column.data_type() {
        DataType::Float64 => Value::float(column.as_primitive::<Float64Type>().value(row)),
        DataType::Int64 => Value::Integer(column.as_primitive::<Int64Type>().value(row)),
        DataType::UInt64 => Value::Integer(column.as_primitive::<UInt64Type>().value(row) as i64),
        DataType::Boolean => Value::Integer(column.as_boolean().value(row).into()),
        DataType::Utf8 => Value::Text(column.as_string::<i32>().value(row).to_owned()),
        other => panic!("no test has values of type {other}"),
    }
}
