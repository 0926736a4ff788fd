//! UNION ALL: rows of several steps as rows of one.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion_expr::Union;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Column;
use rivulet_dataflow::{EdgeKind, is_key_type};
use rivulet_operators::{NamedExpression, Project};

use super::error::refused;
use super::lower::Lowering;
use super::stream::{Partition, Place, Stream};
use crate::SqlError;

/// The kind of edge for the rows of one of the streams. If the streams have different numbers of instances, rows are
/// distributed round-robin. But a row and its retraction must not overtake each other, so equal rows go to the same
/// instance.
fn way_of(stream: &Stream) -> EdgeKind {
    if !stream.changes {
        return EdgeKind::Forward;
    }
    let fields = stream.schema.fields().iter().enumerate();
    let columns: Vec<usize> =
        fields.filter(|(_, field)| is_key_type(field.data_type())).map(|(column, _)| column).collect();
    if columns.is_empty() { EdgeKind::Gather } else { EdgeKind::Hash(columns) }
}

impl Lowering {
    pub(super) fn union(&mut self, union: &Union, wanted: &BTreeSet<usize>) -> Result<Stream, SqlError> {
        let order: Vec<usize> = wanted.iter().copied().collect();
        let mut inputs = Vec::with_capacity(union.inputs.len());
        for input in &union.inputs {
            let stream = self.lower(input, wanted)?;
            let stream = self.builder.with_windows(stream)?;
            // All inputs get the same columns in the same order.
            let columns = order
                .iter()
                .map(|&column| match stream.columns[column] {
                    Place::Column(place) => Ok(place),
                    _ => Err(refused(self.position(), "PROCTIME() cannot be a column of a UNION")),
                })
                .collect::<Result<Vec<_>, SqlError>>()?;
            let named = order.iter().zip(&columns).map(|(&column, &place)| {
                let name = union.schema.field(column).name();
                let physical: Arc<dyn PhysicalExpr> = Arc::new(Column::new(stream.schema.field(place).name(), place));
                NamedExpression::new(name, physical)
            });
            let (node, schema) = self.builder.project_node(&stream, named.collect())?;
            inputs.push(stream.rearranged(node, schema, &columns));
        }
        let first = inputs[0].clone();
        let edges: Vec<_> = inputs.iter().map(|input| (input.node, 0, way_of(input))).collect();
        let same = (0..first.schema.fields().len()).map(|place| {
            let name = first.schema.field(place).name();
            NamedExpression::new(name, Arc::new(Column::new(name, place)))
        });
        let marks = order.iter().map(|&column| union.schema.field(column).as_ref());
        let union_all = Project::new(&first.schema, &Schema::empty(), vec![], same.collect())
            .map_err(|error| self.builder.failed(error))?
            .marked_like(marks);
        let schema = union_all.output_schema().clone();
        let node = self.builder.operator("union", &"", union_all, schema.clone(), &edges);
        let bounds = first.bounds.iter().filter_map(|&(column, _)| {
            let of_all = inputs.iter().map(|input| input.bound_of(column)).collect::<Option<Vec<_>>>()?;
            Some((column, of_all.into_iter().min()?))
        });
        let mut columns = vec![Place::Absent; union.schema.fields().len()];
        order.iter().enumerate().for_each(|(place, &column)| columns[column] = Place::Column(place));
        Ok(Stream {
            node,
            schema,
            columns,
            time: first.time.filter(|time| inputs.iter().all(|input| input.time == Some(*time))),
            bounds: bounds.collect(),
            pending: None,
            window: first.window.filter(|window| inputs.iter().all(|input| input.window == Some(*window))),
            changes: inputs.iter().any(|input| input.changes),
            partition: Partition::Any,
            key: None,
            is_small: inputs.iter().all(|input| input.is_small),
        })
    }
}
