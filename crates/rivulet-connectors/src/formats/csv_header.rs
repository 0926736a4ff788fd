//! The header of CSV rows: the columns of the fields.

use std::borrow::Cow;

use arrow::datatypes::Schema;

/// For each field of a header, the declared column with its name (in any case); a field that is not declared has none.
///
/// The error says which column has no field, or which name two fields have.
pub(crate) fn csv_fields(header: &[u8], delimiter: u8, schema: &Schema) -> Result<Vec<Option<usize>>, String> {
    let header = String::from_utf8_lossy(header);
    let names = names(&header, char::from(delimiter));
    let mut fields = vec![None; names.len()];
    for (column, field) in schema.fields().iter().enumerate() {
        let wanted = field.name().to_lowercase();
        let mut places = names.iter().enumerate().filter(|(_, name)| **name == wanted);
        match (places.next(), places.next()) {
            (Some((place, _)), None) => fields[place] = Some(column),
            (Some(_), Some(_)) => return Err(format!("the header has the name '{}' twice", field.name())),
            (None, _) => {
                let found: String = header.chars().take(200).collect();
                return Err(format!("the header '{found}' does not name the column '{}'", field.name()));
            }
        }
    }
    Ok(fields)
}

/// The line of names that [`csv_fields`] reads, with its line break.
pub(crate) fn csv_header<'n>(names: impl Iterator<Item = &'n str>, delimiter: u8) -> Vec<u8> {
    let delimiter = char::from(delimiter);
    let quoted = names.map(|name| match name.contains([delimiter, '"', '\n', '\r']) || name.trim() != name {
        true => Cow::Owned(format!("\"{}\"", name.replace('"', "\"\""))),
        false => Cow::Borrowed(name),
    });
    let mut line = quoted.collect::<Vec<_>>().join(&delimiter.to_string());
    line.push('\n');
    line.into_bytes()
}

/// The names in a header, in lower case, without spaces and quotes around them. Between quotes a delimiter is a part of
/// the name; a quote behind other signs is one itself.
fn names(header: &str, delimiter: char) -> Vec<String> {
    /// Where a field is: before its first sign, behind a sign that is no quote, between quotes, or behind them.
    #[derive(Clone, Copy)]
    enum At {
        Begin,
        Plain,
        Quoted,
        Closed,
    }
    let mut at = At::Begin;
    let fields = header.split(|sign: char| {
        at = match (at, sign) {
            (At::Begin | At::Closed, '"') => At::Quoted,
            (At::Quoted, '"') => At::Closed,
            (At::Quoted, _) => At::Quoted,
            (_, sign) if sign == delimiter => {
                at = At::Begin;
                return true;
            }
            (At::Begin, sign) if sign.is_whitespace() => At::Begin,
            (At::Closed, _) => At::Closed,
            _ => At::Plain,
        };
        false
    });
    fields.map(name_of).collect()
}

/// A name in a header, in lower case, without surrounding quotes and spaces.
fn name_of(field: &str) -> String {
    let field = field.trim();
    let name = field.strip_prefix('"').and_then(|field| field.strip_suffix('"')).unwrap_or(field);
    name.replace("\"\"", "\"").to_lowercase()
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn columns_are_found_by_name() {
        let schema =
            Schema::new(vec![Field::new("name", DataType::Utf8, true), Field::new("Price", DataType::Float64, true)]);
        assert_eq!(csv_fields(b"PRICE; other;\"name\"", b';', &schema), Ok(vec![Some(1), None, Some(0)]));
        assert_eq!(
            csv_fields(b"name", b',', &schema).unwrap_err(),
            "the header 'name' does not name the column 'Price'"
        );
        assert!(csv_fields(b"name,price,price", b',', &schema).unwrap_err().contains("twice"));
    }

    #[test]
    fn a_delimiter_between_quotes_is_a_part_of_a_name() {
        for (header, delimiter, expected) in [
            (r#""a,b",c,d"#, ',', vec!["a,b", "c", "d"]),
            (r#""A;""b""";c"#, ';', vec![r#"a;"b""#, "c"]),
            (r#" "a, b" , c"#, ',', vec!["a, b", "c"]),
            (r#"5" pipe,b"#, ',', vec![r#"5" pipe"#, "b"]),
            ("\"a\nb\",c", ',', vec!["a\nb", "c"]),
            (r#""open,b"#, ',', vec![r#""open,b"#]),
            ("a\t\"b\tc\"\t", '\t', vec!["a", "b\tc", ""]),
        ] {
            assert_eq!(names(header, delimiter), expected, "{header}");
        }
    }

    #[test]
    fn a_header_is_quoted_where_it_has_to_be() {
        assert_eq!(csv_header(["a", "b;c", "d\"e"].into_iter(), b';'), b"a;\"b;c\";\"d\"\"e\"\n");
    }

    proptest! {
        #[test]
        fn what_a_sink_writes_is_read_back(
            written in prop::collection::vec("[a-c ,;\"\t\n]{0,4}[a-c]?[ \"]?", 1..5),
            delimiter in prop::sample::select(b",;\t|".to_vec()),
        ) {
            let line = csv_header(written.iter().map(String::as_str), delimiter);
            let line = std::str::from_utf8(&line[..line.len() - 1]).unwrap();
            prop_assert_eq!(names(line, char::from(delimiter)), written);
        }
    }
}
