//! The next version of a big query: which sources continue from where they were in the version before, which operators
//! take over its state, and whether the sink continues.
//!
//! A source continues if its declaration is unchanged. A new source begins, and one that is gone is forgotten. An
//! operator takes over state from an operator that does the same ([`StateSignature::difference`]) with rows of the same
//! sources; more sources may be added. Operators that do the same with the same rows are matched first, and the others
//! in their order.
//!
//! If the rows that come to an operator may be retracted, its state is only right if exactly the rows that came are
//! retracted. So it takes over only if everything in front of it is unchanged. Nor does an operator take over behind
//! state that is lost or begins anew, because the rows that come from there are different.
//!
//! What must hold: the same as for applications. If several columns have the same name, names alone do not say what an
//! operator does. Then it must do the same with the same column indices.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use rivulet_dataflow::{FlowMap, NodeId, StateSelection, StateSignature, Work};

use crate::plan::query::{PlannedSource, QueryPlan};
use crate::scope::SinkDeclaration;

/// What becomes of a query's sources, state and sinks in its next version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryMigration {
    /// For each source, operator and sink of the new version, the one of the version before that it continues.
    pub map: FlowMap,
    /// The operators whose state is taken over, in words.
    pub kept: Vec<String>,
    /// The operators of the version before whose state is lost, in words: what they do, and why no operator takes over.
    pub lost: Vec<String>,
    /// The names of sources that begin as in a new query.
    pub sources_new: Vec<String>,
    /// The names of sources that are no longer read.
    pub sources_gone: Vec<String>,
    /// The indices of the sinks of the version before that the new version does not write to.
    pub sinks_gone: Vec<usize>,
    /// Whether results retract rows that the version before has emitted, but are computed differently: then they would
    /// retract rows that were never emitted.
    pub takes_back_others: bool,
}

impl QueryMigration {
    /// Whether results still go to the same sink.
    pub fn keeps_result(&self) -> bool {
        self.map.sinks.first().is_some_and(Option::is_some)
    }

    /// Makes all operators begin anew; only sources continue. Then no row of the version before is retracted.
    pub fn discard_state(&mut self) {
        const WHY: &str = "the result takes rows back, and is not computed as it was";
        self.lost.extend(self.kept.drain(..).map(|kept| format!("{kept}: {WHY}")));
        self.map.operators.fill(None);
        self.takes_back_others = false;
    }
}

/// A stateful operator of a dataflow.
struct Stateful<'p> {
    node: NodeId,
    task: StateSignature,
    /// What it does, by column indices.
    identity: Option<&'p str>,
    inputs: Vec<Input<'p>>,
    /// A hash of what it does with which rows, as far as that is known.
    signature: u64,
    /// The stateful operators that its rows come through.
    behind: BTreeSet<NodeId>,
}

/// An input of an operator.
struct Input<'p> {
    rows: &'p Schema,
    /// The sources of its rows.
    sources: BTreeSet<&'p str>,
    /// Whether its rows may be retracted.
    changes: bool,
}

