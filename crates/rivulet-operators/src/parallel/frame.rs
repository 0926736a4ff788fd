//! Rows (or blocks of rows) in a moving window, and their merged states.
//!
//! The rows of a frame are two stacks, like closed panes of sliding windows. For each older row, the merge of it with
//! the later rows of its stack is kept; for the newer rows, one merge of all of them. A row is merged twice, however
//! long the frame. Objects, whose merges are long, are merged anew for each result.

use std::borrow::Cow;
use std::collections::VecDeque;

use crate::aggregate::object::{OBJECT_BYTES, Object};
use crate::parallel::groups::{GroupPlan, GroupStates};

/// A row of a frame, or a block of rows.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) row: u32,
    pub(crate) time_us: i64,
}

pub(crate) struct Frame {
    /// Whether rows leave the frame. If so, they are kept.
    is_bounded: bool,
    entries: VecDeque<Entry>,
    /// The words of the entries that are not in `onwards`, one entry after the other.
    words: Vec<u64>,
    /// The words of the oldest entries, each merged with the later ones of this stack. The words of the oldest entry
    /// are last.
    onwards: Vec<u64>,
    /// The merged words of the other entries; of all rows if the frame has no bound.
    back: Box<[u64]>,
    /// The objects of the entries, if aggregates need any.
    entry_objects: VecDeque<Box<[Object]>>,
    /// The objects of all rows, if the frame has no bound.
    objects: Box<[Object]>,
}

impl Frame {
    pub(crate) fn new(plan: &GroupPlan, is_bounded: bool) -> Self {
        Self {
            is_bounded,
            entries: VecDeque::new(),
            words: Vec::new(),
            onwards: Vec::new(),
            back: plan.layout.empty_window.as_slice().into(),
            entry_objects: VecDeque::new(),
            objects: plan.layout.empty_objects(),
        }
    }

    /// The number of kept rows.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn oldest(&self) -> Option<&Entry> {
        self.entries.front()
    }

    /// The row this many rows before the newest.
    pub(crate) fn before(&self, rows: usize) -> Option<&Entry> {
        self.entries.get(self.entries.len().checked_sub(rows + 1)?)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// Adds a row, whose states are those of `group`.
    pub(crate) fn push(&mut self, plan: &GroupPlan, row: u32, time_us: i64, states: &GroupStates, group: u32) {
        let words = states.words(plan, group);
        plan.layout.merge_dense(&mut self.back, words);
        if !self.is_bounded {
            return merge_objects(plan, &mut self.objects, states.objects(group));
        }
        self.entries.push_back(Entry { row, time_us });
        self.words.extend_from_slice(words);
        if !plan.layout.objects.is_empty() {
            self.entry_objects.push_back(states.objects(group).into());
        }
    }

    /// Removes the oldest row, and returns its number.
    pub(crate) fn pop(&mut self, plan: &GroupPlan) -> Option<u32> {
        let length = plan.layout.dense_words();
        if self.onwards.is_empty() {
            for words in self.words.chunks_exact(length.max(1)).rev() {
                let behind = self.onwards.len();
                self.onwards.extend_from_slice(words);
                if behind > 0 {
                    let (before, merged) = self.onwards.split_at_mut(behind);
                    plan.layout.merge_dense(merged, &before[behind - length..]);
                }
            }
            self.words.clear();
            self.back.copy_from_slice(&plan.layout.empty_window);
        }
        self.onwards.truncate(self.onwards.len().saturating_sub(length));
        self.entry_objects.pop_front();
        self.entries.pop_front().map(|entry| entry.row)
    }

    /// Writes the merged states of all rows to a group.
    pub(crate) fn total(&self, plan: &GroupPlan, states: &mut GroupStates, group: u32) {
        self.total_words(plan, states.words_mut(plan, group));
        if !plan.layout.objects.is_empty() {
            states.set_objects(group, self.all_objects(plan).into_owned().into());
        }
    }

    /// Writes what the merged states of all rows come to: the words, and the results of objects.
    pub(crate) fn finish(&self, plan: &GroupPlan, states: &mut GroupStates, group: u32) {
        self.total_words(plan, states.words_mut(plan, group));
        states.finish(plan, &self.all_objects(plan));
    }

    fn total_words(&self, plan: &GroupPlan, words: &mut [u64]) {
        match self.onwards.len() {
            0 => words.copy_from_slice(&self.back),
            end => {
                words.copy_from_slice(&self.onwards[end - words.len()..]);
                plan.layout.merge_dense(words, &self.back);
            }
        }
    }

    fn all_objects(&self, plan: &GroupPlan) -> Cow<'_, [Object]> {
        let mut objects = Cow::Borrowed(&*self.objects);
        self.entry_objects.iter().for_each(|entry| merge_objects(plan, objects.to_mut(), entry));
        objects
    }

    /// Restores the states of all rows from a group, for a frame without bound.
    pub(crate) fn restore(&mut self, plan: &GroupPlan, states: &GroupStates, group: u32) {
        self.back = states.words(plan, group).into();
        self.objects = states.objects(group).into();
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let objects = self.entry_objects.iter().chain([&self.objects]);
        let objects = objects.flatten().map(|object| OBJECT_BYTES + object.memory_bytes()).sum::<usize>();
        size_of::<Self>()
            + (self.words.capacity() + self.onwards.capacity() + self.back.len()) * 8
            + self.entries.capacity() * size_of::<Entry>()
            + objects
    }
}

fn merge_objects(plan: &GroupPlan, objects: &mut [Object], later: &[Object]) {
    for ((state, object), later) in plan.layout.objects.iter().zip(objects).zip(later) {
        state.kind.merge(object, later.clone());
    }
}
