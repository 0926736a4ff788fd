//! Lookups against a naive model, with random tables and events, cut into batches at random.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type, Schema, SchemaRef};
use datafusion_expr::Operator as Sql;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{Column, binary};
use proptest::prelude::*;
use rivulet_dataflow::{Batch, Context, Element, OperatorFactory, Reason, Refusals, Slot, SlotTable};
use rivulet_operators::{
    Find, Lookup, LookupResults, LookupSpec, NamedExpression, OrderKey, Table, TableAggregate, TableFunction,
};

/// An event: its slot, `id` and `x`.
type Event = (Slot, Option<i64>, f64);
/// A row of the table: `key`, `name` and `y`.
type Row = (Option<i64>, String, Option<f64>);
/// A row that comes out: the slot and `x` of the event, and what was found.
type Found = (Slot, f64, Option<String>);

fn schema(fields: &[(&str, DataType)]) -> SchemaRef {
    Arc::new(Schema::new(fields.iter().map(|(name, kind)| Field::new(*name, kind.clone(), true)).collect::<Vec<_>>()))
}

fn input() -> SchemaRef {
    schema(&[("id", DataType::Int64), ("x", DataType::Float64)])
}

fn parameters() -> SchemaRef {
    schema(&[("least", DataType::Float64), ("most", DataType::Int64)])
}

fn table(rows: &[Row]) -> Arc<Table> {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>()),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.1))),
        Arc::new(rows.iter().map(|row| row.2).collect::<Float64Array>()),
    ];
    let schema = schema(&[("key", DataType::Int64), ("name", DataType::Utf8), ("y", DataType::Float64)]);
    Arc::new(Table::new("t", RecordBatch::try_new(schema, columns).unwrap()))
}

fn queries(values: &[(f64, Option<i64>)]) -> SlotTable {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(values.iter().map(|one| Some(one.0)).collect::<Float64Array>()),
        Arc::new(values.iter().map(|one| one.1).collect::<Int64Array>()),
    ];
    let mut table = SlotTable::new(parameters());
    let ids: Vec<u64> = (0..values.len() as u64).collect();
    table.add(&ids, &RecordBatch::try_new(parameters(), columns).unwrap());
    table
}

/// The columns of pairs: id, x, key, name, y, $least, $most.
fn column(index: usize) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(["id", "x", "key", "name", "y", "$least", "$most"][index], index))
}

fn lookup(table: &Arc<Table>, find: Find, results: LookupResults) -> Lookup {
    let spec = LookupSpec {
        input: input(),
        parameter_schema: parameters(),
        parameters: vec![0, 1],
        table: table.clone(),
        find,
        results,
    };
    Lookup::new(spec).unwrap()
}

/// `WHERE y + x > $least ORDER BY y DESC NULLS LAST LIMIT $most`
fn scan(table: &Arc<Table>) -> Find {
    let pairs = Lookup::evaluation_schema(&input(), table.schema(), &parameters(), &[0, 1]);
    let sum = binary(column(4), Sql::Plus, column(1), &pairs).unwrap();
    Find::Scan {
        nearby: None,
        condition: Some(binary(sum, Sql::Gt, column(5), &pairs).unwrap()),
        order: vec![OrderKey { expression: column(4), descending: true, nulls_first: false }],
        limit: Some(column(6)),
    }
}

fn key(keeps_unmatched: bool) -> Find {
    Find::Key { column: 0, value: column(0), keeps_unmatched }
}

fn names() -> LookupResults {
    LookupResults::Rows(vec![NamedExpression::new("name", column(3))])
}

