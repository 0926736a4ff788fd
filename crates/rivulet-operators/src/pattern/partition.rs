//! The search for matches in one partition: it tries one first row after the other, with a list of partial matches.

use std::mem::size_of;

use rivulet_dataflow::{Context, Leaps, Reason, Slot};

use super::plan::Plan;
use super::program::{ACCEPT, Follower};
use super::registers::Match;
use super::rows::Rows;
use super::spec::{MATCH_ROWS_MAX, Skip, THREADS_MAX};

/// A time that never comes.
pub(super) const NEVER: i64 = i64::MAX;

/// The rows of a partition and the progress of the search.
#[derive(Debug, Default)]
pub(super) struct Partition {
    pub(super) rows: Rows,
    /// The first row of the match that is being tried.
    pub(super) start: u64,
    /// The rows before this one are in their final order.
    pub(super) ready: u64,
    /// The next row to try; `start` if the search from there has not begun.
    next: u64,
    /// The partial matches from `start` on, best first: each is its state, then its words.
    threads: Vec<u64>,
    /// The words of the best complete match from `start` on so far; empty if there is none. Any match that comes from
    /// `threads` would be better.
    accepted: Vec<u64>,
    /// The number of matches found.
    pub(super) matches: u64,
    /// A condition that fails on a row before this one is not counted again.
    pub(super) failed_before: u64,
    /// The latest time that the search has seen. Decisions count as made then, also about earlier rows.
    reached_us: i64,
}

/// A search in a partition, with its surroundings.
pub(super) struct Search<'a, 'c> {
    pub(super) plan: &'a Plan,
    pub(super) slot: Slot,
    /// How long a match may be; [`NEVER`] without a bound.
    pub(super) within_us: i64,
    /// The leaps of the clock by which rows have their times, if it is that of their arrival.
    pub(super) leaps: &'a Leaps,
    /// No row before this time will come; [`NEVER`] if none will come at all.
    pub(super) watermark_us: i64,
    pub(super) context: &'a mut Context<'c>,
    pub(super) scratch: &'a mut Scratch,
}

/// The memory of one step, reused by all steps.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    threads: Vec<u64>,
    thread: Vec<u64>,
}

impl Partition {
    pub(super) fn new(values: usize) -> Self {
        Self { rows: Rows::new(values), reached_us: i64::MIN, ..Self::default() }
    }

    /// Whether the partition remembers no more than a new one.
    pub(super) fn is_idle(&self) -> bool {
        self.rows.len() == 0 && self.matches == 0
    }

    /// The time of the last row that is kept.
    pub(super) fn last_us(&self) -> Option<i64> {
        (self.rows.len() > 0).then(|| self.rows.time_us(self.rows.end() - 1))
    }

    /// The event time at which something is due without a further row.
    pub(super) fn due_us(&self, within_us: i64, leaps: &Leaps) -> i64 {
        let waiting_us = if self.ready < self.rows.end() { self.rows.time_us(self.ready) } else { NEVER };
        let expires_us = if self.start < self.ready { self.expires_us(within_us, leaps) } else { NEVER };
        waiting_us.min(expires_us)
    }

    /// The first time at which a row is too late for a match that begins at `start`.
    fn expires_us(&self, within_us: i64, leaps: &Leaps) -> i64 {
        if within_us == NEVER { NEVER } else { leaps.after_us(self.rows.time_us(self.start), within_us) }
    }

