//! What is known of the state of an operator without exporting it: enough to decide whether another version of the
//! operator can take it over.
//!
//! What must hold: state is never given to an operator that would misread it.

use crate::{OperatorFactory, StateFrame, StateSelection};

/// What an operator with state does, and the format of its state.
pub struct StateSignature {
    /// The operator, in the words of `EXPLAIN`.
    pub kind: String,
    /// What it does for all queries, as the code says it.
    pub step: Vec<String>,
    /// The same in a normal form, which does not depend on how the code says it.
    pub meaning: Vec<String>,
    /// Its empty state, which has the format of all its states.
    pub empty: StateFrame,
}

impl StateSignature {
    /// The signature of an operator that does what `step` and `meaning` say; `None` if it has no state. `nothing`
    /// selects no state of a new instance.
    pub fn of(
        factory: &dyn OperatorFactory,
        step: Vec<String>,
        meaning: Vec<String>,
        nothing: &StateSelection,
    ) -> Option<Self> {
        let empty = factory.create().export_state(nothing).ok().flatten()?;
        Some(Self { kind: factory.describe().operator, step, meaning, empty })
    }

    /// The operator in words.
    pub fn text(&self) -> String {
        match self.step.is_empty() {
            true => self.kind.clone(),
            false => format!("{} ({})", self.kind, self.step.join("; ")),
        }
    }

    /// Says that the state is lost, and why: how the operator differs from the most similar one, if there is one.
    pub fn lost(&self, difference: Option<String>) -> String {
        let why = difference.unwrap_or_else(|| "the new version has none like it there".into());
        format!("{}: {why}", self.text())
    }

    /// Why the other operator cannot take over this state; `None` if it can.
    pub fn difference(&self, other: &Self) -> Option<String> {
        if self.kind != other.kind || self.empty.operator != other.empty.operator {
            return Some(format!("in its place is {}", other.text()));
        }
        if self.step != other.step && self.meaning != other.meaning {
            let changed = |one: &[String], other: &[String]| {
                one.iter().filter(|part| !other.contains(part)).cloned().collect::<Vec<_>>().join("; ")
            };
            return Some(match (changed(&self.step, &other.step), changed(&other.step, &self.step)) {
                (old, new) if old.is_empty() && new.is_empty() => "its parts are in another order now".into(),
                (old, new) if old.is_empty() => format!("'{new}' was added"),
                (old, new) if new.is_empty() => format!("'{old}' is gone"),
                (old, new) => format!("'{old}' has become '{new}'"),
            });
        }
        let form = |frame: &StateFrame| (frame.version, frame.rows.schema());
        (form(&self.empty) != form(&other.empty)).then(|| "the types of its columns have changed".into())
    }
}
