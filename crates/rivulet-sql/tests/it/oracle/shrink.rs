//! The least that still fails: queries with a part less, and tables with rows less, tried one after the other.

use super::generate::Case;
use super::query::{Expr, From, Group, Item, Query, Select, Source, Type, Value};

/// So many smaller cases are tried.
const TRIES_MAX: usize = 3_000;

/// Makes a case smaller as long as `fails` says that it still does.
pub(crate) fn least(case: &Case, mut fails: impl FnMut(&Case) -> bool) -> Case {
    let mut least = case.clone();
    let mut tries = TRIES_MAX;
    loop {
        let smaller = smaller(&least).find(|smaller| {
            tries = tries.saturating_sub(1);
            tries > 0 && fails(smaller)
        });
        match smaller {
            Some(smaller) => least = smaller,
            None => return least,
        }
    }
}

fn smaller(case: &Case) -> impl Iterator<Item = Case> {
    let courses = (0..case.courses.len())
        .filter(|_| case.courses.len() > 1)
        .map(|at| Case { courses: vec![case.courses[at].clone()], ..case.clone() });
    let straight = case.courses.iter().any(|course| course.restart.is_some()).then(|| {
        let mut straight = case.clone();
        straight.courses.iter_mut().for_each(|course| course.restart = None);
        straight
    });
    let alone = case.courses.iter().any(|course| course.parallelism > 1).then(|| {
        let mut alone = case.clone();
        alone.courses.iter_mut().for_each(|course| course.parallelism = 1);
        alone
    });
    let queries = smaller_queries(&case.query).into_iter().map(|query| Case { query, ..case.clone() });
    let rows = (0..case.tables.len()).flat_map(|table| {
        let rows = case.tables[table].rows.len();
        let pieces = [rows, rows / 2, rows / 4, 1].into_iter().filter(|piece| *piece > 0);
        pieces.flat_map(move |piece| (0..rows).step_by(piece).map(move |from| (table, from, (from + piece).min(rows))))
    });
    let rows = rows.map(|(table, from, to)| {
        let mut less = case.clone();
        less.tables[table].rows.drain(from..to);
        less
    });
    courses.chain(straight).chain(alone).chain(queries).chain(rows).collect::<Vec<_>>().into_iter()
}

fn smaller_queries(query: &Query) -> Vec<Query> {
    let mut found = Vec::new();
    match query {
        Query::Union { all, queries } => {
            found.extend(queries.iter().cloned());
            for at in 0..queries.len() {
                for query in smaller_queries(&queries[at]) {
                    let mut queries = queries.clone();
                    queries[at] = query;
                    found.push(Query::Union { all: *all, queries });
                }
            }
        }
        Query::Select(select) => {
            found.extend(queries_of(&select.from));
            let select = select.as_ref();
            found.extend(smaller_selects(select).into_iter().map(|select| Query::Select(Box::new(select))));
        }
    }
    found
}

fn queries_of(from: &From) -> Vec<Query> {
    let of_item = |item: &Item| match &item.source {
        Source::Table { .. } => None,
        Source::Query(query) | Source::Ranked { query, .. } | Source::First { query, .. } => {
            Some(query.as_ref().clone())
        }
    };
    match from {
        From::Item(item) => of_item(item).into_iter().collect(),
        From::Join { left, right, .. } => queries_of(left).into_iter().chain(of_item(right)).collect(),
    }
}

fn smaller_selects(select: &Select) -> Vec<Select> {
    let mut found = Vec::new();
    if select.filter.is_some() {
        found.push(Select { filter: None, ..select.clone() });
    }
    if select.having.is_some() {
        found.push(Select { having: None, ..select.clone() });
    }
    if select.distinct {
        found.push(Select { distinct: false, ..select.clone() });
    }
    for at in 0..select.items.len() {
        if select.items.len() > 1 {
            let mut less = select.clone();
            less.items.remove(at);
            found.push(less);
        }
    }
    if let Some(group) = &select.group {
        let with = |group: Group| Select { group: Some(group), ..select.clone() };
        for at in 0..group.keys.len() {
            let mut less = Group { sets: None, ..group.clone() };
            less.keys.remove(at);
            found.push(with(less));
        }
        if let Some(sets) = &group.sets {
            found.push(with(Group { sets: None, ..group.clone() }));
            for at in (0..sets.len()).filter(|_| sets.len() > 1) {
                let mut less = sets.clone();
                less.remove(at);
                found.push(with(Group { sets: Some(less), ..group.clone() }));
            }
        }
    }
    found.extend(smaller_froms(&select.from).into_iter().map(|from| Select { from, ..select.clone() }));
    if let Some(filter) = &select.filter {
        let filters = smaller_exprs(filter).into_iter();
        found.extend(filters.map(|filter| Select { filter: Some(filter), ..select.clone() }));
    }
    if let Some(having) = &select.having {
        let havings = smaller_exprs(having).into_iter();
        found.extend(havings.map(|having| Select { having: Some(having), ..select.clone() }));
    }
    for at in 0..select.items.len() {
        for one in smaller_exprs(&select.items[at].0) {
            let mut less = select.clone();
            // A key is the same in both places, or it is none.
            if let Some(group) = &mut less.group {
                let old = &select.items[at].0;
                group.keys.iter_mut().filter(|key| *key == old).for_each(|key| *key = one.clone());
            }
            less.items[at].0 = one;
            found.push(less);
        }
    }
    found
}

