//! Given values to parameter columns, many queries at a time: a bulk submission does this a hundred thousand times.
//!
//! Clients send the same names in the same order, so the names of a row are first looked up in the order of the
//! previous row. Values are written directly into columns, and are removed if anything is wrong with their row. Only
//! text values need allocated memory.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, IntervalMonthDayNanoArray, RecordBatch, RecordBatchOptions,
    StringArray, TimestampMicrosecondArray,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, IntervalMonthDayNano, SchemaRef};

use crate::address::{DEFAULT_CONNECTOR, list};
pub use crate::application::BindError;
use crate::application::{Application, Parameter};
use crate::suggest;
use crate::value::{ParamValue, Typed, type_name};

/// The longest text of a parameter, in bytes: that of an MQTT topic.
const TEXT_BYTES_MAX: usize = 65_535;
/// The most text in one column of one batch, in bytes (Arrow's offsets have 32 bits).
const COLUMN_BYTES_MAX: usize = 1 << 30;

/// Parameter values of many queries of one application, collected row by row.
#[derive(Debug)]
pub struct ParameterRows {
    parameters: Arc<[Parameter]>,
    schema: SchemaRef,
    by_name: HashMap<String, usize>,
    /// The index of the parameter at each place of the last row.
    order: Vec<usize>,
    columns: Vec<Column>,
    rows: usize,
}

impl ParameterRows {
    /// Returns a collection without rows.
    pub fn new(application: &Application) -> Self {
        let parameters = application.parameters.clone();
        Self {
            schema: application.parameter_schema.clone(),
            by_name: parameters.iter().enumerate().map(|(index, one)| (one.name.clone(), index)).collect(),
            order: Vec::with_capacity(parameters.len()),
            columns: parameters.iter().map(|parameter| Column::new(&parameter.data_type)).collect(),
            rows: 0,
            parameters,
        }
    }

    /// The number of complete rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Appends a row. Parameters without a value take their default.
    ///
    /// Fails on an unknown name, a name given twice, a value of the wrong type, and a missing value. The rows then stay
    /// as they were.
    pub fn push<'v>(&mut self, values: impl IntoIterator<Item = (&'v str, ParamValue<'v>)>) -> Result<(), BindError> {
        match self.try_push(values) {
            Ok(()) => {
                self.rows += 1;
                Ok(())
            }
            Err(error) => {
                for column in &mut self.columns {
                    column.truncate(self.rows);
                }
                Err(error)
            }
        }
    }

    fn try_push<'v>(&mut self, values: impl IntoIterator<Item = (&'v str, ParamValue<'v>)>) -> Result<(), BindError> {
        let mut given = 0;
        for (place, (name, value)) in values.into_iter().enumerate() {
            let index = match self.order.get(place) {
                Some(&index) if self.parameters[index].name == name => index,
                _ => self.look_up(place, name)?,
            };
            let parameter = &self.parameters[index];
            if self.columns[index].rows() > self.rows {
                return Err(BindError::new(Some(name), format!("the parameter '{name}' is given twice")));
            }
            let typed = value.coerce(&parameter.data_type).map_err(|hint| wrong_type(parameter, value, hint))?;
            self.columns[index].push(check_value(parameter, typed)?)?;
            given += 1;
        }
        if given < self.parameters.len() {
            self.fill_in()?;
        }
        Ok(())
    }

    fn look_up(&mut self, place: usize, name: &str) -> Result<usize, BindError> {
        let Some(&index) = self.by_name.get(name) else {
            let error = BindError::new(Some(name), format!("unknown parameter '{name}'"));
            let names: Vec<&str> = self.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
            return Err(match suggest::nearest(name, names.iter().copied()) {
                _ if name == "fuse" => error.hint(
                    "fuse is an option of CREATE QUERY ... AS SELECT: the operators of an application always run together",
                ),
                Some(near) => error.hint(format!("did you mean '{near}'?")),
                None if names.is_empty() => error.hint("the application has no parameters"),
                None => error.hint(format!("the parameters are {}", list(&names))),
            });
        };
        // A row with more names than parameters fails on a name given twice, so `order` never gets longer than that.
        if place < self.order.len() {
            self.order[place] = index;
        } else if self.order.len() < self.parameters.len() {
            self.order.push(index);
        }
        Ok(index)
    }

    /// Gives the missing parameters of the current row their defaults.
    fn fill_in(&mut self) -> Result<(), BindError> {
        for (index, parameter) in self.parameters.iter().enumerate() {
            if self.columns[index].rows() > self.rows {
                continue;
            }
            let Some(default) = &parameter.default else {
                let missing: Vec<&str> = (index..self.parameters.len())
                    .filter(|&index| {
                        self.parameters[index].default.is_none() && self.columns[index].rows() == self.rows
                    })
                    .map(|index| self.parameters[index].name.as_str())
                    .collect();
                let (values, are) = if missing.len() == 1 { ("a value", "is") } else { ("values", "are") };
                return Err(BindError::new(
                    Some(&parameter.name),
                    format!("{values} for {} {are} missing", list(&missing)),
                )
                .hint(format!(
                    "expected a {} for '{}'",
                    type_name(&parameter.data_type),
                    parameter.name
                )));
            };
            let value = ParamValue::from(default);
            let typed = value.coerce(&parameter.data_type).map_err(|hint| wrong_type(parameter, value, hint))?;
            self.columns[index].push(typed)?;
        }
        Ok(())
    }

    /// Takes all rows out, as a batch with the application's parameter schema. More rows can be pushed afterwards.
    pub fn finish(&mut self) -> RecordBatch {
        let columns = self.columns.iter_mut().map(Column::take).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(std::mem::take(&mut self.rows)));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .expect("the columns have the parameters' types and one length")
    }
}

