//! Faults in words, for people who look at refused events.

use arrow::datatypes::DataType;

use super::fault::{Fault, NO_COLUMN, Problem};
use super::rows::{ROWS_PER_EVENT_MAX, Rows};
use super::times::TimeFormat;
use super::{json, parts, senml, topic};

/// The fault in words, without a line break. `rows` are those that the payload was read into.
pub(super) fn describe_fault(fault: Fault, payload: &[u8], rows: &Rows) -> String {
    let at = fault.at as usize;
    let found = || found(payload, at);
    let column = (fault.column != NO_COLUMN).then(|| rows.schema().field(usize::from(fault.column)));
    let name = column.map(|field| field.name());
    let times = column.and_then(|_| rows.time_format(usize::from(fault.column)));
    let in_which = || column.map_or_else(String::new, |field| declared_as(field.data_type()));
    let what = match fault.problem {
        Problem::Empty => return "the payload is empty".into(),
        Problem::Missing => return format!("field '{}' is missing", name.map_or("?", |name| name)),
        Problem::NoRow => return "the payload holds no row".into(),
        Problem::NotInMessage => return "its message has nothing for a column that must have a value".into(),
        Problem::TooManyRows => {
            return format!("the payload holds more than {ROWS_PER_EVENT_MAX} rows");
        }
        Problem::NullInRequired => "expected a value, found null".into(),
        Problem::ExpectedNumber if payload.get(at) == Some(&b'"') => {
            let found = excerpt(payload, at);
            format!("expected a number, found {found} (a column of type TEXT takes it, and CAST makes a number of it)")
        }
        Problem::ExpectedNumber => format!("expected a number, found {}", found()),
        Problem::ExpectedBareNumber => format!("expected a number, found {}", bare_excerpt(payload, at)),
        Problem::ExpectedBareBoolean => format!("expected true or false, found {}", bare_excerpt(payload, at)),
        Problem::ExpectedInteger => format!("expected a whole number, found {}", excerpt(payload, at)),
        Problem::ExpectedString => format!("expected a string, found {}", found()),
        Problem::ExpectedBoolean => format!("expected true or false, found {}", found()),
        Problem::ExpectedTimestamp => {
            let how = times.unwrap_or(&TimeFormat::default()).in_words();
            format!("expected a time ({how}), found {}", excerpt(payload, at))
        }
        Problem::ExpectedDate => match times {
            Some(format) => format!("expected a date ({}), found {}", format.in_words(), excerpt(payload, at)),
            None => format!("expected a date (as 2026-11-21), found {}", excerpt(payload, at)),
        },
        Problem::ExpectedTime => format!("expected a time of day (as 08:30:00), found {}", excerpt(payload, at)),
        Problem::ExpectedObject => format!("expected an object, found {}", found()),
        Problem::ExpectedArray => format!("expected an array, found {}", found()),
        Problem::ExpectedValue => format!("expected a value, found {}", found()),
        Problem::ExpectedKey => format!("expected a quoted key, found {}", found()),
        Problem::ExpectedColon => format!("expected ':' after the key, found {}", found()),
        Problem::ExpectedCommaOrBrace => format!("expected ',' or '}}', found {}", found()),
        Problem::ExpectedCommaOrBracket => format!("expected ',' or ']', found {}", found()),
        Problem::ExpectedRoot => format!("expected an object or an array of objects, found {}", found()),
        Problem::ExpectedRecord => format!("expected an object in the array, found {}", found()),
        Problem::NotFinite => {
            let found = excerpt(payload, at);
            let is_word = |name: &str| name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_');
            let how = name.filter(|name| is_word(name)).map_or_else(String::new, |name| {
                let read = match found.starts_with('"') {
                    true => format!("FORMAT TEXT and a column {name} AS TRY_CAST(json_value(payload, '$.{name}')"),
                    false => format!("a column of type TEXT and TRY_CAST({name}"),
                };
                format!(": to take it for null, write {read} AS DECIMAL(30, 9))")
            });
            format!("expected a finite number, found {found}{how}")
        }
        Problem::MalformedNumber => format!("malformed number {}", excerpt(payload, at)),
        Problem::NumberRange => format!("number {} is out of range", excerpt(payload, at)),
        Problem::WholeRange => format!("number {} does not fit {}", excerpt(payload, at), in_which()),
        Problem::DecimalRange => format!("number {} has too many digits for {}", excerpt(payload, at), in_which()),
        Problem::DecimalDigits => {
            format!("number {} has more digits behind the point than {}", excerpt(payload, at), in_which())
        }
        Problem::TimestampRange => {
            // A wrong unit of numbers is the most frequent cause.
            let unit = times.and_then(TimeFormat::unit).map_or_else(String::new, |unit| format!(" as {unit}"));
            format!("time {}{unit} is out of range (years 0001 to 9999)", excerpt(payload, at))
        }
        Problem::InvalidUtf8 => "the text is not valid UTF-8".into(),
        Problem::ControlCharacter => format!("{} must be escaped in a string", found()),
        Problem::UnknownEscape => "unknown escape in a string".into(),
        Problem::LoneSurrogate => "a surrogate escape without its other half".into(),
        Problem::UnterminatedString => "the string does not end".into(),
        Problem::TrailingBytes => format!("expected the end of the payload, found {}", found()),
        Problem::TooDeep => format!("nested deeper than {} levels", json::DEPTH_MAX),
        Problem::TooMuchText => "the batch holds too much text (2 GiB in one column)".into(),
        Problem::TooMuchTopic => topic::too_much(),
        Problem::TooLargeValue => parts::too_large(),
        Problem::TooFewFields => "the line ends before this field".into(),
        Problem::TooManyFields => "the line has more fields than are declared".into(),
        Problem::QuoteInField => "a quote inside a field that does not begin with one".into(),
        Problem::TextAfterQuote => format!("expected a delimiter after the closing quote, found {}", found()),
        Problem::UnterminatedQuote => "the quoted field does not end".into(),
        Problem::NoSenMlPack => {
            format!("expected an array of SenML records (or an object with an array 'e'), found {}", found())
        }
        Problem::NoSenMlName => "the SenML record has no name".into(),
        Problem::NoSenMlValue => "the SenML record has no value".into(),
        Problem::SenMlNameTooLong => {
            format!("a SenML name or unit is longer than {} bytes", senml::NAME_BYTES_MAX)
        }
        Problem::SenMlMustUnderstand => {
            format!("the SenML record has a field that must be understood and is not: {}", excerpt(payload, at))
        }
        Problem::BinaryEnd => "the payload ends too early".into(),
        Problem::BinaryTrailing => "the payload goes on behind its end".into(),
        Problem::BinaryNumber => "malformed number".into(),
        Problem::BinaryLength => "malformed length".into(),
        Problem::BinaryBranch => "a choice that the schema does not have".into(),
        Problem::BinaryFrame => {
            "the payload does not begin with the frame that the format's option 'framing' says".into()
        }
        Problem::BinaryWireType => "written in a way that the schema does not have".into(),
        Problem::BinaryDepth => "nested too deep".into(),
        Problem::BinaryIntegerRange => "a number that does not fit BIGINT".into(),
        Problem::NoChange => "the payload is no change: it has no 'op' (rows alone are read by FORMAT JSON)".into(),
        Problem::ChangeOperation => {
            format!("expected 'op' \"c\", \"r\", \"u\" or \"d\", found {}", excerpt(payload, at))
        }
        Problem::NoBefore => {
            "an update or a deletion without 'before', the row that it takes back (PostgreSQL has it for tables \
             with REPLICA IDENTITY FULL)"
                .into()
        }
        Problem::NoAfter => "a change without 'after', its row".into(),
    };
    let is_bare = matches!(
        fault.problem,
        Problem::ExpectedBareNumber | Problem::ExpectedBareBoolean | Problem::ExpectedTimestamp
    );
    match name {
        Some(name) if is_bare && is_word(payload, at, name) => format!(
            "field '{name}' at byte {at}: {what}, its name: a first line with names is declared by FORMAT CSV \
             (header => true)"
        ),
        Some(name) => format!("field '{name}' at byte {at}: {what}"),
        None => format!("at byte {at}: {what}"),
    }
}

