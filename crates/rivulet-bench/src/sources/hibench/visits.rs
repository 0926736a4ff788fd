//! Visits of web pages: the record that HiBench's streaming workloads read, and its parts.
//!
//! There is a table of so many visits, which is read round and round; a visit is a function of the seed and its place
//! in the table. The record is a line of text, cut or filled up with zeros to the length that makes it 200 bytes
//! together with its key.

use std::sync::Arc;

use super::super::random::{Draws, Seed};
use super::super::text::TextColumn;

/// The bytes of a record beside its key, which is the time in milliseconds as 13 digits.
const RECORD_LENGTH: usize = 200 - 13;

/// Agents that most visits come by, with the part of a hundred that each has; what is left goes to the others.
const AGENTS: [(&str, u64); 8] = [
    ("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)", 13),
    ("Mozilla/4.0 (compatible; MSIE 7.0; Windows NT 5.1)", 12),
    ("Mozilla/5.0 (compatible; MSIE 9.0; Windows NT 6.1)", 11),
    ("Mozilla/5.0 (Windows; U; Windows NT 5.1) Firefox/3.6", 10),
    ("Mozilla/5.0 (Macintosh; Intel Mac OS X) Safari/533.1", 9),
    ("Mozilla/5.0 (X11; Linux x86_64) Chrome/17.0", 8),
    ("Mozilla/5.0 (iPhone; U; CPU iPhone OS 4_0) Safari/531", 7),
    ("Opera/9.80 (Windows NT 6.0) Presto/2.7", 6),
];
/// How many other agents there are.
const OTHER_AGENTS: u64 = 2_000;

/// Countries, each with its language.
const COUNTRIES: [(&str, &str); 16] = [
    ("ARG", "ARG-ES"),
    ("AUS", "AUS-EN"),
    ("BRA", "BRA-PT"),
    ("CAN", "CAN-FR"),
    ("CHN", "CHN-ZH"),
    ("DEU", "DEU-DE"),
    ("EGY", "EGY-AR"),
    ("ESP", "ESP-ES"),
    ("FRA", "FRA-FR"),
    ("GBR", "GBR-EN"),
    ("IND", "IND-HI"),
    ("ITA", "ITA-IT"),
    ("JPN", "JPN-JA"),
    ("KOR", "KOR-KO"),
    ("USA", "USA-EN"),
    ("YEM", "YEM-AR"),
];

/// How many words people search for.
const SEARCH_WORDS: u64 = 1_000;
/// Days from 1970-01-01 to 2012-05-01.
const DAYS: u64 = 15_461;

/// What values are drawn for.
#[derive(Clone, Copy, Debug)]
enum Lane {
    Ip,
    Url,
    Date,
    Revenue,
    Agent,
    Country,
    SearchWord,
    Duration,
}

/// A text of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    Record,
    Ip,
    Url,
    Date,
    UserAgent,
    CountryCode,
    LanguageCode,
    SearchWord,
}

/// The table of visits.
#[derive(Clone, Debug)]
pub(super) struct Visits {
    seed: Seed,
    rows: u64,
    ips: u64,
    /// "0" to "255", each with its point behind.
    octets: Arc<[String]>,
    search_words: Arc<[String]>,
}

impl Visits {
    pub(super) fn new(seed: u64, rows: u64, ips: u64) -> Self {
        let seed = Seed::new(seed);
        Self {
            seed,
            rows,
            ips,
            octets: (0..256).map(|octet| format!("{octet}.")).collect(),
            search_words: (0..SEARCH_WORDS).map(|number| search_word(seed, number)).collect(),
        }
    }

    /// About how many bytes such a text has.
    pub(super) fn typical_length(text: Text) -> usize {
        match text {
            Text::Record => RECORD_LENGTH,
            Text::Url | Text::UserAgent => 60,
            _ => 16,
        }
    }

    #[inline(always)]
    fn draws(&self, number: u64, lane: Lane) -> Draws {
        self.seed.draws(number % self.rows, lane as u64)
    }

    /// What the visit earned, at least 0 and below 1.
    pub(super) fn revenue(&self, number: u64) -> f64 {
        self.draws(number, Lane::Revenue).below(1_000_000_000) as f64 / 1e9
    }

    /// How long it took, in seconds.
    pub(super) fn duration_s(&self, number: u64) -> i64 {
        1 + self.draws(number, Lane::Duration).below(10) as i64
    }

