//! Finds where fields of CSV end: delimiters, line feeds and quotes, 64 bytes at a time.
//!
//! The bytes of a block are compared at once, and the results kept as bits, so the cost of a field does not depend on
//! the number of fields in a line (the technique of Langdale and Lemire, "Parsing gigabytes of JSON per second", 2019).

const BLOCK: usize = 64;

/// A search that goes through a payload once, first to last.
pub(super) struct Separators<'p> {
    payload: &'p [u8],
    delimiter: u8,
    /// The offset of the block whose bits are known.
    base: usize,
    /// A bit for each byte of the block: whether it is one of the bytes searched for.
    bits: u64,
}

impl<'p> Separators<'p> {
    pub(super) fn new(payload: &'p [u8], delimiter: u8) -> Self {
        Self { payload, delimiter, base: 0, bits: bits_at(payload, 0, delimiter) }
    }

    /// The first delimiter, line feed or quote at `from` or behind; the end of the payload if there is none. `from`
    /// never decreases from call to call.
    #[inline(always)]
    pub(super) fn next(&mut self, from: usize) -> usize {
        let (mut base, mut bits) = (self.base, self.bits);
        if from >= base + BLOCK {
            base = from - from % BLOCK;
            bits = bits_at(self.payload, base, self.delimiter);
        }
        let mut behind = bits & (u64::MAX << (from - base));
        while behind == 0 {
            base += BLOCK;
            if base >= self.payload.len() {
                return self.payload.len();
            }
            bits = bits_at(self.payload, base, self.delimiter);
            behind = bits;
        }
        (self.base, self.bits) = (base, bits);
        base + behind.trailing_zeros() as usize
    }
}

/// The bits of the block at `base`.
#[inline(always)]
fn bits_at(payload: &[u8], base: usize, delimiter: u8) -> u64 {
    let rest = payload.get(base..).unwrap_or_default();
    match rest.first_chunk::<BLOCK>() {
        Some(block) => bits_of(block, delimiter),
        None => {
            let mut block = [0; BLOCK];
            block[..rest.len()].copy_from_slice(rest);
            // The bits of the padding are removed.
            bits_of(&block, delimiter) & !(u64::MAX << rest.len())
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn bits_of(block: &[u8; BLOCK], delimiter: u8) -> u64 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8};
    let mut bits = 0;
    for (place, part) in block.as_chunks::<16>().0.iter().enumerate() {
        // SAFETY: the part has the 16 bytes that are loaded, wherever they stand; every processor of this kind has the
        // instructions.
        let found = unsafe {
            let bytes = _mm_loadu_si128(part.as_ptr().cast());
            let equal = |byte: u8| _mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte as i8));
            _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(equal(delimiter), equal(b'\n')), equal(b'"')))
        };
        bits |= u64::from(found as u16) << (16 * place);
    }
    bits
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn bits_of(block: &[u8; BLOCK], delimiter: u8) -> u64 {
    let is_found = |byte: u8| byte == delimiter || byte == b'\n' || byte == b'"';
    block.iter().enumerate().fold(0, |bits, (place, &byte)| bits | u64::from(is_found(byte)) << place)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn all_are_found_in_their_order(payload in "[a-c,\n\"]{0,10}[a-z]{0,150}[a-c,\n\"]{0,200}", skips in proptest::collection::vec(0..90_usize, 0..20)) {
            let payload = payload.as_bytes();
            let mut separators = Separators::new(payload, b',');
            let mut from = 0;
            for skip in skips.into_iter().chain(std::iter::repeat_n(0, payload.len() + 1)) {
                let expected = payload.iter().skip(from).position(|byte| b",\n\"".contains(byte));
                let expected = expected.map_or(payload.len(), |found| from + found);
                prop_assert_eq!(separators.next(from), expected, "from {}", from);
                from = (expected + 1 + skip).min(payload.len());
            }
        }
    }
}
