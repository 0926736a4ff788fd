//! What a SELECT reads: one input; several inputs whose rows are combined (UNION ALL); two inputs that are joined; or
//! the results of another SELECT.
//!
//! The events of all inputs of a query wait in one inbox and are decoded into one batch. Its first column has the
//! number of a row's input, and the columns of all inputs are side by side. An operator over such rows combines the
//! inputs; all later operators see rows as those of a single input.

pub(in crate::plan) mod computed;
mod join;
mod join_condition;
mod several;
mod union;

use arrow::datatypes::{Field, SchemaRef};
use datafusion_expr::Expr;
use rivulet_operators::{AssignTime, InputTime};

use super::check::{ARRIVAL_TIME, ScopeTable};
use super::declarations::Declarations;
use super::defect;
use super::join_bounds::BoundCheck;
use super::operators::Operators;
use super::results::{Behind, ResultsOf};
use super::window::EventTime;
use crate::application::Input;
use crate::statement::{LookupClause, LookupKind, Select};
use crate::value::format_us;
use crate::{Position, SqlError};

use computed::Computed;
pub(in crate::plan) use join::third_input;
use several::{Combined, Several, SourcePlanner, find, refuse_unread, side_by_side, uses_arrival};

/// The rows that a SELECT reads.
pub(super) struct Source<'a> {
    /// The name of the rows.
    pub(super) name: &'a str,
    pub(super) alias: Option<&'a str>,
    /// The columns as expressions see them, without the arrival time.
    pub(super) fields: Vec<Field>,
    /// For a join: the tables that the SELECT can name.
    pub(super) tables: Vec<ScopeTable>,
    pub(super) event_time: EventTime,
    pub(super) lateness_us: i64,
    pub(super) idle_timeout_us: i64,
    /// Whether windows go by arrival time.
    pub(super) by_arrival: bool,
    /// Of another SELECT: what its results are.
    pub(super) results: Option<ResultsOf>,
    /// The columns of decoded rows.
    pub(super) row_schema: SchemaRef,
    /// The lookups behind it.
    pub(super) lookups: &'a [LookupClause],
    inputs: &'a [Input],
    position: Position,
    kind: Kind,
}

enum Kind {
    /// The operators are planned already.
    Results,
    One(Vec<Computed>),
    Union(Several, union::Union),
    Join(Several, Box<join::Join>),
}

impl<'a> Source<'a> {
    /// Plans FROM.
    pub(super) fn plan(
        select: &'a Select,
        declarations: &'a Declarations,
        parameter_schema: &SchemaRef,
    ) -> Result<Self, SqlError> {
        let inputs = &declarations.inputs;
        let computed = || -> Result<Vec<Vec<Computed>>, SqlError> {
            (0..inputs.len()).map(|number| computed::plan(select, number, declarations, parameter_schema)).collect()
        };
        let planner = |computed: Vec<Vec<Computed>>| SourcePlanner {
            select,
            declarations,
            parameter_schema,
            inputs: computed::extended(inputs, &computed),
            computed,
        };
        if !select.union.is_empty() {
            let (rows, union) = planner(computed()?).union()?;
            let kind = |several| Kind::Union(several, union);
            return Ok(Self::of_several(select, declarations, rows, &select.lookups, kind));
        }
        let index = find(&select.from, inputs)?;
        if let [clause, lookups @ ..] = select.lookups.as_slice()
            && let LookupKind::Join { on, is_left, is_latest, position } = &clause.kind
            && (*is_latest || inputs.iter().any(|input| input.name == clause.table.text))
        {
            let on = on.as_deref();
            let join = join::Clause { on, is_left: *is_left, is_latest: *is_latest, position: *position };
            let (rows, join) = planner(computed()?).join(index, clause, join, lookups)?;
            let kind = |several| Kind::Join(several, Box::new(join));
            return Ok(Self::of_several(select, declarations, rows, lookups, kind));
        }
        if select.from_latest {
            return Err(SqlError::new(select.from.position, "LATEST is for two inputs that are joined")
                .hint(format!("write FROM {} JOIN LATEST(b) ON b.key = {}.key", select.from, select.from)));
        }
        refuse_unread(inputs, &[index], declarations)?;
        let input = &inputs[index];
        let computed = computed::plan(select, index, declarations, parameter_schema)?;
        let event_time = input.event_time.map(|column| input.schema.field(column).name());
        let event_time = event_time.or(input.computed_event_time.map(|place| computed[place].field.name()));
        let fields = input.schema.fields().iter().map(|field| field.as_ref().clone());
        Ok(Self {
            name: &input.name,
            alias: select.alias.as_ref().map(|alias| alias.text.as_str()),
            fields: fields.chain(computed.iter().map(|one| one.field.clone())).collect(),
            tables: Vec::new(),
            event_time: event_time.map_or(EventTime::Arrival, |name| EventTime::Column(name.clone())),
            by_arrival: event_time.is_none(),
            results: None,
            lateness_us: input.lateness_us,
            idle_timeout_us: input.idle_timeout_us,
            row_schema: input.schema.clone(),
            lookups: &select.lookups,
            inputs,
            position: select.from.position,
            kind: Kind::One(computed),
        })
    }

