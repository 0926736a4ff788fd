//! UNNEST in FROM: `CROSS JOIN UNNEST(array) [WITH ORDINALITY] AS alias (element [, number])`. An array of rows may be
//! unnested into their fields, and a map is into its keys and values.
//!
//! DataFusion's planner takes it for a join with a subquery over the row at its left. What it plans is a placeholder,
//! [`Elements`] over nothing; [`rewrite_plan`] then puts the rows at the left below it, in the place of the join.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, DFSchemaRef, DataFusionError, JoinType, Result, TableReference};
use datafusion_expr::planner::RelationPlannerContext;
use datafusion_expr::{
    EmptyRelation, Expr, ExprSchemable, Extension, Filter, Join, LogicalPlan, SubqueryAlias, UserDefinedLogicalNodeCore,
};
use datafusion_sql::sqlparser::ast::{self, FunctionArg, FunctionArgExpr, Ident, Spanned, TableFactor};
use rivulet_dataflow::{element_field, held_type, part_field};

use crate::error::RelationalError;
use crate::nodes::compare_by_parts;
use crate::walk::{NodeMut, change_query};

const EXAMPLE: &str = "write for example CROSS JOIN UNNEST(readings) WITH ORDINALITY AS r (reading, number)";

/// Repeats each row of its input for each element of an array, with the element, or the parts of it, as further
/// columns, and then its number.
#[derive(Clone, Debug)]
pub struct Elements {
    /// The rows.
    pub input: Arc<LogicalPlan>,
    /// The array: text in JSON.
    pub array: Expr,
    /// The names of the columns that are added.
    pub names: Vec<String>,
    /// Whether the last of them is that of the number.
    pub is_numbered: bool,
    alias: TableReference,
    /// The place of the array in the text, for errors.
    place: Option<(u64, u64)>,
    schema: DFSchemaRef,
}

impl Elements {
    fn new(
        input: Arc<LogicalPlan>,
        array: Expr,
        (names, is_numbered): (Vec<String>, bool),
        alias: TableReference,
        place: Option<(u64, u64)>,
    ) -> Result<Self> {
        let fail = |message: String, hint: String| {
            Err(RelationalError { place, ..RelationalError::new(message) }.hint(hint).boxed())
        };
        // Beside the placeholder, the columns of the rows are parts of the array.
        let (_, field) = array.to_field(input.schema())?;
        if !field.data_type().is_string() && !field.data_type().is_null() {
            let hint = "write for example UNNEST(string_to_array(text, ','))";
            return fail("UNNEST takes an array, which is JSON as TEXT".into(), hint.into());
        }
        let parts: Vec<&str> = names[..names.len() - usize::from(is_numbered)].iter().map(String::as_str).collect();
        let mut added = match columns_of(&field, &parts) {
            Ok(columns) => columns,
            Err((message, hint)) => return fail(message, hint),
        };
        added.extend(names.last().filter(|_| is_numbered).map(|name| Field::new(name, DataType::Int64, false)));
        let added = added.into_iter().map(|field| (Some(alias.clone()), Arc::new(field)));
        let fields: Vec<(Option<TableReference>, FieldRef)> =
            input.schema().iter().map(|(qualifier, field)| (qualifier.cloned(), field.clone())).chain(added).collect();
        let schema = Arc::new(DFSchema::new_with_metadata(fields, input.schema().metadata().clone())?);
        Ok(Self { input, array, names, is_numbered, alias, place, schema })
    }

    fn into_plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(self) })
    }

    fn parts(&self) -> (&LogicalPlan, &Expr, &[String], bool, &TableReference) {
        (&self.input, &self.array, &self.names, self.is_numbered, &self.alias)
    }
}

/// The columns with these names that UNNEST adds for each element of `array`, without the number: the key and the value
/// of each entry of a map, the fields of a row where there is a name for each, or the element.
///
/// # Errors
/// There are more or fewer names, in words and with a hint.
pub fn columns_of(array: &Field, names: &[&str]) -> Result<Vec<Field>, (String, String)> {
    let held = held_type(array);
    let (parts, what) = match (&held, names) {
        (Some(DataType::Map(entries, _)), _) => {
            let DataType::Struct(parts) = entries.data_type() else { return Ok(Vec::new()) };
            (parts, "a map has two: (key, value)")
        }
        (Some(DataType::List(element)), [_, _, ..]) if let DataType::Struct(parts) = element.data_type() => {
            (parts, "an array of rows has one for each field, or one for the row")
        }
        (_, [name]) => return Ok(vec![element_field(array, name)]),
        _ => {
            return Err((
                format!("UNNEST of this array gives one column, and the alias names {}", names.len()),
                EXAMPLE.into(),
            ));
        }
    };
    match parts.len() == names.len() {
        true => Ok(parts.iter().zip(names).map(|(part, name)| part_field(part, name)).collect()),
        false => {
            let fields: Vec<&str> = parts.iter().map(|part| part.name().as_str()).collect();
            let message = format!("UNNEST gives {} columns here, and the alias names {}", parts.len(), names.len());
            Err((message, format!("{what}; write AS u ({})", fields.join(", "))))
        }
    }
}

