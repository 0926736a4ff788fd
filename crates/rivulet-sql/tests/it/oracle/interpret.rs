//! The answer of a query by the words of the standard: over whole tables, row by row, in nested loops, with logic of
//! three values.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::rc::Rc;

use super::query::{
    Aggregate, Comparison, Expr, Frame, From, Group, Item, JoinKind, MIDNIGHT_US, Query, RANK, Ranking, SECOND_US,
    Select, Source, Table, Truth, Value, WindowKind,
};

/// The names of columns, and rows.
pub(crate) struct Relation {
    pub(crate) names: Vec<String>,
    pub(crate) rows: Vec<Rc<Vec<Value>>>,
}

/// What is in FROM: aliases with the names of their columns, and for each row those of each alias.
#[derive(Clone, Default)]
struct Joined {
    aliases: Vec<(String, Vec<String>)>,
    rows: Vec<JoinedRow>,
}

type JoinedRow = Vec<Rc<Vec<Value>>>;

/// Where an expression is evaluated.
struct Scope<'a> {
    aliases: &'a [(String, Vec<String>)],
    row: &'a [Rc<Vec<Value>>],
    /// The rows of the group, where there is one.
    group: Option<&'a [JoinedRow]>,
    /// The keys of the group, and those that its set of keys does not have.
    keys: [&'a [Expr]; 2],
    window: Option<(i64, i64)>,
    /// All rows of FROM that passed WHERE, for what is computed over others.
    all: &'a [JoinedRow],
    outer: Option<&'a Scope<'a>>,
}

type Evaluated = Result<Value, String>;

/// The rows that a query gives, in no order.
pub(crate) fn answer(query: &Query, tables: &[Table]) -> Result<Vec<Vec<Value>>, String> {
    let relation = Interpreter { tables }.query(query, None)?;
    Ok(relation.rows.iter().map(|row| row.as_ref().clone()).collect())
}

struct Interpreter<'t> {
    tables: &'t [Table],
}

