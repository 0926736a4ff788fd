//! Which states a set of aggregates needs.
//!
//! States that can be shared are kept once:
//! - the number of rows that count, shared by all states over the same rows: same FILTER, same arguments that may be
//!   null;
//! - equal states over equal arguments, and so whole aggregates that are written twice;
//! - means and variances, which regressions over the same argument hold: `avg(y)` and `var(y)` come from
//!   `regr_slope(y, x)` (if x is never null), and `avg(x)` from `var(x)`. So an average is either a sum divided by a
//!   count or, beside a variance, the mean of the variance's state, which may differ in the last digit. A sum is always
//!   a sum, and a sum of integers is exact.
//!
//! A computed argument is computed only for rows that pass the FILTER, which may be there to keep it from failing
//! (`sum(100 / n) FILTER (WHERE n > 0)`). It may be null where it fails.

use std::sync::Arc;

use arrow::compute::can_cast_types;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{Column, Literal, case};

use super::fixed::FixedKind;
use super::layout::{AggregateResult, Class, FixedState, Form, Layout, ObjectState, Rows, Source};
use super::migration::conversion;
use super::object::{ObjectKind, Total};
use super::{AggregateFunction, AggregateSpec, Storage};
use crate::PlanError;
use crate::expression::{column, sql};

impl AggregateFunction {
    /// Whether a few numbers are all that must be known of values of these types, however many there are.
    pub fn is_kept_in_numbers(self, arguments: &[DataType]) -> bool {
        let schema = Schema::new(arguments.iter().map(|one| Field::new("x", one.clone(), true)).collect::<Vec<_>>());
        let arguments = (0..arguments.len()).map(|index| column(&schema, index)).collect();
        let spec = AggregateSpec { name: String::new(), function: self, arguments, filter: None };
        Layout::new(&[spec], &schema, 0).is_ok_and(|(layout, _)| layout.objects.is_empty())
    }
}

impl Layout {
    /// Returns the layout, and the expressions that must be evaluated for it, in order. The first `header_halves`
    /// halves of words of an entry belong to the caller.
    pub(crate) fn new(
        aggregates: &[AggregateSpec],
        schema: &Schema,
        header_halves: usize,
    ) -> Result<(Self, Vec<Arc<dyn PhysicalExpr>>), PlanError> {
        Self::planned(Builder::default, aggregates, schema, header_halves)
    }

    /// The same where rows are also retracted: sums of floating point numbers are kept in a form in which a retracted
    /// value leaves nothing behind. The aggregates are counts, sums and averages.
    pub(crate) fn undoing(
        aggregates: &[AggregateSpec],
        schema: &Schema,
    ) -> Result<(Self, Vec<Arc<dyn PhysicalExpr>>), PlanError> {
        Self::planned(|| Builder { undoing: true, ..Builder::default() }, aggregates, schema, 0)
    }

    fn planned(
        builder: impl Fn() -> Builder,
        aggregates: &[AggregateSpec],
        schema: &Schema,
        header_halves: usize,
    ) -> Result<(Self, Vec<Arc<dyn PhysicalExpr>>), PlanError> {
        let (mut layout, expressions) = Self::with(builder(), aggregates, schema, header_halves)?;
        let earlier = Builder { averages_as_floats: true, ..builder() };
        let (earlier, _) = Self::with(earlier, aggregates, schema, header_halves)?;
        layout.earlier = conversion(&earlier, &layout);
        Ok((layout, expressions))
    }

    fn with(
        mut builder: Builder,
        aggregates: &[AggregateSpec],
        schema: &Schema,
        header_halves: usize,
    ) -> Result<(Self, Vec<Arc<dyn PhysicalExpr>>), PlanError> {
        let wanted = aggregates.iter().map(|spec| builder.plan(spec, schema)).collect::<Result<Vec<_>, _>>()?;
        // States that also serve other aggregates come first.
        for rank in 0..=RANK_MAX {
            wanted.iter().for_each(|wanted| builder.add_state(wanted, rank));
        }
        let mut halves = header_halves;
        let mut counts = Vec::with_capacity(builder.classes.len());
        for (_, is_counted) in &builder.classes {
            counts.push(is_counted.then_some(halves));
            halves += usize::from(*is_counted);
        }
        let states_start = halves.div_ceil(2);
        let mut offset = states_start;
        let (mut classes, mut fixed, mut offsets) = (Vec::new(), Vec::new(), vec![0; builder.states.len()]);
        for (class, (rows, _)) in builder.classes.iter().enumerate() {
            let first = fixed.len();
            for (index, state) in builder.states.iter().enumerate().filter(|(_, state)| state.class == class) {
                fixed.push(FixedState { kind: state.kind, arguments: state.arguments.clone(), offset });
                offsets[index] = offset;
                offset += state.kind.words();
            }
            classes.push(Class { rows: rows.clone(), count_half: counts[class], states: first..fixed.len() });
        }
        let mut empty_entry = vec![0; offset];
        fixed.iter().for_each(|state| state.kind.initialize(&mut empty_entry[state.offset..]));
        let mut empty_window = vec![0; classes.len()];
        empty_window.extend_from_slice(&empty_entry[states_start..]);
        let in_window = |state: usize| offsets[state] - states_start + classes.len();
        let results = wanted.iter().map(|wanted| builder.result(wanted, in_window)).collect();
        let layout = Self {
            entry_words: offset,
            empty_entry,
            empty_window,
            fixed,
            objects: builder.objects,
            results,
            arguments: builder.arguments,
            classes,
            in_order: false,
            earlier: None,
        };
        Ok((layout, builder.expressions))
    }
}

