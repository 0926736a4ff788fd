//! The statements of the language, as parsed and not yet planned.

mod account;
mod kind;
mod parts;
mod query;

use std::collections::BTreeSet;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion_sql::sqlparser::ast;

use crate::address::DEFAULT_CONNECTOR;
pub use crate::application::FormatSpec;
use crate::{Literal, Position};

pub use account::{AccountStatement, GRANT_ACTIONS, GRANT_KINDS, GrantedRights, TenantLimit, UserName, limit_of};
pub use kind::{Declared, ObjectKind};
use parts::Sealed;
pub(crate) use parts::{ColumnDeclaration, ComputedColumn, MatchClause, PatternTree, SealedComputed, SkipClause};
pub use parts::{Name, SecretValue, StateWish};
pub use query::{BigQuery, CreateBigQuery, CreateSink, CreateSource, CreateView, Operators};
pub(crate) use query::{PREDICT, Watermark};

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
        /// The label: what the query belongs to, in words of the user.
        label: Option<(String, Position)>,
    },
    /// `CREATE [OR REPLACE] TABLE [IF NOT EXISTS] ...`
    CreateTable(Box<CreateTable>),
    /// `CREATE [OR REPLACE] SECRET [IF NOT EXISTS] s AS '...'`
    CreateSecret(CreateSecret),
    /// `DROP SECRET [IF EXISTS] s`
    DropSecret {
        /// The name of the secret.
        name: Name,
        /// Do nothing if there is none.
        if_exists: bool,
    },
    /// `SHOW SECRETS [LIKE 'pattern'] [LIMIT n]`
    ShowSecrets {
        /// Only names like this.
        like: Option<String>,
        /// At most so many.
        limit: Option<u64>,
    },
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
        /// Whether the query is also run, to show what it did.
        analyze: bool,
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
    /// `SHOW TABLES [LIKE 'pattern'] [LIMIT n]`, and so of each other kind
    Show(Show),
    /// `DESCRIBE APPLICATION a`, and so of each other kind
    Describe(ObjectKind, Name),
    /// `DESCRIBE 'path'`: the declaration of a source that reads this file.
    DescribeFile {
        /// The path.
        path: String,
        /// The position of the path.
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
        /// The parameters that change, and their new values.
        values: Vec<(Name, Literal, Position)>,
        /// The new label; `Some(None)` removes it, `None` leaves it as it is.
        label: Option<Option<(String, Position)>>,
    },
    /// `ALTER QUERY q REDIRECT ALL | 4 | 'window' TO BURST [0.7] | BACK`
    RedirectQuery {
        /// The name of the query.
        name: Name,
        /// Whose tasks move.
        operators: Operators,
        /// The part of the tasks of each stage that goes to burst workers, above 0 and at most 1. `None` brings all of
        /// them back.
        ratio: Option<f64>,
    },
    /// `SHOW BURSTS | BURST WORKERS [LIKE 'pattern'] [LIMIT n]`
    ShowBursts {
        /// Whether the workers are meant, not what they have.
        of_workers: bool,
        /// Only queries, or workers, with names like this.
        like: Option<String>,
        /// At most so many rows.
        limit: Option<u64>,
    },
    /// `ALTER APPLICATION a [INPUT i] SET (option => value, ...)`
    AlterApplication {
        /// The name of the application.
        name: Name,
        /// The input whose options change; `None` for all inputs.
        input: Option<Name>,
        /// The options and their values.
        options: Vec<(Name, Literal, Position)>,
        /// What becomes of state that the changed application cannot use.
        wish: StateWish,
    },
    /// `PAUSE QUERY q`
    PauseQuery(Name),
    /// `RESUME QUERY q`
    ResumeQuery(Name),
    /// `DROP TABLE [IF EXISTS] t`, and so of each other kind
    Drop {
        /// The kind of what is dropped.
        kind: ObjectKind,
        /// Its name.
        name: Name,
        /// Do nothing if there is none.
        if_exists: bool,
        /// `CASCADE`: of an application, drop its queries too; without it an application with queries stays.
        cascade: bool,
    },
    /// About tenants, users, tokens and rights.
    Account(AccountStatement),
}

