//! UNNEST in FROM: the operator that makes several rows from one, and the columns it adds.

use arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion_expr::Expr;
use rivulet_operators::Unnest;

use super::check::{Place, Scope, ScopeTable, full_name};
use super::defect;
use super::expression::{Compiler, ExpressionPlanner, parameter_fields};
use super::lookup::Lookups;
use super::walk::start;
use crate::statement::UnnestClause;
use crate::value::type_name;
use crate::{Position, SqlError};

/// An UNNEST, over the columns before it.
pub(super) struct PlannedUnnest {
    array: Expr,
    position: Position,
    element: Field,
    number: Option<String>,
    /// What it does, in SQL.
    pub(super) step: Vec<String>,
}

impl PlannedUnnest {
    /// Plans an UNNEST; `scope` has the names before it. Its columns are added to those of the lookups.
    pub(super) fn plan(
        clause: &UnnestClause,
        scope: &Scope<'_>,
        parameter_schema: &SchemaRef,
        columns: &[Field],
    ) -> Result<Self, SqlError> {
        let fields = columns.iter().cloned().chain(parameter_fields(parameter_schema)).collect();
        let planner = ExpressionPlanner::new(fields)?;
        let mut expression = clause.array.clone();
        let position = start(&expression).or(clause.position);
        scope.check(&mut expression, Place::Where, position)?;
        let (array, data_type) = planner.plan_coerced(&expression, position)?;
        if !data_type.is_string() {
            let message =
                format!("UNNEST takes an array, which is JSON as TEXT, and this is {}", type_name(&data_type));
            return Err(SqlError::new(position, message).hint("write for example UNNEST(string_to_array(text, ','))"));
        }
        let numbered = if clause.number.is_some() { " WITH ORDINALITY" } else { "" };
        let name = |column: &crate::statement::Name| full_name(&clause.alias.text, &column.text);
        Ok(Self {
            element: planner.element_of(&array, &name(&clause.element)),
            array,
            position: clause.position,
            number: clause.number.as_ref().map(name),
            step: vec![format!("UNNEST({}){numbered}", clause.array)],
        })
    }

    /// Adds its columns to those that can be named; `input` is the name of the rows that are read.
    pub(super) fn add_columns(
        &self,
        clause: &UnnestClause,
        input: &str,
        lookups: &mut Lookups,
    ) -> Result<(), SqlError> {
        let alias = &clause.alias;
        if alias.text == input || lookups.tables.iter().any(|table| table.name == alias.text) {
            return Err(SqlError::new(alias.position, format!("the name '{alias}' is used twice in FROM"))
                .hint("give one of them another name with AS"));
        }
        if let Some(number) = clause.number.as_ref().filter(|number| number.text == clause.element.text) {
            return Err(SqlError::new(number.position, format!("two columns have the name '{number}'")));
        }
        lookups.fields.push(self.element.clone());
        lookups.fields.extend(self.number.iter().map(|number| Field::new(number, DataType::Int64, false)));
        let columns = [Some(&clause.element), clause.number.as_ref()].into_iter().flatten();
        let columns = columns.map(|column| column.text.clone()).collect();
        lookups.tables.push(ScopeTable { name: clause.alias.text.clone(), columns });
        Ok(())
    }

    /// Whether it adds the column `name`.
    pub(super) fn gives(&self, name: &str) -> bool {
        self.element.name() == name || self.number.as_deref() == Some(name)
    }

    pub(super) fn array(&self) -> &Expr {
        &self.array
    }

    /// Makes the operator over these columns. It passes on those that are used behind it.
    pub(super) fn operator(
        &self,
        columns: &SchemaRef,
        parameter_schema: &SchemaRef,
        is_used: impl Fn(&str) -> bool,
    ) -> Result<Unnest, SqlError> {
        let compiler = Compiler::new(columns, parameter_schema, [&self.array])?;
        let array = compiler.compile(self.array.clone(), self.position)?;
        let (element, number) = (self.element.clone(), self.number.as_deref());
        Unnest::new(columns, parameter_schema, compiler.parameters, array, element, number)
            .map(|unnest| unnest.carrying(is_used))
            .map_err(|error| defect(error, self.position))
    }
}
