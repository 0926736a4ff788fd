//! Rows from row groups of Parquet files.
//!
//! Columns are found by name and converted to the declared types; only the columns that are read are decompressed. A
//! row is refused if a value does not fit its declared type or is null where it must not be ([`super::convert`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, make_array};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use rivulet_dataflow::{Polled, Reason, Refusals, Source, SourceError};

use super::chunks::Piece;
use super::source::Holding;
use crate::connector::convert::{self, Converted};
use crate::connector::intake::refuse;
use crate::files::Files;
use crate::formats::{Part, type_of, unsuited};

/// A row group.
#[derive(Clone)]
pub(super) struct RowGroup {
    path: Arc<PathBuf>,
    metadata: ArrowReaderMetadata,
    /// The indices in the file of the columns that are read, in the file's order.
    in_file: Vec<usize>,
    /// For each column that is read, its index in `in_file`, and the fields of structs that lead to it.
    places: Arc<[(usize, Place)]>,
    index: usize,
    bytes: u64,
}

impl RowGroup {
    /// Its index in its file.
    pub(super) fn index(&self) -> usize {
        self.index
    }
}

impl Piece for RowGroup {
    fn path(&self) -> &Path {
        &self.path
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// What all partitions share.
#[derive(Debug)]
pub(super) struct Wanted {
    /// The columns that are read, as they are declared and as rows carry them.
    pub(super) schema: SchemaRef,
    pub(super) carried: SchemaRef,
    /// The indices of those that are never null.
    pub(super) required: Vec<usize>,
    pub(super) files: Files,
}

/// The row groups of the files, in order. The error says what is wrong with a file.
pub(super) fn row_groups(paths: Vec<PathBuf>, wanted: &Wanted) -> Result<Vec<RowGroup>, String> {
    let mut groups = Vec::new();
    for path in paths {
        let failed = |problem: String| format!("{}: {problem}", path.display());
        let metadata = metadata_of(&path, &wanted.files).map_err(failed)?;
        let mut found = Vec::with_capacity(wanted.schema.fields().len());
        for field in wanted.schema.fields() {
            found.push(find(metadata.schema(), field).map_err(failed)?);
        }
        let mut in_file: Vec<usize> = found.iter().map(|place| place[0]).collect();
        in_file.sort_unstable();
        in_file.dedup();
        let places: Arc<[(usize, Place)]> = found
            .iter()
            .map(|place| (in_file.binary_search(&place[0]).unwrap_or_default(), place[1..].to_vec()))
            .collect();
        let path = Arc::new(path);
        for (index, group) in metadata.metadata().row_groups().iter().enumerate() {
            groups.push(RowGroup {
                path: path.clone(),
                metadata: metadata.clone(),
                in_file: in_file.clone(),
                places: places.clone(),
                index,
                bytes: u64::try_from(group.compressed_size()).unwrap_or(0),
            });
        }
    }
    Ok(groups)
}

fn metadata_of(path: &Path, files: &Files) -> Result<ArrowReaderMetadata, String> {
    let file = files.open(path).map_err(|error| error.to_string())?;
    ArrowReaderMetadata::load(&file, Default::default()).map_err(|error| error.to_string())
}

/// Where a column stands in a file: its place, and those of the fields of structs that lead to it.
type Place = Vec<usize>;

/// Finds the column of a file for a declared column. `a.b` is the field `b` of the struct `a`, if no column has that
/// name.
fn find(in_file: &Schema, declared: &Field) -> Result<Place, String> {
    let Some((place, found)) = find_in(in_file.fields(), declared.name()) else {
        let names: Vec<&str> = in_file.fields().iter().map(|field| field.name().as_str()).collect();
        return Err(format!("there is no column '{}'; the columns are {}", declared.name(), names.join(", ")));
    };
    if !convert::is_readable(found, declared) {
        let name = declared.name();
        let inner = Part::of_column(declared).and_then(|part| unsuited(found, &part, name));
        let inner = inner.filter(|(path, _)| path != name);
        let inner = inner.map_or_else(String::new, |(path, wanted)| format!(": '{path}' is no {wanted} there"));
        return Err(format!("the column '{name}' of type {found} cannot be read as {}{inner}", type_of(declared)));
    }
    Ok(place)
}

fn find_in<'f>(fields: &'f Fields, name: &str) -> Option<(Place, &'f DataType)> {
    let exact = fields.iter().position(|field| field.name() == name);
    let variant = || fields.iter().position(|field| field.name().to_lowercase() == name.to_lowercase());
    if let Some(place) = exact.or_else(variant) {
        return Some((vec![place], fields[place].data_type()));
    }
    name.match_indices('.').find_map(|(point, _)| {
        let (mut place, outer) = find_in(fields, &name[..point])?;
        let DataType::Struct(inner) = outer else { return None };
        let (behind, found) = find_in(inner, &name[point + 1..])?;
        place.extend(behind);
        Some((place, found))
    })
}

/// The column at a place, null where a struct around it is.
fn column_at(rows: &RecordBatch, first: usize, inner: &[usize]) -> Result<ArrayRef, String> {
    inner.iter().try_fold(rows.column(first).clone(), |column, &field| {
        let structs = column.as_struct();
        let values = structs.column(field);
        let nulls = NullBuffer::union(structs.nulls(), values.logical_nulls().as_ref());
        // A dictionary has its nulls elsewhere, and a column of nulls has none.
        let plain = match values.data_type() {
            DataType::Dictionary(_, of) => cast(values, of).map_err(|error| error.to_string())?,
            DataType::Null => return Ok(values.clone()),
            _ => values.clone(),
        };
        let data = plain.to_data().into_builder().nulls(nulls).build().map_err(|error| error.to_string())?;
        Ok(make_array(data))
    })
}

/// The columns of the file as they would be declared; columns of unsupported types are left out.
pub(super) fn declared_columns(path: &Path, files: &Files) -> Result<Schema, String> {
    let metadata = metadata_of(path, files)?;
    let fields = metadata.schema().fields().iter().filter_map(|field| {
        let data_type = declared_type(field.data_type())?;
        Some(Field::new(field.name(), data_type, field.is_nullable()))
    });
    Ok(Schema::new(fields.collect::<Vec<_>>()))
}

fn declared_type(in_file: &DataType) -> Option<DataType> {
    use DataType::*;
    Some(match in_file {
        Boolean => Boolean,
        Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 => Int64,
        Float16 | Float32 | Float64 => Float64,
        Decimal32(precision, scale) | Decimal64(precision, scale) | Decimal128(precision, scale) if *scale >= 0 => {
            Decimal128(*precision, *scale)
        }
        Utf8 | LargeUtf8 | Utf8View => Utf8,
        Date32 | Date64 => Date32,
        Time32(_) | Time64(_) => Time64(TimeUnit::Nanosecond),
        Timestamp(..) => Timestamp(TimeUnit::Microsecond, None),
        Dictionary(_, values) => return declared_type(values),
        _ => return None,
    })
}

/// One partition: its row groups, first to last.
pub(super) struct ParquetSource {
    wanted: Arc<Wanted>,
    holding: Holding,
    /// The remaining row groups, last to first.
    waiting: Vec<RowGroup>,
    open: Option<(ParquetRecordBatchReader, RowGroup)>,
    /// The number of rows taken of the row group that is open or comes next.
    rows_taken: usize,
    bytes_done: u64,
    bytes_all: u64,
}

impl ParquetSource {
    pub(super) fn new(wanted: Arc<Wanted>, holding: Holding, mut groups: Vec<RowGroup>) -> Self {
        let bytes_all = groups.iter().map(|group| group.bytes).sum();
        groups.reverse();
        Self { wanted, holding, waiting: groups, open: None, rows_taken: 0, bytes_done: 0, bytes_all }
    }