    /// Appends one text of visit `number`.
    #[inline]
    pub(super) fn push(&self, text: Text, number: u64, out: &mut TextColumn) {
        match text {
            Text::Record => self.push_record(number, out),
            Text::Ip => self.push_ip(number, out),
            Text::Url => {
                let mut draws = self.draws(number, Lane::Url);
                let length = 10 + draws.below(90) as usize;
                out.push_letters(&mut draws.words(), length);
            }
            Text::Date => {
                let (year, month, day) = civil(self.draws(number, Lane::Date).below(DAYS));
                out.push_number(year, 4);
                out.push("-");
                out.push_number(month, 2);
                out.push("-");
                out.push_number(day, 2);
            }
            Text::UserAgent => {
                let mut draws = self.draws(number, Lane::Agent);
                let mut part = draws.below(100);
                for (agent, percent) in AGENTS {
                    if part < percent {
                        return out.push(agent);
                    }
                    part -= percent;
                }
                out.push("Agent/");
                out.push_number(draws.below(OTHER_AGENTS), 1);
                out.push(".0 (compatible; Windows NT 5.1)");
            }
            Text::CountryCode => out.push(self.country(number).0),
            Text::LanguageCode => out.push(self.country(number).1),
            Text::SearchWord => {
                let word = self.draws(number, Lane::SearchWord).below(SEARCH_WORDS);
                out.push(&self.search_words[word as usize]);
            }
        }
    }

    fn country(&self, number: u64) -> (&'static str, &'static str) {
        COUNTRIES[self.draws(number, Lane::Country).below(COUNTRIES.len() as u64) as usize]
    }

    #[inline]
    fn push_ip(&self, number: u64, out: &mut TextColumn) {
        /// Apart from the visits, which are drawn for with the same seed.
        const NUMBERS_FROM: u64 = 1 << 62;
        let ip = self.draws(number, Lane::Ip).below(self.ips);
        let mut draws = self.seed.draws(NUMBERS_FROM + ip, 0);
        for octet in [1 + draws.below(254), draws.below(255), draws.below(255)] {
            out.push(&self.octets[octet as usize]);
        }
        let last = &self.octets[1 + draws.below(254) as usize];
        out.push(&last[..last.len() - 1]);
    }

    fn push_record(&self, number: u64, out: &mut TextColumn) {
        out.push_number(number % self.rows, 1);
        out.push("\t");
        for text in [Text::Ip, Text::Url, Text::Date] {
            self.push(text, number, out);
            out.push(",");
        }
        out.push("0.");
        out.push_number(self.draws(number, Lane::Revenue).below(1_000_000_000), 9);
        for text in [Text::UserAgent, Text::CountryCode, Text::LanguageCode, Text::SearchWord] {
            out.push(",");
            self.push(text, number, out);
        }
        out.push(",");
        out.push_number(self.duration_s(number) as u64, 1);
        match RECORD_LENGTH.checked_sub(out.length()) {
            Some(missing) => (0..missing).for_each(|_| out.push("0")),
            None => out.truncate(RECORD_LENGTH),
        }
    }
}

/// A word of four to ten letters.
fn search_word(seed: Seed, number: u64) -> String {
    /// Apart from visits and addresses.
    const NUMBERS_FROM: u64 = 3 << 61;
    let mut draws = seed.draws(NUMBERS_FROM + number, 0);
    let length = 4 + draws.below(7);
    (0..length).map(|_| char::from(b'a' + draws.below(26) as u8)).collect()
}

/// Year, month and day of a day since 1970-01-01. Years are counted from March of year 0, so that the leap day is the
/// last of its year (after "chrono-compatible low-level date algorithms", H. Hinnant).
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use arrow::array::AsArray;

    use super::*;

    fn texts(visits: &Visits, text: Text, numbers: std::ops::Range<u64>) -> Vec<String> {
        let mut column = TextColumn::with_capacity(0, 0);
        for number in numbers {
            visits.push(text, number, &mut column);
            column.end();
        }
        column.finish().as_string::<i32>().iter().flatten().map(str::to_owned).collect()
    }

    #[test]
    fn a_record_has_its_parts_in_their_places() {
        let visits = Visits::new(1, 1_000, 100);
        let records = texts(&visits, Text::Record, 0..500);
        let ips = texts(&visits, Text::Ip, 0..500);
        let urls = texts(&visits, Text::Url, 0..500);
        for (number, record) in records.iter().enumerate() {
            assert_eq!(record.len(), RECORD_LENGTH);
            let fields: Vec<&str> = record.split(|c: char| c.is_whitespace() || c == ',').collect();
            assert_eq!((fields[0], fields[1]), (number.to_string().as_str(), ips[number].as_str()));
            assert_eq!(fields[2], urls[number]);
        }
    }

    #[test]
    fn the_table_is_read_round_and_round_and_has_so_many_addresses() {
        let visits = Visits::new(1, 5_000, 100);
        assert_eq!(texts(&visits, Text::Record, 0..3), texts(&visits, Text::Record, 5_000..5_003));
        let ips: HashSet<_> = texts(&visits, Text::Ip, 0..5_000).into_iter().collect();
        assert_eq!(ips.len(), 100);
        assert!(ips.iter().all(|ip| ip.split('.').map(|octet| octet.parse::<u8>()).filter(Result::is_ok).count() == 4));
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(789), (1972, 2, 29));
        assert_eq!(civil(DAYS), (2012, 5, 1));
    }
}
