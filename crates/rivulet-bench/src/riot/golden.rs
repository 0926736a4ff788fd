//! What must come out: the golden results of ETL and PRED, and for STATS a model of its own, which has the published
//! figures.
//!
//! Rows may come in any order; each has the number of its event, or is unlike all others.

use std::collections::{HashMap, HashSet};

use super::Topology;
use super::trace::{QUANTITIES, READINGS};

/// Values behind a forecast of STATS, and how far it reaches.
const REGRESSED: usize = 10;
/// How STATS calls the quantities.
const TYPES: [&str; QUANTITIES] = ["temp", "humid", "light", "dust", "airq"];
/// By how much of its count a number of different sensors may be off.
const DISTINCT_ERROR_MAX: f64 = 0.05;

/// Compares the texts that came out of [`Topology::golden_passes`] over the trace with what must come out.
///
/// # Errors
/// The first difference, in words.
pub fn check(topology: Topology, texts: &str) -> Result<(), String> {
    match topology {
        Topology::Etl => etl(texts),
        Topology::Pred => pred(texts),
        Topology::Stats => stats(texts),
    }
    .map_err(|difference| format!("{} is not golden: {difference}", topology.name()))
}

/// Each golden row once, and as many in SenML.
fn etl(texts: &str) -> Result<(), String> {
    let (senml, mut rows): (Vec<_>, Vec<_>) = texts.lines().partition(|line| line.starts_with('{'));
    let mut golden: Vec<_> = include_str!("../../riot/golden_etl.csv").lines().collect();
    rows.sort_unstable();
    golden.sort_unstable();
    for place in 0..rows.len().max(golden.len()) {
        let (row, right) = (rows.get(place), golden.get(place));
        if row != right {
            return Err(format!("{row:?} where {right:?} should be"));
        }
    }
    let packs: HashSet<_> = senml.iter().filter(|text| text.ends_with("\"}]}")).collect();
    match packs.len() == golden.len() && senml.len() == golden.len() {
        true => Ok(()),
        false => Err(format!("{} packs of SenML, {} of them different", senml.len(), packs.len())),
    }
}

/// Class and value of every row, and the errors by their number and mean.
fn pred(texts: &str) -> Result<(), String> {
    /// From this row on there is a mean.
    const FIRST_ERROR: usize = 1_069;
    const MEAN_ERROR: f64 = 0.569_014;
    let golden: Vec<Vec<&str>> =
        include_str!("../../riot/golden_pred.csv").lines().skip(1).map(|line| line.split(',').collect()).collect();
    let events = Topology::Pred.golden_passes() as usize * golden.len();
    let (mut classes, mut values) = (vec![false; events], vec![false; events]);
    let mut sum = 0.0;
    for text in texts.lines() {
        let wrong = || format!("the text '{text}'");
        let (number, rest) = text.split_once(',').ok_or_else(wrong)?;
        let number: usize = number.parse().ok().filter(|number| *number < events).ok_or_else(wrong)?;
        let row = &golden[number % golden.len()];
        let result = rest.split_once(",RES:").ok_or_else(wrong)?.1;
        if rest.contains(",DTC,") {
            let class = ["BAD", "GOOD", "VERYGOOD"].iter().position(|class| *class == result).ok_or_else(wrong)?;
            if row[2] != class.to_string() || std::mem::replace(&mut classes[number], true) {
                return Err(wrong());
            }
            continue;
        }
        let (value, error) = result.split_once(",ERROR:").ok_or_else(wrong)?;
        let (value, error): (f64, f64) = (value.parse().map_err(|_| wrong())?, error.parse().map_err(|_| wrong())?);
        let is_value = is_close(value, row[3].parse().map_err(|_| wrong())?, 1e-6);
        let is_error = match number < READINGS.len() {
            true => row[4].parse() == Ok(error),
            false => error.is_finite() == (number >= FIRST_ERROR),
        };
        if !is_value || !is_error || std::mem::replace(&mut values[number], true) {
            return Err(wrong());
        }
        if error.is_finite() {
            sum += error.abs();
        }
    }
    if !classes.iter().all(|came| *came) || !values.iter().all(|came| *came) {
        return Err("texts are missing".into());
    }
    let mean = sum / (events - FIRST_ERROR) as f64;
    match is_close(mean, MEAN_ERROR, 1e-6) {
        true => Ok(()),
        false => Err(format!("the mean error is {mean}, and not {MEAN_ERROR}")),
    }
}

