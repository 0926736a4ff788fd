//! Row patterns against an independent matcher: backtracking over the whole list of rows, by the words of the standard.
//!
//! Thousands of random patterns, conditions, bounds and rows, over several slots and partitions; each in one batch, and
//! cut at random with ticks and with the state moved into fresh operators through bytes. The answers are the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{Row, Value, batch, column, input, parameter, parameters, row, table, value};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_expr::Operator as Sql;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{Column, binary, lit};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet_dataflow::{
    Context, Control, Element, Operator, OperatorError, OperatorFactory, Reason, Refusals, Slot, SlotTable, StateFrame,
    StateSelection,
};
use rivulet_operators::{
    MatchCondition, NamedExpression, Navigation, Pattern, PatternAggregate, PatternMatch, PatternSpec, PatternVariable,
    Skip, Source,
};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const VALUES_MAX: i64 = 6;

/// A condition of DEFINE, for both.
#[derive(Clone, Copy, Debug)]
enum Condition {
    Always,
    /// `v > limit`
    Above(i64),
    /// `v <= limit`
    AtMost(i64),
    /// `v > X.v`, the last row of another variable
    AboveLast(usize),
    /// `v > LAST(own.v, 1)`
    AboveOwn(usize),
    /// `v >= FIRST(v)`, the first row of the match
    AboveFirst,
    /// `v <> PREV(v, rows)`
    DiffersFromPrevious(usize),
    /// `avg(X.v) < limit`
    AverageBelow(Option<usize>, i64),
    /// `count(*) <= rows`
    AtMostRows(i64),
    /// `max(X.v) > limit AND v > 1`
    MaximumAboveAndAbove(usize, i64),
}

/// A case: what to look for, and in what.
struct Case {
    pattern: Pattern,
    conditions: Vec<Condition>,
    skip: Skip,
    has_within: bool,
    lateness: i64,
    keyed: bool,
    withins: Vec<(i64, i64)>,
    rows: Vec<Row>,
}

fn random_pattern(random: &mut StdRng, variables: usize, depth: usize) -> Pattern {
    let parts = |random: &mut StdRng| {
        let parts = random.random_range(2..4);
        (0..parts).map(|_| random_pattern(random, variables, depth - 1)).collect()
    };
    match random.random_range(0..if depth == 0 { 2 } else { 7 }) {
        0 | 1 => Pattern::Variable(random.random_range(0..variables)),
        2 | 3 => Pattern::Sequence(parts(random)),
        4 => Pattern::Alternation(parts(random)),
        _ => {
            let (min, max) = [(0, None), (1, None), (0, Some(1)), (2, None), (1, Some(3)), (2, Some(2)), (0, Some(2))]
                [random.random_range(0..7)];
            let pattern = match random.random_range(0..3) {
                0 => Box::new(with_nothing_between(random, variables, depth - 1)),
                _ => Box::new(random_pattern(random, variables, depth - 1)),
            };
            Pattern::Repeat { pattern, min, max, greedy: random.random_range(0..3) > 0 }
        }
    }
}

/// An alternation in which a part that matches no row is preferred to others that match some.
fn with_nothing_between(random: &mut StdRng, variables: usize, depth: usize) -> Pattern {
    let pattern = Box::new(random_pattern(random, variables, depth));
    let max = [None, Some(1), Some(2)][random.random_range(0..3)];
    let nothing = Pattern::Repeat { pattern, min: 0, max, greedy: random.random_range(0..2) == 0 };
    let mut parts = vec![nothing, random_pattern(random, variables, depth)];
    if random.random_range(0..2) == 0 {
        parts.insert(0, random_pattern(random, variables, depth));
    }
    Pattern::Alternation(parts)
}

