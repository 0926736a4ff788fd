//! Random tables and queries. What is made has one answer, whatever the order in which rows come: ranks and frames have
//! a total order, windows are made of rows that stay, and no row is late.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::engine::Course;
use super::query::{
    Aggregate, Column, Comparison, Expr, Frame, From, Group, Item, JoinKind, MIDNIGHT_US, Query, RANK, Ranking,
    SECOND_US, Select, Source, Table, Truth, Type, Value, WindowKind,
};

/// Everything that a seed says: tables, a query over them, and how it is run.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) tables: Vec<Table>,
    pub(crate) query: Query,
    pub(crate) courses: Vec<Course>,
}

const TEXTS: [&str; 5] = ["", "a", "b", "ab", "B"];
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Rows of a table, and how far their times are apart.
const ROWS_MAX: usize = 30;

/// What is in scope: aliases with their columns.
pub(super) type InScope = Vec<(String, Vec<Column>)>;

pub(crate) fn case(seed: u64) -> Case {
    let mut generator = Generator::new(StdRng::seed_from_u64(seed));
    for name in NAMES {
        let table = generator.table(name);
        generator.tables.push(table);
    }
    let depth = generator.below(3);
    let query = generator.top(depth);
    let courses = (0..4).map(|_| generator.course()).collect();
    Case { tables: generator.tables, query, courses }
}

pub(super) struct Generator {
    random: StdRng,
    pub(super) tables: Vec<Table>,
    aliases: usize,
}

impl Generator {
    pub(super) fn new(random: StdRng) -> Self {
        Self { random, tables: Vec::new(), aliases: 0 }
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        self.random.random_range(0..n)
    }

    pub(super) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    pub(super) fn alias(&mut self) -> String {
        self.aliases += 1;
        format!("t{}", self.aliases)
    }

    pub(super) fn course(&mut self) -> Course {
        let restarts = self.percent(60);
        Course {
            seed: self.random.random_range(0..u64::MAX),
            parallelism: 1 + self.below(3),
            batch_rows: self.pick(&[1, 2, 3, 7, 16, 8192]),
            rows_max: self.pick(&[4, 16, 64, 32_768]),
            restart: restarts.then(|| (self.below(120), 1 + self.below(3))),
            endless: false,
        }
    }

    fn table(&mut self, name: &str) -> Table {
        let column = |name: &str, ty, nullable| Column { name: name.to_owned(), ty, nullable };
        let columns = vec![
            column("id", Type::Int, false),
            column("ts", Type::Time, false),
            column("k", Type::Int, self.percent(70)),
            column("j", Type::Int, self.percent(70)),
            column("v", Type::Int, true),
            column("s", Type::Text, true),
            column("f", Type::Bool, true),
        ];
        let rows = self.below(ROWS_MAX + 1);
        let partitions = 1 + self.below(2);
        let lateness_s = self.pick(&[0, 5, 20]);
        // Many times are equal, and some rows are long apart.
        let step_s = self.pick(&[1, 3, 20]);
        let mut times: Vec<i64> = (0..rows).map(|_| (self.below(40) as i64) * step_s).collect();
        times.sort_unstable();
        let mut order: Vec<(i64, i64)> =
            times.into_iter().map(|s| (s + self.below(lateness_s as usize + 1) as i64, s)).collect();
        // Each row comes when a watch that is late by so much says its time.
        order.sort_unstable();
        let rows = (0..).zip(order).map(|(id, (_, s))| {
            let row = columns.iter().map(|column| match column.name.as_str() {
                "id" => Value::Int(id),
                "ts" => Value::Time(MIDNIGHT_US + s * SECOND_US),
                _ if column.nullable && self.percent(20) => Value::Null,
                _ => self.constant(column.ty),
            });
            let row = row.collect();
            (self.below(partitions), row)
        });
        let rows = rows.collect();
        Table { name: name.to_owned(), columns, rows, lateness_s }
    }

    fn constant(&mut self, ty: Type) -> Value {
        match ty {
            Type::Bool => Value::Bool(self.percent(50)),
            Type::Int | Type::Mean => Value::Int(self.below(7) as i64 - 2),
            Type::Text => Value::Text(self.pick(&TEXTS).to_owned()),
            Type::Time => Value::Time(MIDNIGHT_US + self.below(120) as i64 * SECOND_US),
        }
    }

    /// A query that stands by itself.
    fn top(&mut self, depth: usize) -> Query {
        match self.below(12) {
            0..5 => self.joined(depth),
            5..7 => self.grouped(depth),
            7 if self.percent(30) => self.by_window(),
            7 => self.windowed(),
            8 => self.over(depth),
            9 => self.union(depth),
            _ => self.plain(depth),
        }
    }

