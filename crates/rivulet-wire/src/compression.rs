//! Whether a buffer is compressed, and how.
//!
//! `auto` compresses where a sample of the last half a megabyte says that it pays. Entropy would mislead: columns of
//! numbers look random byte by byte and compress well.

use arrow::buffer::{Buffer, MutableBuffer};

use crate::WireError;

/// How a stream compresses its buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// By LZ4: cheap.
    Lz4,
    /// By Zstandard, level 1: smaller.
    Zstd,
    /// By Zstandard where a sample becomes smaller by an eighth.
    #[default]
    Auto,
}

/// How one buffer is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    Plain = 0,
    Lz4 = 1,
    Zstd = 2,
}

impl Codec {
    pub(crate) fn of(code: u8) -> Result<Self, WireError> {
        match code {
            0 => Ok(Self::Plain),
            1 => Ok(Self::Lz4),
            2 => Ok(Self::Zstd),
            _ => Err(WireError::Broken("a buffer that is compressed in no known way")),
        }
    }
}

/// A sample is so many pieces of so many bytes, from all over the buffer.
const PIECES: usize = 16;
const PIECE_BYTES: usize = 512;

/// A sample is taken once in so many bytes, so that random data costs less than 2 % of what copying it costs.
const SAMPLED_BYTES: usize = 512 << 10;

const ZSTD_LEVEL: i32 = 1;

/// Compresses the buffers of a stream.
pub(crate) struct Compressor {
    compression: Compression,
    zstd: zstd::bulk::Compressor<'static>,
    /// The codec that the last sample chose, and how many bytes it still stands for.
    chosen: (Codec, usize),
    sample: Vec<u8>,
    small: Vec<u8>,
    out: Vec<u8>,
}

impl Compressor {
    pub(crate) fn new(compression: Compression) -> Self {
        let zstd = zstd::bulk::Compressor::new(ZSTD_LEVEL).expect("the level exists");
        let (sample, small, out) = (Vec::new(), Vec::new(), Vec::new());
        Self { compression, zstd, chosen: (Codec::Plain, 0), sample, small, out }
    }

    /// Compresses a buffer. It is plain if it would not become smaller.
    pub(crate) fn compress<'b>(&'b mut self, raw: &'b [u8]) -> (Codec, &'b [u8]) {
        let codec = match self.compression {
            Compression::None => Codec::Plain,
            Compression::Lz4 => Codec::Lz4,
            Compression::Zstd => Codec::Zstd,
            Compression::Auto => self.choose(raw),
        };
        let room = match codec {
            Codec::Plain => return (codec, raw),
            Codec::Lz4 => lz4_flex::block::get_maximum_output_size(raw.len()),
            Codec::Zstd => zstd::zstd_safe::compress_bound(raw.len()),
        };
        self.out.resize(room.max(self.out.len()), 0);
        let written = match codec {
            Codec::Lz4 => lz4_flex::block::compress_into(raw, &mut self.out).ok(),
            _ => self.zstd.compress_to_buffer(raw, &mut self.out[..]).ok(),
        };
        match written.filter(|written| *written < raw.len()) {
            Some(written) => (codec, &self.out[..written]),
            None => (Codec::Plain, raw),
        }
    }

    fn choose(&mut self, raw: &[u8]) -> Codec {
        if self.chosen.1 < raw.len() {
            self.sample.clear();
            let stride = (raw.len() / PIECES).max(PIECE_BYTES);
            let pieces = raw.chunks(stride).take(PIECES);
            pieces.for_each(|piece| self.sample.extend_from_slice(&piece[..piece.len().min(PIECE_BYTES)]));
            self.small.resize(lz4_flex::block::get_maximum_output_size(self.sample.len()), 0);
            let written = lz4_flex::block::compress_into(&self.sample, &mut self.small).unwrap_or(usize::MAX);
            let pays = written < self.sample.len() / 8 * 7;
            self.chosen = (if pays { Codec::Zstd } else { Codec::Plain }, SAMPLED_BYTES.max(raw.len()));
        }
        self.chosen.1 -= raw.len();
        self.chosen.0
    }
}

/// Makes a buffer of `length` bytes of what [`Compressor::compress`] has made.
///
/// # Errors
/// It is something else.
pub(crate) fn decompress(codec: Codec, bytes: Buffer, length: usize) -> Result<Buffer, WireError> {
    let mut raw = match codec {
        Codec::Plain if bytes.len() == length => return Ok(bytes),
        Codec::Plain => return Err(WireError::Broken("a buffer of another length than it says")),
        Codec::Lz4 | Codec::Zstd => MutableBuffer::from_len_zeroed(length),
    };
    let written = match codec {
        Codec::Lz4 => lz4_flex::block::decompress_into(&bytes, &mut raw).ok(),
        _ => zstd::bulk::decompress_to_buffer(&bytes, raw.as_slice_mut()).ok(),
    };
    match written {
        Some(written) if written == length => Ok(raw.into()),
        _ => Err(WireError::Broken("a compressed buffer that does not become what it was")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that no codec makes smaller.
    fn random(bytes: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..bytes).map(next).collect()
    }

    #[test]
    fn a_buffer_comes_back_and_is_never_larger() {
        let texts = b"a reading of a sensor, ".repeat(700);
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd, Compression::Auto] {
            let mut compressor = Compressor::new(compression);
            for raw in [Vec::new(), vec![7], random(3), random(100_000), texts.clone(), vec![0; 1 << 20]] {
                let (codec, small) = compressor.compress(&raw);
                assert!(small.len() <= raw.len(), "{compression:?} {}", raw.len());
                let back = decompress(codec, Buffer::from(small), raw.len()).unwrap();
                assert_eq!(back.as_slice(), raw, "{compression:?}");
                for wrong in [raw.len() + 1, raw.len().saturating_sub(1)] {
                    let is_same = wrong == raw.len();
                    assert_eq!(decompress(codec, Buffer::from(small), wrong).is_ok(), is_same, "{compression:?}");
                }
            }
        }
    }

    #[test]
    fn what_a_sample_says_holds_for_half_a_megabyte() {
        let (random, zeros) = (random(64 << 10), vec![0; 64 << 10]);
        let mut compressor = Compressor::new(Compression::Auto);
        let mut chosen = |raw: &[u8], times: usize| {
            let codecs: Vec<Codec> = (0..times).map(|_| compressor.compress(raw).0).collect();
            codecs.iter().filter(|codec| **codec == Codec::Plain).count()
        };
        assert_eq!(chosen(&random, 3), 3);
        // Five more stand for the sample of random bytes.
        assert_eq!(chosen(&zeros, 10), 5);
    }

    #[test]
    fn columns_of_numbers_are_compressed() {
        let times: Vec<u8> =
            (0..100_000_i64).flat_map(|n| (1_700_000_000_000_000 + n * 10_000).to_le_bytes()).collect();
        let mut compressor = Compressor::new(Compression::Auto);
        let (codec, small) = compressor.compress(&times);
        assert!(codec == Codec::Zstd && small.len() < times.len() / 2, "{codec:?}: {} of {}", small.len(), times.len());
    }
}
