//! Which stages of a query may run in a burst worker, how they get there, and whether that pays.
//!
//! What must hold: nothing here looks at a worker. The same plan and the same figures have the same answer, which
//! EXPLAIN shows and REDIRECT keeps to.

use std::collections::BTreeSet;
use std::fmt;

use rivulet_dataflow::Work;
use rivulet_dataflow::stage::Stage;
use rivulet_runtime::TaskReport;
use rivulet_sql::{Operators, QueryPlan, name_in_sql};

use crate::counted::counted;
use crate::run;
use crate::service::{ErrorKind, ServiceError};

/// What a row of about 100 bytes costs this process on its way to a worker, in nanoseconds: it is encoded and sent.
const SENT_NS: f64 = 44.0;
/// The same for a row that comes back.
const BACK_NS: f64 = 42.0;
/// With fewer rows the figures of a stage say nothing.
const MEASURED_ROWS_MIN: u64 = 10_000;

/// What a row costs this process, in nanoseconds.
struct Price {
    /// If it is processed here.
    here_ns: f64,
    /// If it goes to a worker, with what comes of it.
    wire_ns: f64,
    /// The rows that come of one.
    back: f64,
}

impl Price {
    /// The price of a row of a stage with these tasks, as measured so far; `None` before that says something.
    fn of(tasks: &[&TaskReport], goes_with_source: bool) -> Option<Self> {
        let sum = |one: fn(&TaskReport) -> u64| tasks.iter().map(|task| one(task)).sum::<u64>();
        let rows = sum(|task| task.rows_in);
        let of_row = |all: u64| all as f64 / rows as f64;
        let back = of_row(sum(|task| task.rows_out));
        let sent_ns = if goes_with_source { 0.0 } else { SENT_NS };
        let (here_ns, wire_ns) = (of_row(sum(|task| task.busy_us)) * 1e3, sent_ns + BACK_NS * back);
        (rows >= MEASURED_ROWS_MIN).then_some(Self { here_ns, wire_ns, back })
    }

    fn pays(&self) -> bool {
        self.wire_ns < self.here_ns
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { here_ns, wire_ns, back } = self;
        write!(f, "{here_ns:.0} ns a row here, {wire_ns:.0} ns on the wire for {back:.2} rows back")
    }
}

/// How the stage at an index gets to a worker, in words; the error says why it stays.
fn how(plan: &QueryPlan, (index, stage): (usize, &Stage)) -> Result<String, String> {
    let nodes = plan.dataflow.nodes();
    if stage.nodes.iter().all(|&node| matches!(nodes[node].work, Work::Sink(_))) {
        return Err(format!("stage {} is a sink, and sinks stay on the server", index + 1));
    }
    let source = stage.source(&plan.dataflow).map(|source| &*plan.sources[source].declaration);
    if let Some((name, why)) = source.and_then(|source| Some((&source.name, run::bound(source)?))) {
        return Err(format!("the source '{name}' {why}"));
    }
    if let Some((node, why)) = stage.nodes.iter().find_map(|&node| Some((node, plan.stays(node)?))) {
        return Err(format!("operator {} {why}", node + 1));
    }
    let states: BTreeSet<bool> =
        stage.nodes.iter().filter_map(|&node| Some(plan.dataflow.address(node)?.is_transient)).collect();
    let state = match (states.contains(&false), states.contains(&true)) {
        (true, _) => Some("with its state"),
        (false, true) => Some("by merging"),
        (false, false) => None,
    };
    let words: Vec<&str> = source.map(|_| "with its source").into_iter().chain(state).collect();
    Ok(if words.is_empty() { "as it is".into() } else { words.join(", ") })
}

/// The tasks of the stage at an index, and their price.
fn priced<'t>(
    plan: &QueryPlan,
    (index, stage): (usize, &Stage),
    tasks: &'t [TaskReport],
) -> (Vec<&'t TaskReport>, Option<Price>) {
    let of_stage: Vec<&TaskReport> = tasks.iter().filter(|task| task.stage == index).collect();
    let price = Price::of(&of_stage, stage.source(&plan.dataflow).is_some());
    (of_stage, price)
}

/// Whether the stage at an index may go, with its tasks as measured so far; the error says why it stays.
fn check(plan: &QueryPlan, one: (usize, &Stage), tasks: &[TaskReport]) -> Result<(), String> {
    how(plan, one)?;
    match priced(plan, one, tasks).1 {
        Some(price) if !price.pays() => Err(format!("stage {} does not pay elsewhere: {price}", one.0 + 1)),
        _ => Ok(()),
    }
}

