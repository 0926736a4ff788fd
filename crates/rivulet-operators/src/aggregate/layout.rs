//! Which states a set of aggregates needs, and where in a pane they lie.
//!
//! Equal states over equal arguments and filters are kept once: `avg(x)`, `sum(x)` and `count(x)` of a floating point
//! column share two words.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{can_cast_types, cast};
use arrow::datatypes::{DataType, Float64Type, Int64Type, Schema};
use arrow::error::ArrowError;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Literal;

use super::fixed::{FixedKind, FixedUpdate, FixedValues};
use super::object::{Object, ObjectKind, ObjectUpdate, ObjectValues};
use super::{AggregateFunction, AggregateSpec, Storage};
use crate::PlanError;
use crate::expression::sql;

/// The states of an application's aggregates.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Words before the states: bounds of the pane.
    pub(crate) header_words: usize,
    /// Words of a pane: header and states.
    pub(crate) entry_words: usize,
    /// A pane without rows, header zero.
    pub(crate) empty_entry: Vec<u64>,
    pub(crate) fixed: Vec<FixedState>,
    pub(crate) objects: Vec<ObjectState>,
    /// For each aggregate, where its result comes from.
    pub(crate) results: Vec<AggregateResult>,
    /// The types that the evaluated expressions are brought to, in their order.
    targets: Vec<DataType>,
}

/// A state of fixed size.
#[derive(Debug)]
pub(crate) struct FixedState {
    pub(crate) kind: FixedKind,
    /// Where it begins in an entry.
    pub(crate) offset: usize,
    inputs: Inputs,
}

/// A state kept as an object.
#[derive(Debug)]
pub(crate) struct ObjectState {
    pub(crate) kind: ObjectKind,
    inputs: Inputs,
}

/// The evaluated expressions that go into a state, by place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Inputs {
    arguments: Vec<usize>,
    filter: Option<usize>,
}

/// Where the result of an aggregate comes from.
#[derive(Debug)]
pub(crate) struct AggregateResult {
    pub(crate) function: AggregateFunction,
    /// The type of the output column.
    pub(crate) data_type: DataType,
    pub(crate) source: Source,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// The fixed state with this index, giving numbers in this form.
    Fixed(usize, Storage),
    /// The object state with this index.
    Object(usize),
}

impl Layout {
    /// The layout, and the expressions that must be evaluated for it, in order.
    pub(crate) fn new(
        aggregates: &[AggregateSpec],
        schema: &Schema,
        header_words: usize,
    ) -> Result<(Self, Vec<Arc<dyn PhysicalExpr>>), PlanError> {
        let mut builder = Builder { expressions: Vec::new(), fixed: Vec::new(), objects: Vec::new() };
        let mut results = Vec::with_capacity(aggregates.len());
        for spec in aggregates {
            results.push(builder.add(spec, schema)?);
        }
        let mut offset = header_words;
        let mut fixed = Vec::with_capacity(builder.fixed.len());
        for (kind, inputs) in builder.fixed {
            fixed.push(FixedState { kind, offset, inputs });
            offset += kind.words();
        }
        let mut empty_entry = vec![0; offset];
        fixed.iter().for_each(|state: &FixedState| state.kind.initialize(&mut empty_entry[state.offset..]));
        let (expressions, targets) = builder.expressions.into_iter().unzip();
        let objects = builder.objects.into_iter().map(|(kind, inputs)| ObjectState { kind, inputs }).collect();
        Ok((Self { header_words, entry_words: offset, empty_entry, fixed, objects, results, targets }, expressions))
    }

    /// The layout as text: state fits an operator only if both have the same.
    pub(crate) fn fingerprint(&self) -> String {
        let fixed = self.fixed.iter().map(|state| format!("{:?}@{}", state.kind, state.offset));
        let objects = self.objects.iter().map(|state| format!("{:?}", state.kind));
        fixed.chain(objects).collect::<Vec<_>>().join(" ")
    }

    /// A new pane's objects.
    pub(crate) fn empty_objects(&self) -> Box<[Object]> {
        self.objects.iter().map(|state| state.kind.empty()).collect()
    }

    /// Merges the states of `entries` into the states at `states` (an entry's words behind the header).
    pub(crate) fn merge(&self, states: &mut [u64], entries: &[u64]) {
        for state in &self.fixed {
            let start = state.offset - self.header_words;
            state.kind.merge(&mut states[start..start + state.kind.words()], entries, self.entry_words, state.offset);
        }
    }

