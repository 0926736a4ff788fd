//! States of fixed size: a few 64-bit words that live in a pane.
//!
//! Every state can be merged with another of its kind, so a window is the merge of its panes. Variances and regressions
//! are kept as means and centred sums, updated after Welford and merged after Chan, Golub and LeVeque, which stays
//! accurate where sums of squares cancel. The number of values in a state is counted beside it, once for all states
//! over the same rows (see [`layout`](super::layout)).

use rivulet_dataflow::canonical_float;

use super::{AggregateFunction, LAST_VALUES_MAX};

/// The content of a state of fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FixedKind {
    /// sum
    SumFloat,
    /// sum in 128 bits (low, high): it cannot overflow, so whether the result fits does not depend on the order
    SumInteger,
    /// sum of numbers that may be retracted: two words, the second of which holds the rounding error of the first, so
    /// that a retraction leaves nothing behind; then the counts of NaN, infinite and minus infinite values
    SumUndone,
    /// the least value; without values NaN, which is the greatest number
    MinFloat,
    /// the greatest value
    MaxFloat,
    /// the least value
    MinInteger,
    /// the greatest value
    MaxInteger,
    /// the bits that all values have
    BitAnd,
    /// the bits that any value has
    BitOr,
    /// the bits that an odd number of values has
    BitXor,
    /// mean, centred sum of squares
    Variance,
    /// mean of x, mean of y, centred sums of x x, y y and x y
    Regression,
    /// event time (`i64::MAX` without values), bits of the value
    First,
    /// event time (`i64::MIN` without values), bits of the value
    Last,
    /// variance of the process (`i64::MIN` without values), estimate, its variance; the last value, variance of the
    /// measurement
    Kalman,
    /// how many values count (`i64::MIN` without values), their mean; how many there have been, and room for the last
    AvgLast,
}

/// The first word of a state without values.
const NOTHING: u64 = i64::MIN as u64;

impl FixedKind {
    pub(crate) fn words(self) -> usize {
        match self {
            Self::SumFloat | Self::MinFloat | Self::MaxFloat | Self::MinInteger | Self::MaxInteger => 1,
            Self::BitAnd | Self::BitOr | Self::BitXor => 1,
            Self::SumInteger | Self::Variance | Self::First | Self::Last => 2,
            Self::Regression | Self::SumUndone | Self::Kalman => 5,
            Self::AvgLast => 3 + LAST_VALUES_MAX,
        }
    }

    /// Whether the result depends on the number of values.
    pub(crate) fn is_counted(self) -> bool {
        !matches!(self, Self::First | Self::Last | Self::Kalman | Self::AvgLast)
    }

    /// Writes the state without values; `state` is zeroed.
    pub(crate) fn initialize(self, state: &mut [u64]) {
        match self {
            Self::MinFloat => state[0] = f64::NAN.to_bits(),
            Self::MaxFloat => state[0] = f64::NEG_INFINITY.to_bits(),
            Self::MinInteger | Self::First => state[0] = i64::MAX as u64,
            Self::MaxInteger | Self::Last | Self::Kalman | Self::AvgLast => state[0] = NOTHING,
            Self::BitAnd => state[0] = u64::MAX,
            Self::SumFloat | Self::SumInteger | Self::SumUndone | Self::Variance | Self::Regression => {}
            Self::BitOr | Self::BitXor => {}
        }
    }

