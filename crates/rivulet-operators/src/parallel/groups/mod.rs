//! States of groups by number: the states that keyed aggregations keep for each key (and pane, window, session).
//!
//! Most states are words in one flat array ([`dense`](crate::aggregate::dense)). Aggregates that must remember values
//! also have objects; [`distinct`] has sets that several aggregates and all groups share; and, if rows are retracted,
//! there are [`counted`] values.

mod arguments;
pub(crate) mod counted;
pub(crate) mod distinct;

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::error::ArrowError;
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::{Batch, Context, OperatorError, StateError, StateFrame};

use self::counted::{Asked, CountedPlan, CountedValues};
use self::distinct::{DistinctPlan, DistinctSet, DistinctValues};
use crate::aggregate::dense::RowSet;
use crate::aggregate::finished::Finished;
use crate::aggregate::layout::{Layout, Prepared, Source};
use crate::aggregate::object::{Object, ObjectKind, ObjectUpdate, ObjectValues, SUM_OVERFLOW};
use crate::aggregate::plan::guarded;
use crate::aggregate::{Storage, given};
use crate::expression::Expressions;
use crate::paged::{Paged, PagedRows};
use crate::{AggregateFunction, AggregateSpec, PlanError};

/// How groups are used, which decides how their states are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Rows are only added; all groups are forgotten together.
    Together,
    /// Rows are only added; groups merge and are forgotten one by one.
    Merging,
    /// Rows are added and retracted.
    Undoing,
}

/// The states that a set of aggregates needs, and where the results come from.
pub(crate) struct GroupPlan {
    expressions: Expressions,
    /// How many of the expressions belong to the layout.
    layout_expressions: usize,
    pub(crate) layout: Layout,
    distinct: Vec<DistinctPlan>,
    counted: Vec<CountedPlan>,
    results: Vec<(DataType, ResultSource)>,
}

/// Where the result of an aggregate comes from.
#[derive(Clone, Copy, Debug)]
enum ResultSource {
    Layout(usize),
    Distinct { set: usize, filter: usize },
    Counted { values: usize, asked: Asked },
}

impl GroupPlan {
    /// Plans the states of these aggregates over rows with the columns of `input`.
    pub(crate) fn new(aggregates: &[AggregateSpec], input: &Schema, mode: Mode) -> Result<Self, PlanError> {
        use AggregateFunction as F;
        let mut in_layout = Vec::new();
        let mut sources = Vec::new();
        let mut others: Vec<Arc<dyn PhysicalExpr>> = Vec::new();
        let (mut distinct, mut counted) = (Vec::new(), Vec::new());
        for aggregate in aggregates {
            let arguments: Vec<DataType> = aggregate
                .arguments
                .iter()
                .map(|argument| argument.data_type(input))
                .collect::<Result<_, _>>()
                .map_err(|error| PlanError::Expression {
                    expression: aggregate.name.clone(),
                    problem: error.strip_backtrace(),
                })?;
            let data_type = aggregate.function.result_type(&arguments)?;
            let source = match (mode, aggregate.function) {
                (Mode::Together, F::CountDistinct) => {
                    let aggregate = guarded(aggregate)?;
                    let (set, filter) = DistinctPlan::place(&mut distinct, &mut others, &aggregate, &arguments[0]);
                    ResultSource::Distinct { set, filter }
                }
                (Mode::Undoing, F::Count | F::Sum | F::Avg) | (Mode::Together | Mode::Merging, _) => {
                    in_layout.push(aggregate.clone());
                    ResultSource::Layout(in_layout.len() - 1)
                }
                (Mode::Undoing, function) if !function.takes_back() => {
                    let problem =
                        format!("{function} cannot take back a row, and rows of this input may be taken back");
                    let hint = "aggregate where rows are final, for example in windows";
                    return Err(PlanError::operator("aggregate", problem, hint));
                }
                (Mode::Undoing, _) => {
                    let (aggregate, types) = (guarded(aggregate)?, (&*arguments, &data_type));
                    let (values, asked) = CountedPlan::place(&mut counted, &mut others, &aggregate, types)?;
                    ResultSource::Counted { values, asked }
                }
            };
            sources.push((data_type, source));
        }
        let (layout, mut expressions) = match mode {
            Mode::Undoing => Layout::undoing(&in_layout, input)?,
            _ => Layout::new(&in_layout, input, 0)?,
        };
        let layout_expressions = expressions.len();
        expressions.extend(others);
        let expressions = Expressions::new(input, &Schema::empty(), vec![], expressions)?;
        Ok(Self { expressions, layout_expressions, layout, distinct, counted, results: sources })
    }

