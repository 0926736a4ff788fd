//! The parts that decide about results: the columns of the SELECT and the condition of QUALIFY, as written and as
//! planned.

use datafusion_sql::sqlparser::ast;

use super::aggregate::check_condition;
use super::history::{Histories, PlanExpression, RowOrder};
use super::items::Item;
use super::ranks::Ranks;
use super::walk::start;
use super::window_results::Computed;
use crate::{Position, SqlError};

/// The parts that decide about results, with names checked: the columns of the SELECT, and the condition of QUALIFY.
pub(super) struct Written {
    pub(super) items: Vec<Item>,
    pub(super) qualify: Option<ast::Expr>,
    pub(super) qualify_position: Position,
    /// The expressions of ORDER BY.
    pub(super) order: Vec<ast::Expr>,
}

impl Written {
    pub(super) fn expressions_mut(&mut self) -> impl Iterator<Item = &mut ast::Expr> {
        self.items.iter_mut().map(|item| &mut item.expression).chain(&mut self.qualify).chain(&mut self.order)
    }

    /// Takes out the ranks; `taken` are the names of other columns.
    pub(super) fn extract_ranks(
        &mut self,
        taken: Vec<String>,
        plan: &dyn Fn(&ast::Expr, Position) -> Result<Computed, SqlError>,
    ) -> Result<Ranks, SqlError> {
        let mut ranks = Ranks::new(taken);
        self.expressions_mut().try_for_each(|expression| ranks.extract(expression, plan))?;
        Ok(ranks)
    }

    /// Takes out the history functions. `taken` are the names of other columns, `orders` are those in which rows can
    /// be, and `has_ranks` tells whether ranks were taken out before.
    pub(super) fn extract_histories(
        &mut self,
        taken: Vec<String>,
        orders: Vec<RowOrder>,
        has_ranks: bool,
        plan: &PlanExpression<'_>,
    ) -> Result<Histories, SqlError> {
        let mut histories = Histories::new(taken, orders);
        self.expressions_mut().try_for_each(|expression| histories.extract(expression, plan))?;
        histories.order();
        if self.qualify.is_some() && histories.is_empty() && !has_ranks {
            return Err(SqlError::new(
                self.qualify_position,
                "QUALIFY needs lag, changed, hysteresis, an aggregate with OVER or a rank",
            )
            .hint("filter rows with WHERE, and what windows emit with HAVING"));
        }
        Ok(histories)
    }

    pub(super) fn plan(
        self,
        plan: &dyn Fn(&ast::Expr, Position) -> Result<Computed, SqlError>,
    ) -> Result<Results, SqlError> {
        let order = self.order.iter().map(|one| plan(one, self.qualify_position)).collect::<Result<_, SqlError>>()?;
        let columns = self.items.into_iter().map(|item| {
            let planned = plan(&item.expression, item.position)?;
            Ok((item, planned))
        });
        let columns = columns.collect::<Result<Vec<_>, SqlError>>()?;
        let qualify = self.qualify.map(|condition| {
            let planned = plan(&condition, self.qualify_position)?;
            check_condition(&planned.data_type, "QUALIFY", start(&condition).or(self.qualify_position))?;
            Ok::<_, SqlError>(planned)
        });
        Ok(Results { columns, qualify: qualify.transpose()?, order })
    }
}

/// The same parts, planned.
pub(super) struct Results {
    pub(super) columns: Vec<(Item, Computed)>,
    pub(super) qualify: Option<Computed>,
    /// The expressions by which the rows of windows are ordered.
    pub(super) order: Vec<Computed>,
}
