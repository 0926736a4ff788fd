//! Refuses by name what DataFusion's planner reads and ignores, or would misread over streams: no part of a query is
//! ignored.

use datafusion_sql::sqlparser::ast::{self, Spanned, TableFactor, TableVersion};
use datafusion_sql::sqlparser::tokenizer::Span;

use crate::error::RelationalError;
use crate::subscripts;
use crate::walk::{Node, look, look_at_expression};

/// Fails at the first construct that is not supported.
pub(crate) fn check(query: &ast::Query) -> Result<(), RelationalError> {
    let mut check = Check { has_parameters: false, place: None, negated: None };
    look(query, &mut |node| check.node(node))
}

/// The same for an expression of an application, which may have parameters.
///
/// # Errors
/// A construct that is not supported, at its place.
pub fn check_expression(expression: &ast::Expr) -> Result<(), RelationalError> {
    let mut check = Check { has_parameters: true, place: None, negated: None };
    look_at_expression(expression, &mut |node| check.node(node))
}

struct Check {
    has_parameters: bool,
    /// The last known place.
    place: Option<(u64, u64)>,
    /// The last number after a minus. It is checked together with the minus: the least integer has no positive
    /// counterpart.
    negated: Option<Span>,
}

impl Check {
    fn node(&mut self, node: Node<'_>) -> Result<(), RelationalError> {
        match node {
            Node::Query(query) => self.query(query),
            Node::TableFactor(factor) => self.table_factor(factor),
            Node::Expr(expression) => self.expression(expression),
        }
    }

    fn refuse(&self, what: &str, hint: Option<&str>) -> Result<(), RelationalError> {
        let (place, hint) = (self.place, hint.map(str::to_owned));
        Err(RelationalError { place, hint, ..RelationalError::new(format!("{what} is not supported yet")) })
    }

    fn at(&mut self, node: &impl Spanned) {
        let start = node.span().start;
        if start.line > 0 {
            self.place = Some((start.line, start.column));
        }
    }

    fn body(&mut self, body: &ast::SetExpr) -> Result<(), RelationalError> {
        self.at(body);
        match body {
            ast::SetExpr::Select(select) => self.select(select),
            ast::SetExpr::Query(_) => Ok(()),
            ast::SetExpr::SetOperation { op, left, right, set_quantifier } => {
                use ast::{SetOperator, SetQuantifier};
                match (op, set_quantifier) {
                    (_, SetQuantifier::ByName | SetQuantifier::AllByName | SetQuantifier::DistinctByName) => {
                        let hint = "select the columns in the same order on both sides";
                        return self.refuse(&format!("{op} BY NAME"), Some(hint));
                    }
                    (SetOperator::Minus, _) => return self.refuse("MINUS", Some("write EXCEPT")),
                    (SetOperator::Except | SetOperator::Intersect, SetQuantifier::All) => {
                        let hint = format!("{op} without ALL gives each row once");
                        return self.refuse(&format!("{op} ALL"), Some(&hint));
                    }
                    _ => {}
                }
                self.body(left)?;
                self.body(right)
            }
            ast::SetExpr::Values(_) => self.refuse(
                "VALUES",
                Some("read rows from a file: CREATE SOURCE s (id BIGINT, name TEXT) FROM 'file:s.csv' FORMAT CSV"),
            ),
            ast::SetExpr::Table(_) => self.refuse("TABLE as a query", Some("write SELECT * FROM name")),
            _ => self.refuse("a statement that writes inside of a query", Some("write INSERT INTO sink SELECT ...")),
        }
    }

