//! The next version of an application: which of its operators take over the state of the version before, and which state nobody
//! can use any more.
//!
//! An operator takes over the state of one that does the same: of the same kind, with the same form of state, and the same in the words
//! of `EXPLAIN`, so with the same window, keys and aggregates. Conditions, projections, output topics and all else that has no state may
//! change. A parameter in those words must have the same type and default, or a query might go on with a window of
//! another length.
//!
//! What must hold: state is never given to an operator that would take it for something else.
//!
//! Here: applications, and when an operator does the same as another; `query`: big queries.

mod query;

use rivulet_dataflow::{OperatorFactory, StateFrame, StateMap, StateSelection};

use crate::application::{Application, Parameter};

pub use query::{QuerySuccession, query_succession};

/// What becomes of the state of an application in its next version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Succession {
    /// Who takes over whose state.
    pub map: StateMap,
    /// Operators of the version before whose state is lost, in words: what they do, and why nobody takes over.
    pub lost: Vec<String>,
}

/// What an operator with state does.
struct Task {
    /// The operator in the words of `EXPLAIN`.
    kind: String,
    /// What it does, in SQL.
    step: Vec<String>,
    /// Its state when it has none yet, which has the form of all that will come.
    empty: StateFrame,
}

/// A stateful operator of a chain.
struct Stateful<'a> {
    /// Its place in the chain.
    place: usize,
    task: Task,
    /// The parameters in what it does.
    parameters: Vec<&'a Parameter>,
}

/// What becomes of the state of `before` in the version `after`. Operators keep their order.
pub fn succession(before: &Application, after: &Application) -> Succession {
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
    Succession { map: StateMap::new(before.dataflow.operators().len(), from), lost }
}

/// The operators with state, in their order.
fn stateful(application: &Application) -> Vec<Stateful<'_>> {
    let factories = application.dataflow.operators().iter().zip(&application.steps).enumerate();
    let stateful = factories.filter_map(|(place, (factory, step))| {
        let task = Task::of(&**factory, step.clone(), &StateSelection::Slots(Vec::new()))?;
        let is_in = |parameter: &&Parameter| step.iter().any(|part| names_parameter(part, &parameter.name));
        let parameters = application.parameters.iter().filter(is_in).collect();
        Some(Stateful { place, task, parameters })
    });
    stateful.collect()
}

impl Task {
    /// That of an operator which does what `step` says; none if it has no state. `nothing` selects no state of a new one.
    fn of(factory: &dyn OperatorFactory, step: Vec<String>, nothing: &StateSelection) -> Option<Self> {
        let empty = factory.create().export_state(nothing).ok().flatten()?;
        Some(Self { kind: factory.describe().operator, step, empty })
    }

    fn text(&self) -> String {
        match self.step.is_empty() {
            true => self.kind.clone(),
            false => format!("{} ({})", self.kind, self.step.join("; ")),
        }
    }

    /// That its state is lost, and why: what tells it from the one that is most like it, if there is one.
    fn lost(&self, difference: Option<String>) -> String {
        let why = difference.unwrap_or_else(|| "the new version has none like it there".into());
        format!("{}: {why}", self.text())
    }

