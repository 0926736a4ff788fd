//! UNNEST in FROM: the operator that makes several rows from one, and the columns it adds.

use arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion_expr::Expr;
use rivulet_dataflow::held_type;
use rivulet_operators::Unnest;
use rivulet_relational::columns_of;

use super::check::{Place, Scope, ScopeTable, full_name};
use super::defect;
use super::expression::{Compiler, ExpressionPlanner, parameter_fields};
use super::lookup::Lookups;
use super::walk::start;
use crate::statement::{Name, UnnestClause};
use crate::value::type_name;
use crate::{Position, SqlError};

/// An UNNEST, over the columns before it.
pub(super) struct PlannedUnnest {
    array: Expr,
    position: Position,
    /// What the array holds, if that is known.
    held: Option<DataType>,
    /// The columns of an element.
    elements: Vec<Field>,
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
        let name = |column: &Name| full_name(&clause.alias.text, &column.text);
        let names: Vec<String> = clause.columns.iter().map(name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let whole = planner.field_of(&array, "", &DataType::Utf8);
        let elements =
            columns_of(&whole, &names).map_err(|(message, hint)| SqlError::new(position, message).hint(hint))?;
        // These elements are parts of a text.
        let is_split = matches!(&array, Expr::ScalarFunction(call) if call.func.name() == "string_to_array");
        Ok(Self {
            elements: elements.into_iter().map(|element| element.with_nullable(!is_split)).collect(),
            array,
            held: held_type(&whole),
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
        let columns: Vec<&Name> = clause.columns.iter().chain(&clause.number).collect();
        let is_second = |(place, name): &(usize, &&Name)| columns[..*place].iter().any(|one| one.text == name.text);
        if let Some((_, name)) = columns.iter().enumerate().find(is_second) {
            return Err(SqlError::new(name.position, format!("two columns have the name '{name}'"))
                .hint("give one of them another name"));
        }
        lookups.fields.extend(self.elements.iter().cloned());
        lookups.fields.extend(self.number.iter().map(|number| Field::new(number, DataType::Int64, false)));
        let columns = columns.into_iter().map(|column| column.text.clone()).collect();
        lookups.tables.push(ScopeTable { name: clause.alias.text.clone(), columns });
        Ok(())
    }

    /// Whether it adds the column `name`.
    pub(super) fn gives(&self, name: &str) -> bool {
        self.elements.iter().any(|element| element.name() == name) || self.number.as_deref() == Some(name)
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
        let (elements, number) = (self.elements.clone(), self.number.as_deref());
        Unnest::new(columns, parameter_schema, compiler.parameters, array, self.held.as_ref(), elements, number)
            .map(|unnest| unnest.carrying(is_used))
            .map_err(|error| defect(error, self.position))
    }
}
