//! The burst policy: when tasks of a query go to burst workers and when they come back, and how much the query's
//! sources read meanwhile.
//!
//! What must hold: nothing here looks at a clock, a query or a worker. The same readings have the same decisions. The
//! load decides by means of three seconds, and not before six readings since the last move.

use std::collections::VecDeque;

use crate::config::BurstPolicyConfig;

/// The minutes of a day.
pub(crate) const DAY: u16 = 1_440;
/// Readings come once a second. A rate is the difference of two readings this far apart, because burst workers report
/// twice a second. The slope compares it with the rate of this many readings before.
const APART: usize = 3;
const BEFORE: usize = 2;
/// How busy the workers should be after a move, percent.
const TARGET: f64 = 60.0;
/// Above this load of the workers the demand is unknown. A task above it cannot keep up. Percent.
const FULL: f64 = 95.0;
/// How far ahead the load is estimated, seconds.
const AHEAD_S: f64 = 2.0;
/// A query with a smaller part of the load is not the cause of it.
const PART_MIN: f64 = 0.1;
/// While tasks go out, sources read this part, in percent, of what would have the workers full; or this many rows a
/// second.
const THROTTLED: f64 = 85.0;
const THROTTLED_ROWS_MIN: f64 = 1_000.0;
/// The rest after a loss doubles this many times.
const DOUBLINGS: u32 = 8;

/// What a query and its server have done up to a moment. Times of workers are microseconds of the mean worker of the
/// server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// The moment, on the steady clock.
    pub(crate) at_us: i64,
    /// Rows that the sources of the query have read.
    pub(crate) rows: u64,
    /// For how long workers have run tasks of any kind.
    pub(crate) workers_us: u64,
    /// For how long they have run tasks of the query.
    pub(crate) here_us: u64,
    /// For how long burst workers have run tasks of the query.
    pub(crate) away_us: u64,
    /// For how long each of its tasks with a queue has run or waited for a worker, microseconds, and whether it may go.
    pub(crate) tasks_us: Vec<(u64, bool)>,
    /// The share of its tasks that are away, of those that may go; 1 if none may go.
    pub(crate) share: f64,
    /// Whether any of its tasks is away.
    pub(crate) is_away: bool,
    /// Whether the query runs in another flow than before.
    pub(crate) is_other_flow: bool,
    /// The minute of the day.
    pub(crate) minute: u16,
}

/// What is remembered of a query.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    /// The newest first.
    readings: VecDeque<Reading>,
    is_away: bool,
    /// Whether the schedule sent tasks out.
    is_scheduled: bool,
    /// Since when the workers have had room for the whole query, on the steady clock.
    low_since_us: Option<i64>,
    /// It decides nothing before this moment, on the steady clock.
    pub(crate) rests_to_us: i64,
    /// How many flows of it have failed with tasks away since tasks came home.
    losses: u32,
}

impl Policy {
    /// What is to be done after a reading: the share of the tasks that is to be away, which is 0 to bring all back, and
    /// why. In another flow the query begins anew.
    pub(crate) fn decide(&mut self, config: &BurstPolicyConfig, now: Reading) -> Option<(f64, String)> {
        let Reading { at_us, share, is_away, minute, .. } = now;
        if now.is_other_flow && self.is_away {
            self.rest(at_us + (config.slack_us << self.losses));
            self.losses = (self.losses + 1).min(DOUBLINGS);
        } else if self.is_away && !is_away {
            self.losses = 0;
        }
        self.is_away = is_away;
        if now.is_other_flow {
            self.readings.clear();
        }
        self.readings.truncate(APART + BEFORE);
        self.readings.push_front(now);
        let since = |minute, from| (minute + DAY - from) % DAY;
        let is_time = config.schedule.is_some_and(|(from, to)| since(minute, from) < since(to, from));
        self.is_scheduled = is_time || self.is_scheduled && is_away;
        let by_load = self.decide_by_load(config, at_us, share);
        let decision = match (is_time, self.is_scheduled) {
            (true, _) => (share < 1.0).then(|| (1.0, "the time of the schedule has come".into())),
            (_, true) => Some((0.0, "the time of the schedule is over".into())),
            _ => by_load.filter(|_| config.is_automatic),
        };
        decision.filter(|_| at_us >= self.rests_to_us)
    }

