//! Parts that several statements have: names, columns, wishes, and parts of the syntax tree.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion_sql::sqlparser::ast;
use rivulet_dataflow::marked_as;

use crate::Position;

/// A name and its position. Unquoted names are in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name.
    pub text: String,
    /// The position of the name.
    pub position: Position,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The value of a secret. It is not shown, in logs neither.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(pub String);

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// What is to become of state when a new version takes over. For an application it is the state of its queries, for a
/// query its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StateWish {
    /// `state => 'keep'`: all of it is kept, or the new version is refused.
    #[default]
    Keep,
    /// `state => 'discard'`: what the new version can use is kept, the rest is forgotten.
    Discard,
}

#[derive(Clone, Debug)]
pub(crate) struct ColumnDeclaration {
    pub(crate) name: Name,
    pub(crate) data_type: DataType,
    pub(crate) not_null: bool,
    pub(crate) event_time: bool,
}

impl ColumnDeclaration {
    /// The column. One whose values have parts is text in JSON, with marks.
    pub(crate) fn field(&self) -> Field {
        let of_type = |data_type| Field::new(&self.name.text, data_type, !self.not_null);
        match self.data_type.is_nested() {
            true => marked_as(of_type(DataType::Utf8), &self.data_type),
            false => of_type(self.data_type.clone()),
        }
    }
}

/// `column AS expression [EVENT TIME]`, in the declaration of an input or source.
#[derive(Clone)]
pub(crate) struct ComputedColumn {
    pub(crate) name: Name,
    pub(crate) expression: ast::Expr,
    pub(crate) event_time: bool,
}

/// A part of the syntax tree whose type is hidden from other crates. The parser's syntax tree has hundreds of types.
/// Every crate that can drop or copy one would compile their code again, which takes minutes in each build.
pub(crate) struct Sealed<T>(Arc<dyn Any + Send + Sync>, PhantomData<fn() -> T>);

impl<T: Any + Send + Sync> Sealed<T> {
    pub(crate) fn new(part: T) -> Self {
        Self(Arc::new(part), PhantomData)
    }

    pub(crate) fn open(&self) -> &T {
        self.0.downcast_ref().expect("what was sealed")
    }
}

impl<T> Clone for Sealed<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<T> fmt::Debug for Sealed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealed")
    }
}

/// The computed columns of a source.
pub(crate) type SealedComputed = Sealed<Vec<ComputedColumn>>;

/// `MATCH_RECOGNIZE (...)`
pub(crate) struct MatchClause {
    pub(crate) position: Position,
    pub(crate) partition_by: Vec<ast::Expr>,
    pub(crate) order_by: Vec<ast::OrderByExpr>,
    pub(crate) measures: Vec<(ast::Expr, Name)>,
    pub(crate) skip: SkipClause,
    pub(crate) pattern: PatternTree,
    pub(crate) within: Option<ast::Expr>,
    pub(crate) define: Vec<(Name, ast::Expr)>,
}

/// `AFTER MATCH SKIP ...`
pub(crate) enum SkipClause {
    PastLastRow,
    ToNextRow,
    ToFirst(Name),
    ToLast(Name),
}

/// The pattern in `PATTERN (...)`.
pub(crate) enum PatternTree {
    Variable(Name),
    Sequence(Vec<PatternTree>),
    Alternation(Vec<PatternTree>),
    Repeat { pattern: Box<PatternTree>, min: u32, max: Option<u32>, greedy: bool, position: Position },
}
