//! Random joins and subqueries over small tables of which many values are null, and the others are few, so that
//! most of them meet. There are no windows and no spans of time, so the answer is there as soon as all rows have come:
//! some of these queries are run over sources that never end.

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::engine::Course;
use super::generate::{Case, Generator, InScope, all, named, select};
use super::query::{
    Aggregate, Column, Comparison, Expr, From, Group, Item, JoinKind, MIDNIGHT_US, Query, SECOND_US, Select, Source,
    Table, Truth, Type, Value,
};

const ROWS_MAX: usize = 10;
/// The types of the columns that have nulls.
const TYPES: [Type; 3] = [Type::Int, Type::Text, Type::Bool];
const COMPARISONS: [Comparison; 8] = [
    Comparison::Equal,
    Comparison::NotEqual,
    Comparison::Less,
    Comparison::LessOrEqual,
    Comparison::Greater,
    Comparison::GreaterOrEqual,
    Comparison::Distinct,
    Comparison::NotDistinct,
];

pub(super) fn case(seed: u64) -> Case {
    let mut generator = Nulls(Generator::new(StdRng::seed_from_u64(seed)));
    for name in ["a", "b", "c"] {
        let table = generator.table(name);
        generator.0.tables.push(table);
    }
    let query = generator.query(2);
    let courses = (0..3).map(|_| Course { endless: generator.0.percent(40), ..generator.0.course() }).collect();
    Case { tables: generator.0.tables, query, courses }
}

struct Nulls(Generator);

impl Nulls {
    fn table(&mut self, name: &str) -> Table {
        let column = |name: &str, ty, nullable| Column { name: name.to_owned(), ty, nullable };
        let is_filled = self.0.percent(20);
        let columns = vec![
            column("id", Type::Int, false),
            column("ts", Type::Time, false),
            column("k", Type::Int, true),
            column("j", Type::Int, !is_filled),
            column("s", Type::Text, true),
            column("f", Type::Bool, true),
        ];
        let rows = self.0.below(ROWS_MAX + 1);
        let partitions = 1 + self.0.below(2);
        let rows = (0..rows as i64).map(|id| {
            let row = columns.iter().map(|column| match column.name.as_str() {
                "id" => Value::Int(id),
                "ts" => Value::Time(MIDNIGHT_US + id * SECOND_US),
                _ if column.nullable && self.0.percent(40) => Value::Null,
                _ => self.constant(column.ty),
            });
            let row = row.collect();
            (self.0.below(partitions), row)
        });
        let rows = rows.collect();
        Table { name: name.to_owned(), columns, rows, lateness_s: 0 }
    }

    fn constant(&mut self, ty: Type) -> Value {
        match ty {
            Type::Bool => Value::Bool(self.0.percent(50)),
            Type::Text => Value::Text(self.0.pick(&["a", "b"]).to_owned()),
            _ => Value::Int(self.0.below(3) as i64),
        }
    }

    fn literal(&mut self, ty: Type) -> Expr {
        let value = if self.0.percent(15) { Value::Null } else { self.constant(ty) };
        Expr::Literal(value, ty)
    }

    /// A column of that type that may be null, where there is one.
    fn column(&mut self, scope: &InScope, ty: Type) -> Expr {
        let has_nulls = |columns: &Vec<Column>| columns.iter().filter(|one| one.name != "id").cloned().collect();
        let scope: InScope = scope.iter().map(|(alias, columns)| (alias.clone(), has_nulls(columns))).collect();
        self.0.column_of(&scope, ty).unwrap_or_else(|| self.literal(ty))
    }

    /// Two lists of as many values, each pair of one type: columns of one and of the other scope.
    fn rows(&mut self, one: &InScope, other: &InScope) -> (Vec<Expr>, Vec<Expr>) {
        let length = 2 + self.0.below(2);
        let pairs = (0..length).map(|_| {
            let ty = self.0.pick(&TYPES);
            (self.column(one, ty), self.column(other, ty))
        });
        pairs.unzip()
    }

    /// A row of a scope, and a row of constants or of columns of the same scope.
    fn row_and_other(&mut self, scope: &InScope) -> (Vec<Expr>, Vec<Expr>) {
        let (row, mut other) = self.rows(scope, scope);
        for part in &mut other {
            if self.0.percent(70) {
                *part = self.literal(part.ty());
            }
        }
        (row, other)
    }

    /// A condition by which rows of two inputs meet.
    fn meets(&mut self, one: &InScope, other: &InScope) -> Expr {
        let comparison = self.0.pick(&[Comparison::Equal, Comparison::Equal, Comparison::NotDistinct]);
        if self.0.percent(25) {
            let (one, other) = self.rows(one, other);
            return Expr::CompareRows(comparison, one, other);
        }
        let ty = self.0.pick(&TYPES);
        Expr::Compare(comparison, Box::new(self.column(one, ty)), Box::new(self.column(other, ty)))
    }