/// A type with its length, as it is declared.
fn declared_as(data_type: &DataType) -> String {
    match data_type {
        DataType::Int8 => "TINYINT".into(),
        DataType::Int16 => "SMALLINT".into(),
        DataType::Int32 => "INT".into(),
        DataType::Decimal128(precision, scale) => format!("DECIMAL({precision}, {scale})"),
        other => other.to_string(),
    }
}

/// Whether this word stands at byte `at`, in upper or lower case.
fn is_word(payload: &[u8], at: usize, word: &str) -> bool {
    let rest = payload.get(at..).unwrap_or_default();
    let is_end = |byte: &u8| !byte.is_ascii_alphanumeric() && *byte != b'_';
    rest.get(..word.len()).is_some_and(|found| found.eq_ignore_ascii_case(word.as_bytes()))
        && rest.get(word.len()).is_none_or(is_end)
}

/// What is at byte `at`, judged by its first byte.
fn found(payload: &[u8], at: usize) -> String {
    let Some((&first, _)) = payload.get(at..).and_then(<[u8]>::split_first) else {
        return "the end".into();
    };
    let rest = &payload[at..];
    match first {
        b'"' => "a string".into(),
        b'{' => "an object".into(),
        b'[' => "an array".into(),
        b'-' | b'0'..=b'9' => "a number".into(),
        b't' if rest.starts_with(b"true") => "a boolean".into(),
        b'f' if rest.starts_with(b"false") => "a boolean".into(),
        b'n' if rest.starts_with(b"null") => "null".into(),
        0x21..0x7f => format!("'{}'", first as char),
        b' ' => "a space".into(),
        b'\n' => "a line break".into(),
        other => format!("byte 0x{other:02x}"),
    }
}

