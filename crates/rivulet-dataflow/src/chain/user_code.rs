//! What the failure of an operator costs. The engine's own operators fail only because of a defect, and that costs the
//! whole element. An operator that runs code of users ([`Operator::runs_user_code`]) may fail for one query. That costs
//! only the rows of this query: they are refused, and the others are processed.

use crate::operator::caught;
use crate::{Batch, Context, Fault, Operator, OperatorError, Reason, Refusals};

use super::surroundings::Surroundings;

/// How often rows are processed again without those of the slots that failed. After that each slot is processed alone,
/// which is linear in the rows however many slots fail.
const ROUNDS_MAX: usize = 4;

/// Calls an operator. If it runs code of users, a panic is an error too, and every error is a failure of that code.
pub(super) fn call(
    operator: &mut dyn Operator,
    act: impl FnOnce(&mut dyn Operator) -> Result<(), OperatorError>,
) -> Result<(), OperatorError> {
    match operator.runs_user_code() {
        true => guarded(|| act(operator)),
        false => act(operator),
    }
}

fn guarded(act: impl FnOnce() -> Result<(), OperatorError>) -> Result<(), OperatorError> {
    caught(act).map_err(|error| OperatorError { fault: Fault::UserCode, ..error })
}

/// Makes an operator that runs code of users process the rows at `rows` of a batch, which are ascending.
///
/// If it fails, the rows of the slots that the error names are refused, and the others are processed again. If the
/// error names no slots, the rows of each slot are processed alone. So the failure of one query costs the others no
/// row.
pub(super) fn user_code(
    with: &mut Surroundings<'_>,
    output: &mut Vec<Batch>,
    batch: &Batch,
    mut rows: Vec<u32>,
    mut process: impl FnMut(&[u32], &mut Context<'_>) -> Result<(), OperatorError>,
) {
    let slot = |row: u32| batch.slots[row as usize];
    for _ in 0..ROUNDS_MAX {
        let Err(mut error) = attempt(with, output, &rows, &mut process) else { return };
        error.slots.sort_unstable();
        let (failed, rest): (Vec<u32>, Vec<u32>) =
            rows.iter().partition(|&&row| error.slots.binary_search(&slot(row)).is_ok());
        if failed.is_empty() {
            let is_one_slot = rows.iter().all(|&row| slot(row) == slot(rows[0]));
            if is_one_slot {
                return refuse(with.refusals, batch, &rows, &error);
            }
            break;
        }
        refuse(with.refusals, batch, &failed, &error);
        if rest.is_empty() {
            return;
        }
        rows = rest;
    }
    // A stable sort keeps the rows of a slot in order.
    rows.sort_by_key(|&row| slot(row));
    for of_slot in rows.chunk_by(|&one, &other| slot(one) == slot(other)) {
        if let Err(error) = attempt(with, output, of_slot, &mut process) {
            refuse(with.refusals, batch, of_slot, &error);
        }
    }
}

/// Processes rows. If that fails, what was emitted and refused meanwhile is taken back.
fn attempt(
    with: &mut Surroundings<'_>,
    output: &mut Vec<Batch>,
    rows: &[u32],
    process: &mut impl FnMut(&[u32], &mut Context<'_>) -> Result<(), OperatorError>,
) -> Result<(), OperatorError> {
    let (emitted, refused) = (output.len(), with.refusals.mark());
    let context = &mut with.context(output);
    let result = guarded(|| process(rows, context));
    if result.is_err() {
        output.truncate(emitted);
        with.refusals.go_back_to(refused);
    }
    result
}

fn refuse(refusals: &mut Refusals, batch: &Batch, rows: &[u32], error: &OperatorError) {
    for &row in rows {
        refusals.refuse_row(None, batch, row as usize, Reason::UserCode, || error.message.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{AsArray, Int64Array, RecordBatch};
    use arrow::datatypes::{Int64Type, Schema};

    use super::*;
    use crate::{Chain, Element, Slot, SlotTable};

    /// An operator that fails for some values, in different ways.
    #[derive(Default)]
    struct Fails {
        is_engine: bool,
    }

    const NAMED: i64 = -1;
    const UNNAMED: i64 = -2;
    const PANICS: i64 = -3;
    const NAMES_OTHERS: i64 = -4;

    impl Operator for Fails {
        fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
            let Element::Batch(batch) = element else { return Err(OperatorError::about(vec![7], "no rows")) };
            context.emit(batch.clone());
            context.refusals.refuse_row(None, &batch, 0, Reason::Late, String::new);
            let values = batch.column(0).as_primitive::<Int64Type>().values().clone();
            if values.contains(&NAMED) {
                let named = (0..batch.rows()).filter(|&row| values[row] == NAMED).map(|row| batch.slots[row]);
                return Err(OperatorError::about(named.collect(), "named"));
            }
            if values.contains(&UNNAMED) {
                return Err(OperatorError::new("unnamed"));
            }
            if values.contains(&NAMES_OTHERS) {
                return Err(OperatorError::about(vec![99], "another"));
            }
            assert!(!values.contains(&PANICS), "a panic");
            Ok(())
        }

        fn runs_user_code(&self) -> bool {
            !self.is_engine
        }
    }

    fn with<'a>(slots: &'a SlotTable, refusals: &'a mut Refusals) -> Surroundings<'a> {
        Surroundings { now_us: 0, slots, refusals }
    }

    fn batch(rows: &[(Slot, i64)]) -> Batch {
        let column = Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1)));
        let columns = RecordBatch::try_from_iter([("v", column as _)]).unwrap();
        let times: Vec<i64> = vec![0; rows.len()];
        Batch::new(rows.iter().map(|row| row.0).collect(), times.clone().into(), times.into(), columns)
    }

    /// Rows by slot, each with its value or the reason of its refusal.
    type Rows<V> = Vec<(Slot, V)>;

    /// The rows that come out, the rows refused with their reasons, and how many rows the operator has counted as late.
    fn run(rows: &[(Slot, i64)]) -> (Rows<i64>, Rows<String>, u64) {
        let mut chain = Chain::new(vec![Box::new(Fails::default())]);
        let (mut refusals, mut out) = (Refusals::new(100), Vec::new());
        let table = SlotTable::new(Arc::new(Schema::empty()));
        let mut take = |batch: Batch| {
            let values = batch.column(0).as_primitive::<Int64Type>().values().clone();
            out.extend((0..batch.rows()).map(|row| (batch.slots[row], values[row])));
        };
        let result = chain.process(Element::Batch(batch(rows)), with(&table, &mut refusals), &mut take);
        assert_eq!(result, Ok(()), "a failure of user code is told by the rows that it has cost");
        let of_code = refusals.records().iter().filter(|record| record.reason == Reason::UserCode);
        let told = of_code.map(|record| (record.slot, record.detail.clone())).collect::<Vec<_>>();
        assert_eq!(refusals.counted(Reason::UserCode), told.len() as u64);
        (out, told, refusals.counted(Reason::Late))
    }

    #[test]
    fn a_failure_costs_the_rows_of_its_query_and_no_other() {
        let good = [(1, 10), (2, 20), (1, 11), (3, 30), (2, 21)];
        assert_eq!(run(&good), (good.to_vec(), Vec::new(), 1));
        for (failing, why) in [(NAMED, "named"), (UNNAMED, "unnamed"), (PANICS, "a panic"), (NAMES_OTHERS, "another")] {
            let mut rows = good.to_vec();
            rows[1].1 = failing;
            let (mut out, told, late) = run(&rows);
            out.sort_by_key(|row| row.0);
            assert_eq!(out, [(1, 10), (1, 11), (3, 30)], "{why}: in their order, each once");
            assert_eq!(told, [(2, why.into()), (2, why.into())], "{why}");
            assert_eq!(late, if failing == NAMED { 1 } else { 2 }, "{why}: what a failed call refused is not counted");
        }
    }

    #[test]
    fn several_failures_of_several_kinds_are_told_apart() {
        let (out, told, _) = run(&[(1, NAMED), (2, PANICS), (3, UNNAMED), (4, 40), (5, NAMED)]);
        assert_eq!(out, [(4, 40)]);
        let why = [(1, "named"), (5, "named"), (2, "a panic"), (3, "unnamed")];
        assert_eq!(told, why.map(|(slot, why)| (slot, why.to_owned())));
        assert_eq!(run(&[(1, PANICS), (1, 10)]), (vec![], vec![(1, "a panic".into()), (1, "a panic".into())], 0));
    }

    #[test]
    fn an_error_says_whose_code_has_failed() {
        let table = SlotTable::new(Arc::new(Schema::empty()));
        for (is_engine, fault) in [(true, Fault::Engine), (false, Fault::UserCode)] {
            let mut chain = Chain::new(vec![Box::new(Fails { is_engine })]);
            let mut refusals = Refusals::new(0);
            let error = chain.process(Element::Watermark(0), with(&table, &mut refusals), &mut |_| {}).unwrap_err();
            assert_eq!(error, OperatorError { message: "no rows".into(), slots: vec![7], fault });
            let failed =
                chain.process(Element::Batch(batch(&[(1, UNNAMED)])), with(&table, &mut refusals), &mut |_| {});
            assert_eq!((failed.is_err(), refusals.counted(Reason::UserCode)), (is_engine, u64::from(!is_engine)));
        }
    }

    #[test]
    fn the_rows_of_one_part_are_told_apart_too() {
        let table = SlotTable::new(Arc::new(Schema::empty()));
        let mut chain = Chain::new(vec![Box::new(Fails::default())]);
        let (mut refusals, mut out) = (Refusals::new(0), 0);
        let rows = batch(&[(1, 10), (2, PANICS), (1, UNNAMED), (3, 30), (2, 20)]);
        let with = with(&table, &mut refusals);
        let done = chain.process_own(0, &rows, &[0, 1, 3], with, &mut |batch| out += batch.rows());
        assert_eq!((done, out, refusals.counted(Reason::UserCode)), (Ok(()), 2, 1));
    }
}