    fn from(&mut self, items: usize, depth: usize) -> (From, InScope, Vec<Expr>) {
        let (item, columns) = self.item(depth);
        let mut scope = vec![(item.alias.clone(), columns)];
        let (mut from, mut of_where) = (From::Item(item), Vec::new());
        for _ in 1..items {
            let (right, columns) = self.item(depth);
            let of_right = vec![(right.alias.clone(), columns)];
            let kind = match self.0.below(10) {
                0..6 => JoinKind::Inner,
                6..8 => JoinKind::Left,
                8 => JoinKind::Right,
                _ => JoinKind::Full,
            };
            let meets = (0..1 + self.0.below(4) / 3).map(|_| self.meets(&scope, &of_right)).collect::<Vec<_>>();
            // What makes rows meet may as well stand in WHERE.
            let is_in_where = kind == JoinKind::Inner && self.0.percent(20);
            let mut conditions = if is_in_where { vec![] } else { meets.clone() };
            of_where.extend(meets.into_iter().filter(|_| is_in_where));
            if self.0.percent(15) {
                let both = [scope.as_slice(), &of_right].concat();
                conditions.push(self.predicate(&both, 1));
            }
            let on = all(conditions).unwrap_or(Expr::Literal(Value::Bool(true), Type::Bool));
            from = From::Join { kind, left: Box::new(from), right, on };
            scope.extend(of_right);
        }
        (from, scope, of_where)
    }

    fn item(&mut self, depth: usize) -> (Item, Vec<Column>) {
        let alias = self.0.alias();
        if depth == 0 || self.0.percent(85) {
            let table = self.0.below(self.0.tables.len());
            let Table { name, columns, .. } = &self.0.tables[table];
            return (Item { alias, source: Source::Table { table, name: name.clone() } }, columns.clone());
        }
        let query = self.query(depth - 1);
        let columns = query.columns().into_iter();
        let columns = columns.map(|(name, ty)| Column { name: name.to_owned(), ty, nullable: true }).collect();
        (Item { alias, source: Source::Query(Box::new(query)) }, columns)
    }

    fn query(&mut self, depth: usize) -> Query {
        let items = self.0.pick(&[1, 2, 2, 3]);
        let (from, scope, mut conditions) = self.from(items, depth);
        if self.0.percent(35) {
            conditions.push(self.across(&scope));
        }
        if self.0.percent(25) {
            conditions.push(self.predicate(&scope, 2));
        }
        if self.0.percent(if items == 1 { 80 } else { 25 }) {
            conditions.push(self.with_subquery(&scope));
        }
        let id = |(alias, columns): &(String, Vec<Column>)| {
            let id = columns.iter().find(|one| one.name == "id").or(columns.first());
            id.map(|id| Expr::column(alias, id))
        };
        let mut items: Vec<Expr> = scope.iter().filter_map(id).collect();
        for ty in TYPES {
            if self.0.percent(40) {
                items.push(self.column(&scope, ty));
            }
        }
        if self.0.percent(15) {
            items.push(self.predicate(&scope, 1));
        }
        if self.0.percent(10) {
            items.push(self.scalar(&scope));
        }
        let distinct = self.0.percent(8);
        let (items, filter) = (named(items), all(conditions));
        select(Select { distinct, items, from, filter, group: None, having: None })
    }

    /// A condition over columns of any two inputs.
    fn across(&mut self, scope: &InScope) -> Expr {
        let one = vec![scope[self.0.below(scope.len())].clone()];
        let other = vec![scope[self.0.below(scope.len())].clone()];
        self.meets(&one, &other)
    }

    fn predicate(&mut self, scope: &InScope, depth: usize) -> Expr {
        let negated = self.0.percent(50);
        let ty = self.0.pick(&TYPES);
        match self.0.below(if depth > 0 { 10 } else { 7 }) {
            0..2 => {
                let (row, other) = self.row_and_other(scope);
                Expr::CompareRows(self.0.pick(&COMPARISONS), row, other)
            }
            2 => {
                let (row, first) = self.row_and_other(scope);
                let mut list = vec![first];
                for _ in 0..self.0.below(3) {
                    list.push(row.iter().map(|part| self.literal(part.ty())).collect());
                }
                Expr::RowInList { row, list, negated }
            }
            3 => Expr::Is(Box::new(self.column(scope, ty)), Truth::Null, negated),
            4 => self.column(scope, Type::Bool),
            5 => {
                let list = (0..1 + self.0.below(3)).map(|_| self.literal(ty)).collect();
                Expr::InList { value: Box::new(self.column(scope, ty)), list, negated }
            }
            6 => {
                let other = if negated { self.literal(ty) } else { self.column(scope, ty) };
                Expr::Compare(self.0.pick(&COMPARISONS), Box::new(self.column(scope, ty)), Box::new(other))
            }
            7 => Expr::Not(Box::new(self.predicate(scope, depth - 1))),
            8 => self.either(scope, depth),
            _ => {
                let truth = self.0.pick(&[Truth::True, Truth::False, Truth::Null]);
                Expr::Is(Box::new(self.predicate(scope, depth - 1)), truth, negated)
            }
        }
    }