    /// Merges the states at `offset` of `entries`, in order, into `state`, which holds `count` values; `count_of` gives
    /// the number of values in an entry.
    pub(crate) fn merge<'a>(
        self,
        state: &mut [u64],
        mut count: u64,
        entries: impl Iterator<Item = &'a [u64]>,
        offset: usize,
        count_of: impl Fn(&[u64]) -> u64,
    ) {
        let words = self.words();
        let others = entries.map(|entry| (entry, &entry[offset..offset + words]));
        let mut counted = |other: u64| {
            count = count.saturating_add(other);
            count - other
        };
        match self {
            Self::SumFloat => {
                state[0] = others.fold(float(state[0]), |sum, (_, other)| sum + float(other[0])).to_bits();
            }
            Self::SumInteger => others.for_each(|(_, other)| put_sum(state, sum(state).wrapping_add(sum(other)))),
            Self::SumUndone => others.for_each(|(_, other)| {
                add_exactly(state, float(other[0]));
                add_exactly(state, float(other[1]));
                (2..5).for_each(|word| state[word] = state[word].wrapping_add(other[word]));
            }),
            Self::MinFloat => others.for_each(|(_, other)| keep_least(state, float(other[0]))),
            Self::MaxFloat => others.for_each(|(_, other)| keep_greatest(state, float(other[0]))),
            Self::MinInteger => others.for_each(|(_, other)| state[0] = (state[0] as i64).min(other[0] as i64) as u64),
            Self::MaxInteger => others.for_each(|(_, other)| state[0] = (state[0] as i64).max(other[0] as i64) as u64),
            Self::BitAnd => others.for_each(|(_, other)| state[0] &= other[0]),
            Self::BitOr => others.for_each(|(_, other)| state[0] |= other[0]),
            Self::BitXor => others.for_each(|(_, other)| state[0] ^= other[0]),
            Self::Variance => others.for_each(|(entry, other)| {
                let n = count_of(entry);
                merge_variance(state, counted(n), other, n);
            }),
            Self::Regression => others.for_each(|(entry, other)| {
                let n = count_of(entry);
                merge_regression(state, counted(n), other, n);
            }),
            Self::First => others.for_each(|(_, other)| {
                if (other[0] as i64) < state[0] as i64 {
                    state.copy_from_slice(other);
                }
            }),
            Self::Last => others.for_each(|(_, other)| {
                if other[0] as i64 >= state[0] as i64 && other[0] as i64 != i64::MIN {
                    state.copy_from_slice(other);
                }
            }),
            // The other state is that of one row.
            Self::Kalman => others.filter(|(_, other)| other[0] != NOTHING).for_each(|(_, other)| {
                follow(state, [other[3], other[0], other[4]].map(float));
            }),
            Self::AvgLast => others.filter(|(_, other)| other[0] != NOTHING).for_each(|(_, other)| {
                keep_values(state, [other[3], other[0]].map(float));
            }),
        }
    }
}

