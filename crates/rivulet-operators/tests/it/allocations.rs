//! The event path allocates by batch, not by event: counted by an allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{Column, lit};
use rivulet_dataflow::{Batch, Context, Element, OperatorFactory, Refusals, Slot, SlotTable};
use rivulet_operators::{History, HistoryColumn, HistoryFunction, NamedExpression};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A row for each of `rows` slots, with values that are others each time.
fn batch(schema: &Arc<Schema>, rows: usize, round: usize) -> Batch {
    let numbers: ArrayRef = Arc::new(Float64Array::from_iter_values((0..rows).map(|row| ((row + round) % 10) as f64)));
    let texts = (0..rows).map(|row| format!("text number {}", (row + round) % 10));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows).map(|row| row as i64 % 3)));
    let times: Vec<i64> = vec![round as i64; rows];
    let columns = RecordBatch::try_new(schema.clone(), vec![numbers, texts, keys]).unwrap();
    Batch::new((0..rows as Slot).collect(), times.clone().into(), times.into(), columns)
}

#[test]
fn history_functions_allocate_by_batch() {
    const ROWS: usize = 4096;
    let input = Arc::new(Schema::new(vec![
        Field::new("number", DataType::Float64, true),
        Field::new("text", DataType::Utf8, true),
        Field::new("key", DataType::Int64, true),
    ]));
    let column = |index: usize| Arc::new(Column::new(input.field(index).name(), index)) as Arc<dyn PhysicalExpr>;
    let functions = vec![
        HistoryFunction::Lag { value: column(0), rows: 3 },
        HistoryFunction::Lag { value: column(1), rows: 1 },
        HistoryFunction::Changed { value: column(1) },
        HistoryFunction::Hysteresis { value: column(0), low: lit(2.0), high: lit(7.0) },
    ];
    let columns: Vec<_> =
        functions.into_iter().map(|function| HistoryColumn { name: function.to_string(), function }).collect();
    let mut table = SlotTable::new(Arc::new(Schema::empty()));
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(ROWS));
    let nothing = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap();
    table.add(&(0..ROWS as u64).collect::<Vec<_>>(), &nothing);
    for keys in [vec![], vec![NamedExpression::new("key", column(2))]] {
        let history = History::new(&input, &Schema::empty(), vec![], keys, columns.clone()).unwrap();
        let mut operator = history.create();
        let mut counted = 0;
        for round in 0..5 {
            let batch = batch(&input, ROWS, round);
            let (mut refusals, mut output) = (Refusals::new(0), Vec::with_capacity(1));
            let before = ALLOCATIONS.with(Cell::get);
            operator.process(Element::Batch(batch), &mut Context::new(0, &table, &mut refusals, &mut output)).unwrap();
            counted = ALLOCATIONS.with(Cell::get) - before;
            assert_eq!(output[0].rows(), ROWS);
        }
        assert!(counted < 150, "{counted} allocations for {ROWS} rows");
    }
}