    /// A query in FROM.
    fn inner(&mut self, depth: usize) -> Query {
        match self.below(11) {
            0..4 => self.grouped(depth),
            4 => self.plain(depth),
            5 => self.union(depth),
            6 if self.percent(30) => self.by_window(),
            6 => self.windowed(),
            7..9 => self.joined(depth),
            9 => self.over(depth),
            _ => self.distinct(depth),
        }
    }

    fn item(&mut self, depth: usize) -> (Item, Vec<Column>) {
        let alias = self.alias();
        if depth == 0 || self.percent(35) {
            let table = self.below(self.tables.len());
            let Table { name, columns, .. } = &self.tables[table];
            let columns = columns.clone();
            return (Item { alias, source: Source::Table { table, name: name.clone() } }, columns);
        }
        let query = self.inner(depth - 1);
        let mut columns = columns_of(&query);
        if self.percent(75) {
            return (Item { alias, source: Source::Query(Box::new(query)) }, columns);
        }
        let ranking = self.pick(&[Ranking::RowNumber, Ranking::RowNumber, Ranking::Rank, Ranking::DenseRank]);
        let keyed: Vec<&Column> = columns.iter().filter(|column| column.ty != Type::Mean).collect();
        let mut names: Vec<String> = keyed.iter().map(|column| column.name.clone()).collect();
        if names.is_empty() || keyed.len() < columns.len() {
            return (Item { alias, source: Source::Query(Box::new(query)) }, columns);
        }
        for at in (1..names.len()).rev() {
            let other = self.below(at + 1);
            names.swap(at, other);
        }
        let partition = if self.percent(80) { names[..1].to_vec() } else { vec![] };
        let by = if ranking == Ranking::RowNumber { names.len() } else { 1 + self.below(names.len().min(2)) };
        let order = names.iter().rev().take(by).map(|name| (name.clone(), self.percent(50))).collect();
        let limit = 1 + self.below(3) as i64;
        if ranking == Ranking::RowNumber && partition.is_empty() && self.percent(50) {
            let (query, offset) = (Box::new(query), self.below(3) as i64);
            return (Item { alias, source: Source::First { query, order, limit, offset } }, columns);
        }
        columns.push(Column { name: RANK.to_owned(), ty: Type::Int, nullable: false });
        (Item { alias, source: Source::Ranked { query: Box::new(query), ranking, partition, order, limit } }, columns)
    }

    /// One or several items joined.
    fn from(&mut self, items: usize, depth: usize) -> (From, InScope) {
        let (item, columns) = self.item(depth);
        let mut scope = vec![(item.alias.clone(), columns)];
        let mut from = From::Item(item);
        for _ in 1..items {
            let kind = self.pick(&[JoinKind::Inner, JoinKind::Inner, JoinKind::Left, JoinKind::Right, JoinKind::Full]);
            let (right, columns) = self.item(depth);
            let of_right = vec![(right.alias.clone(), columns)];
            let on = self.join_condition(&scope, &of_right);
            from = From::Join { kind, left: Box::new(from), right, on };
            scope.extend(of_right);
            // What an outer join fills up may be null.
            for (at, (_, columns)) in scope.iter_mut().enumerate() {
                let is_right = at + 1 == from_width(&from);
                let is_padded = match kind {
                    JoinKind::Inner => false,
                    JoinKind::Left => is_right,
                    JoinKind::Right => !is_right,
                    JoinKind::Full => true,
                };
                columns.iter_mut().for_each(|column| column.nullable |= is_padded);
            }
        }
        (from, scope)
    }

    /// Equalities, bounds of times, and what else may be true.
    fn join_condition(&mut self, one: &InScope, other: &InScope) -> Expr {
        let mut conditions = Vec::new();
        let equalities = match self.below(100) {
            0..8 => 0,
            8..85 => 1,
            _ => 2,
        };
        if equalities == 0 {
            // Rows meet those of a span of time.
            let time = |scope: &InScope| {
                let column = |name: &String| Expr::Column { alias: name.clone(), name: "ts".into(), ty: Type::Time };
                let has_time = |columns: &[Column]| columns.iter().any(|column| column.name == "ts");
                scope.iter().find(|(_, columns)| has_time(columns)).map(|(alias, _)| column(alias))
            };
            if let (Some(one), Some(other)) = (time(one), time(other)) {
                let shift = |one: &Expr, seconds: usize| Box::new(Expr::Shift(Box::new(one.clone()), seconds as i64));
                let low = Box::new(Expr::Shift(Box::new(other.clone()), -(self.below(12) as i64)));
                let high = shift(&other, self.below(12));
                conditions.push(Expr::Between { low, high, value: Box::new(one), negated: false });
            }
        }
        for _ in 0..equalities {
            let ty = self.pick(&[Type::Int, Type::Int, Type::Int, Type::Text, Type::Time]);
            let pair = self.column_of(one, ty).zip(self.column_of(other, ty));
            let pair = pair.or_else(|| self.column_of(one, Type::Int).zip(self.column_of(other, Type::Int)));
            let pair = pair.or_else(|| self.column_of(one, Type::Time).zip(self.column_of(other, Type::Time)));
            conditions.extend(pair.map(|(one, other)| equal(one, other)));
        }
        if self.percent(60) {
            conditions.extend(self.bounds_in_time(one, other));
        }
        if self.percent(25) {
            let both = [one.as_slice(), other].concat();
            conditions.push(self.condition(&both, 1));
        }
        all(conditions).unwrap_or(Expr::Literal(Value::Bool(true), Type::Bool))
    }

