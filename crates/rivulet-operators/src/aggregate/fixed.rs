//! States of fixed size: a few 64-bit words that live in a pane.
//!
//! Every state can be merged with another of its kind, so that a window is the merge of its panes. Variances and
//! regressions are kept as count, means and centred sums, updated after Welford and merged after Chan, Golub and
//! LeVeque, which stays accurate where sums of squares cancel. Counts wrap instead of panicking: 2^64 rows do not
//! happen, but imported state may claim them.

use arrow::buffer::BooleanBuffer;

use super::AggregateFunction;

/// What a state of fixed size holds. All but `First` and `Last` have their count of values in word 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FixedKind {
    /// count
    Count,
    /// count, sum
    SumFloat,
    /// count, sum in 128 bits (low, high): it cannot overflow, so whether the result fits does not depend on the order
    SumInteger,
    /// count, value
    MinFloat,
    /// count, value
    MaxFloat,
    /// count, value
    MinInteger,
    /// count, value
    MaxInteger,
    /// count, mean, centred sum of squares
    Variance,
    /// count, mean of x, mean of y, centred sums of x x, y y and x y
    Regression,
    /// event time (`i64::MAX` without value), bits of the value
    First,
    /// event time (`i64::MIN` without value), bits of the value
    Last,
}

impl FixedKind {
    pub(crate) fn words(self) -> usize {
        match self {
            Self::Count => 1,
            Self::SumFloat | Self::MinFloat | Self::MaxFloat | Self::MinInteger | Self::MaxInteger => 2,
            Self::First | Self::Last => 2,
            Self::SumInteger | Self::Variance => 3,
            Self::Regression => 6,
        }
    }

    /// Whether word 0 counts the values.
    pub(crate) fn counts(self) -> bool {
        !matches!(self, Self::First | Self::Last)
    }

    /// Writes the state of no value; `state` is zeroed.
    pub(crate) fn initialize(self, state: &mut [u64]) {
        match self {
            Self::First => state[0] = i64::MAX as u64,
            Self::Last => state[0] = i64::MIN as u64,
            _ => {}
        }
    }

    /// Merges the states at `offset` of each of `entries` (of `stride` words, in order) into `state`.
    pub(crate) fn merge(self, state: &mut [u64], entries: &[u64], stride: usize, offset: usize) {
        let words = self.words();
        let others = entries.chunks_exact(stride).map(|entry| &entry[offset..offset + words]);
        match self {
            Self::Count => state[0] = others.fold(state[0], |count, other| count.wrapping_add(other[0])),
            Self::SumFloat => {
                let (mut count, mut sum) = (state[0], float(state[1]));
                for other in others {
                    count = count.wrapping_add(other[0]);
                    sum += float(other[1]);
                }
                (state[0], state[1]) = (count, sum.to_bits());
            }
            Self::SumInteger => others.for_each(|other| {
                state[0] = state[0].wrapping_add(other[0]);
                put_sum(state, sum(state).wrapping_add(sum(other)));
            }),
            Self::MinFloat => others.for_each(|other| {
                keep_float(state, other[0], float(other[1]), |new, old| new.total_cmp(&old).is_lt());
            }),
            Self::MaxFloat => others.for_each(|other| {
                keep_float(state, other[0], float(other[1]), |new, old| new.total_cmp(&old).is_gt());
            }),
            Self::MinInteger => others.for_each(|other| {
                keep_integer(state, other[0], other[1] as i64, |new, old| new < old);
            }),
            Self::MaxInteger => others.for_each(|other| {
                keep_integer(state, other[0], other[1] as i64, |new, old| new > old);
            }),
            Self::Variance => others.for_each(|other| merge_variance(state, other)),
            Self::Regression => others.for_each(|other| merge_regression(state, other)),
            Self::First => others.for_each(|other| {
                if (other[0] as i64) < state[0] as i64 {
                    state.copy_from_slice(other);
                }
            }),
            Self::Last => others.for_each(|other| {
                if other[0] as i64 >= state[0] as i64 && other[0] as i64 != i64::MIN {
                    state.copy_from_slice(other);
                }
            }),
        }
    }
}

/// A state of a batch's rows: where it is in an entry, and the values that go into it.
pub(crate) struct FixedUpdate<'a> {
    pub(crate) offset: usize,
    pub(crate) values: FixedValues<'a>,
    /// Rows that count: those with arguments and for which the filter is true. `None`: all.
    pub(crate) valid: Option<&'a BooleanBuffer>,
}