fn may_be_empty(pattern: &Pattern) -> bool {
    match pattern {
        Pattern::Variable(_) => false,
        Pattern::Sequence(parts) => parts.iter().all(may_be_empty),
        Pattern::Alternation(parts) => parts.iter().any(may_be_empty),
        Pattern::Repeat { pattern, min, .. } => *min == 0 || may_be_empty(pattern),
    }
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let variables = random.random_range(1..=NAMES.len());
        let pattern = loop {
            let pattern = random_pattern(&mut random, variables, 3);
            if !may_be_empty(&pattern) {
                break pattern;
            }
        };
        let conditions = (0..variables)
            .map(|own| {
                let limit = random.random_range(0..VALUES_MAX);
                let other = random.random_range(0..variables);
                match random.random_range(0..14) {
                    0 => Condition::Always,
                    1..4 => Condition::Above(limit),
                    4 | 5 => Condition::AtMost(limit),
                    6 => Condition::AboveLast(other),
                    7 => Condition::AboveOwn(own),
                    8 => Condition::AboveFirst,
                    9 => Condition::DiffersFromPrevious(random.random_range(1..3)),
                    10 => Condition::AverageBelow(Some(other), limit),
                    11 => Condition::AverageBelow(None, limit),
                    12 => Condition::AtMostRows(random.random_range(1..5)),
                    _ => Condition::MaximumAboveAndAbove(other, limit),
                }
            })
            .collect();
        let variable = random.random_range(0..variables);
        let skip =
            [Skip::PastLastRow, Skip::PastLastRow, Skip::ToNextRow, Skip::ToFirst(variable), Skip::ToLast(variable)]
                [random.random_range(0..5)];
        let lateness = if random.random_range(0..3) == 0 { random.random_range(1..30) } else { 0 };
        let keyed = random.random_range(0..2) == 0;
        let slots = random.random_range(1..4);
        let mut arrival = 0;
        let rows = (0..random.random_range(1..40))
            .map(|_| {
                arrival += random.random_range(0..8);
                let behind = if random.random_range(0..3) == 0 { random.random_range(0..=lateness + 2) } else { 0 };
                let v = random.random_range(0..VALUES_MAX);
                Row {
                    slot: random.random_range(0..slots),
                    time: arrival - behind,
                    arrival,
                    v: (random.random_range(0..15) > 0).then_some(v as f64),
                    n: Some(v),
                    s: Some(["x", "yy", "zzz"][random.random_range(0..3)]),
                    key: Some(random.random_range(0..3)),
                }
            })
            .collect();
        Self {
            pattern,
            conditions,
            skip,
            has_within: random.random_range(0..2) == 0,
            lateness,
            keyed,
            withins: (0..slots).map(|_| (random.random_range(1..40), 1)).collect(),
            rows,
        }
    }

    fn spec(&self) -> PatternSpec {
        let variables = self.conditions.iter().zip(NAMES).map(|(condition, name)| variable(name, *condition));
        PatternSpec {
            input: input(),
            parameter_schema: parameters(),
            parameters: vec![],
            keys: if self.keyed { vec![NamedExpression::new("key", column(3))] } else { vec![] },
            values: vec![column(0), column(1), column(2)],
            variables: variables.collect(),
            pattern: self.pattern.clone(),
            results: results(),
            skip: self.skip,
            within: self.has_within.then(|| parameter(0)),
            lateness_us: self.lateness,
            idle_timeout_us: i64::MAX,
            arrival_time: false,
        }
    }
}

fn last(variable: Option<usize>) -> Source {
    Source::Value { value: 0, variable, navigation: Navigation::Last(0) }
}