    fn bounds_in_time(&mut self, one: &InScope, other: &InScope) -> Option<Expr> {
        let (one, other) = (self.column_of(one, Type::Time)?, self.column_of(other, Type::Time)?);
        let (one, other) = if self.percent(50) { (one, other) } else { (other, one) };
        let (before, behind) = (self.below(12) as i64, self.below(12) as i64);
        let shift = |one: &Expr, seconds: i64| Expr::Shift(Box::new(one.clone()), seconds);
        Some(match self.below(6) {
            0..3 => Expr::Between {
                low: Box::new(shift(&other, -before)),
                high: Box::new(shift(&other, behind)),
                value: Box::new(one),
                negated: false,
            },
            3 => Expr::Compare(Comparison::LessOrEqual, Box::new(one), Box::new(shift(&other, behind))),
            4 => Expr::Compare(Comparison::Greater, Box::new(one), Box::new(shift(&other, -before))),
            _ => equal(one, other),
        })
    }

    pub(super) fn column_of(&mut self, scope: &InScope, ty: Type) -> Option<Expr> {
        let all: Vec<Expr> = scope
            .iter()
            .flat_map(|(alias, columns)| columns.iter().map(move |column| (alias, column)))
            .filter(|(_, column)| column.ty == ty)
            .map(|(alias, column)| Expr::column(alias, column))
            .collect();
        (!all.is_empty()).then(|| all[self.below(all.len())].clone())
    }

    /// Some columns, and now and then something computed. Times and keys are there more often than not, so that what
    /// reads it can join.
    fn items(&mut self, scope: &InScope, subqueries: usize) -> Vec<(Expr, String)> {
        let mut chosen: Vec<Expr> = Vec::new();
        chosen.extend(self.column_of(scope, Type::Int));
        if self.percent(70) {
            chosen.extend(self.column_of(scope, Type::Time));
        }
        for _ in 0..1 + self.below(3) {
            let ty = self.pick(&[Type::Int, Type::Int, Type::Text, Type::Bool, Type::Time]);
            chosen.push(match self.percent(60) {
                true => self.column_of(scope, ty).unwrap_or_else(|| self.expr(scope, ty, 1)),
                false => self.expr(scope, ty, 2),
            });
        }
        if subqueries > 0 && self.percent(15) {
            chosen.push(self.scalar(scope));
        }
        if subqueries > 0 && self.percent(6) {
            chosen.push(self.subquery(scope, 0));
        }
        named(chosen)
    }

    fn plain(&mut self, depth: usize) -> Query {
        let (from, scope) = self.from(1, depth);
        self.selected(from, scope, depth)
    }

    fn joined(&mut self, depth: usize) -> Query {
        let items = if self.percent(80) { 2 } else { 3 };
        let (from, scope) = self.from(items, depth);
        self.selected(from, scope, depth)
    }

    fn selected(&mut self, from: From, scope: InScope, depth: usize) -> Query {
        let items = self.items(&scope, depth);
        let filter = self.filter(&scope, depth);
        let distinct = self.percent(10);
        select(Select { distinct, items, from, filter, group: None, having: None })
    }

    fn distinct(&mut self, depth: usize) -> Query {
        match self.plain(depth) {
            Query::Select(mut select) => {
                select.distinct = true;
                Query::Select(select)
            }
            other => other,
        }
    }

    /// A condition in WHERE, with subqueries.
    fn filter(&mut self, scope: &InScope, depth: usize) -> Option<Expr> {
        let mut conditions = Vec::new();
        if self.percent(50) {
            conditions.push(self.condition(scope, 2));
        }
        if self.percent(22) {
            let subquery = self.subquery(scope, depth.saturating_sub(1));
            conditions.push(match self.below(6) {
                0 => Expr::Or(Box::new(subquery), self.boxed(scope, Type::Bool, 1)),
                1 => Expr::Not(Box::new(subquery)),
                _ => subquery,
            });
        }
        all(conditions)
    }

