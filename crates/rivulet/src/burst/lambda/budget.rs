//! What functions cost on a day, and whether another one may be invoked. Amounts are in 10^-12 dollars.
//!
//! What must hold: the file has all that may have been spent. So the most that a function can cost is written there
//! before the function is invoked, and what it did cost when it has ended. Whatever ends the server in between, no more
//! is spent on a day than is configured.

use std::fs;
use std::path::PathBuf;

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
    /// Goes on with what the file says.
    pub(crate) fn open(file: PathBuf, max: u64) -> Result<Self, String> {
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => "0 0".into(),
            Err(error) => return Err(format!("cannot read {}: {error}", file.display())),
        };
        let known = text.trim().split_once(' ').and_then(|(day, spent)| Some((day.parse().ok()?, spent.parse().ok()?)));
        let (day, spent) = known.ok_or_else(|| format!("{} is damaged", file.display()))?;
        Ok(Self { file, max, day, spent, reserved: 0 })
    }

    /// Takes the most that a function can cost.
    ///
    /// # Errors
    /// There is not as much left of the day, in words; or it cannot be noted.
    pub(crate) fn reserve(&mut self, most: u64, now_us: i64) -> Result<(), String> {
        let spent = self.today(now_us);
        if spent.saturating_add(most) > self.max {
            let (spent, most, max) = (in_dollars(spent), in_dollars(most), in_dollars(self.max));
            return Err(format!(
                "the budget of today is used up: {spent} of {max} dollars are spent or reserved, and a function may \
                 cost {most}"
            ));
        }
        self.reserved += most;
        self.write().inspect_err(|_| self.reserved -= most)
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
        // A clock that is set back begins no new day.
        if day > self.day {
            (self.day, self.spent) = (day, 0);
        }
        self.spent + self.reserved
    }

    fn write(&self) -> Result<(), String> {
        let partial = self.file.with_extension("partial");
        fs::write(&partial, format!("{} {}\n", self.day, self.spent + self.reserved))
            .and_then(|()| fs::rename(&partial, &self.file))
            .map_err(|error| format!("what functions cost cannot be noted in {}: {error}", self.file.display()))
    }
}

/// An amount in dollars, rounded up to millionths, with two decimals at least.
pub(crate) fn in_dollars(amount: u64) -> String {
    let millionths = amount.div_ceil(1_000_000);
    let part = format!("{:06}", millionths % 1_000_000);
    format!("{}.{:0<2}", millionths / 1_000_000, part.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_spent_on_a_day_than_is_configured_whatever_ends_the_server() {
        let folder = tempfile::TempDir::new().unwrap();
        let open = || Budget::open(folder.path().join("spent"), 100).unwrap();
        let mut budget = open();
        budget.reserve(40, 5).unwrap();
        budget.reserve(60, 5).unwrap();
        let used_up = budget.reserve(1, 5).unwrap_err();
        assert!(used_up.starts_with("the budget of today is used up: 0.000001 of 0.000001 dollars"), "{used_up}");
        budget.settle(40, 10, 6).unwrap();
        assert_eq!(budget.today(6), 70);
        // Nobody knows what has become of the other one.
        let mut budget = open();
        assert!(budget.today(7) == 70 && budget.reserve(31, 7).is_err());
        budget.reserve(30, 7).unwrap();
        // It runs into the next day, which pays all of it.
        assert_eq!(budget.today(DAY_US), 30);
        budget.settle(30, 20, DAY_US + 1).unwrap();
        assert_eq!((budget.today(DAY_US + 1), budget.today(5), open().today(DAY_US + 2)), (20, 20, 20));
        assert_eq!(open().today(2 * DAY_US), 0);
        fs::write(folder.path().join("spent"), "something").unwrap();
        assert!(Budget::open(folder.path().join("spent"), 1).unwrap_err().ends_with("spent is damaged"));
    }

    #[test]
    fn amounts_are_written_as_dollars() {
        let amounts = [0, 2_500_000_000_000, 16_666_700, 1_000_000_000_000, 1].map(in_dollars);
        assert_eq!(amounts, ["0.00", "2.50", "0.000017", "1.00", "0.000001"]);
    }
}