/// A topic as it was written, with the position of its address. `None` stands for the topic that each query names
/// itself, because the application has no address: at the name of the input, or at `OUTPUT`.
pub type NamedTopic<'a> = (Option<&'a str>, Position);

impl Statement {
    /// The topics that the statement lets be read, and those that it lets be written.
    pub fn topics(&self) -> [Vec<NamedTopic<'_>>; 2] {
        fn topic(address: &str, position: Position) -> Vec<NamedTopic<'_>> {
            topic_of(address).map(|topic| (Some(topic), position)).into_iter().collect()
        }
        match self {
            Self::CreateApplication(create) => create.topics(),
            Self::AlterApplication { options, .. } => [Vec::new(), topics_of_options(options).collect()],
            Self::CreateSource(create) => [topic(&create.address, create.address_position), Vec::new()],
            Self::CreateSink(create) => [Vec::new(), topic(&create.address, create.address_position)],
            _ => [Vec::new(), Vec::new()],
        }
    }

    /// The secrets that options of the statement name, with their positions.
    pub fn secrets(&self) -> Vec<(&str, Position)> {
        let options: Vec<&[(Name, Literal, Position)]> = match self {
            Self::CreateSource(create) => vec![&create.options],
            Self::CreateSink(create) => vec![&create.options],
            Self::AlterApplication { options, .. } => vec![options],
            Self::CreateApplication(create) | Self::ExplainCreate(create) => {
                let inputs = create.inputs.iter().map(|input| input.options.as_slice());
                inputs.chain(create.outputs.iter().map(|output| output.options.as_slice())).collect()
            }
            _ => Vec::new(),
        };
        let mut secrets = Vec::new();
        for (_, value, position) in options.into_iter().flatten() {
            if let Literal::Secret(name) = value {
                secrets.push((name.as_str(), *position));
            }
        }
        secrets
    }
}

/// `SHOW TABLES [LIKE 'pattern'] [LIMIT n]`, and so of each other kind; of queries
/// `SHOW QUERIES [FROM APPLICATION a] [LIKE 'pattern'] [LABEL 'home 42'] [LIMIT n]`
#[derive(Clone, Debug)]
pub struct Show {
    /// The kind of what is listed.
    pub kind: ObjectKind,
    /// Only queries of this application.
    pub application: Option<Name>,
    /// Only names like this.
    pub like: Option<String>,
    /// Only queries with this label.
    pub label: Option<String>,
    /// At most so many.
    pub limit: Option<u64>,
}

/// `CREATE [OR REPLACE] SECRET [IF NOT EXISTS] name AS '...'`: a value that options of other statements name.
#[derive(Clone, Debug)]
pub struct CreateSecret {
    /// The name of the secret.
    pub name: Name,
    /// Do nothing if there is a secret of that name.
    pub if_not_exists: bool,
    /// Whether it replaces the value of a secret of that name.
    pub replaces: bool,
    /// The value.
    pub value: SecretValue,
}

/// The topic of an address, if it is one of the default connector.
pub fn topic_of(address: &str) -> Option<&str> {
    let (connector, topic) = address.split_once(':')?;
    connector.eq_ignore_ascii_case(DEFAULT_CONNECTOR).then_some(topic)
}

/// The topics that options of inputs send late and refused events to, with the positions of the options' values.
fn topics_of_options(options: &[(Name, Literal, Position)]) -> impl Iterator<Item = NamedTopic<'_>> {
    options.iter().filter_map(|(name, value, position)| match (name.text.as_str(), value) {
        ("late" | "dead_letter", Literal::Text(address)) => Some((Some(topic_of(address)?), *position)),
        _ => None,
    })
}