    /// `EXISTS`, `IN`, or a comparison with a value.
    fn subquery(&mut self, scope: &InScope, depth: usize) -> Expr {
        let negated = self.percent(40);
        if self.percent(20) {
            let value = self.scalar(scope);
            let comparison = self.comparison();
            let other = self.expr(scope, Type::Int, 1);
            return match value.ty() {
                Type::Int => Expr::Compare(comparison, Box::new(other), Box::new(value)),
                ty => Expr::Compare(comparison, Box::new(self.expr(scope, ty, 0)), Box::new(value)),
            };
        }
        let (item, columns) = self.item(depth);
        let inner = vec![(item.alias.clone(), columns)];
        let is_in = self.percent(45);
        let value = self.column_of(scope, Type::Int).zip(self.column_of(&inner, Type::Int));
        let (filter, item_of) = match (is_in, value) {
            (true, Some((outer, column))) => {
                let correlated = self.percent(30);
                let filter = match correlated {
                    true => self.join_condition(scope, &inner),
                    false => self.condition(&inner, 1),
                };
                (filter, Some((outer, column)))
            }
            _ => (self.join_condition(scope, &inner), None),
        };
        let one = Expr::Literal(Value::Int(1), Type::Int);
        let items = named(vec![item_of.as_ref().map_or(one, |(_, column)| column.clone())]);
        let from = From::Item(item);
        let query = select(Select { distinct: false, items, from, filter: Some(filter), group: None, having: None });
        match item_of {
            Some((outer, _)) => Expr::In(Box::new(outer), Box::new(query), negated),
            None => Expr::Exists(Box::new(query), negated),
        }
    }

    /// A query that gives one value.
    fn scalar(&mut self, scope: &InScope) -> Expr {
        let (item, columns) = self.item(0);
        let inner = vec![(item.alias.clone(), columns)];
        let filter = match self.percent(60) {
            true => {
                let pair = self.column_of(scope, Type::Int).zip(self.column_of(&inner, Type::Int));
                let equality = pair.map(|(outer, inner)| equal(inner, outer));
                let more = self.percent(30).then(|| self.condition(&inner, 1));
                all(equality.into_iter().chain(more).collect())
            }
            false => self.percent(50).then(|| self.condition(&inner, 1)),
        };
        let aggregate = self.aggregate(&inner);
        let ty = aggregate.ty();
        let items = named(vec![aggregate]);
        let group = Some(Group { keys: vec![], window: None, sets: None });
        let from = From::Item(item);
        let query = select(Select { distinct: false, items, from, filter, group, having: None });
        Expr::Scalar(Box::new(query), ty)
    }

    /// An aggregate whose value is computed with.
    fn aggregate(&mut self, scope: &InScope) -> Expr {
        let rare = self.pick(&[Aggregate::SumDistinct, Aggregate::BitAnd, Aggregate::BitOr, Aggregate::BitXor]);
        let function = self.pick(&[
            Aggregate::CountRows,
            Aggregate::Count,
            Aggregate::CountDistinct,
            Aggregate::Sum,
            Aggregate::Min,
            Aggregate::Max,
            Aggregate::Max,
            rare,
        ]);
        let ty = match function {
            Aggregate::Sum | Aggregate::SumDistinct => Type::Int,
            Aggregate::BitAnd | Aggregate::BitOr | Aggregate::BitXor => Type::Int,
            Aggregate::Count | Aggregate::CountDistinct => self.pick(&[Type::Int, Type::Text, Type::Bool]),
            _ => self.pick(&[Type::Int, Type::Text, Type::Time, Type::Time]),
        };
        let argument = match self.percent(80) {
            true => self.column_of(scope, ty).unwrap_or_else(|| self.expr(scope, ty, 1)),
            false => self.expr(scope, ty, 1),
        };
        let argument = (function != Aggregate::CountRows).then(|| Box::new(argument));
        let filter = self.percent(15).then(|| Box::new(self.condition(scope, 1)));
        Expr::Aggregate { function, argument, filter }
    }

    fn keys(&mut self, scope: &InScope, keys: usize) -> Vec<Expr> {
        let mut chosen: Vec<Expr> = Vec::new();
        for _ in 0..keys {
            let ty = self.pick(&[Type::Int, Type::Int, Type::Int, Type::Text, Type::Bool, Type::Time]);
            let key = match self.percent(75) {
                true => self.column_of(scope, ty),
                false if ty == Type::Time => self.column_of(scope, ty).map(|time| Expr::Minute(Box::new(time))),
                false => Some(self.expr(scope, ty, 1)),
            };
            // A constant is no key to everybody.
            let key = key.filter(|key| !matches!(key, Expr::Literal(..)) && !chosen.contains(key));
            chosen.extend(key);
        }
        chosen
    }