/// Every value, by the model; the number of different sensors about.
fn stats(texts: &str) -> Result<(), String> {
    let expected = model(Topology::Stats.golden_passes() as usize);
    let mut came = vec![[false; 3]; expected.len()];
    for text in texts.lines() {
        let wrong = || format!("the text '{}'", text.chars().take(200).collect::<String>());
        let (meta, result) = text.split_once(';').ok_or_else(wrong)?;
        let number: usize = meta.split(',').next().and_then(|number| number.parse().ok()).ok_or_else(wrong)?;
        let mut parts = result.splitn(3, '-');
        let mut part = || parts.next().ok_or_else(wrong);
        let (quantity, analytic, value) = (part()?, part()?, part()?);
        let quantity = TYPES.iter().position(|known| *known == quantity).ok_or_else(wrong)?;
        let place = number * QUANTITIES + quantity;
        let right = expected.get(place).ok_or_else(wrong)?;
        let number_of = |text: &str| text.parse::<f64>().map_err(|_| wrong());
        let (kind, is_right) = match analytic {
            "SLR" => {
                let ahead = value.trim_end_matches('#').split('#').map(number_of).collect::<Result<Vec<_>, _>>()?;
                let is_close = |right: &[f64; REGRESSED]| {
                    ahead.len() == REGRESSED && ahead.iter().zip(right).all(|(one, right)| is_close(*one, *right, 1e-4))
                };
                (0, right.ahead.as_ref().is_some_and(is_close))
            }
            "SOM" => (1, number_of(value)? == right.moment),
            "DAC" => (2, is_close(number_of(value)?, right.sensors, DISTINCT_ERROR_MAX)),
            _ => return Err(wrong()),
        };
        if !is_right || std::mem::replace(&mut came[place][kind], true) {
            return Err(format!("{}; {right:?} is expected", wrong()));
        }
    }
    let is_whole = |(came, right): (&[bool; 3], &Expected)| *came == [right.ahead.is_some(), true, true];
    match came.iter().zip(&expected).all(is_whole) {
        true => Ok(()),
        false => Err("texts are missing".into()),
    }
}

fn is_close(one: f64, right: f64, part: f64) -> bool {
    (one - right).abs() <= part * (1.0 + right.abs())
}

/// What STATS gives for a quantity of an event.
#[derive(Debug, Default, PartialEq)]
struct Expected {
    /// The next values by the line through the last ones, from the eleventh on.
    ahead: Option<[f64; REGRESSED]>,
    moment: f64,
    /// Different sensors so far.
    sensors: f64,
}

/// The same for each quantity of each event.
fn model(passes: usize) -> Vec<Expected> {
    #[derive(Default)]
    struct Key {
        kalman: Kalman,
        smooth: Vec<f64>,
        counts: HashMap<u32, f64>,
        moment: f64,
    }
    let mut keys: HashMap<(&str, usize), Key> = HashMap::new();
    let mut sensors = HashSet::new();
    let mut expected = Vec::with_capacity(passes * READINGS.len() * QUANTITIES);
    for reading in (0..passes).flat_map(|_| READINGS.iter()) {
        sensors.insert(reading.source.as_str());
        for (quantity, value) in reading.values.iter().enumerate() {
            let key = keys.entry((reading.source.as_str(), quantity)).or_default();
            key.smooth.push(key.kalman.next(f64::from(*value)));
            let count = key.counts.entry(value.to_bits()).or_default();
            *count += 1.0;
            key.moment += 2.0 * *count - 1.0;
            expected.push(Expected { ahead: ahead(&key.smooth), moment: key.moment, sensors: sensors.len() as f64 });
        }
    }
    expected
}

