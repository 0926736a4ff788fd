//! What functions cost on a day, and whether another one may be invoked. Amounts are in 10^-12 dollars.
//!
//! What must hold: the file has all that may have been spent. So the most that a function can cost is written there
//! before the function is invoked, and what it did cost when it has ended. If the server ends in between, the most
//! counts as spent. A function that runs over midnight while the server restarts is paid for by the day before.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use crate::data_folder::replace;

/// Microseconds of a day.
const DAY_US: i64 = 86_400_000_000;

/// The budget of a day, in UTC.
#[derive(Debug)]
pub(crate) struct Budget {
    file: PathBuf,
    max: u64,
    /// Days since the epoch.
    day: i64,
    spent: u64,
    /// What functions that run can cost.
    reserved: u64,
}

impl Budget {
    /// Goes on with what the file says. If it cannot be read, today's budget counts as used up.
    pub(crate) fn open(file: PathBuf, max: u64, now_us: i64) -> Self {
        let known = match fs::read_to_string(&file) {
            Ok(text) => text.trim().split_once(' ').and_then(|(day, spent)| day.parse().ok().zip(spent.parse().ok())),
            Err(error) => Some((0, 0)).filter(|_| error.kind() == ErrorKind::NotFound),
        };
        let (day, spent) = known.unwrap_or_else(|| {
            let file = file.display();
            tracing::warn!(
                "{file} cannot be read, so no function is invoked today; remove it and restart to change that"
            );
            (now_us.div_euclid(DAY_US), max)
        });
        Self { file, max, day, spent, reserved: 0 }
    }

    /// Reserves the most that each of `count` functions can cost. Returns for how many the budget suffices, and why not
    /// for all.
    pub(crate) fn reserve(&mut self, most: u64, count: usize, now_us: i64) -> (usize, Option<String>) {
        let left = self.max.saturating_sub(self.today(now_us)) / most.max(1);
        let granted = usize::try_from(left).unwrap_or(count).min(count);
        self.reserved += most * granted as u64;
        if let Some(Err(problem)) = (granted > 0).then(|| self.write()) {
            self.reserved -= most * granted as u64;
            return (0, Some(problem));
        }
        let [most, max] = [most, self.max].map(|amount| in_dollars(amount.div_ceil(1_000_000)));
        let used_up = || {
            format!("the budget of today is used up: a function may cost {most} dollars, and burst.cost_max is {max}")
        };
        (granted, (granted < count).then(used_up))
    }

    /// A function for which that was reserved has cost this.
    ///
    /// # Errors
    /// It cannot be noted. Then the file says more than was spent.
    pub(crate) fn settle(&mut self, reserved: u64, cost: u64, now_us: i64) -> Result<(), String> {
        self.today(now_us);
        self.reserved -= reserved;
        self.spent += cost;
        self.write()
    }

    /// What is spent or reserved today.
    pub(crate) fn today(&mut self, now_us: i64) -> u64 {
        let day = now_us.div_euclid(DAY_US);
        if day > self.day {
            self.spent = 0;
        }
        // A clock that is set back by a day begins no new one. A clock that was far ahead is not believed any more.
        if !(self.day.saturating_sub(1)..=self.day).contains(&day) {
            self.day = day;
        }
        self.spent + self.reserved
    }

    /// What functions that run can cost.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    fn write(&self) -> Result<(), String> {
        replace(&self.file, format!("{} {}\n", self.day, self.spent + self.reserved).as_bytes())
            .map_err(|error| format!("what functions cost cannot be noted in {}: {error}", self.file.display()))
    }
}

/// An amount in dollars.
pub(crate) fn in_dollars(microdollars: u64) -> String {
    format!("{}.{:06}", microdollars / 1_000_000, microdollars % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_spent_on_a_day_than_is_configured_whatever_ends_the_server() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("spent");
        let open = || Budget::open(file.clone(), 100, 5);
        let mut budget = open();
        assert_eq!(budget.reserve(40, 1, 5), (1, None));
        let (granted, why) = budget.reserve(30, 3, 5);
        assert_eq!((granted, budget.today(5)), (2, 100));
        let used_up =
            "the budget of today is used up: a function may cost 0.000001 dollars, and burst.cost_max is 0.000001";
        assert_eq!(why.as_deref(), Some(used_up));
        budget.settle(40, 10, 6).unwrap();
        assert_eq!(budget.today(6), 70);
        // Nobody knows what has become of the other two.
        let mut budget = open();
        assert_eq!((budget.today(7), budget.reserve(31, 1, 7).0), (70, 0));
        assert_eq!(budget.reserve(30, 1, 7), (1, None));
        // It runs into the next day, which pays all of it.
        assert_eq!(budget.today(DAY_US), 30);
        budget.settle(30, 20, DAY_US + 1).unwrap();
        assert_eq!((budget.today(DAY_US + 1), budget.today(5), open().today(DAY_US + 2)), (20, 20, 20));
        assert_eq!(open().today(2 * DAY_US), 0);
    }

    #[test]
    fn a_clock_that_was_far_ahead_is_forgotten() {
        let folder = tempfile::TempDir::new().unwrap();
        let mut budget = Budget::open(folder.path().join("spent"), 100, 0);
        budget.reserve(40, 1, 9 * DAY_US);
        budget.settle(40, 40, 9 * DAY_US).unwrap();
        assert_eq!([2, 2, 3].map(|day| budget.today(day * DAY_US)), [40, 40, 0]);
    }

    #[test]
    fn a_budget_that_cannot_be_read_is_used_up_for_today() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("spent");
        for damaged in ["something", "", "1"] {
            fs::write(&file, damaged).unwrap();
            let mut budget = Budget::open(file.clone(), 100, DAY_US);
            assert_eq!((budget.reserve(1, 1, DAY_US).0, budget.reserve(1, 1, 2 * DAY_US).0), (0, 1));
        }
    }

    #[test]
    fn amounts_are_written_as_dollars() {
        assert_eq!([0, 17, 2_500_000].map(in_dollars), ["0.000000", "0.000017", "2.500000"]);
    }
}