    fn grouped(&mut self, depth: usize) -> Query {
        let items = if self.percent(70) { 1 } else { 2 };
        let (from, scope) = self.from(items, depth);
        let wanted = self.pick(&[0, 1, 1, 1, 1, 2, 2]);
        let keys = self.keys(&scope, wanted);
        let filter = self.filter(&scope, depth);
        let sets = (keys.len() > 1 || !keys.is_empty() && self.percent(20)).then(|| self.sets(keys.len()));
        let sets = sets.filter(|_| self.percent(30));
        self.aggregated(from, scope, filter, Group { keys, window: None, sets })
    }

    /// Sets of so many keys, as in ROLLUP or as they come.
    fn sets(&mut self, keys: usize) -> Vec<Vec<usize>> {
        match self.percent(40) {
            true => (0..=keys).rev().map(|length| (0..length).collect()).collect(),
            false => (0..1 + self.below(3)).map(|_| (0..keys).filter(|_| self.percent(60)).collect()).collect(),
        }
    }

    fn aggregated(&mut self, from: From, scope: InScope, filter: Option<Expr>, group: Group) -> Query {
        let mut items: Vec<Expr> = Vec::new();
        for key in &group.keys {
            if self.percent(85) {
                items.push(key.clone());
            }
        }
        if group.sets.is_some() {
            items.extend(group.keys.first().map(|key| Expr::Grouping(Box::new(key.clone()))));
        }
        if group.window.is_some() {
            items.push(Expr::WindowEnd);
            items.extend(self.percent(50).then_some(Expr::WindowStart));
        }
        for _ in 0..1 + self.below(3) {
            items.push(self.aggregate(&scope));
        }
        if self.percent(10) {
            let argument = Some(Box::new(self.expr(&scope, Type::Int, 0)));
            let function = self.pick(&[Aggregate::Mean, Aggregate::MeanDistinct, Aggregate::Median]);
            items.push(Expr::Aggregate { function, argument, filter: None });
        }
        if self.percent(12) {
            let ty = self.pick(&[Type::Int, Type::Text]);
            let argument = self.column_of(&scope, ty).map(Box::new);
            let function = match ty {
                Type::Int => self.pick(&[Aggregate::List, Aggregate::ListDistinct]),
                _ => self.pick(&[Aggregate::List, Aggregate::ListDistinct, Aggregate::Texts, Aggregate::TextsDistinct]),
            };
            items.extend(argument.map(|one| Expr::Aggregate { function, argument: Some(one), filter: None }));
        }
        // What is computed of aggregates and keys is computed as of columns.
        if self.percent(20) {
            let of_group: Vec<Expr> = items.iter().filter(|one| one.ty() == Type::Int).cloned().collect();
            if let [first, .., last] = of_group.as_slice() {
                items.push(Expr::Arithmetic('-', Box::new(first.clone()), Box::new(last.clone())));
            }
        }
        let having = self.percent(25).then(|| {
            let aggregate = self.aggregate(&scope);
            match aggregate.ty() {
                Type::Int => {
                    let limit = Expr::Literal(Value::Int(self.below(4) as i64), Type::Int);
                    Expr::Compare(self.comparison(), Box::new(aggregate), Box::new(limit))
                }
                _ => Expr::Is(Box::new(aggregate), Truth::Null, self.percent(70)),
            }
        });
        select(Select { distinct: false, items: named(items), from, filter, group: Some(group), having })
    }

    /// Windows of rows that stay.
    fn windowed(&mut self) -> Query {
        let (from, scope) = self.rows_that_stay();
        let filter = self.percent(40).then(|| self.condition(&scope, 1));
        let wanted = self.pick(&[0, 1, 1]);
        let keys = self.keys(&scope, wanted);
        let keys: Vec<Expr> = keys.into_iter().filter(|key| key.ty() != Type::Time).collect();
        let kind = match self.below(4) {
            0 | 1 => WindowKind::Tumble(self.pick(&[5, 10, 60])),
            2 => self.pick(&[WindowKind::Hop(5, 10), WindowKind::Hop(10, 60), WindowKind::Hop(2, 6)]),
            _ => WindowKind::Session(self.pick(&[2, 5, 15])),
        };
        let alias = self.below(scope.len());
        let time = Expr::Column { alias: scope[alias].0.clone(), name: "ts".into(), ty: Type::Time };
        let sets = (!keys.is_empty() && self.percent(15)).then(|| self.sets(keys.len()));
        self.aggregated(from, scope, filter, Group { keys, window: Some((kind, time)), sets })
    }