/// Kalman's filter of one value.
struct Kalman {
    x: f64,
    p: f64,
}

impl Default for Kalman {
    fn default() -> Self {
        Self { x: 0.0, p: 30.0 }
    }
}

impl Kalman {
    fn next(&mut self, z: f64) -> f64 {
        self.p += 0.125;
        let gain = self.p / (self.p + 0.32);
        self.x += gain * (z - self.x);
        self.p *= 1.0 - gain;
        self.x
    }
}

/// The next values by the line through the last ones; x is how many have come.
fn ahead(values: &[f64]) -> Option<[f64; REGRESSED]> {
    if values.len() <= REGRESSED {
        return None;
    }
    let last = &values[values.len() - REGRESSED..];
    let x = |place: usize| (values.len() - REGRESSED + 1 + place) as f64;
    let mean_x = (x(0) + x(REGRESSED - 1)) / 2.0;
    let mean_y = last.iter().sum::<f64>() / REGRESSED as f64;
    let above: f64 = last.iter().enumerate().map(|(place, y)| (x(place) - mean_x) * (y - mean_y)).sum();
    let below: f64 = (0..REGRESSED).map(|place| (x(place) - mean_x).powi(2)).sum();
    Some(std::array::from_fn(|step| mean_y + above / below * (x(REGRESSED + step) - mean_x)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published figures: all temperatures as of one sensor.
    #[test]
    fn the_model_of_stats_has_the_published_figures() {
        let mut kalman = Kalman::default();
        let smooth: Vec<f64> = READINGS.iter().map(|reading| kalman.next(f64::from(reading.values[0]))).collect();
        let is_near = |one: f64, right: f64| assert!((one - right).abs() < 1e-4, "{one} is not {right}");
        for (one, right) in smooth.iter().zip([7.915914, 7.674746, 19.310387, 15.741342, 24.736078]) {
            is_near(*one, right);
        }
        is_near(smooth[999], 13.026179);
        let forecasts: Vec<_> = (1..=smooth.len()).filter_map(|count| ahead(&smooth[..count])).collect();
        assert_eq!(forecasts.len(), 990);
        for (forecast, right) in
            [(forecasts[0], [23.21301, 23.91656, 24.62011]), (forecasts[989], [15.39636, 15.19852, 15.00068])]
        {
            forecast.iter().zip(right).for_each(|(one, right)| is_near(*one, right));
        }
        let expected = model(20);
        assert_eq!(expected.iter().filter(|one| one.ahead.is_some()).count(), 60_600);
        assert_eq!((expected.len(), expected.last().unwrap().sensors), (100_000, 788.0));
    }

    #[test]
    fn a_text_that_differs_is_told() {
        let golden = include_str!("../../riot/golden_etl.csv");
        let senml: String = (0..1_000).map(|number| format!("{{{number}\"}}]}}\n")).collect();
        assert_eq!(check(Topology::Etl, &format!("{senml}{golden}")), Ok(()));
        let error = check(Topology::Etl, &golden.replacen("building1", "building2", 1)).unwrap_err();
        assert!(error.starts_with("etl is not golden: Some(\"1422748"), "{error}");
        assert!(check(Topology::Etl, golden).unwrap_err().contains("0 packs"));
        for (topology, text) in [
            (Topology::Pred, "0,1422748800000,ci4,6.1,46.1,DTC,obsVal:8.0,RES:BAD"),
            (Topology::Stats, "0,1422748800000,ci4,6.1,46.1;temp-SOM-2"),
            (Topology::Stats, "9999999,1422748800000,ci4,6.1,46.1;temp-SOM-2"),
        ] {
            assert!(check(topology, text).unwrap_err().contains(text), "{text}");
        }
        let missing = check(Topology::Stats, "0,1422748800000,ci4,6.1,46.1;temp-SOM-1").unwrap_err();
        assert!(missing.ends_with("texts are missing"), "{missing}");
    }

    #[test]
    fn values_within_their_part_are_close() {
        assert!(is_close(100.0, 100.4, 0.01) && !is_close(100.0, 103.0, 0.01));
    }
}