fn variable(name: &str, condition: Condition) -> PatternVariable {
    let row = |operator, limit: i64| binary(column(0), operator, lit(limit as f64), &input()).unwrap();
    let (mut row_condition, mut match_condition) = (None, None);
    let number = |index: usize, data_type: DataType| Field::new(format!("source_{index}"), data_type, true);
    let on_match = |sources: Vec<Source>, types: Vec<DataType>, operator, other: Option<Arc<dyn PhysicalExpr>>| {
        let schema: Schema =
            Schema::new(types.into_iter().enumerate().map(|(index, one)| number(index, one)).collect::<Vec<_>>());
        let source =
            |index: usize| -> Arc<dyn PhysicalExpr> { Arc::new(Column::new(schema.field(index).name(), index)) };
        let expression = binary(source(0), operator, other.unwrap_or_else(|| source(1)), &schema).unwrap();
        Some(MatchCondition { sources, parameters: vec![], expression })
    };
    let floats = || vec![DataType::Float64, DataType::Float64];
    match condition {
        Condition::Always => {}
        Condition::Above(limit) => row_condition = Some(row(Sql::Gt, limit)),
        Condition::AtMost(limit) => row_condition = Some(row(Sql::LtEq, limit)),
        Condition::AboveLast(other) => {
            match_condition = on_match(vec![last(None), last(Some(other))], floats(), Sql::Gt, None);
        }
        Condition::AboveOwn(own) => {
            let before = Source::Value { value: 0, variable: Some(own), navigation: Navigation::Last(1) };
            match_condition = on_match(vec![last(None), before], floats(), Sql::Gt, None);
        }
        Condition::AboveFirst => {
            let first = Source::Value { value: 0, variable: None, navigation: Navigation::First(0) };
            match_condition = on_match(vec![last(None), first], floats(), Sql::GtEq, None);
        }
        Condition::DiffersFromPrevious(rows) => {
            let before = Source::Value { value: 0, variable: None, navigation: Navigation::Previous(rows) };
            match_condition = on_match(vec![last(None), before], floats(), Sql::NotEq, None);
        }
        Condition::AverageBelow(variable, limit) => {
            let average = Source::Aggregate { aggregate: PatternAggregate::Avg, value: Some(1), variable };
            match_condition = on_match(vec![average], vec![DataType::Float64], Sql::Lt, Some(lit(limit as f64)));
        }
        Condition::AtMostRows(rows) => {
            let count = Source::Aggregate { aggregate: PatternAggregate::Count, value: None, variable: None };
            match_condition = on_match(vec![count], vec![DataType::Int64], Sql::LtEq, Some(lit(rows)));
        }
        Condition::MaximumAboveAndAbove(other, limit) => {
            let max = Source::Aggregate { aggregate: PatternAggregate::Max, value: Some(0), variable: Some(other) };
            match_condition = on_match(vec![max], vec![DataType::Float64], Sql::Gt, Some(lit(limit as f64)));
            row_condition = Some(row(Sql::Gt, 1));
        }
    }
    PatternVariable { name: name.into(), row_condition, match_condition }
}

/// `FIRST(v), LAST(v, 1), PREV(a.v), LAST(a.s), count(*), count(a.v), sum(a.n), min(v), CLASSIFIER(), MATCH_NUMBER()`
fn results() -> Vec<(String, Source)> {
    let row = |value: usize, variable: Option<usize>, navigation| Source::Value { value, variable, navigation };
    let aggregate = |aggregate, value, variable| Source::Aggregate { aggregate, value, variable };
    let sources = vec![
        row(0, None, Navigation::First(0)),
        row(0, None, Navigation::Last(1)),
        row(0, Some(0), Navigation::Previous(1)),
        row(2, Some(0), Navigation::Last(0)),
        aggregate(PatternAggregate::Count, None, None),
        aggregate(PatternAggregate::Count, Some(0), Some(0)),
        aggregate(PatternAggregate::Sum, Some(1), Some(0)),
        aggregate(PatternAggregate::Min, Some(0), None),
        Source::Classifier,
        Source::MatchNumber,
    ];
    sources.into_iter().enumerate().map(|(index, source)| (format!("r{index}"), source)).collect()
}

/// The matches of one partition, found by trying.
struct Model<'a> {
    case: &'a Case,
    rows: Vec<&'a Row>,
    within: i64,
    start: usize,
    /// How many steps may still be tried.
    steps_left: std::cell::Cell<usize>,
}

/// Trying takes exponentially long for a few patterns; such a case is left out.
const STEPS_MAX: usize = 200_000;

type Then<'t> = dyn FnMut(&mut Vec<usize>) -> bool + 't;