    /// Rows of a table, of a part of one, of two, or of two that are joined by time.
    fn rows_that_stay(&mut self) -> (From, InScope) {
        match self.below(10) {
            0..2 => {
                let (from, mut scope) = self.from(1, 0);
                let From::Item(left) = &from else { return (from, scope) };
                let (right, columns) = self.item(0);
                let of_right = vec![(right.alias.clone(), columns)];
                let pair = self.column_of(&scope, Type::Int).zip(self.column_of(&of_right, Type::Int));
                let equality = pair.map(|(one, other)| equal(one, other));
                let time = |alias: &str, seconds: i64| {
                    let column = Expr::Column { alias: alias.to_owned(), name: "ts".into(), ty: Type::Time };
                    Box::new(Expr::Shift(Box::new(column), seconds))
                };
                let (low, high) = (-(self.below(12) as i64), self.below(12) as i64);
                let bounds = Expr::Between {
                    value: time(&right.alias, 0),
                    low: time(&left.alias, low),
                    high: time(&left.alias, high),
                    negated: false,
                };
                let on = all(equality.into_iter().chain([bounds]).collect());
                let on = on.unwrap_or(Expr::Literal(Value::Bool(true), Type::Bool));
                scope.extend(of_right);
                (From::Join { kind: JoinKind::Inner, left: Box::new(from), right, on }, scope)
            }
            2..4 => {
                let queries = (0..1 + self.below(2)).map(|_| {
                    let (from, scope) = self.from(1, 0);
                    let (alias, columns) = &scope[0];
                    let items = columns.iter().map(|one| (Expr::column(alias, one), one.name.clone())).collect();
                    let filter = self.percent(50).then(|| self.condition(&scope, 1));
                    select(Select { distinct: false, items, from, filter, group: None, having: None })
                });
                let mut queries: Vec<Query> = queries.collect();
                let query = match queries.len() {
                    1 => queries.remove(0),
                    _ => Query::Union { all: true, queries },
                };
                let alias = self.alias();
                let scope = vec![(alias.clone(), columns_of(&query))];
                (From::Item(Item { alias, source: Source::Query(Box::new(query)) }), scope)
            }
            _ => self.from(1, 0),
        }
    }

    /// Results of windows by the end of their window, and what else they have.
    fn by_window(&mut self) -> Query {
        let query = self.windowed();
        let columns = columns_of(&query);
        let alias = self.alias();
        let item = Item { alias: alias.clone(), source: Source::Query(Box::new(query)) };
        let end = columns.iter().find(|column| column.ty == Type::Time && !column.nullable).cloned();
        let scope = vec![(alias.clone(), columns)];
        let wanted = self.below(2);
        let mut keys = self.keys(&scope, wanted);
        let end = end.map(|end| Expr::column(&alias, &end)).filter(|end| !keys.contains(end));
        keys.extend(end);
        let filter = self.percent(20).then(|| self.condition(&scope, 1));
        self.aggregated(From::Item(item), scope, filter, Group { keys, window: None, sets: None })
    }

    /// Something over the rows before each row.
    fn over(&mut self, depth: usize) -> Query {
        let depth = if self.percent(50) { 0 } else { depth };
        let (from, scope) = self.from(1, depth);
        let mut items = self.items(&scope, 0).into_iter().map(|item| item.0).collect::<Vec<_>>();
        let partition: Vec<Expr> = self.keys(&scope, 1).into_iter().filter(|key| key.ty() != Type::Time).collect();
        let columns = |ty| {
            let column = |column: &&Column| ty == Type::Mean || column.ty == ty;
            let all = scope.iter().flat_map(|(alias, columns)| columns.iter().map(move |one| (alias, one)));
            all.filter(|(_, one)| column(one)).map(|(alias, one)| Expr::column(alias, one)).collect::<Vec<_>>()
        };
        let times = columns(Type::Time);
        let is_range = self.percent(40) && !times.is_empty();
        let by_time = times.iter().take(1).cloned();
        // Rows get their numbers by all that is in them, so that those that are left are equal.
        let order: Vec<Expr> = match is_range {
            true => by_time.collect(),
            false => {
                let others = columns(Type::Mean).into_iter().filter(|one| Some(one) != times.first());
                by_time.chain(others).collect()
            }
        };
        let is_not_null = scope[0].1.iter().all(|column| column.ty != Type::Time || !column.nullable);
        let has_mean = scope[0].1.iter().any(|column| column.ty == Type::Mean);
        if !has_mean && self.percent(25) {
            let mut whole = self.aggregate(&scope);
            if let Expr::Aggregate { function, argument, .. } = whole {
                whole = Expr::Over { function, argument, partition, order: vec![], frame: Frame::Whole };
            }
            items.push(whole);
            let filter = self.percent(30).then(|| self.condition(&scope, 1));
            return select(Select { distinct: false, items: named(items), from, filter, group: None, having: None });
        }
        if has_mean || order.is_empty() || (is_range && !is_not_null) {
            return select(Select {
                distinct: false,
                items: named(items),
                from,
                filter: None,
                group: None,
                having: None,
            });
        }
        let frame = match is_range {
            true => self.pick(&[Frame::AllRange, Frame::Range(5), Frame::Range(30)]),
            false => self.pick(&[Frame::AllRows, Frame::Rows(0), Frame::Rows(1), Frame::Rows(3)]),
        };
        let has_lag = !is_range && self.percent(30);
        for _ in 0..1 + self.below(2) {
            let (partition, order) = (partition.clone(), order.clone());
            items.push(match has_lag {
                true => {
                    let argument = Box::new(self.expr(&scope, Type::Int, 0));
                    Expr::Lag { leads: self.percent(40), argument, rows: 1 + self.below(3), partition, order }
                }
                false => match self.aggregate(&scope) {
                    Expr::Aggregate { function: Aggregate::CountDistinct, argument, .. } => {
                        Expr::Over { function: Aggregate::Count, argument, partition, order, frame }
                    }
                    Expr::Aggregate { function: Aggregate::SumDistinct, argument, .. } => {
                        Expr::Over { function: Aggregate::Sum, argument, partition, order, frame }
                    }
                    Expr::Aggregate { function, argument, .. } => {
                        Expr::Over { function, argument, partition, order, frame }
                    }
                    other => other,
                },
            });
        }
        let filter = self.percent(30).then(|| self.condition(&scope, 1));
        select(Select { distinct: false, items: named(items), from, filter, group: None, having: None })
    }