    /// The rows of several inputs, and the lookups behind them. `kind` is how they come together.
    fn of_several(
        select: &'a Select,
        declarations: &'a Declarations,
        rows: Combined<'a>,
        lookups: &'a [LookupClause],
        kind: impl FnOnce(Several) -> Kind,
    ) -> Self {
        let Combined { name, fields, tables, event_time, lateness_us, idle_timeout_us, several } = rows;
        Self {
            name,
            alias: None,
            fields,
            tables,
            by_arrival: event_time == EventTime::Arrival,
            event_time,
            results: None,
            lateness_us,
            idle_timeout_us,
            row_schema: side_by_side(&declarations.inputs, &several.names),
            lookups,
            inputs: &declarations.inputs,
            position: select.from.position,
            kind: kind(several),
        }
    }

    /// Plans FROM with a SELECT that is planned already.
    pub(super) fn of_results(
        select: &'a Select,
        declarations: &'a Declarations,
        behind: &Behind,
    ) -> Result<Self, SqlError> {
        if select.from_latest {
            return Err(SqlError::new(select.from.position, "LATEST is for inputs"));
        }
        let mut names = behind.columns.fields().iter().map(|field| field.name());
        if let Some(name) = names.find(|name| name.starts_with('$')) {
            let message = format!("a column of a subquery cannot be called '{name}', like a parameter");
            return Err(SqlError::new(select.from.position, message).hint("give it another name with AS"));
        }
        Ok(Self {
            name: select.alias.as_ref().map_or(&select.from.text, |alias| &alias.text),
            alias: select.alias.as_ref().map(|alias| alias.text.as_str()),
            fields: behind.columns.fields().iter().map(|field| field.as_ref().clone()).collect(),
            tables: Vec::new(),
            event_time: behind.event_time.clone(),
            lateness_us: behind.lateness_us,
            idle_timeout_us: behind.idle_timeout_us,
            by_arrival: behind.by_arrival,
            results: Some(behind.results.clone()),
            row_schema: behind.row_schema.clone(),
            lookups: &select.lookups,
            inputs: &declarations.inputs,
            position: select.from.position,
            kind: Kind::Results,
        })
    }

    /// Returns the input if there is only one. Then a topic is read only for the rows of that input.
    pub(super) fn only_input(&self) -> Option<&Input> {
        match self.inputs {
            [input] if self.results.is_none() => Some(input),
            _ => None,
        }
    }

    /// Whether rows have an `arrival_time`. Results of a SELECT have only the columns that it selects.
    pub(super) fn has_arrival(&self) -> bool {
        self.results.is_none()
    }

    /// Whether rows of two inputs are joined.
    pub(super) fn is_joined(&self) -> bool {
        matches!(self.kind, Kind::Join(..))
    }

    /// The checks of bounds that depend on parameters.
    pub(super) fn checks(&self) -> &[BoundCheck] {
        match &self.kind {
            Kind::Join(_, join) => &join.checks,
            Kind::Results | Kind::One(_) | Kind::Union(..) => &[],
        }
    }

