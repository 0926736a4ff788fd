//! The kinds of windows, and their lengths: expressions over parameters, evaluated once when a query comes.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, IntervalMonthDayNanoType, IntervalUnit, Schema};
use datafusion_common::ScalarValue;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Literal;

use crate::error::{LengthError, PlanError};
use crate::expression::{Expressions, sql};

/// The most panes that a window may have. The length of a pane is the greatest common divisor of width and slide, and
/// each pane is merged when the window closes.
pub const PANES_PER_WINDOW_MAX: i64 = 100_000;

const OFFSET: &str = "offset";

/// The longest window in microseconds (over 9000 years), and the bound of event times on both sides of 1970. Sums of a
/// few of them cannot overflow.
pub(crate) const TIME_MAX_US: i64 = 1 << 58;

/// A kind of window with its lengths: expressions over the slot table's columns (column i is parameter i), of type
/// `Interval(MonthDayNano)` without months, or `Int64` for numbers of rows.
#[derive(Clone, Debug)]
pub enum WindowSpec {
    /// `[k * width, (k + 1) * width)` for every integer k, since the Unix epoch.
    Tumble {
        /// The length of a window.
        width: Arc<dyn PhysicalExpr>,
    },
    /// `[k * slide, k * slide + width)`. With a slide longer than the width, rows between windows belong to none.
    Hop {
        /// The distance between starts of windows.
        slide: Arc<dyn PhysicalExpr>,
        /// The length of a window.
        width: Arc<dyn PhysicalExpr>,
    },
    /// Windows that begin every width and grow by a step: `[k * width, k * width + n * step)` for every n up to their
    /// number in a width, which is a multiple of the step.
    Cumulate {
        /// By how much a window is longer than the previous one.
        step: Arc<dyn PhysicalExpr>,
        /// The length of the longest window.
        width: Arc<dyn PhysicalExpr>,
    },
    /// Windows by time whose starts are shifted: later, or earlier if the offset is negative.
    Shifted {
        /// Tumbling, hopping or cumulating windows.
        window: Box<WindowSpec>,
        /// By how much they are shifted.
        offset: Arc<dyn PhysicalExpr>,
    },
    /// Rows that follow each other within less than the gap: `[first, last + gap)`.
    Session {
        /// The silence that ends a session.
        gap: Arc<dyn PhysicalExpr>,
    },
    /// A number of rows of a slot and key in order of arrival.
    Count {
        /// The number of rows of a window.
        rows: Arc<dyn PhysicalExpr>,
        /// A window ends after every so many rows; the first window ends when it is full. Without this, windows do not
        /// overlap.
        slide_rows: Option<Arc<dyn PhysicalExpr>>,
    },
    /// The rows of a slot and key from one that meets a condition to the next one that meets another, in order of
    /// arrival. The conditions are over rows ([`WindowAggregateSpec::conditions`](super::WindowAggregateSpec)). The
    /// lengths are one row.
    State,
}

/// A length of a window, if it has one.
type Length<'a> = Option<&'a Arc<dyn PhysicalExpr>>;

impl WindowSpec {
    /// Whether windows have bounds in time, not in rows.
    pub(crate) fn is_time(&self) -> bool {
        !matches!(self, Self::Count { .. } | Self::State)
    }

    /// How many halves of 64-bit words stand at the start of each pane (its number), session (its first and last event
    /// time) or block of rows (its number, and the event times of its first and last row). A window of a state is such
    /// a block.
    pub(crate) fn header_halves(&self) -> usize {
        match self {
            Self::Tumble { .. } | Self::Hop { .. } | Self::Cumulate { .. } | Self::Shifted { .. } => 1,
            Self::Session { .. } => 4,
            Self::Count { .. } | Self::State => 6,
        }
    }

    /// The windows without their offset.
    pub(crate) fn unshifted(&self) -> &Self {
        match self {
            Self::Shifted { window, .. } => window,
            other => other,
        }
    }

    /// By how much windows are shifted; `None` if they are not.
    pub(crate) fn offset(&self) -> Option<&Arc<dyn PhysicalExpr>> {
        match self {
            Self::Shifted { offset, .. } => Some(offset),
            _ => None,
        }
    }

    /// The windows as the address of their state says them: in the same text for ever.
    pub(crate) fn address(&self) -> String {
        let length = |length: &Arc<dyn PhysicalExpr>| match length.downcast_ref::<Literal>().map(Literal::value) {
            Some(ScalarValue::IntervalMonthDayNano(Some(one))) => {
                format!("{} months {} days {} ns", one.months, one.days, one.nanoseconds)
            }
            _ => sql(length),
        };
        let (width, slide) = self.expressions();
        let lengths: Vec<String> = [width, slide, self.offset()].into_iter().flatten().map(length).collect();
        format!("{} of {}", self.unshifted().to_string().split('(').next().unwrap_or_default(), lengths.join(", "))
    }

