//! Puts the lines of a piece of a file, or of a stream, into an [`Intake`].
//!
//! What must hold: every line is taken by exactly one piece, the one in which it begins; a line that is longer than
//! allowed is refused once and skipped, in bounded memory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use memchr::{memchr, memchr2, memrchr};
use rivulet_dataflow::Refusals;

use crate::connector::intake::{Intake, refuse};

/// The number of bytes read at a time: enough that system calls cost little, and few enough to stay in the processor's
/// cache.
pub(crate) const READ_BYTES: usize = 256 << 10;

/// The byte order mark that some programs write before UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// How lines are separated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineRule {
    /// Whether a line break in quotes does not end a line (CSV with line breaks in its fields).
    pub(crate) has_quotes: bool,
    /// The greatest length of a line in bytes.
    pub(crate) line_bytes_max: usize,
    /// Whether an empty line counts: it is a row of CSV with one field, which is null.
    pub(crate) keeps_empty: bool,
}

/// Whether a piece has more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// There may be more lines.
    More,
    /// There is nothing now: all has been read, perhaps up to the middle of a line.
    Nothing,
}

/// The lines of one piece of a file, or of a stream.
pub(crate) struct Lines<R = File> {
    from: R,
    rule: LineRule,
    read_bytes: usize,
    /// Bytes that have been read and not taken: `buffer[taken..filled]`.
    buffer: Vec<u8>,
    taken: usize,
    filled: usize,
    /// How far the open line, which begins at `taken`, has been searched for its end.
    searched: usize,
    /// Whether the search is inside quotes.
    is_quoted: bool,
    /// Whether the rest of the open line is skipped, because it is too long or belongs to the previous piece.
    is_skipping: bool,
    /// The offset of `buffer[taken]` in the file.
    offset: u64,
    /// Lines that begin here or later belong to the next piece.
    end: u64,
}

impl Lines {
    /// The lines of `file` that begin at the bytes `start..end`.
    pub(crate) fn open(mut file: File, start: u64, end: u64, rule: LineRule) -> io::Result<Self> {
        // A line that began before `start` belongs to the previous piece: everything up to the first line break is
        // skipped, which may be right before `start`.
        let offset = start.saturating_sub(1);
        file.seek(SeekFrom::Start(offset))?;
        Ok(Self { is_skipping: start > 0, offset, end, ..Self::of(file, rule) })
    }

    /// Whether the file has more than has been read.
    pub(crate) fn has_more(&self) -> io::Result<bool> {
        Ok(self.from.metadata()?.len() > self.read_to())
    }
}

impl<R: Read> Lines<R> {
    /// The lines of a stream. A stream that would block has nothing now.
    pub(crate) fn of(from: R, rule: LineRule) -> Self {
        Self {
            from,
            rule,
            read_bytes: READ_BYTES,
            buffer: Vec::new(),
            taken: 0,
            filled: 0,
            searched: 0,
            is_quoted: false,
            is_skipping: false,
            offset: 0,
            end: u64::MAX,
        }
    }

    /// The same, reading this many bytes at a time.
    pub(crate) fn with_read_bytes(self, read_bytes: usize) -> Self {
        Self { read_bytes, ..self }
    }

    /// Separates the following lines by another rule.
    pub(crate) fn set_rule(&mut self, rule: LineRule) {
        self.rule = rule;
    }

    /// Whether reading can be resumed at [`Lines::offset`] at another time, because only the lines from there on are
    /// left.
    pub(crate) fn can_be_left(&self) -> bool {
        // The end of a quoted line that is too long can only be found by a reader that has seen its beginning.
        !(self.is_skipping && self.is_quoted)
    }

    /// The file or stream of the lines.
    pub(crate) fn from(&self) -> &R {
        &self.from
    }

    /// The offset of the next line.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// How far the file has been read: beyond the lines that were taken, by the open line.
    pub(crate) fn read_to(&self) -> u64 {
        self.offset + (self.filled - self.taken) as u64
    }