    /// Whether a column has this name, without the name of its input.
    pub(super) fn has_column(&self, name: &str) -> bool {
        match self.tables.as_slice() {
            [] => self.fields.iter().any(|field| field.name() == name),
            tables => tables.iter().any(|table| table.columns.iter().any(|column| column == name)),
        }
    }

    /// Returns the first operators, which set event times and combine the inputs, and their output columns. `used` are
    /// all expressions over these columns.
    pub(super) fn operators(
        &self,
        parameter_schema: &SchemaRef,
        used: &[&Expr],
    ) -> Result<(Operators, SchemaRef), SqlError> {
        let uses_arrival = used.iter().copied().any(uses_arrival);
        let mut operators = Operators::default();
        let Self { inputs, ref row_schema, position, .. } = *self;
        let columns = match &self.kind {
            Kind::Results => unreachable!("the operators of a subquery are given"),
            Kind::One(computed) => {
                let columns = computed::operators(&inputs[0], computed, position, parameter_schema, &mut operators)?;
                self.assign_time(&columns, uses_arrival, &mut operators)?
            }
            Kind::Union(several, union) => {
                let columns = several.operators(inputs, row_schema, position, parameter_schema, &mut operators)?;
                let adds_arrival = uses_arrival || union.uses_arrival();
                let columns = self.assign_times(several, &columns, adds_arrival, &mut operators)?;
                union.operators(&columns, parameter_schema, uses_arrival, position, &mut operators)?
            }
            Kind::Join(several, join) => {
                let columns = several.operators(inputs, row_schema, position, parameter_schema, &mut operators)?;
                let columns = self.assign_times(several, &columns, false, &mut operators)?;
                join.operator(&columns, parameter_schema, used, uses_arrival, &mut operators)?
            }
        };
        Ok((operators, columns))
    }

    fn assign_time(
        &self,
        columns: &SchemaRef,
        append_arrival_column: bool,
        operators: &mut Operators,
    ) -> Result<SchemaRef, SqlError> {
        let input = &self.inputs[0];
        let computed = input.computed_event_time.map(|place| input.schema.fields().len() + place);
        let event_time_column = input.event_time.or(computed);
        let inputs = vec![InputTime { event_time_column, future_limit_us: input.future_limit_us }];
        let assign_time = AssignTime { inputs, append_arrival_column };
        let output = assign_time.output_schema(columns).map_err(|error| defect(error, self.position))?;
        let mut step = match event_time_column {
            Some(column) => vec![
                format!("event time: {}", columns.field(column).name()),
                format!("future limit {}", format_us(input.future_limit_us)),
            ],
            None => vec![format!("event time: {ARRIVAL_TIME}")],
        };
        if append_arrival_column {
            step.push(format!("adds {ARRIVAL_TIME}"));
        }
        operators.push(assign_time, step);
        Ok(output)
    }

    fn assign_times(
        &self,
        several: &Several,
        columns: &SchemaRef,
        append_arrival_column: bool,
        operators: &mut Operators,
    ) -> Result<SchemaRef, SqlError> {
        let (mut first, mut inputs, mut step) = (1, Vec::new(), Vec::new());
        for input in &several.inputs {
            let event_time_column = input.event_time.map(|column| first + column);
            inputs.push(InputTime { event_time_column, future_limit_us: input.future_limit_us });
            step.push(match input.event_time {
                Some(column) => format!(
                    "event time of {}: {}, future limit {}",
                    input.name,
                    input.schema.field(column).name(),
                    format_us(input.future_limit_us)
                ),
                None => format!("event time of {}: {ARRIVAL_TIME}", input.name),
            });
            first += input.schema.fields().len();
        }
        if append_arrival_column {
            step.push(format!("adds {ARRIVAL_TIME}"));
        }
        let assign_time = AssignTime { inputs, append_arrival_column };
        let columns = assign_time.output_schema(columns).map_err(|error| defect(error, self.position))?;
        operators.push(assign_time, step);
        Ok(columns)
    }
}
