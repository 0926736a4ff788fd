//! Decimal digits, written fast: a generator that spends its time formatting measures itself.

/// "00" to "99", end to end.
const PAIRS: [u8; 200] = {
    let mut pairs = [0; 200];
    let mut number = 0;
    while number < 100 {
        pairs[2 * number] = b'0' + (number / 10) as u8;
        pairs[2 * number + 1] = b'0' + (number % 10) as u8;
        number += 1;
    }
    pairs
};

/// The longest text that [`write_fixed`] writes: sign, 20 digits of a `u64`, point.
const LENGTH_MAX: usize = 22;

/// Appends a whole number.
#[inline]
pub(crate) fn write_integer(number: u64, out: &mut Vec<u8>) {
    write_scaled(false, number, 0, out);
}

/// Appends `value` rounded to `decimals` places (at most 9), always with this number of digits after the point.
///
/// A value that is not finite, or too large for 64 bits once scaled, is written as the nearest number that fits, and
/// NaN as zero. The simulated sensors have neither.
#[inline]
pub(crate) fn write_fixed(value: f64, decimals: u32, out: &mut Vec<u8>) {
    debug_assert!(decimals <= 9);
    // `as` saturates and converts NaN to zero. Adding half a step and truncating rounds to the nearest step.
    let scaled = (value.abs() * POWERS_OF_TEN[decimals as usize] + 0.5) as u64;
    write_scaled(value < 0.0 && scaled > 0, scaled, decimals, out);
}

/// Appends microseconds since the epoch as milliseconds with three decimals: the form of `ts` in payloads.
#[inline]
pub(crate) fn write_milliseconds(time_us: i64, out: &mut Vec<u8>) {
    write_scaled(time_us < 0, time_us.unsigned_abs(), 3, out);
}

const POWERS_OF_TEN: [f64; 10] = [1.0, 10.0, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

/// Appends `number / 10^decimals`, digits from the right.
#[inline]
fn write_scaled(negative: bool, mut number: u64, decimals: u32, out: &mut Vec<u8>) {
    let mut buffer = [0u8; LENGTH_MAX];
    let mut start = LENGTH_MAX;
    let mut after_point = decimals;
    while after_point >= 2 {
        start -= 2;
        let pair = (number % 100) as usize * 2;
        buffer[start..start + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
        number /= 100;
        after_point -= 2;
    }
    if after_point == 1 {
        start -= 1;
        buffer[start] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    if decimals > 0 {
        start -= 1;
        buffer[start] = b'.';
    }
    while number >= 100 {
        start -= 2;
        let pair = (number % 100) as usize * 2;
        buffer[start..start + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
        number /= 100;
    }
    if number >= 10 {
        start -= 2;
        let pair = number as usize * 2;
        buffer[start..start + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    } else {
        start -= 1;
        buffer[start] = b'0' + number as u8;
    }
    if negative {
        start -= 1;
        buffer[start] = b'-';
    }
    out.extend_from_slice(&buffer[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(value: f64, decimals: u32) -> String {
        let mut out = Vec::new();
        write_fixed(value, decimals, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn agrees_with_the_standard_library() {
        let mut random = crate::random::Random::new(3);
        for _ in 0..20_000 {
            let decimals = random.below(8) as u32;
            // Exact in binary and away from ties, where the two may round differently.
            let value = (random.between(-20_000.0, 20_000.0) * 1024.0).round() / 1024.0 + 1.0 / 65_536.0;
            assert_eq!(fixed(value, decimals), format!("{value:.*}", decimals as usize));
        }
    }

    #[test]
    fn edges() {
        assert_eq!(fixed(-0.001, 2), "0.00");
        assert_eq!(fixed(-0.05, 1), "-0.1");
        assert_eq!(fixed(9.999, 2), "10.00");
        assert_eq!(fixed(0.0, 0), "0");
        assert_eq!(fixed(f64::NAN, 1), "0.0");
        assert_eq!(fixed(f64::INFINITY, 3), "18446744073709551.615");
        let mut out = Vec::new();
        write_milliseconds(1_763_712_345_678_901, &mut out);
        write_integer(u64::MAX, &mut out);
        assert_eq!(out, b"1763712345678.90118446744073709551615");
    }
}
