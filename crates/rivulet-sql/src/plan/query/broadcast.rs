//! Joins of which every instance gets all rows of one side. So the rows of the other side need not come together.

use rivulet_dataflow::{EdgeKind, is_key_type};
use rivulet_operators::parallel::{KeyedJoin, KeyedJoinKind};

use super::bounds::{LEFT, RIGHT};
use super::stream::{Partition, Stream};

/// How rows come to the instances of such a join.
pub(super) struct Broadcast {
    /// The side of which every instance gets all rows.
    pub(super) side: usize,
    /// The edge of the other side.
    pub(super) other: EdgeKind,
    /// The columns of the other side by which its state is divided among instances.
    pub(super) divided_by: Vec<usize>,
    /// Which rows of the other side are in one instance.
    pub(super) partition: Partition,
}

impl Broadcast {
    /// Whether one side has at most one row at a time, or few as its source says, and what follows. `None` if rows meet
    /// by their keys, or in one instance.
    ///
    /// No row of the join may expire: instances forget rows one by one, and all must have the same ones of that side.
    pub(super) fn of(
        join: &KeyedJoin,
        kind: KeyedJoinKind,
        streams: [&Stream; 2],
        pairs: &[(usize, usize)],
    ) -> Option<Self> {
        let is_broadcast = |&side: &usize| {
            // A row that comes out without partner would come out of every instance.
            let may_be = match kind {
                KeyedJoinKind::Inner => true,
                KeyedJoinKind::Left | KeyedJoinKind::LeftSemi | KeyedJoinKind::LeftAnti => side == RIGHT,
                KeyedJoinKind::Right => side == LEFT,
                KeyedJoinKind::Full => false,
            };
            let keys: Vec<usize> = pairs.iter().map(|pair| [pair.0, pair.1][1 - side]).collect();
            let is_small = streams[side].is_one_row() || (streams[side].is_small && !streams[1 - side].is_small);
            may_be && is_small && !streams[1 - side].is_partitioned_by(&keys)
        };
        [RIGHT, LEFT]
            .into_iter()
            .filter(is_broadcast)
            .find_map(|side| Self::of_side(join, side, streams[1 - side], pairs))
    }

    /// The same if every instance gets all rows of this side.
    fn of_side(join: &KeyedJoin, side: usize, other: &Stream, pairs: &[(usize, usize)]) -> Option<Self> {
        let may_divide = |column: &usize| is_key_type(other.schema.field(*column).data_type());
        let kept: Vec<usize> = join.kept(1 - side).iter().copied().filter(may_divide).collect();
        let (edge, divided_by, partition) = match &other.partition {
            Partition::Keys(columns) if columns.iter().all(|column| kept.contains(column)) => {
                (EdgeKind::Forward, columns.clone(), other.partition.clone())
            }
            // Not forward: all instances get the same watermarks, and end together.
            _ if !other.changes => (EdgeKind::RoundRobin, kept, Partition::Any),
            // A retraction comes to the instance that has the row.
            _ if pairs.is_empty() => (EdgeKind::Hash(kept.clone()), kept, Partition::Any),
            _ => return None,
        };
        Some(Self { side, other: edge, divided_by, partition })
    }

    /// The edges of left and right.
    pub(super) fn edges(&self) -> [EdgeKind; 2] {
        let mut edges = [EdgeKind::Broadcast, EdgeKind::Broadcast];
        edges[1 - self.side] = self.other.clone();
        edges
    }
}
