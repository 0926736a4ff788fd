//! Reference tables in FROM: what each lookup finds, and the columns it adds to every row.
//!
//! The name of a lookup's column is the table's name in the SELECT, a dot, and the column's own name. Inside of a
//! LATERAL, columns of the table have such names too.

mod aggregate;
mod nearby;

use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_expr::{BinaryExpr, Expr, Operator};
use datafusion_sql::sqlparser::ast::{self, Spanned};
use rivulet_operators::{
    Find, Lookup, LookupResults, LookupSpec, NamedExpression, Nearby, OrderKey, Table, TableAggregate, TableFunction,
};

use super::aggregate::{condition_of, sort_options};
use super::check::{ARRIVAL_TIME, Place, Scope, ScopeTable, full_name};
use super::declarations::Declarations;
use super::defect;
use super::expression::{Compiler, ExpressionPlanner, parameter_fields};
use super::items::{item_expression, natural_name, without};
use super::source::{Source, third_input};
use super::types::{cast_to, result_type};
use super::walk::start;
use crate::application::{TableIndex, TableUse, Tables};
use crate::parse::{INSTEAD, name_of};
use crate::statement::{Lateral, LookupClause, LookupKind, Name};
use crate::value::{TIMESTAMP, type_name};
use crate::{Position, SqlError};
use aggregate::{aggregate, holds_aggregate};
use nearby::{PlannedNearby, nearby};

/// The lookups of a SELECT, in order.
pub(super) struct Lookups {
    pub(super) planned: Vec<PlannedLookup>,
    /// The tables that the SELECT can name.
    pub(super) tables: Vec<ScopeTable>,
    /// The columns of rows after all lookups: those of the input, the arrival time, those of the lookups.
    pub(super) fields: Vec<Field>,
}

/// A lookup, over the columns before it.
pub(super) struct PlannedLookup {
    table: Arc<Table>,
    position: Position,
    /// The columns of the table as expressions see them.
    columns: Vec<Field>,
    find: PlannedFind,
    results: Vec<PlannedResult>,
    /// What it does, in SQL.
    pub(super) step: Vec<String>,
}

enum PlannedFind {
    Scan {
        nearby: Option<Box<PlannedNearby>>,
        condition: Option<Expr>,
        order: Vec<(Expr, ast::OrderByOptions)>,
        limit: Option<Expr>,
    },
    Key {
        column: usize,
        value: Expr,
        keeps_unmatched: bool,
    },
}

/// A column of a lookup: an expression over the event and a row of the table, or an aggregate over the rows found.
struct PlannedResult {
    field: Field,
    /// The aggregate `count(*)` has none.
    expression: Option<Expr>,
    function: Option<TableFunction>,
}

impl Lookups {
    /// Plans the lookups behind what a SELECT reads.
    pub(super) fn plan(
        source: &Source<'_>,
        declarations: &Declarations,
        parameter_schema: &SchemaRef,
        tables: &Tables,
    ) -> Result<Self, SqlError> {
        let fields = source.fields.iter().cloned();
        let arrival = source.has_arrival().then(|| Field::new(ARRIVAL_TIME, TIMESTAMP, false));
        let fields = fields.chain(arrival).collect();
        let of_source = source.tables.clone();
        let mut lookups = Self { planned: Vec::new(), tables: of_source, fields };
        for clause in source.lookups {
            let planner = LookupPlanner { source, declarations, parameter_schema, outer: &lookups };
            let planned = planner.plan(clause, tables)?;
            let name = clause.alias.text.clone();
            let plain = |field: &Field| field.name()[name.len() + 1..].to_owned();
            let columns = planned.results.iter().map(|one| plain(&one.field)).collect();
            for PlannedResult { field, .. } in &planned.results {
                if lookups.fields.iter().any(|other| other.name() == field.name()) {
                    return Err(SqlError::new(
                        clause.alias.position,
                        format!("two columns are called '{}'", field.name()),
                    )
                    .hint("give one of them another name with AS"));
                }
                lookups.fields.push(field.clone());
            }
            lookups.tables.push(ScopeTable { name, columns });
            lookups.planned.push(planned);
        }
        Ok(lookups)
    }
}

