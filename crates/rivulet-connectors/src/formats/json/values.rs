//! Single values as JSON has them.

use super::super::encode::append_display;

/// `text` as the inside of a JSON string: quotes, backslashes and control characters escaped, the rest as it is.
///
/// ```
/// # use rivulet_connectors::formats::json_escape;
/// assert_eq!(json_escape("say \"21°\"\n"), r#"say \"21°\"\n"#);
/// ```
pub fn json_escape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len() + 2);
    append_escaped(text, &mut out);
    String::from_utf8(out).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Appends `text` as a JSON string with its quotes.
#[inline]
pub(crate) fn append_json_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    append_escaped(text, out);
    out.push(b'"');
}

fn append_escaped(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let bytes = text.as_bytes();
    let mut kept_from = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&bytes[kept_from..at]);
        kept_from = at + 1;
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
        }
    }
    out.extend_from_slice(&bytes[kept_from..]);
}

/// Appends a finite float with as few digits as bring back the same value.
pub(crate) fn append_json_float(value: f64, out: &mut Vec<u8>) {
    // Most measurements have few decimals. If `digits / 10^decimals` is the value, with both below 2^53 and 10^22 and
    // so exact, reading that decimal gives the value back; with at most 15 digits no shorter decimal can be missed,
    // since fewer decimals were tried first.
    const DIGITS_BOUND: f64 = 1e15;
    const POWERS: [f64; 7] = [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6];
    for (decimals, power) in POWERS.into_iter().enumerate() {
        let scaled = (value * power).round();
        if scaled.abs() >= DIGITS_BOUND {
            break;
        }
        if scaled / power == value && (scaled != 0.0 || value.is_sign_positive()) {
            let digits = scaled.abs() as u64;
            let divisor = power as u64;
            append_integer(digits / divisor, value < 0.0, out);
            out.push(b'.');
            append_fraction(digits % divisor, decimals.max(1), out);
            return;
        }
    }
    append_display(out, format_args!("{value:?}"));
}

/// Appends a time given in microseconds as epoch milliseconds.
pub(crate) fn append_json_timestamp(time_us: i64, out: &mut Vec<u8>) {
    append_decimal(time_us, 3, out);
}

/// Appends `value / 10^decimals`, without zeros at the end of the fraction.
pub(crate) fn append_decimal(value: i64, decimals: u32, out: &mut Vec<u8>) {
    let divisor = 10u64.pow(decimals);
    let magnitude = value.unsigned_abs();
    append_integer(magnitude / divisor, value < 0, out);
    let mut fraction = magnitude % divisor;
    if fraction != 0 {
        let mut width = decimals as usize;
        while fraction.is_multiple_of(10) {
            fraction /= 10;
            width -= 1;
        }
        out.push(b'.');
        append_fraction(fraction, width, out);
    }
}

/// Appends an integer in decimal.
#[inline]
pub(crate) fn append_integer(mut magnitude: u64, negative: bool, out: &mut Vec<u8>) {
    let mut buffer = [0u8; 20];
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (magnitude % 10) as u8;
        magnitude /= 10;
        if magnitude == 0 {
            break;
        }
    }
    if negative {
        out.push(b'-');
    }
    out.extend_from_slice(&buffer[at..]);
}

/// Appends `digits` with leading zeros up to `width`, at most 6.
fn append_fraction(mut digits: u64, width: usize, out: &mut Vec<u8>) {
    let mut buffer = [b'0'; 6];
    for place in buffer[..width].iter_mut().rev() {
        *place = b'0' + (digits % 10) as u8;
        digits /= 10;
    }
    out.extend_from_slice(&buffer[..width]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn float(value: f64) -> String {
        let mut out = Vec::new();
        append_json_float(value, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn floats_are_short() {
        for (value, text) in [
            (21.37, "21.37"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (-0.5, "-0.5"),
            (22.0, "22.0"),
            (1e-7, "1e-7"),
            (0.000001, "0.000001"),
            (1e300, "1e300"),
            (0.1 + 0.2, "0.30000000000000004"),
            (123456789012345.0, "123456789012345.0"),
            (f64::MAX, "1.7976931348623157e308"),
        ] {
            assert_eq!(float(value), text);
        }
    }

    #[test]
    fn timestamps_are_epoch_milliseconds() {
        for (time_us, text) in [
            (1_766_275_200_123_000, "1766275200123"),
            (1_766_275_200_123_456, "1766275200123.456"),
            (1_500, "1.5"),
            (10, "0.01"),
            (-1, "-0.001"),
            (-1_500, "-1.5"),
            (0, "0"),
        ] {
            let mut out = Vec::new();
            append_json_timestamp(time_us, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }

    proptest! {
        #[test]
        fn floats_come_back_and_are_no_longer_than_needed(value in prop_oneof![
            any::<f64>().prop_filter("finite", |value| value.is_finite()),
            (-1_000_000_000i64..1_000_000_000, 0i32..9).prop_map(|(digits, decimals)| digits as f64 / 10f64.powi(decimals)),
        ]) {
            let text = float(value);
            prop_assert_eq!(text.parse::<f64>().unwrap().to_bits(), value.to_bits());
            let digits = |text: &str| {
                let mantissa = text.split('e').next().unwrap();
                let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
                digits.trim_start_matches('0').trim_end_matches('0').len()
            };
            prop_assert_eq!(digits(&text), digits(&format!("{value:e}")), "{}", text);
        }

        #[test]
        fn strings_are_read_back_by_serde(text in any::<String>()) {
            let mut out = Vec::new();
            append_json_string(&text, &mut out);
            prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        }

        #[test]
        fn integers_are_written_like_display(value in any::<i64>(), unsigned in any::<u64>()) {
            let mut out = Vec::new();
            append_integer(value.unsigned_abs(), value < 0, &mut out);
            append_integer(unsigned, false, &mut out);
            prop_assert_eq!(String::from_utf8(out).unwrap(), format!("{value}{unsigned}"));
        }
    }
}
