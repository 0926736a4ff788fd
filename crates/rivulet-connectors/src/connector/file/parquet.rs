//! Rows from row groups of Parquet files.
//!
//! Columns are found by name and brought to the declared types; only those that are read are decompressed. A row whose column is null
//! where it may not be is refused.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{CastOptions, can_cast_types, cast_with_options, filter_record_batch, is_not_null};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use rivulet_dataflow::{Polled, Reason, Refusals, Source, SourceError};

/// A row group.
#[derive(Clone)]
pub(super) struct RowGroup {
    path: Arc<PathBuf>,
    metadata: ArrowReaderMetadata,
    /// The columns of the file that are read, in the order in which they stand there.
    in_file: Vec<usize>,
    /// For each column that is read, its place among these.
    places: Arc<[usize]>,
    index: usize,
    bytes: u64,
}

/// What all partitions have in common.
#[derive(Debug)]
pub(super) struct Wanted {
    /// The columns that are read.
    pub(super) schema: SchemaRef,
    /// Those of them that are never null.
    pub(super) required: Vec<usize>,
}

/// The row groups of the files, in order. Fails with what is wrong with a file.
pub(super) fn row_groups(paths: Vec<PathBuf>, wanted: &Wanted) -> Result<Vec<RowGroup>, String> {
    let mut groups = Vec::new();
    for path in paths {
        let failed = |problem: String| format!("{}: {problem}", path.display());
        let metadata = metadata_of(&path).map_err(failed)?;
        let mut found = Vec::with_capacity(wanted.schema.fields().len());
        for field in wanted.schema.fields() {
            found.push(find(metadata.schema(), field).map_err(failed)?);
        }
        let mut in_file = found.clone();
        in_file.sort_unstable();
        in_file.dedup();
        let places: Arc<[usize]> =
            found.iter().map(|column| in_file.binary_search(column).unwrap_or_default()).collect();
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

fn metadata_of(path: &Path) -> Result<ArrowReaderMetadata, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    ArrowReaderMetadata::load(&file, Default::default()).map_err(|error| error.to_string())
}

/// The column of a file that a declared one means.
fn find(in_file: &Schema, declared: &Field) -> Result<usize, String> {
    let fields = in_file.fields();
    let is_it = |field: &Arc<Field>| field.name().to_lowercase() == declared.name().to_lowercase();
    let exact = fields.iter().position(|field| field.name() == declared.name());
    let Some(place) = exact.or_else(|| fields.iter().position(is_it)) else {
        let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
        return Err(format!("there is no column '{}'; the columns are {}", declared.name(), names.join(", ")));
    };
    let found = fields[place].data_type();
    if found != declared.data_type() && !can_cast_types(found, declared.data_type()) {
        let (name, wanted) = (declared.name(), declared.data_type());
        return Err(format!("the column '{name}' of type {found} cannot be read as {wanted}"));
    }
    Ok(place)
}

/// The columns of the file as they would be declared; those of other types are left out.
pub(super) fn declared_columns(path: &Path) -> Option<Schema> {
    let metadata = metadata_of(path).ok()?;
    let fields = metadata.schema().fields().iter().filter_map(|field| {
        let data_type = declared_type(field.data_type())?;
        Some(Field::new(field.name(), data_type, field.is_nullable()))
    });
    Some(Schema::new(fields.collect::<Vec<_>>()))
}

fn declared_type(in_file: &DataType) -> Option<DataType> {
    use DataType::*;
    Some(match in_file {
        Boolean => Boolean,
        Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 => Int64,
        Float16 | Float32 | Float64 | Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..) => Float64,
        Utf8 | LargeUtf8 | Utf8View => Utf8,
        Date32 | Date64 | Timestamp(..) => Timestamp(TimeUnit::Microsecond, None),
        Dictionary(_, values) => return declared_type(values),
        _ => return None,
    })
}

/// One partition: its row groups, first to last.
pub(super) struct ParquetSource {
    wanted: Arc<Wanted>,
    /// Last to first.
    waiting: Vec<RowGroup>,
    open: Option<(ParquetRecordBatchReader, RowGroup)>,
    /// What did not fit the last poll.
    rest: Option<RecordBatch>,
    bytes_done: u64,
    bytes_all: u64,
}

impl ParquetSource {
    pub(super) fn new(wanted: Arc<Wanted>, mut groups: Vec<RowGroup>) -> Self {
        let bytes_all = groups.iter().map(|group| group.bytes).sum();
        groups.reverse();
        Self { wanted, waiting: groups, open: None, rest: None, bytes_done: 0, bytes_all }
    }