impl Interpreter<'_> {
    fn query(&self, query: &Query, outer: Option<&Scope<'_>>) -> Result<Relation, String> {
        match query {
            Query::Select(select) => self.select(select, outer),
            Query::Union { all, queries } => {
                let mut united = self.query(&queries[0], outer)?;
                for query in &queries[1..] {
                    let next = self.query(query, outer)?;
                    if next.names.len() != united.names.len() {
                        return Err("a union of different widths".into());
                    }
                    united.rows.extend(next.rows);
                }
                if !all {
                    distinct(&mut united.rows);
                }
                Ok(united)
            }
        }
    }

    fn select(&self, select: &Select, outer: Option<&Scope<'_>>) -> Result<Relation, String> {
        let mut joined = self.from(&select.from, outer)?;
        if let Some(filter) = &select.filter {
            let mut kept = Vec::new();
            for row in std::mem::take(&mut joined.rows) {
                let scope = scope(&joined.aliases, &row, &[], outer);
                if self.is_true(filter, &scope)? {
                    kept.push(row);
                }
            }
            joined.rows = kept;
        }
        let names = select.items.iter().map(|item| item.1.clone()).collect();
        let mut rows = Vec::new();
        match &select.group {
            None => {
                for row in &joined.rows {
                    let scope = scope(&joined.aliases, row, &joined.rows, outer);
                    let items = select.items.iter().map(|(one, _)| self.value(one, &scope));
                    rows.push(Rc::new(items.collect::<Result<_, _>>()?));
                }
            }
            Some(group) => {
                for (window, keys, of_group) in self.sets(group, &joined, outer)? {
                    let empty: JoinedRow =
                        joined.aliases.iter().map(|(_, names)| Rc::new(vec![Value::Null; names.len()])).collect();
                    let first = of_group.first().unwrap_or(&empty);
                    let group = Some(of_group.as_slice());
                    let keys = [keys[0].as_slice(), keys[1].as_slice()];
                    let scope = Scope { window, group, keys, ..scope(&joined.aliases, first, &[], outer) };
                    if let Some(having) = &select.having
                        && !self.is_true(having, &scope)?
                    {
                        continue;
                    }
                    let items = select.items.iter().map(|(one, _)| self.value(one, &scope));
                    rows.push(Rc::new(items.collect::<Result<_, _>>()?));
                }
            }
        }
        if select.distinct {
            distinct(&mut rows);
        }
        Ok(Relation { names, rows })
    }

    /// The groups of each set of keys: the window, the keys of the set and those of the other sets, and the rows. What
    /// is in no set is no key: the text of the query does not even have it.
    #[allow(clippy::type_complexity)]
    fn sets(
        &self,
        group: &Group,
        joined: &Joined,
        outer: Option<&Scope<'_>>,
    ) -> Result<Vec<(Option<(i64, i64)>, [Vec<Expr>; 2], Vec<JoinedRow>)>, String> {
        let all = vec![(0..group.keys.len()).collect()];
        let sets: &Vec<Vec<usize>> = group.sets.as_ref().unwrap_or(&all);
        let mut groups = Vec::new();
        for set in sets {
            let some = |is_there: bool| {
                let is_key = |at: &usize| sets.iter().any(|set| set.contains(at));
                let such = group.keys.iter().enumerate().filter(|(at, _)| set.contains(at) == is_there && is_key(at));
                such.map(|(_, key)| key.clone()).collect::<Vec<_>>()
            };
            let of_set = Group { keys: some(true), window: group.window.clone(), sets: None };
            let of_set = self.groups(&of_set, joined, outer)?.into_iter();
            groups.extend(of_set.map(|(window, rows)| (window, [some(true), some(false)], rows)));
        }
        Ok(groups)
    }

    #[allow(clippy::type_complexity)] // A list of groups: the window, and the rows.
    fn groups(
        &self,
        group: &Group,
        joined: &Joined,
        outer: Option<&Scope<'_>>,
    ) -> Result<Vec<(Option<(i64, i64)>, Vec<JoinedRow>)>, String> {
        let mut by_key: Vec<(Vec<Value>, Vec<JoinedRow>)> = Vec::new();
        for row in &joined.rows {
            let scope = scope(&joined.aliases, row, &[], outer);
            let key = group.keys.iter().map(|key| self.value(key, &scope)).collect::<Result<Vec<_>, _>>()?;
            match by_key.iter_mut().find(|(known, _)| *known == key) {
                Some((_, rows)) => rows.push(row.clone()),
                None => by_key.push((key, vec![row.clone()])),
            }
        }
        let Some((kind, time)) = &group.window else {
            if group.keys.is_empty() && by_key.is_empty() {
                return Ok(vec![(None, Vec::new())]);
            }
            return Ok(by_key.into_iter().map(|(_, rows)| (None, rows)).collect());
        };
        let mut groups = Vec::new();
        for (_, rows) in by_key {
            let mut timed = Vec::new();
            for row in rows {
                match self.value(time, &scope(&joined.aliases, &row, &[], outer))? {
                    Value::Time(us) => timed.push((us, row)),
                    other => return Err(format!("a window of {other:?}")),
                }
            }
            timed.sort_by_key(|(us, _)| *us);
            let mut windows: Vec<((i64, i64), Vec<JoinedRow>)> = Vec::new();
            for (us, row) in timed {
                let of_row: Vec<(i64, i64)> = match *kind {
                    WindowKind::Tumble(width) => windows_of(us, width, width),
                    WindowKind::Hop(slide, width) => windows_of(us, slide, width),
                    WindowKind::Session(gap) => match windows.last_mut() {
                        Some((session, rows)) if us < session.1 => {
                            session.1 = us + gap * SECOND_US;
                            rows.push(row);
                            continue;
                        }
                        _ => vec![(us, us + gap * SECOND_US)],
                    },
                };
                for window in of_row {
                    match windows.iter_mut().find(|(known, _)| *known == window) {
                        Some((_, rows)) => rows.push(row.clone()),
                        None => windows.push((window, vec![row.clone()])),
                    }
                }
            }
            groups.extend(windows.into_iter().map(|(window, rows)| (Some(window), rows)));
        }
        Ok(groups)
    }

    fn from(&self, from: &From, outer: Option<&Scope<'_>>) -> Result<Joined, String> {
        match from {
            From::Item(item) => self.item(item, outer),
            From::Join { kind, left, right, on } => {
                let (left, right) = (self.from(left, outer)?, self.item(right, outer)?);
                let nulls = |joined: &Joined| -> JoinedRow {
                    joined.aliases.iter().map(|(_, names)| Rc::new(vec![Value::Null; names.len()])).collect()
                };
                let aliases = [left.aliases.clone(), right.aliases.clone()].concat();
                let mut rows = Vec::new();
                let mut is_met = vec![false; right.rows.len()];
                for one in &left.rows {
                    let mut is_alone = true;
                    for (other, is_met) in right.rows.iter().zip(&mut is_met) {
                        let pair = [one.as_slice(), other].concat();
                        if self.is_true(on, &scope(&aliases, &pair, &[], outer))? {
                            (is_alone, *is_met) = (false, true);
                            rows.push(pair);
                        }
                    }
                    if is_alone && matches!(kind, JoinKind::Left | JoinKind::Full) {
                        rows.push([one.as_slice(), &nulls(&right)].concat());
                    }
                }
                if matches!(kind, JoinKind::Right | JoinKind::Full) {
                    let alone = right.rows.iter().zip(&is_met).filter(|(_, is_met)| !**is_met);
                    rows.extend(alone.map(|(other, _)| [nulls(&left).as_slice(), other].concat()));
                }
                Ok(Joined { aliases, rows })
            }
        }
    }

    fn item(&self, item: &Item, outer: Option<&Scope<'_>>) -> Result<Joined, String> {
        let relation = match &item.source {
            Source::Table { table, .. } => {
                let table = &self.tables[*table];
                Relation {
                    names: table.columns.iter().map(|column| column.name.clone()).collect(),
                    rows: table.rows.iter().map(|row| Rc::new(row.1.clone())).collect(),
                }
            }
            // A query in FROM sees nothing of what is around it.
            Source::Query(query) => self.query(query, None)?,
            Source::Ranked { query, ranking, partition, order, limit } => {
                ranked(self.query(query, None)?, *ranking, partition, order, *limit)?
            }
            Source::First { query, order, limit, offset } => {
                let ranked = ranked(self.query(query, None)?, Ranking::RowNumber, &[], order, limit + offset)?;
                let behind = |row: &Rc<Vec<Value>>| {
                    let (rank, row) = row.split_last()?;
                    (*rank > Value::Int(*offset)).then(|| Rc::new(row.to_vec()))
                };
                let rows = ranked.rows.iter().filter_map(behind).collect();
                Relation { names: ranked.names[..ranked.names.len() - 1].to_vec(), rows }
            }
        };
        let _ = outer;
        let rows = relation.rows.into_iter().map(|row| vec![row]).collect();
        Ok(Joined { aliases: vec![(item.alias.clone(), relation.names)], rows })
    }

    fn row(&self, parts: &[Expr], scope: &Scope<'_>) -> Result<Vec<Value>, String> {
        parts.iter().map(|part| self.value(part, scope)).collect()
    }

    fn is_true(&self, condition: &Expr, scope: &Scope<'_>) -> Result<bool, String> {
        Ok(self.value(condition, scope)? == Value::Bool(true))
    }

    fn value(&self, expr: &Expr, scope: &Scope<'_>) -> Evaluated {
        if scope.group.is_some() {
            let [there, absent] = scope.keys;
            if absent.contains(expr) {
                return Ok(Value::Null);
            }
            if there.contains(expr) && !absent.is_empty() {
                return self.value(expr, &Scope { keys: [there, &[]], ..*scope });
            }
        }
        Ok(match expr {
            Expr::Grouping(key) => Value::Int(i64::from(scope.keys[1].contains(key))),
            Expr::Column { alias, name, .. } => return column(alias, name, scope),
            Expr::Literal(value, _) => value.clone(),
            Expr::Compare(comparison, one, other) => {
                compare(*comparison, &self.value(one, scope)?, &self.value(other, scope)?)
            }
            Expr::CompareRows(comparison, one, other) => {
                compare_rows(*comparison, &self.row(one, scope)?, &self.row(other, scope)?)
            }
            Expr::RowInList { row, list, negated } => {
                let row = self.row(row, scope)?;
                let mut is_in = Value::Bool(false);
                for one in list {
                    let equal = compare_rows(Comparison::Equal, &row, &self.row(one, scope)?);
                    is_in = not(&and(&not(&is_in), &not(&equal)));
                }
                negated_if(*negated, is_in)
            }
            Expr::And(one, other) => and(&self.value(one, scope)?, &self.value(other, scope)?),
            Expr::Or(one, other) => not(&and(&not(&self.value(one, scope)?), &not(&self.value(other, scope)?))),
            Expr::Not(one) => not(&self.value(one, scope)?),
            Expr::Is(one, truth, negated) => {
                let value = self.value(one, scope)?;
                let is = match truth {
                    Truth::Null => value == Value::Null,
                    Truth::True => value == Value::Bool(true),
                    Truth::False => value == Value::Bool(false),
                };
                Value::Bool(is != *negated)
            }
            Expr::Between { value, low, high, negated } => {
                let value = self.value(value, scope)?;
                let low = compare(Comparison::LessOrEqual, &self.value(low, scope)?, &value);
                let high = compare(Comparison::LessOrEqual, &value, &self.value(high, scope)?);
                negated_if(*negated, and(&low, &high))
            }
            Expr::InList { value, list, negated } => {
                let value = self.value(value, scope)?;
                let list = list.iter().map(|one| self.value(one, scope)).collect::<Result<Vec<_>, _>>()?;
                negated_if(*negated, is_in(&value, list.iter()))
            }
            Expr::Case { operand, whens, otherwise } => {
                let operand = operand.as_ref().map(|one| self.value(one, scope)).transpose()?;
                for (when, then) in whens {
                    let when = self.value(when, scope)?;
                    let is_taken = match &operand {
                        Some(operand) => compare(Comparison::Equal, operand, &when) == Value::Bool(true),
                        None => when == Value::Bool(true),
                    };
                    if is_taken {
                        return self.value(then, scope);
                    }
                }
                return otherwise.as_ref().map_or(Ok(Value::Null), |one| self.value(one, scope));
            }
            Expr::Coalesce(all) => {
                for one in all {
                    let value = self.value(one, scope)?;
                    if value != Value::Null {
                        return Ok(value);
                    }
                }
                Value::Null
            }
            Expr::NullIf(one, other) => {
                let (one, other) = (self.value(one, scope)?, self.value(other, scope)?);
                if compare(Comparison::Equal, &one, &other) == Value::Bool(true) { Value::Null } else { one }
            }
            Expr::Arithmetic(operator, one, other) => match (self.value(one, scope)?, self.value(other, scope)?) {
                (Value::Int(one), Value::Int(other)) => Value::Int(match operator {
                    '+' => one.checked_add(other).ok_or("too large")?,
                    '-' => one.checked_sub(other).ok_or("too large")?,
                    _ => one.checked_mul(other).ok_or("too large")?,
                }),
                _ => Value::Null,
            },
            Expr::Shift(one, seconds) => match self.value(one, scope)? {
                Value::Time(us) => Value::Time(us + seconds * SECOND_US),
                _ => Value::Null,
            },
            Expr::Minute(one) => match self.value(one, scope)? {
                Value::Time(us) => Value::Time(us - (us - MIDNIGHT_US).rem_euclid(60 * SECOND_US)),
                _ => Value::Null,
            },
            Expr::Concat(one, other) => match (self.value(one, scope)?, self.value(other, scope)?) {
                (Value::Text(one), Value::Text(other)) => Value::Text(one + &other),
                _ => Value::Null,
            },
            Expr::Upper(one) => match self.value(one, scope)? {
                Value::Text(one) => Value::Text(one.to_uppercase()),
                _ => Value::Null,
            },
            Expr::Like(one, pattern, negated) => match self.value(one, scope)? {
                Value::Text(one) => {
                    let is_like = match pattern.strip_suffix('%') {
                        Some(begin) => one.starts_with(begin),
                        None => one == *pattern,
                    };
                    Value::Bool(is_like != *negated)
                }
                _ => Value::Null,
            },
            Expr::Aggregate { function, argument, filter } => {
                let rows = scope.group.ok_or("an aggregate without a group")?;
                let mut values = Vec::new();
                for row in rows {
                    let of_row = Scope { row, group: None, ..*scope };
                    if let Some(filter) = filter
                        && !self.is_true(filter, &of_row)?
                    {
                        continue;
                    }
                    values.push(match argument {
                        Some(argument) => self.value(argument, &of_row)?,
                        None => Value::Int(1),
                    });
                }
                return aggregate(*function, values);
            }
            Expr::Exists(query, negated) => Value::Bool(self.query(query, Some(scope))?.rows.is_empty() == *negated),
            Expr::In(one, query, negated) | Expr::Quantified(one, query, negated) => {
                let value = self.value(one, scope)?;
                let rows = self.query(query, Some(scope))?.rows;
                negated_if(*negated, is_in(&value, rows.iter().map(|row| &row[0])))
            }
            Expr::Scalar(query, _) => {
                let rows = self.query(query, Some(scope))?.rows;
                match rows.as_slice() {
                    [] => Value::Null,
                    [row] => row[0].clone(),
                    _ => return Err("a value of several rows".into()),
                }
            }
            Expr::Over { function, argument, partition, order, frame } => {
                let (before, at) = self.partition(partition, order, scope)?;
                if *frame == Frame::Whole {
                    let of_row = |row: &JoinedRow| match argument {
                        Some(argument) => self.value(argument, &Scope { row, ..*scope }),
                        None => Ok(Value::Int(1)),
                    };
                    let values = before.iter().map(|(_, row)| of_row(row)).collect::<Result<_, _>>()?;
                    return aggregate(*function, values);
                }
                let first = match frame {
                    Frame::Rows(rows) => at.saturating_sub(*rows),
                    _ => 0,
                };
                // Peers belong to a range.
                let is_range = matches!(frame, Frame::Range(_) | Frame::AllRange);
                let peers = before[at..].iter().take_while(|(key, _)| is_range && *key == before[at].0).count();
                let mut values = Vec::new();
                for (key, row) in &before[first..(at + 1).max(at + peers)] {
                    if let Frame::Range(seconds) = frame
                        && let (Value::Time(us), Value::Time(own_us)) = (&key[0], &before[at].0[0])
                        && *us < own_us - seconds * SECOND_US
                    {
                        continue;
                    }
                    let of_row = Scope { row, ..*scope };
                    values.push(match argument {
                        Some(argument) => self.value(argument, &of_row)?,
                        None => Value::Int(1),
                    });
                }
                return aggregate(*function, values);
            }
            Expr::Lag { leads, argument, rows, partition, order } => {
                let (before, at) = self.partition(partition, order, scope)?;
                let other = if *leads { Some(at + rows) } else { at.checked_sub(*rows) };
                match other.and_then(|at| before.get(at)) {
                    Some((_, row)) => return self.value(argument, &Scope { row, ..*scope }),
                    None => Value::Null,
                }
            }
            Expr::WindowStart => Value::Time(scope.window.ok_or("no window")?.0),
            Expr::WindowEnd => Value::Time(scope.window.ok_or("no window")?.1),
        })
    }

    /// The rows of the partition of a row in their order, each with what it is ordered by; and which of them it is.
    #[allow(clippy::type_complexity)]
    fn partition<'s>(
        &self,
        partition: &[Expr],
        order: &[Expr],
        scope: &Scope<'s>,
    ) -> Result<(Vec<(Vec<Value>, &'s JoinedRow)>, usize), String> {
        let keys = |all: &[Expr], row: &JoinedRow| {
            let of_row = Scope { row, ..*scope };
            all.iter().map(|one| self.value(one, &of_row)).collect::<Result<Vec<_>, _>>()
        };
        let own =
            scope.all.iter().find(|row| std::ptr::eq(row.as_slice(), scope.row)).ok_or("a row of no partition")?;
        let of_own = keys(partition, own)?;
        let mut rows = Vec::new();
        for row in scope.all {
            if keys(partition, row)? == of_own {
                rows.push((keys(order, row)?, row));
            }
        }
        rows.sort_by(|one, other| {
            let each = one.0.iter().zip(&other.0).map(|(one, other)| nulls_last(one, other));
            each.fold(Ordering::Equal, Ordering::then)
        });
        let at = rows.iter().position(|(_, row)| std::ptr::eq(*row, own)).ok_or("a row outside of its partition")?;
        Ok((rows, at))
    }
}

