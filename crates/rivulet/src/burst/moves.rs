//! Which stages of a query may run in a burst worker, how they get there, and whether that pays.
//!
//! What must hold: nothing here looks at a worker. The same plan and the same figures have the same answer, which
//! EXPLAIN shows and REDIRECT keeps to.

use std::collections::BTreeSet;

use rivulet_dataflow::Work;
use rivulet_dataflow::stage::Stage;
use rivulet_runtime::{OperatorReport, TaskReport};
use rivulet_sql::{Name, Operators, QueryPlan, name_in_sql};

use crate::counted::counted;
use crate::run;
use crate::service::{ErrorKind, ServiceError};

/// What a row of about 100 bytes costs this process on its way to a worker, in nanoseconds: it is encoded and sent.
const SENT_NS: f64 = 44.0;
/// The same for a row that comes back.
const BACK_NS: f64 = 42.0;
/// With fewer rows the figures of a stage say nothing.
const MEASURED_ROWS_MIN: u64 = 10_000;
/// Nor do they with fewer rows in a batch: most of the time goes to waking the task then, which it needs elsewhere too.
const MEASURED_BATCH_MIN: u64 = 256;

/// How the stage at an index gets to a worker, in words; the error says why it stays.
fn how(plan: &QueryPlan, (index, stage): (usize, &Stage)) -> Result<String, String> {
    let nodes = plan.dataflow.nodes();
    if stage.nodes.iter().all(|&node| matches!(nodes[node].work, Work::Sink(_))) {
        return Err(format!("stage {} is a sink, and sinks stay on the server", index + 1));
    }
    let has_sink = stage.nodes.iter().any(|&node| matches!(nodes[node].work, Work::Sink(_)));
    let source = stage.source(&plan.dataflow).map(|source| &*plan.sources[source].declaration);
    if let Some((name, why)) = source.and_then(|source| Some((&source.name, run::bound(source)?))) {
        return Err(format!("the source '{name}' {why}"));
    }
    if let Some((node, why)) = stage.nodes.iter().find_map(|&node| Some((node, plan.stays(node)?))) {
        return Err(format!("operator {} {why}", node + 1));
    }
    if (0..nodes.len()).any(|node| plan.calls_model(node)) {
        return Err("a worker cannot plan the query: it uses a model, whose file is on the server only".into());
    }
    let declared = plan.sources.iter().map(|source| &source.declaration);
    if let Some(source) = declared.into_iter().find(|source| run::has_columns_of_file(source)) {
        let name = &source.name;
        return Err(format!(
            "a worker cannot plan the query: the columns of '{name}' are read from a file of this server"
        ));
    }
    let mut states = stage.nodes.iter().filter_map(|&node| plan.dataflow.address(node)).peekable();
    let is_stateless = states.peek().is_none();
    let state = if states.all(|address| address.is_transient) { "by merging" } else { "with its state" };
    let how = match source {
        Some(_) if is_stateless => "with its source".into(),
        Some(_) => format!("with its source, {state}"),
        None if is_stateless => "as it is".into(),
        None => state.to_owned(),
    };
    Ok(if has_sink { format!("{how}, but its sink stays") } else { how })
}

/// What a row of the stage at an index costs here and on the wire, as measured so far: whether it pays to send it, and
/// the figures in words. `None` before they say something.
fn price(plan: &QueryPlan, (index, stage): (usize, &Stage), tasks: &[TaskReport]) -> Option<(bool, String)> {
    let tasks = || tasks.iter().filter(|task| task.stage == index);
    let sum = |of: fn(&TaskReport) -> u64| tasks().map(of).sum::<u64>();
    let of_first =
        |of: fn(&OperatorReport) -> u64| tasks().filter_map(|task| task.operators.first()).map(of).sum::<u64>();
    let rows = sum(|task| task.rows_in);
    let is_measured =
        rows >= MEASURED_ROWS_MIN && of_first(|one| one.rows_in) >= MEASURED_BATCH_MIN * of_first(|one| one.batches);
    let (here_ns, back) =
        (sum(|task| task.busy_us) as f64 * 1e3 / rows as f64, sum(|task| task.rows_out) as f64 / rows as f64);
    let sent_ns = if stage.source(&plan.dataflow).is_some() { 0.0 } else { SENT_NS };
    let wire_ns = sent_ns + BACK_NS * back;
    let text = format!("{here_ns:.0} ns a row here, {wire_ns:.0} ns on the wire for {back:.2} rows back");
    is_measured.then_some((wire_ns < here_ns, text))
}

