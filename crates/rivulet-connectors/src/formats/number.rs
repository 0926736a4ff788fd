//! Decimal numbers as text: exact, without allocation, eight digits at a time.
//!
//! A number is scanned once into a decimal mantissa and exponent. Floats come from these by one exact multiplication
//! or division where both operands are exact doubles (Clinger 1990, "How to read floating point numbers accurately"),
//! else from the standard library's correctly rounded parser. Integers and timestamps are computed in integers.

use super::fault::Problem;

/// Eight bytes from `at`, little-endian, with zeros for those beyond the end.
#[inline(always)]
pub(crate) fn word_at(bytes: &[u8], at: usize) -> u64 {
    if bytes.len() >= 8 && at <= bytes.len() - 8 {
        // SAFETY: the eight bytes from `at` on lie within the slice, as was just checked. Slicing checks more, and
        // this is done several times for each value.
        let word = unsafe { bytes.as_ptr().add(at).cast::<u64>().read_unaligned() };
        return u64::from_le(word);
    }
    last_word_at(bytes, at)
}

#[inline]
fn last_word_at(bytes: &[u8], at: usize) -> u64 {
    if let Some(last) = bytes.last_chunk::<8>() {
        // The last eight bytes, moved so that the one at `at` comes first.
        let before = at.saturating_add(8) - bytes.len();
        return if before >= 8 { 0 } else { u64::from_le_bytes(*last) >> (8 * before) };
    }
    bytes.iter().skip(at).rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// A scanned decimal number: `mantissa * 10^exponent`, negated if `negative`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number {
    /// The digits as an integer; meaningless if there are more than [`Number::EXACT_DIGITS_MAX`].
    mantissa: u64,
    exponent: i32,
    /// The number of digits of the mantissa, including leading zeros.
    digits: u32,
    negative: bool,
    /// Neither a fraction nor an exponent was written.
    integral: bool,
}

/// Powers of ten that are exact doubles.
const EXACT_POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

const SMALL_POWERS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// Sets some bit in the high nibble of each byte of `word` that is not a digit. Correct for every byte up to the first
/// that is outside ASCII, and for those behind a decimal point.
#[inline(always)]
fn not_digits(word: u64) -> u64 {
    // A byte is a digit if its high nibble is 3 and stays 3 when six is added. The addition can only carry out of
    // bytes far from ASCII digits and points.
    let low = word ^ 0x3030_3030_3030_3030;
    (low | low.wrapping_add(0x0606_0606_0606_0606)) & 0xf0f0_f0f0_f0f0_f0f0
}

/// The value of the first `count` bytes of `word`, which are digits; `count` is 1 to 8.
#[inline(always)]
fn digits_value(word: u64, count: u32) -> u64 {
    // The digits moved to the high end behind leading zeros, then added up in pairs, fours and eights.
    let digits = (word ^ 0x3030_3030_3030_3030) << (64 - 8 * count);
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
    fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xffff_ffff
}

/// Appends the digits from `at` on to `mantissa` (wrapping around). Returns it and the number of digits.
#[inline(always)]
fn scan_digits(bytes: &[u8], mut at: usize, mut mantissa: u64) -> (u64, usize) {
    let start = at;
    loop {
        let word = word_at(bytes, at);
        let count = not_digits(word).trailing_zeros() / 8;
        if count == 0 {
            return (mantissa, at - start);
        }
        // The index is at most 8; the remainder tells the compiler.
        mantissa = mantissa.wrapping_mul(SMALL_POWERS[count as usize % 9]).wrapping_add(digits_value(word, count));
        at += count as usize;
        if count < 8 {
            return (mantissa, at - start);
        }
    }
}