struct LookupPlanner<'a> {
    source: &'a Source<'a>,
    declarations: &'a Declarations,
    parameter_schema: &'a SchemaRef,
    outer: &'a Lookups,
}

impl LookupPlanner<'_> {
    fn plan(&self, clause: &LookupClause, tables: &Tables) -> Result<PlannedLookup, SqlError> {
        if self.declarations.inputs.iter().any(|input| input.name == clause.table.text) {
            return Err(match self.source.results {
                Some(_) => {
                    SqlError::new(clause.table.position, "a JOIN of a subquery and an input is not supported yet")
                        .hint(INSTEAD)
                }
                None => third_input(clause),
            });
        }
        let table = self.table(&clause.table, tables)?;
        self.check_name(&clause.alias)?;
        match &clause.kind {
            LookupKind::Join { is_latest: true, position, .. } => Err(SqlError::new(*position, "LATEST is for inputs")
                .hint(format!(
                    "the rows of a table are all there: write JOIN {} ON {}.key = value",
                    clause.table, clause.alias
                ))),
            LookupKind::Join { on: Some(on), is_left, .. } => self.join(clause, table, on, *is_left),
            LookupKind::Join { on: None, position, .. } => Err(SqlError::new(*position, "this JOIN has no ON")),
            LookupKind::Lateral(lateral) => self.lateral(clause, table, lateral),
        }
    }

    fn table(&self, name: &Name, tables: &Tables) -> Result<Arc<Table>, SqlError> {
        match tables.get(&name.text) {
            Some(Ok(table)) => Ok(table.clone()),
            Some(Err(reason)) => {
                Err(SqlError::new(name.position, format!("the table '{name}' is not running: {reason}"))
                    .hint(format!("put its file in order, then REFRESH TABLE {name}")))
            }
            None => {
                let error = SqlError::new(name.position, format!("unknown table '{name}'"));
                let hint = format!("create it first: CREATE TABLE {name} (...) FROM 'file:{name}.csv' FORMAT CSV");
                Err(error.suggest(&name.text, tables.keys().map(String::as_str), hint))
            }
        }
    }

    fn check_name(&self, name: &Name) -> Result<(), SqlError> {
        let input = self.source.alias.unwrap_or(self.source.name);
        if name.text == input || self.outer.tables.iter().any(|table| table.name == name.text) {
            return Err(SqlError::new(name.position, format!("the name '{name}' is used twice in FROM"))
                .hint("give one of them another name with AS"));
        }
        Ok(())
    }

    /// Calls `plan` with a scope of the names of earlier rows and of `table`. Names alone may mean columns of that
    /// table.
    fn with_scope<T>(
        &self,
        fields: &[Field],
        table: Option<ScopeTable>,
        plan: impl FnOnce(&Scope<'_>, &ExpressionPlanner) -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        let in_table = table.is_some();
        let outer = self.outer.tables.iter();
        let tables: Vec<ScopeTable> = outer.cloned().chain(table).collect();
        let all: Vec<Field> = self.outer.fields.iter().chain(fields).cloned().collect();
        let scope = Scope {
            input: self.source.name,
            alias: self.source.alias,
            columns: all.iter().map(|field| field.name().as_str()).collect(),
            parameters: &self.declarations.parameters,
            windowed: false,
            tables: &tables,
            in_table,
        };
        let planned = all.iter().cloned().chain(parameter_fields(self.parameter_schema));
        plan(&scope, &ExpressionPlanner::new(planned.collect())?)
    }

    fn join(
        &self,
        clause: &LookupClause,
        table: Arc<Table>,
        on: &ast::Expr,
        is_left: bool,
    ) -> Result<PlannedLookup, SqlError> {
        let alias = &clause.alias;
        let position = start(on).or(alias.position);
        let (columns, scope_table) = columns_of(&table, &alias.text);
        let planned = self.with_scope(&columns, Some(scope_table), |scope, planner| {
            let mut checked = on.clone();
            // Names alone are allowed only if one side has them.
            let scope = Scope { in_table: false, columns: scope.columns.clone(), ..*scope };
            scope.check(&mut checked, Place::Where, position)?;
            condition_of(planner, &checked, "ON", position)
        })?;
        let place = match is_left {
            true => format!("in the SELECT: CASE WHEN {alias}.state = 'on' THEN {alias}.value END"),
            false => "in WHERE".to_owned(),
        };
        let hint =
            format!("write JOIN {} AS {alias} ON {alias}.key = value; other conditions stand {place}", clause.table);
        let refuse = |message: &str| Err(SqlError::new(position, message).hint(&hint));
        let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = planned else {
            return refuse("ON takes one equality with a column of the table");
        };
        let place = |side: &Expr| match side {
            Expr::Column(column) => columns.iter().position(|field| *field.name() == column.name),
            _ => None,
        };
        let has_table =
            |side: &Expr| side.column_refs().iter().any(|one| columns.iter().any(|f| *f.name() == one.name));
        let (column, value) = match (place(&left), place(&right)) {
            (Some(column), None) if !has_table(&right) => (column, *right),
            (None, Some(column)) if !has_table(&left) => (column, *left),
            _ if has_table(&left) || has_table(&right) => {
                return refuse(
                    "one side of the equality must be a column of the table, and the other must not name the table",
                );
            }
            _ => return refuse("the equality names no column of the table"),
        };
        let results = columns
            .iter()
            .map(|field| {
                let expression = Some(Expr::Column(datafusion_common::Column::new_unqualified(field.name())));
                PlannedResult { field: field.clone().with_nullable(true), expression, function: None }
            })
            .collect();
        let join = if is_left { "left join" } else { "join" };
        let step = vec![format!("{join} {} ON {on}", clause.table)];
        let find = PlannedFind::Key { column, value, keeps_unmatched: is_left };
        Ok(PlannedLookup { table, position, columns, find, results, step })
    }

    fn lateral(&self, clause: &LookupClause, table: Arc<Table>, lateral: &Lateral) -> Result<PlannedLookup, SqlError> {
        let position = lateral.position;
        self.check_name(&lateral.table_alias)?;
        let (columns, scope_table) = columns_of(&table, &lateral.table_alias.text);
        let alias = &clause.alias.text;
        let aggregates = |items: &[ast::SelectItem]| {
            items.iter().filter_map(item_expression).any(|(expression, _)| holds_aggregate(expression))
        };
        let (find, results) = self.with_scope(&columns, Some(scope_table), |scope, planner| {
            let condition = match &lateral.filter {
                None => None,
                Some(condition) => {
                    let mut condition = condition.clone();
                    scope.check(&mut condition, Place::Where, position)?;
                    Some(condition_of(planner, &condition, "WHERE", position)?)
                }
            };
            let order = lateral.order_by.iter().map(|key| order_key(key, lateral, scope, planner));
            let order = order.collect::<Result<Vec<_>, _>>()?;
            let limit = lateral.limit.as_ref().map(|limit| limit_of(limit, scope, planner, position)).transpose()?;
            let results = if lateral.around.is_none() && aggregates(&lateral.projection) {
                if let Some(place) = lateral.order_by.first().map(|key| &key.expr).or(lateral.limit.as_ref()) {
                    return Err(SqlError::new(start(place).or(position), "ORDER BY and LIMIT would order one row")
                        .hint("order the rows first: (SELECT count(*) AS n FROM (SELECT ... ORDER BY ... LIMIT 3))"));
                }
                self.aggregates(alias, &lateral.projection, scope, planner, position)?
            } else {
                self.rows(alias, &lateral.projection, &columns, scope, planner, position)?
            };
            let nearby = nearby(condition.as_ref(), &order, limit.is_some(), &columns).map(Box::new);
            Ok((PlannedFind::Scan { nearby, condition, order, limit }, results))
        })?;
        let results = match &lateral.around {
            None => results,
            Some((items, name)) => self.around(alias, items, name.as_ref(), results, position)?,
        };
        let mut step = vec![format!("each row of {}", clause.table)];
        step.extend(lateral.filter.as_ref().map(|filter| format!("where {filter}")));
        let keys: Vec<String> = lateral.order_by.iter().map(ToString::to_string).collect();
        if !keys.is_empty() {
            step.push(format!("order by {}", keys.join(", ")));
        }
        step.extend(lateral.limit.as_ref().map(|limit| format!("limit {limit}")));
        let items = lateral.around.as_ref().map_or(&lateral.projection, |(items, _)| items);
        step.push(items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
        Ok(PlannedLookup { table, position, columns, find, results, step })
    }

    /// Plans the columns of a SELECT of rows.
    fn rows(
        &self,
        alias: &str,
        items: &[ast::SelectItem],
        columns: &[Field],
        scope: &Scope<'_>,
        planner: &ExpressionPlanner,
        position: Position,
    ) -> Result<Vec<PlannedResult>, SqlError> {
        let mut results = Vec::new();
        for (index, item) in items.iter().enumerate() {
            if let ast::SelectItem::Wildcard(options) = item {
                let names = without(options, columns.iter().map(|field| field.name().as_str()), scope)?;
                let meant = columns.iter().filter(|field| names.contains(&field.name().as_str()));
                results.extend(meant.map(|field| PlannedResult {
                    field: Field::new(
                        full_name(alias, scope.plain_name(field.name())),
                        field.data_type().clone(),
                        true,
                    ),
                    expression: Some(Expr::Column(datafusion_common::Column::new_unqualified(field.name()))),
                    function: None,
                }));
                continue;
            }
            let (name, mut expression, position) = named(item, index, position)?;
            scope.check(&mut expression, Place::Where, position)?;
            let (planned, found) = planner.plan_coerced(&expression, position)?;
            let Some(kept) = result_type(&found) else {
                return Err(SqlError::new(position, format!("the column '{name}' cannot be {}", type_name(&found)))
                    .hint("convert it with CAST(... AS TEXT)"));
            };
            results.push(PlannedResult {
                field: Field::new(full_name(alias, &name), kept.clone(), true),
                expression: Some(cast_to(planned, &found, &kept)),
                function: None,
            });
        }
        Ok(results)
    }

    /// Plans the columns of a SELECT of aggregates.
    fn aggregates(
        &self,
        alias: &str,
        items: &[ast::SelectItem],
        scope: &Scope<'_>,
        planner: &ExpressionPlanner,
        position: Position,
    ) -> Result<Vec<PlannedResult>, SqlError> {
        let mut results = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let (name, expression, position) = named(item, index, position)?;
            let (function, expression) = aggregate(&expression, scope, planner, position)?;
            let data_type = expression.as_ref().map(|(_, data_type)| data_type);
            let Some(data_type) = function.result_type(data_type) else {
                let found = data_type.map_or_else(|| "nothing".into(), type_name);
                return Err(SqlError::new(position, format!("this aggregate does not take {found}"))
                    .hint("convert the argument with CAST(... AS TEXT) or CAST(... AS DOUBLE)"));
            };
            results.push(PlannedResult {
                field: Field::new(full_name(alias, &name), data_type, true),
                expression: expression.map(|(expression, _)| expression),
                function: Some(function),
            });
        }
        Ok(results)
    }

    /// Plans the columns of a SELECT of aggregates around a SELECT of rows.
    fn around(
        &self,
        alias: &str,
        items: &[ast::SelectItem],
        name: Option<&Name>,
        rows: Vec<PlannedResult>,
        position: Position,
    ) -> Result<Vec<PlannedResult>, SqlError> {
        let plain = |row: &PlannedResult| row.field.name()[alias.len() + 1..].to_owned();
        let name = name.map_or(alias, |name| name.text.as_str());
        let fields: Vec<Field> =
            rows.iter().map(|row| row.field.clone().with_name(full_name(name, &plain(row)))).collect();
        let table = ScopeTable { name: name.to_owned(), columns: rows.iter().map(plain).collect() };
        let mut results = self.with_scope(&fields, Some(table), |scope, planner| {
            self.aggregates(alias, items, scope, planner, position)
        })?;
        // The expressions of the inner SELECT replace its columns.
        for expression in results.iter_mut().filter_map(|result| result.expression.as_mut()) {
            let replaced = std::mem::take(expression).transform_down(|node| {
                let Expr::Column(column) = &node else { return Ok(Transformed::no(node)) };
                let Some(index) = fields.iter().position(|field| *field.name() == column.name) else {
                    return Ok(Transformed::no(node));
                };
                let inner = rows[index].expression.clone().expect("a row's column is an expression");
                Ok(Transformed::new(inner, true, datafusion_common::tree_node::TreeNodeRecursion::Jump))
            });
            *expression = replaced.data().map_err(|error| SqlError::new(position, error.strip_backtrace()))?;
        }
        Ok(results)
    }
}

