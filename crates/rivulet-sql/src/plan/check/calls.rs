//! Calls of functions: which functions exist, and where aggregates and history functions may be called.

use datafusion_sql::sqlparser::ast::{self, Expr, Spanned};
use rivulet_operators::AggregateFunction;

use super::earlier_frames;
use super::{ARRIVAL_TIME, COMPUTED_OF, Place, Scope, WINDOW_END, WINDOW_START, exact, not_yet};
use crate::parse::name_of;
use crate::plan::call::call_name;
use crate::plan::functions::{CLOCK, Found, REGISTRY, UUID_OF_NOTHING, instead_of, one_by_one};
use crate::plan::synonyms;
use crate::plan::walk::inspect;
use crate::statement::{Name, PREDICT};
use crate::{Position, SqlError};

impl Scope<'_> {
    pub(super) fn function(&self, expression: &mut Expr, place: Place, fallback: Position) -> Result<(), SqlError> {
        let Expr::Function(function) = expression else { return Ok(()) };
        let position = Position::from(function.name.span()).or(fallback);
        let [ast::ObjectNamePart::Identifier(identifier)] = function.name.0.as_slice() else {
            return Err(SqlError::new(position, format!("unknown function '{}'", function.name)));
        };
        let name = name_of(identifier);
        // `==` would be compiled for the whole syntax tree.
        let plain = !matches!(function.args, ast::FunctionArguments::None);
        if function.uses_odbc_syntax || !matches!(function.parameters, ast::FunctionArguments::None) {
            return Err(not_yet(position, "this form of a call"));
        }
        if name.text == PREDICT {
            return Err(SqlError::new(
                position,
                format!("{PREDICT} reads the file of a model, which only a big query does"),
            )
            .hint("write SELECT predict('model.json', x, y) FROM source"));
        }
        let found = REGISTRY.find(&name.text);
        let has_arguments = match &function.args {
            ast::FunctionArguments::List(list) => !list.args.is_empty(),
            _ => !plain,
        };
        if CLOCK.contains(&&*name.text) && !(plain && has_arguments) && self.columns.contains(&ARRIVAL_TIME) {
            *expression = Expr::Identifier(exact(&Name { text: ARRIVAL_TIME.into(), ..name }));
            return self.names(expression, place, position);
        }
        if name.text == "uuid" && !has_arguments {
            let (why, instead) = UUID_OF_NOTHING;
            return Err(SqlError::new(position, format!("{name} {why}")).hint(instead));
        }
        let is_over = function.over.is_some();
        let takes_over = matches!(found, Found::Aggregate(_) | Found::History | Found::Rank | Found::Refused(..));
        if is_over && !takes_over {
            return Err(not_yet(position, &format!("{name} with OVER")).hint(
                "OVER is for aggregates, lag, changed, hysteresis, row_number, rank and dense_rank; windows stand in \
                 GROUP BY: GROUP BY hop(ts, slide, width)",
            ));
        }
        if let Some(treatment) = &function.null_treatment {
            return Err(not_yet(position, &treatment.to_string())
                .hint("leave it out; first_value(x) FILTER (WHERE x IS NOT NULL) leaves nulls out"));
        }
        if let (Found::Aggregate(_), Some(lagged)) = (&found, earlier_frames::lagged(function)) {
            *expression = lagged;
            return self.names(expression, place, position);
        }
        match found {
            Found::Aggregate(aggregate) if aggregate.is_sequence() => return Err(one_by_one(aggregate, position)),
            Found::Aggregate(_) if is_over => self.check_history(function, &name, place)?,
            Found::Aggregate(_) => self.check_aggregate(function, &name, place)?,
            Found::Scalar if !plain => {
                // A word that is a function without parentheses, such as CURRENT_USER.
                return Err(SqlError::new(position, format!("unknown column '{name}'")));
            }
            Found::Scalar | Found::History | Found::Rank => {
                match found {
                    Found::History => self.check_history(function, &name, place)?,
                    Found::Rank => self.check_rank(function, &name, place)?,
                    _ => {}
                }
                if function.filter.is_some() || !function.within_group.is_empty() {
                    return Err(SqlError::new(position, format!("{name} is not an aggregate"))
                        .hint("FILTER and WITHIN GROUP are for aggregates: leave it out"));
                }
            }
            Found::Window => {
                return Err(match place {
                    Place::GroupKey => SqlError::new(position, format!("{name}() must be a key of GROUP BY by itself"))
                        .hint("select window_start and window_end to see the bounds of the window"),
                    _ => SqlError::new(position, format!("{name}() stands in GROUP BY only"))
                        .hint("select window_start and window_end to see the bounds of the window"),
                });
            }
            Found::Refused(why, instead) => {
                let is_of_arrival = place == Place::Computed && instead.contains(ARRIVAL_TIME);
                let instead = if is_of_arrival { COMPUTED_OF } else { instead };
                return Err(SqlError::new(position, format!("{name} {why}")).hint(instead));
            }
            Found::OtherAggregate => {
                let error = not_yet(position, &format!("the aggregate {name}"));
                return Err(match instead_of(&name.text) {
                    Some(instead) => error.hint(instead),
                    None => error,
                });
            }
            Found::Unknown => {
                let hint = "SHOW FUNCTIONS lists those that there are";
                let error = SqlError::new(position, format!("unknown function '{name}'"));
                return Err(match synonyms::instead(&name.text) {
                    Some(instead) => error.hint(instead),
                    None => error.suggest(&name.text, REGISTRY.names(), hint),
                });
            }
        }
        function.name = ast::ObjectName::from(vec![exact(&name)]);
        let inner = match found {
            Found::Aggregate(_) if !is_over => Place::AggregateArgument,
            Found::Aggregate(_) | Found::History => Place::HistoryArgument,
            _ => place,
        };
        self.arguments(function, &name, inner, position)?;
        if let Some(filter) = &mut function.filter {
            self.names(filter, if is_over { inner } else { Place::AggregateFilter }, position)?;
        }
        Ok(())
    }

    fn check_aggregate(&self, function: &ast::Function, name: &Name, place: Place) -> Result<(), SqlError> {
        let refuse = |message: String| SqlError::new(name.position, message);
        match place {
            Place::Result | Place::Having | Place::HistoryArgument if !self.windowed => {
                return Err(refuse(format!("the aggregate {name} needs a window"))
                    .hint("add one: GROUP BY tumble(ts, INTERVAL '1 minute'), hop, session or count_window"));
            }
            Place::Result | Place::Having | Place::HistoryArgument => {}
            Place::Where => {
                return Err(refuse(format!("the aggregate {name} cannot stand in WHERE"))
                    .hint("WHERE looks at single rows; use HAVING"));
            }
            Place::Computed => {
                return Err(refuse(format!("the aggregate {name} cannot stand in a computed column"))
                    .hint("it is computed of single rows; write the aggregate into the SELECT"));
            }
            Place::UnionColumn => {
                return Err(refuse(format!("the aggregate {name} cannot stand in a SELECT of a UNION ALL"))
                    .hint("aggregate in the SELECT around"));
            }
            Place::GroupKey => {
                return Err(refuse(format!("the aggregate {name} cannot be a key of GROUP BY"))
                    .hint("group by columns; to filter on an aggregate, use HAVING"));
            }
            Place::WindowLength | Place::JoinLength => {
                return Err(refuse("the length of a window or JOIN cannot be an aggregate".into())
                    .hint("write a constant or a parameter: INTERVAL '1 minute' or $width"));
            }
            Place::OutputCondition => {
                return Err(refuse(format!("the aggregate {name} cannot stand in WHEN"))
                    .hint("select it under a name, and write the name"));
            }
            Place::AggregateArgument => {
                return Err(refuse(format!("the aggregate {name} stands inside another aggregate")).hint(
                    "aggregate in a subquery: FROM (SELECT max(value) AS m, window_end FROM t GROUP BY tumble(ts, \
                     INTERVAL '1 minute')) AS r GROUP BY tumble(window_end, INTERVAL '1 hour')",
                ));
            }
            Place::AggregateFilter => {
                return Err(refuse(format!("the aggregate {name} cannot stand in FILTER"))
                    .hint("FILTER looks at single rows; use HAVING or CASE"));
            }
        }
        if !function.within_group.is_empty() {
            let message = format!("WITHIN GROUP is for percentile_cont, string_agg and array_agg, not for {name}");
            return Err(refuse(message).hint("leave it out; first_value and last_value go by event time"));
        }
        Ok(())
    }

    fn check_history(&self, function: &mut ast::Function, name: &Name, place: Place) -> Result<(), SqlError> {
        let problem = match place {
            // An outer history function reads the values that the inner one had for earlier rows.
            Place::Result | Place::HistoryArgument => None,
            Place::Where => Some("cannot stand in WHERE"),
            Place::Computed => Some("cannot stand in a computed column"),
            Place::UnionColumn => Some("cannot stand in a SELECT of a UNION ALL"),
            Place::Having => Some("cannot stand in HAVING"),
            Place::GroupKey => Some("cannot be a key of GROUP BY"),
            Place::WindowLength | Place::JoinLength => Some("cannot stand in the length of a window or JOIN"),
            Place::OutputCondition => Some("cannot stand in WHEN"),
            Place::AggregateArgument | Place::AggregateFilter => Some("cannot stand inside an aggregate"),
        };
        if let Some(problem) = problem {
            return Err(SqlError::new(name.position, format!("{name} {problem}")).hint(match place {
                Place::AggregateArgument | Place::AggregateFilter => "aggregate first: lag(avg(value))",
                _ => "it is computed after WHERE, GROUP BY and HAVING; to filter on it, use QUALIFY",
            }));
        }
        let named = |position: Position| not_yet(position, "a named window").hint("write OVER (PARTITION BY column)");
        let over = match &mut function.over {
            None => return Ok(()),
            Some(ast::WindowType::NamedWindow(window)) => return Err(named(window.span.into())),
            Some(ast::WindowType::WindowSpec(over)) => over,
        };
        if let Some(window) = &over.window_name {
            return Err(named(window.span.into()));
        }
        let is_aggregate = matches!(REGISTRY.find(&name.text), Found::Aggregate(_));
        if over.window_frame.is_some() && !is_aggregate {
            return Err(not_yet(name.position, &format!("a frame in OVER of {name}"))
                .hint("lag(value, 3) looks three rows back; a frame is for aggregates"));
        }
        if is_aggregate && !function.within_group.is_empty() {
            return Err(not_yet(name.position, &format!("WITHIN GROUP of {name} with OVER")));
        }
        let orders = over.order_by.iter_mut().map(|order| &mut order.expr);
        let mut all = over.partition_by.iter_mut().chain(orders);
        all.try_for_each(|one| self.names(one, Place::HistoryArgument, name.position))
    }

    /// Checks a rank, which compares rows of one window in an order.
    fn check_rank(&self, function: &mut ast::Function, name: &Name, place: Place) -> Result<(), SqlError> {
        const EXAMPLE: &str = "write QUALIFY row_number() OVER (PARTITION BY window_start, window_end ORDER BY \
                               count(*) DESC) <= 3";
        let refuse = |message: String| SqlError::new(name.position, message);
        if !matches!(place, Place::Result | Place::HistoryArgument) {
            return Err(refuse(format!("{name} stands in the SELECT and in QUALIFY only"))
                .hint("it is computed after WHERE, GROUP BY and HAVING; to filter on it, use QUALIFY"));
        }
        // Behind a subquery these may be the bounds of its windows.
        let has_bounds = [WINDOW_START, WINDOW_END].iter().all(|bound| self.columns.contains(bound));
        if !self.windowed && !has_bounds {
            return Err(refuse(format!("{name} needs a window, whose rows it compares")).hint(
                "add one: GROUP BY tumble(ts, INTERVAL '1 minute'); lag, changed and hysteresis look at earlier rows",
            ));
        }
        let over = match &mut function.over {
            Some(ast::WindowType::WindowSpec(over)) if over.window_name.is_none() => over,
            Some(_) => return Err(not_yet(name.position, "a named window").hint(EXAMPLE)),
            None => {
                return Err(refuse(format!("{name} needs OVER, which says among which rows")).hint(EXAMPLE));
            }
        };
        if over.window_frame.is_some() {
            return Err(not_yet(name.position, &format!("a frame in OVER of {name}")).hint("leave it out"));
        }
        let is_end = |key: &Expr| matches!(key, Expr::Identifier(key) if name_of(key).text == "window_end");
        if !over.partition_by.iter().any(is_end) {
            return Err(
                refuse(format!("{name} compares the rows of one window, so PARTITION BY names it")).hint(EXAMPLE)
            );
        }
        if over.order_by.is_empty() || over.order_by.iter().any(|order| order.with_fill.is_some()) {
            return Err(refuse(format!("{name} needs ORDER BY in OVER")).hint(EXAMPLE));
        }
        if !matches!(&function.args, ast::FunctionArguments::List(list) if list.args.is_empty()) {
            return Err(refuse(format!("{name} takes no arguments")).hint(EXAMPLE));
        }
        let mut history = None;
        for one in over.partition_by.iter().chain(over.order_by.iter().map(|order| &order.expr)) {
            inspect(one, &mut |part| match part {
                Expr::Function(call) if REGISTRY.find(&call_name(call)).looks_back(call.over.is_some()) => {
                    history = Some(call_name(call))
                }
                _ => {}
            });
        }
        if let Some(history) = history {
            return Err(refuse(format!("{history} cannot stand inside {name}"))
                .hint(format!("a rank is there first: write lag({name}() OVER (...))")));
        }
        let orders = over.order_by.iter_mut().map(|order| &mut order.expr);
        over.partition_by.iter_mut().chain(orders).try_for_each(|one| self.names(one, place, name.position))
    }

    fn arguments(
        &self,
        function: &mut ast::Function,
        name: &Name,
        place: Place,
        position: Position,
    ) -> Result<(), SqlError> {
        let arguments = match &mut function.args {
            ast::FunctionArguments::None => return Ok(()),
            ast::FunctionArguments::Subquery(query) => {
                return Err(not_yet(Position::from(query.span()).or(position), "a subquery"));
            }
            ast::FunctionArguments::List(list) => list,
        };
        let is_list = AggregateFunction::from_name(&name.text).is_some_and(AggregateFunction::is_list);
        if matches!(arguments.duplicate_treatment, Some(ast::DuplicateTreatment::Distinct)) {
            if place != Place::AggregateArgument && AggregateFunction::from_name(&name.text).is_some() {
                let error = not_yet(position, &format!("DISTINCT in {name} with OVER"));
                return Err(error.hint(format!("write {name}(DISTINCT x) with GROUP BY count_window(5, 1)")));
            }
            if place != Place::AggregateArgument {
                return Err(SqlError::new(position, format!("DISTINCT is for aggregates, and {name} is none"))
                    .hint("leave DISTINCT out"));
            }
            let function = AggregateFunction::from_name(&name.text);
            match function.and_then(AggregateFunction::over_distinct) {
                Some(same) if Some(same) == function => arguments.duplicate_treatment = None,
                Some(_) => {}
                None => {
                    let hint = match is_list {
                        true => "SELECT DISTINCT gives each value of a window once, as rows",
                        false => "count(DISTINCT ...), sum(DISTINCT ...) and avg(DISTINCT ...) are",
                    };
                    return Err(not_yet(position, &format!("DISTINCT in {name}")).hint(hint));
                }
            }
        }
        for clause in &mut arguments.clauses {
            if let ast::FunctionArgumentClause::OrderBy(orders) = clause
                && is_list
                && orders.iter().all(|order| order.with_fill.is_none())
            {
                orders.iter_mut().try_for_each(|order| self.names(&mut order.expr, place, position))?;
                continue;
            }
            let error = not_yet(position, &format!("'{clause}' inside a call"));
            return Err(match name.text.as_str() {
                "first_value" | "last_value" => error.hint(format!("leave it out: {name} goes by event time")),
                _ => error.hint("leave it out: only string_agg and array_agg have an order"),
            });
        }
        for argument in &mut arguments.args {
            match argument {
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expression)) => {
                    self.names(expression, place, position)?;
                }
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Wildcard)
                    if name.text == "count" && arguments.duplicate_treatment.is_none() => {}
                ast::FunctionArg::Unnamed(_) => {
                    return Err(SqlError::new(position, format!("'*' is not an argument of {name}"))
                        .hint("only count(*) takes a star"));
                }
                _ => {
                    let error = not_yet(position, "an argument by name");
                    return Err(match name.text.as_str() {
                        "json_object" => error.hint("write json_object('name', value, ...)"),
                        _ => error.hint("write the values alone, in their order: round(value, 2)"),
                    });
                }
            }
        }
        Ok(())
    }
}
