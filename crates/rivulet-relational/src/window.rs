//! The node that gives rows their windows: the columns of its input, then the start and the end of the window. A row
//! that is in several windows comes once for each of them.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{Field, FieldRef, IntervalMonthDayNano};
use datafusion_common::{DFSchema, DFSchemaRef, DataFusionError, Result, ScalarValue, TableReference};
use datafusion_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};

use crate::error::RelationalError;
use crate::nodes::compare_by_parts;
use crate::times::TIMESTAMP;

/// The kind of windows. Lengths of time are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WindowKind {
    /// Windows one after the other.
    Tumble {
        /// The length of a window.
        width_us: i64,
        /// By how much windows begin after multiples of the width.
        offset_us: i64,
    },
    /// Windows that begin every `slide_us`.
    Hop {
        /// The distance between starts of windows.
        slide_us: i64,
        /// The length of a window.
        width_us: i64,
        /// By how much windows begin after multiples of the slide.
        offset_us: i64,
    },
    /// Windows that grow by `step_us` up to `width_us`, and then begin anew.
    Cumulate {
        /// By how much a window grows.
        step_us: i64,
        /// The length of the longest window.
        width_us: i64,
        /// By how much windows begin after multiples of the width.
        offset_us: i64,
    },
    /// Windows that last until a gap is long enough to end them.
    Session {
        /// The gap that ends a window.
        gap_us: i64,
    },
    /// Windows of a number of rows of a key, in the order in which the rows come.
    Count {
        /// The number of rows of a window.
        rows: u32,
        /// How many rows later the next window begins.
        slide_rows: u32,
    },
}

/// Gives rows their windows.
#[derive(Clone, Debug)]
pub struct WindowTable {
    /// The rows.
    pub input: Arc<LogicalPlan>,
    /// The kind of windows.
    pub kind: WindowKind,
    /// The time of a row, a column of the input; `None` if windows count rows.
    pub time: Option<Expr>,
    /// The columns that keep sessions apart; `None` if the keys of the aggregate above do.
    pub partition: Option<Vec<Expr>>,
    /// The names of the columns for start and end.
    pub bounds: [String; 2],
    schema: DFSchemaRef,
}

impl WindowTable {
    /// Makes the node over these rows. Fails if they have such columns already.
    pub fn new(
        input: Arc<LogicalPlan>,
        kind: WindowKind,
        time: Option<Expr>,
        partition: Option<Vec<Expr>>,
        bounds: [String; 2],
    ) -> Result<Self> {
        let bound = |name: &String| (None, Arc::new(Field::new(name, TIMESTAMP, false)));
        let fields: Vec<(Option<TableReference>, FieldRef)> = input
            .schema()
            .iter()
            .map(|(qualifier, field)| (qualifier.cloned(), field.clone()))
            .chain(bounds.iter().map(bound))
            .collect();
        let metadata = input.schema().metadata().clone();
        let schema = DFSchema::new_with_metadata(fields, metadata).map_err(|_| {
            RelationalError::new("the rows have a column window_start or window_end already, so it would be ambiguous")
                .hint(
                    "put the window into GROUP BY: GROUP BY tumble(ts, INTERVAL '1 minute'); or give the columns other \
                     names: TUMBLE(TABLE (SELECT window_end AS ts, ... FROM t), DESCRIPTOR(ts), ...)",
                )
                .boxed()
        })?;
        Ok(Self { input, kind, time, partition, bounds, schema: Arc::new(schema) })
    }

    /// Makes a plan of the node.
    pub fn into_plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(self) })
    }

    fn parts(&self) -> (&LogicalPlan, WindowKind, &Option<Expr>, &Option<Vec<Expr>>, &[String; 2]) {
        (&self.input, self.kind, &self.time, &self.partition, &self.bounds)
    }
}

compare_by_parts!(WindowTable);

impl UserDefinedLogicalNodeCore for WindowTable {
    fn name(&self) -> &str {
        "Windows"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        self.time.iter().chain(self.partition.iter().flatten()).cloned().collect()
    }

    /// A condition on the bounds is a condition on windows, not on rows.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        let mut columns: HashSet<String> = self.bounds.iter().cloned().collect();
        // The rows decide how long a session is, so a condition may only go below it if it keeps or removes all rows of
        // a session.
        if matches!(self.kind, WindowKind::Session { .. }) {
            let keys: Vec<&Expr> = self.partition.iter().flatten().collect();
            let is_key = |name: &str| keys.iter().any(|key| matches!(key, Expr::Column(column) if column.name == name));
            columns.extend(self.schema.fields().iter().map(|field| field.name().clone()).filter(|name| !is_key(name)));
        }
        columns
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Windows: {:?}", self.kind)?;
        self.time.as_ref().map_or(Ok(()), |time| write!(f, " of {time}"))
    }

    fn with_exprs_and_inputs(&self, expressions: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let mut expressions = expressions.into_iter();
        let defect = || DataFusionError::Internal("windows have a time and one input".into());
        let time = self.time.as_ref().map(|_| expressions.next().ok_or_else(defect)).transpose()?;
        let partition = self.partition.as_ref().map(|_| expressions.collect());
        let input = Arc::new(inputs.into_iter().next().ok_or_else(defect)?);
        Self::new(input, self.kind, time, partition, self.bounds.clone())
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let columns = self.input.schema().fields().len();
        Some(vec![output_columns.iter().copied().filter(|&column| column < columns).collect()])
    }
}

