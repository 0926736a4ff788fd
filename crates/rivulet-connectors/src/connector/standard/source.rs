//! Reads rows from the lines of a stream whose reads may block: a thread reads, behind a bounded queue.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use rivulet_dataflow::{Polled, Refusals, Source, SourceError};

use crate::connector::intake::Intake;
use crate::connector::lines::{Left, Lines, Reading};

/// The number of bytes read at a time.
const BLOCK_BYTES: usize = 128 << 10;

/// The most blocks that wait. Beyond this, nothing is read, and the writer of the stream waits.
const BLOCKS_MAX: usize = 8;

/// The wait when no rows are available.
const IDLE: Duration = Duration::from_millis(5);

/// Rows of a stream.
pub(super) struct StreamSource {
    lines: Lines<Blocks>,
    reading: Reading,
    intake: Intake,
    needs_header: bool,
    is_bounded: bool,
}

impl StreamSource {
    /// Begins to read. The thread ends with the stream, or with the first block for which there is no receiver any
    /// more.
    pub(super) fn new(stream: impl Read + Send + 'static, reading: Reading, intake: Intake, is_bounded: bool) -> Self {
        let (sender, receiver) = sync_channel(BLOCKS_MAX);
        let started = std::thread::Builder::new().name("stdin".into()).spawn({
            let sender = sender.clone();
            move || read_blocks(stream, &sender)
        });
        if let Err(error) = started {
            // There is room: nothing has been sent yet.
            let _ = sender.try_send(Err(error));
        }
        let blocks = Blocks { receiver, block: Vec::new(), taken: 0, is_ended: false };
        let needs_header = reading.format.has_header();
        Self { lines: Lines::of(blocks, reading.rule), reading, intake, needs_header, is_bounded }
    }
}

fn read_blocks(mut stream: impl Read, sender: &SyncSender<io::Result<Vec<u8>>>) {
    loop {
        let mut block = vec![0; BLOCK_BYTES];
        match stream.read(&mut block) {
            Ok(0) => return,
            Ok(bytes) => {
                block.truncate(bytes);
                if sender.send(Ok(block)).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                // If the receiver has gone, the error need not arrive.
                let _ = sender.send(Err(error));
                return;
            }
        }
    }
}

impl Source for StreamSource {
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        let failed = |problem: String| SourceError(format!("cannot read standard input: {problem}"));
        if self.needs_header {
            match self.lines.take_first() {
                Ok(Some(header)) => {
                    let rule = self.reading.follow_header(&header, &mut self.intake).map_err(failed)?;
                    self.lines.set_rule(rule);
                }
                Ok(None) => return Ok(Polled::End),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Polled::Nothing(IDLE)),
                Err(error) => return Err(failed(error.to_string())),
            }
            self.needs_header = false;
        }
        let left = self
            .lines
            .take_into(&mut self.intake, rows_max, now_us, refusals)
            .map_err(|error| failed(error.to_string()))?;
        let is_ended = left == Left::Nothing && self.lines.from().is_ended;
        if is_ended {
            self.lines.take_rest(&mut self.intake, now_us, refusals);
        }
        if self.intake.payloads() > 0
            && let Some(rows) = self.intake.decode_for(now_us, refusals)
        {
            return Ok(rows);
        }
        Ok(match (is_ended, left) {
            (true, _) => Polled::End,
            (false, Left::Nothing) => Polled::Nothing(IDLE),
            (false, Left::More) => Polled::Nothing(Duration::ZERO),
        })
    }

    fn is_bounded(&self) -> bool {
        self.is_bounded
    }
}

/// The blocks that the thread has read, as a stream that reports that it would block instead of blocking.
struct Blocks {
    receiver: Receiver<io::Result<Vec<u8>>>,
    block: Vec<u8>,
    taken: usize,
    is_ended: bool,
}

impl Read for Blocks {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.block.len() {
            self.block = match self.receiver.try_recv() {
                Ok(block) => block?,
                Err(TryRecvError::Empty) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(TryRecvError::Disconnected) => {
                    self.is_ended = true;
                    return Ok(0);
                }
            };
            self.taken = 0;
        }
        let bytes = into.len().min(self.block.len() - self.taken);
        into[..bytes].copy_from_slice(&self.block[self.taken..self.taken + bytes]);
        self.taken += bytes;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use arrow::array::AsArray;
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};

    use super::*;
    use crate::connector::lines::LineRule;
    use crate::files::Files;
    use crate::formats::RowFormat;

    fn source(format: RowFormat, stream: impl Read + Send + 'static) -> StreamSource {
        let reading = Reading {
            format,
            declared: Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)])),
            read: vec![0],
            event_time_column: None,
            rule: LineRule { has_quotes: false, line_bytes_max: 1000, keeps_empty: false },
            files: Files::default(),
        };
        let intake = reading.intake().unwrap();
        StreamSource::new(stream, reading, intake, false)
    }

    fn drain(mut source: StreamSource) -> Result<Vec<i64>, SourceError> {
        let (mut numbers, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(30));
        while Instant::now() < deadline {
            match source.poll(100, 0, &mut Refusals::new(0))? {
                Polled::Rows { columns, .. } => {
                    numbers.extend_from_slice(columns.column(0).as_primitive::<Int64Type>().values());
                }
                Polled::Nothing(wait) | Polled::Aside(wait) => std::thread::sleep(wait),
                Polled::End => return Ok(numbers),
            }
        }
        panic!("the stream does not end")
    }

    /// A stream that delivers a few bytes at a time.
    struct Slow(io::Cursor<String>);

    impl Read for Slow {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let bytes = into.len().min(7);
            self.0.read(&mut into[..bytes])
        }
    }

    #[test]
    fn lines_come_whole_whatever_the_pieces() {
        let text: String = (0..2000).map(|n| format!("x,{n}\n")).collect();
        let csv = RowFormat::parse("CSV", [("header", "true")], &Files::default()).unwrap();
        let stream = Slow(io::Cursor::new(format!("other,N\n{text}x,7")));
        let expected: Vec<i64> = (0..2000).chain([7]).collect();
        assert_eq!(drain(source(csv.clone(), stream)).unwrap(), expected);
        assert_eq!(drain(source(csv.clone(), io::empty())).unwrap(), [0; 0]);
        let error = drain(source(csv, Slow(io::Cursor::new("other\n1".into())))).unwrap_err();
        assert!(error.0.contains("does not name the column 'n'"), "{error}");
    }

    #[test]
    fn a_stream_that_breaks_is_an_error() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _into: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("unplugged"))
            }
        }
        let error = drain(source(RowFormat::parse("JSON", [], &Files::default()).unwrap(), Broken)).unwrap_err();
        assert_eq!(error.0, "cannot read standard input: unplugged");
    }
}
