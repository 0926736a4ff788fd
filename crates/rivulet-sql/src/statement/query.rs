//! The statements of big queries, as parsed: sources, sinks and views, and queries over them.

use std::any::Any;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion_sql::sqlparser::ast;
use rivulet_dataflow::Fuse;

use super::parts::{ColumnDeclaration, MatchClause, Name, SealedComputed, StateWish};
use crate::application::FormatSpec;
use crate::{Literal, Position, SqlError};

/// The function that gives the result of a model.
pub(crate) const PREDICT: &str = "predict";

/// `CREATE SOURCE name [(column TYPE, column AS expression, ..., PRIMARY KEY (column))] FROM 'connector:rest'
/// [FORMAT ...] [WITH (...)]`
#[derive(Clone, Debug)]
pub struct CreateSource {
    /// The name of the source.
    pub name: Name,
    /// Do nothing if there is a source of that name.
    pub if_not_exists: bool,
    /// The statement's text as written, without the closing `;`.
    pub text: String,
    /// Where the rows come from, as `connector:rest`.
    pub address: String,
    /// The position of the address.
    pub address_position: Position,
    /// The format of the rows; `None` leaves it to the connector.
    pub format: Option<FormatSpec>,
    /// The declared columns; `None` leaves them to the connector.
    pub(crate) columns: Option<Vec<ColumnDeclaration>>,
    /// The columns that are computed from the declared ones.
    pub(crate) computed: SealedComputed,
    /// `WATERMARK FOR column AS column - INTERVAL '...'`
    pub(crate) watermark: Option<Watermark>,
    /// The columns of PRIMARY KEY, which identify a row of a source of changes.
    pub(crate) key: Option<Vec<Name>>,
    /// The options in WITH.
    pub(crate) options: Vec<(Name, Literal, Position)>,
    /// Why a stored text could not be read. Only its name is known then.
    pub(crate) unread: Option<SqlError>,
}

impl CreateSource {
    /// The names of the sinks that get the rows which queries refuse.
    pub fn sinks(&self) -> impl Iterator<Item = Name> + '_ {
        self.options.iter().filter_map(|(name, value, position)| match (name.text.as_str(), value) {
            ("late" | "dead_letter", Literal::Text(sink)) => Some(Name { text: sink.clone(), position: *position }),
            _ => None,
        })
    }
}

/// `WATERMARK FOR column AS column - INTERVAL '...'`: the column is the event time, and the interval is the lateness.
#[derive(Clone, Debug)]
pub(crate) struct Watermark {
    pub(crate) column: Name,
    pub(crate) lateness_us: i64,
}

/// `CREATE SINK name [(column TYPE, ...)] TO 'connector:rest' [FORMAT ...] [WITH (...)]`
#[derive(Clone, Debug)]
pub struct CreateSink {
    /// The name of the sink.
    pub name: Name,
    /// Do nothing if there is a sink of that name.
    pub if_not_exists: bool,
    /// The statement's text as written, without the closing `;`.
    pub text: String,
    /// Where results go, as `connector:rest`.
    pub address: String,
    /// The position of the address.
    pub address_position: Position,
    /// The format of the results; `None` leaves it to the connector.
    pub format: Option<FormatSpec>,
    pub(crate) columns: Option<Vec<ColumnDeclaration>>,
    pub(crate) options: Vec<(Name, Literal, Position)>,
    /// Why a stored text could not be read. Only its name is known then.
    pub(crate) unread: Option<SqlError>,
}

/// `CREATE VIEW name AS SELECT ...`: a name for a query, to be read by other queries.
#[derive(Clone, Debug)]
pub struct CreateView {
    /// The name of the view.
    pub name: Name,
    /// Do nothing if there is a view of that name.
    pub if_not_exists: bool,
    /// The statement's text as written, without the closing `;`.
    pub text: String,
    /// The query that the name means.
    pub query: BigQuery,
}

/// `CREATE QUERY` of a query with a text of its own.
#[derive(Clone, Debug)]
pub struct CreateBigQuery {
    /// The name of the query.
    pub name: Name,
    /// Do nothing if there is a query of that name.
    pub if_not_exists: bool,
    /// Whether it takes over from a query of that name, and what then becomes of that query's state.
    pub replaces: Option<StateWish>,
    /// The identity: SHA-256 (hex) of the canonical text.
    pub id: String,
    /// What it computes, and its sink.
    pub query: BigQuery,
}

