//! Tests of slots that several queries share.

use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};

use super::*;

fn rows(homes: &[&str], outputs: &[Option<i64>]) -> RecordBatch {
    let schema =
        Schema::new(vec![Field::new("home", DataType::Utf8, true), Field::new("output", DataType::Int64, true)]);
    let homes = Arc::new(StringArray::from(homes.to_vec()));
    RecordBatch::try_new(Arc::new(schema), vec![homes, Arc::new(Int64Array::from(outputs.to_vec()))]).unwrap()
}

fn table() -> SlotTable {
    let first = rows(&["a", "b"], &[Some(1), Some(2)]);
    let mut table = SlotTable::new(first.schema());
    assert_eq!(table.add(&[10, 20], &first), [0, 1]);
    table.share(0, &[11, 12], &rows(&["a", "a"], &[None, Some(4)]));
    table
}

/// The queries of a slot, each with the text of its output.
fn outputs(table: &SlotTable, slot: Slot) -> Vec<(QueryId, String)> {
    let mut all = Vec::new();
    table.for_each_query(slot, |query, table, row| {
        let mut text = String::new();
        table.write_text(1, row, &mut text);
        all.push((query, text));
    });
    all
}

#[test]
fn all_queries_of_a_slot_are_found_with_their_own_parameters() {
    let table = table();
    assert_eq!(outputs(&table, 0), [(10, "1".into()), (11, String::new()), (12, "4".into())]);
    assert_eq!(outputs(&table, 1), [(20, "2".into())]);
    assert_eq!((table.live(), table.further(), table.queries_in(0), table.queries_in(1)), (2, 2, 3, 1));
    assert_eq!(table.further_of(&[0, 1, 0]), 4);
    assert!(table.find(0, 12).is_some() && table.find(1, 12).is_none());
    let (queries, parameters) = table.further_queries(0).unwrap();
    assert_eq!((queries, parameters), (vec![11, 12], rows(&["a", "a"], &[None, Some(4)])));
    assert!(table.further_queries(1).is_none());
}

#[test]
fn whoever_leaves_leaves_the_others_what_they_had() {
    let mut table = table();
    assert!(!table.leave(0, 20) && !table.leave(1, 20), "not there, and alone");
    assert!(table.leave(0, 10));
    assert_eq!(outputs(&table, 0), [(11, String::new()), (12, "4".into())]);
    assert!(table.leave(0, 12));
    assert_eq!((outputs(&table, 0), table.further()), (vec![(11, String::new())], 0));
    assert!(!table.leave(0, 11), "the last one");
    table.share(0, &[13], &rows(&["a"], &[Some(5)]));
    table.retire(&[0]);
    assert_eq!((outputs(&table, 0), table.further(), table.live()), (vec![], 0, 1));
}
