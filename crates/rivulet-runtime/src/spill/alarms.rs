//! The data in memory about queries in the spilled task of a group: their slots in the group, and their timers.

use rivulet_dataflow::Slot;

/// A time that never comes.
pub(crate) const NEVER: i64 = i64::MAX;

/// By slot of a group's spilled task.
#[derive(Default)]
pub(crate) struct Alarms {
    /// The query's slot in the group.
    outer: Vec<Slot>,
    /// When the query's next timer is due; shorter than `outer` if the last queries have none.
    at_us: Vec<i64>,
    /// A lower bound of all timers, exact after [`Alarms::due`]; 0 as long as none was ever set.
    earliest_us: i64,
}

impl Alarms {
    /// A query moved to the spilled task.
    pub(crate) fn set(&mut self, slot: Slot, outer: Slot, at_us: i64) {
        let place = slot as usize;
        if place >= self.outer.len() {
            self.outer.resize(place + 1, Slot::MAX);
        }
        self.outer[place] = outer;
        if at_us == NEVER {
            return self.clear(&[slot]);
        }
        self.earliest_us = self.earliest_us().min(at_us);
        if place >= self.at_us.len() {
            self.at_us.resize(place + 1, NEVER);
        }
        self.at_us[place] = at_us;
    }

    /// Queries left the spilled task.
    pub(crate) fn clear(&mut self, slots: &[Slot]) {
        for &slot in slots {
            if let Some(at_us) = self.at_us.get_mut(slot as usize) {
                *at_us = NEVER;
            }
        }
    }

    /// A lower bound of all timers; [`NEVER`] if there are none.
    pub(crate) fn earliest_us(&self) -> i64 {
        if self.at_us.is_empty() { NEVER } else { self.earliest_us }
    }

    /// The slots of the spilled task with timers due by `now_us`. They stay due until they are cleared.
    pub(crate) fn due(&mut self, now_us: i64) -> Vec<Slot> {
        if self.earliest_us() > now_us {
            return Vec::new();
        }
        self.earliest_us = self.at_us.iter().copied().min().unwrap_or(NEVER);
        (0..).zip(&self.at_us).filter(|(_, at_us)| **at_us <= now_us).map(|(slot, _)| slot).collect()
    }

    /// The slot in the group of a query in the spilled task.
    pub(crate) fn outer(&self, slot: Slot) -> Option<Slot> {
        self.outer.get(slot as usize).copied()
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.outer.capacity() * size_of::<Slot>() + self.at_us.capacity() * size_of::<i64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_ring_once_due_until_they_are_cleared() {
        let mut alarms = Alarms::default();
        assert_eq!(alarms.earliest_us(), NEVER);
        alarms.set(5, 50, NEVER);
        assert_eq!((alarms.earliest_us(), alarms.outer(5)), (NEVER, Some(50)));
        alarms.set(1, 10, 300);
        alarms.set(2, 20, 100);
        alarms.set(3, 30, 200);
        assert_eq!(alarms.due(99), [0; 0]);
        alarms.clear(&[2]);
        assert_eq!(alarms.due(250), [3]);
        assert_eq!(alarms.due(250), [3], "it is still there");
        alarms.clear(&[3]);
        assert_eq!((alarms.due(250), alarms.earliest_us()), (vec![], 300));
        assert_eq!(alarms.due(300), [1]);
        alarms.set(1, 11, NEVER);
        assert_eq!((alarms.due(i64::MAX - 1), alarms.earliest_us()), (vec![], NEVER));
    }
}
