//! Overlapping windows, merged from closed panes.
//!
//! Closed panes are two stacks. In the panes at the front (the older ones), every entry holds the merge of its key in
//! this pane and all later panes of the front. For the panes at the back, there is a running total by key. So a window
//! is one entry merged with one total. When the front is used up, all panes become the front. Every entry is merged
//! twice, however many windows it is in, and states need not be subtractable. Objects, whose merges are long, are
//! merged pane by pane instead; for this, the entries of a key are linked.

use std::collections::{BTreeMap, VecDeque};

use arrow::array::ArrayRef;
use rivulet_dataflow::{Context, OperatorError};

use super::bounds::Bounds;
use super::pane::{PaneTable, Window, emit_results};
use super::plan::WindowPlan;
use crate::aggregate::dense::RowSet;
use crate::parallel::OUTPUT_ROWS;
use crate::parallel::groups::GroupStates;
use crate::parallel::keys::{BatchKeys, KeyIndex, NONE};

/// An entry: the number of panes pushed before its pane, and its number in the pane.
type Place = (u64, u32);

pub(crate) struct Sliding {
    bounds: Bounds,
    /// The keys of all closed panes.
    index: KeyIndex,
    /// By key: its entry in the oldest pane that has the key, its entry in the newest, and the number of panes with the
    /// key.
    oldest: Vec<Place>,
    newest: Vec<Place>,
    panes_of: Vec<u32>,
    /// By key: the merged words of the panes at the back.
    back: Vec<u64>,
    panes: VecDeque<ClosedPane>,
    /// The number of panes in the front.
    front: usize,
    /// The number of panes that have been removed.
    removed: u64,
    /// The end of the next window, if panes are left.
    next_end_us: i64,
    keys: BatchKeys,
    numbers: Vec<u32>,
}

struct ClosedPane {
    start_us: i64,
    end_us: i64,
    arrival_us: i64,
    /// By entry: its key.
    keys: Vec<u32>,
    /// By entry: how many panes later its key occurs again, and in which entry; [`NONE`] if it does not.
    next: Vec<(u32, u32)>,
    states: GroupStates,
    /// For a pane in the front, by entry: the merged words of its key in this pane and the later ones of the front.
    onwards: Vec<u64>,
}

impl Sliding {
    pub(super) fn new(plan: &WindowPlan, bounds: Bounds) -> Self {
        Self {
            bounds,
            index: plan.keys.index(0),
            oldest: Vec::new(),
            newest: Vec::new(),
            panes_of: Vec::new(),
            back: Vec::new(),
            panes: VecDeque::new(),
            front: 0,
            removed: 0,
            next_end_us: i64::MIN,
            keys: BatchKeys::default(),
            numbers: Vec::new(),
        }
    }

    /// Emits the windows that end after `closed_us`, the previous watermark, and at `watermark_us` or before. Takes the
    /// complete panes out of `open`. Stops after the window with which there are enough rows. Returns whether all
    /// windows are emitted.
    pub(super) fn close(
        &mut self,
        plan: &WindowPlan,
        open: &mut BTreeMap<(i64, i64), PaneTable>,
        closed_us: i64,
        watermark_us: i64,
        context: &mut Context<'_>,
    ) -> Result<bool, OperatorError> {
        let mut given = 0;
        while given < OUTPUT_ROWS {
            if self.panes.is_empty() {
                // Windows without rows are skipped.
                let Some(((_, start_us), _)) = open.first_key_value() else { return Ok(true) };
                self.next_end_us = self.bounds.first_end_after(*start_us, closed_us);
            }
            let end_us = self.next_end_us;
            if end_us > watermark_us {
                return Ok(true);
            }
            let start_us = self.bounds.start_of(end_us);
            while let Some(entry) = open.first_entry().filter(|entry| entry.key().0 <= end_us) {
                let (pane_end_us, pane_start_us) = *entry.key();
                self.push(plan, pane_start_us, pane_end_us, entry.remove())?;
            }
            while self.panes.front().is_some_and(|pane| pane.start_us < start_us) {
                self.pop(plan);
            }
            given += self.emit(plan, start_us, end_us, context)?;
            self.next_end_us = self.bounds.next_end(end_us);
            // Panes that the next window does not need are freed at once.
            let next_start_us = self.bounds.start_of(self.next_end_us);
            while self.panes.front().is_some_and(|pane| pane.start_us < next_start_us) {
                self.pop(plan);
            }
        }
        Ok(false)
    }