    /// The same columns of several queries.
    fn union(&mut self, depth: usize) -> Query {
        let types: Vec<Type> =
            [Type::Int, Type::Time].into_iter().chain((0..self.below(3)).map(|_| Type::Int)).collect();
        let queries = (0..2 + self.below(2)).map(|_| {
            let (from, scope) = self.from(1, depth.saturating_sub(1));
            let items = types.iter().map(|&ty| match self.percent(80) {
                true => self.column_of(&scope, ty).unwrap_or_else(|| self.expr(&scope, ty, 1)),
                false => self.expr(&scope, ty, 1),
            });
            let items = named(items.collect());
            let filter = self.percent(40).then(|| self.condition(&scope, 1));
            select(Select { distinct: false, items, from, filter, group: None, having: None })
        });
        Query::Union { queries: queries.collect(), all: self.percent(60) }
    }

    fn comparison(&mut self) -> Comparison {
        self.pick(&[
            Comparison::Equal,
            Comparison::Equal,
            Comparison::NotEqual,
            Comparison::Less,
            Comparison::LessOrEqual,
            Comparison::Greater,
            Comparison::GreaterOrEqual,
            Comparison::Distinct,
            Comparison::NotDistinct,
        ])
    }

    fn condition(&mut self, scope: &InScope, depth: usize) -> Expr {
        self.expr(scope, Type::Bool, depth)
    }

    fn boxed(&mut self, scope: &InScope, ty: Type, depth: usize) -> Box<Expr> {
        Box::new(self.expr(scope, ty, depth))
    }

    /// An expression of a type.
    fn expr(&mut self, scope: &InScope, ty: Type, depth: usize) -> Expr {
        if depth == 0 || (ty != Type::Bool && self.percent(30)) {
            if ty == Type::Bool && self.percent(80) {
                let of = self.pick(&[Type::Int, Type::Int, Type::Text, Type::Time]);
                let (one, other) = (self.leaf(scope, of), self.leaf(scope, of));
                return Expr::Compare(self.comparison(), Box::new(one), Box::new(other));
            }
            return self.leaf(scope, ty);
        }
        let depth = depth - 1;
        // Of any type.
        if ty != Type::Mean && self.percent(if ty == Type::Bool { 12 } else { 50 }) {
            return match self.below(4) {
                0 => Expr::Coalesce((0..2 + self.below(2)).map(|_| self.expr(scope, ty, depth)).collect()),
                1 => Expr::NullIf(self.boxed(scope, ty, depth), self.boxed(scope, ty, depth)),
                2 => {
                    let of = self.pick(&[Type::Int, Type::Text]);
                    let whens = 1 + self.below(2);
                    Expr::Case {
                        operand: Some(self.boxed(scope, of, depth)),
                        whens: (0..whens).map(|_| (self.expr(scope, of, 0), self.expr(scope, ty, depth))).collect(),
                        otherwise: self.percent(60).then(|| self.boxed(scope, ty, depth)),
                    }
                }
                _ => {
                    let whens = 1 + self.below(2);
                    Expr::Case {
                        operand: None,
                        whens: (0..whens)
                            .map(|_| (self.condition(scope, depth), self.expr(scope, ty, depth)))
                            .collect(),
                        otherwise: self.percent(60).then(|| self.boxed(scope, ty, depth)),
                    }
                }
            };
        }
        match ty {
            Type::Bool => self.predicate(scope, depth),
            Type::Int | Type::Mean => {
                let operator = self.pick(&['+', '-', '*']);
                Expr::Arithmetic(operator, self.boxed(scope, Type::Int, depth), self.boxed(scope, Type::Int, depth))
            }
            Type::Time => match self.percent(70) {
                true => Expr::Shift(self.boxed(scope, Type::Time, depth), self.below(20) as i64 - 10),
                false => Expr::Minute(self.boxed(scope, Type::Time, depth)),
            },
            Type::Text => match self.percent(50) {
                true => Expr::Concat(self.boxed(scope, Type::Text, depth), self.boxed(scope, Type::Text, depth)),
                false => Expr::Upper(self.boxed(scope, Type::Text, depth)),
            },
        }
    }