/// `CREATE [OR REPLACE] TABLE name (column TYPE [NOT NULL], ...) FROM 'address' FORMAT ...`: a reference table.
#[derive(Clone, Debug)]
pub struct CreateTable {
    /// The name of the table.
    pub name: Name,
    /// Do nothing if there is a table of that name.
    pub if_not_exists: bool,
    /// Whether its rows replace those of a table with that name.
    pub replaces: bool,
    /// The statement's text as written, without the closing `;`.
    pub text: String,
    /// The identity: SHA-256 (hex) of the canonical text.
    pub id: String,
    /// The declared columns.
    pub schema: SchemaRef,
    /// Where its rows are, as `connector:rest`.
    pub address: String,
    /// The position of the address.
    pub address_position: Position,
    /// The format of the rows.
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
    /// The parameters that an expression uses, in lower case.
    pub(crate) parameters_used: BTreeSet<String>,
    pub(crate) inputs: Vec<InputDeclaration>,
    pub(crate) outputs: Vec<OutputDeclaration>,
    pub(crate) select: SealedSelect,
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
    /// The positions where `WITH (...)` begins and where the code behind it begins. Both are equal if the input has no
    /// `WITH`: it could be inserted there.
    pub(crate) options_at: (Position, Position),
}

#[derive(Clone, Debug)]
pub(crate) struct OutputDeclaration {
    /// The name of the output. If there are several outputs, each has a name.
    pub(crate) name: Option<Name>,
    pub(crate) address: Option<(String, Position)>,
    pub(crate) format: FormatSpec,
    pub(crate) options: Vec<(Name, Literal, Position)>,
    /// The position of `OUTPUT`.
    pub(crate) position: Position,
}

/// The SELECT of an application.
pub(crate) type SealedSelect = Sealed<Select>;

/// The supported parts of a SELECT. The parser has refused everything else.
pub(crate) struct Select {
    pub(crate) position: Position,
    /// The position of `DISTINCT`, if the SELECT has it.
    pub(crate) distinct: Option<Position>,
    pub(crate) projection: Vec<ast::SelectItem>,
    /// What the SELECT reads: the name of an input, or the alias of a UNION ALL.
    pub(crate) from: Name,
    pub(crate) alias: Option<Name>,
    /// Whether only the latest row of each key is read: `FROM LATEST(input)`.
    pub(crate) from_latest: bool,
    /// The SELECT whose results are read, if it does not read an input.
    pub(crate) subquery: Option<Box<Select>>,
    /// The branches of `FROM (SELECT ... UNION ALL SELECT ...)`; empty if the SELECT reads an input.
    pub(crate) union: Vec<UnionBranch>,
    /// The window of `FROM TABLE(TUMBLE(...))`, as the same call in GROUP BY.
    pub(crate) window: Option<ast::Expr>,
    /// The row pattern of `FROM t MATCH_RECOGNIZE (...)`: the SELECT is over its matches.
    pub(crate) pattern: Option<MatchClause>,
    /// The other input of a join, and the reference tables in which each row is looked up, one after the other.
    pub(crate) lookups: Vec<LookupClause>,
    pub(crate) unnest: Option<UnnestClause>,
    pub(crate) filter: Option<ast::Expr>,
    pub(crate) group_by: Vec<ast::Expr>,
    pub(crate) having: Option<ast::Expr>,
    /// The position of `HAVING`.
    pub(crate) having_position: Position,
    pub(crate) qualify: Option<ast::Expr>,
    /// The position of `QUALIFY`.
    pub(crate) qualify_position: Position,
    pub(crate) top: Option<TopClause>,
    pub(crate) emit_on_change: bool,
    /// For each output, the condition behind its WHEN.
    pub(crate) output_conditions: Vec<Option<ast::Expr>>,
    /// For each input, its computed columns.
    pub(crate) computed: Vec<Vec<ComputedColumn>>,
}

impl Select {
    /// This SELECT and those that it reads, one by the other.
    pub(crate) fn chain(&self) -> impl Iterator<Item = &Select> {
        std::iter::successors(Some(self), |select| select.subquery.as_deref())
    }

    /// The SELECT of the chain that reads inputs.
    pub(crate) fn innermost(&self) -> &Select {
        self.chain().last().unwrap_or(self)
    }

    /// The same, to change it.
    pub(crate) fn innermost_mut(&mut self) -> &mut Select {
        match self.subquery {
            Some(ref mut inner) => inner.innermost_mut(),
            None => self,
        }
    }
}