    /// Why the other one cannot take over; `None` if it can.
    fn difference(&self, other: &Self) -> Option<String> {
        if self.kind != other.kind || self.empty.operator != other.empty.operator {
            return Some(format!("in its place is {}", other.text()));
        }
        if self.step != other.step {
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

impl Stateful<'_> {
    /// Why the other one cannot take over; `None` if it can.
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
    use crate::{parse_application, plan_application};

    fn application(parameters: &str, columns: &str, rest: &str) -> Application {
        let sql = format!(
            "CREATE APPLICATION a ({parameters}) INPUT t ({columns}) FROM 'mqtt:in/{{id}}' FORMAT JSON \
             OUTPUT 'mqtt:out/{{id}}' FORMAT JSON AS {rest}"
        );
        plan_application(&parse_application(&sql).unwrap()).unwrap_or_else(|error| panic!("{error}: {sql}"))
    }

    const PARAMETERS: &str = "id TEXT, most DOUBLE DEFAULT 1.0, width INTERVAL DEFAULT INTERVAL '10 seconds'";
    const COLUMNS: &str = "ts TIMESTAMP EVENT TIME, v DOUBLE, room TEXT";
    const WINDOW: &str = "SELECT room, avg(v) AS mean FROM t WHERE v < $most GROUP BY tumble(ts, $width), room";

    fn of(rest: &str) -> Application {
        application(PARAMETERS, COLUMNS, rest)
    }

    /// Which operators' state is kept, and what is lost.
    fn becomes(before: &Application, after: &Application) -> (usize, Vec<String>) {
        let Succession { map, lost } = succession(before, after);
        let frames: Vec<_> = before.dataflow.chain().export_state(&StateSelection::Slots(Vec::new())).unwrap();
        let taken = map.apply(&frames).unwrap();
        // What is taken over is taken in.
        after.dataflow.chain().import_state(&taken).unwrap();
        (taken.iter().flatten().count(), lost)
    }

    #[test]
    fn what_has_no_state_may_change() {
        let before = of(WINDOW);
        for after in [
            "SELECT room, avg(v) AS mean FROM t WHERE v < 2 * $most AND room <> 'hall' GROUP BY tumble(ts, $width), room",
            "SELECT room, 2 * avg(v) AS twice FROM t GROUP BY tumble(ts, $width), room HAVING avg(v) > 1",
            "SELECT room, avg(v) AS mean FROM t WHERE v < $most GROUP BY tumble(ts, $width), room EMIT ON CHANGE",
        ] {
            assert_eq!(becomes(&before, &of(after)), (1, Vec::new()), "{after}");
        }
        let more = application(&format!("{PARAMETERS}, least DOUBLE DEFAULT 0.0"), COLUMNS, WINDOW);
        assert_eq!(becomes(&before, &more), (1, Vec::new()));
    }

    #[test]
    fn what_another_version_would_misread_is_lost_and_it_is_said_why() {
        let before = of(WINDOW);
        let window = |after: &Application, why: &str| {
            let (kept, lost) = becomes(&before, after);
            assert_eq!((kept, lost.len()), (0, 1), "{why}: {lost:?}");
            assert!(lost[0].contains("window") && lost[0].contains(why), "{why}: {lost:?}");
        };
        let changed = |from: &str, to: &str| of(&WINDOW.replace(from, to));
        window(&changed("$width", "INTERVAL '1 minute'"), "has become");
        window(&changed("avg(v)", "max(v)"), "max");
        window(&changed("avg(v) AS mean", "avg(v) AS mean, count(*) AS n"), "was added");
        window(&of("SELECT avg(v) AS mean FROM t GROUP BY tumble(ts, $width)"), "is gone");
        window(&of("SELECT v FROM t WHERE v < $most"), "none like it");
        let highest = |columns: &str| application(PARAMETERS, columns, &WINDOW.replace("avg", "max"));
        let (kept, lost) = becomes(&highest(COLUMNS), &highest(&COLUMNS.replace("DOUBLE", "BIGINT")));
        assert!(kept == 0 && lost.len() == 1 && lost[0].contains("types"), "{lost:?}");
        window(&application(&PARAMETERS.replace("10", "20"), COLUMNS, WINDOW), "'width'");
    }

    #[test]
    fn each_operator_finds_its_own_in_order() {
        let both = of("SELECT v - lag(v) AS step FROM t EMIT ON CHANGE");
        assert_eq!(becomes(&both, &both), (2, Vec::new()));
        let (kept, lost) = becomes(&both, &of("SELECT v - lag(v) AS step FROM t"));
        assert_eq!((kept, lost.len()), (1, 1));
        assert!(lost[0].contains("change"), "{lost:?}");
        assert_eq!(becomes(&of("SELECT v FROM t"), &both), (0, Vec::new()), "what had no state loses none");
    }

    #[test]
    fn a_parameter_is_found_as_a_whole_word() {
        assert!(names_parameter("tumble(ts, $width)", "width") && names_parameter("$Width", "width"));
        assert!(!names_parameter("tumble(ts, $width2)", "width") && !names_parameter("width", "width"));
    }
}