    /// The states of a pane without rows.
    pub(crate) fn empty_states(&self) -> &[u64] {
        &self.empty_entry[self.header_words..]
    }

    /// Brings evaluated expressions into the form in which rows are counted.
    pub(crate) fn prepare(&self, columns: &[ArrayRef]) -> Result<Prepared, ArrowError> {
        let arrays: Vec<ArrayRef> = columns
            .iter()
            .zip(&self.targets)
            .map(|(column, target)| match column.data_type() == target {
                true => Ok(column.clone()),
                false => cast(column, target),
            })
            .collect::<Result<_, _>>()?;
        let valid = |inputs: &Inputs| valid_rows(inputs, &arrays);
        let fixed_valid = self.fixed.iter().map(|state| valid(&state.inputs)).collect();
        let object_valid = self.objects.iter().map(|state| valid(&state.inputs)).collect();
        Ok(Prepared { arrays, fixed_valid, object_valid })
    }

    /// How the rows of a prepared batch go into the fixed states.
    pub(crate) fn fixed_updates<'a>(&self, prepared: &'a Prepared) -> Vec<FixedUpdate<'a>> {
        self.fixed
            .iter()
            .zip(&prepared.fixed_valid)
            .map(|(state, valid)| {
                let argument = |index: usize| &prepared.arrays[state.inputs.arguments[index]];
                let floats = |index: usize| -> &'a [f64] { argument(index).as_primitive::<Float64Type>().values() };
                let integers = || -> &'a [i64] { argument(0).as_primitive::<Int64Type>().values() };
                let float = || *argument(0).data_type() == DataType::Float64;
                let values = match state.kind {
                    FixedKind::Count => FixedValues::Count,
                    FixedKind::SumFloat => FixedValues::SumFloat(floats(0)),
                    FixedKind::SumInteger => FixedValues::SumInteger(integers()),
                    FixedKind::MinFloat => FixedValues::MinFloat(floats(0)),
                    FixedKind::MaxFloat => FixedValues::MaxFloat(floats(0)),
                    FixedKind::MinInteger => FixedValues::MinInteger(integers()),
                    FixedKind::MaxInteger => FixedValues::MaxInteger(integers()),
                    FixedKind::Variance => FixedValues::Variance(floats(0)),
                    // SQL writes (y, x).
                    FixedKind::Regression => FixedValues::Regression(floats(1), floats(0)),
                    FixedKind::First if float() => FixedValues::FirstFloat(floats(0)),
                    FixedKind::First => FixedValues::FirstInteger(integers()),
                    FixedKind::Last if float() => FixedValues::LastFloat(floats(0)),
                    FixedKind::Last => FixedValues::LastInteger(integers()),
                };
                FixedUpdate { offset: state.offset, values, valid: valid.as_ref() }
            })
            .collect()
    }

    /// How the rows of a prepared batch go into the objects.
    pub(crate) fn object_updates<'a>(&self, prepared: &'a Prepared) -> Vec<ObjectUpdate<'a>> {
        self.objects
            .iter()
            .zip(&prepared.object_valid)
            .map(|(state, valid)| {
                let argument = &prepared.arrays[state.inputs.arguments[0]];
                let values = match argument.data_type() {
                    DataType::Float64 => {
                        let values: &'a [f64] = argument.as_primitive::<Float64Type>().values();
                        match state.inputs.arguments.get(1) {
                            Some(&fraction) => {
                                let fractions = prepared.arrays[fraction].as_primitive::<Float64Type>();
                                ObjectValues::Fractions(values, fractions.values())
                            }
                            None => ObjectValues::Floats(values),
                        }
                    }
                    DataType::Utf8 => ObjectValues::Texts(argument.as_string::<i32>()),
                    _ => ObjectValues::Integers(argument.as_primitive::<Int64Type>().values()),
                };
                ObjectUpdate { kind: state.kind, values, valid: valid.as_ref() }
            })
            .collect()
    }
}

/// A batch's arguments in the form in which they are counted.
pub(crate) struct Prepared {
    arrays: Vec<ArrayRef>,
    fixed_valid: Vec<Option<BooleanBuffer>>,
    object_valid: Vec<Option<BooleanBuffer>>,
}