    fn select(&mut self, select: &ast::Select) -> Result<(), RelationalError> {
        let refusals = [
            (select.top.is_some(), "TOP"),
            (select.into.is_some(), "INTO before FROM"),
            (!select.lateral_views.is_empty(), "LATERAL VIEW"),
            (select.prewhere.is_some(), "PREWHERE"),
            (!select.connect_by.is_empty(), "CONNECT BY"),
            (!select.cluster_by.is_empty(), "CLUSTER BY"),
            (!select.distribute_by.is_empty(), "DISTRIBUTE BY"),
            (!select.sort_by.is_empty(), "SORT BY"),
            (select.exclude.is_some(), "EXCLUDE"),
            (!select.optimizer_hints.is_empty(), "an optimizer hint"),
            (select.select_modifiers.is_some(), "this modifier of SELECT"),
            (select.value_table_mode.is_some(), "SELECT AS VALUE"),
            (!matches!(select.flavor, ast::SelectFlavor::Standard), "FROM before SELECT"),
            (matches!(select.distinct, Some(ast::Distinct::On(_))), "DISTINCT ON"),
        ];
        for (is_there, what) in refusals {
            if is_there {
                if let Some(ast::Distinct::On(keys)) = &select.distinct {
                    keys.iter().take(1).for_each(|key| self.at(key));
                }
                let hint = match what {
                    "INTO before FROM" => Some("the sink stands at the end: SELECT ... FROM ... INTO sink"),
                    "DISTINCT ON" => {
                        Some("keep the first row of each key: ROW_NUMBER() OVER (PARTITION BY key ORDER BY ...) = 1")
                    }
                    "TOP" => Some("write LIMIT 3 at the end"),
                    "LATERAL VIEW" => Some("write CROSS JOIN UNNEST(array) AS u (element)"),
                    "PREWHERE" => Some("write WHERE"),
                    "EXCLUDE" => Some("write SELECT * EXCEPT (column)"),
                    "SELECT AS VALUE" | "FROM before SELECT" => Some("write SELECT columns FROM t"),
                    _ => Some("leave it out"),
                };
                return self.refuse(what, hint);
            }
        }
        for item in &select.projection {
            if let ast::SelectItem::UnnamedExpr(expression) | ast::SelectItem::ExprWithAlias { expr: expression, .. } =
                item
                && matches!(expression, ast::Expr::Tuple(_))
            {
                self.at(expression);
                return self.refuse("a structured value", Some("write ROW(a, b), or select its parts one by one"));
            }
        }
        if matches!(select.group_by, ast::GroupByExpr::All(_)) {
            return self.refuse("GROUP BY ALL", Some("name the keys: GROUP BY device"));
        }
        if let ast::GroupByExpr::Expressions(keys, modifiers) = &select.group_by
            && let Some(modifier) = modifiers.first()
        {
            keys.iter().take(1).for_each(|key| self.at(key));
            let (what, hint) = match modifier {
                ast::GroupByWithModifier::Rollup => ("GROUP BY ... WITH ROLLUP", Some("write GROUP BY ROLLUP (a, b)")),
                ast::GroupByWithModifier::Cube => ("GROUP BY ... WITH CUBE", Some("write GROUP BY CUBE (a, b)")),
                ast::GroupByWithModifier::Totals => {
                    ("GROUP BY ... WITH TOTALS", Some("write GROUP BY GROUPING SETS ((a), ())"))
                }
                ast::GroupByWithModifier::GroupingSets(_) => (
                    "GROUPING SETS behind other keys",
                    Some("put all sets into one: GROUP BY GROUPING SETS ((a, b), (a))"),
                ),
            };
            return self.refuse(what, hint);
        }
        select.from.iter().try_for_each(|from| self.joins(&from.joins))
    }

    /// The planner takes the column of USING from the left side. It is null if an outer join finds no left row.
    fn joins(&mut self, joins: &[ast::Join]) -> Result<(), RelationalError> {
        use ast::{JoinConstraint, JoinOperator};
        for join in joins {
            let (kind, constraint) = match &join.join_operator {
                JoinOperator::Right(constraint) | JoinOperator::RightOuter(constraint) => ("RIGHT", constraint),
                JoinOperator::FullOuter(constraint) => ("FULL", constraint),
                _ => continue,
            };
            let what = match constraint {
                JoinConstraint::Using(_) => format!("{kind} JOIN ... USING"),
                JoinConstraint::Natural => format!("NATURAL {kind} JOIN"),
                _ => continue,
            };
            self.at(&join.relation);
            return self.refuse(
                &what,
                Some("write ON a.key = b.key, and COALESCE(a.key, b.key) where the key of either side is meant"),
            );
        }
        Ok(())
    }

    fn query(&mut self, query: &ast::Query) -> Result<(), RelationalError> {
        self.at(query);
        let refusals = [
            (query.fetch.is_some(), "FETCH", "write LIMIT 3"),
            (!query.locks.is_empty() || query.for_clause.is_some(), "FOR", "leave it out: a query only reads"),
            (query.settings.is_some(), "SETTINGS", "leave it out"),
            (
                query.format_clause.is_some(),
                "FORMAT behind a query",
                "a sink has the format: CREATE SINK name TO 'file:result.csv' FORMAT CSV",
            ),
            (!query.pipe_operators.is_empty(), "the operator '|>'", "write SELECT columns FROM (SELECT ...) AS x"),
            (
                query.with.as_ref().is_some_and(|with| with.recursive),
                "WITH RECURSIVE",
                "leave RECURSIVE out: a query of WITH reads those before it, and not itself",
            ),
        ];
        for (is_there, what, hint) in refusals {
            if is_there {
                if let Some(ast::Fetch { quantity: Some(quantity), .. }) = &query.fetch {
                    self.at(quantity);
                }
                return self.refuse(what, Some(hint));
            }
        }
        self.body(&query.body)
    }