fn scope<'a>(
    aliases: &'a [(String, Vec<String>)],
    row: &'a JoinedRow,
    all: &'a [JoinedRow],
    outer: Option<&'a Scope<'a>>,
) -> Scope<'a> {
    Scope { aliases, row, group: None, keys: [&[], &[]], window: None, all, outer }
}

fn column(alias: &str, name: &str, scope: &Scope<'_>) -> Evaluated {
    let mut scope = Some(scope);
    while let Some(around) = scope {
        if let Some(at) = around.aliases.iter().position(|(known, _)| known == alias) {
            let column = around.aliases[at].1.iter().position(|known| known == name);
            return column.map(|column| around.row[at][column].clone()).ok_or(format!("no column {alias}.{name}"));
        }
        scope = around.outer;
    }
    Err(format!("nothing is called {alias}"))
}

fn distinct(rows: &mut Vec<Rc<Vec<Value>>>) {
    let mut known = BTreeSet::new();
    rows.retain(|row| known.insert(row.clone()));
}

/// The windows of a time, by lengths in seconds.
fn windows_of(us: i64, slide_s: i64, width_s: i64) -> Vec<(i64, i64)> {
    let (slide, width) = (slide_s * SECOND_US, width_s * SECOND_US);
    let last = us - us.rem_euclid(slide);
    (0..width / slide).map(|nth| last - nth * slide).map(|start| (start, start + width)).collect()
}