/// Runs the events in batches of these sizes, around and around.
fn run(lookup: &Lookup, queries: &SlotTable, events: &[Event], cuts: &[usize]) -> Vec<Batch> {
    let (mut operator, mut output, mut refusals) = (lookup.create(), Vec::new(), Refusals::new(0));
    let (mut rest, mut cuts) = (events, cuts.iter().cycle());
    while !rest.is_empty() {
        let (now, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(now.iter().map(|event| event.1).collect::<Int64Array>()),
            Arc::new(now.iter().map(|event| Some(event.2)).collect::<Float64Array>()),
        ];
        let times: Vec<i64> = now.iter().map(|_| 0).collect();
        let slots: Vec<Slot> = now.iter().map(|event| event.0).collect();
        let columns = RecordBatch::try_new(input(), columns).unwrap();
        let batch = Batch::new(slots.into(), times.clone().into(), times.into(), columns);
        let mut context = Context::new(0, queries, &mut refusals, &mut output);
        operator.process(Element::Batch(batch), &mut context).unwrap();
        rest = later;
    }
    assert_eq!(refusals.counted(Reason::Expression), 0);
    output
}

fn found(batches: &[Batch]) -> Vec<Found> {
    let of = |batch: &Batch| {
        let (x, names) = (batch.column(1).as_primitive::<Float64Type>(), batch.column(2).as_string::<i32>());
        (0..batch.rows())
            .map(|row| (batch.slots[row], x.value(row), names.is_valid(row).then(|| names.value(row).to_owned())))
            .collect::<Vec<Found>>()
    };
    batches.iter().flat_map(of).collect()
}

/// The rows that an event finds by the scan, written down row by row.
fn naive_scan<'a>(rows: &'a [Row], event: &Event, (least, most): (f64, Option<i64>)) -> Vec<&'a Row> {
    let mut passed: Vec<&Row> = rows.iter().filter(|row| row.2.is_some_and(|y| y + event.2 > least)).collect();
    passed.sort_by(|one, other| other.2.partial_cmp(&one.2).unwrap());
    passed.truncate(most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(0)));
    passed
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let row = (prop::option::of(0_i64..6), "[a-c]{0,2}", prop::option::of((0_i32..8).prop_map(f64::from)));
    prop::collection::vec(row, 0..40)
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec((0_u32..3, prop::option::of(0_i64..7), (-4_i32..4).prop_map(f64::from)), 1..60)
}

proptest! {
    #[test]
    fn a_lookup_finds_what_a_naive_one_finds(
        rows in rows(),
        events in events(),
        values in prop::collection::vec(((0_i32..8).prop_map(f64::from), prop::option::of(-1_i64..5)), 3),
        cuts in prop::collection::vec(1_usize..20, 1..5),
    ) {
        let (table, queries) = (table(&rows), queries(&values));

        let by_scan = run(&lookup(&table, scan(&table), names()), &queries, &events, &cuts);
        let expected: Vec<Found> = events
            .iter()
            .flat_map(|event| {
                let passed = naive_scan(&rows, event, values[event.0 as usize]);
                passed.into_iter().map(|row| (event.0, event.2, Some(row.1.clone())))
            })
            .collect();
        prop_assert_eq!(found(&by_scan), expected);

        for keeps_unmatched in [false, true] {
            let by_key = run(&lookup(&table, key(keeps_unmatched), names()), &queries, &events, &cuts);
            let mut expected: Vec<Found> = Vec::new();
            for event in &events {
                let before = expected.len();
                let same = rows.iter().filter(|row| row.0.is_some() && row.0 == event.1);
                expected.extend(same.map(|row| (event.0, event.2, Some(row.1.clone()))));
                if keeps_unmatched && expected.len() == before {
                    expected.push((event.0, event.2, None));
                }
            }
            prop_assert_eq!(found(&by_key), expected);
        }

        let aggregate = |name: &str, function, argument| TableAggregate { name: name.into(), function, argument };
        let aggregates = LookupResults::Aggregates(vec![
            aggregate("names", TableFunction::StringAgg { separator: ",".into() }, Some(column(3))),
            aggregate("n", TableFunction::Count, None),
            aggregate("greatest", TableFunction::Max, Some(column(4))),
        ]);
        let batches = run(&lookup(&table, scan(&table), aggregates), &queries, &events, &cuts);
        let all: Vec<Found> = found(&batches);
        prop_assert_eq!(all.len(), events.len());
        let counts: Vec<i64> =
            batches.iter().flat_map(|batch| batch.column(3).as_primitive::<Int64Type>().values().to_vec()).collect();
        let column = |batch: &Batch| batch.column(4).as_primitive::<Float64Type>().iter().collect::<Vec<_>>();
        let greatest: Vec<Option<f64>> = batches.iter().flat_map(column).collect();
        for (index, event) in events.iter().enumerate() {
            let passed = naive_scan(&rows, event, values[event.0 as usize]);
            let joined: Vec<&str> = passed.iter().map(|row| row.1.as_str()).collect();
            let joined = (!joined.is_empty()).then(|| joined.join(","));
            prop_assert_eq!(&all[index], &(event.0, event.2, joined));
            prop_assert_eq!(counts[index], passed.len() as i64);
            prop_assert_eq!(greatest[index], passed.first().and_then(|row| row.2));
        }
    }
}