/// Scans an integer of up to 15 digits, which most numbers are; returns it and where its digits end. `None` for every
/// other number, and for what is none; what follows is the caller's to judge. Leading zeros are taken.
#[inline(always)]
pub(crate) fn scan_short_integer(bytes: &[u8], start: usize) -> Option<(i64, usize)> {
    let negative = bytes.get(start) == Some(&b'-');
    let at = start + usize::from(negative);
    let word = word_at(bytes, at);
    let stops = not_digits(word);
    let (value, digits) = if stops != 0 {
        let count = stops.trailing_zeros() / 8;
        if count == 0 {
            return None;
        }
        (digits_value(word, count), count)
    } else {
        let next = word_at(bytes, at + 8);
        let count = not_digits(next).trailing_zeros() / 8;
        match count {
            0 => (digits_value(word, 8), 8),
            1..8 => (digits_value(word, 8) * SMALL_POWERS[count as usize] + digits_value(next, count), 8 + count),
            _ => return None,
        }
    };
    // Below 10^15.
    let value = value as i64;
    Some((if negative { -value } else { value }, at + digits as usize))
}

impl Number {
    /// As many digits as always fit the mantissa.
    const EXACT_DIGITS_MAX: u32 = 19;

    /// Scans the number at byte `start`; returns it and where it ends. The grammar is JSON's, and what follows the
    /// number is the caller's to judge. With `LENIENT`, a leading `+` and leading zeros are taken too, and one side
    /// of the decimal point may be empty.
    #[inline(always)]
    pub(crate) fn scan<const LENIENT: bool>(bytes: &[u8], start: usize) -> Result<(Self, usize), Problem> {
        match Self::scan_short(bytes, start) {
            Some(scanned) => Ok(scanned),
            None => Self::scan_any::<LENIENT>(bytes, start),
        }
    }

    /// The number that all of `text` is, with a `+`, leading zeros or an empty side of the point where they are.
    #[inline]
    pub(crate) fn of(text: &[u8]) -> Result<Self, Problem> {
        match Self::scan::<true>(text, 0) {
            Ok((number, end)) if end == text.len() => Ok(number),
            _ => Err(Problem::ExpectedBareNumber),
        }
    }

    /// Scans a number as most messages have them: digits and decimal point, and the byte after them, in eight bytes, or
    /// an integer of up to 15 digits, as a time is. `None` for every other number, and for what is none.
    #[inline(always)]
    fn scan_short(bytes: &[u8], start: usize) -> Option<(Self, usize)> {
        let negative = bytes.get(start) == Some(&b'-');
        let at = start + usize::from(negative);
        let word = word_at(bytes, at);
        let stops = not_digits(word);
        if stops == 0 {
            return Self::scan_long_integer(bytes, at, word, negative);
        }
        let integer_bits = stops.trailing_zeros() & !7;
        // From one to seven digits, and no zero before another.
        if integer_bits.wrapping_sub(8) > 48 || (word as u8 == b'0' && integer_bits > 8) {
            return None;
        }
        let stop = (word >> integer_bits) as u8;
        if stop != b'.' {
            if matches!(stop, b'e' | b'E') {
                return None;
            }
            let digits = integer_bits / 8;
            let number = Self { mantissa: digits_value(word, digits), exponent: 0, digits, negative, integral: true };
            return Some((number, at + digits as usize));
        }
        // The next stop ends the fraction. Without the point, the digits before and behind it are one integer.
        let point = 0xff << integer_bits;
        let end_bits = (stops & !point).trailing_zeros() & !7;
        if end_bits == 64 || end_bits == integer_bits + 8 || matches!((word >> end_bits) as u8, b'e' | b'E') {
            return None;
        }
        let before_point = (1 << integer_bits) - 1;
        let joined = (word & before_point) | ((word >> 8) & !before_point);
        let digits = end_bits / 8 - 1;
        let exponent = -((digits - integer_bits / 8) as i32);
        let number = Self { mantissa: digits_value(joined, digits), exponent, digits, negative, integral: false };
        Some((number, at + digits as usize + 1))
    }