    /// Width and slide. The slide is `None` if it is the width. A window of a state has no lengths.
    fn expressions(&self) -> (Length<'_>, Length<'_>) {
        match self {
            Self::Shifted { window, .. } => window.expressions(),
            Self::Cumulate { step, width } => (Some(width), Some(step)),
            Self::Tumble { width } => (Some(width), None),
            Self::Hop { slide, width } => (Some(width), Some(slide)),
            Self::Session { gap } => (Some(gap), None),
            Self::Count { rows, slide_rows } => (Some(rows), slide_rows.as_ref()),
            Self::State => (None, None),
        }
    }

    fn names(&self) -> (&'static str, &'static str) {
        match self {
            Self::Tumble { .. } | Self::Hop { .. } => ("width", "slide"),
            Self::Cumulate { .. } => ("width", "step"),
            Self::Shifted { window, .. } => window.names(),
            Self::Session { .. } => ("gap", "slide"),
            Self::Count { .. } | Self::State => ("number of rows", "slide in rows"),
        }
    }
}

impl fmt::Display for WindowSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tumble { width } => write!(f, "tumble({})", sql(width)),
            Self::Hop { slide, width } => write!(f, "hop({}, {})", sql(slide), sql(width)),
            Self::Cumulate { step, width } => write!(f, "cumulate({}, {})", sql(step), sql(width)),
            Self::Shifted { window, offset } => {
                let text = window.to_string();
                write!(f, "{}, {})", text.strip_suffix(')').unwrap_or(&text), sql(offset))
            }
            Self::Session { gap } => write!(f, "session({})", sql(gap)),
            Self::State => f.write_str("state_window"),
            Self::Count { rows, slide_rows: None } => write!(f, "count_window({})", sql(rows)),
            Self::Count { rows, slide_rows: Some(slide) } => write!(f, "count_window({}, {})", sql(rows), sql(slide)),
        }
    }
}

/// The lengths of one slot's windows: microseconds, or rows for count windows. All are positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lengths {
    /// The length of a window, or the gap of sessions.
    pub width: i64,
    /// The distance between starts of windows; the width, unless windows hop.
    pub slide: i64,
    /// The length of a pane: the greatest common divisor of width and slide.
    pub pane: i64,
    /// By how much later windows begin: from 0 to less than the distance between their starts.
    pub offset: i64,
    /// Whether windows cumulate: windows that begin together end a slide apart from each other, up to the width.
    pub cumulates: bool,
}

impl Lengths {
    /// Checks lengths; `rows` says whether they count rows.
    pub fn new(width: i64, slide: i64, rows: bool) -> Result<Self, LengthError> {
        for (what, value) in [("width", width), ("slide", slide)] {
            if value <= 0 {
                return Err(LengthError::NotPositive { what, value });
            }
            if value > TIME_MAX_US {
                return Err(LengthError::TooLong { what });
            }
        }
        let pane = greatest_common_divisor(width, slide);
        check_panes(width / pane, rows)?;
        Ok(Self { width, slide, pane, offset: 0, cumulates: false })
    }

    /// The same lengths for windows that cumulate by the slide.
    pub(crate) fn cumulating(self) -> Result<Self, LengthError> {
        match self.width % self.slide {
            0 => Ok(Self { cumulates: true, ..self }),
            _ => Err(LengthError::NoMultiple),
        }
    }

    /// The same lengths for windows that begin later by `offset`.
    pub(crate) fn shifted(self, offset: i64) -> Self {
        let distance = if self.cumulates { self.width } else { self.slide };
        Self { offset: offset.rem_euclid(distance), ..self }
    }

    /// The end of the last window that holds this time; `None` between two windows. Times here and below are those of
    /// windows that are not shifted.
    #[inline]
    pub(crate) fn last_end_us(&self, time_us: i64) -> Option<i64> {
        if self.cumulates {
            return Some((time_us.div_euclid(self.width) + 1) * self.width);
        }
        let end_us = time_us.div_euclid(self.slide) * self.slide + self.width;
        (time_us < end_us).then_some(end_us)
    }

    /// The start of the window with this end.
    #[inline]
    pub(crate) fn start_us(&self, end_us: i64) -> i64 {
        match self.cumulates {
            true => (end_us - 1).div_euclid(self.width) * self.width,
            false => end_us - self.width,
        }
    }

    /// The start of the first window that ends after this end.
    #[inline]
    pub(crate) fn next_start_us(&self, end_us: i64) -> i64 {
        match self.cumulates {
            true => end_us.div_euclid(self.width) * self.width,
            false => end_us - self.width + self.slide,
        }
    }
}