    /// The same, starting behind this many rows of its first row group.
    pub(super) fn behind(self, rows_taken: usize) -> Self {
        Self { rows_taken, ..self }
    }

    /// The next rows as they are in the file, with the conversion of their columns.
    fn next(&mut self, rows_max: usize) -> Result<Option<Converted>, SourceError> {
        loop {
            if let Some((reader, group)) = &mut self.open {
                let failed = |problem: &dyn std::fmt::Display| {
                    SourceError(format!("cannot read {}: {problem}", group.path.display()))
                };
                match reader.next() {
                    Some(rows) => {
                        let rows = rows.map_err(|error| failed(&error))?;
                        self.rows_taken += rows.num_rows();
                        return as_wanted(&rows, group, &self.wanted).map(Some).map_err(|problem| failed(&problem));
                    }
                    None => {
                        self.bytes_done += group.bytes;
                        self.rows_taken = 0;
                        self.open = None;
                    }
                }
            }
            let Some(group) = self.waiting.pop() else { return Ok(None) };
            self.open = Some((open(&group, self.rows_taken, rows_max, &self.wanted.files)?, group));
        }
    }
}

/// Opens a row group behind this many of its rows.
fn open(
    group: &RowGroup,
    rows_taken: usize,
    rows_max: usize,
    files: &Files,
) -> Result<ParquetRecordBatchReader, SourceError> {
    let failed =
        |problem: &dyn std::fmt::Display| SourceError(format!("cannot read {}: {problem}", group.path.display()));
    let file = files.open(&*group.path).map_err(|error| failed(&error))?;
    let mask = ProjectionMask::roots(group.metadata.parquet_schema(), group.in_file.iter().copied());
    ParquetRecordBatchReaderBuilder::new_with_metadata(file, group.metadata.clone())
        .with_row_groups(vec![group.index])
        .with_projection(mask)
        .with_offset(rows_taken)
        .with_batch_size(rows_max)
        .build()
        .map_err(|error| failed(&error))
}

/// Converts the columns to the declared types.
fn as_wanted(rows: &RecordBatch, group: &RowGroup, wanted: &Wanted) -> Result<Converted, String> {
    let mut converted = Converted::new(rows.num_rows());
    for (field, (first, inner)) in wanted.schema.fields().iter().zip(&*group.places) {
        converted.push(field, &column_at(rows, *first, inner)?)?;
    }
    for &column in &wanted.required {
        converted.refuse_nulls(column, wanted.schema.field(column).name());
    }
    Ok(converted)
}

impl Source for ParquetSource {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        let holds = self.holding.may_hold();
        let Some(converted) = self.next(rows_max.max(1))? else { return Ok(Polled::End) };
        if let Some((_, group)) = self.open.take_if(|_| !holds) {
            self.waiting.push(group);
        }
        let columns = converted.finish(&self.wanted.carried, |detail, rows| {
            refuse(refusals, now_us, &[], || detail);
            refusals.count(Reason::Decode, rows - 1);
        });
        Ok(match columns.num_rows() {
            0 => Polled::Nothing(std::time::Duration::ZERO),
            _ => Polled::Rows { columns, retracts: None, arrival_us: now_us },
        })
    }

    fn position(&mut self) -> Option<String> {
        let open = self.open.as_ref().map(|(_, group)| group);
        let left: Vec<(&Path, usize)> = open
            .into_iter()
            .chain(self.waiting.iter().rev())
            .map(|group| (group.path.as_path(), group.index))
            .collect();
        serde_json::to_string(&(self.rows_taken, left)).ok()
    }

    fn progress(&self) -> Option<(u64, u64)> {
        Some((self.bytes_done, self.bytes_all))
    }
}
