//! Two inputs that are joined: `a JOIN LATEST(b) ON b.key = a.key`, and
//! `a JOIN b ON b.key = a.key AND b.ts BETWEEN a.ts - w AND a.ts + w`.

use std::collections::HashSet;
use std::ops::Range;

use arrow::datatypes::{Field, SchemaRef};
use datafusion_expr::Expr;
use datafusion_sql::sqlparser::ast;
use rivulet_operators::{Join as JoinOperator, JoinKind, JoinSide, JoinSpec, Offset};

use super::super::check::{Scope, ScopeTable, full_name};
use super::super::expression::{Compiler, ExpressionPlanner, parameter_fields, placed};
use super::super::join_bounds::BoundCheck;
use super::super::walk::start;
use super::super::window::EventTime;
use super::super::{defect, operators::Operators};
use super::join_condition::{Bounds, Condition, INTERVAL_FORM, Side, Span};
use super::several::{Combined, Several, SourcePlanner, find, refuse_unread};
use crate::application::Input;
use crate::statement::LookupClause;
use crate::value::{format_us, format_waits};
use crate::{Position, SqlError};

/// The parts of a JOIN besides the second input.
pub(super) struct Clause<'a> {
    pub(super) on: Option<&'a ast::Expr>,
    pub(super) is_left: bool,
    pub(super) is_latest: bool,
    pub(super) position: Position,
}

/// A planned join, over the columns of all inputs side by side.
pub(super) struct Join {
    /// The numbers of both inputs.
    inputs: [usize; 2],
    /// The ranges of their columns.
    columns: [Range<usize>; 2],
    keys: Vec<Expr>,
    time: Time,
    keeps_unmatched: bool,
    position: Position,
    step: Vec<String>,
    /// How long it waits for rows, in words.
    waits: Option<String>,
    pub(super) checks: Vec<BoundCheck>,
}

enum Time {
    Latest {
        drives: [bool; 2],
    },
    /// The lower bound and the upper one.
    Interval {
        bounds: Box<[Span; 2]>,
        lateness_us: i64,
        idle_timeout_us: i64,
    },
}

