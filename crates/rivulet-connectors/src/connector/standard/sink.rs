//! Writes rows as lines of a stream.

use std::io::{self, Write};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use rivulet_dataflow::{Batch, Sink, SinkError};

use crate::connector::Health;
use crate::connector::file::Content;
use crate::formats::{FormatError, RowFormat};

/// The error when the reader of standard output has gone.
const READER_GONE: &str = "the reader of standard output has gone";

/// Whether a query failed with this message because the reader of standard output has gone, as when it is piped into
/// `head`. That is a normal end and no failure.
pub fn is_reader_gone(message: &str) -> bool {
    message == READER_GONE
}

/// The error for a failure to write standard output.
pub fn output_failed(error: &io::Error) -> SinkError {
    match error.kind() {
        io::ErrorKind::BrokenPipe => SinkError(READER_GONE.into()),
        _ => SinkError(format!("cannot write to standard output: {error}")),
    }
}

/// A sink of lines that writes a batch at a time.
pub(super) struct StandardSink<W> {
    stream: W,
    content: Content,
    needs_header: bool,
    health: Arc<Health>,
}

impl<W: Write + Send> StandardSink<W> {
    /// Writes rows of `schema`; the first of several instances writes the header.
    pub(super) fn new(
        stream: W,
        format: &RowFormat,
        schema: &SchemaRef,
        changes: bool,
        is_first: bool,
        health: &Arc<Health>,
    ) -> Result<Self, FormatError> {
        let content = Content::lines_of(format, schema, changes)?;
        Ok(Self { stream, content, needs_header: is_first, health: health.clone() })
    }

    fn header(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.needs_header) { self.stream.write_all(self.content.header()) } else { Ok(()) }
    }
}

impl<W: Write + Send> Sink for StandardSink<W> {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.header().map_err(|error| output_failed(&error))?;
        // In one piece, so that lines of several instances stay whole.
        let lines = self.content.lines(batch)?;
        self.stream.write_all(lines).map_err(|error| output_failed(&error))?;
        self.health.hand_and_take(batch.rows(), lines.len());
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.stream.flush().map_err(|error| output_failed(&error))
    }

    fn finish(&mut self) -> Result<bool, SinkError> {
        self.header().and_then(|()| self.stream.flush()).map(|()| true).map_err(|error| output_failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;
    use crate::files::Files;

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]))
    }

    fn write(stream: impl Write + Send, format: &RowFormat) -> Result<(), SinkError> {
        let columns = RecordBatch::try_new(schema(), vec![Arc::new(Int64Array::from(vec![1, 2]))]).unwrap();
        let batch = Batch::new(vec![0; 2].into(), vec![0; 2].into(), vec![0; 2].into(), columns);
        let batch = batch.with_retracts(Some(vec![false, true].into()));
        let mut sink = StandardSink::new(stream, format, &schema(), true, true, &Arc::default()).unwrap();
        sink.write(&batch)?;
        sink.finish()?;
        Ok(())
    }

    #[test]
    fn lines_below_their_header() {
        let mut out = Vec::new();
        write(&mut out, &RowFormat::parse("CSV", [("header", "true")], &Files::default()).unwrap()).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "op,n\n+,1\n-,2\n");
    }

    #[test]
    fn a_reader_that_goes_away_is_told_from_a_failure() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let error = write(writer, &RowFormat::parse("JSON", [], &Files::default()).unwrap()).unwrap_err();
        assert!(is_reader_gone(&error.0));
        assert!(!is_reader_gone(&output_failed(&io::Error::other("unplugged")).0));
    }
}