    /// [`Number::scan_short`] where the eight bytes of `word`, at `at`, are digits.
    #[inline(always)]
    fn scan_long_integer(bytes: &[u8], at: usize, word: u64, negative: bool) -> Option<(Self, usize)> {
        let rest = word_at(bytes, at + 8);
        let count = not_digits(rest).trailing_zeros() / 8;
        let stop = (rest >> (8 * count % 64)) as u8;
        if !(1..8).contains(&count) || matches!(stop, b'.' | b'e' | b'E') || word as u8 == b'0' {
            return None;
        }
        let mantissa = digits_value(word, 8) * SMALL_POWERS[count as usize % 9] + digits_value(rest, count);
        let digits = 8 + count;
        Some((Self { mantissa, exponent: 0, digits, negative, integral: true }, at + digits as usize))
    }

    #[inline(never)]
    fn scan_any<const LENIENT: bool>(bytes: &[u8], start: usize) -> Result<(Self, usize), Problem> {
        let mut at = start;
        let sign = bytes.get(at).copied();
        let negative = sign == Some(b'-');
        if negative || (LENIENT && sign == Some(b'+')) {
            at += 1;
        }
        let (mut mantissa, integer_digits) = scan_digits(bytes, at, 0);
        let leading_zero = integer_digits > 1 && bytes[at] == b'0';
        if !LENIENT && (integer_digits == 0 || leading_zero) {
            return Err(Problem::MalformedNumber);
        }
        at += integer_digits;
        let mut digits = integer_digits;
        let mut exponent = 0i32;
        let mut integral = true;
        if bytes.get(at) == Some(&b'.') {
            at += 1;
            let (all, fraction_digits) = scan_digits(bytes, at, mantissa);
            if fraction_digits == 0 && !LENIENT {
                return Err(Problem::MalformedNumber);
            }
            mantissa = all;
            digits += fraction_digits;
            // Below the bound on an arena's size, so the cast is exact.
            exponent = -(fraction_digits.min(i32::MAX as usize / 2) as i32);
            at += fraction_digits;
            integral = false;
        }
        if LENIENT && digits == 0 {
            return Err(Problem::MalformedNumber);
        }
        if matches!(bytes.get(at), Some(b'e' | b'E')) {
            let (written, end) = scan_exponent(bytes, at + 1)?;
            exponent = exponent.saturating_add(written);
            at = end;
            integral = false;
        }
        let digits = digits.min(u32::MAX as usize) as u32;
        Ok((Self { mantissa, exponent, digits, negative, integral }, at))
    }

    /// The number as a double, correctly rounded. `text` is what was scanned.
    #[inline]
    pub(crate) fn to_f64(self, text: &[u8]) -> Result<f64, Problem> {
        self.to_exact_f64().map_or_else(|| to_f64_slowly(text), Ok)
    }

    /// The number as a double, if its mantissa and its power of ten are exact doubles.
    #[inline(always)]
    pub(crate) fn to_exact_f64(self) -> Option<f64> {
        const EXACT_MANTISSA_MAX: u64 = 1 << 53;
        if self.digits > Self::EXACT_DIGITS_MAX || self.mantissa > EXACT_MANTISSA_MAX {
            return None;
        }
        let mantissa = self.mantissa as i64 as f64;
        let power = EXACT_POWERS.get(self.exponent.unsigned_abs() as usize)?;
        let magnitude = if self.exponent <= 0 { mantissa / power } else { mantissa * power };
        Some(if self.negative { -magnitude } else { magnitude })
    }

    /// The number as an integer, which its value must be however it is written.
    #[inline(always)]
    pub(crate) fn to_i64(self, text: &[u8]) -> Result<i64, Problem> {
        match self.to_whole() {
            Some(value) => Ok(value),
            None => self.to_scaled(text, 0, true),
        }
    }

    /// The number as an integer, if it was written as one of up to 18 digits, as nearly all are.
    #[inline(always)]
    pub(crate) fn to_whole(self) -> Option<i64> {
        (self.integral && self.digits <= 18).then(|| {
            let magnitude = self.mantissa as i64;
            if self.negative { -magnitude } else { magnitude }
        })
    }

    /// The number times `10^scale`, rounded half away from zero. Fails if that is beyond 64 bits.
    #[inline]
    pub(crate) fn to_scaled_rounded(self, text: &[u8], scale: i32) -> Result<i64, Problem> {
        self.to_scaled(text, scale, false)
    }