    fn table_factor(&mut self, factor: &TableFactor) -> Result<(), RelationalError> {
        self.at(factor);
        match factor {
            TableFactor::Table {
                name,
                version,
                with_hints,
                with_ordinality,
                partitions,
                json_path,
                sample,
                index_hints,
                ..
            } => {
                self.at(name);
                if version.as_ref().is_some_and(|version| !matches!(version, TableVersion::ForSystemTimeAsOf(_))) {
                    let hint = "write FOR SYSTEM_TIME AS OF and the event time of the rows that are joined";
                    return self.refuse("this kind of version", Some(hint));
                }
                let is_unnest = name_of(name) == "unnest";
                let has_more = !with_hints.is_empty()
                    || *with_ordinality && !is_unnest
                    || !partitions.is_empty()
                    || json_path.is_some()
                    || sample.is_some()
                    || !index_hints.is_empty();
                match has_more {
                    true => self.refuse("this clause in FROM", Some("write FROM t AS x, and filter rows with WHERE")),
                    false => Ok(()),
                }
            }
            TableFactor::Derived { lateral: true, .. } => {
                self.refuse("LATERAL", Some("join the table: JOIN rooms AS r ON r.id = t.room"))
            }
            TableFactor::Derived { sample: Some(_), .. } => {
                self.refuse("TABLESAMPLE", Some("leave it out, and filter rows with WHERE"))
            }
            TableFactor::NestedJoin { table_with_joins, .. } => self.joins(&table_with_joins.joins),
            TableFactor::MatchRecognize { .. } => self.refuse(
                "MATCH_RECOGNIZE in this place",
                Some("write it behind the name of a source: FROM (SELECT * FROM t MATCH_RECOGNIZE (...) AS m) AS x"),
            ),
            _ => Ok(()),
        }
    }

    fn expression(&mut self, expression: &ast::Expr) -> Result<(), RelationalError> {
        use ast::{BinaryOperator, CeilFloorKind, Expr, UnaryOperator, Value};
        let (what, hint) = match expression {
            Expr::UnaryOp { op: UnaryOperator::Minus, expr: number } => match number.as_ref() {
                Expr::Value(value) => {
                    self.negated = Some(value.span);
                    return self.value(value, "-");
                }
                _ => return Ok(()),
            },
            Expr::Value(value) if self.negated != Some(value.span) => return self.value(value, ""),
            Expr::Interval(ast::Interval { value, .. })
                if matches!(**value, Expr::Identifier(_) | Expr::CompoundIdentifier(_)) =>
            {
                self.at(value.as_ref());
                return self.fail("INTERVAL takes a string", "write for example INTERVAL '5 minutes'");
            }
            Expr::Substring { substring_from: None, substring_for: None, .. } => {
                self.at(expression);
                let hint = "write substring(text FROM 2 FOR 3) or substr(text, 2, 3)";
                return self.fail("substring needs a place to begin", hint);
            }
            Expr::Like { escape_char: Some(escape), .. } | Expr::ILike { escape_char: Some(escape), .. } => {
                // The evaluation of LIKE supports no other.
                if matches!(&escape.value, Value::SingleQuotedString(text) if text == "\\") {
                    return Ok(());
                }
                self.at(escape);
                return self.refuse("ESCAPE with another character than '\\'", Some("write LIKE '100\\%' ESCAPE '\\'"));
            }
            Expr::BinaryOp { op: BinaryOperator::BitwiseXor | BinaryOperator::PGExp, .. } => {
                ("the operator '^'".to_owned(), Some("use power(base, exponent)"))
            }
            // Here XOR works on bits, and elsewhere it is logical. Stored applications must not depend on it.
            Expr::BinaryOp { op: BinaryOperator::Xor, .. } if self.has_parameters => {
                ("the operator XOR".to_owned(), Some("write a <> b for conditions"))
            }
            Expr::BinaryOp { op, .. } if !is_operator(op) => (format!("the operator '{op}'"), instead_of(op)),
            Expr::UnaryOp { op, .. } if !matches!(op, UnaryOperator::Plus | UnaryOperator::Not) => {
                (format!("the operator '{op}'"), None)
            }
            Expr::RLike { expr: text, .. } => {
                self.at(text.as_ref());
                return self.refuse("RLIKE", Some("use the operator ~ or regexp_like"));
            }
            Expr::Like { any: true, .. } | Expr::ILike { any: true, .. } => {
                ("LIKE ANY".to_owned(), Some("join the conditions by OR: a LIKE 'x%' OR a LIKE 'y%'"))
            }
            Expr::Ceil { field: CeilFloorKind::Scale(_), .. } | Expr::Floor { field: CeilFloorKind::Scale(_), .. } => {
                ("CEIL or FLOOR to decimals".to_owned(), Some("use round(number, decimals)"))
            }
            Expr::Function(call) => {
                // The planner takes the number for a column.
                if let Some(number) = order_of(call).find(|key| matches!(key, Expr::Value(_))) {
                    self.at(number);
                    return self
                        .fail("ORDER BY inside of a call names no constant", "name what the values are ordered by");
                }
                return Ok(());
            }
            Expr::Array(_) => ("an array in brackets".to_owned(), Some("write json_array(1, 2, 3)")),
            Expr::InUnnest { .. } => ("IN UNNEST".to_owned(), Some("write array_contains(array, value)")),
            Expr::CompoundFieldAccess { access_chain, .. } if subscripts::is_parts(access_chain) => return Ok(()),
            Expr::CompoundFieldAccess { .. } | Expr::JsonAccess { .. } => {
                ("access to a part of a value".to_owned(), Some("a part is array[1], map['key'] or row.field"))
            }
            Expr::Collate { .. } => {
                ("COLLATE".to_owned(), Some("leave it out; lower(a) = lower(b) compares without regard to case"))
            }
            _ => return Ok(()),
        };
        self.at(expression);
        self.refuse(&what, hint)
    }