fn smaller_froms(from: &From) -> Vec<From> {
    match from {
        From::Item(item) => smaller_items(item).into_iter().map(From::Item).collect(),
        From::Join { kind, left, right, on } => {
            let mut found = vec![left.as_ref().clone(), From::Item(right.clone())];
            let join = |left: From, right: Item, on: Expr| From::Join { kind: *kind, left: Box::new(left), right, on };
            found.extend(smaller_exprs(on).into_iter().map(|on| join(left.as_ref().clone(), right.clone(), on)));
            found.extend(smaller_froms(left).into_iter().map(|left| join(left, right.clone(), on.clone())));
            let rights = smaller_items(right).into_iter();
            found.extend(rights.map(|right| join(left.as_ref().clone(), right, on.clone())));
            found
        }
    }
}

fn smaller_items(item: &Item) -> Vec<Item> {
    let made = |source: Source| Item { alias: item.alias.clone(), source };
    match &item.source {
        Source::Table { .. } => vec![],
        Source::Query(query) => {
            let queries = smaller_queries(query).into_iter();
            queries.map(|query| made(Source::Query(Box::new(query)))).collect()
        }
        Source::First { query, order, limit, offset } => {
            let mut found = vec![made(Source::Query(query.clone()))];
            let first = |query: Query, offset: i64| {
                made(Source::First { query: Box::new(query), order: order.clone(), limit: *limit, offset })
            };
            if *offset > 0 {
                found.push(first(query.as_ref().clone(), 0));
            }
            found.extend(smaller_queries(query).into_iter().map(|query| first(query, *offset)));
            found
        }
        Source::Ranked { query, ranking, partition, order, limit } => {
            let mut found = vec![made(Source::Query(query.clone()))];
            let ranked = |query: Query, partition: Vec<String>| {
                let (ranking, order, limit) = (*ranking, order.clone(), *limit);
                made(Source::Ranked { query: Box::new(query), ranking, partition, order, limit })
            };
            if !partition.is_empty() {
                found.push(ranked(query.as_ref().clone(), vec![]));
            }
            found.extend(smaller_queries(query).into_iter().map(|query| ranked(query, partition.clone())));
            found
        }
    }
}

fn smaller_exprs(expr: &Expr) -> Vec<Expr> {
    let mut found = Vec::new();
    let mut copy = expr.clone();
    let parts: Vec<Expr> = copy.parts().into_iter().map(|part| part.clone()).collect();
    found.extend(parts.iter().filter(|part| part.ty() == expr.ty()).cloned());
    let is_least = matches!(expr, Expr::Literal(..) | Expr::Column { .. } | Expr::WindowStart | Expr::WindowEnd);
    if !is_least && expr.ty() == Type::Bool {
        found.push(Expr::Literal(Value::Bool(true), Type::Bool));
    }
    for (at, part) in parts.iter().enumerate() {
        for smaller in smaller_exprs(part) {
            let mut less = expr.clone();
            *less.parts()[at] = smaller;
            found.push(less);
        }
    }
    if let Expr::Aggregate { filter: Some(_), function, argument } = expr {
        found.push(Expr::Aggregate { function: *function, argument: argument.clone(), filter: None });
    }
    if let Some(query) = copy.query() {
        for smaller in smaller_queries(query) {
            let mut less = expr.clone();
            if let Some(query) = less.query() {
                *query = smaller;
            }
            found.push(less);
        }
    }
    found
}