impl Model<'_> {
    /// Whether the pattern can be matched behind the rows that have their labels, and `then` is content; the first way
    /// that is found is the preferred one.
    fn matches(&self, pattern: &Pattern, labels: &mut Vec<usize>, then: &mut Then<'_>) -> bool {
        self.steps_left.set(self.steps_left.get().saturating_sub(1));
        match pattern {
            _ if self.steps_left.get() == 0 => false,
            Pattern::Variable(variable) => {
                let index = self.start + labels.len();
                let fits = index < self.rows.len()
                    && (!self.case.has_within || self.rows[index].time - self.rows[self.start].time < self.within);
                if !fits {
                    return false;
                }
                labels.push(*variable);
                let found = self.holds(self.case.conditions[*variable], labels) && then(labels);
                if !found {
                    labels.pop();
                }
                found
            }
            Pattern::Sequence(parts) => match parts.split_first() {
                None => then(labels),
                Some((first, rest)) => {
                    let rest = Pattern::Sequence(rest.to_vec());
                    self.matches(first, labels, &mut |labels| self.matches(&rest, labels, then))
                }
            },
            Pattern::Alternation(parts) => parts.iter().any(|part| self.matches(part, labels, then)),
            Pattern::Repeat { pattern, min, max, greedy } => {
                self.repeats(pattern, (*min, max.unwrap_or(u32::MAX), *greedy), 0, labels, then)
            }
        }
    }

    fn repeats(
        &self,
        pattern: &Pattern,
        bounds: (u32, u32, bool),
        turns: u32,
        labels: &mut Vec<usize>,
        then: &mut Then<'_>,
    ) -> bool {
        let (min, max, greedy) = bounds;
        let may_end = turns >= min;
        // What comes behind the repetition fails each time that it begins with the same rows.
        let mut has_left = may_end && !greedy;
        if has_left && then(labels) {
            return true;
        }
        let before = labels.len();
        let again = turns < max
            && self.matches(pattern, labels, &mut |labels| {
                if may_end && labels.len() == before {
                    // A turn without a row is the last one.
                    return !std::mem::replace(&mut has_left, true) && then(labels);
                }
                self.repeats(pattern, bounds, turns + 1, labels, then)
            });
        again || may_end && !has_left && then(labels)
    }

    fn of(&self, labels: &[usize], variable: Option<usize>) -> Vec<usize> {
        let all = 0..labels.len();
        all.filter(|&index| variable.is_none_or(|one| labels[index] == one)).map(|index| self.start + index).collect()
    }

    fn holds(&self, condition: Condition, labels: &[usize]) -> bool {
        let current = self.start + labels.len() - 1;
        let v = |index: usize| self.rows[index].v;
        let compare = |one: Option<f64>, other: Option<f64>, test: fn(f64, f64) -> bool| match (one, other) {
            (Some(one), Some(other)) => test(one, other),
            _ => false,
        };
        let above = |one, other| compare(one, other, |one, other| one > other);
        match condition {
            Condition::Always => true,
            Condition::Above(limit) => above(v(current), Some(limit as f64)),
            Condition::AtMost(limit) => above(Some(limit as f64 + 0.5), v(current)),
            Condition::AboveLast(other) => {
                above(v(current), self.of(labels, Some(other)).last().and_then(|&row| v(row)))
            }
            Condition::AboveOwn(own) => {
                above(v(current), self.of(labels, Some(own)).iter().rev().nth(1).and_then(|&row| v(row)))
            }
            Condition::AboveFirst => compare(v(current), v(self.start), |one, other| one >= other),
            Condition::DiffersFromPrevious(rows) => {
                let before = current.checked_sub(rows).and_then(v);
                compare(v(current), before, |one, other| one != other)
            }
            Condition::AverageBelow(variable, limit) => {
                let rows = self.of(labels, variable);
                let sum: i64 = rows.iter().filter_map(|&row| self.rows[row].n).sum();
                !rows.is_empty() && (sum as f64 / rows.len() as f64) < limit as f64
            }
            Condition::AtMostRows(rows) => labels.len() as i64 <= rows,
            Condition::MaximumAboveAndAbove(other, limit) => {
                let max = self.of(labels, Some(other)).into_iter().filter_map(v).max_by(f64::total_cmp);
                above(max, Some(limit as f64)) && above(v(current), Some(1.0))
            }
        }
    }

    /// All matches: their results, and the time of their last row. `None` if that takes too long.
    fn run(mut self) -> Option<Vec<(i64, Vec<Value>)>> {
        let mut found = Vec::new();
        while self.start < self.rows.len() {
            let mut labels = Vec::new();
            let is_match = self.matches(&self.case.pattern, &mut labels, &mut |_| true);
            if !is_match {
                self.start += 1;
                continue;
            }
            let last = self.start + labels.len() - 1;
            found.push((self.rows[last].time, self.results(&labels, found.len() as i64 + 1)));
            let of_variable = |variable: usize, is_first: bool| {
                let rows = self.of(&labels, Some(variable));
                let row = if is_first { rows.first() } else { rows.last() };
                row.copied().filter(|&row| row > self.start)
            };
            self.start = match self.case.skip {
                Skip::PastLastRow => last + 1,
                Skip::ToNextRow => self.start + 1,
                Skip::ToFirst(variable) => of_variable(variable, true).unwrap_or(self.start + 1),
                Skip::ToLast(variable) => of_variable(variable, false).unwrap_or(self.start + 1),
            };
        }
        (self.steps_left.get() > 0).then_some(found)
    }

    fn results(&self, labels: &[usize], number: i64) -> Vec<Value> {
        let last = self.start + labels.len() - 1;
        let of_a = self.of(labels, Some(0));
        let float = |value: Option<f64>| value.map_or(Value::Null, Value::float);
        let v = |index: usize| self.rows[index].v;
        let text = |text: &str| Value::Text(text.to_owned());
        let sum = of_a.iter().filter_map(|&row| self.rows[row].n).reduce(|one, other| one + other);
        vec![
            float(v(self.start)),
            float(if labels.len() > 1 { v(last - 1) } else { None }),
            float(of_a.last().and_then(|row| row.checked_sub(1)).and_then(v)),
            of_a.last().and_then(|&row| self.rows[row].s).map_or(Value::Null, text),
            Value::Integer(labels.len() as i64),
            Value::Integer(of_a.iter().filter(|&&row| v(row).is_some()).count() as i64),
            sum.map_or(Value::Null, Value::Integer),
            float((self.start..=last).filter_map(v).min_by(f64::total_cmp)),
            text(NAMES[*labels.last().unwrap()]),
            Value::Integer(number),
        ]
    }
}