/// The token at byte `at`, shortened to what fits a line.
fn excerpt(payload: &[u8], at: usize) -> String {
    excerpt_to(payload, at, |byte| byte <= b' ' || matches!(byte, b',' | b'}' | b']' | b':' | b'"'))
}

/// The same of a text without quotes, which goes on behind a space: `21.5 °C`.
fn bare_excerpt(payload: &[u8], at: usize) -> String {
    excerpt_to(payload, at, |byte| byte < b' ' || matches!(byte, b',' | b'"'))
}

fn excerpt_to(payload: &[u8], at: usize, ends_bare: impl Fn(u8) -> bool) -> String {
    /// Enough for any timestamp and any number a person would recognise.
    const EXCERPT_BYTES_MAX: usize = 32;
    let rest = payload.get(at..).unwrap_or_default();
    let quoted = rest.first() == Some(&b'"');
    let is_end = |byte: u8| match quoted {
        true => byte == b'"' || byte < 0x20,
        false => ends_bare(byte),
    };
    let body = &rest[usize::from(quoted)..];
    let length = body.iter().position(|&byte| is_end(byte)).unwrap_or(body.len());
    if length == 0 {
        return if quoted { "an empty string".into() } else { found(payload, at) };
    }
    let text = String::from_utf8_lossy(&body[..length.min(EXCERPT_BYTES_MAX)]);
    let dots = if length > EXCERPT_BYTES_MAX { "..." } else { "" };
    match (quoted, body[0]) {
        (true, _) => format!("\"{text}{dots}\""),
        (false, b'{' | b'[') => found(payload, at),
        (false, _) => format!("{}{dots}", text.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{Field, Schema};

    use super::*;

    fn rows(fields: Vec<Field>) -> Rows {
        Rows::new(Arc::new(Schema::new(fields)), None)
    }

    #[test]
    fn a_fault_reads_well() {
        let rows = rows(vec![Field::new("value", DataType::Float64, true)]);
        let payload = br#"{"value":"hot"}"#;
        assert_eq!(
            describe_fault(Fault::new(Problem::ExpectedNumber, 9).in_column(0), payload, &rows),
            "field 'value' at byte 9: expected a number, found \"hot\" (a column of type TEXT takes it, and CAST makes a \
             number of it)"
        );
        assert_eq!(
            describe_fault(Fault::new(Problem::ExpectedTimestamp, 9).in_column(0), payload, &rows),
            "field 'value' at byte 9: expected a time (epoch milliseconds or ISO 8601), found \"hot\""
        );
        assert_eq!(
            describe_fault(Fault::new(Problem::ExpectedCommaOrBrace, 15), payload, &rows),
            "at byte 15: expected ',' or '}', found the end"
        );
        assert_eq!(
            describe_fault(Fault::new(Problem::Missing, 0).in_column(0), payload, &rows),
            "field 'value' is missing"
        );
    }

    #[test]
    fn long_and_broken_tokens_are_shortened_not_trusted() {
        let rows = rows(Vec::new());
        let digits = "9".repeat(1000);
        let text = describe_fault(Fault::new(Problem::NumberRange, 0), digits.as_bytes(), &rows);
        assert!(text.len() < 100 && text.contains("..."), "{text}");
        assert!(describe_fault(Fault::new(Problem::MalformedNumber, 7), b"\xff\xfe", &rows).contains("the end"));
        assert!(describe_fault(Fault::new(Problem::MalformedNumber, 0), b"\xff\xfe", &rows).contains('\u{fffd}'));
    }
}
