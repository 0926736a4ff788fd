//! The result of an aggregate whose state is not of fixed size.

/// The result of an object over a window.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Finished {
    Null,
    Integer(i64),
    Float(f64),
    Text(Box<str>),
    /// There is no result, for this reason.
    Failed(&'static str),
}