/// `ORDER BY ... LIMIT n`: the order in which the rows of a window come out, and how many of them.
pub(crate) struct TopClause {
    /// The position of ORDER BY, or of LIMIT if there is no ORDER BY.
    pub(crate) position: Position,
    pub(crate) order_by: Vec<ast::OrderByExpr>,
    pub(crate) limit: Option<ast::Expr>,
}

/// `CROSS JOIN UNNEST(array) [WITH ORDINALITY] AS alias (column [, column ...] [, number])`
pub(crate) struct UnnestClause {
    pub(crate) position: Position,
    pub(crate) array: ast::Expr,
    pub(crate) alias: Name,
    /// The element, or its parts.
    pub(crate) columns: Vec<Name>,
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
    /// The alias of the rows in the SELECT.
    pub(crate) alias: Name,
    pub(crate) kind: LookupKind,
}

pub(crate) enum LookupKind {
    /// `[LEFT] JOIN table AS alias ON condition`; `[LEFT | CROSS] JOIN LATEST(input) AS alias [ON condition]`
    Join { on: Option<Box<ast::Expr>>, is_left: bool, is_latest: bool, position: Position },
    /// `CROSS JOIN LATERAL (SELECT ...) AS alias`
    Lateral(Box<Lateral>),
}

/// The SELECT of a LATERAL, over a reference table.
pub(crate) struct Lateral {
    pub(crate) position: Position,
    pub(crate) table_alias: Name,
    pub(crate) projection: Vec<ast::SelectItem>,
    pub(crate) filter: Option<ast::Expr>,
    pub(crate) order_by: Vec<ast::OrderByExpr>,
    pub(crate) limit: Option<ast::Expr>,
    /// The columns of an outer SELECT, as in `SELECT count(*) FROM (SELECT ...) AS alias`, and that alias.
    pub(crate) around: Option<(Vec<ast::SelectItem>, Option<Name>)>,
}

impl CreateApplication {
    /// The names of the reference tables in which the application looks events up.
    pub fn table_names(&self) -> Vec<&Name> {
        let is_input = |name: &Name| self.inputs.iter().any(|input| input.name.text == name.text);
        let joined = self.select.open().chain().flat_map(|select| &select.lookups).map(|lookup| &lookup.table);
        joined.filter(|name| !is_input(name)).collect()
    }

    /// See [`Statement::topics`].
    fn topics(&self) -> [Vec<NamedTopic<'_>>; 2] {
        fn topic(address: Option<&(String, Position)>, otherwise: Position) -> Option<NamedTopic<'_>> {
            match address {
                Some((address, position)) => Some((Some(topic_of(address)?), *position)),
                None => Some((None, otherwise)),
            }
        }
        let read = self.inputs.iter().filter_map(|input| topic(input.address.as_ref(), input.name.position));
        let written = self.outputs.iter().filter_map(|output| topic(output.address.as_ref(), output.position));
        let refused = self.inputs.iter().flat_map(|input| topics_of_options(&input.options));
        [read.collect(), written.chain(refused).collect()]
    }

    /// The positions of the addresses of inputs that read something else than topics.
    pub fn source_positions(&self) -> impl Iterator<Item = Position> + '_ {
        not_topics(self.inputs.iter().filter_map(|input| input.address.as_ref()))
    }

    /// The positions of outputs that write to something else than topics of the server's broker.
    pub fn sink_positions(&self) -> impl Iterator<Item = Position> + '_ {
        let has_broker = |output: &&OutputDeclaration| output.options.iter().any(|(name, ..)| name.text == "broker");
        let elsewhere = self.outputs.iter().filter(has_broker).map(|output| output.position);
        not_topics(self.outputs.iter().filter_map(|output| output.address.as_ref())).chain(elsewhere)
    }
}

fn not_topics<'a>(addresses: impl Iterator<Item = &'a (String, Position)>) -> impl Iterator<Item = Position> {
    let is_topic = |address: &str| {
        let connector = address.split(':').next().unwrap_or_default();
        connector.eq_ignore_ascii_case(DEFAULT_CONNECTOR)
    };
    addresses.filter(move |(address, _)| !is_topic(address)).map(|(_, position)| *position)
}