    /// Does what is due by the watermark. `found` receives each match, with its event time and the time at which it was
    /// decided.
    pub(super) fn run(&mut self, search: &mut Search<'_, '_>, found: &mut dyn FnMut(&Match<'_>, i64, i64)) {
        let end = self.rows.end();
        while self.ready < end && self.rows.time_us(self.ready) <= search.watermark_us {
            self.ready += 1;
        }
        loop {
            if self.next == self.start {
                if self.start >= self.ready {
                    break;
                }
                self.begin(search.plan);
            }
            let expires_us = self.expires_us(search.within_us, search.leaps);
            if self.next < self.ready {
                let time_us = self.rows.time_us(self.next);
                if time_us >= expires_us {
                    self.decide(expires_us, search, found);
                    continue;
                }
                self.step(search);
                if self.threads.is_empty() {
                    self.decide(time_us, search, found);
                } else if self.next - self.start >= MATCH_ROWS_MAX as u64 {
                    self.give_up(search, found);
                }
            } else if search.watermark_us >= expires_us {
                self.decide(expires_us, search, found);
            } else {
                break;
            }
        }
        self.forget_rows(search.plan);
    }

    /// Ends the current match where it is, because it needs more rows than are kept.
    pub(super) fn give_up(&mut self, search: &mut Search<'_, '_>, found: &mut dyn FnMut(&Match<'_>, i64, i64)) {
        if self.start >= self.next {
            return;
        }
        let time_us = self.rows.time_us(self.next - 1);
        if self.accepted.is_empty() {
            // From a row behind `start`, the search would go through the same rows again, most likely with the same
            // outcome.
            search.context.refusals.count(Reason::Overflow, self.next - self.start);
            self.go_on_from(self.next);
        } else {
            self.decide(time_us, search, found);
        }
    }

    /// Begins the search from `start`.
    fn begin(&mut self, plan: &Plan) {
        self.threads.clear();
        self.accepted.clear();
        for &state in plan.program.first() {
            self.threads.push(state.into());
            plan.layout.push_empty(&mut self.threads);
        }
    }

    /// Tries the next row.
    fn step(&mut self, search: &mut Search<'_, '_>) {
        let plan = search.plan;
        let stride = 1 + plan.layout.words();
        let condition_words = 1 + plan.layout.condition_words;
        let position = self.next;
        let holds = self.rows.holds(position);
        let Scratch { threads: after, thread } = &mut *search.scratch;
        after.clear();
        'threads: for before in self.threads.chunks_exact(stride) {
            let state = before[0] as Follower;
            let variable = plan.program.variable(state);
            if holds & 1 << variable == 0 {
                continue;
            }
            thread.clear();
            thread.extend_from_slice(before);
            plan.layout.update(&mut thread[1..], variable, position, &self.rows);
            if let Some(condition) = &plan.conditions[variable] {
                let of = Match { words: &thread[1..], rows: &self.rows, number: self.matches + 1, names: &plan.names };
                match condition.holds(&of, search.slot, search.context.slots) {
                    Ok(true) => {}
                    Ok(false) => continue,
                    Err(_) => {
                        // The row is not a row of this variable. The failure is counted once, however often the row is
                        // tried.
                        if position >= self.failed_before {
                            self.failed_before = position + 1;
                            search.context.refusals.count(Reason::Expression, 1);
                        }
                        continue;
                    }
                }
            }
            for &follower in plan.program.after(state) {
                if follower == ACCEPT {
                    self.accepted.clear();
                    self.accepted.extend_from_slice(&thread[1..]);
                    break 'threads;
                }
                thread[0] = follower.into();
                // A partial match in the same state with the same past has the same future, and this one came earlier,
                // so it is better.
                let is_known =
                    after.chunks_exact(stride).any(|other| other[..condition_words] == thread[..condition_words]);
                if is_known {
                    continue;
                }
                if after.len() >= THREADS_MAX * stride {
                    search.context.refusals.count(Reason::Overflow, 1);
                    break 'threads;
                }
                after.extend_from_slice(thread);
            }
        }
        std::mem::swap(&mut self.threads, after);
        self.reached_us = self.reached_us.max(self.rows.time_us(position));
        self.next += 1;
    }

    /// Decides on the match from `start`, to which no further row belongs: it is complete or it does not exist.
    fn decide(&mut self, time_us: i64, search: &mut Search<'_, '_>, found: &mut dyn FnMut(&Match<'_>, i64, i64)) {
        self.reached_us = self.reached_us.max(time_us);
        if self.accepted.is_empty() {
            self.go_on_from(self.start + 1);
            return;
        }
        let (plan, words) = (search.plan, &self.accepted);
        self.matches += 1;
        let last = plan.layout.last_position(words);
        let of = Match { words, rows: &self.rows, number: self.matches, names: &plan.names };
        found(&of, self.rows.time_us(last), self.reached_us);
        if !plan.numbers_matches {
            self.matches = 0;
        }
        let of_variable = |variable, is_first| {
            plan.layout.position(words, variable, is_first).filter(|&position| position > self.start)
        };
        let start = match plan.skip {
            Skip::PastLastRow => last + 1,
            Skip::ToNextRow => self.start + 1,
            Skip::ToFirst(variable) => of_variable(variable, true).unwrap_or(self.start + 1),
            Skip::ToLast(variable) => of_variable(variable, false).unwrap_or(self.start + 1),
        };
        self.go_on_from(start);
    }

    fn go_on_from(&mut self, start: u64) {
        self.start = start;
        self.next = start;
        self.threads.clear();
        self.accepted.clear();
    }

    /// Forgets the rows that are no longer needed, and frees memory if no row is left.
    fn forget_rows(&mut self, plan: &Plan) {
        self.rows.forget_before(self.start.saturating_sub(plan.rows_before as u64));
        if self.start >= self.rows.end() {
            self.threads = Vec::new();
            self.accepted = Vec::new();
        }
    }

    /// Restarts the search. Nothing is decided yet about the rows from `start` on.
    pub(super) fn restart(&mut self, start: u64, ready: u64) {
        self.ready = ready;
        self.go_on_from(start);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.rows.memory_bytes() + (self.threads.capacity() + self.accepted.capacity()) * size_of::<u64>()
    }
}