impl WindowKind {
    /// Makes the kind of windows from these lengths, in the order in which they are written.
    pub(crate) fn new(window: &str, lengths: &[i64]) -> Result<Self> {
        let fail = |message: String, hint: &str| Err(RelationalError::new(message).hint(hint).boxed());
        let (needed, example) = match window {
            "tumble" => {
                (1, "write for example tumble(ts, INTERVAL '1 minute'), with an offset as third argument if needed")
            }
            "hop" => (2, "write for example hop(ts, INTERVAL '1 second', INTERVAL '1 minute'): slide, then width"),
            "cumulate" => {
                (2, "write for example cumulate(ts, INTERVAL '1 minute', INTERVAL '1 hour'): step, then width")
            }
            _ => (1, "write for example session(ts, INTERVAL '10 seconds')"),
        };
        let may_have_offset = window != "session";
        if lengths.len() < needed || lengths.len() > needed + usize::from(may_have_offset) {
            return fail(
                format!("the number of INTERVALs in {window} is {}, and must be {needed}", lengths.len()),
                example,
            );
        }
        if lengths[..needed].iter().any(|length| *length <= 0) {
            return fail("the length of a window must be longer than zero".into(), example);
        }
        let offset_us = lengths.get(needed).copied().unwrap_or(0);
        if window == "hop" && lengths[0] > lengths[1] {
            let message = "the slide is longer than the width, so rows between two windows would be lost";
            return fail(message.into(), "did you swap them? write hop(ts, slide, width)");
        }
        Ok(match window {
            "tumble" => Self::Tumble { width_us: lengths[0], offset_us: offset_us.rem_euclid(lengths[0]) },
            "hop" => {
                Self::Hop { slide_us: lengths[0], width_us: lengths[1], offset_us: offset_us.rem_euclid(lengths[0]) }
            }
            "cumulate" if lengths[1] % lengths[0] != 0 => {
                return fail("the width of cumulate is no multiple of its step".into(), example);
            }
            "cumulate" => Self::Cumulate {
                step_us: lengths[0],
                width_us: lengths[1],
                offset_us: offset_us.rem_euclid(lengths[1]),
            },
            _ => Self::Session { gap_us: lengths[0] },
        })
    }
}

impl WindowKind {
    /// Makes windows of a number of rows, from the arguments of `count_window`.
    pub(crate) fn count(arguments: &[Expr]) -> Result<Self> {
        const EXAMPLE: &str = "write for example count_window(100), or count_window(100, 10): rows, then slide";
        let fail = |message: String, hint: &str| Err(RelationalError::new(message).hint(hint).boxed());
        let number = |argument: &Expr| match argument {
            Expr::Literal(ScalarValue::Int64(Some(number)), _) => u32::try_from(*number).ok().filter(|rows| *rows > 0),
            _ => None,
        };
        let Some(numbers) = arguments.iter().map(number).collect::<Option<Vec<u32>>>() else {
            return fail("count_window takes constant numbers of rows, 1 or more".into(), EXAMPLE);
        };
        let (rows, slide_rows) = match numbers[..] {
            [rows] => (rows, rows),
            [rows, slide_rows] => (rows, slide_rows),
            _ => return fail(format!("count_window takes 1 or 2 numbers, not {}", numbers.len()), EXAMPLE),
        };
        match slide_rows <= rows {
            true => Ok(Self::Count { rows, slide_rows }),
            false => fail(
                format!(
                    "the slide of {slide_rows} rows is longer than the window of {rows} rows, so rows would be lost"
                ),
                "did you swap them? write count_window(rows, slide)",
            ),
        }
    }
}

/// The length of a constant interval, in microseconds; `None` if it is not constant or has months.
pub(crate) fn interval_us(expression: &Expr) -> Option<i64> {
    const DAY_US: i64 = 86_400_000_000;
    let expression = match expression {
        Expr::Alias(alias) => &alias.expr,
        other => other,
    };
    match expression {
        Expr::Literal(
            ScalarValue::IntervalMonthDayNano(Some(IntervalMonthDayNano { months: 0, days, nanoseconds })),
            _,
        ) => i64::from(*days).checked_mul(DAY_US)?.checked_add(nanoseconds.div_euclid(1000)),
        Expr::Literal(ScalarValue::IntervalDayTime(Some(value)), _) => {
            i64::from(value.days).checked_mul(DAY_US)?.checked_add(i64::from(value.milliseconds) * 1000)
        }
        Expr::Negative(inner) => interval_us(inner)?.checked_neg(),
        _ => None,
    }
}