/// A query over sources, views and tables, with its sink and its options: `SELECT ... [INTO sink] [WITH (option =>
/// value)]`.
#[derive(Clone)]
pub struct BigQuery {
    /// The sink, if one is named. Without one, results go to the caller.
    pub sink: Option<Name>,
    /// The position of the SELECT.
    pub position: Position,
    /// The statement's text as written, without the closing `;`.
    pub text: String,
    /// The positions of the word JOIN, because the syntax tree does not have them.
    pub(crate) joins: Vec<Position>,
    /// How long state is remembered that no row uses, in microseconds of event time. `None`: for ever.
    pub(crate) state_ttl_us: Option<i64>,
    /// Which operators run together, if it says so.
    pub(crate) fuse: Option<Fuse>,
    /// Whether its tasks may go to burst workers.
    pub(crate) is_burst: bool,
    /// The syntax tree, or why a stored text has none. Its type is hidden from other crates: the parser has many types,
    /// and every crate that can drop one compiles code for all of them.
    pub(crate) query: Arc<dyn Any + Send + Sync>,
}

/// Operators of a running query. Any operator means the stage that it runs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operators {
    /// All of them.
    All,
    /// The one with this number in `EXPLAIN QUERY`, from 1.
    Number(usize, Position),
    /// The one with this name in `EXPLAIN QUERY`.
    Named(Name),
}

/// What the parser returned for a text: the syntax tree, and the row patterns that were taken out of it.
type Parsed = Result<(ast::Query, Vec<Arc<MatchClause>>), SqlError>;

impl BigQuery {
    pub(crate) fn new(
        query: ast::Query,
        patterns: Vec<MatchClause>,
        sink: Option<Name>,
        position: Position,
        text: &str,
    ) -> Self {
        let patterns = patterns.into_iter().map(Arc::new).collect();
        let (text, query) = (text.to_owned(), Arc::new(Parsed::Ok((query, patterns))));
        Self { sink, position, text, joins: Vec::new(), state_ttl_us: None, fuse: None, is_burst: false, query }
    }

    /// Makes a stored query that could not be read.
    pub(crate) fn unread(error: SqlError, text: &str) -> Self {
        let (position, query) = (Position::default(), Arc::new(Parsed::Err(error)));
        let (text, joins) = (text.to_owned(), Vec::new());
        Self { sink: None, position, text, joins, state_ttl_us: None, fuse: None, is_burst: false, query }
    }

    /// The files that the query reads by path, in single quotes in FROM. Each is listed once.
    pub fn files(&self) -> Vec<(String, Position)> {
        let mut files: Vec<(String, Position)> = Vec::new();
        let Ok(query) = self.query() else { return files };
        let _ = ast::visit_relations(query, |name| {
            if let [ast::ObjectNamePart::Identifier(name)] = name.0.as_slice()
                && name.quote_style == Some('\'')
                && !files.iter().any(|(known, _)| *known == name.value)
            {
                files.push((name.value.clone(), Position::from(name.span).or(self.position)));
            }
            ControlFlow::<()>::Continue(())
        });
        files
    }

    /// The files of the models that the query calls, each once.
    pub fn models(&self) -> Vec<(String, Position)> {
        let mut models: Vec<(String, Position)> = Vec::new();
        let Ok(query) = self.query() else { return models };
        let _ = ast::visit_expressions(query, |expression| {
            if let ast::Expr::Function(call) = expression
                && let [ast::ObjectNamePart::Identifier(name)] = call.name.0.as_slice()
                && name.value.eq_ignore_ascii_case(PREDICT)
                && let ast::FunctionArguments::List(arguments) = &call.args
                && let Some(ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(ast::Expr::Value(file)))) =
                    arguments.args.first()
                && let ast::Value::SingleQuotedString(path) = &file.value
                && !models.iter().any(|(known, _)| known == path)
            {
                models.push((path.clone(), Position::from(file.span).or(self.position)));
            }
            ControlFlow::<()>::Continue(())
        });
        models
    }

    /// The syntax tree, or the error of a stored text that could not be read.
    pub(crate) fn query(&self) -> Result<&ast::Query, SqlError> {
        self.parsed().as_ref().map(|(query, _)| query).map_err(SqlError::clone)
    }

    /// The row patterns, by the number in their call of
    /// [`ROW_PATTERN`](rivulet_relational::matches::ROW_PATTERN).
    pub(crate) fn patterns(&self) -> &[Arc<MatchClause>] {
        self.parsed().as_ref().map_or(&[], |(_, patterns)| patterns)
    }

    fn parsed(&self) -> &Parsed {
        self.query.downcast_ref().expect("a big query holds a query")
    }
}

impl fmt::Debug for BigQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BigQuery").field("text", &self.text).field("sink", &self.sink).finish_non_exhaustive()
    }
}
