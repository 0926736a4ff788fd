//! Simple doubles of tested code: slow, but easy to see that they are right.

/// Returns the records of a CSV text as Rivulet defines them; fields without a value are `None`. Returns `None` for a
/// text that is refused.
///
/// RFC 4180, with these rules: each line has `fields` fields; an empty field has no value, and `""` is the empty text;
/// a quote is only allowed at the beginning of a field; a carriage return may precede the line feed, and the last line
/// may end without both; a line without a character is no record, except if there is one field.
pub fn csv(text: &[u8], delimiter: u8, fields: usize) -> Option<Vec<Vec<Option<Vec<u8>>>>> {
    let mut records = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let line_end = |at: usize| match text.get(at..).unwrap_or_default() {
            [] => Some(at),
            [b'\n', ..] => Some(at + 1),
            [b'\r'] => Some(at + 1),
            [b'\r', b'\n', ..] => Some(at + 2),
            _ => None,
        };
        if fields > 1
            && let Some(next) = line_end(at)
        {
            at = next;
            continue;
        }
        let mut record = Vec::new();
        loop {
            let mut value = Vec::new();
            let is_quoted = text.get(at) == Some(&b'"');
            if is_quoted {
                at += 1;
                loop {
                    match text.get(at..).unwrap_or_default() {
                        [b'"', b'"', ..] => {
                            value.push(b'"');
                            at += 2;
                        }
                        [b'"', ..] => break at += 1,
                        [byte, ..] => {
                            value.push(*byte);
                            at += 1;
                        }
                        [] => return None,
                    }
                }
            } else {
                while let Some(&byte) = text.get(at)
                    && byte != delimiter
                    && line_end(at).is_none()
                {
                    if byte == b'"' {
                        return None;
                    }
                    value.push(byte);
                    at += 1;
                }
            }
            record.push((is_quoted || !value.is_empty()).then_some(value));
            if text.get(at) == Some(&delimiter) {
                at += 1;
                continue;
            }
            at = line_end(at)?;
            break;
        }
        if record.len() != fields || record.iter().flatten().any(|value| std::str::from_utf8(value).is_err()) {
            return None;
        }
        records.push(record);
    }
    (!records.is_empty()).then_some(records)
}

/// Whether a text is LIKE a pattern: `%` is any text, `_` any one character, and `\\` takes the next one literally.
pub fn like(text: &str, pattern: &str) -> bool {
    enum Piece {
        Any,
        One,
        Literal(char),
    }
    let mut pieces = Vec::new();
    let mut rest = pattern.chars().peekable();
    while let Some(character) = rest.next() {
        pieces.push(match character {
            '%' => Piece::Any,
            '_' => Piece::One,
            '\\' if rest.peek().is_some() => Piece::Literal(rest.next().unwrap_or_default()),
            other => Piece::Literal(other),
        });
    }
    // Which begins of the text, by their length, the pieces so far may stand for.
    let text: Vec<char> = text.chars().collect();
    let mut lengths = vec![false; text.len() + 1];
    lengths[0] = true;
    for piece in pieces {
        lengths = (0..=text.len())
            .map(|length| match piece {
                Piece::Any => lengths[..=length].contains(&true),
                Piece::One => length > 0 && lengths[length - 1],
                Piece::Literal(literal) => length > 0 && lengths[length - 1] && text[length - 1] == literal,
            })
            .collect();
    }
    lengths[text.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_is_read_as_the_standard_says() {
        let text = |value: &str| Some(value.as_bytes().to_vec());
        assert_eq!(
            csv(b"a,\"b\"\"\n\",\r\n\n,c,\"\"", b',', 3).unwrap(),
            [vec![text("a"), text("b\"\n"), None], vec![None, text("c"), text("")]]
        );
        for refused in [&b"a"[..], b"a,b,c", b"a,\"b", b"a,\"b\"c", b"a,b\"", b"a,\xff", b"", b"\n"] {
            assert_eq!(csv(refused, b',', 2), None);
        }
    }
    #[test]
    fn like_is_that_of_the_standard() {
        for (text, pattern, expected) in [
            ("abc", "a%", true),
            ("abc", "%c%", true),
            ("abc", "_b_", true),
            ("abc", "_b", false),
            ("a%", "a\\%", true),
            ("ab", "a\\%", false),
            ("a\\", "a\\", true),
            ("", "", true),
            ("", "_", false),
        ] {
            assert_eq!(like(text, pattern), expected, "{text} {pattern}");
        }
    }
}