    /// Names the states, so that saved states are not mistaken for others.
    pub(crate) fn fingerprint(&self) -> String {
        format!("{} {:?} {:?}", self.layout.fingerprint(), self.distinct, self.counted)
    }

    /// Converts a frame of such states to the form of this version.
    pub(crate) fn brought_up<'f>(
        &self,
        frame: &'f StateFrame,
        expected: &SchemaRef,
    ) -> Result<Cow<'f, StateFrame>, StateError> {
        self.layout.brought_up(frame, expected)
    }

    /// Whether all states are words.
    pub(crate) fn is_words(&self) -> bool {
        self.layout.objects.is_empty() && self.distinct.is_empty() && self.counted.is_empty()
    }

    /// Evaluates the arguments and filters of the aggregates. If an expression fails, it is null for its aggregates,
    /// and the failure is counted as refused.
    pub(crate) fn evaluate(
        &self,
        batch: Batch,
        context: &mut Context<'_>,
    ) -> Result<(Batch, GroupRows), OperatorError> {
        let (batch, columns) = self.expressions.evaluate_or_null(0, batch, context)?;
        let (layout_columns, others) = columns.split_at(self.layout_expressions);
        let inserts = batch.retracts.as_ref().map(|marks| !marks);
        Ok((
            batch.clone(),
            GroupRows {
                inserted: self.layout.prepare_rows(layout_columns, inserts.as_ref())?,
                undone: match &batch.retracts {
                    Some(marks) => Some(self.layout.prepare_rows(layout_columns, Some(marks))?),
                    None => None,
                },
                distinct: self.distinct.iter().map(|plan| plan.read(others)).collect::<Result<_, _>>()?,
                counted: self.counted.iter().map(|plan| plan.read(others)).collect::<Result<_, _>>()?,
                retracts: batch.retracts.clone(),
            },
        ))
    }

    /// Makes states without groups.
    pub(crate) fn states(&self) -> GroupStates {
        GroupStates {
            words: PagedRows::new(self.layout.dense_words()),
            groups: 0,
            objects: Paged::new(),
            finished: vec![Vec::new(); self.layout.objects.len()],
            distinct: self.distinct.iter().map(DistinctPlan::set).collect(),
            counted: self.counted.iter().map(|_| Paged::new()).collect(),
        }
    }

    /// Computes the results of these groups, a column for each aggregate. If a result cannot be computed it is null,
    /// and its index and the reason are added to `failed`.
    pub(crate) fn results(
        &self,
        states: &GroupStates,
        groups: &[u32],
        failed: &mut Vec<(usize, &'static str)>,
    ) -> Result<Vec<ArrayRef>, ArrowError> {
        let windows = || groups.iter().map(|&group| states.words.row(group as usize));
        let column = |(data_type, source): &(DataType, ResultSource)| {
            let column = match *source {
                ResultSource::Layout(index) => {
                    let result = &self.layout.results[index];
                    match result.source {
                        Source::Fixed { .. } => result.column(windows(), |row| failed.push((row, SUM_OVERFLOW))),
                        Source::Object(object) => {
                            let kind = self.layout.objects[object].kind;
                            let finished =
                                groups.iter().map(|&group| match states.finished[object].get(group as usize) {
                                    Some(finished) => finished.clone(),
                                    None => kind.finish_unordered(&states.objects[group as usize][object]),
                                });
                            finished_column(kind.result_storage(), finished, failed)
                        }
                    }
                }
                ResultSource::Distinct { set, filter } => Arc::new(states.distinct[set].counts(groups, filter)),
                ResultSource::Counted { values, asked } => {
                    let plan = &self.counted[values];
                    let of_group = |&group: &u32| plan.result(&states.counted[values][group as usize], asked);
                    let groups = groups.iter().map(of_group);
                    finished_column(plan.result_storage(asked), groups, failed)
                }
            };
            given(column, data_type)
        };
        self.results.iter().map(column).collect()
    }
}

