//! ROW_NUMBER, RANK and DENSE_RANK: the number of a row among the rows of its window.
//!
//! A window of a slot closes for all its keys in one call, so its rows follow each other in one batch, and nothing is
//! remembered from one batch to the next.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimestampMicrosecondType};
use arrow::row::{RowConverter, Rows, SortField};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::{Address, Batch, Context, Description, Element, Operator, OperatorError, OperatorFactory};

use crate::PlanError;
use crate::expression::Expressions;
use crate::window::{WINDOW_END, WINDOW_START};

/// How rows with equal values are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankFunction {
    /// Each row has a number of its own. Of equal rows, the row that came out first has the lower number.
    RowNumber,
    /// Equal rows have one number. The rows behind them are numbered as if each equal row had a number of its own.
    Rank,
    /// Equal rows have one number, and the rows behind them have the next number.
    DenseRank,
}

impl RankFunction {
    /// Returns the function with this SQL name, in lower case.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "row_number" => Self::RowNumber,
            "rank" => Self::Rank,
            "dense_rank" => Self::DenseRank,
            _ => return None,
        })
    }
}

impl fmt::Display for RankFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RowNumber => "row_number",
            Self::Rank => "rank",
            Self::DenseRank => "dense_rank",
        })
    }
}

/// The plan of a [`Rank`], as the planner gives it. Expressions are compiled against
/// [`Expressions::evaluation_schema`]`(input, parameter_schema, parameters)`.
#[derive(Clone, Debug)]
pub struct RankSpec {
    /// The columns of the input, among them those of a window aggregation.
    pub input: SchemaRef,
    /// The slot table's schema.
    pub parameter_schema: SchemaRef,
    /// The parameters that expressions use, as indices of `parameter_schema`.
    pub parameters: Vec<usize>,
    /// The name of the column with the numbers, a BIGINT that is not null, behind the other columns.
    pub name: String,
    /// How equal rows are numbered.
    pub function: RankFunction,
    /// Rows are numbered for each window and for each value of these expressions.
    pub keys: Vec<Arc<dyn PhysicalExpr>>,
    /// The expressions by which rows are ordered, the most significant first.
    pub orders: Vec<(Arc<dyn PhysicalExpr>, SortOptions)>,
    /// Whether the rows of a window come out in this order.
    pub in_order: bool,
}

/// Appends to each row its number among the rows of the same slot, window and keys.
#[derive(Clone, Debug)]
pub struct Rank {
    expressions: Arc<Expressions>,
    keys: usize,
    options: Arc<[SortOptions]>,
    function: RankFunction,
    in_order: bool,
    /// The indices of the columns with the bounds of windows.
    bounds: [usize; 2],
    output: SchemaRef,
}

impl Rank {
    /// Makes the operator, or returns what is wrong with its plan.
    pub fn new(spec: RankSpec) -> Result<Self, PlanError> {
        let RankSpec { input, parameter_schema, parameters, name, function, keys, orders, in_order } = spec;
        let place = |bound: &'static str| {
            let problem = format!("there is no column {bound}");
            input.index_of(bound).map_err(|_| PlanError::Column { index: 0, what: "the input", problem })
        };
        let bounds = [place(WINDOW_START)?, place(WINDOW_END)?];
        let (ordered, options): (Vec<_>, Vec<_>) = orders.into_iter().unzip();
        let number_of_keys = keys.len();
        let expressions = keys.into_iter().chain(ordered).collect();
        let expressions = Expressions::new(&input, &parameter_schema, parameters, expressions)?;
        let fields = input.fields().iter().cloned();
        let number = Arc::new(Field::new(name, DataType::Int64, false));
        let output = Arc::new(Schema::new(fields.chain([number]).collect::<Vec<_>>()));
        let rank = Self {
            expressions: Arc::new(expressions),
            keys: number_of_keys,
            options: options.into(),
            function,
            in_order,
            bounds,
            output,
        };
        rank.converters().map_err(|error| PlanError::Expression {
            expression: rank
                .expressions
                .fields()
                .iter()
                .map(|field| field.name().as_str())
                .collect::<Vec<_>>()
                .join(", "),
            problem: error.to_string(),
        })?;
        Ok(rank)
    }

    /// The output columns.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.output
    }

    /// Makes converters to bytes that compare like the keys, and like the values by which rows are ordered.
    fn converters(&self) -> Result<[RowConverter; 2], arrow::error::ArrowError> {
        let (keys, orders) = self.expressions.fields().split_at(self.keys);
        let keys = keys.iter().map(|field| SortField::new(field.data_type().clone()));
        let orders = orders.iter().zip(&*self.options);
        let orders = orders.map(|(field, order)| SortField::new_with_options(field.data_type().clone(), *order));
        Ok([RowConverter::new(keys.collect())?, RowConverter::new(orders.collect())?])
    }
}