/// What comes out, by slot and key, and how many rows are late.
type Answer = BTreeMap<(Slot, Option<i64>), Vec<(i64, Vec<Value>)>>;

fn model(case: &Case) -> Option<(Answer, u64)> {
    let mut partitions: BTreeMap<(Slot, Option<i64>), Vec<&Row>> = BTreeMap::new();
    let mut newest: BTreeMap<Slot, i64> = BTreeMap::new();
    let mut late = 0;
    for row in &case.rows {
        let newest = newest.entry(row.slot).or_insert(i64::MIN / 2);
        if row.time < *newest - case.lateness {
            late += 1;
            continue;
        }
        *newest = (*newest).max(row.time);
        partitions.entry((row.slot, row.key.filter(|_| case.keyed))).or_default().push(row);
    }
    let answer = partitions.into_iter().map(|(partition, mut rows)| {
        rows.sort_by_key(|row| row.time);
        let within = case.withins[partition.0 as usize].0;
        let model = Model { case, rows, within, start: 0, steps_left: STEPS_MAX.into() };
        Some((partition, model.run()?))
    });
    let answer: Answer = answer.collect::<Option<_>>()?;
    Some((answer.into_iter().filter(|(_, matches)| !matches.is_empty()).collect(), late))
}

/// A match of a slot: key, time of the last row, results.
type OfSlot = (Option<i64>, i64, Vec<Value>);

/// An operator and what it has put out.
struct Hand {
    factory: PatternMatch,
    operator: Box<dyn Operator>,
    table: SlotTable,
    keys: usize,
    refusals: Refusals,
    /// In order: slot, key, time of the last row, results.
    matches: Vec<(Slot, Option<i64>, i64, Vec<Value>)>,
}

impl Hand {
    fn new(spec: PatternSpec, withins: &[(i64, i64)]) -> Self {
        let keys = spec.keys.len();
        let factory = PatternMatch::new(spec).unwrap();
        let (operator, table) = (factory.create(), table(withins));
        let mut hand = Self { factory, operator, table, keys, refusals: Refusals::new(0), matches: Vec::new() };
        hand.announce();
        hand
    }

    fn announce(&mut self) {
        let slots = self.table.slots().collect();
        self.step(0, |operator, context| operator.process(Element::Control(Control::AddSlots(slots)), context));
    }