fn ranked(
    mut relation: Relation,
    ranking: Ranking,
    partition: &[String],
    order: &[(String, bool)],
    limit: i64,
) -> Result<Relation, String> {
    let place = |name: &String| relation.names.iter().position(|known| known == name).ok_or("no such column");
    let partition = partition.iter().map(place).collect::<Result<Vec<_>, _>>()?;
    let order = order.iter().map(|(name, down)| Ok((place(name)?, *down))).collect::<Result<Vec<_>, String>>()?;
    let compare = |one: &[Value], other: &[Value]| {
        let each = order.iter().map(|&(column, down)| match (&one[column], &other[column]) {
            (one, other) if down && *one != Value::Null && *other != Value::Null => other.cmp(one),
            (one, other) => nulls_last(one, other),
        });
        each.fold(Ordering::Equal, Ordering::then)
    };
    let mut rows = Vec::new();
    for row in &relation.rows {
        let of_partition: Vec<_> =
            relation.rows.iter().filter(|other| partition.iter().all(|&column| other[column] == row[column])).collect();
        let before: Vec<_> = of_partition.iter().filter(|other| compare(other, row).is_lt()).collect();
        let rank = 1 + match ranking {
            // Rows that are equal in all get numbers in any order.
            Ranking::RowNumber => {
                let equal = of_partition.iter().take_while(|other| !Rc::ptr_eq(other, row));
                before.len() + equal.filter(|other| compare(other, row).is_eq()).count()
            }
            Ranking::Rank => before.len(),
            Ranking::DenseRank => {
                let by_order = |other: &Rc<Vec<Value>>| order.iter().map(|(at, _)| other[*at].clone()).collect();
                before.iter().map(|other| by_order(other)).collect::<BTreeSet<Vec<Value>>>().len()
            }
        } as i64;
        if rank <= limit {
            rows.push(Rc::new([row.as_slice(), &[Value::Int(rank)]].concat()));
        }
    }
    relation.names.push(RANK.to_owned());
    Ok(Relation { names: relation.names, rows })
}

