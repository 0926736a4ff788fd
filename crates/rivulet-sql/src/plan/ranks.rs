//! Comparing the rows of a window. ROW_NUMBER, RANK and DENSE_RANK become columns as history functions do. ORDER BY
//! with LIMIT is a ROW_NUMBER and a condition on it.

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion_common::Column;
use datafusion_expr::Expr;
use datafusion_sql::sqlparser::ast::{self, Spanned};
use rivulet_operators::{Rank, RankFunction, RankSpec, WindowSpec};

use super::aggregate::{constant, sort_options, unique, widen};
use super::call::call_name;
use super::check::BOUNDS;
use super::defect;
use super::expression::Compiler;
use super::lookup::limit_of;
use super::operators::Operators;
use super::planner::SelectPlanner;
use super::types::{cast_to, result_type};
use super::walk::{replace_calls, start};
use super::window::Window;
use super::window_results::Computed;
use crate::parse::name_of;
use crate::statement::TopClause;
use crate::value::type_name;
use crate::{Position, SqlError};

/// The ranks of one SELECT. A rank that is written several times is held once.
pub(super) struct Ranks {
    calls: Vec<Call>,
    /// Names of other columns, which columns of ranks must not have.
    taken: Vec<String>,
}

struct Call {
    /// The name of its column.
    column: String,
    function: RankFunction,
    keys: Vec<Computed>,
    orders: Vec<(Computed, SortOptions)>,
    position: Position,
}

impl Ranks {
    /// Starts without ranks; `taken` are the names of other columns.
    pub(super) fn new(taken: Vec<String>) -> Self {
        Self { calls: Vec::new(), taken }
    }

