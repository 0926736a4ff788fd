//! Queries as trees: what is generated, written as SQL, interpreted, and made smaller where it fails. Nothing here
//! knows how the engine reads SQL.

use std::fmt::Write;

/// Midnight of the day on which all rows are, microseconds since the epoch: 2026-01-01.
pub(crate) const MIDNIGHT_US: i64 = 1_767_225_600_000_000;
pub(crate) const SECOND_US: i64 = 1_000_000;

/// A value; null of any type is one value. The order is that of ORDER BY without null.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Text(String),
    /// Microseconds since the epoch.
    Time(i64),
    /// A mean, rounded: it comes out, and nothing is computed of it.
    Mean(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Bool,
    Int,
    Text,
    Time,
    Mean,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) ty: Type,
    pub(crate) nullable: bool,
}

/// A source: its columns, and its rows in the order in which they come, each with the partition that it comes from.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<(usize, Vec<Value>)>,
    /// How far a row is behind the newest one at most, seconds.
    pub(crate) lateness_s: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Distinct,
    NotDistinct,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truth {
    Null,
    True,
    False,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aggregate {
    CountRows,
    Count,
    CountDistinct,
    Sum,
    Min,
    Max,
    Mean,
    SumDistinct,
    MeanDistinct,
    Median,
    BitAnd,
    BitOr,
    BitXor,
    /// `array_agg(x ORDER BY x)`.
    List,
    /// `array_agg(DISTINCT x)`.
    ListDistinct,
    /// `string_agg(x, '/' ORDER BY x DESC)`.
    Texts,
    /// `string_agg(DISTINCT x, '/')`.
    TextsDistinct,
}

impl Aggregate {
    fn is_distinct(self) -> bool {
        matches!(
            self,
            Self::CountDistinct | Self::SumDistinct | Self::MeanDistinct | Self::ListDistinct | Self::TextsDistinct
        )
    }
}

/// Over which rows before a row, itself among them, something is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Rows(usize),
    AllRows,
    /// Seconds.
    Range(i64),
    AllRange,
    /// All rows of the partition, in no order.
    Whole,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expr {
    Column {
        alias: String,
        name: String,
        ty: Type,
    },
    Literal(Value, Type),
    Compare(Comparison, Box<Expr>, Box<Expr>),
    /// `(a, b) < (c, d)`.
    CompareRows(Comparison, Vec<Expr>, Vec<Expr>),
    /// `(a, b) [NOT] IN ((c, d), ...)`.
    RowInList {
        row: Vec<Expr>,
        list: Vec<Vec<Expr>>,
        negated: bool,
    },
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Not(Box<Expr>),
    /// `x IS [NOT] NULL | TRUE | FALSE`.
    Is(Box<Expr>, Truth, bool),
    Between {
        value: Box<Expr>,
        low: Box<Expr>,
        high: Box<Expr>,
        negated: bool,
    },
    InList {
        value: Box<Expr>,
        list: Vec<Expr>,
        negated: bool,
    },
    /// `CASE [operand] WHEN .. THEN .. ELSE .. END`.
    Case {
        operand: Option<Box<Expr>>,
        whens: Vec<(Expr, Expr)>,
        otherwise: Option<Box<Expr>>,
    },
    Coalesce(Vec<Expr>),
    NullIf(Box<Expr>, Box<Expr>),
    /// `+`, `-` or `*`.
    Arithmetic(char, Box<Expr>, Box<Expr>),
    /// A time and seconds.
    Shift(Box<Expr>, i64),
    /// A time cut to its minute.
    Minute(Box<Expr>),
    Concat(Box<Expr>, Box<Expr>),
    Upper(Box<Expr>),
    /// `x [NOT] LIKE pattern`, of which a `%` at the end is all that means something else.
    Like(Box<Expr>, String, bool),
    Aggregate {
        function: Aggregate,
        argument: Option<Box<Expr>>,
        filter: Option<Box<Expr>>,
    },
    Exists(Box<Query>, bool),
    In(Box<Expr>, Box<Query>, bool),
    /// The same as `x = ANY (query)`, or `x <> ALL (query)`.
    Quantified(Box<Expr>, Box<Query>, bool),
    /// The value of a query of one row.
    Scalar(Box<Query>, Type),
    Over {
        function: Aggregate,
        argument: Option<Box<Expr>>,
        partition: Vec<Expr>,
        order: Vec<Expr>,
        frame: Frame,
    },
    /// `LAG(x, rows)`, or `LEAD(x, rows)`.
    Lag {
        leads: bool,
        argument: Box<Expr>,
        rows: usize,
        partition: Vec<Expr>,
        order: Vec<Expr>,
    },
    WindowStart,
    WindowEnd,
    /// `GROUPING(key)`: 1 where the set of keys does not have it.
    Grouping(Box<Expr>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinKind {
    Inner,
    Left,
    Right,
    Full,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    Table {
        table: usize,
        name: String,
    },
    Query(Box<Query>),
    /// The first rows of each partition of a query, with their rank as a further column.
    Ranked {
        query: Box<Query>,
        ranking: Ranking,
        partition: Vec<String>,
        order: Vec<(String, bool)>,
        limit: i64,
    },
    /// `ORDER BY ... LIMIT limit OFFSET offset` of a query.
    First {
        query: Box<Query>,
        order: Vec<(String, bool)>,
        limit: i64,
        offset: i64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ranking {
    RowNumber,
    Rank,
    DenseRank,
}

/// The name of the column with the rank.
pub(crate) const RANK: &str = "rank_of_row";

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Item {
    pub(crate) alias: String,
    pub(crate) source: Source,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum From {
    Item(Item),
    Join { kind: JoinKind, left: Box<From>, right: Item, on: Expr },
}

/// Lengths in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowKind {
    Tumble(i64),
    Hop(i64, i64),
    Session(i64),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) keys: Vec<Expr>,
    pub(crate) window: Option<(WindowKind, Expr)>,
    /// `GROUPING SETS`, as places of keys.
    pub(crate) sets: Option<Vec<Vec<usize>>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Select {
    pub(crate) distinct: bool,
    pub(crate) items: Vec<(Expr, String)>,
    pub(crate) from: From,
    pub(crate) filter: Option<Expr>,
    pub(crate) group: Option<Group>,
    pub(crate) having: Option<Expr>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Query {
    Select(Box<Select>),
    Union { all: bool, queries: Vec<Query> },
}

impl Expr {
    pub(crate) fn column(alias: &str, column: &Column) -> Self {
        Self::Column { alias: alias.to_owned(), name: column.name.clone(), ty: column.ty }
    }

    pub(crate) fn ty(&self) -> Type {
        match self {
            Self::Column { ty, .. } | Self::Literal(_, ty) | Self::Scalar(_, ty) => *ty,
            Self::Compare(..)
            | Self::CompareRows(..)
            | Self::RowInList { .. }
            | Self::And(..)
            | Self::Or(..)
            | Self::Not(..)
            | Self::Is(..)
            | Self::Between { .. }
            | Self::InList { .. }
            | Self::Like(..)
            | Self::Exists(..)
            | Self::In(..)
            | Self::Quantified(..) => Type::Bool,
            Self::Case { whens, .. } => whens[0].1.ty(),
            Self::Coalesce(all) => all[0].ty(),
            Self::NullIf(one, _) => one.ty(),
            Self::Arithmetic(..) | Self::Grouping(_) => Type::Int,
            Self::Shift(..) | Self::Minute(_) | Self::WindowStart | Self::WindowEnd => Type::Time,
            Self::Concat(..) | Self::Upper(_) => Type::Text,
            Self::Lag { argument, .. } => argument.ty(),
            Self::Aggregate { function, argument, .. } | Self::Over { function, argument, .. } => match function {
                Aggregate::CountRows | Aggregate::Count | Aggregate::CountDistinct => Type::Int,
                Aggregate::Mean | Aggregate::MeanDistinct | Aggregate::Median => Type::Mean,
                Aggregate::Sum | Aggregate::SumDistinct => Type::Int,
                Aggregate::BitAnd | Aggregate::BitOr | Aggregate::BitXor => Type::Int,
                Aggregate::List | Aggregate::ListDistinct | Aggregate::Texts | Aggregate::TextsDistinct => Type::Text,
                Aggregate::Min | Aggregate::Max => argument.as_ref().map_or(Type::Int, |argument| argument.ty()),
            },
        }
    }

    /// The expressions that it is made of, without those in queries.
    pub(crate) fn parts(&mut self) -> Vec<&mut Expr> {
        match self {
            Self::Column { .. }
            | Self::Literal(..)
            | Self::Exists(..)
            | Self::Scalar(..)
            | Self::WindowStart
            | Self::Grouping(_)
            | Self::WindowEnd => vec![],
            Self::Not(one)
            | Self::Is(one, ..)
            | Self::Shift(one, _)
            | Self::Minute(one)
            | Self::Upper(one)
            | Self::Like(one, ..)
            | Self::In(one, ..)
            | Self::Quantified(one, ..) => vec![one],
            Self::CompareRows(_, one, other) => one.iter_mut().chain(other).collect(),
            Self::RowInList { row, list, .. } => row.iter_mut().chain(list.iter_mut().flatten()).collect(),
            Self::Compare(_, one, other)
            | Self::And(one, other)
            | Self::Or(one, other)
            | Self::NullIf(one, other)
            | Self::Arithmetic(_, one, other)
            | Self::Concat(one, other) => vec![one, other],
            Self::Between { value, low, high, .. } => vec![value, low, high],
            Self::InList { value, list, .. } => [value.as_mut()].into_iter().chain(list).collect(),
            Self::Case { operand, whens, otherwise } => operand
                .iter_mut()
                .map(|one| one.as_mut())
                .chain(whens.iter_mut().flat_map(|(when, then)| [when, then]))
                .chain(otherwise.iter_mut().map(|one| one.as_mut()))
                .collect(),
            Self::Coalesce(all) => all.iter_mut().collect(),
            Self::Aggregate { argument, filter, .. } => {
                argument.iter_mut().chain(filter).map(|one| one.as_mut()).collect()
            }
            Self::Over { argument, .. } => argument.iter_mut().map(|one| one.as_mut()).collect(),
            Self::Lag { argument, .. } => vec![argument],
        }
    }

    /// The query in it.
    pub(crate) fn query(&mut self) -> Option<&mut Query> {
        match self {
            Self::Exists(query, _) | Self::In(_, query, _) | Self::Quantified(_, query, _) | Self::Scalar(query, _) => {
                Some(query)
            }
            _ => None,
        }
    }
}

impl Query {
    /// What its columns are called and of which types; the first of a union says so for all.
    pub(crate) fn columns(&self) -> Vec<(&str, Type)> {
        match self {
            Self::Select(select) => select.items.iter().map(|(one, name)| (name.as_str(), one.ty())).collect(),
            Self::Union { queries, .. } => queries[0].columns(),
        }
    }
}

/// In whose words a query is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Rivulet,
    DuckDb,
}

/// SQL of a query. `None` where the dialect has no words for it.
pub(crate) fn sql(query: &Query, dialect: Dialect) -> Option<String> {
    let mut writer = Writer { text: String::new(), dialect, can: true };
    writer.query(query);
    writer.can.then_some(writer.text)
}

/// A literal.
pub(crate) fn literal(value: &Value, ty: Type) -> String {
    match value {
        Value::Null => {
            let name = match ty {
                Type::Bool => "BOOLEAN",
                Type::Int => "BIGINT",
                Type::Text => "VARCHAR",
                Type::Time => "TIMESTAMP",
                Type::Mean => "DOUBLE",
            };
            format!("CAST(NULL AS {name})")
        }
        Value::Bool(value) => value.to_string(),
        Value::Int(value) if *value < 0 => format!("({value})"),
        Value::Int(value) => value.to_string(),
        Value::Text(text) | Value::Mean(text) => format!("'{text}'"),
        Value::Time(us) => format!("TIMESTAMP '{}'", written_time(*us)),
    }
}

/// A time of the day of the rows, or of one near it.
pub(crate) fn written_time(us: i64) -> String {
    let seconds = (us - MIDNIGHT_US).div_euclid(SECOND_US);
    let (day, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let date = if day < 0 { format!("2025-12-{}", 32 + day) } else { format!("2026-01-{:02}", 1 + day) };
    format!("{date} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

fn between(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Equal => " = ",
        Comparison::NotEqual => " <> ",
        Comparison::Less => " < ",
        Comparison::LessOrEqual => " <= ",
        Comparison::Greater => " > ",
        Comparison::GreaterOrEqual => " >= ",
        Comparison::Distinct => " IS DISTINCT FROM ",
        Comparison::NotDistinct => " IS NOT DISTINCT FROM ",
    }
}

struct Writer {
    text: String,
    dialect: Dialect,
    can: bool,
}

impl Writer {
    fn put(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn query(&mut self, query: &Query) {
        match query {
            Query::Select(select) => self.select(select),
            Query::Union { all, queries } => {
                for (at, query) in queries.iter().enumerate() {
                    if at > 0 {
                        self.put(if *all { " UNION ALL " } else { " UNION " });
                    }
                    self.query(query);
                }
            }
        }
    }

    fn select(&mut self, select: &Select) {
        self.put(if select.distinct { "SELECT DISTINCT " } else { "SELECT " });
        let window = select.group.as_ref().and_then(|group| group.window.as_ref());
        for (at, (one, name)) in select.items.iter().enumerate() {
            self.put(if at > 0 { ", " } else { "" });
            self.in_window(one, window);
            self.put(&format!(" AS {name}"));
        }
        self.put(" FROM ");
        self.from(&select.from);
        if let (Dialect::DuckDb, Some((kind, _))) = (self.dialect, window) {
            let windows = match kind {
                WindowKind::Tumble(_) => 1,
                WindowKind::Hop(slide, width) => width / slide,
                WindowKind::Session(_) => {
                    self.can = false;
                    1
                }
            };
            self.put(&format!(" CROSS JOIN (SELECT unnest(range(0, {windows})) AS nth) AS windows"));
        }
        if let Some(filter) = &select.filter {
            self.put(" WHERE ");
            self.condition(filter);
        }
        if let Some(Group { keys, window, sets }) = &select.group
            && !(keys.is_empty() && window.is_none())
        {
            self.put(" GROUP BY ");
            match sets {
                None => self.list(keys),
                Some(sets) => {
                    self.put("GROUPING SETS (");
                    for (at, set) in sets.iter().enumerate() {
                        self.put(if at > 0 { ", (" } else { "(" });
                        self.list(&set.iter().map(|key| keys[*key].clone()).collect::<Vec<_>>());
                        self.put(")");
                    }
                    self.put(")");
                }
            }
            if let Some((kind, time)) = window {
                self.put(if keys.is_empty() { "" } else { ", " });
                match (self.dialect, kind) {
                    (Dialect::DuckDb, _) => self.in_window(&Expr::WindowStart, window.as_ref()),
                    (Dialect::Rivulet, WindowKind::Tumble(width)) => self.window("tumble", time, &[*width]),
                    (Dialect::Rivulet, WindowKind::Hop(slide, width)) => self.window("hop", time, &[*slide, *width]),
                    (Dialect::Rivulet, WindowKind::Session(gap)) => self.window("session", time, &[*gap]),
                }
            }
        }
        if let Some(having) = &select.having {
            self.put(" HAVING ");
            self.condition(having);
        }
    }

    /// A condition as people write it: nothing around what AND joins.
    fn condition(&mut self, condition: &Expr) {
        match condition {
            Expr::And(one, other) => {
                self.condition(one);
                self.put(" AND ");
                self.condition(other);
            }
            one => self.expr(one),
        }
    }

    fn window(&mut self, name: &str, time: &Expr, lengths: &[i64]) {
        self.put(&format!("{name}("));
        self.expr(time);
        lengths.iter().for_each(|seconds| self.put(&format!(", INTERVAL '{seconds} seconds'")));
        self.put(")");
    }

    /// An item of a query with windows, which other engines compute.
    fn in_window(&mut self, one: &Expr, window: Option<&(WindowKind, Expr)>) {
        let (Dialect::DuckDb, Expr::WindowStart | Expr::WindowEnd, Some((kind, time))) = (self.dialect, one, window)
        else {
            return self.expr(one);
        };
        let (slide, width) = match kind {
            WindowKind::Tumble(width) => (*width, *width),
            WindowKind::Hop(slide, width) => (*slide, *width),
            WindowKind::Session(_) => (1, 1),
        };
        self.put("(make_timestamp((epoch_us(");
        self.expr(time);
        self.put(&format!(") // {0} - windows.nth) * {0})", slide * SECOND_US));
        if *one == Expr::WindowEnd {
            self.put(&format!(" + INTERVAL '{width} seconds'"));
        }
        self.put(")");
    }

    fn from(&mut self, from: &From) {
        match from {
            From::Item(item) => self.item(item),
            From::Join { kind, left, right, on } => {
                self.from(left);
                self.put(match kind {
                    JoinKind::Inner => " JOIN ",
                    JoinKind::Left => " LEFT JOIN ",
                    JoinKind::Right => " RIGHT JOIN ",
                    JoinKind::Full => " FULL JOIN ",
                });
                self.item(right);
                self.put(" ON ");
                self.condition(on);
            }
        }
    }

    fn item(&mut self, item: &Item) {
        match &item.source {
            Source::Table { name, .. } => self.put(name),
            Source::Query(query) => {
                self.put("(");
                self.query(query);
                self.put(")");
            }
            Source::Ranked { query, ranking, partition, order, limit } => {
                let function = match ranking {
                    Ranking::RowNumber => "ROW_NUMBER",
                    Ranking::Rank => "RANK",
                    Ranking::DenseRank => "DENSE_RANK",
                };
                self.put(&format!("(SELECT * FROM (SELECT *, {function}() OVER ("));
                if !partition.is_empty() {
                    self.put(&format!("PARTITION BY {} ", partition.join(", ")));
                }
                self.put("ORDER BY ");
                for (at, (name, descends)) in order.iter().enumerate() {
                    let comma = if at > 0 { ", " } else { "" };
                    let direction = if *descends { " DESC" } else { "" };
                    self.put(&format!("{comma}{name}{direction} NULLS LAST"));
                }
                self.put(&format!(") AS {RANK} FROM ("));
                self.query(query);
                self.put(&format!(") AS ranked) AS first_rows WHERE {RANK} <= {limit})"));
            }
            Source::First { query, order, limit, offset } => {
                self.put("(SELECT * FROM (");
                self.query(query);
                self.put(") AS ordered ORDER BY ");
                for (at, (name, descends)) in order.iter().enumerate() {
                    let comma = if at > 0 { ", " } else { "" };
                    let direction = if *descends { " DESC" } else { "" };
                    self.put(&format!("{comma}{name}{direction} NULLS LAST"));
                }
                let offset = if *offset > 0 { format!(" OFFSET {offset}") } else { String::new() };
                self.put(&format!(" LIMIT {limit}{offset})"));
            }
        }
        self.put(&format!(" AS {}", item.alias));
    }

    fn list(&mut self, all: &[Expr]) {
        for (at, one) in all.iter().enumerate() {
            self.put(if at > 0 { ", " } else { "" });
            self.expr(one);
        }
    }

    /// A row. Rows are values with an order of their own to the other engine.
    fn row(&mut self, parts: &[Expr]) {
        self.can &= self.dialect == Dialect::Rivulet;
        self.put("(");
        self.list(parts);
        self.put(")");
    }

    fn binary(&mut self, one: &Expr, between: &str, other: &Expr) {
        self.put("(");
        self.expr(one);
        self.put(between);
        self.expr(other);
        self.put(")");
    }

    fn over(&mut self, partition: &[Expr], order: &[Expr], frame: Option<Frame>) {
        self.put(" OVER (");
        if !partition.is_empty() {
            self.put("PARTITION BY ");
            self.list(partition);
            self.put(" ");
        }
        if frame == Some(Frame::Whole) {
            return self.put(")");
        }
        self.put("ORDER BY ");
        for (at, one) in order.iter().enumerate() {
            self.put(if at > 0 { ", " } else { "" });
            self.expr(one);
            self.put(" NULLS LAST");
        }
        let rows = match frame {
            None | Some(Frame::Whole) => String::new(),
            Some(Frame::Rows(rows)) => format!(" ROWS BETWEEN {rows} PRECEDING AND CURRENT ROW"),
            Some(Frame::AllRows) => " ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW".into(),
            Some(Frame::Range(s)) => format!(" RANGE BETWEEN INTERVAL '{s} seconds' PRECEDING AND CURRENT ROW"),
            Some(Frame::AllRange) => " RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW".into(),
        };
        self.put(&rows);
        self.put(")");
    }

    fn aggregate(&mut self, function: Aggregate, argument: Option<&Expr>) {
        let name = match function {
            Aggregate::CountRows | Aggregate::Count | Aggregate::CountDistinct => "count",
            Aggregate::Sum | Aggregate::SumDistinct => "sum",
            Aggregate::Min => "min",
            Aggregate::Max => "max",
            Aggregate::Mean | Aggregate::MeanDistinct => "avg",
            Aggregate::Median => "median",
            Aggregate::BitAnd => "bit_and",
            Aggregate::BitOr => "bit_or",
            Aggregate::BitXor => "bit_xor",
            Aggregate::List | Aggregate::ListDistinct => "array_agg",
            Aggregate::Texts | Aggregate::TextsDistinct => "string_agg",
        };
        self.put(&format!("{name}({}", if function.is_distinct() { "DISTINCT " } else { "" }));
        match argument {
            Some(argument) => self.expr(argument),
            None => self.put("*"),
        }
        self.put(if matches!(function, Aggregate::Texts | Aggregate::TextsDistinct) { ", '/'" } else { "" });
        if let (Aggregate::List | Aggregate::Texts, Some(argument)) = (function, argument) {
            self.put(" ORDER BY ");
            self.expr(argument);
            self.put(if function == Aggregate::Texts { " DESC" } else { "" });
        }
        self.put(")");
    }

    fn expr(&mut self, expr: &Expr) {
        match expr {
            Expr::Column { alias, name, .. } => self.put(&format!("{alias}.{name}")),
            Expr::Literal(value, ty) => self.put(&literal(value, *ty)),
            Expr::Compare(comparison, one, other) => {
                self.binary(one, between(*comparison), other);
            }
            Expr::CompareRows(comparison, one, other) => {
                self.put("(");
                self.row(one);
                self.put(between(*comparison));
                self.row(other);
                self.put(")");
            }
            Expr::RowInList { row, list, negated } => {
                self.put("(");
                self.row(row);
                self.put(if *negated { " NOT IN (" } else { " IN (" });
                for (at, one) in list.iter().enumerate() {
                    self.put(if at > 0 { ", " } else { "" });
                    self.row(one);
                }
                self.put("))");
            }
            Expr::And(one, other) => self.binary(one, " AND ", other),
            Expr::Or(one, other) => {
                self.put("((");
                self.expr(one);
                self.put(") OR (");
                self.expr(other);
                self.put("))");
            }
            Expr::Not(one) => {
                self.put("(NOT (");
                self.expr(one);
                self.put("))");
            }
            Expr::Is(one, truth, negated) => {
                self.put("((");
                self.expr(one);
                let truth = match truth {
                    Truth::Null => "NULL",
                    Truth::True => "TRUE",
                    Truth::False => "FALSE",
                };
                self.put(&format!(") IS {}{truth})", if *negated { "NOT " } else { "" }));
            }
            Expr::Between { value, low, high, negated } => {
                self.put("(");
                self.expr(value);
                self.put(if *negated { " NOT BETWEEN " } else { " BETWEEN " });
                self.expr(low);
                self.put(" AND ");
                self.expr(high);
                self.put(")");
            }
            Expr::InList { value, list, negated } => {
                self.put("(");
                self.expr(value);
                self.put(if *negated { " NOT IN (" } else { " IN (" });
                self.list(list);
                self.put("))");
            }
            Expr::Case { operand, whens, otherwise } => {
                self.put("CASE");
                if let Some(operand) = operand {
                    self.put(" ");
                    self.expr(operand);
                }
                for (when, then) in whens {
                    self.put(" WHEN ");
                    self.expr(when);
                    self.put(" THEN ");
                    self.expr(then);
                }
                if let Some(otherwise) = otherwise {
                    self.put(" ELSE ");
                    self.expr(otherwise);
                }
                self.put(" END");
            }
            Expr::Coalesce(all) => {
                self.put("coalesce(");
                self.list(all);
                self.put(")");
            }
            Expr::NullIf(one, other) => {
                self.put("nullif(");
                self.expr(one);
                self.put(", ");
                self.expr(other);
                self.put(")");
            }
            Expr::Arithmetic(operator, one, other) => self.binary(one, &format!(" {operator} "), other),
            Expr::Shift(one, seconds) => {
                let sign = if *seconds < 0 { '-' } else { '+' };
                self.put("(");
                self.expr(one);
                let _ = write!(self.text, " {sign} INTERVAL '{} seconds')", seconds.abs());
            }
            Expr::Minute(one) => {
                self.put("date_trunc('minute', ");
                self.expr(one);
                self.put(")");
            }
            Expr::Concat(one, other) => self.binary(one, " || ", other),
            Expr::Upper(one) => {
                self.put("upper(");
                self.expr(one);
                self.put(")");
            }
            Expr::Like(one, pattern, negated) => {
                self.put("(");
                self.expr(one);
                self.put(&format!("{} LIKE '{pattern}')", if *negated { " NOT" } else { "" }));
            }
            Expr::Aggregate { function, argument, filter } => {
                self.aggregate(*function, argument.as_deref());
                if let Some(filter) = filter {
                    self.put(" FILTER (WHERE ");
                    self.expr(filter);
                    self.put(")");
                }
            }
            Expr::Exists(query, negated) => {
                self.put(if *negated { "NOT EXISTS (" } else { "EXISTS (" });
                self.query(query);
                self.put(")");
            }
            Expr::In(one, query, negated) => {
                self.expr(one);
                self.put(if *negated { " NOT IN (" } else { " IN (" });
                self.query(query);
                self.put(")");
            }
            Expr::Quantified(one, query, negated) => {
                self.expr(one);
                self.put(if *negated { " <> ALL (" } else { " = ANY (" });
                self.query(query);
                self.put(")");
            }
            Expr::Scalar(query, _) => {
                self.put("(");
                self.query(query);
                self.put(")");
            }
            Expr::Over { function, argument, partition, order, frame } => {
                self.aggregate(*function, argument.as_deref());
                self.over(partition, order, Some(*frame));
            }
            Expr::Lag { leads, argument, rows, partition, order } => {
                self.put(if *leads { "lead(" } else { "lag(" });
                self.expr(argument);
                self.put(&format!(", {rows})"));
                self.over(partition, order, None);
            }
            Expr::WindowStart => self.put("window_start"),
            Expr::WindowEnd => self.put("window_end"),
            Expr::Grouping(key) => {
                self.put("grouping(");
                self.expr(key);
                self.put(")");
            }
        }
    }
}