/// Rows whose arguments are not null and for which the filter is true; `None` if that is all of them.
fn valid_rows(inputs: &Inputs, arrays: &[ArrayRef]) -> Option<BooleanBuffer> {
    let mut valid: Option<BooleanBuffer> = None;
    let mut restrict = |rows: BooleanBuffer| {
        valid = Some(match valid.take() {
            Some(valid) => &valid & &rows,
            None => rows,
        });
    };
    for &argument in &inputs.arguments {
        if let Some(nulls) = arrays[argument].logical_nulls().filter(|nulls| nulls.null_count() > 0) {
            restrict(nulls.inner().clone());
        }
    }
    if let Some(filter) = inputs.filter {
        let filter = arrays[filter].as_boolean();
        restrict(filter.values().clone());
        if let Some(nulls) = filter.nulls() {
            restrict(nulls.inner().clone());
        }
    }
    valid
}

/// Collects states, each once.
struct Builder {
    expressions: Vec<(Arc<dyn PhysicalExpr>, DataType)>,
    fixed: Vec<(FixedKind, Inputs)>,
    objects: Vec<(ObjectKind, Inputs)>,
}

impl Builder {
    fn add(&mut self, spec: &AggregateSpec, schema: &Schema) -> Result<AggregateResult, PlanError> {
        let types = spec
            .arguments
            .iter()
            .map(|argument| {
                argument.data_type(schema).map_err(|error| PlanError::Expression {
                    expression: sql(argument),
                    problem: error.strip_backtrace(),
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let function = spec.function;
        let data_type = function.result_type(&types)?;
        let filter = spec.filter.clone().map(|filter| self.expression(filter, DataType::Boolean));
        let storage = types.first().and_then(Storage::of);
        let source = match (function, storage) {
            (AggregateFunction::Count, _) => {
                // A constant that is not null counts every row: count(1) is count(*).
                let constant = |argument: &Arc<dyn PhysicalExpr>| {
                    argument.downcast_ref::<Literal>().is_some_and(|literal| !literal.value().is_null())
                };
                let arguments: Vec<usize> = spec
                    .arguments
                    .iter()
                    .zip(&types)
                    .filter(|(argument, _)| !constant(argument))
                    .map(|(argument, data_type)| self.expression(argument.clone(), count_target(data_type)))
                    .collect();
                self.counting(Inputs { arguments, filter })
            }
            (_, Some(storage)) => {
                let floats = !matches!(
                    function,
                    AggregateFunction::Sum
                        | AggregateFunction::Min
                        | AggregateFunction::Max
                        | AggregateFunction::FirstValue
                        | AggregateFunction::LastValue
                        | AggregateFunction::BoolAnd
                        | AggregateFunction::BoolOr
                        | AggregateFunction::CountDistinct
                        | AggregateFunction::ApproxDistinct
                );
                let storage = if floats { Storage::Float } else { storage };
                let target = storage.data_type();
                if types.iter().any(|found| !can_cast_types(found, &target) || !can_cast_types(&target, found)) {
                    let found = types[0].to_string();
                    return Err(PlanError::ArgumentType {
                        function: function.name(),
                        found,
                        hint: "cast the argument to DOUBLE, BIGINT, TEXT or TIMESTAMP",
                    });
                }
                let arguments =
                    spec.arguments.iter().map(|argument| self.expression(argument.clone(), target.clone())).collect();
                self.state(function, storage, Inputs { arguments, filter })
            }
            (_, None) => unreachable!("result_type refuses arguments that cannot be stored"),
        };
        Ok(AggregateResult { function, data_type, source })
    }

    fn state(&mut self, function: AggregateFunction, storage: Storage, inputs: Inputs) -> Source {
        use AggregateFunction as F;
        let text = storage == Storage::Text;
        let float = storage == Storage::Float;
        let fixed = match function {
            F::Sum | F::Avg if float => FixedKind::SumFloat,
            F::Sum => FixedKind::SumInteger,
            F::Min if float => FixedKind::MinFloat,
            F::Max if float => FixedKind::MaxFloat,
            // false is 0 and true is 1, so "and" is the minimum and "or" the maximum.
            F::Min | F::BoolAnd if !text => FixedKind::MinInteger,
            F::Max | F::BoolOr if !text => FixedKind::MaxInteger,
            F::StddevSamp | F::StddevPop | F::VarSamp | F::VarPop => FixedKind::Variance,
            F::CovarSamp | F::CovarPop | F::Corr | F::RegrSlope | F::RegrIntercept | F::RegrR2 => FixedKind::Regression,
            F::FirstValue if !text => FixedKind::First,
            F::LastValue if !text => FixedKind::Last,
            _ => {
                let kind = match function {
                    F::Median => ObjectKind::Median,
                    F::PercentileCont => ObjectKind::Percentile,
                    F::CountDistinct if text => ObjectKind::DistinctTexts,
                    F::CountDistinct => ObjectKind::DistinctWords,
                    F::ApproxDistinct => ObjectKind::Approximate,
                    F::Min => ObjectKind::MinText,
                    F::Max => ObjectKind::MaxText,
                    F::FirstValue => ObjectKind::FirstText,
                    _ => ObjectKind::LastText,
                };
                return Source::Object(place(&mut self.objects, (kind, inputs)));
            }
        };
        Source::Fixed(self.fixed_state(fixed, inputs), storage)
    }

    /// A state over these inputs that counts values: any that is there, or a new one.
    fn counting(&mut self, inputs: Inputs) -> Source {
        let shared = self.fixed.iter().position(|(kind, known)| kind.counts() && *known == inputs);
        let index = shared.unwrap_or_else(|| self.fixed_state(FixedKind::Count, inputs));
        Source::Fixed(index, Storage::Integer)
    }

    fn fixed_state(&mut self, kind: FixedKind, inputs: Inputs) -> usize {
        // A count that came first grows into a state that counts as well.
        if kind.counts()
            && let Some(count) = self.fixed.iter().position(|known| *known == (FixedKind::Count, inputs.clone()))
        {
            self.fixed[count].0 = kind;
            return count;
        }
        place(&mut self.fixed, (kind, inputs))
    }

    fn expression(&mut self, expression: Arc<dyn PhysicalExpr>, target: DataType) -> usize {
        place(&mut self.expressions, (expression, target))
    }
}

/// The place of an item in a list, where it is put if it is not there yet.
fn place<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter().position(|known| *known == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}

/// What an argument of count is brought to: the form other aggregates of the same argument use, so that they share it.
fn count_target(data_type: &DataType) -> DataType {
    Storage::of(data_type).map_or_else(|| data_type.clone(), Storage::data_type)
}

impl Storage {
    /// The Arrow type in which values of this form are counted.
    pub(crate) fn data_type(self) -> DataType {
        match self {
            Self::Float => DataType::Float64,
            Self::Integer | Self::Boolean | Self::Time => DataType::Int64,
            Self::Text => DataType::Utf8,
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Field;
    use datafusion_physical_expr::expressions::lit;

    use super::*;
    use crate::expression::column;

    fn layout(aggregates: &[(AggregateFunction, Vec<Arc<dyn PhysicalExpr>>)]) -> (Layout, usize) {
        let specs: Vec<AggregateSpec> = aggregates
            .iter()
            .map(|(function, arguments)| AggregateSpec {
                name: "a".into(),
                function: *function,
                arguments: arguments.clone(),
                filter: None,
            })
            .collect();
        let (layout, expressions) = Layout::new(&specs, &schema(), 1).unwrap();
        (layout, expressions.len())
    }

    fn schema() -> Schema {
        Schema::new(vec![Field::new("x", DataType::Float64, true), Field::new("n", DataType::Int64, true)])
    }

    #[test]
    fn equal_states_are_kept_once() {
        use AggregateFunction::*;
        let x = column(&schema(), 0);
        let (layout, expressions) =
            layout(&[(Count, vec![x.clone()]), (Avg, vec![x.clone()]), (Sum, vec![x.clone()]), (Count, vec![x])]);
        assert_eq!((layout.fixed.len(), layout.entry_words, expressions), (1, 3, 1));
        let results: Vec<_> =
            layout.results.iter().map(|result| matches!(result.source, Source::Fixed(0, _))).collect();
        assert_eq!(results, [true; 4]);
    }

    #[test]
    fn a_count_of_a_constant_is_a_count_of_rows() {
        use AggregateFunction::*;
        let (layout, expressions) = layout(&[(Count, vec![]), (Count, vec![lit(1i64)])]);
        assert_eq!((layout.fixed.len(), expressions), (1, 0));
    }

    #[test]
    fn numbers_of_another_type_are_other_arguments() {
        use AggregateFunction::*;
        let n = column(&schema(), 1);
        // The sum of integers is kept in 128 bits, the average as floating point.
        let (layout, expressions) = layout(&[(Sum, vec![n.clone()]), (Avg, vec![n.clone()]), (Median, vec![n])]);
        assert_eq!((layout.fixed.len(), layout.objects.len(), expressions), (2, 1, 2));
        assert_eq!(layout.entry_words, 1 + 3 + 2);
    }
}
