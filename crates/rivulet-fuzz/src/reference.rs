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
}
