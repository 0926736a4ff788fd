//! Queries that share a slot: one computation, whose results go to each of them.
//!
//! The first query stands in the row of the slot. The further queries stand in a table with the same columns, of which
//! only the query's number and the parameters of its output topics are read. The caller guarantees that all other
//! parameters are equal.

use std::collections::HashMap;

use arrow::array::RecordBatch;

use super::{NOBODY, QueryId, Slot, SlotTable};

#[derive(Debug)]
pub(super) struct Further {
    /// One row for each further query, whichever slot it shares.
    table: SlotTable,
    /// The rows of each shared slot, in the order in which the queries were added. No list is empty.
    rows: HashMap<Slot, Vec<Slot>>,
}

impl Further {
    pub(super) fn memory_bytes(&self) -> usize {
        let lists = self.rows.values().map(|rows| rows.capacity() * size_of::<Slot>()).sum::<usize>();
        self.table.memory_bytes() + self.rows.capacity() * size_of::<(Slot, Vec<Slot>)>() + lists
    }

    /// Frees a row at once: no event can be in flight to it.
    fn free(&mut self, row: Slot) {
        self.table.retire(&[row]);
        self.table.recycle();
    }
}

impl SlotTable {
    /// Adds further queries to a slot, one for each row of `parameters`.
    ///
    /// # Panics
    /// If the slot is not in use, or as [`SlotTable::add`] does.
    pub fn share(&mut self, slot: Slot, queries: &[QueryId], parameters: &RecordBatch) {
        assert!(self.query(slot).is_some(), "slot {slot} is in use when it is shared");
        let schema = self.schema.clone();
        let further = self
            .further
            .get_or_insert_with(|| Box::new(Further { table: SlotTable::new(schema), rows: HashMap::new() }));
        let rows = further.table.add(queries, parameters);
        if !rows.is_empty() {
            further.rows.entry(slot).or_default().extend(rows);
        }
    }

    /// The number of further queries, over all slots.
    pub fn further(&self) -> usize {
        self.further.as_ref().map_or(0, |further| further.table.live())
    }

    /// The number of queries in a slot.
    pub fn queries_in(&self, slot: Slot) -> usize {
        usize::from(self.query(slot).is_some()) + self.further_in(slot).len()
    }

    /// The number of further queries in the slots of these rows; each query counts once for each of its rows.
    pub fn further_of(&self, slots: &[Slot]) -> u64 {
        match self.further {
            None => 0,
            Some(_) => slots.iter().map(|&slot| self.further_in(slot).len() as u64).sum(),
        }
    }

    fn further_in(&self, slot: Slot) -> &[Slot] {
        self.further.as_ref().and_then(|further| further.rows.get(&slot)).map_or(&[], Vec::as_slice)
    }

    /// Calls `each` for every query in a slot, with its number and the table and row of its parameters.
    #[inline]
    pub fn for_each_query(&self, slot: Slot, mut each: impl FnMut(QueryId, &Self, Slot)) {
        let Some(query) = self.query(slot) else { return };
        each(query, self, slot);
        if let Some(further) = &self.further {
            for &row in self.further_in(slot) {
                each(further.table.queries[row as usize], &further.table, row);
            }
        }
    }

    /// The table and row with the parameters of one query in a slot; `None` if the query is not in the slot.
    pub fn find(&self, slot: Slot, query: QueryId) -> Option<(&Self, Slot)> {
        if self.query(slot)? == query {
            return Some((self, slot));
        }
        let table = &self.further.as_ref()?.table;
        let row = self.further_in(slot).iter().copied().find(|&row| table.query(row) == Some(query))?;
        Some((table, row))
    }

    /// Gives a further query in a slot the values of the one row of `parameters`. Returns whether it was in the slot.
    pub(super) fn set_further(&mut self, slot: Slot, query: QueryId, parameters: &RecordBatch) -> bool {
        let Some(further) = &mut self.further else { return false };
        let mut rows = further.rows.get(&slot).into_iter().flatten().copied();
        let Some(row) = rows.find(|&row| further.table.query(row) == Some(query)) else { return false };
        for (column, values) in further.table.columns.iter_mut().zip(parameters.columns()) {
            column.write(&[row], values);
        }
        true
    }

    /// The further queries in a slot and their parameters; `None` if it has none.
    pub fn further_queries(&self, slot: Slot) -> Option<(Vec<QueryId>, RecordBatch)> {
        let table = &self.further.as_ref()?.table;
        let rows = self.further_in(slot);
        let queries = rows.iter().map(|&row| table.queries[row as usize]).collect();
        (!rows.is_empty()).then(|| (queries, table.parameters(rows)))
    }

    /// Removes a query from a slot that several share. If the query stood in the row of the slot, a further query takes
    /// that row. Returns whether the query was in the slot and shared it; if not, nothing changes.
    pub fn leave(&mut self, slot: Slot, query: QueryId) -> bool {
        let Some(mut further) = self.further.take() else { return false };
        let left = self.leave_shared(&mut further, slot, query);
        self.further = Some(further).filter(|further| !further.rows.is_empty());
        left
    }

    fn leave_shared(&mut self, further: &mut Further, slot: Slot, query: QueryId) -> bool {
        let Some(rows) = further.rows.get_mut(&slot) else { return false };
        let place = match self.queries[slot as usize] == query {
            true => Some(0),
            false => rows.iter().position(|&row| further.table.query(row) == Some(query)),
        };
        let Some(place) = place else { return false };
        let row = rows.remove(place);
        if rows.is_empty() {
            further.rows.remove(&slot);
        }
        if self.queries[slot as usize] == query {
            self.queries[slot as usize] = further.table.queries[row as usize];
            for (parameter, column) in self.columns.iter_mut().enumerate() {
                column.write(&[slot], &further.table.gather(parameter, &[row]));
            }
        }
        further.free(row);
        true
    }

    /// Forgets the further queries of slots.
    pub(super) fn forget_further(&mut self, slots: &[Slot]) {
        let Some(further) = &mut self.further else { return };
        for slot in slots {
            if let Some(rows) = further.rows.remove(slot) {
                debug_assert!(rows.iter().all(|&row| further.table.queries[row as usize] != NOBODY));
                further.table.retire(&rows);
            }
        }
        further.table.recycle();
        if further.rows.is_empty() {
            self.further = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};
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
}