fn nulls_last(one: &Value, other: &Value) -> Ordering {
    (*one == Value::Null).cmp(&(*other == Value::Null)).then_with(|| one.cmp(other))
}

fn compare(comparison: Comparison, one: &Value, other: &Value) -> Value {
    match comparison {
        Comparison::Distinct => return Value::Bool(one != other),
        Comparison::NotDistinct => return Value::Bool(one == other),
        _ => {}
    }
    if *one == Value::Null || *other == Value::Null {
        return Value::Null;
    }
    let order = one.cmp(other);
    Value::Bool(match comparison {
        Comparison::Equal => order.is_eq(),
        Comparison::NotEqual => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        _ => order.is_ge(),
    })
}

/// Two rows, part by part: those before the first pair that is unequal or has a null say nothing about their order.
fn compare_rows(comparison: Comparison, one: &[Value], other: &[Value]) -> Value {
    let pairs = || one.iter().zip(other);
    let equal =
        || pairs().fold(Value::Bool(true), |all, (one, other)| and(&all, &compare(Comparison::Equal, one, other)));
    match comparison {
        Comparison::NotDistinct => Value::Bool(one == other),
        Comparison::Distinct => Value::Bool(one != other),
        Comparison::Equal => equal(),
        Comparison::NotEqual => not(&equal()),
        order => {
            let decides = |pair: &(&Value, &Value)| compare(Comparison::Equal, pair.0, pair.1) != Value::Bool(true);
            let (one, other) = pairs().find(decides).or(pairs().next_back()).expect("a row has parts");
            compare(order, one, other)
        }
    }
}

