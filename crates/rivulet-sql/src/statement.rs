//! The statements of the language, as parsed and not yet planned.

mod query;

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion_sql::sqlparser::ast;

use crate::address::DEFAULT_CONNECTOR;
pub use crate::application::FormatSpec;
use crate::{Literal, Position};

pub(crate) use query::Watermark;
pub use query::{BigQuery, CreateBigQuery, CreateSink, CreateSource, CreateView};

/// A statement.
#[derive(Clone, Debug)]
pub enum Statement {
    /// `CREATE [OR REPLACE] APPLICATION [IF NOT EXISTS] ...`
    CreateApplication(Box<CreateApplication>),
    /// `CREATE QUERY [IF NOT EXISTS] q FROM APPLICATION a [WITH (parameter => value, ...)] [LABEL 'text']`
    CreateQuery {
        /// The name of the query.
        name: Name,
        /// Do nothing if there is a query of that name.
        if_not_exists: bool,
        /// The name (or identity) of the application.
        application: Name,
        /// The parameters and their values.
        values: Vec<(Name, Literal, Position)>,
        /// What it belongs to, in words of the user.
        label: Option<(String, Position)>,
    },
    /// `CREATE [OR REPLACE] TABLE [IF NOT EXISTS] ...`
    CreateTable(Box<CreateTable>),
    /// `CREATE SOURCE [IF NOT EXISTS] ...`
    CreateSource(Box<CreateSource>),
    /// `CREATE SINK [IF NOT EXISTS] ...`
    CreateSink(Box<CreateSink>),
    /// `CREATE VIEW [IF NOT EXISTS] v AS SELECT ...`
    CreateView(Box<CreateView>),
    /// `CREATE [OR REPLACE] QUERY [IF NOT EXISTS] q AS SELECT ... INTO sink`, or `... AS INSERT INTO sink SELECT ...`
    CreateBigQuery(Box<CreateBigQuery>),
    /// `SELECT ...`, with results to the caller, or `INSERT INTO sink SELECT ...`
    RunQuery(BigQuery),
    /// `EXPLAIN [ANALYZE] SELECT ...`, `EXPLAIN [ANALYZE] INSERT INTO sink SELECT ...`
    ExplainBigQuery {
        /// What is explained.
        query: BigQuery,
        /// Whether it is run, to say what it did.
        analyze: bool,
    },
    /// `DROP SOURCE [IF EXISTS] s`
    DropSource {
        /// The name of the source.
        name: Name,
        /// Do nothing if there is none.
        if_exists: bool,
    },
    /// `DROP SINK [IF EXISTS] s`
    DropSink {
        /// The name of the sink.
        name: Name,
        /// Do nothing if there is none.
        if_exists: bool,
    },
    /// `DROP VIEW [IF EXISTS] v`
    DropView {
        /// The name of the view.
        name: Name,
        /// Do nothing if there is none.
        if_exists: bool,
    },
    /// `SHOW SOURCES [LIKE 'pattern'] [LIMIT n]`
    ShowSources {
        /// Only names like this.
        like: Option<String>,
        /// At most so many.
        limit: Option<u64>,
    },
    /// `SHOW SINKS [LIKE 'pattern'] [LIMIT n]`
    ShowSinks {
        /// Only names like this.
        like: Option<String>,
        /// At most so many.
        limit: Option<u64>,
    },
    /// `SHOW VIEWS [LIKE 'pattern'] [LIMIT n]`
    ShowViews {
        /// Only names like this.
        like: Option<String>,
        /// At most so many.
        limit: Option<u64>,
    },
    /// `SHOW FUNCTIONS [LIKE 'pattern'] [LIMIT n]`
    ShowFunctions {
        /// Only names like this.
        like: Option<String>,
        /// At most so many.
        limit: Option<u64>,
    },
    /// `DESCRIBE FUNCTION f`
    DescribeFunction(Name),
    /// `CHECKPOINT`
    Checkpoint,
    /// `SHOW CHECKPOINTS`
    ShowCheckpoints,
    /// `REFRESH TABLE t`
    RefreshTable(Name),
    /// `DROP TABLE [IF EXISTS] t`
    DropTable {
        /// The name of the table.
        name: Name,
        /// Do nothing if there is none.
        if_exists: bool,
    },
    /// `SHOW TABLES [LIKE 'pattern'] [LIMIT n]`
    ShowTables {
        /// Only names like this.
        like: Option<String>,
        /// At most so many.
        limit: Option<u64>,
    },
    /// `DESCRIBE TABLE t`
    DescribeTable(Name),
    /// `SHOW APPLICATIONS [LIKE 'pattern'] [LIMIT n]`
    ShowApplications {
        /// Only names like this.
        like: Option<String>,
        /// At most so many.
        limit: Option<u64>,
    },
    /// `SHOW QUERIES [FROM APPLICATION a] [LIKE 'pattern'] [LIMIT n]`
    ShowQueries {
        /// Only those of this application.
        application: Option<Name>,
        /// Only names like this.
        like: Option<String>,
        /// At most so many.
        limit: Option<u64>,
    },
    /// `DESCRIBE APPLICATION a`
    DescribeApplication(Name),
    /// `DESCRIBE QUERY q`
    DescribeQuery(Name),
    /// `DESCRIBE SOURCE s`
    DescribeSource(Name),
    /// `DESCRIBE SINK s`
    DescribeSink(Name),
    /// `DESCRIBE VIEW v`
    DescribeView(Name),
    /// `DESCRIBE 'path'`: the source that a file would be declared as.
    DescribeFile {
        /// The path.
        path: String,
        /// Where it stands.
        position: Position,
    },
    /// `EXPLAIN APPLICATION a`
    ExplainApplication(Name),
    /// `EXPLAIN CREATE APPLICATION ...`
    ExplainCreate(Box<CreateApplication>),
    /// `EXPLAIN QUERY q`
    ExplainQuery(Name),
    /// `ALTER QUERY q [SET (parameter => value, ...)] [LABEL 'text' | LABEL NULL]`
    AlterQuery {
        /// The name of the query.
        name: Name,
        /// The parameters that get other values, and these.
        values: Vec<(Name, Literal, Position)>,
        /// What it belongs to from now on, `Some(None)` for nothing; `None` if that stays.
        label: Option<Option<(String, Position)>>,
    },
    /// `ALTER APPLICATION a [INPUT i] SET (option => value, ...)`
    AlterApplication {
        /// The name of the application.
        name: Name,
        /// The input of which options change; `None` for all of them.
        input: Option<Name>,
        /// The options and their values.
        options: Vec<(Name, Literal, Position)>,
        /// What becomes of state with which the application cannot go on.
        wish: StateWish,
    },
    /// `PAUSE QUERY q`
    PauseQuery(Name),
    /// `RESUME QUERY q`
    ResumeQuery(Name),
    /// `DROP QUERY [IF EXISTS] q`
    DropQuery {
        /// The name of the query.
        name: Name,
        /// Do nothing if there is none.
        if_exists: bool,
    },
    /// `DROP APPLICATION [IF EXISTS] a [CASCADE]`
    DropApplication {
        /// The name of the application.
        name: Name,
        /// Do nothing if there is none.
        if_exists: bool,
        /// Drop its queries too; without it an application with queries stays.
        cascade: bool,
    },
}

