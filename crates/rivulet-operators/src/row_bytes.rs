//! Several columns of a row as one canonical string of bytes, for keys and for "has it changed".
//!
//! Two rows have the same bytes exactly if SQL would put them into one group: null equals null, NaN equals NaN, and 0
//! equals -0. The bytes are Arrow's row format. They stay inside the process: storage depends on them only through the
//! hash that names a key group, which a test pins.

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use arrow::row::{RowConverter, Rows, SortField};
use rivulet_dataflow::{KeyHash, canonical_floats};

use crate::PlanError;

/// Encodes rows of fixed columns and decodes them again.
pub(crate) struct RowBytes {
    converter: RowConverter,
    has_floats: bool,
}

impl RowBytes {
    pub(crate) fn new<'a>(types: impl Iterator<Item = &'a DataType>) -> Result<Self, PlanError> {
        let types: Vec<&DataType> = types.collect();
        for (index, data_type) in types.iter().enumerate() {
            if !RowConverter::supports_fields(&[SortField::new((*data_type).clone())]) || data_type.is_nested() {
                let problem = format!("values of type {data_type} cannot be compared");
                return Err(PlanError::Column { index, what: "the key", problem });
            }
        }
        let has_floats = types.iter().any(|data_type| data_type.is_floating());
        let fields = types.into_iter().map(|data_type| SortField::new(data_type.clone())).collect();
        let converter = RowConverter::new(fields).map_err(|error| PlanError::Column {
            index: 0,
            what: "the key",
            problem: error.to_string(),
        })?;
        Ok(Self { converter, has_floats })
    }

    /// The same for values that must be decoded exactly, to the bit. Equal rows may then have different bytes.
    pub(crate) fn exact<'a>(types: impl Iterator<Item = &'a DataType>) -> Result<Self, PlanError> {
        Ok(Self { has_floats: false, ..Self::new(types)? })
    }

    /// An empty buffer for [`RowBytes::encode`].
    pub(crate) fn buffer(&self) -> Rows {
        self.converter.empty_rows(0, 0)
    }

    /// Replaces the content of `rows` by the bytes of these columns' rows.
    pub(crate) fn encode(&self, columns: &[ArrayRef], rows: &mut Rows) -> Result<(), ArrowError> {
        rows.clear();
        if self.has_floats {
            let columns: Vec<ArrayRef> = columns.iter().map(canonical_floats).collect();
            self.converter.append(rows, &columns)
        } else {
            self.converter.append(rows, columns)
        }
    }

    /// Returns the hash of the key of each row of these columns, by its bytes. It uses `rows` as a buffer.
    pub(crate) fn key_hashes(&self, columns: &[ArrayRef], rows: &mut Rows) -> Result<Vec<u16>, ArrowError> {
        self.encode(columns, rows)?;
        Ok(rows.iter().map(|row| KeyHash::of(row.data()).bits()).collect())
    }

    /// Decodes the columns of rows that this encoder encoded.
    pub(crate) fn decode<'a>(&self, rows: impl Iterator<Item = &'a [u8]>) -> Result<Vec<ArrayRef>, ArrowError> {
        let parser = self.converter.parser();
        // The parser borrows only to remember its settings. The rows must outlive the call, and they do.
        let parsed: Vec<_> = rows.map(|bytes| parser.parse(bytes)).collect();
        self.converter.convert_rows(parsed)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.converter.size()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Array, Float64Array, Int64Array, StringArray};
    use arrow::row::Row;
    use rivulet_dataflow::KeyGroups;

    use super::*;

    #[test]
    fn what_sql_calls_equal_has_equal_bytes() {
        let types = [DataType::Float64, DataType::Utf8];
        let encoder = RowBytes::new(types.iter()).unwrap();
        let negative_nan = f64::from_bits(f64::NAN.to_bits() | 1 << 63);
        let numbers: ArrayRef =
            Arc::new(Float64Array::from(vec![Some(f64::NAN), Some(negative_nan), Some(0.0), Some(-0.0), None, None]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), Some("a"), None, None, Some(""), None]));
        let mut rows = encoder.buffer();
        encoder.encode(&[numbers, texts.clone()], &mut rows).unwrap();
        assert_eq!(rows.row(0).data(), rows.row(1).data());
        assert_eq!(rows.row(2).data(), rows.row(3).data());
        assert_ne!(rows.row(4).data(), rows.row(5).data());
        let columns = encoder.decode(rows.iter().map(|row| row.data())).unwrap();
        assert_eq!(&columns[1], &texts);
        assert!(columns[0].is_null(5));
    }

    #[test]
    fn the_bytes_name_key_groups_on_disks() {
        // A change of these numbers is a change of format: state saved by key group would be looked for elsewhere.
        let encoder = RowBytes::new([DataType::Utf8, DataType::Int64].iter()).unwrap();
        let mut rows = encoder.buffer();
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["kitchen", "a room with a long name", ""]));
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), Some(-2), None]));
        encoder.encode(&[texts, numbers], &mut rows).unwrap();
        let key_group = |row: Row<'_>| KeyGroups::default().of(KeyHash::of(row.data())).index();
        let groups: Vec<u16> = rows.iter().map(key_group).collect();
        assert_eq!(groups, PINNED_KEY_GROUPS);
    }

    const PINNED_KEY_GROUPS: [u16; 3] = [242, 230, 47];

    #[test]
    fn nested_values_are_no_key() {
        let list = DataType::List(Arc::new(arrow::datatypes::Field::new("item", DataType::Int64, true)));
        assert!(RowBytes::new([list].iter()).is_err());
    }
}