    fn either(&mut self, scope: &InScope, depth: usize) -> Expr {
        let [one, other] = [(); 2].map(|()| Box::new(self.predicate(scope, depth - 1)));
        if self.0.percent(50) { Expr::Or(one, other) } else { Expr::And(one, other) }
    }

    fn with_subquery(&mut self, scope: &InScope) -> Expr {
        let subquery = self.subquery(scope);
        match self.0.below(8) {
            0..4 => subquery,
            4 => Expr::Not(Box::new(subquery)),
            5 => Expr::Or(Box::new(self.predicate(scope, 1)), Box::new(subquery)),
            6 => Expr::Or(Box::new(subquery), Box::new(self.subquery(scope))),
            _ => Expr::Is(Box::new(subquery), self.0.pick(&[Truth::True, Truth::False, Truth::Null]), true),
        }
    }

    /// The rows of a subquery: one input or two, often with a condition that few rows fulfil or none.
    fn inner(&mut self, scope: &InScope, correlated: bool) -> (From, InScope, Option<Expr>) {
        let items = self.0.pick(&[1, 1, 1, 2]);
        let (from, inner, mut conditions) = self.from(items, 0);
        if correlated {
            conditions.push(self.meets(&inner, scope));
        }
        if self.0.percent(8) {
            conditions.push(self.with_subquery(&inner));
        }
        if self.0.percent(60) {
            conditions.push(self.predicate(&inner, 1));
        }
        (from, inner, all(conditions))
    }

    fn subquery(&mut self, scope: &InScope) -> Expr {
        let negated = self.0.percent(60);
        let kind = self.0.below(7);
        if kind == 6 {
            let comparison = self.0.pick(&COMPARISONS);
            let value = self.scalar(scope);
            let other = if self.0.percent(50) { self.column(scope, value.ty()) } else { self.literal(value.ty()) };
            return match self.0.percent(20) {
                true => Expr::Is(Box::new(value), Truth::Null, negated),
                false => Expr::Compare(comparison, Box::new(value), Box::new(other)),
            };
        }
        let correlated = self.0.percent(40);
        let (from, inner, filter) = self.inner(scope, correlated);
        let ty = self.0.pick(&[Type::Int, Type::Int, Type::Text]);
        let (item, value) = match kind {
            0..3 => (Expr::Literal(Value::Int(1), Type::Int), None),
            _ => (self.column(&inner, ty), Some(Box::new(self.column(scope, ty)))),
        };
        let items = named(vec![item]);
        let query = select(Select { distinct: false, items, from, filter, group: None, having: None });
        match value {
            None => Expr::Exists(Box::new(query), negated),
            Some(value) if kind == 3 => Expr::Quantified(value, Box::new(query), negated),
            Some(value) => Expr::In(value, Box::new(query), negated),
        }
    }

    /// A subquery that is a value.
    fn scalar(&mut self, scope: &InScope) -> Expr {
        let (from, inner, filter) = self.inner(scope, false);
        // What aggregates is found by an equality.
        let equal = self.0.percent(35).then(|| {
            let ty = self.0.pick(&TYPES);
            let (column, other) = (self.column(&inner, ty), self.column(scope, ty));
            Expr::Compare(Comparison::Equal, Box::new(column), Box::new(other))
        });
        let filter = all(equal.into_iter().chain(filter).collect());
        let function = self.0.pick(&[Aggregate::CountRows, Aggregate::CountRows, Aggregate::Count, Aggregate::Max]);
        let ty = self.0.pick(&[Type::Int, Type::Text]);
        let argument = (function != Aggregate::CountRows).then(|| Box::new(self.column(&inner, ty)));
        let mut value = Expr::Aggregate { function, argument, filter: None };
        if value.ty() == Type::Int && self.0.percent(20) {
            value = Expr::Coalesce(vec![value, Expr::Literal(Value::Int(0), Type::Int)]);
        }
        let (ty, items) = (value.ty(), named(vec![value]));
        let group = Some(Group { keys: vec![], window: None, sets: None });
        let query = select(Select { distinct: false, items, from, filter, group, having: None });
        Expr::Scalar(Box::new(query), ty)
    }
}