/// A name and where it stands. Unquoted names are in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name.
    pub text: String,
    /// Where it stands.
    pub position: Position,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// `CREATE [OR REPLACE] TABLE name (column TYPE [NOT NULL], ...) FROM 'address' FORMAT ...`: a reference table.
#[derive(Clone, Debug)]
pub struct CreateTable {
    /// The name of the table.
    pub name: Name,
    /// Do nothing if there is a table of that name.
    pub if_not_exists: bool,
    /// Whether its rows take the place of those of a table with that name.
    pub replaces: bool,
    /// The statement's text as written, without the closing `;`.
    pub text: String,
    /// The identity: SHA-256 (hex) of the canonical text.
    pub id: String,
    /// The declared columns.
    pub schema: SchemaRef,
    /// Where its rows are, as `connector:rest`.
    pub address: String,
    /// Where the address stands.
    pub address_position: Position,
    /// How the rows are written.
    pub format: FormatSpec,
}

/// `CREATE APPLICATION`, as parsed: declarations read, the SELECT as a syntax tree.
#[derive(Clone, Debug)]
pub struct CreateApplication {
    /// The name of the application.
    pub name: Name,
    /// Do nothing if there is an application of that name.
    pub if_not_exists: bool,
    /// Whether it takes over the queries of an application of that name, and what then becomes of their state.
    pub replaces: Option<StateWish>,
    /// The statement's text as written, without the closing `;`.
    pub text: String,
    /// The identity: SHA-256 (hex) of the canonical text.
    pub id: String,
    pub(crate) parameters: Vec<ParameterDeclaration>,
    /// Those that stand in an expression, in lower case.
    pub(crate) parameters_used: BTreeSet<String>,
    pub(crate) inputs: Vec<InputDeclaration>,
    pub(crate) outputs: Vec<OutputDeclaration>,
    pub(crate) select: SealedSelect,
}