    /// Adds a pane at the back.
    pub(super) fn push(
        &mut self,
        plan: &WindowPlan,
        start_us: i64,
        end_us: i64,
        pane: PaneTable,
    ) -> Result<(), OperatorError> {
        let PaneTable { index, states, arrival_us, .. } = pane;
        let layout = &plan.groups.layout;
        let words = layout.dense_words();
        let place = self.removed + self.panes.len() as u64;
        let entries: Vec<u32> = (0..index.numbers() as u32).collect();
        let mut keys = Vec::with_capacity(entries.len());
        for entries in entries.chunks(OUTPUT_ROWS) {
            self.keys.read_keys(&plan.keys, &index.columns(&plan.keys, entries)?)?;
            self.index.assign(&self.keys, &RowSet::Range(0..entries.len()), &mut self.numbers);
            keys.extend_from_slice(&self.numbers);
        }
        drop(index);
        let numbers = self.index.numbers();
        self.oldest.resize(numbers, (0, NONE));
        self.newest.resize(numbers, (0, NONE));
        self.panes_of.resize(numbers, 0);
        self.back.resize(numbers * words, 0);
        for (entry, &key) in keys.iter().enumerate() {
            let (entry, key) = (entry as u32, key as usize);
            let total = &mut self.back[key * words..(key + 1) * words];
            if self.panes_of[key] == 0 {
                self.oldest[key] = (place, entry);
                total.copy_from_slice(&layout.empty_window);
            } else {
                let (pane, before) = self.newest[key];
                self.panes[(pane - self.removed) as usize].next[before as usize] = ((place - pane) as u32, entry);
            }
            self.newest[key] = (place, entry);
            self.panes_of[key] += 1;
            layout.merge_dense(total, states.words(&plan.groups, entry));
        }
        let next = vec![(0, NONE); keys.len()];
        self.panes.push_back(ClosedPane { start_us, end_us, arrival_us, keys, next, states, onwards: vec![] });
        Ok(())
    }

    /// Removes the oldest pane.
    fn pop(&mut self, plan: &WindowPlan) {
        if self.front == 0 {
            self.flip(plan);
        }
        let Some(pane) = self.panes.pop_front() else { return };
        for (&key, &(later, entry)) in pane.keys.iter().zip(&pane.next) {
            let place = key as usize;
            self.panes_of[place] -= 1;
            match self.panes_of[place] {
                0 => self.index.remove(key),
                _ => self.oldest[place] = (self.removed + u64::from(later), entry),
            }
        }
        self.front -= 1;
        self.removed += 1;
    }

    /// Makes all panes the front.
    fn flip(&mut self, plan: &WindowPlan) {
        let layout = &plan.groups.layout;
        let words = layout.dense_words();
        for at in (0..self.panes.len()).rev() {
            let (older, newer) = self.panes.make_contiguous().split_at_mut(at + 1);
            let pane = &mut older[at];
            pane.onwards.clear();
            for (entry, &(later, next)) in pane.next.iter().enumerate() {
                pane.onwards.extend_from_slice(pane.states.words(&plan.groups, entry as u32));
                if next != NONE {
                    let other = &newer[later as usize - 1].onwards[next as usize * words..][..words];
                    layout.merge_dense(&mut pane.onwards[entry * words..], other);
                }
            }
        }
        self.front = self.panes.len();
        self.back.chunks_exact_mut(words.max(1)).for_each(|words| {
            words.copy_from_slice(&layout.empty_window);
        });
    }