/// The columns of a table with the table's name.
fn columns_of(table: &Table, name: &str) -> (Vec<Field>, ScopeTable) {
    let fields = table.schema().fields();
    let columns = fields.iter().map(|field| field.as_ref().clone().with_name(full_name(name, field.name()))).collect();
    let plain = fields.iter().map(|field| field.name().clone()).collect();
    (columns, ScopeTable { name: name.to_owned(), columns: plain })
}

/// The name, expression and position of an item of a SELECT.
fn named(item: &ast::SelectItem, index: usize, fallback: Position) -> Result<(String, ast::Expr, Position), SqlError> {
    let Some((expression, alias)) = item_expression(item) else {
        let position = Position::from(item.span()).or(fallback);
        return Err(
            SqlError::new(position, "this form of a column is not supported in a LATERAL").hint("name the columns")
        );
    };
    let position = start(expression).or(fallback);
    let name = match alias {
        Some(alias) => name_of(alias).text,
        None => natural_name(expression).unwrap_or_else(|| format!("column{}", index + 1)),
    };
    Ok((name, expression.clone(), position))
}

fn order_key(
    key: &ast::OrderByExpr,
    lateral: &Lateral,
    scope: &Scope<'_>,
    planner: &ExpressionPlanner,
) -> Result<(Expr, ast::OrderByOptions), SqlError> {
    let position = start(&key.expr).or(lateral.position);
    if let ast::Expr::Value(_) = key.expr {
        return Err(SqlError::new(position, "ORDER BY takes an expression here, not a constant")
            .hint("write the column or its name"));
    }
    // An alias of the SELECT takes precedence over a column of the same name.
    let given = match &key.expr {
        ast::Expr::Identifier(name) => {
            let name = name_of(name).text;
            let mut items = lateral.projection.iter().filter_map(item_expression);
            items.find_map(|(one, alias)| alias.filter(|alias| name_of(alias).text == name).map(|_| one))
        }
        _ => None,
    };
    let mut expression = given.unwrap_or(&key.expr).clone();
    scope.check(&mut expression, Place::Where, position)?;
    let (planned, data_type) = planner.plan_coerced(&expression, position)?;
    let Some(kept) = result_type(&data_type) else {
        return Err(SqlError::new(position, format!("rows cannot be ordered by {}", type_name(&data_type))));
    };
    Ok((cast_to(planned, &data_type, &kept), key.options))
}