impl OperatorFactory for Rank {
    fn create(&self) -> Box<dyn Operator> {
        let converters = self.converters().expect("the types are checked when the plan is made");
        Box::new(RankOperator { plan: self.clone(), converters, order: Vec::new() })
    }

    fn describe(&self) -> Description {
        let (keys, orders) = self.expressions.fields().split_at(self.keys);
        let names = |fields: &[Field]| fields.iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ");
        let mut shared = vec![format!("{} by {}", self.function, names(orders))];
        if !keys.is_empty() {
            shared.push(format!("for each {}", names(keys)));
        }
        Description { operator: "rank".into(), shared, per_slot: self.expressions.parameter_names() }
    }

    fn state(&self) -> Option<Address> {
        None
    }
}

struct RankOperator {
    plan: Rank,
    converters: [RowConverter; 2],
    /// The rows of the current batch in their order. The buffer is kept to reuse its memory.
    order: Vec<u32>,
}

impl Operator for RankOperator {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let Element::Batch(batch) = element else { return Ok(()) };
        let (batch, columns) = self.plan.expressions.evaluate(batch, context)?;
        if batch.is_empty() {
            return Ok(());
        }
        let (keys, orders) = columns.split_at(self.plan.keys);
        let (keys, orders) = (rows(&self.converters[0], keys)?, rows(&self.converters[1], orders)?);
        self.order.clear();
        self.order.extend(0..batch.rows() as u32);
        let mut numbers = vec![0i64; batch.rows()];
        for window in windows(&batch, self.plan.bounds) {
            let order = &mut self.order[window];
            let key = |row: u32| keys.as_ref().map(|keys| keys.row(row as usize));
            let value = |row: u32| orders.as_ref().map(|orders| orders.row(row as usize));
            // Equal rows stay in the order in which they came.
            order.sort_by(|&one, &other| (key(one), value(one)).cmp(&(key(other), value(other))));
            let (mut row_number, mut number) = (0, 0);
            for (index, &row) in order.iter().enumerate() {
                let before = index.checked_sub(1).map(|before| order[before]);
                if before.is_none_or(|before| key(before) != key(row)) {
                    (row_number, number) = (0, 0);
                }
                row_number += 1;
                let is_equal = number > 0 && before.is_some_and(|before| value(before) == value(row));
                number = match self.plan.function {
                    RankFunction::RowNumber => row_number,
                    _ if is_equal => number,
                    RankFunction::Rank => row_number,
                    RankFunction::DenseRank => number + 1,
                };
                numbers[row as usize] = number;
            }
        }
        let numbers: ArrayRef = Arc::new(Int64Array::from(numbers));
        let columns = batch.columns.columns().iter().cloned().chain([numbers]).collect();
        let numbered = batch.with_columns(RecordBatch::try_new(self.plan.output.clone(), columns)?);
        context.emit(if self.plan.in_order { numbered.take(&self.order)? } else { numbered });
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        self.order.capacity() * size_of::<u32>() + self.converters.iter().map(RowConverter::size).sum::<usize>()
    }
}

/// The values of each row as bytes; `None` if there are no columns.
fn rows(converter: &RowConverter, columns: &[ArrayRef]) -> Result<Option<Rows>, OperatorError> {
    match columns.is_empty() {
        true => Ok(None),
        false => Ok(Some(converter.convert_columns(columns)?)),
    }
}

