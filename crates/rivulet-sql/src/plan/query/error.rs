//! The errors of a query, in the words and with the positions of the script.

use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_expr::Expr;
use rivulet_operators::PlanError;
use rivulet_relational::{KnownColumn, Problem, RelationalError};

use crate::address::list;
use crate::plan::expression::placed;
use crate::scope::Scope;
use crate::{Position, SqlError, suggest};

/// The error for a part of the language that is not supported yet.
pub(super) fn not_yet(position: Position, what: &str) -> SqlError {
    SqlError::new(position, format!("{what} is not supported yet"))
}

/// The error for a query that cannot be run over streams.
pub(super) fn refused(position: Position, message: impl Into<String>) -> SqlError {
    SqlError::new(position, message)
}

/// How rows ask for versions, for hints.
pub(super) const VERSIONS_EXAMPLE: &str =
    "write FROM orders AS o JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON r.currency = o.currency";

/// The error for versions that no row asks for.
pub(super) fn versions_alone(position: Position) -> SqlError {
    let message = "FOR SYSTEM_TIME AS OF stands in a JOIN, behind the rows whose time it names";
    refused(position, message).hint(VERSIONS_EXAMPLE)
}

/// Converts an error of an operator that no check here has caught.
pub(super) fn defect(error: PlanError, position: Position) -> SqlError {
    crate::plan::defect(error, position)
}

/// The position of an expression: that of its first name.
pub(super) fn place_of(expression: &Expr) -> Position {
    let mut position = Position::default();
    let found = expression.apply(|node| {
        if let Expr::Column(column) = node
            && let Some(span) = column.spans().first()
        {
            position = (span.start.line, span.start.column).into();
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    });
    found.map_or_else(|_| Position::default(), |_| position)
}

/// The extensions of files that a SELECT reads by their paths.
const FILE_NAMES: [&str; 5] = [".jsonl", ".ndjson", ".json", ".csv", ".parquet"];

/// Converts an error of the relational planner.
pub(super) fn relational(error: RelationalError, scope: &Scope, fallback: Position) -> SqlError {
    let position = error.place.map(Position::from).unwrap_or_default().or(fallback);
    match &error.problem {
        Problem::UnknownRelation(name) => {
            let names: Vec<&str> = scope.relations().map(|(name, _)| name).collect();
            let sql_error = SqlError::new(position, error.to_string());
            if name.contains(['/', '*']) || FILE_NAMES.iter().any(|end| name.ends_with(end)) {
                return sql_error.hint(format!(
                    "a file is read by its path in SELECT alone; what goes on reads a source: DESCRIBE '{name}' tells \
                     its CREATE SOURCE"
                ));
            }
            match suggest::nearest(name, names.iter().copied()) {
                Some(near) => sql_error.did_you_mean(Some(near)),
                None if scope.sink(name).is_some() => {
                    sql_error.hint(format!("'{name}' is a sink: results go there, and nobody reads from it"))
                }
                None if names.is_empty() => {
                    sql_error.hint("declare it: CREATE SOURCE name (column TYPE, ...) FROM 'connector:rest'")
                }
                None => sql_error.hint(format!("there are {}", list(&names))),
            }
        }
        Problem::UnknownColumn(name, columns) => {
            let columns: Vec<&KnownColumn> = columns.iter().filter(|column| !column.name.starts_with('$')).collect();
            let (input, bare) =
                name.rsplit_once('.').map_or((None, name.as_str()), |(input, bare)| (Some(input), bare));
            let bare = bare.trim_matches('"');
            let sql_error = SqlError::new(position, error.to_string());
            let near = suggest::nearest(bare, columns.iter().map(|column| column.name.as_str()));
            let near = columns.iter().find(|column| Some(column.name.as_str()) == near);
            let meant = near.and_then(|near| match (input, near.inputs.as_slice()) {
                (Some(input), inputs) if inputs.iter().any(|one| one == input) => {
                    (near.name != bare).then(|| format!("{input}.{}", near.name))
                }
                (Some(_), [input]) if near.name == bare => Some(format!("{input}.{bare}")),
                _ => (near.name != bare || near.inputs.len() > 1).then(|| shown(near).join("' or '")),
            });
            match meant {
                Some(meant) => sql_error.did_you_mean(Some(meant)),
                None if columns.is_empty() => sql_error,
                None => {
                    let names: Vec<String> = columns.into_iter().flat_map(shown).collect();
                    sql_error.hint(format!("the columns here are {}", list(&names)))
                }
            }
        }
        Problem::AmbiguousColumn(name) => {
            SqlError::new(position, error.to_string()).hint(format!("write which one: input.{name}"))
        }
        _ => placed(error, fallback),
    }
}

/// A name as it must be written: with its input, if several inputs have it.
fn shown(column: &KnownColumn) -> Vec<String> {
    match column.inputs.as_slice() {
        [] | [_] => vec![column.name.clone()],
        inputs => inputs.iter().map(|input| format!("{input}.{}", column.name)).collect(),
    }
}