/// Tables larger than what is tried in one piece, and events that find more than they may.
#[test]
fn large_tables_are_tried_piece_by_piece_and_too_many_rows_are_refused() {
    let rows: Vec<Row> = (0..70_000).map(|number| (Some(1), number.to_string(), Some(f64::from(number)))).collect();
    let (table, queries) = (table(&rows), queries(&[(69_990.0, None), (0.0, Some(2))]));
    let events = [(0, Some(1), 0.0), (1, Some(2), 0.0)];
    let batches = run(&lookup(&table, scan(&table), names()), &queries, &events, &[2]);
    let expected = (69_991..70_000).rev().map(|number| (0, 0.0, Some(number.to_string())));
    let expected: Vec<Found> =
        expected.chain([69_999, 69_998].map(|number| (1, 0.0, Some(number.to_string())))).collect();
    assert_eq!(found(&batches), expected);

    let (mut output, mut refusals) = (Vec::new(), Refusals::new(0));
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![2, 1, 2]));
    let columns = RecordBatch::try_new(input(), vec![ids, Arc::new(Float64Array::from(vec![0.0; 3]))]).unwrap();
    let batch = Batch::new(vec![0, 0, 1].into(), vec![0; 3].into(), vec![0; 3].into(), columns);
    let mut context = Context::new(0, &queries, &mut refusals, &mut output);
    lookup(&table, key(true), names()).create().process(Element::Batch(batch), &mut context).unwrap();
    assert_eq!(refusals.counted(Reason::Expression), 1, "the one that finds 70,000 rows");
    assert_eq!(found(&output), [(0, 0.0, None), (1, 0.0, None)]);
}

/// Events of one batch that together count more rows than they may give.
#[test]
fn rows_of_a_key_are_counted_however_many_they_are() {
    let rows: Vec<Row> = (0..700_000).map(|number| (Some(number % 2), String::new(), None)).collect();
    let (table, queries) = (table(&rows), queries(&[(0.0, None)]));
    let count = TableAggregate { name: "n".into(), function: TableFunction::Count, argument: None };
    let events = [Some(1), Some(2), Some(0), None, Some(1), Some(0)].map(|key| (0, key, 0.0));
    let find = lookup(&table, key(false), LookupResults::Aggregates(vec![count]));
    let counted = run(&find, &queries, &events, &[6])
        .into_iter()
        .flat_map(|batch| batch.column(2).as_primitive::<Int64Type>().values().to_vec());
    assert_eq!(counted.collect::<Vec<_>>(), [350_000, 0, 350_000, 0, 350_000, 350_000]);
}

#[test]
fn a_batch_sees_the_rows_from_before_a_replacement_or_those_from_after_it() {
    let (before, after) = (table(&[(Some(1), "old".into(), None)]), table(&[(Some(1), "new".into(), None)]));
    let queries = queries(&[(0.0, None)]);
    let lookup = lookup(&before, key(false), names());
    let events = [(0, Some(1), 0.0)];
    assert_eq!(found(&run(&lookup, &queries, &events, &[1])), [(0, 0.0, Some("old".into()))]);
    before.replace(after.rows().columns().clone());
    assert_eq!(found(&run(&lookup, &queries, &events, &[1])), [(0, 0.0, Some("new".into()))]);
}