    /// Replaces every rank in a checked expression by the name of its column. `plan` plans over the rows of windows.
    pub(super) fn extract(
        &mut self,
        expression: &mut ast::Expr,
        plan: &dyn Fn(&ast::Expr, Position) -> Result<Computed, SqlError>,
    ) -> Result<(), SqlError> {
        replace_calls(expression, &mut |call| match RankFunction::from_name(&call_name(call)) {
            Some(function) => self.register(function, call, plan).map(Some),
            None => Ok(None),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// All expressions over the rows that ranks compare.
    pub(super) fn expressions(&self) -> impl Iterator<Item = &Expr> {
        self.calls.iter().flat_map(|call| {
            let keys = call.keys.iter().map(|key| &key.expression);
            keys.chain(call.orders.iter().map(|(one, _)| &one.expression))
        })
    }

    /// The columns of the ranks.
    pub(super) fn fields(&self) -> Vec<Field> {
        self.calls.iter().map(|call| Field::new(&call.column, DataType::Int64, true)).collect()
    }

    fn register(
        &mut self,
        function: RankFunction,
        call: &ast::Function,
        plan: &dyn Fn(&ast::Expr, Position) -> Result<Computed, SqlError>,
    ) -> Result<String, SqlError> {
        let position = Position::from(call.name.span());
        let Some(ast::WindowType::WindowSpec(over)) = &call.over else {
            return Err(SqlError::new(position, format!("{function} needs OVER")));
        };
        let is_bound = |key: &&ast::Expr| match key {
            ast::Expr::Identifier(name) => {
                BOUNDS.iter().any(|(bound, marked)| [*bound, *marked].contains(&name_of(name).text.as_str()))
            }
            _ => false,
        };
        let kept = |expression: &ast::Expr, what: &str| {
            let place = start(expression).or(position);
            let Computed { expression, data_type, .. } = plan(expression, position)?;
            let (expression, data_type) = widen((expression, data_type));
            match result_type(&data_type) {
                Some(kept) => Ok(Computed::new(cast_to(expression, &data_type, &kept), kept, place)),
                None => Err(SqlError::new(place, format!("{} cannot stand in {what}", type_name(&data_type)))),
            }
        };
        let keys = over.partition_by.iter().filter(|key| !is_bound(key));
        let keys = keys.map(|key| kept(key, "PARTITION BY")).collect::<Result<Vec<_>, SqlError>>()?;
        let orders = over.order_by.iter();
        let orders = orders.map(|order| Ok((kept(&order.expr, "ORDER BY")?, sort_options(&order.options))));
        let orders = orders.collect::<Result<Vec<_>, SqlError>>()?;
        let text = call.to_string().replace('"', "");
        let same = |other: &&Call| {
            let orders_of = other.orders.iter().map(|(one, options)| (&one.expression, options));
            other.function == function
                && other.keys.iter().map(|key| &key.expression).eq(keys.iter().map(|key| &key.expression))
                && orders_of.eq(orders.iter().map(|(one, options)| (&one.expression, options)))
        };
        if let Some(known) = self.calls.iter().find(same) {
            return Ok(known.column.clone());
        }
        let column = unique(text, &self.taken);
        self.taken.push(column.clone());
        self.calls.push(Call { column: column.clone(), function, keys, orders, position });
        Ok(column)
    }
}

/// Planned ORDER BY and LIMIT.
pub(super) struct Top {
    pub(super) orders: Vec<(Computed, SortOptions)>,
    /// The number of rows, which depends only on parameters.
    limit: Option<Expr>,
    /// The text as written.
    text: String,
    position: Position,
}

impl SelectPlanner<'_> {
    /// Refuses ranks unless the SELECT reads the rows of windows.
    pub(super) fn check_ranked_results(&self, ranks: &Ranks) -> Result<(), SqlError> {
        let can_be_ranked = self.source.results.as_ref().is_some_and(|results| results.can_be_ranked);
        match ranks.calls.first() {
            Some(call) if !can_be_ranked => Err(SqlError::new(
                call.position,
                format!("{} compares the rows of one window, and these are not the results of windows", call.function),
            )
            .hint("select window_start and window_end in the subquery with tumble, hop or cumulate, by these names")),
            Some(call) if !self.keeps_batches() => Err(SqlError::new(
                call.position,
                format!("{} beside a JOIN or UNNEST is not supported yet", call.function),
            )
            .hint("rank the rows in a subquery, and join or unnest in the SELECT around it")),
            _ => Ok(()),
        }
    }

    /// Refuses ranks if each key has windows of its own, because ranks compare the rows of one window.
    pub(super) fn check_ranked(&self, window: &Window, ranks: &Ranks) -> Result<(), SqlError> {
        let ranked = ranks.calls.first().map(|call| (call.position, call.function.to_string()));
        let top = self.select.top.as_ref().map(|top| (top.position, "ORDER BY".to_owned()));
        let what = match window.spec {
            WindowSpec::Session { .. } => "sessions",
            WindowSpec::Count { .. } => "windows of rows",
            WindowSpec::State => "windows of a state",
            _ => return Ok(()),
        };
        match ranked.or(top) {
            Some((position, name)) => Err(SqlError::new(
                position,
                format!("{name} compares the rows of one window, and {what} of different keys begin and end apart"),
            )
            .hint("use tumble, hop or cumulate")),
            None => Ok(()),
        }
    }

    /// Plans ORDER BY and LIMIT of a window. The columns of ORDER BY are planned already.
    pub(super) fn top(&self, clause: &TopClause, orders: Vec<Computed>) -> Result<Top, SqlError> {
        let Some(order) = clause.order_by.first() else {
            return Err(SqlError::new(clause.position, "LIMIT needs ORDER BY")
                .hint("it says which rows of a window come first: ORDER BY count(*) DESC LIMIT 3"));
        };
        let position = start(&order.expr).or(clause.position);
        let options = clause.order_by.iter().map(|order| sort_options(&order.options));
        let orders = orders.into_iter().zip(options).collect();
        let limit = clause.limit.as_ref().map(|limit| self.limit(limit, clause.position)).transpose()?;
        let written = clause.order_by.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let limit_text = clause.limit.as_ref().map_or_else(String::new, |limit| format!(" LIMIT {limit}"));
        Ok(Top { orders, limit, text: format!("ORDER BY {written}{limit_text}"), position })
    }

    fn limit(&self, limit: &ast::Expr, fallback: Position) -> Result<Expr, SqlError> {
        let planned = limit_of(limit, &self.scope, &self.rows, fallback)?;
        if constant(&planned).is_some_and(|rows| rows < 0.0) {
            return Err(SqlError::new(start(limit).or(fallback), "LIMIT takes a whole number, 0 or more")
                .hint("write for example LIMIT 3"));
        }
        Ok(planned)
    }

    /// Adds the operators that compute ranks over rows with `columns`; returns their output columns.
    pub(super) fn push_ranks(
        &self,
        ranks: &Ranks,
        mut columns: SchemaRef,
        operators: &mut Operators,
    ) -> Result<SchemaRef, SqlError> {
        for call in &ranks.calls {
            let rank = self.rank(call, &columns, false)?;
            columns = rank.output_schema().clone();
            let keys = call.keys.iter().map(|key| key.expression.clone()).collect();
            operators.push_ranked(rank, vec![call.column.clone()], keys);
        }
        Ok(columns)
    }

    /// Adds the operators that order the rows of each window and drop those beyond the limit.
    pub(super) fn push_top(
        &self,
        top: Top,
        columns: &SchemaRef,
        operators: &mut Operators,
    ) -> Result<SchemaRef, SqlError> {
        let taken: Vec<String> = columns.fields().iter().map(|field| field.name().clone()).collect();
        let column = unique("row_number".to_owned(), &taken);
        let Top { orders, limit, text, position } = top;
        let number =
            Call { column: column.clone(), function: RankFunction::RowNumber, keys: Vec::new(), orders, position };
        let rank = self.rank(&number, columns, true)?;
        let columns = rank.output_schema().clone();
        operators.push_ranked(rank, vec![text.clone()], Vec::new());
        if let Some(limit) = limit {
            let is_among = Expr::Column(Column::new_unqualified(column)).lt_eq(limit);
            operators.push(self.filter(&columns, is_among, position)?, vec![text]);
        }
        Ok(columns)
    }

    fn rank(&self, call: &Call, columns: &SchemaRef, in_order: bool) -> Result<Rank, SqlError> {
        let expressions = call.keys.iter().chain(call.orders.iter().map(|(one, _)| one)).map(|one| &one.expression);
        let compiler = Compiler::new(columns, self.parameter_schema, expressions)?;
        let compile = |one: &Computed| compiler.compile(one.expression.clone(), one.position);
        let keys = call.keys.iter().map(compile).collect::<Result<Vec<_>, SqlError>>()?;
        let orders = call.orders.iter().map(|(one, options)| Ok((compile(one)?, *options)));
        Rank::new(RankSpec {
            input: columns.clone(),
            parameter_schema: self.parameter_schema.clone(),
            orders: orders.collect::<Result<Vec<_>, SqlError>>()?,
            keys,
            parameters: compiler.parameters.clone(),
            name: call.column.clone(),
            function: call.function,
            in_order,
        })
        .map_err(|error| defect(error, call.position))
    }
}
