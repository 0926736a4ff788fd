//! The part of DEFINE that depends on the match: evaluated for one row and one partial match at a time.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::{Slot, SlotTable};

use super::registers::{Layout, Match, Read};
use super::spec::{MatchCondition, source_field, source_storage};
use crate::PlanError;
use crate::aggregate::Storage;
use crate::expression::{is_condition, sql};
use crate::history::value::Builder;

/// A compiled condition.
pub(super) struct Condition {
    reads: Vec<(Read, Storage)>,
    /// The sources, then the parameters.
    schema: SchemaRef,
    parameters: Vec<usize>,
    expression: Arc<dyn PhysicalExpr>,
}

impl Condition {
    pub(super) fn new(
        condition: &MatchCondition,
        layout: &Layout,
        values: &[Field],
        parameter_schema: &Schema,
    ) -> Result<Self, PlanError> {
        let sources = condition.sources.iter();
        let mut fields: Vec<Field> = sources
            .clone()
            .enumerate()
            .map(|(index, source)| source_field(format!("source_{index}"), source, values))
            .collect();
        for &parameter in &condition.parameters {
            let Some(field) = parameter_schema.fields().get(parameter) else {
                let problem = "there is no such column".to_owned();
                return Err(PlanError::Column { index: parameter, what: "the parameters", problem });
            };
            fields.push(Field::new(format!("${}", field.name()), field.data_type().clone(), true));
        }
        let schema = Arc::new(Schema::new(fields));
        let fail = |problem: String| PlanError::Expression { expression: sql(&condition.expression), problem };
        let found = condition.expression.data_type(&schema).map_err(|error| fail(error.strip_backtrace()))?;
        if !is_condition(&found) {
            return Err(fail(format!("a condition is true or false, this has type {found}")));
        }
        Ok(Self {
            reads: sources.map(|source| (layout.read(source), source_storage(source, values))).collect(),
            schema,
            parameters: condition.parameters.clone(),
            expression: condition.expression.clone(),
        })
    }

    /// The names of the parameters that the condition uses, with a leading `$`.
    pub(super) fn parameter_names(&self) -> Vec<String> {
        self.schema.fields()[self.reads.len()..].iter().map(|field| field.name().clone()).collect()
    }

    /// Whether the condition is true for a match whose last row is the one that is tried. Null counts as false. It
    /// returns an error if the expression fails, for example with a division by zero.
    pub(super) fn holds(&self, of: &Match<'_>, slot: Slot, slots: &SlotTable) -> Result<bool, String> {
        self.evaluate(of, slot, slots).map_err(|error| error.to_string())
    }

    fn evaluate(
        &self,
        of: &Match<'_>,
        slot: Slot,
        slots: &SlotTable,
    ) -> Result<bool, datafusion_common::DataFusionError> {
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.schema.fields().len());
        for ((read, storage), field) in self.reads.iter().zip(self.schema.fields()) {
            let mut builder = Builder::values(*storage, 1);
            builder.push(&read.value(of));
            let column = builder.finish();
            columns.push(match column.data_type() == field.data_type() {
                true => column,
                false => cast(&column, field.data_type())?,
            });
        }
        columns.extend(self.parameters.iter().map(|&parameter| slots.gather(parameter, &[slot])));
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let row = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?;
        let result = self.expression.evaluate(&row)?.into_array_of_size(1)?;
        Ok(result.data_type() == &DataType::Boolean && result.is_valid(0) && result.as_boolean().value(0))
    }
}