    /// Whether the magnitude is at least `bound`, nearly: the comparison is made in doubles.
    pub(crate) fn is_at_least(self, text: &[u8], bound: f64) -> bool {
        self.to_f64(text).map_or(true, |value| value.abs() >= bound)
    }

    #[inline]
    fn to_scaled(self, text: &[u8], scale: i32, whole: bool) -> Result<i64, Problem> {
        i64::try_from(self.to_scaled_wide(text, scale, whole)?).map_err(|_| Problem::NumberRange)
    }

    /// The number times `10^scale`. Fails if that is no whole number ([`Problem::ExpectedInteger`]), or has more than
    /// 38 digits.
    pub(crate) fn to_scaled_exactly(self, text: &[u8], scale: i32) -> Result<i128, Problem> {
        self.to_scaled_wide(text, scale, true)
    }

    #[inline(never)]
    fn to_scaled_wide(self, text: &[u8], scale: i32, whole: bool) -> Result<i128, Problem> {
        let (mut mantissa, mut exponent) = match self.digits <= Self::EXACT_DIGITS_MAX {
            true => (u128::from(self.mantissa), i64::from(self.exponent)),
            false => significant_digits(text, self.exponent),
        };
        exponent += i64::from(scale);
        if mantissa == 0 {
            return Ok(0);
        }
        while exponent < 0 && mantissa % 10 == 0 {
            mantissa /= 10;
            exponent += 1;
        }
        if exponent < 0 {
            if whole {
                return Err(Problem::ExpectedInteger);
            }
            // A mantissa below 10^38 that loses 39 digits or more rounds to zero.
            mantissa = match 10u128.checked_pow(exponent.unsigned_abs().min(u64::from(u32::MAX)) as u32) {
                Some(divisor) => (mantissa + divisor / 2) / divisor,
                None => 0,
            };
        } else {
            mantissa = u32::try_from(exponent)
                .ok()
                .and_then(|exponent| 10u128.checked_pow(exponent))
                .and_then(|power| mantissa.checked_mul(power))
                .ok_or(Problem::NumberRange)?;
        }
        let magnitude = i128::try_from(mantissa).map_err(|_| Problem::NumberRange)?;
        Ok(if self.negative { -magnitude } else { magnitude })
    }
}

/// What a float that is not finite is written as where a format has only text for it; nothing for finite ones.
pub(crate) fn not_finite_name(value: f64) -> Option<&'static str> {
    match value {
        _ if value.is_finite() => None,
        _ if value.is_nan() => Some("NaN"),
        _ if value > 0.0 => Some("Infinity"),
        _ => Some("-Infinity"),
    }
}

/// What is wrong with a text where a number is expected: a name of a number that is not finite is told apart. A device
/// that has no value says so, and NaN is greater than every limit.
#[cold]
pub(crate) fn no_number(text: &[u8], otherwise: Problem) -> Problem {
    if not_finite(text).is_some() { Problem::NotFinite } else { otherwise }
}

/// The float that is not finite and has this name, in any case: `NaN`, `Infinity` or `inf`, those with a sign.
#[cold]
pub(crate) fn not_finite(text: &[u8]) -> Option<f64> {
    let is = |text: &[u8], word: &str| text.eq_ignore_ascii_case(word.as_bytes());
    let (magnitude, value) = match text {
        [b'-', rest @ ..] => (rest, f64::NEG_INFINITY),
        [b'+', rest @ ..] => (rest, f64::INFINITY),
        _ if is(text, "NaN") => return Some(f64::NAN),
        _ => (text, f64::INFINITY),
    };
    (is(magnitude, "Infinity") || is(magnitude, "inf")).then_some(value)
}