fn wrong_type(parameter: &Parameter, value: ParamValue<'_>, hint: Option<String>) -> BindError {
    let error = BindError::new(
        Some(&parameter.name),
        format!(
            "the parameter '{}' is {}, and {} is not",
            parameter.name,
            type_name(&parameter.data_type),
            value.describe()
        ),
    );
    BindError { hint, ..error }
}

fn check_value<'v>(parameter: &Parameter, value: Typed<'v>) -> Result<Typed<'v>, BindError> {
    let refuse = |what: String| Err(BindError::new(Some(&parameter.name), what));
    match value {
        Typed::Text(text) => {
            let text = if parameter.is_address { without_connector(text) } else { text };
            if text.len() > TEXT_BYTES_MAX {
                return refuse(format!(
                    "the parameter '{}' has {} bytes, and at most {TEXT_BYTES_MAX} are allowed",
                    parameter.name,
                    text.len()
                ));
            }
            if parameter.in_address && text.is_empty() {
                return refuse(format!("the parameter '{}' is part of an address and cannot be empty", parameter.name));
            }
            Ok(Typed::Text(text))
        }
        Typed::Null if parameter.in_address => {
            refuse(format!("the parameter '{}' is part of an address and cannot be NULL", parameter.name))
        }
        other => Ok(other),
    }
}

/// The address without the prefix of the default connector.
fn without_connector(address: &str) -> &str {
    address.strip_prefix(DEFAULT_CONNECTOR).and_then(|rest| rest.strip_prefix(':')).unwrap_or(address)
}

/// The values of one parameter, one for each row.
#[derive(Debug)]
struct Column {
    values: Values,
    valid: Vec<bool>,
    nulls: usize,
}

#[derive(Debug)]
enum Values {
    Boolean(Vec<bool>),
    Int64(Vec<i64>),
    Float64(Vec<f64>),
    Timestamp(Vec<i64>),
    Interval(Vec<IntervalMonthDayNano>),
    /// The bytes of all texts, the offset at which each text begins, and the end of the last one.
    Text(Vec<u8>, Vec<i32>),
}