impl<'a> SourcePlanner<'a, '_> {
    pub(super) fn join(
        self,
        left: usize,
        clause: &'a LookupClause,
        join: Clause<'a>,
        lookups: &[LookupClause],
    ) -> Result<(Combined<'a>, Join), SqlError> {
        let inputs = &self.inputs;
        let right = find(&clause.table, inputs)?;
        let left_name = self.select.alias.as_ref().unwrap_or(&self.select.from);
        if left == right {
            return Err(SqlError::new(
                clause.table.position,
                format!("joining '{}' with itself is not supported yet", clause.table),
            )
            .hint(
                "lag(value) OVER (PARTITION BY key) is the value of the row before; a big query joins a source with \
                 itself",
            ));
        }
        if left_name.text == clause.alias.text {
            return Err(SqlError::new(
                clause.alias.position,
                format!("the name '{}' is used twice in FROM", clause.alias),
            )
            .hint("give one of them another name with AS"));
        }
        if let Some(third) = lookups.iter().find(|other| inputs.iter().any(|input| input.name == other.table.text)) {
            return Err(third_input(third));
        }
        refuse_unread(inputs, &[left, right], self.declarations)?;
        let mut names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
        (names[left], names[right]) = (&left_name.text, &clause.alias.text);
        let mut sides = Vec::new();
        let (mut fields, mut tables) = (Vec::new(), Vec::new());
        for input in [left, right] {
            let columns = inputs[input].schema.fields().iter();
            let full = |field: &Field| full_name(names[input], field.name());
            fields
                .extend(columns.clone().map(|field| field.as_ref().clone().with_name(full(field)).with_nullable(true)));
            tables.push(ScopeTable {
                name: names[input].to_owned(),
                columns: columns.clone().map(|field| field.name().clone()).collect(),
            });
            let event_time = inputs[input].event_time.map(|column| full(inputs[input].schema.field(column)));
            sides.push(Side { name: names[input], columns: columns.map(|field| full(field)).collect(), event_time });
        }
        let scope = Scope {
            input: &left_name.text,
            alias: None,
            columns: fields.iter().map(|field| field.name().as_str()).collect(),
            parameters: &self.declarations.parameters,
            windowed: false,
            tables: &tables,
            in_table: false,
        };
        let planned = fields.iter().cloned().chain(parameter_fields(self.parameter_schema));
        let condition = Condition {
            scope: &scope,
            planner: ExpressionPlanner::new(planned.collect())?,
            lengths: ExpressionPlanner::new(parameter_fields(self.parameter_schema).collect())?,
            sides: [&sides[0], &sides[1]],
            inputs: [left, right],
            is_latest: join.is_latest || self.select.from_latest,
        };
        let (mut keys, mut bounds) = (Vec::new(), Bounds::default());
        if let Some(on) = join.on {
            let (position, mut on) = (start(on).or(join.position), on.clone());
            rivulet_relational::spell_out_times(&mut on).map_err(|error| placed(error, position))?;
            condition.plan(&on, position, &mut keys, &mut bounds)?;
        }
        let text = join.on.map_or_else(String::new, |on| format!(" ON {on}"));
        let (time, event_time, step, waits) = match condition.is_latest {
            true => {
                // If both inputs are read with LATEST, both drive the join; otherwise the input without LATEST does.
                let drives = match (self.select.from_latest, join.is_latest) {
                    (true, true) => [true, true],
                    (from_latest, _) => [!from_latest, from_latest],
                };
                if join.is_left && !drives[0] {
                    return Err(SqlError::new(join.position, "a LEFT JOIN cannot have LATEST on its left side").hint(
                        format!("swap the sides: FROM {} LEFT JOIN LATEST({}) ON ...", clause.table, self.select.from),
                    ));
                }
                let event_time = match drives {
                    [true, true] => EventTime::Missing(
                        "the rows of this JOIN have no event time",
                        "windows by time go by the side that is not read as LATEST; count_window(100) counts rows",
                    ),
                    [from_left, _] => {
                        let side = usize::from(!from_left);
                        let no_column = EventTime::Arrival;
                        sides[side].event_time.clone().map_or(no_column, EventTime::Column)
                    }
                };
                let drivers: Vec<&str> =
                    sides.iter().zip(drives).filter(|(_, drives)| *drives).map(|(side, _)| side.name).collect();
                let step = vec![
                    format!("{} with {}{text}", left_name, clause.alias),
                    format!("for each row of {}", drivers.join(" and of ")),
                ];
                (Time::Latest { drives }, event_time, step, None)
            }
            false => {
                let (Some(low), Some(high)) = (bounds.low, bounds.high) else {
                    return Err(SqlError::new(
                        join.position,
                        "a JOIN of two inputs needs bounds in time on both sides",
                    )
                    .hint(INTERVAL_FORM));
                };
                let lateness_us = inputs[left].lateness_us.max(inputs[right].lateness_us);
                let idle_timeout_us = inputs[left].idle_timeout_us.max(inputs[right].idle_timeout_us);
                let event_time = EventTime::Missing(
                    "the rows of this JOIN have no event time",
                    "windows by time are not supported behind a JOIN within an interval; count_window(100) counts rows",
                );
                let mut step = vec![format!("{} with {}{text}", left_name, clause.alias)];
                let waits = match join.is_left {
                    true => {
                        step.push(format!("keeps rows of {left_name}"));
                        format_waits(lateness_us, idle_timeout_us)
                    }
                    false => format!("lateness {}", format_us(lateness_us)),
                };
                let time = Time::Interval { bounds: Box::new([low, high]), lateness_us, idle_timeout_us };
                (time, event_time, step, Some(waits))
            }
        };
        let mut checks = Vec::new();
        if let Time::Interval { bounds, .. } = &time {
            for (interval, place) in bounds.iter().filter_map(|span| span.interval.as_ref()) {
                checks.extend(BoundCheck::new(interval, self.parameter_schema, *place)?);
            }
        }
        let driving = match time {
            Time::Latest { drives: [false, true] } => right,
            _ => left,
        };
        let (lateness_us, idle_timeout_us) = (inputs[driving].lateness_us, inputs[driving].idle_timeout_us);
        let join = Join {
            inputs: [left, right],
            columns: [left, right].map(|input| columns_of(inputs, input)),
            keys,
            time,
            keeps_unmatched: join.is_left,
            position: join.position,
            step,
            waits,
            checks,
        };
        let names = names.into_iter().map(str::to_owned).collect();
        let several = Several { inputs: self.inputs, names, computed: self.computed };
        let name = &left_name.text;
        Ok((Combined { name, fields, tables, event_time, lateness_us, idle_timeout_us, several }, join))
    }
}

