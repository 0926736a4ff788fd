//! Scalar expressions in both planners: the SELECT of an application and that of a big query have the same results.
//!
//! - [`nulls`]: three-valued logic of every operator and every function that can be called;
//! - [`numbers`]: one zero, one NaN, and results that do not fit;
//! - [`decimals`]: every operator over decimals and numbers of other types;
//! - [`epochs`]: times of numbers with a fraction;
//! - [`parameters`]: a parameter as each argument of every function;
//! - [`conversions`]: casts, with the details of their types;
//! - [`edges`]: functions on empty texts, extremes, negative counts;
//! - [`growth`]: texts that become too long;
//! - [`reference`](mod@reference): all of them as a page of the book.

mod conversions;
mod decimals;
mod edges;
mod epochs;
mod growth;
mod nulls;
mod numbers;
mod parameters;
mod reference;

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::compute::concat;
use arrow::util::display::array_value_to_string;
use datafusion_common::ScalarValue;
use rivulet_dataflow::{
    Batch, Chain, Control, Element, Line, OperatorFactory, Refusals, SlotTable, Surroundings, Work,
};

use crate::plan::plan_application;
use crate::plan::query::plan_query;
use crate::value::type_named;
use crate::{Scope, Statement, parse_application, parse_script};

/// A row on which the expression failed.
const REFUSED: &str = "refused";

/// The two planners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Application,
    BigQuery,
}

const PATHS: [Path; 2] = [Path::Application, Path::BigQuery];

/// Columns `a0`, `a1` and so on: the SQL type of each, and its values.
#[derive(Clone, Default)]
struct Columns {
    types: Vec<&'static str>,
    values: Vec<Vec<ScalarValue>>,
}

impl Columns {
    fn rows(&self) -> usize {
        self.values.first().map_or(1, Vec::len)
    }

    fn declared(&self) -> String {
        let columns = self.types.iter().enumerate().map(|(index, name)| format!(", a{index} {name}"));
        format!("(id BIGINT{})", columns.collect::<String>())
    }

    /// Returns a batch with the columns of this schema: the number of the row and columns of `self`.
    fn batch(&self, schema: &arrow::datatypes::SchemaRef) -> Batch {
        let rows = self.rows();
        let columns = schema.fields().iter().map(|field| -> ArrayRef {
            if field.name() == "id" {
                return Arc::new(Int64Array::from_iter_values(0..rows as i64));
            }
            let index: usize = field.name()[1..].parse().unwrap_or_else(|_| panic!("no values for {}", field.name()));
            let values: Vec<ArrayRef> = self.values[index].iter().map(|value| value.to_array().unwrap()).collect();
            concat(&values.iter().map(AsRef::as_ref).collect::<Vec<_>>()).unwrap()
        });
        let rows_of = RecordBatch::try_new(schema.clone(), columns.collect()).unwrap();
        Batch::new(vec![0; rows].into(), vec![0; rows].into(), vec![0; rows].into(), rows_of)
    }
}

/// A value of a type; null without a text.
fn scalar(type_name: &str, text: Option<&str>) -> ScalarValue {
    let data_type = type_named(type_name).unwrap_or_else(|| panic!("no type {type_name}"));
    match text {
        None => ScalarValue::try_from(&data_type).unwrap(),
        Some(text) => ScalarValue::try_from_string(text.to_owned(), &data_type).unwrap(),
    }
}

/// The result of an expression for each row of the columns, or [`REFUSED`] if it fails. An error if it cannot be
/// planned.
fn evaluate(path: Path, expression: &str, columns: &Columns) -> Result<Vec<String>, String> {
    let (mut chain, rows): (Chain, Batch) = match path {
        Path::Application => {
            let text = format!(
                "CREATE APPLICATION a INPUT t {} FROM 'mqtt:in' FORMAT JSON OUTPUT 'mqtt:out' FORMAT JSON \
                 AS SELECT id, {expression} AS x FROM t",
                columns.declared()
            );
            let application = parse_application(&text)
                .and_then(|create| plan_application(&create))
                .map_err(|error| error.to_string())?;
            (application.dataflow.chain(), columns.batch(&application.row_schema))
        }
        Path::BigQuery => big_query(&format!("SELECT id, {expression} AS x FROM t"), columns)?,
    };
    let mut found = vec![REFUSED.to_owned(); columns.rows()];
    process(&mut chain, vec![Element::Batch(rows)], |batch, row| {
        let id: usize = array_value_to_string(batch.column(0), row).unwrap().parse().unwrap();
        found[id] = shown(batch.column(1), row);
    });
    Ok(found)
}

