//! What is wrong with a query, and its place in the script.

use std::collections::HashMap;

use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_common::{Column, DataFusionError, SchemaError};
use datafusion_expr::Expr;

/// A query that cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationalError {
    /// What is wrong.
    pub problem: Problem,
    /// The line and column of the problem, counted from 1, if known.
    pub place: Option<(u64, u64)>,
    /// What to do about it.
    pub hint: Option<String>,
}

/// The beginning of the message about two columns of one name.
pub(crate) const TWO_COLUMNS: &str = "two columns are called";

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A name in FROM that is not known.
    UnknownRelation(String),
    /// A column that does not exist, and the columns that do.
    UnknownColumn(String, Vec<KnownColumn>),
    /// A name that more than one column has.
    AmbiguousColumn(String),
    /// An input with two columns of one name, or two inputs of one name: the input, and the column.
    DuplicateColumn(String, String),
    /// A name with a dot, or the part before its dot, if that part is the name of a column.
    FieldOfColumn(String),
    /// A type that does not exist.
    UnknownType(String),
    /// Anything else, in one sentence.
    Other(String),
    /// Anything else, in the words of DataFusion.
    Foreign(String),
}

/// A name that columns have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownColumn {
    /// The name.
    pub name: String,
    /// The inputs that have a column of that name; empty for a computed column.
    pub inputs: Vec<String>,
}

impl KnownColumn {
    /// Lists each name once: names of inputs first, in the order of the columns.
    fn of(columns: &[Column]) -> Vec<Self> {
        let mut known: Vec<Self> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for column in columns {
            let place = *places.entry(&column.name).or_insert_with(|| {
                known.push(Self { name: column.name.clone(), inputs: Vec::new() });
                known.len() - 1
            });
            let input = column.relation.as_ref().map(|relation| relation.table().to_owned());
            if let Some(input) = input.filter(|input| !known[place].inputs.contains(input)) {
                known[place].inputs.push(input);
            }
        }
        known.sort_by_key(|column| column.inputs.is_empty());
        known
    }
}

impl RelationalError {
    /// An error in one sentence, without a place and a hint.
    pub fn new(message: impl Into<String>) -> Self {
        Self { problem: Problem::Other(message.into()), place: None, hint: None }
    }

    /// The error with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Changes the names in the error.
    pub(crate) fn with_names(mut self, change: impl Fn(&str) -> String) -> Self {
        match &mut self.problem {
            Problem::UnknownColumn(name, columns) => {
                *name = change(name);
                let inputs = columns.iter_mut().flat_map(|column| &mut column.inputs);
                inputs.for_each(|input| *input = change(input));
            }
            Problem::DuplicateColumn(text, _)
            | Problem::UnknownRelation(text)
            | Problem::AmbiguousColumn(text)
            | Problem::FieldOfColumn(text)
            | Problem::UnknownType(text)
            | Problem::Other(text)
            | Problem::Foreign(text) => *text = change(text),
        }
        self.hint = self.hint.map(|hint| change(&hint));
        self
    }

    /// Wraps it as an error of DataFusion, to pass through its planner.
    pub fn boxed(self) -> DataFusionError {
        DataFusionError::External(Box::new(self))
    }
}

impl std::fmt::Display for RelationalError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.problem {
            Problem::UnknownRelation(name) => write!(f, "there is no source, view or table '{name}'"),
            Problem::UnknownColumn(name, _) => write!(f, "unknown column '{name}'"),
            Problem::AmbiguousColumn(name) => write!(f, "more than one input has a column '{name}'"),
            Problem::DuplicateColumn(input, name) => write!(f, "{TWO_COLUMNS} '{input}.{name}'"),
            Problem::FieldOfColumn(name) => {
                write!(f, "'{name}' would be a part of a column, and columns have no parts")
            }
            Problem::UnknownType(name) => write!(f, "unknown type '{name}'"),
            Problem::Other(message) | Problem::Foreign(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for RelationalError {}

impl From<DataFusionError> for RelationalError {
    fn from(error: DataFusionError) -> Self {
        let place =
            error.diagnostic().and_then(|diagnostic| diagnostic.span).map(|span| (span.start.line, span.start.column));
        let mut cause = &error;
        loop {
            cause = match cause {
                DataFusionError::Diagnostic(_, inner) | DataFusionError::Context(_, inner) => inner,
                DataFusionError::Collection(errors) if !errors.is_empty() => &errors[0],
                DataFusionError::External(external) => {
                    if let Some(own) = external.downcast_ref::<Self>() {
                        return Self { place: own.place.or(place), ..own.clone() };
                    }
                    break;
                }
                DataFusionError::SchemaError(schema_error, _) => {
                    let problem = match schema_error.as_ref() {
                        SchemaError::FieldNotFound { field, valid_fields } => {
                            Problem::UnknownColumn(field.flat_name(), KnownColumn::of(valid_fields))
                        }
                        SchemaError::AmbiguousReference { field } => Problem::AmbiguousColumn(field.name.clone()),
                        SchemaError::DuplicateUnqualifiedField { name } => {
                            Problem::Other(format!("{TWO_COLUMNS} '{name}'"))
                        }
                        SchemaError::DuplicateQualifiedField { qualifier, name } => {
                            Problem::DuplicateColumn(qualifier.table().to_owned(), name.clone())
                        }
                    };
                    return Self { problem, place, hint: None };
                }
                _ => break,
            };
        }
        let message = cause.strip_backtrace();
        let problem = field_of_column(&message).map_or(Problem::Foreign(message), Problem::FieldOfColumn);
        Self { problem, place, hint: None }
    }
}

/// The place of the first column in an expression.
pub(crate) fn place_of(expression: &Expr) -> Option<(u64, u64)> {
    let mut place = None;
    let found = expression.apply(|node| {
        if let Expr::Column(column) = node {
            place = column.spans().first().map(|span| (span.start.line, span.start.column));
        }
        Ok(if place.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    debug_assert!(found.is_ok(), "nothing is wrong with a look");
    place
}

/// Finds the name in the planner's error about a name with a dot that it takes for a part of a column.
fn field_of_column(message: &str) -> Option<String> {
    let message = message.lines().next()?;
    if let Some((_, idents)) = message.split_once("could not parse compound identifier from [") {
        let idents = idents.split_once(']')?.0.split(", ").map(|ident| ident.trim_matches('"'));
        return Some(idents.collect::<Vec<_>>().join("."));
    }
    // This error names only the column.
    let (_, column) = message.split_once("Nested identifiers are not yet supported for OuterReferenceColumn ")?;
    Some(column.rsplit('.').next()?.trim_matches('"').to_owned())
}