/// What is to become of state when a new version takes over: of an application that of its queries, of a query its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StateWish {
    /// `state => 'keep'`: all of it is kept, or the new version is refused.
    #[default]
    Keep,
    /// `state => 'discard'`: what the new version can use is kept, the rest is forgotten.
    Discard,
}

/// A part of the syntax tree whose type is not known outside of this crate. The parser's syntax tree has hundreds of
/// types, and every crate that can drop or copy one would compile the code for all of them again: minutes of each
/// build.
pub(crate) struct Sealed<T>(Arc<dyn Any + Send + Sync>, PhantomData<fn() -> T>);

/// The SELECT of an application.
pub(crate) type SealedSelect = Sealed<Select>;

/// The computed columns of a source.
pub(crate) type SealedComputed = Sealed<Vec<ComputedColumn>>;

impl<T: Any + Send + Sync> Sealed<T> {
    pub(crate) fn new(part: T) -> Self {
        Self(Arc::new(part), PhantomData)
    }

    pub(crate) fn open(&self) -> &T {
        self.0.downcast_ref().expect("what was sealed")
    }
}

impl<T> Clone for Sealed<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<T> fmt::Debug for Sealed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealed")
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ParameterDeclaration {
    pub(crate) name: Name,
    pub(crate) data_type: DataType,
    pub(crate) default: Option<(Literal, Position)>,
}

#[derive(Clone, Debug)]
pub(crate) struct InputDeclaration {
    pub(crate) name: Name,
    pub(crate) columns: Vec<ColumnDeclaration>,
    pub(crate) address: Option<(String, Position)>,
    pub(crate) format: FormatSpec,
    pub(crate) options: Vec<(Name, Literal, Position)>,
    /// Where `WITH (...)` begins, and what follows it; the same place where it could stand and does not.
    pub(crate) options_at: (Position, Position),
}