    fn decide_by_load(&mut self, config: &BurstPolicyConfig, at_us: i64, share: f64) -> Option<(f64, String)> {
        let [out_above, in_below] = [config.out_above_percent, config.in_below_percent].map(|percent| percent as f64);
        let loads = self.load(0).zip(self.load(BEFORE));
        let is_low = loads.is_some_and(|([_, workers, _, away, full], _)| workers + away < in_below && full < FULL);
        self.low_since_us = self.low_since_us.or(Some(at_us)).filter(|_| is_low);
        let ([rate, workers, here, away, full], [before, ..]) = loads?;
        let slope = (rate - before) * 1e6 / (at_us - self.readings[BEFORE].at_us) as f64;
        let rates = format!("it reads {rate:.0} rows/s, {slope:+.0} each second");
        // Rows that burst workers have read come in lumps.
        let ahead_s = if self.is_away { 0.0 } else { AHEAD_S };
        let expected = workers + here * ahead_s * slope.max(0.0) / rate.max(1.0);
        let target = TARGET.min(out_above);
        if workers > target && expected > out_above && here >= workers * PART_MIN && share < 1.0 {
            let part = if workers > FULL { 1.0 } else { ((expected - target) / here).min(1.0) };
            let [now, soon] = [workers, expected].map(|part| format!("{:.0} %", part.min(100.0)));
            let why = format!("the server's workers are {now} busy, soon {soon}, above {out_above} %; {rates}");
            return Some((share + (1.0 - share) * part, why));
        }
        if full > FULL && here + away >= workers * PART_MIN && share < 1.0 {
            return Some((1.0, format!("one of its tasks had work {full:.0} % of the time; {rates}")));
        }
        let low_us = self.low_since_us.filter(|_| self.is_away).map_or(0, |since_us| at_us - since_us);
        let (low_s, all, both) =
            (low_us / 1_000_000, workers + away, "the server's workers and the burst workers together were");
        let why = format!("{both} less than {in_below} % busy for {low_s} s, now {all:.0} %");
        (low_us >= config.slack_us).then_some((0.0, why))
    }

    /// What happened up to the reading at an index: rows a second; how busy the workers were, and by the query, and
    /// burst workers by it, percent of the time of the workers; and its task with most work that may go, percent of its
    /// own time.
    fn load(&self, index: usize) -> Option<[f64; 5]> {
        let (now, before) = (self.readings.get(index)?, self.readings.get(index + APART)?);
        let span_us = (now.at_us - before.at_us) as f64;
        let percent = |of: fn(&Reading) -> u64| of(now).saturating_sub(of(before)) as f64 * 100.0 / span_us;
        let tasks = now.tasks_us.iter().zip(&before.tasks_us).filter(|((_, may_go), _)| *may_go);
        let full_us = tasks.map(|((now, _), (before, _))| now.saturating_sub(*before)).max().unwrap_or(0);
        let (rate, full) = (percent(|one| one.rows) * 1e4, full_us as f64 * 100.0 / span_us);
        Some([rate, percent(|one| one.workers_us), percent(|one| one.here_us), percent(|one| one.away_us), full])
    }

    /// The rows a second that sources may read while tasks go out; `None` if nothing is known, or if tasks are away,
    /// which may have read some of the rows.
    pub(crate) fn throttle(&self) -> Option<f64> {
        let load = self.load(0).filter(|_| !self.is_away);
        load.map(|[rate, workers, ..]| (rate * THROTTLED / workers).max(THROTTLED_ROWS_MIN))
    }

    /// Tasks moved, of this query up to this share. Earlier readings do not count any more.
    pub(crate) fn moved(&mut self, share: f64) {
        self.is_away |= share > 0.0;
        self.readings.clear();
    }