/// The rows of each window.
fn windows(batch: &Batch, bounds: [usize; 2]) -> impl Iterator<Item = Range<usize>> {
    let [starts, ends] = bounds.map(|bound| batch.column(bound).as_primitive::<TimestampMicrosecondType>().values());
    let window = move |row: usize| (batch.slots[row], starts[row], ends[row]);
    let mut begin = 0;
    std::iter::from_fn(move || {
        let first = begin;
        (first < batch.rows()).then(|| {
            begin = (first..batch.rows()).find(|&row| window(row) != window(first)).unwrap_or(batch.rows());
            first..begin
        })
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::{StringArray, TimestampMicrosecondArray};
    use rivulet_dataflow::Refusals;

    use super::*;
    use crate::expression::column;
    use crate::testing::{parameter_table, process_context};

    /// Windows `(slot, end, key, value)`; the numbers, and the values in the order in which they come out.
    fn ranked(function: RankFunction, by_key: bool, in_order: bool) -> (Vec<i64>, Vec<i64>) {
        let rows =
            [(0, 10, "a", 3), (0, 10, "b", 5), (0, 10, "a", 5), (0, 10, "b", 1), (0, 20, "a", 1), (1, 20, "a", 9)];
        let time = DataType::Timestamp(arrow::datatypes::TimeUnit::Microsecond, None);
        let input = Arc::new(Schema::new(vec![
            Field::new("key", DataType::Utf8, true),
            Field::new(WINDOW_START, time.clone(), false),
            Field::new(WINDOW_END, time, false),
            Field::new("value", DataType::Int64, true),
        ]));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(rows.iter().map(|row| Some(row.2)).collect::<StringArray>()),
            Arc::new(rows.iter().map(|row| Some(row.1 - 10)).collect::<TimestampMicrosecondArray>()),
            Arc::new(rows.iter().map(|row| Some(row.1)).collect::<TimestampMicrosecondArray>()),
            Arc::new(rows.iter().map(|row| Some(row.3)).collect::<Int64Array>()),
        ];
        let times: Vec<i64> = rows.iter().map(|row| row.1).collect();
        let batch = Batch::new(
            rows.iter().map(|row| row.0).collect(),
            times.clone().into(),
            times.into(),
            RecordBatch::try_new(input.clone(), columns).unwrap(),
        );
        let rank = Rank::new(RankSpec {
            input: input.clone(),
            parameter_schema: Arc::new(Schema::empty()),
            parameters: vec![],
            name: "number".into(),
            function,
            keys: if by_key { vec![column(&input, 0)] } else { vec![] },
            orders: vec![(column(&input, 3), SortOptions { descending: true, nulls_first: true })],
            in_order,
        })
        .unwrap();
        let table = parameter_table("p", Arc::new(Int64Array::from(vec![0, 0])));
        let (mut refusals, mut output) = (Refusals::new(0), Vec::new());
        let mut context = process_context(&table, &mut refusals, &mut output);
        rank.create().process(Element::Batch(batch), &mut context).unwrap();
        let integers =
            |column: usize| output[0].column(column).as_primitive::<arrow::datatypes::Int64Type>().values().to_vec();
        (integers(4), integers(3))
    }

    #[test]
    fn rows_are_numbered_within_their_window_and_key() {
        let numbers = |function, by_key| ranked(function, by_key, false).0;
        assert_eq!(numbers(RankFunction::RowNumber, false), [3, 1, 2, 4, 1, 1]);
        assert_eq!(numbers(RankFunction::Rank, false), [3, 1, 1, 4, 1, 1]);
        assert_eq!(numbers(RankFunction::DenseRank, false), [2, 1, 1, 3, 1, 1]);
        assert_eq!(numbers(RankFunction::RowNumber, true), [2, 1, 1, 2, 1, 1]);
        let (numbers, values) = ranked(RankFunction::RowNumber, false, true);
        assert_eq!((numbers, values), (vec![1, 2, 3, 4, 1, 1], vec![5, 5, 3, 1, 1, 9]));
    }
}
