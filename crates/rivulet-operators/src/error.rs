//! Errors of a plan: what can be wrong with an operator before it runs, and with the windows of a query.

/// An operator that cannot be built from what the planner gave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// An expression does not fit the columns over which it is to be evaluated.
    #[error("expression {expression}: {problem}\nhint: compile it against Expressions::evaluation_schema")]
    Expression {
        /// The expression as text.
        expression: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A column that does not exist, or has another type than needed.
    #[error("column {index} of {what}: {problem}\nhint: columns are counted from 0")]
    Column {
        /// The index of the column.
        index: usize,
        /// What the column belongs to.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// An aggregate function called with the wrong number of arguments.
    #[error("{function} takes {expected} argument(s), not {found}\nhint: write for example {example}")]
    ArgumentCount {
        /// The function.
        function: &'static str,
        /// How many arguments it takes.
        expected: usize,
        /// How many were given.
        found: usize,
        /// A correct call.
        example: &'static str,
    },
    /// An aggregate function called with a type it does not take.
    #[error("{function} does not take an argument of type {found}\nhint: {hint}")]
    ArgumentType {
        /// The function.
        function: &'static str,
        /// The type given.
        found: String,
        /// What to do.
        hint: &'static str,
    },
    /// A row pattern that cannot be matched.
    #[error("the pattern cannot be matched: {problem}")]
    Pattern {
        /// What is wrong with it, with a hint.
        problem: String,
    },
    /// An operator of a big query that cannot do what the plan says.
    #[error("{operator}: {problem}\nhint: {hint}")]
    Operator {
        /// The operator.
        operator: &'static str,
        /// What is wrong.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// Lengths that no window can have.
    #[error(transparent)]
    Lengths(#[from] LengthError),
    /// A length of a window with the wrong type.
    #[error("the {what} of the window has type {found}, not {expected}\nhint: write for example {example}")]
    LengthType {
        /// Which length.
        what: &'static str,
        /// The type found.
        found: String,
        /// The type needed.
        expected: &'static str,
        /// A correct length.
        example: &'static str,
    },
}

impl PlanError {
    /// [`PlanError::Operator`].
    pub(crate) fn operator(operator: &'static str, problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Operator { operator, problem: problem.into(), hint: hint.into() }
    }
}

/// Why a query cannot have a window of these lengths.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LengthError {
    /// A length of zero or a negative length.
    #[error(
        "the {what} of the window is {value}, it must be greater than zero\nhint: give a positive length, for example INTERVAL '30 seconds'"
    )]
    NotPositive {
        /// Which length.
        what: &'static str,
        /// Its value in microseconds or rows.
        value: i64,
    },
    /// A null length.
    #[error("the {what} of the window is null\nhint: give the parameter a value or a default")]
    Null {
        /// Which length.
        what: &'static str,
    },
    /// A length in months. Months vary in length.
    #[error(
        "the {what} of the window is given in months or years, which differ in length\nhint: give days, for example INTERVAL '30 days'"
    )]
    Months {
        /// Which length.
        what: &'static str,
    },
    /// A length finer than the clock.
    #[error(
        "the {what} of the window is not a whole number of microseconds\nhint: times have a resolution of one microsecond"
    )]
    TooFine {
        /// Which length.
        what: &'static str,
    },
    /// A length that is too long for computations.
    #[error("the {what} of the window is longer than 9000 years\nhint: give a shorter length")]
    TooLong {
        /// Which length.
        what: &'static str,
    },
    /// Width and slide have too small a common divisor.
    #[error(
        "a window would consist of {panes} panes, at most 100000 are allowed\nhint: make the width a multiple of the slide, or slide by a longer step"
    )]
    TooManyPanes {
        /// How many panes a window would have.
        panes: i64,
        /// Whether the lengths are rows.
        rows: bool,
    },
    /// The width of cumulating windows is not a multiple of their step.
    #[error(
        "the width of the window is no multiple of its step\nhint: write for example cumulate(ts, INTERVAL '1 minute', INTERVAL '1 hour'): step, then width"
    )]
    NoMultiple,
    /// Panes are so much shorter than the lateness that they cannot be numbered.
    #[error(
        "the window consists of panes of {pane_us} us, far too short for a lateness of {lateness_us} us\nhint: slide by a longer step, or allow less lateness"
    )]
    PanesTooShort {
        /// The length of a pane in microseconds.
        pane_us: i64,
        /// The lateness of the application in microseconds.
        lateness_us: i64,
    },
    /// The expression failed.
    #[error(
        "the length of the window cannot be computed: {0}\nhint: check the parameters that the length is computed from"
    )]
    Failed(String),
}