    /// Takes lines until the intake has no room for a poll of `rows_max` rows. Empty lines are skipped, unless the rule
    /// keeps them.
    pub(crate) fn take_into(
        &mut self,
        intake: &mut Intake,
        rows_max: usize,
        now_us: i64,
        refusals: &mut Refusals,
    ) -> io::Result<Left> {
        // Refused and empty lines do not fill the intake, so the number of reads also ends a poll.
        let mut reads_left = 16;
        while intake.has_room(rows_max) {
            if self.offset >= self.end {
                return Ok(Left::Nothing);
            }
            if let Some(bytes_max) = intake.block_bytes_max(rows_max)
                && let Some(length) = self.whole_lines(bytes_max)
            {
                intake.push_block(now_us, &self.buffer[self.taken..self.taken + length]);
                self.advance(length);
                continue;
            }
            match self.find_end() {
                Some(length) => self.take_line(length, 1, intake, now_us, refusals),
                None => {
                    self.drop_what_is_too_long(now_us, refusals);
                    if reads_left == 0 {
                        return Ok(Left::More);
                    }
                    reads_left -= 1;
                    match self.read() {
                        Ok(0) => return Ok(Left::Nothing),
                        Ok(_) => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Left::Nothing),
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(Left::More)
    }

    /// Takes the last line, which ends with the input and not with a line break.
    pub(crate) fn take_rest(&mut self, intake: &mut Intake, now_us: i64, refusals: &mut Refusals) {
        let length = self.filled - self.taken;
        if length > 0 && self.offset < self.end {
            self.take_line(length, 0, intake, now_us, refusals);
        }
    }

    /// The first line without its line break, for a header; `None` if there is none. If a stream would block, fails
    /// with that error, and can be called again.
    pub(crate) fn take_first(&mut self) -> io::Result<Option<Vec<u8>>> {
        let length = loop {
            match self.find_end() {
                Some(length) => break length,
                None if self.filled - self.taken > self.rule.line_bytes_max => {
                    return Err(io::Error::other(format!(
                        "the header has more than {} bytes",
                        self.rule.line_bytes_max
                    )));
                }
                None if self.read()? > 0 => {}
                None if self.filled == self.taken => return Ok(None),
                None => break self.filled - self.taken,
            }
        };
        let line = trimmed(&self.buffer[self.taken..self.taken + length], self.offset).to_vec();
        let with_break = (length + 1).min(self.filled - self.taken);
        self.advance(with_break);
        Ok(Some(line))
    }

    /// The length of the open line, if its end has been read.
    #[inline]
    fn find_end(&mut self) -> Option<usize> {
        loop {
            let rest = &self.buffer[self.searched..self.filled];
            let found = match self.rule.has_quotes {
                false => memchr(b'\n', rest),
                true => memchr2(b'\n', b'"', rest),
            };
            let Some(at) = found else {
                self.searched = self.filled;
                return None;
            };
            if rest[at] == b'"' {
                self.is_quoted = !self.is_quoted;
                self.searched += at + 1;
                continue;
            }
            self.searched += at + 1;
            if !self.is_quoted {
                return Some(self.searched - 1 - self.taken);
            }
        }
    }

    /// The number of bytes read that are plain whole lines: none is too long, has quotes, belongs to the next piece, or
    /// is the first of the file.
    fn whole_lines(&self, bytes_max: usize) -> Option<usize> {
        if self.is_skipping || self.is_quoted || self.offset == 0 {
            return None;
        }
        let to_end = usize::try_from(self.end - self.offset).unwrap_or(usize::MAX);
        let bytes = bytes_max.min(self.filled - self.taken).min(to_end).min(self.rule.line_bytes_max);
        let lines = &self.buffer[self.taken..self.taken + bytes];
        // Whether a quoted field contains a line break is decided when lines are taken one by one.
        let lines = &lines[..memchr(b'"', lines).unwrap_or(lines.len())];
        memrchr(b'\n', lines).map(|at| at + 1)
    }

    /// Takes `length` bytes as a line, and the bytes of the line break behind it.
    #[inline]
    fn take_line(
        &mut self,
        length: usize,
        line_break: usize,
        intake: &mut Intake,
        now_us: i64,
        refusals: &mut Refusals,
    ) {
        let line = &self.buffer[self.taken..self.taken + length];
        if self.is_skipping {
            self.is_skipping = false;
        } else if length > self.rule.line_bytes_max {
            refuse_long(self.rule, line, now_us, refusals);
        } else {
            let line = trimmed(line, self.offset);
            match self.rule.keeps_empty {
                // An empty payload would be no payload, so the line keeps its line break.
                true if line.is_empty() => intake.push(now_us, b"\n"),
                false if line.trim_ascii_start().is_empty() => {}
                _ => intake.push(now_us, line),
            }
        }
        self.advance(length + line_break);
    }

    #[inline]
    fn advance(&mut self, bytes: usize) {
        self.taken += bytes;
        self.offset += bytes as u64;
        self.searched = self.taken;
        self.is_quoted = false;
    }

    /// Frees the memory of an open line that is skipped or too long.
    fn drop_what_is_too_long(&mut self, now_us: i64, refusals: &mut Refusals) {
        let open = &self.buffer[self.taken..self.filled];
        if !self.is_skipping {
            if open.len() <= self.rule.line_bytes_max {
                return;
            }
            refuse_long(self.rule, open, now_us, refusals);
            self.is_skipping = true;
        }
        let is_quoted = self.is_quoted;
        self.advance(open.len());
        self.is_quoted = is_quoted;
    }

    /// Reads more. Returns the number of bytes, 0 at the end of the file.
    fn read(&mut self) -> io::Result<usize> {
        if self.taken > 0 {
            self.buffer.copy_within(self.taken..self.filled, 0);
            self.filled -= self.taken;
            self.searched -= self.taken;
            self.taken = 0;
        }
        let read_bytes = self.read_bytes;
        if self.buffer.len() < self.filled + read_bytes {
            self.buffer.resize(self.filled + read_bytes, 0);
        } else if self.buffer.len() > 4 * read_bytes && self.filled < read_bytes {
            self.buffer.truncate(2 * read_bytes);
            self.buffer.shrink_to_fit();
        }
        loop {
            match self.from.read(&mut self.buffer[self.filled..]) {
                Ok(bytes) => {
                    self.filled += bytes;
                    return Ok(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn refuse_long(rule: LineRule, line: &[u8], now_us: i64, refusals: &mut Refusals) {
    refuse(refusals, now_us, line, || {
        format!("the line has more than {} bytes (the option line_bytes_max)", rule.line_bytes_max)
    });
}

/// A line without what programs put around it: a carriage return at its end, a byte order mark at the beginning of the
/// file.
#[inline]
fn trimmed(line: &[u8], offset: u64) -> &[u8] {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if offset == 0 { line.strip_prefix(MARK).unwrap_or(line) } else { line }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use arrow::array::AsArray;
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};
    use proptest::prelude::*;
    use rivulet_dataflow::Reason;

    use super::*;
    use crate::files::Files;
    use crate::formats::RowFormat;

    const RULE: LineRule = LineRule { has_quotes: false, line_bytes_max: 40, keeps_empty: false };

    fn intake() -> Intake {
        let schema = Arc::new(Schema::new(vec![Field::new("line", DataType::Utf8, false)]));
        Intake::new(RowFormat::parse("RAW", [], &Files::default()).unwrap().decoder(&schema, &[0], None).unwrap())
    }

    fn drain(lines: &mut Lines, rows_max: usize, refusals: &mut Refusals) -> Vec<String> {
        let mut intake = intake();
        let mut taken = Vec::new();
        loop {
            let left = lines.take_into(&mut intake, rows_max, 0, refusals).unwrap();
            if left == Left::Nothing {
                lines.take_rest(&mut intake, 0, refusals);
            }
            let rows = intake.decode(refusals);
            taken.extend(rows.column(0).as_string::<i32>().iter().flatten().map(str::to_owned));
            if left == Left::Nothing {
                return taken;
            }
        }
    }

    /// The rows of CSV and the refusals, read in pieces of `piece_bytes` and polls of `rows_max`.
    fn read_csv(text: &str, piece_bytes: u64, rows_max: usize, takes_blocks: bool) -> (Vec<String>, Vec<String>) {
        let field = |name: &str, data_type| Field::new(name, data_type, true);
        let schema = Arc::new(Schema::new(vec![field("n", DataType::Int64), field("word", DataType::Utf8)]));
        let decoder = RowFormat::parse("CSV", [], &Files::default()).unwrap().decoder(&schema, &[0, 1], None).unwrap();
        let mut intake = Intake::new(decoder);
        intake.set_takes_blocks(takes_blocks);
        let (mut rows, mut refusals) = (Vec::new(), Refusals::new(1000));
        let file = file(text);
        for start in (0..text.len() as u64).step_by(piece_bytes as usize) {
            let end = if start + piece_bytes >= text.len() as u64 { u64::MAX } else { start + piece_bytes };
            let mut lines = Lines::open(file.reopen().unwrap(), start, end, RULE).unwrap();
            let mut left = Left::More;
            while left == Left::More {
                left = lines.take_into(&mut intake, rows_max, 0, &mut refusals).unwrap();
                if left == Left::Nothing {
                    lines.take_rest(&mut intake, 0, &mut refusals);
                }
                let batch = intake.decode(&mut refusals);
                let numbers = batch.column(0).as_primitive::<Int64Type>().iter();
                let words = batch.column(1).as_string::<i32>().iter();
                rows.extend(numbers.zip(words).map(|row| format!("{row:?}")));
            }
        }
        // A line that is too long is refused when it is seen, other lines together with all that wait.
        let mut refused: Vec<String> = refusals.records().iter().map(|refusal| refusal.detail.clone()).collect();
        refused.sort_unstable();
        (rows, refused)
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    /// Lines as a text editor shows them, without empty lines and lines that are too long; and the number of the
    /// latter.
    fn expected(text: &str) -> (Vec<String>, u64) {
        let mut refused = 0;
        let mut lines = Vec::new();
        for line in text.split('\n') {
            if line.len() > RULE.line_bytes_max {
                refused += 1;
                continue;
            }
            let line = line.strip_suffix('\r').unwrap_or(line);
            if !line.trim_ascii_start().is_empty() {
                lines.push(line.to_owned());
            }
        }
        (lines, refused)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn blocks_of_lines_are_what_the_lines_are(
            lines in proptest::collection::vec("[0-9]{1,3},[a-z]{0,9}\r?|[0-9]{1,3},\"[a-z,]{0,5}\"|[a-z0-9,\"]{0,8}| {0,3}|[0-9],[a-z]{40,60}", 0..60),
            piece_bytes in 1..400_u64,
            rows_max in 1..50_usize,
        ) {
            let text = lines.join("\n");
            prop_assert_eq!(read_csv(&text, piece_bytes, rows_max, true), read_csv(&text, piece_bytes, rows_max, false));
        }


        #[test]
        fn pieces_give_every_line_once(
            words in prop::collection::vec("[ab]{0,9}|[ab]{30,60}|\r?", 0..30),
            piece in 1_u64..50,
            rows_max in 1_usize..5,
        ) {
            let text = words.join("\n");
            let file = file(&text);
            let (mut lines, mut refusals) = (Vec::new(), Refusals::new(0));
            let length = text.len() as u64;
            let starts: Vec<u64> = (0..=length / piece).map(|index| index * piece).collect();
            for (index, &start) in starts.iter().enumerate() {
                let end = if index + 1 == starts.len() { u64::MAX } else { start + piece };
                let mut opened = Lines::open(file.reopen().unwrap(), start, end, RULE).unwrap();
                lines.extend(drain(&mut opened, rows_max, &mut refusals));
            }
            let (expected, refused) = expected(&text);
            prop_assert_eq!(lines, expected);
            prop_assert_eq!(refusals.counted(Reason::Decode), refused);
        }
    }

    #[test]
    fn lines_far_longer_than_the_buffer_are_refused_once() {
        let text = format!("a\n{}\nb\n{}", "x".repeat(3 * READ_BYTES), "y".repeat(2 * READ_BYTES));
        let file = file(&text);
        let mut refusals = Refusals::new(9);
        let mut lines = Lines::open(file.reopen().unwrap(), 0, u64::MAX, RULE).unwrap();
        assert_eq!(drain(&mut lines, 1000, &mut refusals), ["a", "b"]);
        assert_eq!(refusals.counted(Reason::Decode), 2);
        assert!(lines.buffer.len() <= 4 * READ_BYTES, "{}", lines.buffer.len());
        assert_eq!(refusals.records()[0].detail, "the line has more than 40 bytes (the option line_bytes_max)");
    }

    #[test]
    fn an_empty_line_is_one_where_the_rule_says_so() {
        let file = file("a\n\n\r\nb\n");
        let rule = LineRule { keeps_empty: true, ..RULE };
        let mut lines = Lines::open(file.reopen().unwrap(), 0, u64::MAX, rule).unwrap();
        assert_eq!(drain(&mut lines, 9, &mut Refusals::new(0)), ["a", "\n", "\n", "b"]);
    }

    #[test]
    fn line_breaks_between_quotes_are_none() {
        let file = file("\u{feff}a,\"b\nc\"\r\nd,\"\"\"\n\"\n\n");
        let rule = LineRule { has_quotes: true, ..RULE };
        let mut lines = Lines::open(file.reopen().unwrap(), 0, u64::MAX, rule).unwrap();
        assert_eq!(lines.take_first().unwrap().unwrap(), b"a,\"b\nc\"");
        assert_eq!(drain(&mut lines, 9, &mut Refusals::new(0)), ["d,\"\"\"\n\""]);
    }
}
