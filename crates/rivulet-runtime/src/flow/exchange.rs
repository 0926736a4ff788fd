//! Where the rows of a task go.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::error::ArrowError;
use rivulet_dataflow::stage::Stage;
use rivulet_dataflow::{Batch, EdgeKind, Element, KeyGroups, KeyHash, Refusal, hash_keys};

use super::peer::Peer;
use super::pipe::Pipe;

/// Looks at results on their way to the sink. The tasks that write call it, so it must not wait.
pub type Tap = Arc<dyn Fn(&Batch) + Send + Sync>;

/// Makes rows of the refusals of a query, for the sinks of refused rows.
pub trait Letters: Send + Sync {
    /// One row for each of `refusals`, which came from the sources at these indices in the plan.
    ///
    /// # Errors
    /// A row cannot be made, which is a defect.
    fn rows(&self, refusals: &[&Refusal], sources: &[usize]) -> Result<Batch, String>;
}

/// The edges that leave a task.
#[derive(Default)]
pub(super) struct Outputs {
    edges: Vec<OutputEdge>,
    /// The edges of refused rows. Elements other than batches go along them too.
    refused: Vec<OutputEdge>,
    /// Where all goes instead, of a guest.
    pipe: Option<Arc<dyn Pipe>>,
}

struct OutputEdge {
    kind: EdgeKind,
    key_groups: KeyGroups,
    targets: Vec<Target>,
    /// The targets that are served in turn, by index: all, or those on the sender's memory node where each node has
    /// senders.
    turns: Vec<usize>,
    /// The next target in turn.
    next: usize,
    /// Kept to reuse the memory.
    hashes: Vec<u64>,
    rows: Vec<Vec<u32>>,
}

struct Target {
    task: Arc<dyn Peer>,
    channel: usize,
}

impl Outputs {
    /// The edges that leave instance `instance` of stage `from`, to tasks that exist already. `nodes` has the memory
    /// nodes of the instances.
    pub(super) fn new<T: Peer + 'static>(
        stages: &[Stage],
        from: usize,
        instance: usize,
        tasks: &[Vec<Arc<T>>],
        nodes: &[Option<usize>],
        key_groups: KeyGroups,
    ) -> Self {
        let (mut edges, mut refused) = (Vec::new(), Vec::new());
        for (stage, tasks) in stages.iter().zip(tasks).skip(from + 1) {
            for (place, input) in stage.inputs.iter().enumerate().filter(|(_, input)| input.from == from) {
                let targets: Vec<Target> = tasks
                    .iter()
                    .enumerate()
                    .filter_map(|(receiver, task)| {
                        let channel = stage.channel(place, instance, receiver, stages)?;
                        Some(Target { task: task.clone(), channel })
                    })
                    .collect();
                let rows = vec![Vec::new(); targets.len()];
                let turns =
                    turns(&nodes[..targets.len().min(nodes.len())], &nodes[..stages[from].instances], nodes[instance]);
                // Senders begin with different targets.
                let next = instance % turns.len().max(1);
                let kind = input.kind.clone();
                let edges = if matches!(kind, EdgeKind::Refused { .. }) { &mut refused } else { &mut edges };
                edges.push(OutputEdge { kind, key_groups, targets, turns, next, hashes: Vec::new(), rows });
            }
        }
        Self { edges, refused, pipe: None }
    }

    /// The output of a guest.
    pub(super) fn to(pipe: Arc<dyn Pipe>) -> Self {
        Self { pipe: Some(pipe), ..Self::default() }
    }

    /// Whether every target has room. A target without room wakes the sender when it has some.
    pub(super) fn have_room(&self) -> bool {
        // All targets are asked, so that each full one knows that a sender waits.
        let mut room = self.pipe.as_ref().is_none_or(|pipe| pipe.has_room());
        for target in self.targets() {
            room &= target.task.has_room();
        }
        room
    }

    /// Whether any edge takes refused rows.
    pub(super) fn take_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Sends the rows that `rows` makes of refusals along the edges that take them: late rows, other refused rows, or
    /// both.
    pub(super) fn send_refused(
        &self,
        rows: impl Fn(bool, bool) -> Result<Option<Batch>, String>,
    ) -> Result<(), String> {
        for edge in &self.refused {
            let EdgeKind::Refused { late, others } = edge.kind else { continue };
            if let Some(batch) = rows(late, others)? {
                edge.targets.iter().for_each(|target| target.send(batch.clone()));
            }
        }
        Ok(())
    }

    fn targets(&self) -> impl Iterator<Item = &Target> {
        self.edges.iter().chain(&self.refused).flat_map(|edge| &edge.targets)
    }

    /// Sends rows to their targets.
    pub(super) fn send(&mut self, batch: Batch) -> Result<(), String> {
        if let Some(pipe) = &self.pipe {
            return pipe.push(0, &Element::Batch(batch)).map_err(|error| error.to_string());
        }
        let Some((last, others)) = self.edges.split_last_mut() else { return Ok(()) };
        let sent = others.iter_mut().try_for_each(|edge| edge.send(batch.clone()));
        sent.and_then(|()| last.send(batch)).map_err(|error| error.to_string())
    }

    /// Sends an element other than a batch to all targets. A guest that can tell nobody finds out when it next listens.
    pub(super) fn tell(&mut self, element: &Element) {
        for target in self.targets() {
            target.task.push(target.channel, element.clone());
        }
        self.pipe.iter().for_each(|pipe| drop(pipe.push(0, element)));
    }
}

