//! UNNEST: rows for the elements of an array.

use std::collections::BTreeSet;

use arrow::datatypes::Schema;
use datafusion_expr::ExprSchemable;
use rivulet_dataflow::{EdgeKind, held_type};
use rivulet_operators::Unnest;
use rivulet_relational::Elements;

use super::columns::used_columns;
use super::error::place_of;
use super::lower::Lowering;
use super::stream::{Place, Stream};
use crate::SqlError;

impl Lowering {
    pub(super) fn elements(&mut self, elements: &Elements, wanted: &BTreeSet<usize>) -> Result<Stream, SqlError> {
        let (input, output) = (elements.input.schema(), elements_schema(elements));
        let columns = input.fields().len();
        let is_below = |column: &usize| *column < columns;
        let mut used: BTreeSet<usize> = wanted.iter().copied().filter(is_below).collect();
        used.extend(used_columns([&elements.array], input));
        let stream = self.lower(&elements.input, &used)?;
        let stream = self.builder.with_windows(stream)?;
        let position = place_of(&elements.array).or(self.position());
        let array = self.physical(&elements.array, input, &stream)?;
        // A column that nothing reads behind it would be there once for each element.
        let mut kept: BTreeSet<usize> = wanted
            .iter()
            .filter(|column| is_below(column))
            .filter_map(|&column| match stream.columns[column] {
                Place::Column(place) => Some(place),
                _ => None,
            })
            .collect();
        kept.extend(stream.time);
        kept.extend(stream.window.iter().flat_map(|window| window.start.into_iter().chain([window.end])));
        let what = format!("{array:?} {kept:?} {output:?}");
        let number = elements.names.last().filter(|_| elements.is_numbered).map(String::as_str);
        let parts = output.fields()[..elements.names.len() - usize::from(elements.is_numbered)].iter();
        let parts = parts.map(|part| part.as_ref().clone()).collect();
        let held = elements.array.to_field(input).ok().and_then(|(_, field)| held_type(&field));
        let unnest = Unnest::new(&stream.schema, &Schema::empty(), vec![], array, held.as_ref(), parts, number)
            .map_err(|error| crate::plan::defect(error, position))?;
        let unnest = unnest.carrying_columns(|column| kept.contains(&column));
        let (carried, schema) = (unnest.carried().to_vec(), unnest.output_schema().clone());
        let inputs = [(stream.node, 0, EdgeKind::Forward)];
        let node = self.builder.operator("unnest", &what, unnest, schema.clone(), &inputs);
        let mut rows = stream.rearranged(node, schema, &carried);
        rows.columns.extend((0..elements.names.len()).map(|added| Place::Column(carried.len() + added)));
        // Elements of one row may be equal.
        rows.key = None;
        Ok(rows)
    }
}

/// The columns that are added to the rows.
fn elements_schema(elements: &Elements) -> Schema {
    use datafusion_expr::UserDefinedLogicalNodeCore;
    let fields = elements.schema().fields();
    Schema::new(fields[fields.len() - elements.names.len()..].to_vec())
}