/// Makes a column of finished results.
pub(crate) fn finished_column(
    storage: Storage,
    results: impl Iterator<Item = Finished>,
    failed: &mut Vec<(usize, &'static str)>,
) -> ArrayRef {
    let results = results.enumerate().map(|(row, result)| {
        if let Finished::Failed(why) = result {
            failed.push((row, why));
        }
        result
    });
    let integer = |result: Finished| if let Finished::Integer(value) = result { Some(value) } else { None };
    match storage {
        Storage::Float => Arc::new(
            results
                .map(|result| if let Finished::Float(value) = result { Some(value) } else { None })
                .collect::<Float64Array>(),
        ),
        Storage::Text => Arc::new(
            results
                .map(|result| if let Finished::Text(value) = result { Some(value) } else { None })
                .collect::<StringArray>(),
        ),
        Storage::Boolean => {
            Arc::new(results.map(|result| integer(result).map(|value| value != 0)).collect::<BooleanArray>())
        }
        Storage::Integer | Storage::Time => Arc::new(results.map(integer).collect::<Int64Array>()),
    }
}

/// The values of a batch's rows, for the states of groups.
pub(crate) struct GroupRows {
    inserted: Prepared,
    undone: Option<Prepared>,
    distinct: Vec<DistinctValues>,
    counted: Vec<CountedValues>,
    retracts: Option<BooleanBuffer>,
}

/// The states of groups, by number.
pub(crate) struct GroupStates {
    words: PagedRows,
    groups: usize,
    objects: Paged<Box<[Object]>>,
    /// By object: the results of groups that keep no objects, in order.
    finished: Vec<Vec<Finished>>,
    distinct: Vec<DistinctSet>,
    counted: Vec<Paged<counted::Counted>>,
}

impl GroupStates {
    /// Makes room for this many groups. New groups have no rows.
    pub(crate) fn grow(&mut self, plan: &GroupPlan, groups: usize) {
        if groups <= self.groups {
            return;
        }
        self.words.grow(groups, &plan.layout.empty_window);
        if !plan.layout.objects.is_empty() {
            self.objects.grow_with(groups, || plan.layout.empty_objects());
        }
        for (counted, plan) in self.counted.iter_mut().zip(&plan.counted) {
            counted.grow_with(groups, || plan.empty());
        }
        self.distinct.iter_mut().for_each(|set| set.grow(groups));
        self.groups = groups;
    }

    /// Adds rows: the row at `rows[i]` to the group `groups[i]`.
    pub(crate) fn update(
        &mut self,
        plan: &GroupPlan,
        batch: &GroupRows,
        groups: &[u32],
        rows: &RowSet<'_>,
        times_us: &[i64],
    ) {
        plan.layout.dense_updates(&batch.inserted).update(&mut self.words, groups, rows, times_us);
        if let Some(undone) = &batch.undone {
            plan.layout.dense_updates(undone).undo(&mut self.words, groups, rows);
        }
        if !plan.layout.objects.is_empty() {
            let updates = plan.layout.object_updates(&batch.inserted);
            rows.for_each(|at, row| {
                let objects = &mut self.objects[groups[at] as usize];
                for (update, object) in updates.iter().zip(objects) {
                    update_object(update, object, row, times_us[row]);
                }
            });
        }
        for (set, values) in self.distinct.iter_mut().zip(&batch.distinct) {
            set.update(values, groups, rows);
        }
        let is_undone = |row: usize| batch.retracts.as_ref().is_some_and(|marks| marks.value(row));
        for (counted, values) in self.counted.iter_mut().zip(&batch.counted) {
            rows.for_each(|at, row| {
                let times = if is_undone(row) { -1 } else { 1 };
                counted[groups[at] as usize].add(values, row, times_us[row], times);
            });
        }
    }

    /// Merges the states of a group into those of another. Only words and objects can be merged.
    pub(crate) fn merge(&mut self, plan: &GroupPlan, group: u32, other: u32) {
        let merged = self.words(plan, other).to_vec();
        plan.layout.merge_dense(self.words_mut(plan, group), &merged);
        if !plan.layout.objects.is_empty() {
            let objects = std::mem::replace(&mut self.objects[other as usize], plan.layout.empty_objects());
            for ((state, object), later) in
                plan.layout.objects.iter().zip(&mut self.objects[group as usize]).zip(objects)
            {
                state.kind.merge(object, later);
            }
        }
    }

    /// Resets a group to its state without rows.
    pub(crate) fn clear_group(&mut self, plan: &GroupPlan, group: u32) {
        self.words.row_mut(group as usize).copy_from_slice(&plan.layout.empty_window);
        if let Some(objects) = self.objects.get_mut(group as usize) {
            *objects = plan.layout.empty_objects();
        }
        for (counted, plan) in self.counted.iter_mut().zip(&plan.counted) {
            counted[group as usize] = plan.empty();
        }
    }

    /// The words of a group.
    pub(crate) fn words(&self, plan: &GroupPlan, group: u32) -> &[u64] {
        debug_assert_eq!(plan.layout.dense_words(), self.words.row(group as usize).len());
        self.words.row(group as usize)
    }

    /// The words of a group, to change them.
    pub(crate) fn words_mut(&mut self, plan: &GroupPlan, group: u32) -> &mut [u64] {
        debug_assert_eq!(plan.layout.dense_words(), self.words.row(group as usize).len());
        self.words.row_mut(group as usize)
    }

    /// The objects of a group; empty if aggregates need none.
    pub(crate) fn objects(&self, group: u32) -> &[Object] {
        self.objects.get(group as usize).map_or(&[], |objects| objects)
    }

    /// Makes room for this many groups that get the results of objects by [`GroupStates::finish`] and no objects.
    pub(crate) fn grow_words(&mut self, plan: &GroupPlan, groups: usize) {
        self.words.grow(groups, &plan.layout.empty_window);
    }

    /// Gives the next group the results of these objects in place of objects.
    pub(crate) fn finish(&mut self, plan: &GroupPlan, objects: &[Object]) {
        for ((finished, state), object) in self.finished.iter_mut().zip(&plan.layout.objects).zip(objects) {
            finished.push(state.kind.finish_unordered(object));
        }
    }

    /// Replaces the objects of a group.
    pub(crate) fn set_objects(&mut self, group: u32, objects: Box<[Object]>) {
        self.objects[group as usize] = objects;
    }

    /// Appends the states of a group to `out`; `sets` come from [`GroupStates::distinct_values`].
    pub(crate) fn encode(&self, plan: &GroupPlan, group: u32, sets: &[Vec<distinct::GroupValues>], out: &mut Vec<u8>) {
        self.words(plan, group).iter().for_each(|word| out.extend(word.to_le_bytes()));
        self.objects(group).iter().for_each(|object| object.encode(out));
        sets.iter().for_each(|values| values[group as usize].encode(out));
        self.counted.iter().for_each(|counted| counted[group as usize].encode(out));
    }

    /// The distinct values of all groups, for [`GroupStates::encode`]: one pass instead of one for each group.
    pub(crate) fn distinct_values(&self) -> Vec<Vec<distinct::GroupValues>> {
        self.distinct.iter().map(|set| set.by_group(self.groups)).collect()
    }

    /// Replaces the states of a group by encoded states. `None` if the bytes are not such states.
    pub(crate) fn decode(&mut self, plan: &GroupPlan, group: u32, bytes: &mut &[u8]) -> Option<()> {
        for word in self.words_mut(plan, group) {
            *word = u64::from_le_bytes(bytes.split_off(..8)?.try_into().ok()?);
        }
        for (index, state) in plan.layout.objects.iter().enumerate() {
            self.objects[group as usize][index] = Object::decode(state.kind, bytes)?;
        }
        for set in &mut self.distinct {
            set.decode(group, bytes)?;
        }
        for (counted, plan) in self.counted.iter_mut().zip(&plan.counted) {
            counted[group as usize] = plan.decode(bytes)?;
        }
        Some(())
    }

    /// Memory held, in bytes. It takes time linear in the number of groups if there are objects.
    pub(crate) fn memory_bytes(&self) -> usize {
        let objects: usize = self
            .objects
            .iter()
            .map(|objects| objects.iter().map(|object| size_of::<Object>() + object.memory_bytes()).sum::<usize>())
            .sum();
        let counted: usize = self.counted.iter().flat_map(Paged::iter).map(counted::Counted::memory_bytes).sum();
        self.words.memory_bytes()
            + objects
            + counted
            + self.distinct.iter().map(DistinctSet::memory_bytes).sum::<usize>()
    }
}

/// Adds the value of a row. Of texts with one event time, the least is the first and the greatest the last, because
/// rows of several instances have no order.
fn update_object(update: &ObjectUpdate<'_>, object: &mut Object, row: usize, time_us: i64) {
    if let (Object::Text(Some((held_us, held))), ObjectValues::Texts(texts)) = (&*object, &update.values)
        && *held_us == time_us
    {
        let is_kept = match update.kind {
            ObjectKind::FirstText => **held <= *texts.value(row),
            ObjectKind::LastText => **held >= *texts.value(row),
            _ => false,
        };
        if is_kept {
            return;
        }
        if update.kind == ObjectKind::FirstText && update.valid.is_none_or(|valid| valid.value(row)) {
            *object = Object::Text(Some((time_us, texts.value(row).into())));
            return;
        }
    }
    update.update(object, row, time_us);
}