/// Collects the states that are needed, each once.
#[derive(Default)]
struct Builder {
    expressions: Vec<Arc<dyn PhysicalExpr>>,
    arguments: Vec<(usize, DataType)>,
    /// Sets of rows, and whether the rows of each must be counted.
    classes: Vec<(Rows, bool)>,
    states: Vec<PlannedState>,
    objects: Vec<ObjectState>,
    /// Whether rows are also retracted.
    undoing: bool,
    /// Whether averages of integers are floating point numbers, as in earlier versions.
    averages_as_floats: bool,
}

#[derive(PartialEq)]
struct PlannedState {
    kind: FixedKind,
    class: usize,
    arguments: Vec<usize>,
}

/// An aggregate whose arguments are known.
struct Wanted {
    function: AggregateFunction,
    data_type: DataType,
    storage: Storage,
    arguments: Vec<usize>,
    /// For a decimal: how many more digits behind the point it has than its argument.
    digits: u32,
    place: Place,
}

/// Where the state of an aggregate is.
#[derive(Clone, Copy)]
enum Place {
    Class(usize),
    Object(usize),
}

const RANK_MAX: usize = 2;

impl Builder {
    /// Checks an aggregate, and finds its arguments and its rows.
    fn plan(&mut self, spec: &AggregateSpec, schema: &Schema) -> Result<Wanted, PlanError> {
        let fail = |argument: &Arc<dyn PhysicalExpr>, error: datafusion_common::DataFusionError| {
            PlanError::Expression { expression: sql(argument), problem: error.strip_backtrace() }
        };
        let types = spec
            .arguments
            .iter()
            .map(|argument| argument.data_type(schema).map_err(|error| fail(argument, error)))
            .collect::<Result<Vec<_>, _>>()?;
        let function = spec.function;
        let data_type = function.result_type(&types)?;
        let spec = &guarded(spec)?;
        let filter = spec.filter.clone().map(|filter| place(&mut self.expressions, filter));
        let mut rows = Rows { not_null: Vec::new(), filter };
        for argument in &spec.arguments {
            if !is_given(argument) || argument.nullable(schema).map_err(|error| fail(argument, error))? {
                rows.not_null.push(place(&mut self.expressions, argument.clone()));
            }
        }
        rows.not_null.sort_unstable();
        rows.not_null.dedup();
        let Some(storage) =
            types.first().and_then(Storage::of_argument).filter(|_| function != AggregateFunction::Count)
        else {
            let place = Place::Class(self.class(rows, true));
            let (storage, arguments, digits) = (Storage::Integer, Vec::new(), 0);
            return Ok(Wanted { function, data_type, storage, arguments, digits, place });
        };
        // The average of integers is their sum, which is exact, divided by their number.
        let is_exact = function == AggregateFunction::Avg && storage == Storage::Integer && !self.averages_as_floats;
        let storage = if keeps_type(function) || is_exact { storage } else { Storage::Float };
        let target = storage.data_type();
        if types.iter().any(|found| !can_cast_types(found, &target) || !can_cast_types(&target, found)) {
            return Err(PlanError::ArgumentType {
                function: function.name(),
                found: types[0].to_string(),
                hint: "cast the argument to DOUBLE, BIGINT, TEXT or TIMESTAMP",
            });
        }
        let arguments: Vec<usize> = spec
            .arguments
            .iter()
            .zip(&types)
            .map(|(argument, found)| {
                let expression = place(&mut self.expressions, argument.clone());
                // The key of a list stays as it is.
                let target = if *found == DataType::Binary { found } else { &target };
                place(&mut self.arguments, (expression, target.clone()))
            })
            .collect();
        let digits = digits_more(&types[0], &data_type);
        let place = match object_kind(function, storage, digits) {
            Some(kind) => Place::Object(self.object(kind, arguments.clone(), rows)),
            None => Place::Class(self.class(rows, self.fixed_kind(function, storage).is_counted())),
        };
        let digits = digits.unwrap_or(0);
        Ok(Wanted { function, data_type, storage, arguments, digits, place })
    }