/// The values of a batch's rows for one state.
pub(crate) enum FixedValues<'a> {
    Count,
    SumFloat(&'a [f64]),
    SumInteger(&'a [i64]),
    MinFloat(&'a [f64]),
    MaxFloat(&'a [f64]),
    MinInteger(&'a [i64]),
    MaxInteger(&'a [i64]),
    Variance(&'a [f64]),
    /// x, then y.
    Regression(&'a [f64], &'a [f64]),
    FirstFloat(&'a [f64]),
    FirstInteger(&'a [i64]),
    LastFloat(&'a [f64]),
    LastInteger(&'a [i64]),
}

impl FixedUpdate<'_> {
    /// Counts the value of `row`, whose event time is `time_us`, in the entry.
    #[inline]
    pub(crate) fn update(&self, entry: &mut [u64], row: usize, time_us: i64) {
        if self.valid.is_some_and(|valid| !valid.value(row)) {
            return;
        }
        let state = &mut entry[self.offset..];
        match self.values {
            FixedValues::Count => state[0] = state[0].wrapping_add(1),
            FixedValues::SumFloat(values) => {
                state[0] = state[0].wrapping_add(1);
                state[1] = (float(state[1]) + values[row]).to_bits();
            }
            FixedValues::SumInteger(values) => {
                state[0] = state[0].wrapping_add(1);
                put_sum(state, sum(state).wrapping_add(i128::from(values[row])));
            }
            FixedValues::MinFloat(values) => {
                keep_float(state, 1, one_nan(values[row]), |new, old| new.total_cmp(&old).is_lt());
            }
            FixedValues::MaxFloat(values) => {
                keep_float(state, 1, one_nan(values[row]), |new, old| new.total_cmp(&old).is_gt());
            }
            FixedValues::MinInteger(values) => keep_integer(state, 1, values[row], |new, old| new < old),
            FixedValues::MaxInteger(values) => keep_integer(state, 1, values[row], |new, old| new > old),
            FixedValues::Variance(values) => update_variance(state, values[row]),
            FixedValues::Regression(x, y) => update_regression(state, x[row], y[row]),
            FixedValues::FirstFloat(values) => keep_first(state, time_us, values[row].to_bits()),
            FixedValues::FirstInteger(values) => keep_first(state, time_us, values[row] as u64),
            FixedValues::LastFloat(values) => keep_last(state, time_us, values[row].to_bits()),
            FixedValues::LastInteger(values) => keep_last(state, time_us, values[row] as u64),
        }
    }
}

fn float(word: u64) -> f64 {
    f64::from_bits(word)
}

/// NaN is the greatest number whatever its sign bit says (0.0 / 0.0 sets it on some machines).
fn one_nan(value: f64) -> f64 {
    if value.is_nan() { f64::NAN } else { value }
}

fn sum(state: &[u64]) -> i128 {
    (u128::from(state[1]) | u128::from(state[2]) << 64) as i128
}

fn put_sum(state: &mut [u64], sum: i128) {
    state[1] = sum as u64;
    state[2] = (sum >> 64) as u64;
}

fn keep_float(state: &mut [u64], count: u64, value: f64, better: fn(f64, f64) -> bool) {
    if count > 0 && (state[0] == 0 || better(value, float(state[1]))) {
        state[1] = value.to_bits();
    }
    state[0] = state[0].wrapping_add(count);
}

fn keep_integer(state: &mut [u64], count: u64, value: i64, better: fn(i64, i64) -> bool) {
    if count > 0 && (state[0] == 0 || better(value, state[1] as i64)) {
        state[1] = value as u64;
    }
    state[0] = state[0].wrapping_add(count);
}

/// Of rows with one event time the first to arrive is the first.
fn keep_first(state: &mut [u64], time_us: i64, bits: u64) {
    if time_us < state[0] as i64 {
        (state[0], state[1]) = (time_us as u64, bits);
    }
}

/// Of rows with one event time the last to arrive is the last.
fn keep_last(state: &mut [u64], time_us: i64, bits: u64) {
    if time_us >= state[0] as i64 {
        (state[0], state[1]) = (time_us as u64, bits);
    }
}

fn update_variance(state: &mut [u64], value: f64) {
    state[0] = state[0].wrapping_add(1);
    let mean = float(state[1]);
    let delta = value - mean;
    let new_mean = mean + delta / state[0] as f64;
    state[1] = new_mean.to_bits();
    state[2] = (float(state[2]) + delta * (value - new_mean)).to_bits();
}

fn merge_variance(state: &mut [u64], other: &[u64]) {
    if other[0] == 0 {
        return;
    }
    if state[0] == 0 {
        return state.copy_from_slice(other);
    }
    let (n, m) = (state[0] as f64, other[0] as f64);
    let delta = float(other[1]) - float(state[1]);
    state[2] = (float(state[2]) + float(other[2]) + delta * delta * (n * m / (n + m))).to_bits();
    state[1] = (float(state[1]) + delta * (m / (n + m))).to_bits();
    state[0] = state[0].wrapping_add(other[0]);
}

fn update_regression(state: &mut [u64], x: f64, y: f64) {
    state[0] = state[0].wrapping_add(1);
    let n = state[0] as f64;
    let (delta_x, delta_y) = (x - float(state[1]), y - float(state[2]));
    let (mean_x, mean_y) = (float(state[1]) + delta_x / n, float(state[2]) + delta_y / n);
    state[1] = mean_x.to_bits();
    state[2] = mean_y.to_bits();
    state[3] = (float(state[3]) + delta_x * (x - mean_x)).to_bits();
    state[4] = (float(state[4]) + delta_y * (y - mean_y)).to_bits();
    state[5] = (float(state[5]) + delta_x * (y - mean_y)).to_bits();
}

fn merge_regression(state: &mut [u64], other: &[u64]) {
    if other[0] == 0 {
        return;
    }
    if state[0] == 0 {
        return state.copy_from_slice(other);
    }
    let (n, m) = (state[0] as f64, other[0] as f64);
    let (delta_x, delta_y) = (float(other[1]) - float(state[1]), float(other[2]) - float(state[2]));
    let weight = n * m / (n + m);
    state[3] = (float(state[3]) + float(other[3]) + delta_x * delta_x * weight).to_bits();
    state[4] = (float(state[4]) + float(other[4]) + delta_y * delta_y * weight).to_bits();
    state[5] = (float(state[5]) + float(other[5]) + delta_x * delta_y * weight).to_bits();
    state[1] = (float(state[1]) + delta_x * (m / (n + m))).to_bits();
    state[2] = (float(state[2]) + delta_y * (m / (n + m))).to_bits();
    state[0] = state[0].wrapping_add(other[0]);
}

/// A sum of integers that is no BIGINT.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SumOverflow;

/// The result of a function that gives an integer (or what is kept as one), from its state.
pub(crate) fn finish_integer(
    function: AggregateFunction,
    kind: FixedKind,
    state: &[u64],
) -> Result<Option<i64>, SumOverflow> {
    Ok(match (function, kind) {
        (AggregateFunction::Count, _) => Some(state[0] as i64),
        (_, FixedKind::SumInteger) => match state[0] {
            0 => None,
            _ => Some(i64::try_from(sum(state)).map_err(|_| SumOverflow)?),
        },
        (_, FixedKind::First) => (state[0] != i64::MAX as u64).then_some(state[1] as i64),
        (_, FixedKind::Last) => (state[0] != i64::MIN as u64).then_some(state[1] as i64),
        _ => (state[0] > 0).then_some(state[1] as i64),
    })
}

/// The result of a function that gives a floating point number, from its state.
pub(crate) fn finish_float(function: AggregateFunction, kind: FixedKind, state: &[u64]) -> Option<f64> {
    use AggregateFunction::*;
    let count = state[0] as f64;
    let at_least = |values: u64, result: f64| (state[0] >= values).then_some(result);
    match function {
        FirstValue => (state[0] != i64::MAX as u64).then(|| float(state[1])),
        LastValue => (state[0] != i64::MIN as u64).then(|| float(state[1])),
        Avg => at_least(1, float(state[1]) / count),
        VarPop => at_least(1, float(state[2]) / count),
        VarSamp => at_least(2, float(state[2]) / (count - 1.0)),
        StddevPop => at_least(1, (float(state[2]) / count).sqrt()),
        StddevSamp => at_least(2, (float(state[2]) / (count - 1.0)).sqrt()),
        CovarPop => at_least(1, float(state[5]) / count),
        CovarSamp => at_least(2, float(state[5]) / (count - 1.0)),
        Corr | RegrSlope | RegrIntercept | RegrR2 => {
            debug_assert_eq!(kind, FixedKind::Regression);
            let (mean_x, mean_y) = (float(state[1]), float(state[2]));
            let (xx, yy, xy) = (float(state[3]), float(state[4]), float(state[5]));
            // A line needs two different x, a correlation two different y as well.
            if state[0] < 2 || xx == 0.0 || (yy == 0.0 && matches!(function, Corr | RegrR2)) {
                return None;
            }
            Some(match function {
                // The quotients are taken one after the other, because a product of the sums may overflow.
                Corr => xy / xx.sqrt() / yy.sqrt(),
                RegrSlope => xy / xx,
                RegrIntercept => mean_y - xy / xx * mean_x,
                _ => (xy / xx) * (xy / yy),
            })
        }
        _ => at_least(1, float(state[1])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state_of(values: FixedValues<'_>, kind: FixedKind, rows: std::ops::Range<usize>) -> Vec<u64> {
        let mut state = vec![0; kind.words()];
        kind.initialize(&mut state);
        let update = FixedUpdate { offset: 0, values, valid: None };
        rows.for_each(|row| update.update(&mut state, row, row as i64));
        state
    }

    #[test]
    fn variance_is_accurate_where_sums_of_squares_cancel() {
        let values: Vec<f64> = (0..1000).map(|n| 1e9 + f64::from(n % 2)).collect();
        let parts: Vec<u64> = (0..10)
            .flat_map(|part| {
                state_of(FixedValues::Variance(&values), FixedKind::Variance, part * 100..(part + 1) * 100)
            })
            .collect();
        let mut merged = vec![0; 3];
        FixedKind::Variance.merge(&mut merged, &parts, 3, 0);
        let variance = finish_float(AggregateFunction::VarPop, FixedKind::Variance, &merged).unwrap();
        assert!((variance - 0.25).abs() < 1e-9, "{variance}");
    }

    #[test]
    fn regression_finds_the_line() {
        let x: Vec<f64> = (0..50).map(|n| 1e6 + f64::from(n)).collect();
        let y: Vec<f64> = x.iter().map(|x| 3.0 * x - 7.0).collect();
        let mut parts = state_of(FixedValues::Regression(&x, &y), FixedKind::Regression, 0..20);
        parts.extend(state_of(FixedValues::Regression(&x, &y), FixedKind::Regression, 20..50));
        let mut merged = vec![0; 6];
        FixedKind::Regression.merge(&mut merged, &parts, 6, 0);
        let result = |function| finish_float(function, FixedKind::Regression, &merged).unwrap();
        assert!((result(AggregateFunction::RegrSlope) - 3.0).abs() < 1e-9);
        assert!((result(AggregateFunction::RegrIntercept) + 7.0).abs() < 1e-2);
        assert!((result(AggregateFunction::RegrR2) - 1.0).abs() < 1e-12);
        assert!((result(AggregateFunction::Corr) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_sum_that_leaves_bigint_and_comes_back_is_right() {
        let values = [i64::MAX, 5, -10];
        let over = state_of(FixedValues::SumInteger(&values), FixedKind::SumInteger, 0..2);
        assert_eq!(finish_integer(AggregateFunction::Sum, FixedKind::SumInteger, &over), Err(SumOverflow));
        let back = state_of(FixedValues::SumInteger(&values), FixedKind::SumInteger, 0..3);
        assert_eq!(finish_integer(AggregateFunction::Sum, FixedKind::SumInteger, &back), Ok(Some(i64::MAX - 5)));
    }

    #[test]
    fn nan_is_the_greatest_number() {
        let negative_nan = f64::from_bits(f64::NAN.to_bits() | 1 << 63);
        let values = [1.0, negative_nan, f64::INFINITY];
        let min = state_of(FixedValues::MinFloat(&values), FixedKind::MinFloat, 0..3);
        assert_eq!(finish_float(AggregateFunction::Min, FixedKind::MinFloat, &min), Some(1.0));
        let max = state_of(FixedValues::MaxFloat(&values), FixedKind::MaxFloat, 0..3);
        assert!(finish_float(AggregateFunction::Max, FixedKind::MaxFloat, &max).unwrap().is_nan());
    }

    #[test]
    fn nothing_gives_null_and_one_value_has_no_sample_variance() {
        let none = state_of(FixedValues::Variance(&[]), FixedKind::Variance, 0..0);
        let one = state_of(FixedValues::Variance(&[4.0]), FixedKind::Variance, 0..1);
        let finish = |function, state: &[u64]| finish_float(function, FixedKind::Variance, state);
        assert_eq!(finish(AggregateFunction::VarPop, &none), None);
        assert_eq!(finish(AggregateFunction::VarPop, &one), Some(0.0));
        assert_eq!(finish(AggregateFunction::StddevSamp, &one), None);
        let first = state_of(FixedValues::FirstFloat(&[]), FixedKind::First, 0..0);
        assert_eq!(finish_float(AggregateFunction::FirstValue, FixedKind::First, &first), None);
    }

    #[test]
    fn first_and_last_follow_event_time_when_merged_in_any_order() {
        let values = [10, 11, 12, 13];
        let early = state_of(FixedValues::LastInteger(&values), FixedKind::Last, 0..2);
        let late = state_of(FixedValues::LastInteger(&values), FixedKind::Last, 2..4);
        for parts in [[early.clone(), late.clone()].concat(), [late, early].concat()] {
            let mut merged = vec![0; 2];
            FixedKind::Last.initialize(&mut merged);
            FixedKind::Last.merge(&mut merged, &parts, 2, 0);
            assert_eq!(finish_integer(AggregateFunction::LastValue, FixedKind::Last, &merged), Ok(Some(13)));
        }
    }
}