impl OutputEdge {
    fn send(&mut self, batch: Batch) -> Result<(), ArrowError> {
        match &self.kind {
            _ if self.targets.len() == 1 => self.targets[0].send(batch),
            EdgeKind::Forward | EdgeKind::Gather | EdgeKind::Broadcast | EdgeKind::Refused { .. } => {
                self.targets.iter().for_each(|target| target.send(batch.clone()));
            }
            EdgeKind::RoundRobin => {
                self.targets[self.turns[self.next]].send(batch);
                self.next = (self.next + 1) % self.turns.len();
            }
            EdgeKind::Hash(columns) => {
                let columns: Vec<ArrayRef> = columns.iter().map(|&column| batch.column(column).clone()).collect();
                hash_keys(&columns, batch.rows(), &mut self.hashes)?;
                let (instances, key_groups) = (self.targets.len(), self.key_groups);
                self.rows.iter_mut().for_each(Vec::clear);
                for (row, &hash) in self.hashes.iter().enumerate() {
                    let key_group = key_groups.of(KeyHash::of_hash(hash));
                    self.rows[key_groups.instance(key_group, instances)].push(row as u32);
                }
                for (target, rows) in self.targets.iter().zip(&self.rows) {
                    match rows.len() {
                        0 => {}
                        all if all == batch.rows() => target.send(batch.clone()),
                        _ => target.send(batch.take(rows)?),
                    }
                }
            }
        }
        Ok(())
    }
}

/// The targets that a sender serves in turn: those on its own memory node, if there are any and every node with a
/// target has a sender; otherwise all.
fn turns(targets: &[Option<usize>], senders: &[Option<usize>], own: Option<usize>) -> Vec<usize> {
    let stays = targets.contains(&own) && targets.iter().all(|node| senders.contains(node));
    (0..targets.len()).filter(|&target| !stays || targets[target] == own).collect()
}

impl Target {
    fn send(&self, batch: Batch) {
        self.task.push(self.channel, Element::Batch(batch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stay_on_their_node_where_all_nodes_have_senders() {
        let two = [Some(0), Some(0), Some(1), Some(1)];
        assert_eq!(turns(&two, &two, Some(1)), [2, 3]);
        assert_eq!(turns(&two, &[Some(0), Some(0), Some(1)], Some(0)), [0, 1]);
        assert_eq!(turns(&two, &[Some(0)], Some(0)), [0, 1, 2, 3], "or nobody would serve the other node");
        assert_eq!(turns(&two[..2], &two, Some(1)), [0, 1], "or it could send to nobody");
        assert_eq!(turns(&[None, None], &[None], None), [0, 1], "where there is one node");
    }
}
