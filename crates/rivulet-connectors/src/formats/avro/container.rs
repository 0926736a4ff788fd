//! Avro's object container files: a schema, then blocks of records, each with its number of records and its length in
//! front and a sync marker behind.
//!
//! What must hold: a broken file is an error and never takes more memory than a block may have; a broken record
//! invalidates the records behind it in its block, because it is unknown where they begin, and no others.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use flate2::Crc;
use flate2::read::DeflateDecoder;

use super::schema::AvroSchema;
use super::{AvroParser, Framing};
use crate::formats::binary::{Bytes, append_zigzag};
use crate::formats::describe::describe_fault;
use crate::formats::fault::Fault;
use crate::formats::rows::{ROWS_PER_EVENT_MAX, Rows};

/// What a file begins with.
const MAGIC: [u8; 4] = *b"Obj\x01";

/// The largest block, as it lies in the file and as it is when it is decompressed.
const BLOCK_BYTES_MAX: usize = 256 << 20;

/// The most that may stand before the blocks: mostly the schema.
const HEADER_BYTES_MAX: usize = 4 << 20;

/// The most records without a byte that a block may have.
const EMPTY_RECORDS_MAX: u64 = 1 << 20;

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Codec {
    None,
    Deflate,
    Snappy,
    Zstd,
}

/// The blocks of a file.
pub(crate) struct ContainerReader<R> {
    from: R,
    codec: Codec,
    mark: [u8; 16],
    schema: Arc<AvroSchema>,
    /// The block as it is in the file, and decompressed.
    raw: Vec<u8>,
    block: Vec<u8>,
}

impl<R: Read> ContainerReader<R> {
    /// Reads the header.
    pub(crate) fn open(mut from: R) -> Result<Self, String> {
        let mut magic = [0; 4];
        from.read_exact(&mut magic).map_err(in_words)?;
        if magic != MAGIC {
            return Err("it is no Avro file".into());
        }
        let (mut schema, mut codec) = (None, Codec::None);
        let mut budget = HEADER_BYTES_MAX;
        loop {
            let mut count = zigzag(&mut from)?.ok_or("it ends in its header")?;
            if count == 0 {
                break;
            }
            if count < 0 {
                // The length of what follows, which is not needed.
                zigzag(&mut from)?;
                count = count.saturating_neg();
            }
            for _ in 0..count {
                let key = text(&mut from, &mut budget)?;
                let value = text(&mut from, &mut budget)?;
                match key.as_slice() {
                    b"avro.schema" => schema = Some(value),
                    b"avro.codec" => codec = codec_of(&value)?,
                    _ => {}
                }
            }
        }
        let mut mark = [0; 16];
        from.read_exact(&mut mark).map_err(in_words)?;
        let schema = String::from_utf8(schema.ok_or("it has no schema")?).map_err(|error| error.to_string())?;
        let schema = Arc::new(AvroSchema::parse(&schema)?);
        Ok(Self { from, codec, mark, schema, raw: Vec::new(), block: Vec::new() })
    }

    /// A decoder of the blocks into those of the declared columns that are read, in their order.
    pub(crate) fn decoder(
        &self,
        declared: &SchemaRef,
        read: &[usize],
        event_time_column: Option<usize>,
    ) -> Result<BlockDecoder, String> {
        let parser = AvroParser::new(self.schema.clone(), Framing::None, declared, read)?;
        let schema = Arc::new(declared.project(read).map_err(|error| error.to_string())?);
        let event_time = event_time_column.and_then(|column| read.binary_search(&column).ok());
        Ok(BlockDecoder { parser, rows: Rows::new(schema, event_time) })
    }

    /// Reads the next block. Returns its number of records; `None` at the end.
    pub(crate) fn next_block(&mut self) -> Result<Option<u64>, String> {
        let Some(count) = zigzag(&mut self.from)? else { return Ok(None) };
        let length = zigzag(&mut self.from)?.ok_or("it ends in a block")?;
        let count = u64::try_from(count).map_err(|_| "a block has a negative number of records")?;
        let length = usize::try_from(length).ok().filter(|length| *length <= BLOCK_BYTES_MAX);
        let length = length.ok_or_else(|| format!("a block has more than {BLOCK_BYTES_MAX} bytes"))?;
        self.raw.clear();
        let read = (&mut self.from).take(length as u64).read_to_end(&mut self.raw).map_err(in_words)?;
        let mut mark = [0; 16];
        self.from.read_exact(&mut mark).map_err(in_words)?;
        if read != length || mark != self.mark {
            return Err("a block does not end where it says".into());
        }
        self.decompress()?;
        // Records without a byte exist, but a few bytes could claim any number of them.
        match count > self.block().len() as u64 + EMPTY_RECORDS_MAX {
            true => Err("a block says that it has more records than it has bytes".into()),
            false => Ok(Some(count)),
        }
    }

    /// Where the next block begins.
    pub(crate) fn position(&mut self) -> Result<u64, String>
    where
        R: Seek,
    {
        self.from.stream_position().map_err(in_words)
    }

    /// Goes on with the block that begins at this byte.
    pub(crate) fn seek(&mut self, position: u64) -> Result<(), String>
    where
        R: Seek,
    {
        self.from.seek(SeekFrom::Start(position)).map(|_| ()).map_err(in_words)
    }