    fn fixed_kind(&self, function: AggregateFunction, storage: Storage) -> FixedKind {
        match fixed_kind(function, storage) {
            FixedKind::SumFloat if self.undoing => FixedKind::SumUndone,
            kind => kind,
        }
    }

    fn class(&mut self, rows: Rows, is_counted: bool) -> usize {
        match self.classes.iter_mut().enumerate().find(|(_, class)| class.0 == rows) {
            Some((index, class)) => {
                class.1 |= is_counted;
                index
            }
            None => {
                self.classes.push((rows, is_counted));
                self.classes.len() - 1
            }
        }
    }

    fn object(&mut self, kind: ObjectKind, arguments: Vec<usize>, rows: Rows) -> usize {
        let same = |known: &ObjectState| known.kind == kind && known.arguments == arguments && known.rows == rows;
        self.objects.iter().position(same).unwrap_or_else(|| {
            self.objects.push(ObjectState { kind, arguments, rows });
            self.objects.len() - 1
        })
    }

    /// Adds the state of an aggregate if its rank is `rank`, unless an existing state serves.
    fn add_state(&mut self, wanted: &Wanted, rank: usize) {
        let Place::Class(class) = wanted.place else { return };
        if wanted.function == AggregateFunction::Count {
            return;
        }
        let kind = self.fixed_kind(wanted.function, wanted.storage);
        let own_rank = match kind {
            FixedKind::Regression => 0,
            FixedKind::Variance => 1,
            _ => RANK_MAX,
        };
        if rank == own_rank && self.moments(wanted).is_none() {
            place(&mut self.states, PlannedState { kind, class, arguments: wanted.arguments.clone() });
        }
    }

    /// Finds the state that holds mean and variance of an aggregate's argument, and in which of its words they are.
    /// `None` if there is no such state or if the aggregate needs something else.
    fn moments(&self, wanted: &Wanted) -> Option<(usize, usize, usize)> {
        use AggregateFunction as F;
        let Place::Class(class) = wanted.place else { return None };
        let is_decimal = matches!(wanted.data_type, DataType::Decimal128(..));
        if is_decimal || !matches!(wanted.function, F::Avg | F::VarPop | F::VarSamp | F::StddevPop | F::StddevSamp) {
            return None;
        }
        self.states.iter().enumerate().filter(|(_, state)| state.class == class).find_map(|(index, state)| {
            // The expression of an argument, whatever type it is converted to.
            let expression = |argument: usize| self.arguments[argument].0;
            let argument =
                state.arguments.iter().position(|argument| expression(*argument) == expression(wanted.arguments[0]))?;
            match (state.kind, argument) {
                (FixedKind::Variance, _) => Some((index, 0, 1)),
                // The arguments are (y, x). In the words, x comes before y.
                (FixedKind::Regression, 0) => Some((index, 1, 3)),
                (FixedKind::Regression, _) => Some((index, 0, 2)),
                _ => None,
            }
        })
    }

    /// Finds the result of an aggregate, given where in a window each state begins.
    fn result(&self, wanted: &Wanted, in_window: impl Fn(usize) -> usize) -> AggregateResult {
        let Wanted { function, storage, digits, .. } = *wanted;
        let is_decimal = matches!(wanted.data_type, DataType::Decimal128(..));
        let data_type = wanted.data_type.clone();
        let class = match wanted.place {
            Place::Class(class) => class,
            Place::Object(index) => return AggregateResult { function, data_type, source: Source::Object(index) },
        };
        let form = if function == AggregateFunction::Count {
            Form::Count
        } else if let Some((state, mean, squares)) = self.moments(wanted) {
            Form::Moments(in_window(state) + mean, in_window(state) + squares)
        } else {
            let kind = self.fixed_kind(function, storage);
            let same = |state: &PlannedState| {
                state.kind == kind && state.class == class && state.arguments == wanted.arguments
            };
            let word = in_window(self.states.iter().position(same).expect("every aggregate has a state"));
            match kind {
                FixedKind::SumFloat if function == AggregateFunction::Avg => Form::Quotient(word),
                FixedKind::SumUndone if function == AggregateFunction::Avg => Form::UndoneQuotient(word),
                FixedKind::SumUndone => Form::Undone(word),
                FixedKind::SumInteger if function == AggregateFunction::Avg && is_decimal => {
                    Form::DecimalQuotient(word, digits)
                }
                FixedKind::SumInteger if function == AggregateFunction::Avg => Form::WideQuotient(word),
                FixedKind::SumInteger => Form::WideSum(word),
                FixedKind::First | FixedKind::Last | FixedKind::Kalman | FixedKind::AvgLast => Form::Timed(word),
                FixedKind::Regression => Form::Regression(word),
                _ => Form::Word(word),
            }
        };
        let storage = if function == AggregateFunction::Avg && !is_decimal { Storage::Float } else { storage };
        AggregateResult { function, data_type, source: Source::Fixed { class, form, storage } }
    }
}