/// The error for a third input that is joined.
pub(in crate::plan) fn third_input(clause: &LookupClause) -> SqlError {
    SqlError::new(clause.table.position, "a JOIN of three inputs is not supported yet").hint(
        "write two applications: one joins two inputs and publishes its results to a topic, OUTPUT 'mqtt:...', and the \
         other one joins that topic with the third input; UNION ALL takes rows of any number of inputs",
    )
}

/// The range of an input's columns among those of all inputs side by side, which begin with the number of the input.
fn columns_of(inputs: &[Input], input: usize) -> Range<usize> {
    let columns = |input: &Input| input.schema.fields().len();
    let start = 1 + inputs[..input].iter().map(columns).sum::<usize>();
    start..start + columns(&inputs[input])
}

impl Join {
    /// Makes the operator over rows with `columns`; returns its output columns. Of the inputs' columns only used ones
    /// are kept.
    pub(super) fn operator(
        &self,
        columns: &SchemaRef,
        parameter_schema: &SchemaRef,
        used: &[&Expr],
        append_arrival_column: bool,
        operators: &mut Operators,
    ) -> Result<SchemaRef, SqlError> {
        let used: HashSet<String> =
            used.iter().flat_map(|one| one.column_refs()).map(|column| column.name.clone()).collect();
        let sides = [0, 1].map(|side| {
            let of_side = || self.columns[side].clone();
            let mut kept: Vec<usize> = of_side().filter(|&index| used.contains(columns.field(index).name())).collect();
            // A row without columns has no bytes, but it is still a row, so one column is kept.
            if kept.is_empty() {
                kept.extend(of_side().next());
            }
            JoinSide { input: self.inputs[side] as u8, columns: kept }
        });
        let spans = match &self.time {
            Time::Latest { .. } => [None, None],
            Time::Interval { bounds, .. } => {
                bounds.each_ref().map(|span| span.interval.as_ref().map(|(interval, _)| interval))
            }
        };
        let compiler = Compiler::new(columns, parameter_schema, self.keys.iter().chain(spans.into_iter().flatten()))?;
        let keys = self.keys.iter().map(|key| compiler.compile(key.clone(), self.position));
        let keys = keys.collect::<Result<Vec<_>, SqlError>>()?;
        let offset = |span: &Span| {
            let compiled =
                span.interval.as_ref().map(|(one, place)| compiler.compile(one.clone(), *place)).transpose()?;
            Ok::<_, SqlError>(compiled.map(|interval| Offset { interval, is_negative: span.is_negative }))
        };
        let kind = match &self.time {
            Time::Latest { drives } => JoinKind::Latest { drives: *drives },
            Time::Interval { bounds, lateness_us, idle_timeout_us } => JoinKind::Interval {
                low: offset(&bounds[0])?,
                high: offset(&bounds[1])?,
                lateness_us: *lateness_us,
                idle_timeout_us: *idle_timeout_us,
            },
        };
        let join = JoinOperator::new(JoinSpec {
            input: columns.clone(),
            parameter_schema: parameter_schema.clone(),
            parameters: compiler.parameters.clone(),
            sides,
            keys,
            kind,
            keeps_unmatched: self.keeps_unmatched,
            append_arrival_column,
        })
        .map_err(|error| defect(error, self.position))?;
        let output = join.output_schema().clone();
        operators.push_waiting(join, (self.step.clone(), self.waits.clone()));
        Ok(output)
    }
}
