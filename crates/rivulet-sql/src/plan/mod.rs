//! Statements to applications: names resolved, types checked, and the SELECT turned into a dataflow.
//!
//! The relational planner plans the scalar expressions, with parameters as columns. We plan everything about time,
//! windows and aggregates ourselves, because relational plans know neither parameters that differ by row nor a clock
//! for each query.
//!
//! In reading order, where each file uses those behind it: `select`: the clauses one after the other; `behind`: what
//! the SELECT around it needs to know of its results; `steps`: the operators of its clauses; `matching`: the part of
//! WHERE that finds queries by an index; `written` and `group_keys`: its parts as written; `ranks` and `history`:
//! functions over several rows; `pattern`: MATCH_RECOGNIZE; `planner`: what all of these are planned with; `unnest`
//! and `lookup`: several rows from one, and reference tables; `source`: what FROM reads; `items`: columns as written;
//! `results`: those of a subquery; `operators`: what runs; `join_bounds`, `window_results`, `window` and `aggregate`:
//! bounds of a join, and what GROUP BY makes of rows; `declarations`: parameters, inputs, outputs; `check`: names and
//! constructs, refused by name; `expression`: expressions and their errors; `time_constants`, `constants` and
//! `arithmetic`: what is computed and refused when a query is planned, and how rows are; `functions`, `haversine`,
//! `scalars` and `bounded`: the functions, `synonyms`: other names of functions; `types`, `message`, `walk` and `call`:
//! types of results, errors in our words, and the parts of an expression.
//!
//! `query` has the same for big queries, over `source::computed` and what stands behind it.

mod aggregate;
mod arithmetic;
mod behind;
mod bounded;
mod call;
mod wrapped;
mod check;
mod code;
mod constants;
mod declarations;
mod defect;
mod expression;
mod functions;
mod group_keys;
mod haversine;
mod history;
mod items;
mod join_bounds;
mod lookup;
mod matching;
mod message;
mod operators;
mod pattern;
mod planner;
mod ranks;
mod results;
mod room;
mod scalars;
pub mod query;
#[cfg(test)]
mod scalar_tests;
mod select;
mod source;
mod steps;
mod synonyms;
mod time_constants;
mod types;
mod unnest;
mod walk;
mod window;
mod window_results;
mod written;

use std::sync::Arc;

use crate::application::{Application, Output, OutputOption, Parameter, Tables};
use crate::statement::{CreateApplication, Name};
use crate::{Literal, Position, SqlError};
pub use code::SQL;
use code::SqlCode;
use declarations::Declarations;
pub use declarations::is_input_option;
use defect::defect;
use room::with_room;

/// Plans a parsed application without lookups in reference tables.
pub fn plan_application(create: &CreateApplication) -> Result<Application, SqlError> {
    plan_application_with(create, &Tables::default())
}

/// Plans a parsed application over these reference tables.
pub fn plan_application_with(create: &CreateApplication, tables: &Tables) -> Result<Application, SqlError> {
    with_room(create.name.position, || plan_here(create, tables))
}

fn plan_here(create: &CreateApplication, tables: &Tables) -> Result<Application, SqlError> {
    let declarations = Declarations::resolve(create)?;
    let parameter_schema = declarations.parameter_schema();
    let planned = select::plan(create.select.open(), &declarations, &parameter_schema, tables)?;
    let deciding = deciding_parameters(create, &declarations);
    let conditions = create.select.open().output_conditions.iter();
    let outputs = create.outputs.iter().zip(declarations.output_addresses).zip(conditions);
    let outputs = outputs.map(|((output, address), condition)| Output {
        name: output.name.as_ref().map(|name| name.text.clone()),
        address,
        format: output.format.clone(),
        options: output.options.iter().map(option_of).collect(),
        condition: condition.as_ref().map(ToString::to_string),
        schema: planned.output_schema.clone(),
    });
    let outputs = outputs.collect();
    Ok(Application {
        name: create.name.text.clone(),
        id: create.id.clone(),
        kind: SQL,
        bytes: create.text.clone().into_bytes(),
        parameters: declarations.parameters.into(),
        deciding_parameters: deciding,
        inputs: declarations.inputs,
        row_schema: planned.row_schema,
        outputs,
        has_output_bits: planned.has_output_bits,
        dataflow: planned.dataflow,
        parameter_schema,
        tables: planned.tables,
        matching: planned.matching,
        cut: planned.cut,
        warnings: Vec::new(),
        code: Arc::new(SqlCode {
            window: planned.window,
            emit_on_change: create.select.open().emit_on_change,
            checks: planned.checks,
            bound_checks: planned.bound_checks,
            steps: planned.steps,
            meanings: planned.meanings,
        }),
    })
}

/// An option in the form for the connector of the output.
fn option_of((name, value, _): &(Name, Literal, Position)) -> OutputOption {
    OutputOption { name: name.text.clone(), value: value.clone(), position: name.position.into() }
}

/// The indices of the parameters that decide what a query computes.
fn deciding_parameters(create: &CreateApplication, declarations: &Declarations) -> Vec<usize> {
    let is_deciding = |(index, parameter): &(usize, &Parameter)| {
        create.parameters_used.contains(&parameter.name.to_lowercase())
            || declarations.inputs.iter().any(|input| input.address_parameters().any(|other| other == *index))
    };
    declarations.parameters.iter().enumerate().filter(is_deciding).map(|(index, _)| index).collect()
}