    fn predicate(&mut self, scope: &InScope, depth: usize) -> Expr {
        let of = self.pick(&[Type::Int, Type::Int, Type::Text, Type::Time, Type::Bool]);
        let negated = self.percent(40);
        match self.below(9) {
            0 => Expr::And(self.boxed(scope, Type::Bool, depth), self.boxed(scope, Type::Bool, depth)),
            1 => Expr::Or(self.boxed(scope, Type::Bool, depth), self.boxed(scope, Type::Bool, depth)),
            2 => Expr::Not(self.boxed(scope, Type::Bool, depth)),
            3 => match self.percent(60) {
                true => Expr::Is(self.boxed(scope, of, depth), Truth::Null, negated),
                false => {
                    let truth = self.pick(&[Truth::True, Truth::False]);
                    Expr::Is(self.boxed(scope, Type::Bool, depth), truth, negated)
                }
            },
            4 if of != Type::Bool => Expr::Between {
                value: self.boxed(scope, of, depth),
                low: self.boxed(scope, of, 0),
                high: self.boxed(scope, of, 0),
                negated,
            },
            5 if of != Type::Bool => {
                let mut list: Vec<Expr> =
                    (0..1 + self.below(4)).map(|_| Expr::Literal(self.constant(of), of)).collect();
                if self.percent(25) {
                    list.push(Expr::Literal(Value::Null, of));
                }
                if self.percent(25) {
                    list.push(self.leaf(scope, of));
                }
                Expr::InList { value: self.boxed(scope, of, depth), list, negated }
            }
            6 => {
                let pattern = self.pick(&["a", "a%", "%", "", "b%"]).to_owned();
                Expr::Like(self.boxed(scope, Type::Text, depth), pattern, negated)
            }
            _ => {
                let comparison = self.comparison();
                Expr::Compare(comparison, self.boxed(scope, of, depth), self.boxed(scope, of, depth))
            }
        }
    }

    fn leaf(&mut self, scope: &InScope, ty: Type) -> Expr {
        let ty = if ty == Type::Mean { Type::Int } else { ty };
        if self.percent(75)
            && let Some(column) = self.column_of(scope, ty)
        {
            return column;
        }
        let value = if self.percent(6) { Value::Null } else { self.constant(ty) };
        Expr::Literal(value, ty)
    }
}

pub(super) fn select(select: Select) -> Query {
    Query::Select(Box::new(select))
}

fn equal(one: Expr, other: Expr) -> Expr {
    Expr::Compare(Comparison::Equal, Box::new(one), Box::new(other))
}

pub(super) fn all(conditions: Vec<Expr>) -> Option<Expr> {
    conditions.into_iter().reduce(|one, other| Expr::And(Box::new(one), Box::new(other)))
}

pub(super) fn named(items: Vec<Expr>) -> Vec<(Expr, String)> {
    items.into_iter().enumerate().map(|(at, one)| (one, format!("c{at}"))).collect()
}

fn from_width(from: &From) -> usize {
    match from {
        From::Item(_) => 1,
        From::Join { left, .. } => from_width(left) + 1,
    }
}

/// The columns of a query, of which those may be null that are not known not to be.
fn columns_of(query: &Query) -> Vec<Column> {
    let is_never_null = |at: usize| match query {
        Query::Select(select) => matches!(select.items[at].0, Expr::WindowEnd | Expr::WindowStart),
        Query::Union { .. } => false,
    };
    let columns = query.columns().into_iter().enumerate();
    columns.map(|(at, (name, ty))| Column { name: name.to_owned(), ty, nullable: !is_never_null(at) }).collect()
}
