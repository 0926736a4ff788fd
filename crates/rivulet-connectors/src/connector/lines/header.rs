//! The header of a CSV file: the columns of the fields.

use arrow::datatypes::Schema;

/// For each field of a header, the declared column with its name (in any case); a field that is not declared has none.
///
/// The error says which column has no field, or which name two fields have.
pub(crate) fn fields(header: &[u8], delimiter: u8, schema: &Schema) -> Result<Vec<Option<usize>>, String> {
    let header = String::from_utf8_lossy(header);
    let names: Vec<String> = header.split(char::from(delimiter)).map(name_of).collect();
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

/// A name in a header, in lower case, without surrounding quotes and spaces.
fn name_of(field: &str) -> String {
    let field = field.trim();
    let name = field.strip_prefix('"').and_then(|field| field.strip_suffix('"')).unwrap_or(field);
    name.replace("\"\"", "\"").to_lowercase()
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field};

    use super::*;

    #[test]
    fn columns_are_found_by_name() {
        let schema =
            Schema::new(vec![Field::new("name", DataType::Utf8, true), Field::new("Price", DataType::Float64, true)]);
        assert_eq!(fields(b"PRICE; other;\"name\"", b';', &schema), Ok(vec![Some(1), None, Some(0)]));
        assert_eq!(fields(b"name", b',', &schema).unwrap_err(), "the header 'name' does not name the column 'Price'");
        assert!(fields(b"name,price,price", b',', &schema).unwrap_err().contains("twice"));
    }
}