impl Column {
    fn new(data_type: &DataType) -> Self {
        let values = match data_type {
            DataType::Boolean => Values::Boolean(Vec::new()),
            DataType::Int64 => Values::Int64(Vec::new()),
            DataType::Float64 => Values::Float64(Vec::new()),
            DataType::Timestamp(..) => Values::Timestamp(Vec::new()),
            DataType::Interval(_) => Values::Interval(Vec::new()),
            _ => Values::Text(Vec::new(), vec![0]),
        };
        Self { values, valid: Vec::new(), nulls: 0 }
    }

    fn rows(&self) -> usize {
        self.valid.len()
    }

    #[inline]
    fn push(&mut self, value: Typed<'_>) -> Result<(), BindError> {
        match (&mut self.values, value) {
            (Values::Boolean(values), Typed::Boolean(value)) => values.push(value),
            (Values::Int64(values), Typed::Int64(value)) => values.push(value),
            (Values::Float64(values), Typed::Float64(value)) => values.push(value),
            (Values::Timestamp(values), Typed::Timestamp(value)) => values.push(value),
            (Values::Interval(values), Typed::Interval(value)) => values.push(value),
            (Values::Text(bytes, ends), Typed::Text(text)) => {
                if bytes.len() + text.len() > COLUMN_BYTES_MAX {
                    return Err(BindError::new(None, format!("more than {COLUMN_BYTES_MAX} bytes of text in a batch"))
                        .hint("submit the queries in smaller batches"));
                }
                bytes.extend_from_slice(text.as_bytes());
                ends.push(bytes.len() as i32);
            }
            (values, _null) => {
                match values {
                    Values::Boolean(values) => values.push(false),
                    Values::Int64(values) | Values::Timestamp(values) => values.push(0),
                    Values::Float64(values) => values.push(0.0),
                    Values::Interval(values) => values.push(IntervalMonthDayNano::ZERO),
                    Values::Text(bytes, ends) => ends.push(bytes.len() as i32),
                }
                self.valid.push(false);
                self.nulls += 1;
                return Ok(());
            }
        }
        self.valid.push(true);
        Ok(())
    }

    fn truncate(&mut self, rows: usize) {
        self.nulls -= self.valid.iter().skip(rows).filter(|valid| !**valid).count();
        self.valid.truncate(rows);
        match &mut self.values {
            Values::Boolean(values) => values.truncate(rows),
            Values::Int64(values) | Values::Timestamp(values) => values.truncate(rows),
            Values::Float64(values) => values.truncate(rows),
            Values::Interval(values) => values.truncate(rows),
            Values::Text(bytes, ends) => {
                ends.truncate(rows + 1);
                bytes.truncate(ends.last().map_or(0, |&end| end as usize));
            }
        }
    }

    fn take(&mut self) -> ArrayRef {
        let valid = std::mem::take(&mut self.valid);
        let nulls = (std::mem::take(&mut self.nulls) > 0).then(|| NullBuffer::from(valid));
        match &mut self.values {
            Values::Boolean(values) => Arc::new(BooleanArray::new(std::mem::take(values).into(), nulls)),
            Values::Int64(values) => Arc::new(Int64Array::new(std::mem::take(values).into(), nulls)),
            Values::Float64(values) => Arc::new(Float64Array::new(std::mem::take(values).into(), nulls)),
            Values::Timestamp(values) => Arc::new(TimestampMicrosecondArray::new(std::mem::take(values).into(), nulls)),
            Values::Interval(values) => Arc::new(IntervalMonthDayNanoArray::new(std::mem::take(values).into(), nulls)),
            Values::Text(bytes, ends) => {
                let ends = OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(ends, vec![0])));
                Arc::new(StringArray::new(ends, Buffer::from_vec(std::mem::take(bytes)), nulls))
            }
        }
    }
}

#[cfg(test)]
mod tests;