    /// The block that was read last.
    pub(crate) fn block(&self) -> &[u8] {
        if self.codec == Codec::None { &self.raw } else { &self.block }
    }

    fn decompress(&mut self) -> Result<(), String> {
        let Self { raw, block, .. } = self;
        block.clear();
        let limit = BLOCK_BYTES_MAX as u64 + 1;
        match self.codec {
            Codec::None => {}
            Codec::Deflate => {
                _ = DeflateDecoder::new(raw.as_slice()).take(limit).read_to_end(block).map_err(in_words)?
            }
            Codec::Zstd => {
                let decoder = zstd::stream::read::Decoder::new(raw.as_slice()).map_err(in_words)?;
                decoder.take(limit).read_to_end(block).map_err(in_words)?;
            }
            Codec::Snappy => {
                let (body, sum) = raw.split_last_chunk::<4>().ok_or("a block is too short")?;
                let length = snap::raw::decompress_len(body).map_err(|error| error.to_string())?;
                if length <= BLOCK_BYTES_MAX {
                    *block = snap::raw::Decoder::new().decompress_vec(body).map_err(|error| error.to_string())?;
                    let mut crc = Crc::new();
                    crc.update(block);
                    if crc.sum() != u32::from_be_bytes(*sum) {
                        return Err("a block is broken: its checksum is another".into());
                    }
                } else {
                    return Err(format!("a block has more than {BLOCK_BYTES_MAX} bytes"));
                }
            }
        }
        match block.len() > BLOCK_BYTES_MAX {
            true => Err(format!("a block has more than {BLOCK_BYTES_MAX} bytes")),
            false => Ok(()),
        }
    }
}

fn codec_of(name: &[u8]) -> Result<Codec, String> {
    match name {
        b"null" => Ok(Codec::None),
        b"deflate" => Ok(Codec::Deflate),
        b"snappy" => Ok(Codec::Snappy),
        b"zstandard" => Ok(Codec::Zstd),
        other => Err(format!("its compression '{}' is not known here", String::from_utf8_lossy(other))),
    }
}

fn in_words(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "it ends too early".into(),
        _ => error.to_string(),
    }
}

/// A number whose sign is its lowest bit; `None` at the end of the file.
fn zigzag(from: &mut impl Read) -> Result<Option<i64>, String> {
    let mut bytes = [0; 10];
    for length in 0..bytes.len() {
        match from.read_exact(&mut bytes[length..=length]) {
            Ok(()) => {}
            Err(error) if length == 0 && error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(in_words(error)),
        }
        if bytes[length] < 0x80 {
            return Bytes::new(&bytes, 0).zigzag().map(Some).map_err(|_| "a number is broken".into());
        }
    }
    Err("a number is broken".into())
}

/// Bytes behind their length, within what is left of a budget.
fn text(from: &mut impl Read, budget: &mut usize) -> Result<Vec<u8>, String> {
    let length = zigzag(from)?.and_then(|length| usize::try_from(length).ok()).filter(|length| length < budget);
    let length = length.ok_or_else(|| format!("its header is broken or has more than {HEADER_BYTES_MAX} bytes"))?;
    *budget -= length + 1;
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes).map_err(in_words)?;
    Ok(bytes)
}

/// Decodes blocks.
pub(crate) struct BlockDecoder {
    parser: AvroParser,
    rows: Rows,
}

impl BlockDecoder {
    /// The rows of up to `records_max` records from byte `from` on, where the next one begins, and how many records
    /// were read. A fault comes with the rows before it.
    pub(crate) fn decode(
        &mut self,
        block: &[u8],
        from: usize,
        records_max: u64,
    ) -> (RecordBatch, usize, u64, Option<String>) {
        let mut bytes = Bytes::new(block, from);
        let mut fault: Option<Fault> = None;
        let mut records = 0;
        while records < records_max.min(ROWS_PER_EVENT_MAX as u64) {
            let before = self.rows.begin_event();
            if let Err(found) = self.parser.record(&mut bytes, &mut self.rows) {
                self.rows.truncate(before);
                fault = Some(found);
                break;
            }
            records += 1;
        }
        let fault = fault.map(|fault| describe_fault(fault, block, &self.rows));
        (self.rows.finish(), bytes.at(), records, fault)
    }
}

/// Appends what stands before the blocks of a file without compression.
pub(crate) fn append_header(schema: &str, mark: [u8; 16], out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
    append_zigzag(2, out);
    for text in ["avro.schema", schema, "avro.codec", "null"] {
        append_zigzag(text.len() as i64, out);
        out.extend_from_slice(text.as_bytes());
    }
    append_zigzag(0, out);
    out.extend_from_slice(&mark);
}

/// Appends a block of records.
pub(crate) fn append_block<'r>(records: impl Iterator<Item = &'r [u8]> + Clone, mark: [u8; 16], out: &mut Vec<u8>) {
    append_zigzag(records.clone().count() as i64, out);
    append_zigzag(records.clone().map(<[u8]>::len).sum::<usize>() as i64, out);
    records.for_each(|record| out.extend_from_slice(record));
    out.extend_from_slice(&mark);
}