/// Gives UNNEST the form in which the planner lets it refer to the row at its left.
pub(crate) fn rewrite_query(query: &mut ast::Query) {
    change_query(query, &mut |node, _| {
        let NodeMut::TableFactor(factor) = node else { return };
        if let TableFactor::Table { name, alias, args: Some(args), with_ordinality, .. } = factor
            && crate::check::name_of(name) == "unnest"
        {
            let arrays = args.args.iter().filter_map(|argument| match argument {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(array)) => Some(array.clone()),
                _ => None,
            });
            *factor = TableFactor::UNNEST {
                alias: alias.take(),
                array_exprs: arrays.collect(),
                with_offset: false,
                with_offset_alias: None,
                with_ordinality: *with_ordinality,
            };
        }
    });
}

/// Plans an UNNEST as a placeholder.
pub(crate) fn plan(relation: TableFactor, context: &mut dyn RelationPlannerContext) -> Result<LogicalPlan> {
    let TableFactor::UNNEST { alias, array_exprs, with_ordinality, .. } = relation else {
        return Err(DataFusionError::Internal("no UNNEST".into()));
    };
    let start = array_exprs.first().map(|array| array.span().start);
    let place = start.filter(|start| start.line > 0).map(|start| (start.line, start.column));
    let fail = |message: &str| RelationalError { place, ..RelationalError::new(message) }.hint(EXAMPLE).boxed();
    let (Some(array), 1) = (array_exprs.first(), array_exprs.len()) else {
        return Err(fail("UNNEST takes one argument"));
    };
    let Some(alias) = alias else { return Err(fail("this UNNEST has no name")) };
    let name = |name: &Ident| context.normalize_ident(name.clone());
    let names: Vec<String> = alias.columns.iter().map(|column| name(&column.name)).collect();
    if names.len() <= usize::from(with_ordinality) {
        return Err(fail("the columns of this UNNEST have no names"));
    }
    let alias = TableReference::bare(name(&alias.name));
    let array = context.sql_to_expr(array.clone(), &DFSchema::empty())?;
    let nothing = EmptyRelation { produce_one_row: true, schema: Arc::new(DFSchema::empty()) };
    let names = (names, with_ordinality);
    let elements = Elements::new(Arc::new(LogicalPlan::EmptyRelation(nothing)), array, names, alias.clone(), place)?;
    Ok(LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(elements.into_plan()), alias)?))
}

/// Puts the rows at the left of each UNNEST below it.
pub(crate) fn rewrite_plan(plan: LogicalPlan) -> Result<LogicalPlan> {
    let rewritten = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Join(join) => match placeholder(&join.right) {
            Some(elements) => below(elements, &join).map(Transformed::yes),
            None => Ok(Transformed::no(LogicalPlan::Join(join))),
        },
        other => Ok(Transformed::no(other)),
    });
    rewritten.map(|transformed| transformed.data)
}

fn placeholder(plan: &LogicalPlan) -> Option<&Elements> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => placeholder(&alias.input),
        LogicalPlan::Subquery(subquery) => placeholder(&subquery.subquery),
        LogicalPlan::Extension(extension) => extension
            .node
            .as_any()
            .downcast_ref::<Elements>()
            .filter(|elements| matches!(*elements.input, LogicalPlan::EmptyRelation(_))),
        _ => None,
    }
}

fn below(elements: &Elements, join: &Join) -> Result<LogicalPlan> {
    if join.join_type != JoinType::Inner {
        let kind = join.join_type.to_string().to_uppercase();
        let error = RelationalError::new(format!("a {kind} JOIN of UNNEST is not supported yet"));
        return Err(RelationalError { place: elements.place, ..error }.hint(EXAMPLE).boxed());
    }
    let array = elements.array.clone().transform(|part| {
        Ok(match part {
            Expr::OuterReferenceColumn(_, column) => Transformed::yes(Expr::Column(column)),
            other => Transformed::no(other),
        })
    })?;
    let (names, alias) = ((elements.names.clone(), elements.is_numbered), elements.alias.clone());
    let rows = Elements::new(join.left.clone(), array.data, names, alias, elements.place)?;
    let rows = rows.into_plan();
    let equal = join.on.iter().map(|(one, other)| one.clone().eq(other.clone()));
    match datafusion_expr::utils::conjunction(equal.chain(join.filter.clone())) {
        Some(condition) => Ok(LogicalPlan::Filter(Filter::try_new(condition, Arc::new(rows))?)),
        None => Ok(rows),
    }
}

compare_by_parts!(Elements);

impl UserDefinedLogicalNodeCore for Elements {
    fn name(&self) -> &str {
        "Elements"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![self.array.clone()]
    }

    /// A condition on elements is no condition on the rows that have them.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        self.names.iter().cloned().collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Elements: {}", self.array)
    }

    fn with_exprs_and_inputs(&self, expressions: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let defect = || DataFusionError::Internal("elements have an array and one input".into());
        let array = expressions.into_iter().next().ok_or_else(defect)?;
        let input = Arc::new(inputs.into_iter().next().ok_or_else(defect)?);
        Self::new(input, array, (self.names.clone(), self.is_numbered), self.alias.clone(), self.place)
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let columns = self.input.schema().fields().len();
        Some(vec![output_columns.iter().copied().filter(|&column| column < columns).collect()])
    }
}