/// The number of rows that LIMIT says, which depends only on parameters.
pub(super) fn limit_of(
    limit: &ast::Expr,
    scope: &Scope<'_>,
    planner: &ExpressionPlanner,
    fallback: Position,
) -> Result<Expr, SqlError> {
    let position = start(limit).or(fallback);
    let mut checked = limit.clone();
    scope.check(&mut checked, Place::Where, position)?;
    let (planned, data_type) = planner.plan_coerced(&checked, position)?;
    if let Some(column) = planned.column_refs().iter().find(|column| !column.name.starts_with('$')) {
        return Err(SqlError::new(position, format!("LIMIT cannot depend on the column '{}'", column.name))
            .hint("use a constant or a parameter"));
    }
    if !data_type.is_integer() {
        return Err(SqlError::new(
            position,
            format!("LIMIT takes a whole number, and this is {}", type_name(&data_type)),
        )
        .hint("write for example LIMIT 3, or declare the parameter as BIGINT"));
    }
    Ok(cast_to(planned, &data_type, &DataType::Int64))
}

impl PlannedLookup {
    /// All expressions that it computes.
    pub(super) fn expressions(&self) -> impl Iterator<Item = &Expr> {
        let (condition, order, limit) = match &self.find {
            PlannedFind::Scan { condition, order, limit, .. } => (condition.as_ref(), order.as_slice(), limit.as_ref()),
            PlannedFind::Key { value, .. } => (Some(value), [].as_slice(), None),
        };
        let find = condition.into_iter().chain(order.iter().map(|(key, _)| key)).chain(limit);
        find.chain(self.results.iter().filter_map(|result| result.expression.as_ref()))
    }