/// The values of a batch's rows for one state.
pub(crate) enum FixedValues<'a> {
    SumFloat(&'a [f64]),
    SumInteger(&'a [i64]),
    SumUndone(&'a [f64]),
    MinFloat(&'a [f64]),
    MaxFloat(&'a [f64]),
    MinInteger(&'a [i64]),
    MaxInteger(&'a [i64]),
    BitAnd(&'a [i64]),
    BitOr(&'a [i64]),
    BitXor(&'a [i64]),
    Variance(&'a [f64]),
    /// x, then y.
    Regression(&'a [f64], &'a [f64]),
    FirstFloat(&'a [f64]),
    FirstInteger(&'a [i64]),
    LastFloat(&'a [f64]),
    LastInteger(&'a [i64]),
    /// The values, the variances of the process, those of the measurement.
    Kalman([&'a [f64]; 3]),
    /// The values, and how many count.
    AvgLast([&'a [f64]; 2]),
}

impl FixedValues<'_> {
    /// Updates the state with the value of `row`, whose event time is `time_us`; the state then holds `count` values.
    #[inline]
    pub(crate) fn update(&self, state: &mut [u64], count: u64, row: usize, time_us: i64) {
        match *self {
            Self::SumFloat(values) => state[0] = (float(state[0]) + values[row]).to_bits(),
            Self::SumInteger(values) => put_sum(state, sum(state).wrapping_add(i128::from(values[row]))),
            Self::SumUndone(values) => count_in(state, values[row], 1),
            Self::MinFloat(values) => keep_least(state, canonical_float(values[row])),
            Self::MaxFloat(values) => keep_greatest(state, canonical_float(values[row])),
            Self::MinInteger(values) => state[0] = (state[0] as i64).min(values[row]) as u64,
            Self::MaxInteger(values) => state[0] = (state[0] as i64).max(values[row]) as u64,
            Self::BitAnd(values) => state[0] &= values[row] as u64,
            Self::BitOr(values) => state[0] |= values[row] as u64,
            Self::BitXor(values) => state[0] ^= values[row] as u64,
            Self::Variance(values) => update_variance(state, count, values[row]),
            Self::Regression(x, y) => update_regression(state, count, x[row], y[row]),
            Self::FirstFloat(values) => keep_first(state, time_us, values[row].to_bits()),
            Self::FirstInteger(values) => keep_first(state, time_us, values[row] as u64),
            Self::LastFloat(values) => keep_last(state, time_us, values[row].to_bits()),
            Self::LastInteger(values) => keep_last(state, time_us, values[row] as u64),
            Self::Kalman(arguments) => follow(state, arguments.map(|values| values[row])),
            Self::AvgLast(arguments) => keep_values(state, arguments.map(|values| values[row])),
        }
    }

    /// Removes the value of `row` from a sum.
    pub(crate) fn undo(&self, state: &mut [u64], row: usize) {
        match *self {
            Self::SumInteger(values) => put_sum(state, sum(state).wrapping_sub(i128::from(values[row]))),
            Self::SumUndone(values) => count_in(state, values[row], -1),
            _ => unreachable!("only sums are planned where rows are taken back"),
        }
    }

    /// The bits of the value of `row`, for states that keep one.
    pub(crate) fn bits(&self, row: usize) -> u64 {
        match *self {
            Self::FirstFloat(values) | Self::LastFloat(values) => values[row].to_bits(),
            Self::FirstInteger(values) | Self::LastInteger(values) => values[row] as u64,
            _ => unreachable!("only the first and the last are kept as bits"),
        }
    }

    /// The words of the state.
    #[inline(always)]
    pub(crate) fn words(&self) -> usize {
        match self {
            Self::SumFloat(_) | Self::MinFloat(_) | Self::MaxFloat(_) | Self::MinInteger(_) | Self::MaxInteger(_) => 1,
            Self::BitAnd(_) | Self::BitOr(_) | Self::BitXor(_) => 1,
            Self::SumUndone(_) | Self::Regression(..) | Self::Kalman(_) => 5,
            Self::AvgLast(_) => 3 + LAST_VALUES_MAX,
            _ => 2,
        }
    }
}

/// Adds a number to a sum in two words: the second word holds the rounding error of the first (Knuth's two-sum).
fn add_exactly(state: &mut [u64], value: f64) {
    let (high, low) = (float(state[0]), float(state[1]));
    let sum = high + value;
    let rounded = sum - high;
    let lost = (high - (sum - rounded)) + (value - rounded);
    let low = low + lost;
    let total = sum + low;
    state[0] = total.to_bits();
    state[1] = (low - (total - sum)).to_bits();
}

/// The scale of sums that can be undone. It is small enough that 2^40 of the greatest numbers are not infinite: an
/// infinity would remain when they are taken out. The price: numbers below 1e-295 lose their last digits.
const UNDONE_SCALE: f64 = 1.0 / (1u64 << 40) as f64;

/// Adds a value to a sum that can be undone, or removes it.
fn count_in(state: &mut [u64], value: f64, times: i64) {
    if value.is_finite() {
        return add_exactly(state, value * (times as f64 * UNDONE_SCALE));
    }
    let word = if value.is_nan() { 2 } else { 3 + usize::from(value < 0.0) };
    state[word] = state[word].wrapping_add(times as u64);
}

/// The value of a sum that can be undone.
pub(crate) fn undone_sum(state: &[u64]) -> f64 {
    match (state[2], state[3], state[4]) {
        (0, 0, 0) => float(state[0]) / UNDONE_SCALE,
        (0, _, 0) => f64::INFINITY,
        (0, 0, _) => f64::NEG_INFINITY,
        _ => f64::NAN,
    }
}

pub(crate) fn float(word: u64) -> f64 {
    f64::from_bits(word)
}

/// The sum of integers in two words.
pub(crate) fn sum(state: &[u64]) -> i128 {
    (u128::from(state[0]) | u128::from(state[1]) << 64) as i128
}

pub(crate) fn put_sum(state: &mut [u64], sum: i128) {
    state[0] = sum as u64;
    state[1] = (sum >> 64) as u64;
}

fn keep_least(state: &mut [u64], value: f64) {
    if value.total_cmp(&float(state[0])).is_lt() {
        state[0] = value.to_bits();
    }
}

fn keep_greatest(state: &mut [u64], value: f64) {
    if value.total_cmp(&float(state[0])).is_gt() {
        state[0] = value.to_bits();
    }
}

/// Of rows with one event time, the first to arrive is the first.
fn keep_first(state: &mut [u64], time_us: i64, bits: u64) {
    if time_us < state[0] as i64 {
        (state[0], state[1]) = (time_us as u64, bits);
    }
}

/// Of rows with one event time, the last to arrive is the last.
fn keep_last(state: &mut [u64], time_us: i64, bits: u64) {
    if time_us >= state[0] as i64 {
        (state[0], state[1]) = (time_us as u64, bits);
    }
}

/// The variance of the first estimate of a Kalman filter, which is 0.
const FIRST_VARIANCE: f64 = 30.0;

/// A step of a Kalman filter: a value, the variance of the process, and that of the measurement.
fn follow(state: &mut [u64], [value, process, measurement]: [f64; 3]) {
    if !value.is_finite() {
        return;
    }
    let (estimate, variance) = match state[0] {
        NOTHING => (0.0, FIRST_VARIANCE),
        _ => (float(state[1]), float(state[2])),
    };
    let variance = variance + process;
    let gain = variance / (variance + measurement);
    // A weighted mean cannot overflow, as a difference could.
    let estimate = (1.0 - gain) * estimate + gain * value;
    let words = [process, estimate, (1.0 - gain) * variance, value, measurement];
    state[..5].copy_from_slice(&words.map(f64::to_bits));
}

/// Keeps a value among the last ones, of which so many count, and their mean.
fn keep_values(state: &mut [u64], [value, most]: [f64; 2]) {
    if !value.is_finite() {
        return;
    }
    let room = (most as usize).clamp(1, LAST_VALUES_MAX) as u64;
    let before = if state[0] == NOTHING { 0 } else { state[2] };
    let seen = before + 1;
    state[3 + (before % room) as usize] = value.to_bits();
    let kept = room.min(seen);
    // From the oldest on, so that the mean does not depend on where the values lie.
    let sum: f64 = (seen - kept..seen).map(|at| float(state[3 + (at % room) as usize])).sum();
    (state[0], state[1], state[2]) = (most.to_bits(), (sum / kept as f64).to_bits(), seen);
}

/// Moves the mean by a step towards that of other values. An infinite value makes it infinite, as it does a sum.
fn moved_mean(mean: f64, other: f64, step: f64) -> f64 {
    if step.is_finite() { mean + step } else { mean + other }
}

fn update_variance(state: &mut [u64], count: u64, value: f64) {
    let mean = float(state[0]);
    let delta = value - mean;
    let new_mean = moved_mean(mean, value, delta / count as f64);
    state[0] = new_mean.to_bits();
    state[1] = (float(state[1]) + delta * (value - new_mean)).to_bits();
}

fn merge_variance(state: &mut [u64], count: u64, other: &[u64], other_count: u64) {
    if other_count == 0 {
        return;
    }
    if count == 0 {
        return state.copy_from_slice(other);
    }
    let (n, m) = (count as f64, other_count as f64);
    let delta = float(other[0]) - float(state[0]);
    state[1] = (float(state[1]) + float(other[1]) + delta * delta * (n * m / (n + m))).to_bits();
    state[0] = moved_mean(float(state[0]), float(other[0]), delta * (m / (n + m))).to_bits();
}

fn update_regression(state: &mut [u64], count: u64, x: f64, y: f64) {
    let n = count as f64;
    let (delta_x, delta_y) = (x - float(state[0]), y - float(state[1]));
    let mean_x = moved_mean(float(state[0]), x, delta_x / n);
    let mean_y = moved_mean(float(state[1]), y, delta_y / n);
    state[0] = mean_x.to_bits();
    state[1] = mean_y.to_bits();
    state[2] = (float(state[2]) + delta_x * (x - mean_x)).to_bits();
    state[3] = (float(state[3]) + delta_y * (y - mean_y)).to_bits();
    state[4] = (float(state[4]) + delta_x * (y - mean_y)).to_bits();
}

fn merge_regression(state: &mut [u64], count: u64, other: &[u64], other_count: u64) {
    if other_count == 0 {
        return;
    }
    if count == 0 {
        return state.copy_from_slice(other);
    }
    let (n, m) = (count as f64, other_count as f64);
    let weight = n * m / (n + m);
    let (delta_x, delta_y) = (float(other[0]) - float(state[0]), float(other[1]) - float(state[1]));
    state[2] = (float(state[2]) + float(other[2]) + delta_x * delta_x * weight).to_bits();
    state[3] = (float(state[3]) + float(other[3]) + delta_y * delta_y * weight).to_bits();
    state[4] = (float(state[4]) + float(other[4]) + delta_x * delta_y * weight).to_bits();
    state[0] = moved_mean(float(state[0]), float(other[0]), delta_x * (m / (n + m))).to_bits();
    state[1] = moved_mean(float(state[1]), float(other[1]), delta_y * (m / (n + m))).to_bits();
}

/// The result of a function of `count` values with this mean and centred sum of squares.
pub(crate) fn finish_moments(function: AggregateFunction, count: u64, mean: f64, squares: f64) -> Option<f64> {
    use AggregateFunction::{Avg, StddevPop, StddevSamp, VarSamp};
    let n = count as f64;
    let (values_min, result) = match function {
        Avg => (1, mean),
        VarSamp => (2, squares / (n - 1.0)),
        StddevSamp => (2, (squares / (n - 1.0)).sqrt()),
        StddevPop => (1, (squares / n).sqrt()),
        _ => (1, squares / n),
    };
    (count >= values_min).then_some(result)
}

/// The result of a function of `count` pairs of values with this state of a regression.
pub(crate) fn finish_regression(function: AggregateFunction, count: u64, state: &[u64]) -> Option<f64> {
    use AggregateFunction::{Corr, CovarPop, CovarSamp, RegrIntercept, RegrR2, RegrSlope};
    let [mean_x, mean_y, xx, yy, xy] = [0, 1, 2, 3, 4].map(|word| float(state[word]));
    let n = count as f64;
    match function {
        CovarPop => return (count >= 1).then_some(xy / n),
        CovarSamp => return (count >= 2).then_some(xy / (n - 1.0)),
        _ => {}
    }
    // A line needs two different x, a correlation two different y as well.
    if count < 2 || xx == 0.0 || (yy == 0.0 && function == Corr) {
        return None;
    }
    Some(match function {
        // The line explains all that there is to explain, as the standard has it.
        RegrR2 if yy == 0.0 => 1.0,
        // The divisions are done one after the other, because a product of the sums may overflow.
        Corr => xy / xx.sqrt() / yy.sqrt(),
        RegrSlope => xy / xx,
        RegrIntercept => mean_y - xy / xx * mean_x,
        _ => (xy / xx) * (xy / yy),
    })
}

/// A sum of integers outside the range of BIGINT.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SumOverflow;

/// `sum * 10^digits / count`, rounded half away from zero.
pub(super) fn quotient(sum: i128, digits: u32, count: u64) -> Result<Option<i64>, SumOverflow> {
    let (sum, count) = (10_i128.checked_pow(digits).and_then(|power| sum.checked_mul(power)), i128::from(count));
    let sum = sum.ok_or(SumOverflow)?;
    let (quotient, rest) = (sum / count, sum % count);
    let rounded = quotient + if 2 * rest.abs() >= count { sum.signum() } else { 0 };
    i64::try_from(rounded).map(Some).map_err(|_| SumOverflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state_of(values: FixedValues<'_>, kind: FixedKind, rows: std::ops::Range<usize>) -> (u64, Vec<u64>) {
        let mut state = vec![0; kind.words()];
        kind.initialize(&mut state);
        let first = rows.start;
        rows.clone().for_each(|row| values.update(&mut state, (row - first + 1) as u64, row, row as i64));
        (rows.len() as u64, state)
    }

    fn merged(kind: FixedKind, parts: &[(u64, Vec<u64>)]) -> (u64, Vec<u64>) {
        let (_, mut state) = (0, vec![0; kind.words()]);
        kind.initialize(&mut state);
        // Each part as an entry: its count, then its state.
        let entries: Vec<Vec<u64>> = parts.iter().map(|(count, part)| [&[*count], &part[..]].concat()).collect();
        kind.merge(&mut state, 0, entries.iter().map(Vec::as_slice), 1, |entry| entry[0]);
        (parts.iter().map(|part| part.0).sum(), state)
    }

    fn moments(function: AggregateFunction, (count, state): &(u64, Vec<u64>)) -> Option<f64> {
        finish_moments(function, *count, float(state[0]), float(state[1]))
    }

    #[test]
    fn variance_is_accurate_where_sums_of_squares_cancel() {
        let values: Vec<f64> = (0..1000).map(|n| 1e9 + f64::from(n % 2)).collect();
        let part =
            |part: usize| state_of(FixedValues::Variance(&values), FixedKind::Variance, part * 100..(part + 1) * 100);
        let whole = merged(FixedKind::Variance, &(0..10).map(part).collect::<Vec<_>>());
        let variance = moments(AggregateFunction::VarPop, &whole).unwrap();
        assert!((variance - 0.25).abs() < 1e-9, "{variance}");
        assert!((moments(AggregateFunction::Avg, &whole).unwrap() - 1e9 - 0.5).abs() < 1e-6);
    }

    #[test]
    fn a_mean_is_infinite_where_a_sum_is() {
        let of = |values: &[f64]| {
            moments(
                AggregateFunction::Avg,
                &state_of(FixedValues::Variance(values), FixedKind::Variance, 0..values.len()),
            )
            .unwrap()
        };
        assert_eq!(of(&[1.0, f64::INFINITY, 2.0, 3.0]), f64::INFINITY);
        assert_eq!(of(&[f64::NEG_INFINITY, 2.0]), f64::NEG_INFINITY);
        assert!(of(&[f64::NEG_INFINITY, 2.0, f64::INFINITY]).is_nan());
        let parts = [vec![1.0, 2.0], vec![f64::INFINITY], vec![4.0]]
            .map(|values| state_of(FixedValues::Variance(&values), FixedKind::Variance, 0..values.len()));
        assert_eq!(moments(AggregateFunction::Avg, &merged(FixedKind::Variance, &parts)), Some(f64::INFINITY));
    }

    #[test]
    fn nothing_is_left_of_what_is_undone() {
        let values = [1e18, 0.1, f64::NAN, f64::INFINITY, 0.2, -7e17, 3.3];
        let taken = FixedValues::SumUndone(&values);
        let (_, mut state) = state_of(FixedValues::SumUndone(&values), FixedKind::SumUndone, 0..values.len());
        assert!(undone_sum(&state).is_nan());
        taken.undo(&mut state, 2);
        assert_eq!(undone_sum(&state), f64::INFINITY);
        [0, 3, 5, 6].into_iter().for_each(|row| taken.undo(&mut state, row));
        assert!((undone_sum(&state) - 0.3).abs() < 1e-12, "{}", undone_sum(&state));
        let parts = [vec![1e300, 1.0], vec![-1e300, 2.0]]
            .map(|values| state_of(FixedValues::SumUndone(&values), FixedKind::SumUndone, 0..values.len()));
        assert_eq!(undone_sum(&merged(FixedKind::SumUndone, &parts).1), 3.0);
    }

    #[test]
    fn a_sum_beyond_all_numbers_comes_back() {
        // The rest is large enough for two words together to hold it beside the other values.
        let values = [1e308, 1.7e308, f64::MAX, 8e300];
        let taken = FixedValues::SumUndone(&values);
        let (_, mut state) = state_of(FixedValues::SumUndone(&values), FixedKind::SumUndone, 0..values.len());
        assert_eq!(undone_sum(&state), f64::INFINITY);
        (0..3).for_each(|row| taken.undo(&mut state, row));
        assert_eq!(undone_sum(&state), 8e300);
    }

    #[test]
    fn regression_finds_the_line() {
        let x: Vec<f64> = (0..50).map(|n| 1e6 + f64::from(n)).collect();
        let y: Vec<f64> = x.iter().map(|x| 3.0 * x - 7.0).collect();
        let part = |rows| state_of(FixedValues::Regression(&x, &y), FixedKind::Regression, rows);
        let (count, state) = merged(FixedKind::Regression, &[part(0..20), part(20..50)]);
        let result = |function| finish_regression(function, count, &state).unwrap();
        assert!((result(AggregateFunction::RegrSlope) - 3.0).abs() < 1e-9);
        assert!((result(AggregateFunction::RegrIntercept) + 7.0).abs() < 1e-2);
        assert!((result(AggregateFunction::RegrR2) - 1.0).abs() < 1e-12);
        assert!((result(AggregateFunction::Corr) - 1.0).abs() < 1e-12);
        let flat = [4.0; 50];
        let (count, state) = state_of(FixedValues::Regression(&x, &flat), FixedKind::Regression, 0..50);
        let result = |function| finish_regression(function, count, &state);
        assert_eq!((result(AggregateFunction::RegrR2), result(AggregateFunction::Corr)), (Some(1.0), None));
    }

    #[test]
    fn the_moments_of_a_regression_are_those_of_its_arguments() {
        let x: Vec<f64> = (0..50).map(|n| f64::from(n * n % 17)).collect();
        let y: Vec<f64> = (0..50).map(|n| f64::from(n * 7 % 23)).collect();
        let parts = |values: &dyn Fn() -> FixedValues<'static>, kind| {
            merged(kind, &[state_of(values(), kind, 0..20), state_of(values(), kind, 20..50)]).1
        };
        let (x, y): (&'static [f64], &'static [f64]) = (x.leak(), y.leak());
        let both = parts(&|| FixedValues::Regression(x, y), FixedKind::Regression);
        let one = parts(&|| FixedValues::Variance(x), FixedKind::Variance);
        let other = parts(&|| FixedValues::Variance(y), FixedKind::Variance);
        assert_eq!([both[0], both[2]], one[..]);
        assert_eq!([both[1], both[3]], other[..]);
    }

    #[test]
    fn a_sum_that_leaves_bigint_and_comes_back_is_right() {
        let values = [i64::MAX, 5, -10];
        let over = state_of(FixedValues::SumInteger(&values), FixedKind::SumInteger, 0..2);
        assert!(i64::try_from(sum(&over.1)).is_err());
        let rest = state_of(FixedValues::SumInteger(&values), FixedKind::SumInteger, 2..3);
        assert_eq!(i64::try_from(sum(&merged(FixedKind::SumInteger, &[over, rest]).1)), Ok(i64::MAX - 5));
    }

    #[test]
    fn nan_is_the_greatest_number() {
        let negative_nan = f64::from_bits(f64::NAN.to_bits() | 1 << 63);
        let values = [1.0, negative_nan, f64::INFINITY];
        let min = state_of(FixedValues::MinFloat(&values), FixedKind::MinFloat, 0..3);
        assert_eq!(float(min.1[0]), 1.0);
        let max = state_of(FixedValues::MaxFloat(&values), FixedKind::MaxFloat, 0..3);
        assert!(float(max.1[0]).is_nan());
        let least = state_of(FixedValues::MinFloat(&[f64::INFINITY]), FixedKind::MinFloat, 0..1);
        assert_eq!(float(least.1[0]), f64::INFINITY);
        let greatest = state_of(FixedValues::MaxFloat(&[f64::NEG_INFINITY]), FixedKind::MaxFloat, 0..1);
        assert_eq!(float(greatest.1[0]), f64::NEG_INFINITY);
    }

    #[test]
    fn bits_are_merged_as_they_are_counted() {
        let values = [0b1110, 0b0111, 0b1010, -2, 0b1110];
        let of = |kind: FixedKind| match kind {
            FixedKind::BitAnd => FixedValues::BitAnd(&values),
            FixedKind::BitOr => FixedValues::BitOr(&values),
            _ => FixedValues::BitXor(&values),
        };
        let kinds = [(FixedKind::BitAnd, 0b0010), (FixedKind::BitOr, -1), (FixedKind::BitXor, 0b0111 ^ 0b1010 ^ -2)];
        for (kind, expected) in kinds {
            let parts = [state_of(of(kind), kind, 0..2), state_of(of(kind), kind, 2..5)];
            assert_eq!(merged(kind, &parts).1, [expected as i64 as u64], "{kind:?}");
        }
    }

    #[test]
    fn nothing_gives_null_and_one_value_has_no_sample_variance() {
        let none = state_of(FixedValues::Variance(&[]), FixedKind::Variance, 0..0);
        let one = state_of(FixedValues::Variance(&[4.0]), FixedKind::Variance, 0..1);
        assert_eq!(moments(AggregateFunction::VarPop, &none), None);
        assert_eq!(moments(AggregateFunction::VarPop, &one), Some(0.0));
        assert_eq!(moments(AggregateFunction::StddevSamp, &one), None);
    }

    /// The first five temperatures of RIoTBench's city data, and what its filter makes of them.
    #[test]
    fn a_kalman_filter_follows_values_and_leaves_out_what_is_none() {
        let values = [8.0, 7.5, f64::NAN, 31.3, f64::INFINITY, 11.7, 35.2];
        let expected = [7.915914, 7.674746, 7.674746, 19.310387, 19.310387, 15.741342, 24.736078];
        let (q, r) = ([0.125; 7], [0.32; 7]);
        let of = FixedValues::Kalman([&values, &q, &r]);
        let one = |row: usize| state_of(FixedValues::Kalman([&values, &q, &r]), FixedKind::Kalman, row..row + 1);
        let mut followed = vec![0; 5];
        FixedKind::Kalman.initialize(&mut followed);
        for (row, expected) in expected.into_iter().enumerate() {
            of.update(&mut followed, 0, row, 0);
            assert!((float(followed[1]) - expected).abs() < 1e-5, "{row}: {}", float(followed[1]));
            let merged = merged(FixedKind::Kalman, &(0..=row).map(one).collect::<Vec<_>>()).1;
            assert_eq!(merged[..3], followed[..3], "rows that are merged one by one are followed");
        }
        assert_eq!(one(2).1[0], NOTHING);
    }

    #[test]
    fn the_mean_of_the_last_values_is_that_of_a_list() {
        let values: Vec<f64> = (0..40).map(|n| if n % 7 == 3 { f64::NAN } else { f64::from(n * n % 11) }).collect();
        for most in 1..=LAST_VALUES_MAX {
            let counts = vec![most as f64; values.len()];
            let of = || FixedValues::AvgLast([&values, &counts]);
            for end in 1..=values.len() {
                let valid: Vec<f64> = values[..end].iter().copied().filter(|value| !value.is_nan()).collect();
                let last = &valid[valid.len().saturating_sub(most)..];
                let mean = last.iter().sum::<f64>() / last.len() as f64;
                let (_, state) = state_of(of(), FixedKind::AvgLast, 0..end);
                assert_eq!(float(state[1]), mean, "{most} of {end}");
                let ones = (0..end).map(|row| state_of(of(), FixedKind::AvgLast, row..row + 1));
                assert_eq!(merged(FixedKind::AvgLast, &ones.collect::<Vec<_>>()).1, state);
            }
        }
    }

    #[test]
    fn first_and_last_follow_event_time_when_merged_in_any_order() {
        let values = [10, 11, 12, 13];
        let early = state_of(FixedValues::LastInteger(&values), FixedKind::Last, 0..2);
        let late = state_of(FixedValues::LastInteger(&values), FixedKind::Last, 2..4);
        for parts in [[early.clone(), late.clone()], [late, early]] {
            assert_eq!(merged(FixedKind::Last, &parts).1, [3, 13]);
        }
    }
}