/// The exponent written from byte `start` on, held within a range that no double and no integer reaches, and its end.
#[inline(never)]
fn scan_exponent(bytes: &[u8], start: usize) -> Result<(i32, usize), Problem> {
    const EXPONENT_MAX: i32 = 1_000_000_000;
    let mut at = start;
    let negative = bytes.get(at) == Some(&b'-');
    if matches!(bytes.get(at), Some(b'-' | b'+')) {
        at += 1;
    }
    let first_digit = at;
    let mut exponent = 0i32;
    while let Some(digit @ b'0'..=b'9') = bytes.get(at) {
        exponent = exponent.saturating_mul(10).saturating_add(i32::from(digit - b'0')).min(EXPONENT_MAX);
        at += 1;
    }
    if at == first_digit {
        return Err(Problem::MalformedNumber);
    }
    Ok((if negative { -exponent } else { exponent }, at))
}

#[cold]
fn to_f64_slowly(text: &[u8]) -> Result<f64, Problem> {
    let value = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    match value {
        Some(value) if value.is_finite() => Ok(value),
        Some(_) => Err(Problem::NumberRange),
        None => Err(Problem::MalformedNumber),
    }
}

/// The first 38 significant digits of a number with many, and the exponent that goes with them. A digit other than
/// zero beyond these is kept as a one in the last place, so that such a number is never taken for a whole one.
#[cold]
fn significant_digits(text: &[u8], exponent: i32) -> (u128, i64) {
    const DIGITS_MAX: u32 = 38;
    let mut mantissa = 0u128;
    let mut digits = 0;
    let mut exponent = i64::from(exponent);
    let mut beyond = false;
    for &byte in text {
        match byte {
            b'0'..=b'9' if digits < DIGITS_MAX => {
                mantissa = mantissa * 10 + u128::from(byte - b'0');
                digits += u32::from(mantissa != 0);
            }
            b'0'..=b'9' => {
                beyond |= byte != b'0';
                exponent += 1;
            }
            b'e' | b'E' => break,
            _ => {}
        }
    }
    if beyond {
        mantissa = mantissa / 10 * 10 + 1;
    }
    (mantissa, exponent)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn float(text: &str) -> Result<f64, Problem> {
        let (number, end) = Number::scan::<false>(text.as_bytes(), 0)?;
        if end != text.len() {
            return Err(Problem::MalformedNumber);
        }
        number.to_f64(text.as_bytes())
    }

    fn integer(text: &str) -> Result<i64, Problem> {
        let (number, _) = Number::scan::<false>(text.as_bytes(), 0)?;
        number.to_i64(text.as_bytes())
    }

    fn scaled(text: &str) -> Result<i64, Problem> {
        let (number, _) = Number::scan::<false>(text.as_bytes(), 0)?;
        number.to_scaled_rounded(text.as_bytes(), 3)
    }

    #[test]
    fn words_are_padded_with_zeros() {
        let bytes = b"0123456789";
        for at in 0..12 {
            let mut padded = [0; 8];
            let rest = bytes.get(at..).unwrap_or_default();
            let length = rest.len().min(8);
            padded[..length].copy_from_slice(&rest[..length]);
            assert_eq!(word_at(bytes, at), u64::from_le_bytes(padded), "at {at}");
            assert_eq!(word_at(&bytes[..length.min(7)], 0), word_at(bytes, 0) & !(!0 << (8 * length.min(7) as u32)));
        }
    }

    #[test]
    fn floats() {
        assert_eq!(float("21.37"), Ok(21.37));
        assert_eq!(float("-0").map(f64::to_bits), Ok((-0.0f64).to_bits()));
        assert_eq!(float("1e308"), Ok(1e308));
        assert_eq!(float("1e400"), Err(Problem::NumberRange));
        assert_eq!(float("-1E+400"), Err(Problem::NumberRange));
        assert_eq!(float("1e-400"), Ok(0.0));
        assert_eq!(float("0e999999999999999"), Ok(0.0));
        assert_eq!(float("9007199254740993"), Ok(9007199254740992.0));
        assert_eq!(float("123456789012345678901234567890"), Ok(123456789012345678901234567890.0));
        for malformed in ["", "-", "01", "-01", "1.", ".5", "1e", "1e+", "+1", "NaN", "Infinity", "0x10", "1_0"] {
            assert_eq!(float(malformed), Err(Problem::MalformedNumber), "{malformed}");
        }
    }

    #[test]
    fn integers_are_exact_however_written() {
        assert_eq!(integer("5"), Ok(5));
        assert_eq!(integer("5.0"), Ok(5));
        assert_eq!(integer("50e-1"), Ok(5));
        assert_eq!(integer("5e3"), Ok(5000));
        assert_eq!(integer("5.00000000000000000000000000000000000000000000000000"), Ok(5));
        assert_eq!(integer("5.5"), Err(Problem::ExpectedInteger));
        assert_eq!(integer("5.00000000000000000000000000000000000000000000000001"), Err(Problem::ExpectedInteger));
        assert_eq!(integer("9223372036854775807"), Ok(i64::MAX));
        assert_eq!(integer("-9223372036854775808"), Ok(i64::MIN));
        assert_eq!(integer("9223372036854775808"), Err(Problem::NumberRange));
        assert_eq!(integer("1e19"), Err(Problem::NumberRange));
        assert_eq!(integer("1e999999999"), Err(Problem::NumberRange));
        assert_eq!(integer("-0"), Ok(0));
        assert_eq!(integer("0.000e99"), Ok(0));
    }

    #[test]
    fn scaling_rounds_half_away_from_zero() {
        assert_eq!(scaled("1766275200123"), Ok(1_766_275_200_123_000));
        assert_eq!(scaled("1766275200123.4565"), Ok(1_766_275_200_123_457));
        assert_eq!(scaled("-1.0005"), Ok(-1001));
        assert_eq!(scaled("1e-9"), Ok(0));
        assert_eq!(scaled("1e-999999"), Ok(0));
        assert_eq!(scaled("1.234000000000000000000000000000000000000000000000000009"), Ok(1234));
        assert_eq!(scaled("1e17"), Err(Problem::NumberRange));
    }

    #[test]
    fn lenient_numbers() {
        for (text, value) in [("+5", 5.0), (".5", 0.5), ("5.", 5.0), ("-007.50", -7.5), ("0", 0.0)] {
            let (number, end) = Number::scan::<true>(text.as_bytes(), 0).unwrap();
            assert_eq!((number.to_f64(text.as_bytes()), end), (Ok(value), text.len()), "{text}");
        }
        for malformed in [".", "+", "-", "", "e5", "nan", "inf"] {
            assert!(Number::scan::<true>(malformed.as_bytes(), 0).is_err(), "{malformed}");
        }
    }

    proptest! {
        #[test]
        fn floats_agree_with_the_standard_library(text in "-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,24})?([eE][+-]?[0-9]{1,3})?") {
            let expected: f64 = text.parse().unwrap();
            match float(&text) {
                Ok(value) => prop_assert_eq!(value.to_bits(), expected.to_bits()),
                Err(problem) => prop_assert!(expected.is_infinite() && problem == Problem::NumberRange),
            }
        }

        #[test]
        fn any_double_survives(value in any::<f64>().prop_filter("finite", |value| value.is_finite())) {
            prop_assert_eq!(float(&format!("{value:?}")).map(f64::to_bits), Ok(value.to_bits()));
            prop_assert_eq!(float(&format!("{value}")).map(f64::to_bits), Ok(value.to_bits()));
        }

        #[test]
        fn short_integers_are_what_the_standard_library_says(text in "-?[0-9]{0,17}[,.e]?[0-9]{0,3}", before in "[ 0-9]{0,9}") {
            let bytes = format!("{before}{text}");
            let digits = text.strip_prefix('-').unwrap_or(&text).bytes().take_while(u8::is_ascii_digit).count();
            let end = before.len() + usize::from(text.starts_with('-')) + digits;
            let expected = (1..=15).contains(&digits).then(|| (bytes[before.len()..end].parse().unwrap(), end));
            prop_assert_eq!(scan_short_integer(bytes.as_bytes(), before.len()), expected);
        }

        #[test]
        fn any_integer_survives(value in any::<i64>(), zeros in 0usize..30) {
            prop_assert_eq!(integer(&value.to_string()), Ok(value));
            prop_assert_eq!(integer(&format!("{value}.{}0", "0".repeat(zeros))), Ok(value));
        }
    }
}
