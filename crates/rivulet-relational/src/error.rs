//! What is wrong with a query, and where it stands in the script.

use datafusion_common::{DataFusionError, SchemaError};
use datafusion_sql::sqlparser::ast;

use crate::walk::{Node, look};

/// A query that cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationalError {
    /// What is wrong.
    pub problem: Problem,
    /// The line and column where it stands, counted from 1, where that is known.
    pub place: Option<(u64, u64)>,
    /// What to do about it.
    pub hint: Option<String>,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A name in FROM that stands for nothing.
    UnknownRelation(String),
    /// A column that is not there, and those that are.
    UnknownColumn(String, Vec<String>),
    /// A name that more than one column has.
    AmbiguousColumn(String),
    /// Anything else, in one sentence; from DataFusion or from here.
    Other(String),
}

impl RelationalError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { problem: Problem::Other(message.into()), place: None, hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// With the place of the first column of the name that is wrong, where the planner has kept none.
    pub(crate) fn located(self, query: &ast::Query) -> Self {
        let (None, Problem::UnknownColumn(name, _) | Problem::AmbiguousColumn(name)) = (self.place, &self.problem)
        else {
            return self;
        };
        let bare = name.rsplit('.').next().unwrap_or(name).trim_matches('"');
        let mut place = None;
        let seen = look(query, &mut |node| {
            let ident = match node {
                Node::Expr(ast::Expr::Identifier(ident)) => Some(ident),
                Node::Expr(ast::Expr::CompoundIdentifier(idents)) => idents.last(),
                _ => None,
            };
            if let Some(ident) = ident
                && place.is_none()
                && ident.value.eq_ignore_ascii_case(bare)
            {
                place = Some((ident.span.start.line, ident.span.start.column));
            }
            Ok(())
        });
        debug_assert!(seen.is_ok(), "nothing is wrong with a name here");
        Self { place: place.filter(|(line, _)| *line > 0), ..self }
    }

    /// As an error of DataFusion, to pass through its planner.
    pub(crate) fn boxed(self) -> DataFusionError {
        DataFusionError::External(Box::new(self))
    }
}

impl std::fmt::Display for RelationalError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.problem {
            Problem::UnknownRelation(name) => write!(f, "there is no source, view or table '{name}'"),
            Problem::UnknownColumn(name, _) => write!(f, "unknown column '{name}'"),
            Problem::AmbiguousColumn(name) => write!(f, "more than one input has a column '{name}'"),
            Problem::Other(message) => f.write_str(message),
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
                        SchemaError::FieldNotFound { field, valid_fields } => Problem::UnknownColumn(
                            field.flat_name(),
                            valid_fields.iter().map(|column| column.name.clone()).collect(),
                        ),
                        SchemaError::AmbiguousReference { field } => Problem::AmbiguousColumn(field.name.clone()),
                        SchemaError::DuplicateUnqualifiedField { name } => {
                            Problem::Other(format!("two columns are called '{name}'"))
                        }
                        other => Problem::Other(other.to_string()),
                    };
                    return Self { problem, place, hint: None };
                }
                _ => break,
            };
        }
        let message = cause.strip_backtrace();
        if message.contains("require unique expression names") {
            let problem = Problem::Other("two columns of a SELECT have one name".into());
            return Self { problem, place, hint: Some("name one of them anew, as in SELECT v, v AS again".into()) };
        }
        Self { problem: Problem::Other(message), place, hint: None }
    }
}