    /// It decides nothing before this moment, on the steady clock, nor before an earlier rest has ended.
    pub(crate) fn rest(&mut self, to_us: i64) {
        self.rests_to_us = self.rests_to_us.max(to_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many are needed for a decision by the load.
    const READINGS: usize = APART + BEFORE + 1;

    const AUTO: BurstPolicyConfig = BurstPolicyConfig {
        is_automatic: true,
        out_above_percent: 80,
        in_below_percent: 50,
        slack_us: 10_000_000,
        schedule: None,
    };

    /// A query that is played second by second.
    #[derive(Default)]
    struct Played {
        policy: Policy,
        reading: Reading,
        /// Another flow runs in the next second.
        is_other: bool,
    }

    /// A second: how busy the workers are, and by the query, and burst workers by it, percent of the time of all
    /// workers; its fullest task; and rows.
    #[derive(Clone, Copy, Default)]
    struct Second {
        workers: u64,
        here: u64,
        away: u64,
        fullest: u64,
        rows: u64,
    }

    /// The query alone keeps the workers busy.
    fn alone(here: u64, rows: u64) -> Second {
        Second { workers: here, here, rows, ..Second::default() }
    }

    impl Played {
        fn play_at(&mut self, config: &BurstPolicyConfig, minute: u16, second: Second) -> Option<(f64, String)> {
            let (reading, us) = (&mut self.reading, |percent: u64| percent * 10_000);
            reading.at_us += 1_000_000;
            reading.rows += second.rows;
            reading.workers_us += us(second.workers);
            reading.here_us += us(second.here);
            reading.away_us += us(second.away);
            // The second may not go, and has work all the time.
            reading.tasks_us.resize(3, (0, true));
            reading.tasks_us[1] = (reading.tasks_us[1].0 + us(100), false);
            reading.tasks_us[2].0 += us(second.fullest);
            let now = Reading { minute, is_other_flow: std::mem::take(&mut self.is_other), ..reading.clone() };
            self.policy.decide(config, now)
        }

        fn play(&mut self, second: Second) -> Option<(f64, String)> {
            self.play_at(&AUTO, 0, second)
        }

        /// The first decision within so many such seconds: in which, and the share.
        fn until(&mut self, seconds: usize, second: Second) -> Option<(usize, f64)> {
            (1..=seconds).find_map(|count| Some((count, self.play(second)?.0)))
        }

        /// A decision was carried out, and so much of it was possible.
        fn moves(&mut self, decided: f64, share: f64) {
            self.policy.moved(decided);
            self.has_away(share);
        }

        fn has_away(&mut self, share: f64) {
            (self.reading.share, self.reading.is_away) = (share, share > 0.0);
        }

        /// The flow has failed, and another one runs with all tasks at home.
        fn fails(&mut self) {
            self.is_other = true;
            self.has_away(0.0);
        }
    }

    #[test]
    fn a_query_with_too_much_to_do_goes_out_and_says_why() {
        let steady = |here| vec![alone(here, 1_000); 9];
        let rising = |here: u64, rows: u64| (0..9).map(|second| alone(here, 1_000 + second * rows)).collect();
        let full = |fullest| vec![Second { fullest, ..alone(20, 1_000) }; 9];
        type Row = (Vec<Second>, Option<(f64, &'static str)>);
        let table: [Row; 11] = [
            (steady(70), None),
            (steady(80), None),
            (
                steady(85),
                Some((
                    0.294,
                    "the server's workers are 85 % busy, soon 85 %, above 80 %; it reads 1000 rows/s, +0 each",
                )),
            ),
            (steady(99), Some((1.0, "are 99 % busy, soon 99 %, above 80 %; it reads 1000 rows/s, +0 each second"))),
            (rising(70, 200), Some((0.365, "are 70 % busy, soon 86 %, above 80 %; it reads 1800 rows/s, +200 each"))),
            (rising(65, 20), None),
            // It rises, but there is much room.
            (rising(30, 1_000), None),
            (full(94), None),
            (full(97), Some((1.0, "one of its tasks had work 97 % of the time; it reads 1000 rows/s, +0 each second"))),
            // Other queries keep the workers busy.
            (vec![Second { here: 8, ..alone(99, 1_000) }; 9], None),
            // Its tasks wait for a worker.
            (vec![Second { here: 8, fullest: 99, ..alone(99, 1_000) }; 9], None),
        ];
        for (row, (seconds, expected)) in table.into_iter().enumerate() {
            let mut played = Played::default();
            let found = seconds.into_iter().find_map(|second| played.play(second));
            match (&found, expected) {
                (None, None) => {}
                (Some((share, why)), Some((wanted, text))) => {
                    assert!((share - wanted).abs() < 0.01 && why.contains(text), "{row}: {share}: {why}");
                }
                other => panic!("{row}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_short_peak_decides_nothing_nor_do_lumps() {
        let mut played = Played::default();
        assert_eq!(played.until(10, alone(70, 1_000)), None);
        assert_eq!(played.play(alone(95, 1_000)), None);
        assert_eq!(played.until(10, alone(70, 1_000)), None);
        // Burst workers tell twice a second, so some seconds have three tellings and others one.
        played.moves(0.5, 0.5);
        assert_eq!(played.until(10, alone(62, 1_000)), None);
        for rows in [500, 1_500, 1_000, 1_500, 500, 1_000, 500, 1_500, 1_000, 1_000] {
            assert_eq!(played.play(alone(62, rows)), None);
        }
        let mut played = Played::default();
        assert_eq!(played.until(10, alone(90, 1_000)).unwrap().0, READINGS);
        played.moves(0.5, 0.5);
        assert_eq!(played.until(10, alone(90, 1_000)).unwrap().0, READINGS, "what was before a move does not count");
    }

    #[test]
    fn a_share_that_was_not_enough_is_topped_up_whatever_went() {
        let (mut played, mut shares) = (Played::default(), Vec::new());
        for _ in 0..4 {
            let (_, share) = played.until(10, Second { away: 50, ..alone(90, 1_000) }).unwrap();
            shares.push((share * 100.0).round());
            played.moves(share, share);
        }
        assert_eq!(shares, [33.0, 56.0, 70.0, 80.0]);
        // A worker has room for one of six tasks only, so the wish stays.
        let mut played = Played::default();
        for _ in 0..3 {
            assert_eq!(played.until(10, alone(99, 1_000)), Some((READINGS, 1.0)));
            played.moves(1.0, 1.0 / 6.0);
        }
        played.moves(1.0, 1.0);
        assert_eq!(played.until(60, alone(99, 1_000)), None, "all of it is away");
    }

    #[test]
    fn a_query_that_has_room_at_home_comes_back_after_a_while() {
        let mut played = Played::default();
        played.moves(1.0, 1.0);
        let (high, low) = (Second { away: 60, ..alone(10, 1_000) }, Second { away: 20, ..alone(10, 1_000) });
        assert_eq!(played.until(30, high), None);
        assert_eq!(played.until(9, low), None);
        assert_eq!(played.until(3, high), None);
        let found = (1..30).find_map(|second| Some((second, played.play(low)?)));
        let (second, (share, why)) = found.unwrap();
        assert!((11..=13).contains(&second) && share == 0.0, "{second}: {share}");
        assert_eq!(
            why,
            "the server's workers and the burst workers together were less than 50 % busy for 10 s, now 30 %"
        );
        // A task that is full there would be full at home.
        played.moves(1.0, 1.0);
        assert_eq!(played.until(30, Second { fullest: 99, ..low }), None);
        // Applications keep the workers busy.
        played.moves(1.0, 1.0);
        assert_eq!(played.until(30, Second { workers: 45, ..low }), None);
    }

    /// The moves within an hour of a query that needs so much of the workers for so many seconds each.
    fn moves(spans: [usize; 2], needs: [u64; 2]) -> usize {
        let (mut played, mut moves) = (Played::default(), 0);
        for second in 0..3_600 {
            let need = needs[usize::from(second % (spans[0] + spans[1]) >= spans[0])];
            let is_away = played.reading.is_away;
            let here = if is_away { 5 } else { need.min(100) };
            // In lumps.
            let away = if is_away { need * [2, 1, 3, 2][second % 4] / 2 } else { 0 };
            if let Some((share, _)) = played.play(Second { away, ..alone(here, 1_000) }) {
                moves += 1;
                played.moves(share, share);
            }
        }
        moves
    }

    #[test]
    fn a_square_wave_does_not_make_it_flap() {
        // Between the bounds nothing happens.
        assert_eq!(moves([5, 5], [78, 55]), 0);
        // It goes out once, and stays while the lows are shorter than the slack.
        assert_eq!(moves([10, 5], [150, 10]), 1);
        // Bursts that are far apart are bursts: one move out and one back for each.
        assert_eq!(moves([60, 540], [150, 10]), 12);
        assert_eq!(moves([30, 30], [150, 10]), 120);
    }

    #[test]
    fn of_two_queries_the_second_goes_only_if_the_first_was_not_enough() {
        let [mut one, mut other] = [Played::default(), Played::default()];
        let busy = |here| Second { here, ..alone(95, 1_000) };
        assert_eq!(one.until(10, busy(60)).unwrap().0, READINGS);
        assert_eq!(other.until(READINGS - 1, busy(35)), None);
        // The first goes out, and both are measured anew.
        one.moves(0.58, 0.58);
        other.moves(0.0, 0.0);
        assert_eq!(other.until(30, Second { here: 35, ..alone(60, 1_000) }), None);
        assert_eq!(other.until(30, busy(35)).unwrap().0, 2);
    }

    #[test]
    fn a_rest_ends_and_rests_after_losses_are_longer_and_longer() {
        let mut played = Played::default();
        assert_eq!(played.until(10, alone(99, 1_000)).unwrap().0, READINGS);
        played.policy.rest(played.reading.at_us + AUTO.slack_us);
        played.policy.rest(played.reading.at_us + 1);
        assert_eq!(played.until(30, alone(99, 1_000)).unwrap().0, 10);
        let mut rests = Vec::new();
        for _ in 0..10 {
            played.moves(1.0, 1.0);
            played.fails();
            rests.push(played.until(10_000, alone(99, 1_000)).unwrap().0);
        }
        assert_eq!(rests, [11, 21, 41, 81, 161, 321, 641, 1_281, 2_561, 2_561]);
        // It comes home well.
        played.moves(1.0, 1.0);
        assert_eq!(played.play(alone(10, 1_000)), None);
        played.moves(0.0, 0.0);
        assert_eq!(played.play(alone(10, 1_000)), None);
        played.fails();
        assert_eq!(played.until(30, alone(99, 1_000)).unwrap().0, READINGS, "nothing of it was away");
        played.moves(1.0, 1.0);
        played.fails();
        assert_eq!(played.until(30, alone(99, 1_000)).unwrap().0, 11);
    }

    #[test]
    fn tasks_that_are_away_do_not_stand_for_others_that_may_go() {
        let mut played = Played::default();
        // Those that are away may not go any more.
        (played.reading.share, played.reading.is_away) = (0.0, true);
        assert_eq!(played.until(10, alone(99, 1_000)), Some((READINGS, 1.0)));
        // None may go.
        played.moves(1.0, 1.0);
        played.reading.is_away = false;
        assert_eq!(played.until(30, alone(99, 1_000)), None);
    }

    #[test]
    fn another_flow_is_measured_anew() {
        let mut played = Played::default();
        assert_eq!(played.until(5, alone(10, 1_000)), None);
        played.is_other = true;
        // It has begun before, and has done much.
        (played.reading.rows, played.reading.workers_us, played.reading.here_us) = (1 << 40, 1 << 40, 1 << 40);
        assert_eq!(played.until(30, alone(10, 1_000)), None);
        // It has done less than the one before.
        played.is_other = true;
        played.reading = Reading { at_us: played.reading.at_us, ..Reading::default() };
        assert_eq!(played.until(30, alone(10, 1_000)), None);
    }

    #[test]
    fn a_throttle_is_what_the_workers_can_do() {
        let mut played = Played::default();
        assert_eq!(played.policy.throttle(), None, "nothing is known yet");
        played.until(READINGS, alone(95, 20_000)).unwrap();
        assert_eq!(played.policy.throttle().unwrap().round(), 17_895.0);
        // With room there is none below what is read.
        played.until(READINGS, alone(50, 20_000));
        assert_eq!(played.policy.throttle().unwrap().round(), 34_000.0);
        played.until(READINGS, alone(95, 0));
        assert_eq!(played.policy.throttle(), Some(THROTTLED_ROWS_MIN), "a query that reads nothing may begin");
        played.has_away(0.5);
        played.until(READINGS, alone(50, 20_000));
        assert_eq!(played.policy.throttle(), None, "burst workers may have read some of the rows");
    }

    #[test]
    fn a_schedule_has_all_tasks_away_and_brings_them_back() {
        let config = BurstPolicyConfig { is_automatic: false, schedule: Some((480, 540)), ..AUTO };
        let mut played = Played::default();
        for (minute, share, expected) in [
            // A statement has sent it.
            (479, 0.5, None),
            (480, 0.5, Some(1.0)),
            (481, 1.0, None),
            // A worker has handed its tasks back, or has too few places.
            (500, 0.0, Some(1.0)),
            (501, 0.3, Some(1.0)),
            (540, 1.0, Some(0.0)),
            (541, 0.3, Some(0.0)),
            (542, 0.0, None),
            (543, 1.0, None),
        ] {
            played.moves(0.0, share);
            let decided = played.play_at(&config, minute, alone(10, 1_000)).map(|(share, _)| share);
            assert_eq!(decided, expected, "at {minute}");
        }
        // A statement wins for a while.
        played.moves(0.0, 0.0);
        played.policy.rest(played.reading.at_us + 3_000_000);
        let at_480 = |played: &mut Played| played.play_at(&config, 480, alone(10, 1_000)).is_some();
        assert_eq!([(); 4].map(|()| at_480(&mut played)), [false, false, true, true]);
        let over_midnight = |minute| {
            let config = BurstPolicyConfig { schedule: Some((1_380, 60)), ..config };
            Played::default().play_at(&config, minute, alone(10, 1_000)).is_some()
        };
        assert_eq!([1_379, 1_380, 0, 59, 60].map(over_midnight), [false, true, true, true, false]);
    }
}