    fn value(&mut self, value: &ast::ValueWithSpan, sign: &str) -> Result<(), RelationalError> {
        self.at(value);
        match &value.value {
            ast::Value::Placeholder(_) if self.has_parameters => Ok(()),
            ast::Value::Placeholder(name) => self.fail(
                format!("'{name}' is not a value: a big query has no parameters"),
                "write the value itself, for example WHERE value > 3; applications have parameters",
            ),
            ast::Value::Number(digits, _) if !fits(&format!("{sign}{}", digits.replace('_', ""))) => {
                let hint = "whole numbers are from -9223372036854775808 to 9223372036854775807, others are DOUBLE";
                self.fail(format!("the number {sign}{digits} is out of range"), hint)
            }
            _ => Ok(()),
        }
    }

    /// Fails at the last known place.
    fn fail(&self, message: impl Into<String>, hint: &str) -> Result<(), RelationalError> {
        Err(RelationalError { place: self.place, ..RelationalError::new(message) }.hint(hint))
    }
}

/// The keys of ORDER BY inside of a call.
fn order_of(call: &ast::Function) -> impl Iterator<Item = &ast::Expr> {
    let clauses = match &call.args {
        ast::FunctionArguments::List(list) => list.clauses.as_slice(),
        _ => &[],
    };
    let orders = clauses.iter().filter_map(|clause| match clause {
        ast::FunctionArgumentClause::OrderBy(orders) => Some(orders),
        _ => None,
    });
    orders.flatten().map(|order| &order.expr)
}

/// What to write instead of an operator that other databases have.
fn instead_of(operator: &ast::BinaryOperator) -> Option<&'static str> {
    use ast::BinaryOperator as B;
    Some(match operator {
        B::Arrow | B::LongArrow | B::HashArrow | B::HashLongArrow => {
            "json_value(text, '$.a.b') reads a value of a text in JSON, json_query(text, '$.a') an object or array"
        }
        B::Question | B::QuestionAnd | B::QuestionPipe => "write json_exists(text, '$.a')",
        B::PGBitwiseXor => "write (a | b) - (a & b) for the exclusive or of bits",
        _ => return None,
    })
}

/// Whether the language has this operator between two values.
fn is_operator(operator: &ast::BinaryOperator) -> bool {
    use ast::BinaryOperator as B;
    matches!(
        operator,
        B::Plus
            | B::Minus
            | B::Multiply
            | B::Divide
            | B::Modulo
            | B::StringConcat
            | B::Gt
            | B::Lt
            | B::GtEq
            | B::LtEq
            | B::Eq
            | B::NotEq
            | B::Spaceship
            | B::And
            | B::Or
            | B::BitwiseAnd
            | B::BitwiseOr
            | B::Xor
            | B::PGRegexMatch
            | B::PGRegexIMatch
            | B::PGRegexNotMatch
            | B::PGRegexNotIMatch
            | B::PGLikeMatch
            | B::PGILikeMatch
            | B::PGNotLikeMatch
            | B::PGNotILikeMatch
    )
}

/// Whether a number fits BIGINT if it is whole, and DOUBLE if it is not.
fn fits(digits: &str) -> bool {
    match digits.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit()) {
        true => digits.parse::<i64>().is_ok(),
        false => digits.parse::<f64>().is_ok_and(f64::is_finite),
    }
}

/// The name of one part, as the catalog has it.
pub(crate) fn name_of(name: &ast::ObjectName) -> String {
    match name.0.as_slice() {
        [ast::ObjectNamePart::Identifier(only)] if only.quote_style.is_none() => only.value.to_lowercase(),
        [ast::ObjectNamePart::Identifier(only)] => only.value.clone(),
        _ => name.to_string(),
    }
}