/// The result of an aggregate over these columns at the end of the input, in a big query. `names` are the names of the
/// columns in the call. Rows are in order of their event times.
fn aggregated(call: &str, names: &[&str], columns: &Columns) -> String {
    let mut columns = columns.clone();
    let time = |row: usize| ScalarValue::TimestampMicrosecond(Some(row as i64), None);
    columns.values.push((0..columns.rows()).map(time).collect());
    columns.types.push("TIMESTAMP EVENT TIME");
    let named = names.iter().enumerate().map(|(index, name)| format!("a{index} AS {name}, "));
    let named = format!("{}a{}", named.collect::<String>(), names.len());
    let select = format!("SELECT {call} AS x FROM (SELECT {named} FROM t)");
    // Some aggregates exist only in applications.
    let (mut chain, rows) =
        big_query(&select, &columns).or_else(|_| windowed(call, names, &columns)).expect("an aggregate is planned");
    let mut found = None;
    process(&mut chain, vec![Element::Batch(rows), Element::End], |batch, row| {
        found = Some(shown(batch.column(0), row))
    });
    found.expect("a result")
}

/// An aggregate over the columns with these names in an application, as a chain, and its rows.
fn windowed(call: &str, names: &[&str], columns: &Columns) -> Result<(Chain, Batch), String> {
    let named = names.iter().enumerate().map(|(index, name)| format!(", {name} AS a{index}"));
    let text = format!(
        "CREATE APPLICATION a INPUT t {}{}) FROM 'mqtt:in' FORMAT JSON OUTPUT 'mqtt:out' FORMAT JSON \
         AS SELECT {call} AS x FROM t GROUP BY count_window({})",
        columns.declared().trim_end_matches(')'),
        named.collect::<String>(),
        columns.rows()
    );
    let application =
        parse_application(&text).and_then(|create| plan_application(&create)).map_err(|error| error.to_string())?;
    Ok((application.dataflow.chain(), columns.batch(&application.row_schema)))
}

/// A big query over the columns, as a chain, and its rows.
fn big_query(select: &str, columns: &Columns) -> Result<(Chain, Batch), String> {
    let text = format!("CREATE SOURCE t {} FROM 'file:t.json' FORMAT JSON; {select}", columns.declared());
    let mut scope = Scope::new();
    let mut planned = None;
    for (statement, _) in parse_script(&text).map_err(|error| error.to_string())? {
        match statement {
            Statement::CreateSource(create) => {
                scope.add_source(create.declare(|_, _| None).unwrap()).unwrap();
            }
            Statement::RunQuery(query) => {
                planned = Some(plan_query(&query, &scope).map_err(|error| error.to_string())?);
            }
            other => panic!("not a statement of this test: {other:?}"),
        }
    }
    let plan = planned.expect("a query was written");
    let nodes = plan.dataflow.nodes();
    let factories: Vec<Arc<dyn OperatorFactory>> = nodes
        .iter()
        .filter_map(|node| match &node.work {
            Work::Operator(factory) => Some(factory.clone()),
            Work::Source(_) | Work::Sink(_) => None,
        })
        .collect();
    Ok((Line::new(factories).chain(), columns.batch(&nodes[0].schema)))
}

/// Sends elements through a chain, and calls `row_out` for each row that comes out.
fn process(chain: &mut Chain, elements: Vec<Element>, row_out: impl FnMut(&Batch, usize)) {
    let empty = Arc::new(arrow::datatypes::Schema::empty());
    let one_row = arrow::array::RecordBatchOptions::new().with_row_count(Some(1));
    let none = RecordBatch::try_new_with_options(empty.clone(), vec![], &one_row);
    process_with(SlotTable::new(empty), &none.unwrap(), chain, elements, row_out);
}

/// The same with these parameters of the query.
fn process_with(
    mut table: SlotTable,
    parameters: &RecordBatch,
    chain: &mut Chain,
    elements: Vec<Element>,
    mut row_out: impl FnMut(&Batch, usize),
) {
    let slots = table.add(&[0], parameters);
    let mut refusals = Refusals::new(0);
    for element in std::iter::once(Element::Control(Control::AddSlots(slots))).chain(elements) {
        let mut out = |batch: Batch| (0..batch.rows()).for_each(|row| row_out(&batch, row));
        let with = Surroundings { now_us: 0, slots: &table, refusals: &mut refusals };
        chain.process(element, with, &mut out).unwrap();
    }
}

fn shown(column: &ArrayRef, row: usize) -> String {
    if column.is_null(row) { "NULL".to_owned() } else { array_value_to_string(column, row).unwrap() }
}

/// Does the same with an expression without columns.
fn constant(path: Path, expression: &str) -> Result<String, String> {
    evaluate(path, expression, &Columns::default()).map(|mut found| found.remove(0))
}

/// Fails with all problems in the list, if there are any.
fn none_of(problems: Vec<String>) {
    assert!(problems.is_empty(), "{} differences:\n{}", problems.len(), problems.join("\n"));
}
