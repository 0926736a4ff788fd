//! State migration between two versions of an application: which operators of the new version take over state, and
//! which state of the old version is lost.
//!
//! An operator takes over the state of an operator that does the same: they are of the same kind, have the same form of
//! state, and agree in the words of `EXPLAIN` or in their meaning, so they have the same window, keys and aggregates.
//! Conditions, projections, output topics and everything else without state may change. A parameter in those words must
//! have the same type and default, or a query might go on with a window of another length.
//!
//! What must hold: an operator never gets state that it would take for something else.
//!
//! The same words decide what becomes of the state of one query whose values change ([`alteration`]).

use rivulet_dataflow::{StateMap, StateSelection, StateSignature};

use super::{Application, Parameter};

/// What becomes of the state of an application in its next version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateMigration {
    /// For each operator of the new version, the operator whose state it takes over.
    pub map: StateMap,
    /// Operators of the old version whose state is lost, in words: what they do, and why no operator takes the state
    /// over.
    pub lost: Vec<String>,
}

/// A stateful operator of a chain.
struct Stateful<'a> {
    /// Its index in the chain.
    place: usize,
    task: StateSignature,
    /// The parameters in the words of what it does.
    parameters: Vec<&'a Parameter>,
}

/// What becomes of the state of a query whose values change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alteration {
    /// The operators that go on with their state; `None` if all do.
    pub map: Option<StateMap>,
    /// The indices of the changed parameters on which no state depends.
    pub kept: Vec<usize>,
    /// The indices of the changed parameters on which state depends. This state begins anew.
    pub reset: Vec<usize>,
    /// The operators that begin anew, in words.
    pub lost: Vec<String>,
}

/// Decides what becomes of the state of a query when the parameters at the indices `changed` change.
///
/// State depends on a parameter in the words of its operator, or of an earlier operator that computes columns. It also
/// depends on a parameter in the address of an input, because then the state is of other events. It does not depend on
/// a parameter that is only compared
/// ([`OperatorFactory::only_compares`](rivulet_dataflow::OperatorFactory::only_compares)): a condition in WHERE may
/// change before a window. Nor does it depend on one by which an operator has decided what it remembers
/// ([`OperatorFactory::only_decides_by`](rivulet_dataflow::OperatorFactory::only_decides_by)).
pub fn alteration(application: &Application, changed: &[usize]) -> Alteration {
    let factories = application.dataflow.operators();
    let is_of_input = |&parameter: &usize| {
        application.inputs.iter().any(|input| input.address_parameters().any(|other| other == parameter))
    };
    let of_inputs: Vec<usize> = changed.iter().copied().filter(is_of_input).collect();
    let (mut before, mut reset) = (of_inputs.clone(), of_inputs);
    let (mut from, mut lost) = (vec![None; factories.len()], Vec::new());
    let mut signatures = stateful(application).into_iter().peekable();
    for (place, factory) in factories.iter().enumerate() {
        let signature = signatures.next_if(|one| one.place == place);
        if factory.only_compares() && before.iter().all(|one| !is_of_input(one)) {
            from[place] = Some(place);
            continue;
        }
        let stands_in = |parameter: &usize| {
            let name = &application.parameters[*parameter].name;
            application.code.steps(place).iter().any(|part| names_parameter(part, name))
        };
        let own = changed.iter().copied().filter(stands_in);
        let new = own.filter(|one| !before.contains(one)).collect::<Vec<usize>>().into_iter();
        let (decided, computed): (Vec<_>, Vec<_>) =
            new.partition(|&one| factory.only_decides_by(&application.parameters[one].name));
        before.extend(computed);
        match signature {
            Some(signature) if !before.is_empty() => {
                lost.push(signature.task.text());
                reset.extend(before.iter().copied().filter(|one| !reset.contains(one)).collect::<Vec<_>>());
            }
            _ => from[place] = Some(place),
        }
        // The operators behind this one read the columns that it computes.
        before.extend(decided);
    }
    reset.sort_unstable();
    let kept = changed.iter().copied().filter(|one| !reset.contains(one)).collect();
    let map = (!lost.is_empty()).then(|| StateMap::new(factories.len(), from));
    Alteration { map, kept, reset, lost }
}

/// Decides what becomes of the state of `before` in the version `after`. Operators keep their order.
pub fn migration(before: &Application, after: &Application) -> StateMigration {
    let (old, new) = (stateful(before), stateful(after));
    let mut from = vec![None; after.dataflow.operators().len()];
    let mut lost = Vec::new();
    let mut next = 0;
    for one in &old {
        match new[next..].iter().position(|other| one.difference(other).is_none()) {
            Some(found) => {
                from[new[next + found].place] = Some(one.place);
                next += found + 1;
            }
            None => {
                let like = new[next..].iter().find(|other| other.task.kind == one.task.kind);
                lost.push(one.task.lost(like.and_then(|other| one.difference(other))));
            }
        }
    }
    StateMigration { map: StateMap::new(before.dataflow.operators().len(), from), lost }
}

/// The operators with state, in their order.
fn stateful(application: &Application) -> Vec<Stateful<'_>> {
    let factories = application.dataflow.operators().iter().enumerate();
    let stateful = factories.filter_map(|(place, factory)| {
        let step = application.code.steps(place);
        let meaning = application.code.meaning(place).to_vec();
        let task = StateSignature::of(&**factory, step.to_vec(), meaning, &StateSelection::Slots(Vec::new()))?;
        let is_in = |parameter: &&Parameter| step.iter().any(|part| names_parameter(part, &parameter.name));
        let parameters = application.parameters.iter().filter(is_in).collect();
        Some(Stateful { place, task, parameters })
    });
    stateful.collect()
}

impl Stateful<'_> {
    /// Returns why the other operator cannot take the state over; `None` if it can.
    fn difference(&self, other: &Self) -> Option<String> {
        let is_changed = |(one, other): (&&Parameter, &&Parameter)| {
            let is_same = one.data_type == other.data_type && one.default == other.default;
            (!is_same).then(|| format!("the type or default of its parameter '{}' has changed", one.name))
        };
        let of_parameters = || self.parameters.iter().zip(&other.parameters).find_map(is_changed);
        self.task.difference(&other.task).or_else(of_parameters)
    }
}

/// Whether `$name` stands in a text.
fn names_parameter(text: &str, name: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    text.match_indices('$').any(|(place, _)| {
        let rest = &text[place + 1..];
        let length = rest.find(|character| !is_part(character)).unwrap_or(rest.len());
        rest[..length].eq_ignore_ascii_case(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_found_as_a_whole_word() {
        assert!(names_parameter("tumble(ts, $width)", "width") && names_parameter("$Width", "width"));
        assert!(!names_parameter("tumble(ts, $width2)", "width") && !names_parameter("width", "width"));
    }
}