/// The stages that may go to workers if `operators` of a query are redirected, by their indices, in order. `tasks` has
/// what was measured.
///
/// # Errors
/// There is no such operator, or it stays; of all operators, that none goes.
pub(crate) fn redirected(
    (name, plan): (&str, &QueryPlan),
    stages: &[Stage],
    tasks: &[TaskReport],
    operators: &Operators,
) -> Result<Vec<usize>, ServiceError> {
    let meant = meant((name, plan), stages, operators)?;
    let checked = meant.iter().map(|&index| check(plan, (index, &stages[index]), tasks).map(|()| index));
    let (may_go, stay): (Vec<_>, Vec<_>) = checked.partition(Result::is_ok);
    let why: Vec<String> = stay.into_iter().filter_map(Result::err).collect();
    let position = match operators {
        Operators::All => None,
        Operators::Number(_, position) => Some(*position),
        Operators::Named(name) => Some(name.position),
    };
    if why.is_empty() || (position.is_none() && !may_go.is_empty()) {
        return Ok(may_go.into_iter().flatten().collect());
    }
    let hint = format!("EXPLAIN QUERY {} says of each stage whether it may go", name_in_sql(name));
    let error = ServiceError::new(ErrorKind::Conflict, why.join("; ")).with_hint(hint);
    Err(match position {
        Some(position) => error.or_at(position),
        None => error,
    })
}

/// The stages of `operators` of a query, by their indices, in order.
///
/// # Errors
/// There is no such operator, or several stages have one of that name.
pub(crate) fn meant(
    (name, plan): (&str, &QueryPlan),
    stages: &[Stage],
    operators: &Operators,
) -> Result<Vec<usize>, ServiceError> {
    let nodes = plan.dataflow.nodes();
    let hint = || format!("EXPLAIN QUERY {} shows their numbers and names", name_in_sql(name));
    let stage_of = |node: usize| stages.iter().position(|stage| stage.nodes.contains(&node));
    match operators {
        Operators::All => Ok((0..stages.len()).collect()),
        Operators::Number(number, position) => {
            let node = usize::try_from(*number).ok().and_then(|number| number.checked_sub(1));
            let stage = node.and_then(stage_of).ok_or_else(|| {
                let message = format!("the query '{name}' has no operator {number}");
                ServiceError::not_found(message).with_hint(hint()).or_at(*position)
            })?;
            Ok(vec![stage])
        }
        Operators::Named(operator) => {
            let is_it = |node: &usize| nodes[*node].work.name() == operator.text;
            let found: Vec<usize> = (0..nodes.len()).filter(is_it).collect();
            let stages: BTreeSet<usize> = found.iter().filter_map(|&node| stage_of(node)).collect();
            let error = match stages.len() {
                1 => return Ok(stages.into_iter().collect()),
                0 => ServiceError::not_found(format!("the query '{name}' has no operator '{operator}'")),
                _ => {
                    let numbers: Vec<String> = found.iter().map(|node| (node + 1).to_string()).collect();
                    let (last, others) = numbers.split_last().expect("there are several");
                    let (count, others) = (numbers.len(), others.join(", "));
                    let message = format!("'{operator}' is the name of {count} operators: {others} and {last}");
                    ServiceError::invalid(message)
                }
            };
            Err(error.with_hint(hint()).or_at(operator.position))
        }
    }
}

/// A line for each stage, as the part of EXPLAIN about bursts. `tasks` has what was measured; it is empty of a query
/// that does not run.
pub(crate) fn explain(plan: &QueryPlan, stages: &[Stage], tasks: &[TaskReport]) -> String {
    let line = |one: (usize, &Stage)| {
        let (of_stage, price) = priced(plan, one, tasks);
        let (numbers, title) = (numbers(one.1), title(plan, one.1));
        let count = match of_stage.len() {
            0 => String::new(),
            count => format!(" in {}", counted(count as u64, "task")),
        };
        let what = match (how(plan, one), price) {
            (Err(why), _) => format!("stays: {why}"),
            (Ok(how), Some(price)) if price.pays() => format!("goes {how}; {price}: pays"),
            (Ok(how), Some(price)) => format!("could go {how}; {price}: does not pay"),
            (Ok(how), None) => format!("goes {how}; what a row costs is not known yet"),
        };
        format!("  stage {} ({numbers}: {title}){count} {what}\n", one.0 + 1)
    };
    format!("\n\nbursts\n{}", stages.iter().enumerate().map(line).collect::<String>())
}