/// Compares two versions of a query: which parts of `before` continue in `after`.
pub fn query_migration(before: &QueryPlan, after: &QueryPlan) -> QueryMigration {
    let find = |source: &PlannedSource| before.sources.iter().position(|other| is_same_source(source, other));
    let sources: Vec<Option<usize>> = after.sources.iter().map(find).collect();
    let name = |source: &PlannedSource| source.declaration.name.text.clone();
    let sources_new = after.sources.iter().zip(&sources).filter(|(_, from)| from.is_none()).map(|(one, _)| name(one));
    let is_gone = |place: &usize| !sources.contains(&Some(*place));
    let sources_gone = (0..before.sources.len()).filter(is_gone).map(|place| name(&before.sources[place]));
    let is_same_sink = match (&before.output.sink, &after.output.sink) {
        (Some(one), Some(other)) => one.name.text == other.name.text && one.text == other.text,
        _ => false,
    };

    let of_letters = |sink: &Arc<SinkDeclaration>| {
        let is_it = |one: &Arc<SinkDeclaration>| one.name.text == sink.name.text && one.text == sink.text;
        before.letters.iter().position(is_it).map(|place| place + 1)
    };
    let sinks: Vec<Option<usize>> =
        std::iter::once(is_same_sink.then_some(0)).chain(after.letters.iter().map(of_letters)).collect();
    let sinks_gone = (0..=before.letters.len()).filter(|place| !sinks.contains(&Some(*place))).collect();

    let ((old, old_result), (new, new_result)) = (stateful(before), stateful(after));
    let takes_back = before.output.changes && after.output.changes && is_same_sink;
    let mut operators = vec![None; after.dataflow.nodes().len()];
    let mut taken: BTreeMap<NodeId, NodeId> = BTreeMap::new();
    for is_exact in [true, false] {
        for one in &old {
            let takes_over = |other: &&Stateful<'_>| {
                operators[other.node].is_none()
                    && (!is_exact || one.signature == other.signature)
                    && one.difference(other, &taken).is_none()
            };
            if let Some(found) = new.iter().find(takes_over).filter(|_| !taken.contains_key(&one.node)) {
                operators[found.node] = Some(one.node);
                taken.insert(one.node, found.node);
            }
        }
    }
    let why_lost = |one: &Stateful<'_>| {
        let mut like = new.iter().filter(|other| operators[other.node].is_none() && other.task.kind == one.task.kind);
        one.task.lost(like.find_map(|other| one.difference(other, &taken)))
    };
    let (kept, lost): (Vec<_>, Vec<_>) = old.iter().partition(|one| taken.contains_key(&one.node));
    QueryMigration {
        kept: kept.into_iter().map(|one| one.task.text()).collect(),
        lost: lost.into_iter().map(why_lost).collect(),
        sources_new: sources_new.collect(),
        sources_gone: sources_gone.collect(),
        sinks_gone,
        map: FlowMap { sources, operators, sinks },
        takes_back_others: takes_back && old_result != new_result,
    }
}

/// Whether two versions declare a source in the same way.
fn is_same_source(one: &PlannedSource, other: &PlannedSource) -> bool {
    let (one, other) = (&one.declaration, &other.declaration);
    one.name.text == other.name.text && one.text == other.text
}

/// Returns the stateful operators, in their order, and a hash of how the result is computed, as far as that is known.
fn stateful(plan: &QueryPlan) -> (Vec<Stateful<'_>>, u64) {
    let nodes = plan.dataflow.nodes();
    let mut sources: Vec<BTreeSet<&str>> = Vec::with_capacity(nodes.len());
    let mut signatures: Vec<u64> = Vec::with_capacity(nodes.len());
    let mut changes: Vec<bool> = Vec::with_capacity(nodes.len());
    // For each node, the stateful operators that its rows come through, including itself.
    let mut through: Vec<BTreeSet<NodeId>> = Vec::with_capacity(nodes.len());
    let (mut stateful, mut result) = (Vec::new(), 0);
    for (node, one) in nodes.iter().enumerate() {
        let edges: Vec<_> = plan.dataflow.inputs_of(node).collect();
        let mut read: BTreeSet<&str> = edges.iter().flat_map(|edge| sources[edge.from].iter().copied()).collect();
        let mut signature = DefaultHasher::new();
        let identity = plan.identities.get(&node).map(String::as_str);
        let description = match &one.work {
            Work::Source(place) => {
                let declaration = &plan.sources[*place].declaration;
                read.insert(&declaration.text);
                declaration.text.hash(&mut signature);
                None
            }
            Work::Operator(factory) => Some((factory, factory.describe())),
            Work::Sink(_) => None,
        };
        let is_sink = matches!(one.work, Work::Sink(0));
        (identity, description.as_ref().map(|(_, one)| &one.shared)).hash(&mut signature);
        edges.iter().for_each(|edge| (edge.input, signatures[edge.from]).hash(&mut signature));
        signatures.push(signature.finish());
        if is_sink {
            result = signatures[node];
        }
        sources.push(read);
        let come = || edges.iter().any(|edge| changes[edge.from]);
        changes.push(plan.changes.get(&node).copied().unwrap_or_else(come));
        let behind: BTreeSet<NodeId> = edges.iter().flat_map(|edge| through[edge.from].iter().copied()).collect();
        through.push(behind.clone());
        let Some((factory, description)) = description.filter(|(factory, _)| factory.is_stateful()) else { continue };
        let (step, meaning) = (description.shared.clone(), description.shared);
        let Some(task) = StateSignature::of(&**factory, step, meaning, &StateSelection::All) else { continue };
        through[node].insert(node);
        let inputs = edges.iter().map(|edge| Input {
            rows: &nodes[edge.from].schema,
            sources: sources[edge.from].clone(),
            changes: changes[edge.from],
        });
        stateful.push(Stateful { node, task, identity, inputs: inputs.collect(), signature: signatures[node], behind });
    }
    (stateful, result)
}