/// Fails if a window would consist of too many panes; `rows` says whether the lengths count rows.
pub(crate) fn check_panes(panes: i64, rows: bool) -> Result<(), LengthError> {
    match panes > PANES_PER_WINDOW_MAX {
        true => Err(LengthError::TooManyPanes { panes, rows }),
        false => Ok(()),
    }
}

fn greatest_common_divisor(mut a: i64, mut b: i64) -> i64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Computes the lengths for each row of `parameters`, which has the slot table's schema (`parameter_schema`). So a
/// query whose window cannot work is refused before it gets a slot. The outer error means that the plan does not fit.
pub fn check_lengths(
    window: &WindowSpec,
    parameters: &RecordBatch,
) -> Result<Vec<Result<Lengths, LengthError>>, PlanError> {
    Ok(LengthExpressions::new(window, parameters.schema_ref())?.evaluate(parameters))
}

/// The compiled lengths of a window.
#[derive(Clone, Debug)]
pub(crate) struct LengthExpressions {
    expressions: Expressions,
    names: (&'static str, &'static str),
    rows: bool,
    cumulates: bool,
    /// Whether the last expression is an offset.
    has_offset: bool,
}

impl LengthExpressions {
    pub(crate) fn new(window: &WindowSpec, parameter_schema: &Schema) -> Result<Self, PlanError> {
        let (width, slide) = window.expressions();
        let offset = window.offset();
        let expressions = [width, slide, offset].into_iter().flatten().cloned().collect();
        let expressions = Expressions::over_parameters(parameter_schema, expressions)?;
        let (names, rows) = (window.names(), !window.is_time());
        let all_names = [width.map(|_| names.0), slide.map(|_| names.1), offset.map(|_| OFFSET)];
        for (what, field) in all_names.into_iter().flatten().zip(expressions.fields()) {
            let found = field.data_type();
            let (fits, expected, example) = match rows {
                true => (found.is_integer(), "BIGINT", "count_window(100)"),
                false => (matches!(found, DataType::Interval(_)), "INTERVAL", "INTERVAL '30 seconds'"),
            };
            if !fits {
                return Err(PlanError::LengthType { what, found: found.to_string(), expected, example });
            }
        }
        let cumulates = matches!(window.unshifted(), WindowSpec::Cumulate { .. });
        Ok(Self { expressions, names, rows, cumulates, has_offset: offset.is_some() })
    }

    pub(crate) fn parameter_names(&self) -> Vec<String> {
        self.expressions.parameter_names()
    }

    /// Returns one result for each row of the slot table's columns.
    pub(crate) fn evaluate(&self, parameters: &RecordBatch) -> Vec<Result<Lengths, LengthError>> {
        let mut lengths = Vec::with_capacity(parameters.num_rows());
        for (rows, result) in self.expressions.evaluate_parameters(parameters) {
            match result.map_err(|error| error.strip_backtrace()).and_then(|columns| self.convert(&columns)) {
                Ok(columns) => lengths.extend((0..rows.len()).map(|row| self.lengths(&columns, row))),
                Err(error) => lengths.extend(rows.map(|_| Err(LengthError::Failed(error.clone())))),
            }
        }
        lengths
    }

    fn convert(&self, columns: &[ArrayRef]) -> Result<Vec<ArrayRef>, String> {
        let target = match self.rows {
            true => DataType::Int64,
            false => DataType::Interval(IntervalUnit::MonthDayNano),
        };
        columns.iter().map(|column| cast(column, &target).map_err(|error| error.to_string())).collect()
    }

    fn lengths(&self, columns: &[ArrayRef], row: usize) -> Result<Lengths, LengthError> {
        let width = match columns.first() {
            Some(column) => self.length(column, row, self.names.0)?,
            None => 1,
        };
        let (columns, offset) = match columns.split_last() {
            Some((offset, others)) if self.has_offset => (others, self.length(offset, row, OFFSET)?),
            _ => (columns, 0),
        };
        let slide = match columns.get(1) {
            Some(column) => self.length(column, row, self.names.1)?,
            None => width,
        };
        let lengths = Lengths::new(width, slide, self.rows)?;
        let lengths = if self.cumulates { lengths.cumulating()? } else { lengths };
        Ok(lengths.shifted(offset))
    }

    fn length(&self, column: &ArrayRef, row: usize, what: &'static str) -> Result<i64, LengthError> {
        if column.is_null(row) {
            return Err(LengthError::Null { what });
        }
        if self.rows {
            return Ok(column.as_primitive::<Int64Type>().value(row));
        }
        let interval = column.as_primitive::<IntervalMonthDayNanoType>().value(row);
        if interval.months != 0 {
            return Err(LengthError::Months { what });
        }
        if interval.nanoseconds % 1000 != 0 {
            return Err(LengthError::TooFine { what });
        }
        // Saturates far beyond TIME_MAX_US. Such a length is refused.
        Ok((i64::from(interval.days).saturating_mul(86_400_000_000)).saturating_add(interval.nanoseconds / 1000))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, IntervalMonthDayNanoArray};
    use arrow::datatypes::{Field, IntervalMonthDayNano};
    use datafusion_expr::Operator;
    use datafusion_physical_expr::expressions::{binary, lit};

