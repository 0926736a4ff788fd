//! The search for the largest load that is sustained: it doubles while it is, and then halves what is between.
//!
//! ```
//! use rivulet_bench::search::{Bounds, Search};
//!
//! let mut search = Search::new(Bounds { first: 100, least: 10, most: 100_000, precision: 0.01 });
//! while let Some(load) = search.next() {
//!     search.tell(load <= 1_234);
//! }
//! assert!((1_222..=1_234).contains(&search.best().unwrap()));
//! ```

/// Where a search begins and ends.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The first load.
    pub first: u32,
    /// Where not even this is sustained, there is no further step.
    pub least: u32,
    /// No load is larger.
    pub most: u32,
    /// To which fraction the limit is to be known.
    pub precision: f64,
}

/// A search on its way. Several can be made side by side, a step of each in turn.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    bounds: Bounds,
    good: u32,
    bad: Option<u32>,
    next: Option<u32>,
}

impl Search {
    /// Begins a search.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, good: 0, bad: None, next: Some(bounds.first.min(bounds.most)) }
    }

    /// The load to try; `None` if the limit is known.
    pub fn next(&self) -> Option<u32> {
        self.next
    }

    /// Says whether that load was sustained.
    pub fn tell(&mut self, is_sustained: bool) {
        let Some(load) = self.next else { return };
        if is_sustained {
            self.good = load;
        } else {
            self.bad = Some(load);
        }
        let Bounds { least, most, precision, .. } = self.bounds;
        self.next = match self.bad {
            None if self.good >= most => None,
            None => Some(self.good.saturating_mul(2).min(most)),
            Some(bad) if bad <= least || bad <= self.good + 1 => None,
            Some(bad) if f64::from(bad - self.good) <= f64::from(bad) * precision => None,
            Some(bad) => Some(self.good + (bad - self.good) / 2),
        };
    }

    /// The largest load that was sustained; `None` if none was.
    pub fn best(&self) -> Option<u32> {
        (self.good > 0).then_some(self.good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(limit: u32, bounds: Bounds) -> (Option<u32>, Vec<u32>) {
        let (mut search, mut tried) = (Search::new(bounds), Vec::new());
        while let Some(load) = search.next() {
            assert!(tried.len() < 64, "{tried:?}");
            tried.push(load);
            search.tell(load <= limit);
        }
        (search.best(), tried)
    }

    #[test]
    fn the_limit_is_found_to_the_precision_wherever_it_is() {
        let bounds = Bounds { first: 1_000, least: 50, most: 1_000_000, precision: 0.1 };
        assert_eq!(run(5_000, bounds), (Some(5_000), vec![1_000, 2_000, 4_000, 8_000, 6_000, 5_000, 5_500]));
        assert_eq!(run(u32::MAX, bounds).0, Some(1_000_000));
        let (best, tried) = run(0, bounds);
        assert_eq!((best, tried.last()), (None, Some(&31)));
        for limit in [60, 999, 1_001, 123_456] {
            let best = run(limit, bounds).0.unwrap();
            assert!(best <= limit && f64::from(limit) <= f64::from(best) * 1.12, "{best} of {limit}");
        }
        assert_eq!(run(7, Bounds { first: 1, least: 0, most: 100, precision: 0.0 }).0, Some(7));
    }
}