    /// Emits a window, and returns the number of its keys.
    fn emit(
        &self,
        plan: &WindowPlan,
        start_us: i64,
        end_us: i64,
        context: &mut Context<'_>,
    ) -> Result<usize, OperatorError> {
        let layout = &plan.groups.layout;
        let words = layout.dense_words();
        let arrival_us = self.panes.iter().map(|pane| pane.arrival_us).max().unwrap_or(i64::MIN);
        let window = Window { start_us, end_us, arrival_us };
        let live: Vec<u32> = (0..self.panes_of.len() as u32).filter(|&key| self.panes_of[key as usize] > 0).collect();
        let groups: Vec<u32> = (0..live.len().min(OUTPUT_ROWS) as u32).collect();
        let mut states = plan.groups.states();
        states.grow(&plan.groups, groups.len());
        for keys in live.chunks(OUTPUT_ROWS) {
            for (&key, &group) in keys.iter().zip(&groups) {
                let (pane, entry) = self.oldest[key as usize];
                let total = &self.back[key as usize * words..][..words];
                let at = (pane - self.removed) as usize;
                if at < self.front {
                    let merged = states.words_mut(&plan.groups, group);
                    merged.copy_from_slice(&self.panes[at].onwards[entry as usize * words..][..words]);
                    layout.merge_dense(merged, total);
                } else {
                    states.words_mut(&plan.groups, group).copy_from_slice(total);
                }
                if !layout.objects.is_empty() {
                    self.merge_objects(plan, key, &mut states, group);
                }
            }
            let columns: Vec<ArrayRef> = self.index.columns(&plan.keys, keys)?;
            emit_results(plan, columns, &states, &groups[..keys.len()], window, context)?;
        }
        Ok(live.len())
    }

    /// Merges the objects of a key over all its panes.
    fn merge_objects(&self, plan: &WindowPlan, key: u32, states: &mut GroupStates, group: u32) {
        let (mut pane, mut entry) = self.oldest[key as usize];
        let mut merged: Option<Box<[_]>> = None;
        loop {
            let closed = &self.panes[(pane - self.removed) as usize];
            let objects = closed.states.objects(entry);
            match &mut merged {
                None => merged = Some(objects.into()),
                Some(merged) => {
                    let kinds = plan.groups.layout.objects.iter().map(|state| state.kind);
                    for ((kind, object), later) in kinds.zip(merged.iter_mut()).zip(objects) {
                        kind.merge(object, later.clone());
                    }
                }
            }
            let (later, next) = closed.next[entry as usize];
            if next == NONE {
                break;
            }
            (pane, entry) = (pane + u64::from(later), next);
        }
        if let Some(merged) = merged {
            states.set_objects(group, merged);
        }
    }

    /// The content of each closed pane, for export: its bounds, its latest arrival, and by entry the key and the
    /// states.
    pub(super) fn closed(&self) -> impl Iterator<Item = (i64, i64, i64, &[u32], &GroupStates)> {
        self.panes.iter().map(|pane| (pane.start_us, pane.end_us, pane.arrival_us, &pane.keys[..], &pane.states))
    }

    /// The keys of the numbers that [`Sliding::closed`] returns.
    pub(super) fn index(&self) -> &KeyIndex {
        &self.index
    }

    pub(super) fn is_empty(&self) -> bool {
        self.panes.is_empty()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let panes: usize = self
            .panes
            .iter()
            .map(|pane| {
                pane.states.memory_bytes()
                    + (pane.onwards.capacity() + pane.next.capacity()) * 8
                    + pane.keys.capacity() * 4
            })
            .sum();
        panes + self.index.memory_bytes() + self.back.capacity() * 8 + self.panes_of.capacity() * (4 + 2 * 16)
    }
}