/// Returns the aggregate with its arguments computed only for rows that pass its filter. For other rows the arguments
/// are null and do not count.
pub(crate) fn guarded(spec: &AggregateSpec) -> Result<AggregateSpec, PlanError> {
    let Some(filter) = &spec.filter else { return Ok(spec.clone()) };
    let guard = |argument: &Arc<dyn PhysicalExpr>| match is_given(argument) {
        true => Ok(argument.clone()),
        false => case(None, vec![(filter.clone(), argument.clone())], None)
            .map_err(|error| PlanError::Expression { expression: sql(argument), problem: error.strip_backtrace() }),
    };
    Ok(AggregateSpec { arguments: spec.arguments.iter().map(guard).collect::<Result<_, _>>()?, ..spec.clone() })
}

/// Whether an expression needs no computation, so that it cannot fail.
fn is_given(expression: &Arc<dyn PhysicalExpr>) -> bool {
    expression.is::<Column>() || expression.is::<Literal>()
}

/// Whether a function works on values in their own type. The others take floating point numbers.
fn keeps_type(function: AggregateFunction) -> bool {
    use AggregateFunction as F;
    matches!(
        function,
        F::Sum
            | F::Min
            | F::Max
            | F::FirstValue
            | F::LastValue
            | F::BoolAnd
            | F::BoolOr
            | F::BitAnd
            | F::BitOr
            | F::BitXor
            | F::CountDistinct
            | F::SumDistinct
            | F::AvgDistinct
            | F::ApproxDistinct
            | F::ArrayAgg
            | F::ArrayAggDistinct
            | F::StringAgg
            | F::StringAggDistinct
    )
}

/// How many digits more behind the point a result has than its argument, if both are decimals.
pub(crate) fn digits_more(argument: &DataType, result: &DataType) -> Option<u32> {
    match (argument, result) {
        (DataType::Decimal128(_, from), DataType::Decimal128(_, to)) => Some(u32::try_from(to - from).unwrap_or(0)),
        _ => None,
    }
}

/// The object of a function; `digits` are those that a decimal has more than its argument.
fn object_kind(function: AggregateFunction, storage: Storage, digits: Option<u32>) -> Option<ObjectKind> {
    use AggregateFunction as F;
    let is_text = storage == Storage::Text;
    let distinct = |total| ObjectKind::DistinctTotal { is_float: storage == Storage::Float, total };
    Some(match function {
        F::Median => ObjectKind::Median,
        F::PercentileCont => ObjectKind::Percentile,
        F::CountDistinct if is_text => ObjectKind::DistinctTexts,
        F::CountDistinct => ObjectKind::DistinctWords,
        F::SumDistinct => distinct(Total::Sum),
        F::AvgDistinct => distinct(digits.map_or(Total::Mean, Total::DecimalMean)),
        F::ApproxDistinct => ObjectKind::Approximate,
        F::Min if is_text => ObjectKind::MinText,
        F::Max if is_text => ObjectKind::MaxText,
        F::FirstValue if is_text => ObjectKind::FirstText,
        F::LastValue if is_text => ObjectKind::LastText,
        F::ArrayAgg => ObjectKind::JsonList,
        F::ArrayAggDistinct => ObjectKind::DistinctJsonList,
        F::StringAgg => ObjectKind::TextList,
        F::StringAggDistinct => ObjectKind::DistinctTextList,
        _ => return None,
    })
}