fn and(one: &Value, other: &Value) -> Value {
    match (one, other) {
        (Value::Bool(false), _) | (_, Value::Bool(false)) => Value::Bool(false),
        (Value::Bool(true), Value::Bool(true)) => Value::Bool(true),
        _ => Value::Null,
    }
}

fn not(one: &Value) -> Value {
    match one {
        Value::Bool(one) => Value::Bool(!one),
        _ => Value::Null,
    }
}

fn negated_if(negated: bool, value: Value) -> Value {
    if negated { not(&value) } else { value }
}

fn is_in<'v>(value: &Value, list: impl Iterator<Item = &'v Value>) -> Value {
    let mut found = Value::Bool(false);
    for one in list {
        match compare(Comparison::Equal, value, one) {
            Value::Bool(true) => return Value::Bool(true),
            Value::Null => found = Value::Null,
            _ => {}
        }
    }
    found
}

fn aggregate(function: Aggregate, values: Vec<Value>) -> Evaluated {
    let rows = values.len();
    let mut values: Vec<Value> = values.into_iter().filter(|value| *value != Value::Null).collect();
    use Aggregate::{List, ListDistinct, MeanDistinct, SumDistinct, Texts, TextsDistinct};
    if matches!(function, SumDistinct | MeanDistinct | ListDistinct | TextsDistinct) {
        values = values.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    }
    if matches!(function, Aggregate::Median | List | Texts) {
        values.sort();
    }
    if function == Texts {
        values.reverse();
    }
    let number = |at: usize| match values.get(at) {
        Some(Value::Int(value)) => Ok(*value),
        _ => Err("a number of something else".to_owned()),
    };
    let bits = |join: fn(i64, i64) -> i64| -> Evaluated {
        let all = (0..values.len()).map(&number).collect::<Result<Vec<_>, _>>()?;
        Ok(all.into_iter().reduce(join).map_or(Value::Null, Value::Int))
    };
    let sum = || {
        values.iter().try_fold(0_i64, |sum, value| match value {
            Value::Int(value) => sum.checked_add(*value).ok_or("too large"),
            _ => Err("a sum of no numbers"),
        })
    };
    Ok(match function {
        Aggregate::CountRows => Value::Int(rows as i64),
        Aggregate::Count => Value::Int(values.len() as i64),
        Aggregate::CountDistinct => Value::Int(values.iter().collect::<BTreeSet<_>>().len() as i64),
        Aggregate::BitAnd => bits(|one, other| one & other)?,
        Aggregate::BitOr => bits(|one, other| one | other)?,
        Aggregate::BitXor => bits(|one, other| one ^ other)?,
        Aggregate::Sum | Aggregate::SumDistinct | Aggregate::Median if values.is_empty() => Value::Null,
        Aggregate::Median => {
            let middle = [number((values.len() - 1) / 2)?, number(values.len() / 2)?];
            Value::Mean(mean((middle[0] + middle[1]) as f64 / 2.0))
        }
        Aggregate::Sum | Aggregate::SumDistinct => Value::Int(sum()?),
        Aggregate::Mean | Aggregate::MeanDistinct if values.is_empty() => Value::Null,
        Aggregate::Mean | Aggregate::MeanDistinct => Value::Mean(mean(sum()? as f64 / values.len() as f64)),
        List | ListDistinct | Texts | TextsDistinct if values.is_empty() => Value::Null,
        List | ListDistinct => {
            let parts = values.iter().map(|value| match value {
                Value::Int(value) => Ok(value.to_string()),
                Value::Text(text) => Ok(format!("{text:?}")),
                _ => Err("a list of something else"),
            });
            Value::Text(format!("[{}]", parts.collect::<Result<Vec<_>, _>>()?.join(",")))
        }
        Texts | TextsDistinct => {
            let parts = values.iter().map(|value| match value {
                Value::Text(text) => Ok(text.as_str()),
                _ => Err("a text of something else"),
            });
            Value::Text(parts.collect::<Result<Vec<_>, _>>()?.join("/"))
        }
        Aggregate::Min => values.into_iter().min().unwrap_or(Value::Null),
        Aggregate::Max => values.drain(..).max().unwrap_or(Value::Null),
    })
}

/// A mean in the one form in which it is compared.
pub(crate) fn mean(value: f64) -> String {
    format!("{:.8e}", if value == 0.0 { 0.0 } else { value })
}
