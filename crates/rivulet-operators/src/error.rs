//! Errors of a plan: what can be wrong with an operator before it runs.

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
    Lengths(#[from] crate::LengthError),
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