impl Stateful<'_> {
    /// Returns why `other` cannot take over from this operator; `None` if it can. `taken` maps the operators whose
    /// state is taken over to those that take it over.
    fn difference(&self, other: &Self, taken: &BTreeMap<NodeId, NodeId>) -> Option<String> {
        if let Some(difference) = self.task.difference(&other.task) {
            return Some(difference);
        }
        if self.inputs.len() != other.inputs.len() {
            return Some("it has other inputs now".into());
        }
        let of_source = |(one, other): (&Input<'_>, &Input<'_>)| !one.sources.is_subset(&other.sources);
        if self.inputs.iter().zip(&other.inputs).any(of_source) {
            return Some("its rows come from other sources now".into());
        }
        let may_change = self.inputs.iter().chain(&other.inputs).any(|input| input.changes);
        if may_change && self.signature != other.signature {
            return Some("what comes to it takes rows back, and is not what it was".into());
        }
        let go_on: Option<BTreeSet<NodeId>> = self.behind.iter().map(|node| taken.get(node).copied()).collect();
        match go_on {
            None => return Some("state in front of it is lost".into()),
            Some(go_on) if go_on != other.behind => return Some("its rows come by another way now".into()),
            Some(_) => {}
        }
        let is_same = || {
            let columns = |input: &Input<'_>| -> Vec<(String, DataType)> {
                input.rows.fields().iter().map(|field| (field.name().clone(), field.data_type().clone())).collect()
            };
            self.identity == other.identity && self.inputs.iter().map(columns).eq(other.inputs.iter().map(columns))
        };
        ((self.is_ambiguous() || other.is_ambiguous()) && !is_same())
            .then(|| "several columns that come to it have the same name, and are others now".into())
    }

    /// Whether several columns have the same name.
    fn is_ambiguous(&self) -> bool {
        let mut names = self.inputs.iter().flat_map(|input| input.rows.fields()).map(|field| field.name());
        let mut known = BTreeSet::new();
        !names.all(|name| known.insert(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Scope, Statement, parse_script, plan_query};

    const DECLARED: &str = "
        CREATE SOURCE bids (auction BIGINT, bidder BIGINT, price DOUBLE, ts TIMESTAMP EVENT TIME) FROM 'x:bids';
        CREATE SOURCE more (auction BIGINT, bidder BIGINT, price DOUBLE, ts TIMESTAMP EVENT TIME) FROM 'x:more';
        CREATE SOURCE auctions (id BIGINT, seller BIGINT, ts TIMESTAMP EVENT TIME) FROM 'x:auctions';
        CREATE SINK results TO 'x:results';
        CREATE SINK others TO 'x:others';";

    fn plan(select: &str) -> QueryPlan {
        let script = match select.contains(" INTO ") {
            true => format!("{DECLARED} CREATE QUERY q AS {select}"),
            false => format!("{DECLARED} CREATE QUERY q AS {select} INTO results"),
        };
        let mut scope = Scope::new();
        for (statement, _) in parse_script(&script).unwrap_or_else(|error| panic!("{error}: {script}")) {
            match statement {
                Statement::CreateSource(create) => scope.add_source(create.declare(|_, _| None).unwrap()).unwrap(),
                Statement::CreateSink(create) => scope.add_sink(create.declare().unwrap()).unwrap(),
                Statement::CreateBigQuery(create) => {
                    return plan_query(&create.query, &scope).unwrap_or_else(|error| panic!("{error}: {select}"));
                }
                other => panic!("{other:?}"),
            }
        }
        panic!("no query")
    }

    fn becomes(before: &str, after: &str) -> QueryMigration {
        let (before, after) = (plan(before), plan(after));
        let migration = query_migration(&before, &after);
        for (node, from) in migration.map.operators.iter().enumerate() {
            let Some(from) = from else { continue };
            let (Work::Operator(one), Work::Operator(other)) =
                (&before.dataflow.nodes()[*from].work, &after.dataflow.nodes()[node].work)
            else {
                panic!("operators take over from operators")
            };
            // The new operators can import all state that they take over.
            let frame = one.create().export_state(&StateSelection::All).unwrap().unwrap();
            other.create().import_state(&frame).unwrap();
        }
        let mut from: Vec<NodeId> = migration.map.operators.iter().flatten().copied().collect();
        from.sort_unstable();
        from.dedup();
        assert_eq!(from.len(), migration.kept.len(), "each is taken over once");
        migration
    }

    const WINDOW: &str = "SELECT auction, count(*) AS n, window_end FROM \
        TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY auction, window_end";

    #[test]
    fn what_has_no_state_may_change() {
        for after in [
            WINDOW.replace("count(*) AS n", "count(*) * 2 AS twice"),
            WINDOW.replace("TABLE bids", "TABLE (SELECT * FROM bids WHERE price > 10)"),
            WINDOW.replace("GROUP BY auction, window_end", "GROUP BY auction, window_end HAVING count(*) > 3"),
            WINDOW.replace("SELECT auction, count(*) AS n, window_end", "SELECT window_end, count(*) AS n"),
        ] {
            let migration = becomes(WINDOW, &after);
            assert!(migration.lost.is_empty() && !migration.kept.is_empty(), "{after}: {migration:?}");
            assert_eq!(migration.map.sources, [Some(0)]);
            assert!(migration.keeps_result() && migration.sources_new.is_empty() && migration.sources_gone.is_empty());
        }
        let other_sink = becomes(WINDOW, &format!("{WINDOW} INTO others"));
        assert!(other_sink.lost.is_empty() && !other_sink.keeps_result() && other_sink.sinks_gone == [0]);
    }

    #[test]
    fn what_another_version_would_misread_is_lost_and_it_is_said_why() {
        for (after, why) in [
            (WINDOW.replace("'10' SECOND", "'1' MINUTE"), "has become"),
            (WINDOW.replace("count(*) AS n", "sum(price) AS n"), "sum(price)"),
            (WINDOW.replace("auction", "bidder"), "by bidder"),
            (WINDOW.replace("TABLE bids", "TABLE more"), "other sources"),
            ("SELECT auction FROM bids".into(), "none like it"),
        ] {
            let migration = becomes(WINDOW, &after);
            assert!(migration.kept.is_empty() && !migration.lost.is_empty(), "{after}: {migration:?}");
            assert!(migration.lost.iter().any(|lost| lost.contains(why)), "{why}: {:?}", migration.lost);
        }
        let moved = becomes(WINDOW, &WINDOW.replace("TABLE bids", "TABLE more"));
        assert_eq!(
            (moved.map.sources, moved.sources_new, moved.sources_gone),
            (vec![None], vec!["more".into()], vec!["bids".into()])
        );
    }

    #[test]
    fn what_takes_rows_back_must_be_as_it_was() {
        let lost = |before: &str, after: &str| {
            let same = becomes(before, before);
            assert!(same.lost.is_empty() && !same.kept.is_empty(), "{before}: {same:?}");
            becomes(before, after).lost
        };
        let is_of_changes = |lost: &[String], kind: &str| {
            lost.len() == 1 && lost[0].starts_with(kind) && lost[0].contains("takes rows back")
        };
        let counted =
            "SELECT count(*) AS n FROM (SELECT auction, count(*) AS n FROM bids GROUP BY auction HAVING count(*) > 5)";
        for least in ["> 7", "> 3"] {
            let lost = lost(counted, &counted.replace("> 5", least));
            assert!(is_of_changes(&lost, "aggregate"), "{lost:?}");
        }
        let of_groups = "SELECT count(*) AS n FROM (SELECT auction, max(price) FROM bids GROUP BY auction)";
        let of_rows = lost("SELECT count(*) AS n FROM bids", of_groups);
        assert_eq!(of_rows.len(), 1, "{of_rows:?}");
        let joined = "SELECT a.seller, b.n FROM auctions a \
            JOIN (SELECT auction, count(*) AS n FROM bids WHERE price > 1 GROUP BY auction) b ON a.id = b.auction";
        let of_join = lost(joined, &joined.replace("price > 1", "price > 2"));
        assert!(is_of_changes(&of_join, "join"), "{of_join:?}");
        // The operators behind them may change, because they have no state.
        let doubled = counted.replacen("count(*) AS n", "2 * count(*) AS n", 1);
        assert!(lost(counted, &doubled).is_empty());
    }

    #[test]
    fn behind_state_that_is_lost_nobody_takes_over() {
        let before = format!("SELECT auction, count(*) AS windows FROM ({WINDOW}) GROUP BY auction");
        let after = before
            .replace("count(*) AS n", "count(*) AS n, max(price) AS most")
            .replace("auction, count(*) AS windows", "auction, count(*) AS windows, max(most) AS most");
        let same = becomes(&before, &before.replace("TABLE bids", "TABLE (SELECT * FROM bids WHERE price > 10)"));
        assert!(same.lost.is_empty() && same.kept.len() >= 2, "final rows of windows: {same:?}");
        let changed = becomes(&before, &before.replace("'10' SECOND", "'1' MINUTE"));
        assert!(
            changed.kept.is_empty() && changed.lost.iter().any(|lost| lost.contains("in front of it is lost")),
            "{changed:?}"
        );
        assert!(becomes(&before, &after).kept.is_empty());
    }

    #[test]
    fn a_source_may_be_added() {
        let both = WINDOW.replace("TABLE bids", "TABLE (SELECT * FROM bids UNION ALL SELECT * FROM more)");
        let added = becomes(WINDOW, &both);
        assert!(added.lost.is_empty() && added.sources_new == ["more"], "{added:?}");
        let taken = becomes(&both, WINDOW);
        assert!(!taken.lost.is_empty() && taken.sources_gone == ["more"], "rows of it are in the state: {taken:?}");
    }

    #[test]
    fn those_that_do_the_same_with_the_same_rows_find_each_other_wherever_they_stand() {
        let one = "SELECT channel, n FROM (SELECT 'few' AS channel, count(*) AS n FROM bids WHERE price > 100 GROUP BY auction)";
        let other = "SELECT channel, n FROM (SELECT 'many' AS channel, count(*) AS n FROM bids WHERE price > 1 GROUP BY auction)";
        let before = format!("{one} UNION ALL {other}");
        let same = becomes(&before, &before).map.operators;
        let swapped = becomes(&before, &format!("{other} UNION ALL {one}"));
        assert!(swapped.lost.is_empty());
        let taken = |operators: &[Option<NodeId>]| operators.iter().flatten().copied().collect::<Vec<_>>();
        let (mut turned, straight) = (taken(&swapped.map.operators), taken(&same));
        assert_ne!(turned, straight);
        turned.reverse();
        assert_eq!(turned, straight);
    }

    #[test]
    fn a_name_that_stands_for_several_columns_is_not_believed() {
        let joined = |price: &str| {
            format!(
                "SELECT a.auction, max({price}.price) AS most, min(b.price) AS least, max(a.price) AS own FROM bids a \
                 JOIN bids b ON a.auction = b.auction AND a.ts = b.ts GROUP BY a.auction"
            )
        };
        let same = becomes(&joined("a"), &joined("a").replace("AS most", "AS highest"));
        assert!(same.lost.is_empty() && same.kept.len() >= 2, "{same:?}");
        let other = becomes(&joined("a"), &joined("b"));
        assert!(other.lost.iter().all(|lost| lost.starts_with("aggregate")) && other.lost.len() == 1, "{other:?}");
        let filtered = "SELECT b.price, a.seller FROM auctions a JOIN bids b ON a.id = b.auction AND b.ts >= a.ts";
        let kept = becomes(filtered, &format!("{filtered} WHERE b.price > 10"));
        assert!(kept.lost.is_empty(), "{kept:?}");
    }
}