/// Whether the stage at an index may go, with its tasks as measured so far; the error says why it stays.
fn check(plan: &QueryPlan, one: (usize, &Stage), tasks: &[TaskReport]) -> Result<(), String> {
    how(plan, one)?;
    match price(plan, one, tasks) {
        Some((false, price)) => Err(format!("stage {} does not pay elsewhere: {price}", one.0 + 1)),
        _ => Ok(()),
    }
}

/// The stages that go to workers if `operators` of a query are redirected, by their indices, in order, and why others
/// of them stay. `tasks` has what was measured.
///
/// # Errors
/// There is no such operator, or none of them may go.
pub(crate) fn redirected(
    (name, plan): (&str, &QueryPlan),
    stages: &[Stage],
    tasks: &[TaskReport],
    operators: &Operators,
) -> Result<(Vec<usize>, Vec<String>), ServiceError> {
    let (mut go, mut stay) = (Vec::new(), Vec::new());
    for index in meant((name, plan), stages, operators)? {
        match check(plan, (index, &stages[index]), tasks) {
            Ok(()) => go.push(index),
            Err(why) => stay.push(why),
        }
    }
    if !go.is_empty() {
        return Ok((go, stay));
    }
    let hint = format!("EXPLAIN QUERY {} says of each stage whether it may go", name_in_sql(name));
    let error = ServiceError::new(ErrorKind::Conflict, stay.join("; ")).with_hint(hint);
    Err(match operators {
        Operators::All => error,
        Operators::Number(_, position) | Operators::Named(Name { position, .. }) => error.or_at(*position),
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
    let (what, position) = match operators {
        Operators::All => return Ok((0..stages.len()).collect()),
        Operators::Number(number, position) => (number.to_string(), *position),
        Operators::Named(name) => (format!("'{name}'"), name.position),
    };
    let is_meant = |node: &usize| match operators {
        Operators::Named(name) => nodes[*node].work.name() == name.text,
        _ => (node + 1).to_string() == what,
    };
    let found: Vec<usize> = (0..nodes.len()).filter(is_meant).collect();
    let stage_of = |node: &usize| stages.iter().position(|stage| stage.nodes.contains(node));
    let of: BTreeSet<usize> = found.iter().filter_map(stage_of).collect();
    let numbers: Vec<String> = found.iter().map(|node| (node + 1).to_string()).collect();
    let error = match numbers.split_last() {
        Some(_) if of.len() == 1 => return Ok(of.into_iter().collect()),
        None => ServiceError::not_found(format!("the query '{name}' has no operator {what}")),
        Some((last, others)) => {
            let (count, others) = (numbers.len(), others.join(", "));
            ServiceError::invalid(format!("{what} is the name of {count} operators: {others} and {last}"))
        }
    };
    let hint = format!("EXPLAIN QUERY {} shows their numbers and names", name_in_sql(name));
    Err(error.with_hint(hint).or_at(position))
}

/// A line for each stage, as the part of EXPLAIN about bursts; nothing of a query that was not created for them.
/// `tasks` has what was measured; it is empty of a query that does not run. `stays` says why nothing of it may go.
pub(crate) fn explain(plan: &QueryPlan, stages: &[Stage], tasks: &[TaskReport], stays: Option<ServiceError>) -> String {
    if !plan.is_burst {
        return String::new();
    }
    if let Some(error) = stays {
        return format!("\nbursts\n  nothing goes: {}\n", error.message);
    }
    let line = |one: (usize, &Stage)| {
        let count = match tasks.iter().filter(|task| task.stage == one.0).count() {
            0 => String::new(),
            count => format!(" in {}", counted(count as u64, "task")),
        };
        let what = match (how(plan, one), price(plan, one, tasks)) {
            (Err(why), _) => format!("stays: {why}"),
            (Ok(how), Some((true, price))) => format!("goes {how}; {price}: pays"),
            (Ok(how), Some((false, price))) => format!("could go {how}; {price}: does not pay"),
            (Ok(how), None) => format!("goes {how}; what a row costs is not known yet"),
        };
        format!("  stage {} ({}: {}){count} {what}\n", one.0 + 1, numbers(one.1), title(plan, one.1))
    };
    format!("\nbursts\n{}", stages.iter().enumerate().map(line).collect::<String>())
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
    use std::sync::Arc;

    use arrow::datatypes::{DataType, Field, Schema};
    use rivulet_connectors::files::Files;
    use rivulet_dataflow::stage::cut;
    use rivulet_sql::{Position, Scope, Statement, parse_script, plan_query};

    use super::*;

    /// The plan of a SELECT over generated bids and a file, and its stages.
    fn planned(select: &str) -> (QueryPlan, Vec<Stage>) {
        let (mut scope, mut plan) = (Scope::new(), None);
        let of_file = || Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true)]));
        let sources = "CREATE SOURCE bid FROM 'nexmark:bid'; CREATE SOURCE kept FROM 'file:kept.parquet'";
        for (statement, _) in parse_script(&format!("{sources}; {select}")).expect(select) {
            match statement {
                Statement::CreateSource(create) => {
                    let columns = |connector: &str, address: &str| match connector {
                        "file" => Some(Ok((of_file(), None))),
                        _ => run::own_columns(&Files::of_user())(connector, address),
                    };
                    let declared = create.declare(columns).expect("a source");
                    scope.add_source(declared).expect("declared");
                }
                Statement::RunQuery(query) => plan = Some(plan_query(&query, &scope).expect(select)),
                other => panic!("{other:?}"),
            }
        }
        let plan = plan.expect("a SELECT");
        let stages = cut(&plan.dataflow, &vec![2; plan.sources.len()], 2);
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
        let node = stages[join].nodes[0] + 1;
        let redirected = |tasks: &[TaskReport], operators| redirected(("q", &plan), &stages, tasks, operators);
        let number = &Operators::Number(node, at);
        // 44 ns to send a row, and 42 ns for each of the rows that come back.
        let cheap = [task(join, 10_000, 10_000, 300), task(join, 10_000, 10_000, 500)];
        let error = redirected(&cheap, number).expect_err("86 ns for 40 ns");
        let price = "40 ns a row here, 86 ns on the wire for 1.00 rows back";
        assert_eq!(error.message, format!("stage {} does not pay elsewhere: {price}", join + 1));
        assert_eq!((error.line, error.column), (Some(1), Some(24)));
        let explained = |tasks: &[TaskReport]| explain(&plan, &stages, tasks, None);
        assert!(
            explained(&cheap).contains(&format!("could go with its state, but its sink stays; {price}: does not pay"))
        );
        // Of all stages those go that may.
        let (go, stay) = redirected(&cheap, &Operators::All).expect("others");
        assert!(!go.contains(&join) && stay.contains(&error.message), "{stay:?}");
        let dear = [task(join, 20_000, 20_000, 2_000)];
        assert_eq!(redirected(&dear, number).expect("100 ns").0, [join]);
        assert!(
            explained(&dear).contains("goes with its state, but its sink stays; 100 ns a row here, 86 ns on the wire")
        );
        let few = [task(join, 9_999, 9_999, 1)];
        assert_eq!(redirected(&few, number).expect("not known yet").0, [join]);
        // Its batches are so small that the time is that of waking.
        let first = |batches| OperatorReport { rows_in: 20_000, batches, ..OperatorReport::default() };
        for (batches, is_known) in [(78, true), (79, false)] {
            let slow = [TaskReport { operators: vec![first(batches)], ..dear[0].clone() }];
            assert_eq!(explained(&slow).contains(": pays"), is_known, "{}", explained(&slow));
        }
    }

    #[test]
    fn what_a_worker_cannot_plan_stays() {
        let (plan, stages) = planned("SELECT price FROM bid JOIN kept ON auction = kept.id WITH (burst => true)");
        let found = explain(&plan, &stages, &[], None);
        let why = "a worker cannot plan the query: the columns of 'kept' are read from a file of this server";
        assert_eq!(
            (found.matches("stays").count(), found.matches(why).count()),
            (stages.len(), stages.len() - 1),
            "{found}"
        );
    }

    #[test]
    fn no_row_is_sent_to_a_stage_that_goes_with_its_source() {
        let (plan, stages) = planned("SELECT price * 2 AS twice FROM bid WHERE price > 5 WITH (burst => true)");
        let tasks = [task(0, 100_000, 50_000, 3_000)];
        assert_eq!(stages.len(), 1, "the sink, which stays, is a part of it");
        let found = explain(&plan, &stages, &tasks, None);
        let line = "stage 1 (1-5: source bid > filter > project > project > sink) in 1 task goes with its source, but \
                    its sink stays; 30 ns a row here, 21 ns on the wire for 0.50 rows back: pays";
        assert!(found.contains(line), "{found}");
    }
}