/// The numbers of the operators of a stage, as EXPLAIN shows them: `1-4`, or `1, 3` if others are in between.
pub(crate) fn numbers(stage: &Stage) -> String {
    match stage.nodes.as_slice() {
        [first, .., last] if last - first + 1 == stage.nodes.len() => format!("{}-{}", first + 1, last + 1),
        nodes => nodes.iter().map(|node| (node + 1).to_string()).collect::<Vec<_>>().join(", "),
    }
}

/// The operators of a stage, and its source by name.
fn title(plan: &QueryPlan, stage: &Stage) -> String {
    let name = |&node: &usize| match &plan.dataflow.nodes()[node].work {
        Work::Source(source) => format!("source {}", plan.sources[*source].declaration.name),
        work => work.name(),
    };
    stage.nodes.iter().map(name).collect::<Vec<_>>().join(" > ")
}

#[cfg(test)]
mod tests {
    use rivulet_connectors::files::Files;
    use rivulet_dataflow::stage::cut;
    use rivulet_sql::{Position, Scope, Statement, parse_script, plan_query};

    use super::*;

    /// The plan of a SELECT over generated bids, and its stages.
    fn planned(select: &str) -> (QueryPlan, Vec<Stage>) {
        let (mut scope, mut plan) = (Scope::new(), None);
        for (statement, _) in parse_script(&format!("CREATE SOURCE bid FROM 'nexmark:bid'; {select}")).expect(select) {
            match statement {
                Statement::CreateSource(create) => {
                    let declared = create.declare(run::own_columns(&Files::of_user())).expect("a source");
                    scope.add_source(declared).expect("declared");
                }
                Statement::RunQuery(query) => plan = Some(plan_query(&query, &scope).expect(select)),
                other => panic!("{other:?}"),
            }
        }
        let plan = plan.expect("a SELECT");
        let stages = cut(&plan.dataflow, &[2], 2);
        (plan, stages)
    }

    fn task(stage: usize, rows_in: u64, rows_out: u64, busy_us: u64) -> TaskReport {
        TaskReport { stage, rows_in, rows_out, busy_us, ..TaskReport::default() }
    }

    const JOIN: &str = "SELECT a.price, b.price AS other FROM bid AS a JOIN bid AS b ON a.auction = b.bidder \
                        WITH (burst => true)";

    #[test]
    fn what_does_not_pay_is_refused_by_name() {
        let (plan, stages) = planned(JOIN);
        let join = stages.iter().position(|stage| title(&plan, stage).starts_with("join")).expect("a join");
        let at = Position { line: 1, column: 24 };
        let node = stages[join].nodes[0] as u64 + 1;
        let redirected = |tasks: &[TaskReport], operators| redirected(("q", &plan), &stages, tasks, operators);
        let number = &Operators::Number(node, at);
        // 44 ns to send a row, and 42 ns for each of the rows that come back.
        let cheap = [task(join, 10_000, 10_000, 300), task(join, 10_000, 10_000, 500)];
        let error = redirected(&cheap, number).expect_err("86 ns for 40 ns");
        let price = "40 ns a row here, 86 ns on the wire for 1.00 rows back";
        assert_eq!(error.message, format!("stage {} does not pay elsewhere: {price}", join + 1));
        assert_eq!((error.line, error.column), (Some(1), Some(24)));
        assert!(explain(&plan, &stages, &cheap).contains(&format!("could go with its state; {price}: does not pay")));
        // Of all stages those go that may.
        assert!(!redirected(&cheap, &Operators::All).expect("others").contains(&join));
        let dear = [task(join, 20_000, 20_000, 2_000)];
        assert_eq!(redirected(&dear, number).expect("100 ns"), [join]);
        assert!(explain(&plan, &stages, &dear).contains("goes with its state; 100 ns a row here, 86 ns on the wire"));
        let few = [task(join, 9_999, 9_999, 1)];
        assert_eq!(redirected(&few, number).expect("not known yet"), [join]);
    }

    #[test]
    fn no_row_is_sent_to_a_stage_that_goes_with_its_source() {
        let (plan, stages) = planned("SELECT price * 2 AS twice FROM bid WHERE price > 5");
        let tasks = [task(0, 100_000, 50_000, 3_000)];
        assert_eq!(stages.len(), 1, "the sink, which stays, is a part of it");
        let found = explain(&plan, &stages, &tasks);
        let line = "stage 1 (1-4: source bid > filter > project > sink) in 1 task goes with its source; \
                    30 ns a row here, 21 ns on the wire for 0.50 rows back: pays";
        assert!(found.contains(line), "{found}");
    }
}