/// The fixed state of a function that needs no object and is not a count.
fn fixed_kind(function: AggregateFunction, storage: Storage) -> FixedKind {
    use AggregateFunction as F;
    let is_float = storage == Storage::Float;
    match function {
        F::Sum | F::Avg if is_float => FixedKind::SumFloat,
        F::Sum | F::Avg => FixedKind::SumInteger,
        F::Min if is_float => FixedKind::MinFloat,
        F::Max if is_float => FixedKind::MaxFloat,
        // false is 0 and true is 1, so "and" is the minimum and "or" the maximum.
        F::Min | F::BoolAnd => FixedKind::MinInteger,
        F::Max | F::BoolOr => FixedKind::MaxInteger,
        F::StddevSamp | F::StddevPop | F::VarSamp | F::VarPop => FixedKind::Variance,
        F::CovarSamp | F::CovarPop | F::Corr | F::RegrSlope | F::RegrIntercept | F::RegrR2 => FixedKind::Regression,
        F::BitAnd => FixedKind::BitAnd,
        F::BitOr => FixedKind::BitOr,
        F::BitXor => FixedKind::BitXor,
        F::FirstValue => FixedKind::First,
        F::LastValue => FixedKind::Last,
        F::Kalman => FixedKind::Kalman,
        F::AvgLast => FixedKind::AvgLast,
        _ => unreachable!("{function} has no state of fixed size"),
    }
}

/// Returns the index of an item in a list. Adds the item if it is not in the list yet.
fn place<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter().position(|known| *known == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}

#[cfg(test)]
mod tests {
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

    /// x DOUBLE, n BIGINT, t DOUBLE NOT NULL.
    fn schema() -> Schema {
        Schema::new(vec![
            Field::new("x", DataType::Float64, true),
            Field::new("n", DataType::Int64, true),
            Field::new("t", DataType::Float64, false),
        ])
    }

    #[test]
    fn equal_states_are_kept_once() {
        use AggregateFunction::*;
        let x = column(&schema(), 0);
        let (layout, expressions) =
            layout(&[(Count, vec![x.clone()]), (Avg, vec![x.clone()]), (Sum, vec![x.clone()]), (Count, vec![x])]);
        // The start of the pane and the count in one word, the sum in the other.
        assert_eq!((layout.fixed.len(), layout.entry_words, expressions), (1, 2, 1));
    }

    #[test]
    fn a_regression_serves_mean_and_variance_of_its_arguments() {
        use AggregateFunction::*;
        let [x, n, t] = [0, 1, 2].map(|index| column(&schema(), index));
        let with = |other: &Arc<dyn PhysicalExpr>| {
            let (layout, _) = layout(&[
                (VarPop, vec![x.clone()]),
                (Avg, vec![x.clone()]),
                (Max, vec![x.clone()]),
                (RegrSlope, vec![x.clone(), other.clone()]),
                (RegrR2, vec![x.clone(), other.clone()]),
                (Count, vec![]),
            ]);
            (layout.fixed.iter().map(|state| state.kind).collect::<Vec<_>>(), layout.entry_words)
        };
        assert_eq!(with(&t), (vec![FixedKind::Regression, FixedKind::MaxFloat], 2 + 5 + 1));
        // Rows where n is null are not in the regression, so its variance is of other rows.
        let own = vec![FixedKind::Variance, FixedKind::MaxFloat, FixedKind::Regression];
        assert_eq!(with(&n), (own, 2 + 2 + 1 + 5));
    }

    #[test]
    fn rows_are_counted_once_where_arguments_are_never_null() {
        use AggregateFunction::*;
        let t = column(&schema(), 2);
        let (layout, expressions) = layout(&[(Count, vec![]), (Count, vec![lit(1i64)]), (Count, vec![t.clone()])]);
        assert_eq!((layout.classes.len(), layout.entry_words, expressions), (1, 1, 0));
        let (layout, _) = self::layout(&[(LastValue, vec![t.clone()])]);
        assert_eq!(layout.classes[0].count_half, None, "the event time says whether there is a value");
        let (layout, _) = self::layout(&[(LastValue, vec![t.clone()]), (Min, vec![t])]);
        assert_eq!((layout.classes[0].count_half, layout.entry_words), (Some(1), 4));
    }

    #[test]
    fn numbers_of_another_type_are_other_arguments() {
        use AggregateFunction::*;
        let n = column(&schema(), 1);
        // The sum of integers is kept in 128 bits, for the average too, the median as floating point; the expression is
        // evaluated once.
        let (layout, expressions) = layout(&[(Sum, vec![n.clone()]), (Avg, vec![n.clone()]), (Median, vec![n])]);
        assert_eq!((layout.fixed.len(), layout.objects.len(), expressions), (1, 1, 1));
        assert_eq!((layout.entry_words, layout.arguments.len()), (1 + 2, 2));
    }
}