    /// Whether it adds the column `name`.
    pub(super) fn gives(&self, name: &str) -> bool {
        self.results.iter().any(|result| result.field.name() == name)
    }

    /// The use of the table that an application records.
    pub(super) fn table_use(&self) -> TableUse {
        let name = |column: usize| self.table.schema().field(column).name().clone();
        let index = match &self.find {
            PlannedFind::Scan { nearby: None, .. } => TableIndex::None,
            PlannedFind::Scan { nearby: Some(nearby), .. } => {
                let [latitude, longitude] = nearby.columns.map(name);
                TableIndex::Places { latitude, longitude }
            }
            PlannedFind::Key { column, .. } => TableIndex::Key(name(*column)),
        };
        TableUse { table: self.table.clone(), index }
    }

    /// Makes the operator over these columns. Of its own columns it makes only those that `is_used`.
    pub(super) fn operator(
        &self,
        input: &SchemaRef,
        parameter_schema: &SchemaRef,
        is_used: impl Fn(&str) -> bool,
    ) -> Result<Lookup, SqlError> {
        let fields = input.fields().iter().map(|field| field.as_ref()).chain(&self.columns).cloned();
        let compiler = Compiler::new(&Schema::new(fields.collect::<Vec<_>>()), parameter_schema, self.expressions())?;
        let compile = |expression: &Expr| compiler.compile(expression.clone(), self.position);
        let find = match &self.find {
            PlannedFind::Scan { nearby, condition, order, limit } => Find::Scan {
                nearby: nearby
                    .as_ref()
                    .map(|nearby| {
                        let PlannedNearby { columns, place: [latitude, longitude], radius } = &**nearby;
                        Ok::<_, SqlError>(Nearby {
                            columns: *columns,
                            place: [compile(latitude)?, compile(longitude)?],
                            radius: radius.as_ref().map(compile).transpose()?,
                        })
                    })
                    .transpose()?,
                condition: condition.as_ref().map(compile).transpose()?,
                order: order
                    .iter()
                    .map(|(key, options)| {
                        let SortOptions { descending, nulls_first } = sort_options(options);
                        Ok(OrderKey { expression: compile(key)?, descending, nulls_first })
                    })
                    .collect::<Result<_, SqlError>>()?,
                limit: limit.as_ref().map(compile).transpose()?,
            },
            PlannedFind::Key { column, value, keeps_unmatched } => {
                Find::Key { column: *column, value: compile(value)?, keeps_unmatched: *keeps_unmatched }
            }
        };
        let used = || self.results.iter().filter(|result| is_used(result.field.name()));
        let is_aggregate = self.results.iter().any(|result| result.function.is_some());
        let results = if is_aggregate {
            LookupResults::Aggregates(
                used()
                    .map(|one| {
                        Ok(TableAggregate {
                            name: one.field.name().clone(),
                            function: one.function.clone().expect("aggregates stand by themselves"),
                            argument: one.expression.as_ref().map(compile).transpose()?,
                        })
                    })
                    .collect::<Result<_, SqlError>>()?,
            )
        } else {
            LookupResults::Rows(
                used()
                    .map(|one| {
                        let expression = one.expression.as_ref().expect("a row's column is an expression");
                        Ok(NamedExpression::new(one.field.name(), compile(expression)?))
                    })
                    .collect::<Result<_, SqlError>>()?,
            )
        };
        let spec = LookupSpec {
            input: input.clone(),
            parameter_schema: parameter_schema.clone(),
            parameters: compiler.parameters.clone(),
            table: self.table.clone(),
            find,
            results,
        };
        Lookup::new(spec).map_err(|error| defect(error, self.position))
    }
}