    /// The next rows as they stand in the file.
    fn next(&mut self, rows_max: usize) -> Result<Option<RecordBatch>, SourceError> {
        loop {
            if let Some((reader, group)) = &mut self.open {
                let failed = |problem: &dyn std::fmt::Display| {
                    SourceError(format!("cannot read {}: {problem}", group.path.display()))
                };
                match reader.next() {
                    Some(rows) => {
                        let rows = rows.map_err(|error| failed(&error))?;
                        return as_wanted(&rows, group, &self.wanted).map(Some).map_err(|problem| failed(&problem));
                    }
                    None => {
                        self.bytes_done += group.bytes;
                        self.open = None;
                    }
                }
            }
            let Some(group) = self.waiting.pop() else { return Ok(None) };
            self.open = Some((open(&group, rows_max)?, group));
        }
    }
}

/// Begins a row group.
fn open(group: &RowGroup, rows_max: usize) -> Result<ParquetRecordBatchReader, SourceError> {
    let failed =
        |problem: &dyn std::fmt::Display| SourceError(format!("cannot read {}: {problem}", group.path.display()));
    let file = File::open(&*group.path).map_err(|error| failed(&error))?;
    let mask = ProjectionMask::roots(group.metadata.parquet_schema(), group.in_file.iter().copied());
    ParquetRecordBatchReaderBuilder::new_with_metadata(file, group.metadata.clone())
        .with_row_groups(vec![group.index])
        .with_projection(mask)
        .with_batch_size(rows_max.max(1))
        .build()
        .map_err(|error| failed(&error))
}

/// The columns as they were declared.
fn as_wanted(rows: &RecordBatch, group: &RowGroup, wanted: &Wanted) -> Result<RecordBatch, String> {
    // A value that does not fit the declared type is null.
    let options = CastOptions { safe: true, ..CastOptions::default() };
    let fields = wanted.schema.fields().iter();
    let columns = fields.zip(group.places.iter()).map(|(field, &place)| {
        let column = rows.column(place);
        match column.data_type() == field.data_type() {
            true => Ok(column.clone()),
            false => cast_with_options(column, field.data_type(), &options).map_err(|error| error.to_string()),
        }
    });
    let columns: Vec<ArrayRef> = columns.collect::<Result<_, _>>()?;
    // Nulls where there may be none are refused afterwards, so they pass here.
    let nullable = wanted.schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    let schema = Arc::new(Schema::new(nullable.collect::<Vec<_>>()));
    let count = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    RecordBatch::try_new_with_options(schema, columns, &count).map_err(|error| error.to_string())
}

/// Refuses rows with a null where there may be none.
fn refuse_nulls(rows: RecordBatch, wanted: &Wanted, now_us: i64, refusals: &mut Refusals) -> RecordBatch {
    let mut rows = rows;
    for &column in &wanted.required {
        if rows.column(column).null_count() == 0 {
            continue;
        }
        let keep: BooleanArray = is_not_null(rows.column(column)).expect("any column tells where it is null");
        let refused = rows.num_rows() - keep.true_count();
        let name = wanted.schema.field(column).name();
        crate::connector::intake::refuse(refusals, now_us, &[], || format!("field '{name}' may not be null"));
        refusals.count(Reason::Decode, refused as u64 - 1);
        rows = filter_record_batch(&rows, &keep).expect("one mark for each row");
    }
    let count = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    RecordBatch::try_new_with_options(wanted.schema.clone(), rows.columns().to_vec(), &count)
        .expect("the wanted types, and null only where it may be")
}

impl Source for ParquetSource {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        let rows_max = rows_max.max(1);
        let rows = match self.rest.take() {
            Some(rows) => rows,
            None => match self.next(rows_max)? {
                Some(rows) => rows,
                None => return Ok(Polled::End),
            },
        };
        let rows = if rows.num_rows() > rows_max {
            self.rest = Some(rows.slice(rows_max, rows.num_rows() - rows_max));
            rows.slice(0, rows_max)
        } else {
            rows
        };
        let columns = refuse_nulls(rows, &self.wanted, now_us, refusals);
        Ok(match columns.num_rows() {
            0 => Polled::Nothing(std::time::Duration::ZERO),
            _ => Polled::Rows { columns, arrival_us: now_us },
        })
    }

    fn progress(&self) -> Option<(u64, u64)> {
        Some((self.bytes_done, self.bytes_all))
    }
}