    use super::*;
    use crate::expression::column;

    fn interval(months: i32, days: i32, nanoseconds: i64) -> IntervalMonthDayNano {
        IntervalMonthDayNano { months, days, nanoseconds }
    }

    #[test]
    fn each_row_of_parameters_has_its_own_verdict() {
        let values = IntervalMonthDayNanoArray::from(vec![
            Some(interval(0, 0, 1_000_000_000)),
            Some(interval(0, 1, 0)),
            Some(interval(0, 0, 0)),
            Some(interval(0, 0, -1000)),
            Some(interval(1, 0, 0)),
            Some(interval(0, 0, 1)),
            None,
            Some(interval(0, 0, 1000)),
        ]);
        let schema = Arc::new(Schema::new(vec![Field::new("w", values.data_type().clone(), true)]));
        let parameters = RecordBatch::try_new(schema.clone(), vec![Arc::new(values)]).unwrap();
        let slide = lit(datafusion_common::ScalarValue::new_interval_mdn(0, 0, 1_000_000_000));
        let window = WindowSpec::Hop { slide, width: column(&schema, 0) };
        let verdicts = check_lengths(&window, &parameters).unwrap();
        let second = 1_000_000;
        assert_eq!(verdicts[0], Lengths::new(second, second, false));
        assert_eq!(verdicts[1], Lengths::new(86_400 * second, second, false));
        assert_eq!(verdicts[2], Err(LengthError::NotPositive { what: "width", value: 0 }));
        assert_eq!(verdicts[3], Err(LengthError::NotPositive { what: "width", value: -1 }));
        assert_eq!(verdicts[4], Err(LengthError::Months { what: "width" }));
        assert_eq!(verdicts[5], Err(LengthError::TooFine { what: "width" }));
        assert_eq!(verdicts[6], Err(LengthError::Null { what: "width" }));
        // The width is less than the slide: gaps between windows are allowed.
        assert_eq!(verdicts[7], Lengths::new(1, second, false));
        for error in verdicts.iter().filter_map(|verdict| verdict.as_ref().err()) {
            assert!(error.to_string().contains("hint:"), "{error}");
        }
    }

    #[test]
    fn too_many_panes_are_refused() {
        assert!(Lengths::new(100_000, 1, false).is_ok());
        assert_eq!(
            Lengths::new(86_400_000_000, 7_000_003, false),
            Err(LengthError::TooManyPanes { panes: 86_400_000_000, rows: false })
        );
        assert_eq!(Lengths::new(i64::MAX, 1, false), Err(LengthError::TooLong { what: "width" }));
    }

    #[test]
    fn a_length_that_cannot_be_computed_harms_no_other() {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]));
        let parameters = RecordBatch::try_new(schema.clone(), vec![Arc::new(Int64Array::from(vec![2, 0, 5]))]).unwrap();
        let rows = binary(lit(100i64), Operator::Divide, column(&schema, 0), &schema).unwrap();
        let verdicts = check_lengths(&WindowSpec::Count { rows, slide_rows: None }, &parameters).unwrap();
        assert_eq!(verdicts[0], Lengths::new(50, 50, true));
        assert!(matches!(&verdicts[1], Err(LengthError::Failed(why)) if why.contains("Divide by zero")));
        assert_eq!(verdicts[2], Lengths::new(20, 20, true));
    }

    #[test]
    fn a_shifted_window_shows_all_its_parentheses() {
        let schema = Schema::new(vec![Field::new("n", DataType::Int64, true)]);
        let width = binary(lit(100i64), Operator::Divide, column(&schema, 0), &schema).unwrap();
        let width = binary(width, Operator::Multiply, lit(2i64), &schema).unwrap();
        let negative = datafusion_physical_expr::expressions::negative(width, &schema).unwrap();
        let window = Box::new(WindowSpec::Tumble { width: negative });
        let plain = window.to_string();
        assert!(plain.ends_with("))"), "{plain}");
        let shifted = WindowSpec::Shifted { window, offset: lit(5i64) }.to_string();
        assert_eq!(shifted, format!("{}, 5)", &plain[..plain.len() - 1]));
    }

    #[test]
    fn a_length_of_the_wrong_type_is_found_when_planning() {
        let error = LengthExpressions::new(&WindowSpec::Session { gap: lit(5i64) }, &Schema::empty()).unwrap_err();
        assert!(error.to_string().contains("INTERVAL"), "{error}");
    }
}