#[derive(Clone, Debug)]
pub(crate) struct ColumnDeclaration {
    pub(crate) name: Name,
    pub(crate) data_type: DataType,
    pub(crate) not_null: bool,
    pub(crate) event_time: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct OutputDeclaration {
    /// Its name; where there are several they all have one.
    pub(crate) name: Option<Name>,
    pub(crate) address: Option<(String, Position)>,
    pub(crate) format: FormatSpec,
    pub(crate) options: Vec<(Name, Literal, Position)>,
    /// Where `OUTPUT` stands.
    pub(crate) position: Position,
}

/// The parts of a SELECT that are supported; everything else was refused by the parser.
pub(crate) struct Select {
    pub(crate) position: Position,
    /// Where `DISTINCT` stands, if it does.
    pub(crate) distinct: Option<Position>,
    pub(crate) projection: Vec<ast::SelectItem>,
    /// What it reads: an input, or what the rows of a UNION ALL are called.
    pub(crate) from: Name,
    pub(crate) alias: Option<Name>,
    /// Whether only the latest row of each key is read: `FROM LATEST(input)`.
    pub(crate) from_latest: bool,
    /// The branches of `FROM (SELECT ... UNION ALL SELECT ...)`; none where it reads an input.
    pub(crate) union: Vec<UnionBranch>,
    /// The window of `FROM TABLE(TUMBLE(...))`, as the call that could stand in GROUP BY.
    pub(crate) window: Option<ast::Expr>,
    /// The row pattern of `FROM t MATCH_RECOGNIZE (...)`: the SELECT is over its matches.
    pub(crate) pattern: Option<MatchClause>,
    /// The other input that it is joined with, and the reference tables that each row is looked up in, one after the
    /// other.
    pub(crate) lookups: Vec<LookupClause>,
    pub(crate) unnest: Option<UnnestClause>,
    pub(crate) filter: Option<ast::Expr>,
    pub(crate) group_by: Vec<ast::Expr>,
    pub(crate) having: Option<ast::Expr>,
    /// Where `HAVING` stands.
    pub(crate) having_position: Position,
    pub(crate) qualify: Option<ast::Expr>,
    /// Where `QUALIFY` stands.
    pub(crate) qualify_position: Position,
    pub(crate) top: Option<TopClause>,
    pub(crate) emit_on_change: bool,
    /// For each output the condition behind its WHEN.
    pub(crate) output_conditions: Vec<Option<ast::Expr>>,
    /// For each input its computed columns.
    pub(crate) computed: Vec<Vec<ComputedColumn>>,
}

/// `ORDER BY ... LIMIT n`: in which order the rows of a window come out, and how many of them.
pub(crate) struct TopClause {
    /// Where ORDER BY stands, or LIMIT without one.
    pub(crate) position: Position,
    pub(crate) order_by: Vec<ast::OrderByExpr>,
    pub(crate) limit: Option<ast::Expr>,
}

/// `column AS expression [EVENT TIME]`, in the declaration of an input or source.
#[derive(Clone)]
pub(crate) struct ComputedColumn {
    pub(crate) name: Name,
    pub(crate) expression: ast::Expr,
    pub(crate) event_time: bool,
}

/// `MATCH_RECOGNIZE (...)`
pub(crate) struct MatchClause {
    pub(crate) position: Position,
    pub(crate) partition_by: Vec<ast::Expr>,
    pub(crate) order_by: Vec<ast::OrderByExpr>,
    pub(crate) measures: Vec<(ast::Expr, Name)>,
    pub(crate) skip: SkipClause,
    pub(crate) pattern: PatternTree,
    pub(crate) within: Option<ast::Expr>,
    pub(crate) define: Vec<(Name, ast::Expr)>,
}

/// `AFTER MATCH SKIP ...`
pub(crate) enum SkipClause {
    PastLastRow,
    ToNextRow,
    ToFirst(Name),
    ToLast(Name),
}

/// What stands in `PATTERN (...)`.
pub(crate) enum PatternTree {
    Variable(Name),
    Sequence(Vec<PatternTree>),
    Alternation(Vec<PatternTree>),
    Repeat { pattern: Box<PatternTree>, min: u32, max: Option<u32>, greedy: bool, position: Position },
}

/// `CROSS JOIN UNNEST(string_to_array(text, delimiter)) [WITH ORDINALITY] AS alias (element [, number])`
pub(crate) struct UnnestClause {
    pub(crate) position: Position,
    pub(crate) text: ast::Expr,
    pub(crate) delimiter: ast::Expr,
    pub(crate) alias: Name,
    pub(crate) element: Name,
    pub(crate) number: Option<Name>,
}

/// A SELECT of a UNION ALL: a condition and columns over one input.
pub(crate) struct UnionBranch {
    pub(crate) position: Position,
    pub(crate) projection: Vec<ast::SelectItem>,
    pub(crate) from: Name,
    pub(crate) alias: Option<Name>,
    pub(crate) filter: Option<ast::Expr>,
}

/// A reference table in FROM, or a second input.
pub(crate) struct LookupClause {
    pub(crate) table: Name,
    /// What the SELECT calls the rows.
    pub(crate) alias: Name,
    pub(crate) kind: LookupKind,
}

pub(crate) enum LookupKind {
    /// `[LEFT] JOIN table AS alias ON condition`; `[LEFT | CROSS] JOIN LATEST(input) AS alias [ON condition]`
    Join { on: Option<Box<ast::Expr>>, is_left: bool, is_latest: bool, position: Position },
    /// `CROSS JOIN LATERAL (SELECT ...) AS alias`
    Lateral(Box<Lateral>),
}

/// The SELECT of a LATERAL, over a table.
pub(crate) struct Lateral {
    pub(crate) position: Position,
    pub(crate) table_alias: Name,
    pub(crate) projection: Vec<ast::SelectItem>,
    pub(crate) filter: Option<ast::Expr>,
    pub(crate) order_by: Vec<ast::OrderByExpr>,
    pub(crate) limit: Option<ast::Expr>,
    /// The columns of a SELECT around it, `SELECT count(*) FROM (SELECT ...) AS alias`, and that alias.
    pub(crate) around: Option<(Vec<ast::SelectItem>, Option<Name>)>,
}

impl CreateApplication {
    /// The names of the reference tables that the application looks events up in.
    pub fn table_names(&self) -> Vec<&str> {
        let is_input = |name: &str| self.inputs.iter().any(|input| input.name.text == name);
        let joined = self.select.open().lookups.iter().map(|lookup| lookup.table.text.as_str());
        joined.filter(|name| !is_input(name)).collect()
    }

    /// Where the addresses of inputs stand that read something else than topics.
    pub fn source_positions(&self) -> impl Iterator<Item = Position> + '_ {
        let is_topic = |address: &str| {
            let connector = address.split(':').next().unwrap_or_default();
            connector.eq_ignore_ascii_case(DEFAULT_CONNECTOR)
        };
        let addresses = self.inputs.iter().filter_map(|input| input.address.as_ref());
        addresses.filter(move |(address, _)| !is_topic(address)).map(|(_, position)| *position)
    }
}