    fn step(&mut self, now: i64, step: impl FnOnce(&mut dyn Operator, &mut Context<'_>) -> Result<(), OperatorError>) {
        let mut output = Vec::new();
        step(self.operator.as_mut(), &mut Context::new(now, &self.table, &mut self.refusals, &mut output)).unwrap();
        let schema: &SchemaRef = self.factory.output_schema();
        for batch in output {
            assert_eq!(batch.columns.schema_ref(), schema);
            for row in 0..batch.rows() {
                let key = batch.columns.columns()[..self.keys].first().map(|key| match value(key, row) {
                    Value::Integer(key) => key,
                    other => panic!("{other:?}"),
                });
                let results = batch.columns.columns()[self.keys..].iter().map(|column| value(column, row)).collect();
                self.matches.push((batch.slots[row], key, batch.event_time_us[row], results));
            }
        }
    }

    fn rows(&mut self, rows: &[Row]) {
        let (now, batch) = (rows.last().map_or(0, |row| row.arrival), batch(rows));
        self.step(now, |operator, context| operator.process(Element::Batch(batch), context));
    }

    fn tick(&mut self, now: i64) {
        if self.operator.deadline_us().is_some_and(|deadline| deadline <= now) {
            self.step(now, |operator, context| operator.tick(context));
        }
    }

    fn end(&mut self) {
        self.step(0, |operator, context| operator.process(Element::End, context));
    }

    /// Goes on in a fresh operator, with the state of each slot through bytes.
    fn move_state(&mut self) {
        let slots: Vec<Slot> = self.table.slots().collect();
        let frames: Vec<StateFrame> = slots
            .into_iter()
            .map(|slot| self.operator.export_state(&StateSelection::Slots(vec![slot])).unwrap().unwrap())
            .map(|frame| StateFrame::from_bytes(&frame.to_bytes().unwrap()).unwrap())
            .collect();
        self.operator = self.factory.create();
        self.announce();
        frames.iter().for_each(|frame| self.operator.import_state(frame).unwrap());
    }

    fn answer(&self) -> Answer {
        let mut answer = Answer::new();
        for (slot, key, time, results) in &self.matches {
            answer.entry((*slot, *key)).or_default().push((*time, results.clone()));
        }
        answer
    }

    /// What each slot has put out, in order.
    fn by_slot(&self) -> BTreeMap<Slot, Vec<OfSlot>> {
        let mut by_slot: BTreeMap<Slot, Vec<_>> = BTreeMap::new();
        for (slot, key, time, results) in &self.matches {
            by_slot.entry(*slot).or_default().push((*key, *time, results.clone()));
        }
        by_slot
    }
}

fn run_in_pieces(spec: PatternSpec, case: &Case, random: &mut StdRng) -> Hand {
    let mut hand = Hand::new(spec, &case.withins);
    let mut rest = case.rows.as_slice();
    while !rest.is_empty() {
        let (now, later) = rest.split_at(random.random_range(1..=rest.len().min(6)));
        hand.rows(now);
        rest = later;
        if random.random_range(0..3) == 0 {
            let next = rest.first().map_or(0, |row| row.arrival);
            hand.tick(random.random_range(now[now.len() - 1].arrival..=next.max(now[now.len() - 1].arrival)));
        }
        if random.random_range(0..4) == 0 {
            hand.move_state();
        }
    }
    hand.end();
    hand
}

fn cases() -> u64 {
    std::env::var("RIVULET_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3_000)
}

#[test]
fn every_match_is_that_of_a_naive_search() {
    let (mut found, mut left_out) = (0, 0);
    for seed in 0..cases() {
        let case = Case::new(seed);
        let about = || format!("seed {seed}: {} {:?}", case.pattern.text(&NAMES), case.conditions);
        let Some((expected, late)) = model(&case) else {
            left_out += 1;
            continue;
        };
        let mut whole = Hand::new(case.spec(), &case.withins);
        whole.rows(&case.rows);
        whole.end();
        assert_eq!(whole.answer(), expected, "{}", about());
        assert_eq!(whole.refusals.counted(Reason::Late), late, "{}", about());
        let mut random = StdRng::seed_from_u64(seed ^ 0xc07);
        let pieces = run_in_pieces(case.spec(), &case, &mut random);
        assert_eq!(pieces.by_slot(), whole.by_slot(), "in pieces, {}", about());
        found += whole.matches.len();
    }
    assert!(left_out <= cases() / 50, "{left_out} cases took too long");
    assert!(found > 3 * cases() as usize / 2, "the random patterns are found: {found} matches");
}

#[test]
fn with_timeouts_results_do_not_depend_on_how_rows_are_cut() {
    for seed in 0..cases() {
        let mut case = Case::new(seed);
        case.has_within = true;
        let mut random = StdRng::seed_from_u64(seed ^ 0x1d1e);
        let idle_timeout_us = random.random_range(1..15);
        let arrival_time = random.random_range(0..4) == 0;
        let spec = || PatternSpec { idle_timeout_us, arrival_time, ..case.spec() };
        let mut whole = Hand::new(spec(), &case.withins);
        whole.rows(&case.rows);
        whole.end();
        let pieces = run_in_pieces(spec(), &case, &mut random);
        assert_eq!(
            pieces.by_slot(),
            whole.by_slot(),
            "seed {seed}: {} {:?}",
            case.pattern.text(&NAMES),
            case.conditions
        );
    }
}

#[test]
fn a_turn_without_a_row_is_preferred_where_it_stands() {
    // b (a{2,}? | (a | a* | b)?): after b, `a*` without a row stands before b.
    let (a, b) = (|| Pattern::Variable(0), || Pattern::Variable(1));
    let inner = |min, max, greedy| Pattern::Repeat {
        pattern: Box::new(Pattern::Alternation(vec![a(), repeated(0, 0, true), b()])),
        min,
        max,
        greedy,
    };
    let pattern = |inner| Pattern::Sequence(vec![b(), Pattern::Alternation(vec![repeated(0, 2, false), inner])]);
    // Reluctant, what comes behind is preferred in any case.
    for (inner, expected) in [
        (inner(0, Some(1), true), vec![1, 2]),
        (inner(0, Some(3), true), vec![1, 2]),
        (inner(0, None, true), vec![1, 2]),
        (inner(0, Some(1), false), vec![1, 2]),
        (inner(1, Some(1), true), vec![1, 2]),
        (inner(1, Some(3), true), vec![1, 2]),
    ] {
        let mut hand = hand(pattern(inner), None);
        hand.rows(&[row(0, 1, 1.0), row(0, 2, 1.0)]);
        hand.end();
        assert_eq!(times(&hand), expected);
    }
}

/// A pattern over `a`, whose values are above 3, and `b`, whose values are not; one slot.
fn hand(pattern: Pattern, within: Option<i64>) -> Hand {
    let case = case(pattern, within);
    Hand::new(PatternSpec { idle_timeout_us: 100, ..case.spec() }, &case.withins)
}

fn case(pattern: Pattern, within: Option<i64>) -> Case {
    Case {
        pattern,
        conditions: vec![Condition::Above(3), Condition::AtMost(3)],
        skip: Skip::PastLastRow,
        has_within: within.is_some(),
        lateness: 0,
        keyed: false,
        withins: vec![(within.unwrap_or(1), 1)],
        rows: vec![],
    }
}

fn repeated(variable: usize, min: u32, greedy: bool) -> Pattern {
    Pattern::Repeat { pattern: Box::new(Pattern::Variable(variable)), min, max: None, greedy }
}

fn times(hand: &Hand) -> Vec<i64> {
    hand.matches.iter().map(|(_, _, time, _)| *time).collect()
}

#[test]
fn a_match_comes_out_as_soon_as_no_later_row_can_better_it() {
    // One row: at once.
    let mut one = hand(Pattern::Sequence(vec![Pattern::Variable(0), Pattern::Variable(1)]), None);
    one.rows(&[row(0, 1, 5.0), row(0, 2, 1.0)]);
    assert_eq!(times(&one), [2]);
    // Reluctant: at once.
    let mut reluctant = hand(repeated(0, 2, false), None);
    reluctant.rows(&[row(0, 1, 5.0), row(0, 2, 5.0)]);
    assert_eq!(times(&reluctant), [2]);
    // Greedy: with the first row that does not fit.
    let mut greedy = hand(repeated(0, 2, true), None);
    greedy.rows(&[row(0, 1, 5.0), row(0, 2, 5.0)]);
    assert_eq!((times(&greedy).len(), greedy.operator.deadline_us()), (0, None));
    greedy.rows(&[row(0, 3, 1.0)]);
    assert_eq!(times(&greedy), [2]);
    assert_eq!(greedy.operator.deadline_us(), None);
    // WITHIN: when it is over by the clock, which goes on after the idle timeout of 100.
    let mut within = hand(repeated(0, 2, true), Some(150));
    within.rows(&[row(0, 1, 5.0), row(0, 20, 5.0)]);
    assert_eq!(within.operator.deadline_us(), Some(151));
    within.tick(150);
    assert!(times(&within).is_empty());
    within.tick(151);
    assert_eq!(times(&within), [20]);
    assert_eq!(within.operator.deadline_us(), None);
}

#[test]
fn a_match_that_grows_too_long_ends_or_is_given_up() {
    let rows = |from: usize, to: usize, v: f64| -> Vec<Row> { (from..to).map(|time| row(0, time as i64, v)).collect() };
    let most = rivulet_operators::pattern::MATCH_ROWS_MAX;
    // Complete all the time: it ends, and the next begins.
    let mut complete = hand(repeated(0, 2, true), None);
    complete.rows(&rows(0, most + 5, 5.0));
    assert_eq!(times(&complete), [most as i64 - 1]);
    // Never complete: given up, and its rows are counted.
    let mut given_up = hand(Pattern::Sequence(vec![repeated(0, 1, true), Pattern::Variable(1)]), None);
    given_up.rows(&rows(0, most, 5.0));
    assert_eq!(given_up.refusals.counted(Reason::Overflow), most as u64);
    let idle = given_up.operator.memory_bytes();
    given_up.rows(&rows(most, most + 2, 5.0));
    given_up.rows(&rows(most + 2, most + 3, 1.0));
    assert_eq!(times(&given_up), [most as i64 + 2]);
    assert!(idle < 10_000, "{idle} bytes are kept without a match");
}

#[test]
fn a_full_partition_makes_room_after_it_was_moved_as_before() {
    let most = rivulet_operators::pattern::MATCH_ROWS_MAX;
    let rows = |from: usize, to: usize| -> Vec<Row> { (from..to).map(|time| row(0, time as i64, 5.0)).collect() };
    // The last rows wait for late ones, those before them are a match under way.
    let case = case(Pattern::Sequence(vec![repeated(0, 1, true), Pattern::Variable(1)]), None);
    let spec = PatternSpec { lateness_us: 4_000, ..case.spec() };
    let mut given_up_max = 0;
    for full in most..most + 5 {
        let overflow = |is_moved: bool| {
            let mut hand = Hand::new(spec.clone(), &case.withins);
            hand.rows(&rows(0, full));
            if is_moved {
                hand.move_state();
            }
            hand.rows(&rows(full, full + 1));
            hand.refusals.counted(Reason::Overflow)
        };
        given_up_max = given_up_max.max(overflow(false));
        assert_eq!(overflow(true), overflow(false), "{full} rows");
    }
    assert!(given_up_max > 5_000, "the match was given up, with {given_up_max} rows");
}

#[test]
fn a_match_under_way_is_due_for_its_slot_alone() {
    let case = Case { withins: vec![(150, 1), (150, 1)], ..case(repeated(0, 2, true), Some(150)) };
    let mut hand = Hand::new(PatternSpec { idle_timeout_us: 100, ..case.spec() }, &case.withins);
    hand.rows(&[row(1, 1, 1.0), row(0, 1, 5.0), row(0, 20, 5.0)]);
    let due = |hand: &Hand| [0, 1, 2].map(|slot| hand.operator.slot_deadline_us(slot));
    assert_eq!(due(&hand), [Some(151), None, None]);
    hand.move_state();
    assert_eq!(due(&hand), [Some(151), None, None]);
    hand.tick(151);
    assert_eq!((times(&hand), due(&hand)), (vec![20], [None; 3]));
}

#[test]
fn slots_that_go_leave_nothing_behind() {
    let mut hand = hand(Pattern::Sequence(vec![Pattern::Variable(0), Pattern::Variable(1)]), Some(50));
    hand.rows(&[row(0, 1, 5.0)]);
    hand.step(0, |operator, context| operator.process(Element::Control(Control::RemoveSlots(vec![0])), context));
    assert_eq!(hand.operator.deadline_us().filter(|deadline| *deadline > 200), None);
    hand.announce();
    hand.rows(&[row(0, 2, 1.0)]);
    hand.end();
    assert!(times(&hand).is_empty());
}

#[test]
fn state_of_another_pattern_is_refused() {
    let mut one = hand(repeated(0, 2, true), Some(50));
    one.rows(&[row(0, 1, 5.0)]);
    let frame = one.operator.export_state(&StateSelection::All).unwrap().unwrap();
    assert_eq!(frame.slots(), [0]);
    let mut other = hand(repeated(0, 3, true), Some(50));
    assert!(other.operator.import_state(&frame).is_err());
    let mut same = hand(repeated(0, 2, true), Some(50));
    same.operator.import_state(&frame).unwrap();
    same.rows(&[row(0, 2, 5.0), row(0, 3, 1.0)]);
    assert_eq!(times(&same), [2]);
}
