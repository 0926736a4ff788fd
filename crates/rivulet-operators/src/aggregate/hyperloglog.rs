//! Approximate counts of distinct values.
//!
//! HyperLogLog after Flajolet et al. (2007) with 2^12 registers. Up to 256 values their hashes are kept instead, which
//! is exact (64-bit hashes of 256 values do not collide) and small. The estimate is that of Ertl, "New cardinality
//! estimation algorithms for HyperLogLog sketches" (2017), section 2, which needs no correction tables.
//!
//! The hash is part of the storage format: sketches are merged across processes.

const PRECISION_BITS: u32 = 12;
const REGISTERS: usize = 1 << PRECISION_BITS;
/// The bits of a hash behind the register number.
const RANK_BITS: u32 = 64 - PRECISION_BITS;
/// A register has a rank from 0 to one more than the bits.
const RANKS: usize = RANK_BITS as usize + 2;
/// The number of values beyond which registers take less memory than hashes, roughly.
const EXACT_MAX: usize = 256;

/// A set of values of which only the size can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HyperLogLog {
    /// The hashes of all values, ascending.
    Exact(Vec<u64>),
    Registers(Box<Registers>),
}

/// The greatest rank seen for each register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registers {
    ranks: [u8; REGISTERS],
    /// For each rank the number of its registers. An estimate needs no more: some want one for each value.
    counts: [u16; RANKS],
}

impl Default for HyperLogLog {
    fn default() -> Self {
        Self::Exact(Vec::new())
    }
}

impl HyperLogLog {
    pub(crate) fn insert(&mut self, hash: u64) {
        match self {
            Self::Exact(hashes) => {
                if let Err(place) = hashes.binary_search(&hash) {
                    if hashes.len() < EXACT_MAX {
                        hashes.insert(place, hash);
                    } else {
                        let mut registers = Box::new(Registers::new(&[0; REGISTERS]));
                        hashes.iter().chain([&hash]).for_each(|&hash| registers.note(hash));
                        *self = Self::Registers(registers);
                    }
                }
            }
            Self::Registers(registers) => registers.note(hash),
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        match (&mut *self, other) {
            (_, Self::Exact(hashes)) => hashes.iter().for_each(|&hash| self.insert(hash)),
            (Self::Registers(registers), Self::Registers(others)) => {
                (0..REGISTERS).for_each(|register| registers.raise(register, others.ranks[register]));
            }
            (Self::Exact(hashes), Self::Registers(others)) => {
                let mut registers = others.clone();
                hashes.iter().for_each(|&hash| registers.note(hash));
                *self = Self::Registers(registers);
            }
        }
    }

    pub(crate) fn estimate(&self) -> u64 {
        let counts = match self {
            Self::Exact(hashes) => return hashes.len() as u64,
            Self::Registers(registers) => &registers.counts,
        };
        let m = REGISTERS as f64;
        let mut z = m * tau(1.0 - f64::from(counts[RANKS - 1]) / m);
        for &count in counts[1..RANKS - 1].iter().rev() {
            z = 0.5 * (z + f64::from(count));
        }
        z += m * sigma(f64::from(counts[0]) / m);
        (m * m / (2.0 * std::f64::consts::LN_2 * z)).round() as u64
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Self::Exact(hashes) => hashes.capacity() * 8,
            Self::Registers(_) => size_of::<Registers>(),
        }
    }

    /// Appends the sketch to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Exact(hashes) => {
                out.extend((hashes.len() as u32).to_le_bytes());
                hashes.iter().for_each(|hash| out.extend(hash.to_le_bytes()));
            }
            Self::Registers(registers) => {
                out.extend(u32::MAX.to_le_bytes());
                out.extend_from_slice(&registers.ranks);
            }
        }
    }

    /// Reads a sketch from the front of `bytes`; `None` if they hold no sketch.
    pub(crate) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let count = u32::from_le_bytes(bytes.split_off(..4)?.try_into().ok()?);
        if count == u32::MAX {
            let ranks: &[u8; REGISTERS] = bytes.split_off(..REGISTERS)?.try_into().ok()?;
            let valid = ranks.iter().all(|&rank| usize::from(rank) < RANKS);
            return valid.then(|| Self::Registers(Box::new(Registers::new(ranks))));
        }
        let count = count as usize;
        let hashes: Vec<u64> = bytes
            .split_off(..count.checked_mul(8)?)?
            .chunks_exact(8)
            .map(|hash| u64::from_le_bytes(hash.try_into().expect("chunks of eight")))
            .collect();
        (count <= EXACT_MAX && hashes.is_sorted_by(|a, b| a < b)).then_some(Self::Exact(hashes))
    }
}

impl Registers {
    fn new(ranks: &[u8; REGISTERS]) -> Self {
        let mut counts = [0; RANKS];
        ranks.iter().for_each(|&rank| counts[usize::from(rank)] += 1);
        Self { ranks: *ranks, counts }
    }

    fn note(&mut self, hash: u64) {
        let rank = (hash << PRECISION_BITS).leading_zeros().min(RANK_BITS) + 1;
        self.raise((hash >> RANK_BITS) as usize, rank as u8);
    }

    fn raise(&mut self, register: usize, rank: u8) {
        let known = &mut self.ranks[register];
        if rank > *known {
            self.counts[usize::from(*known)] -= 1;
            self.counts[usize::from(rank)] += 1;
            *known = rank;
        }
    }
}

/// Ertl's sigma, for empty registers. The loop ends because the terms underflow (about 60 rounds at most).
fn sigma(mut x: f64) -> f64 {
    if x >= 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

/// Ertl's tau, for full registers.
fn tau(mut x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

/// A stable hash of a number's bits: the finalizer of MurmurHash3, a bijection with good avalanche.
pub(crate) fn hash_word(word: u64) -> u64 {
    let mut hash = word ^ 0x9e37_79b9_7f4a_7c15;
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// A stable hash of a text.
pub(crate) fn hash_text(text: &str) -> u64 {
    let mut hash = hash_word(text.len() as u64);
    for chunk in text.as_bytes().chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = hash_word(hash.rotate_left(23) ^ u64::from_le_bytes(word));
    }
    hash
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sketch(values: std::ops::Range<u64>) -> HyperLogLog {
        let mut sketch = HyperLogLog::default();
        values.for_each(|value| sketch.insert(hash_word(value)));
        sketch
    }

    /// What a sketch estimates by its registers only.
    fn estimate_of_registers(sketch: &HyperLogLog) -> u64 {
        let HyperLogLog::Registers(registers) = sketch else { return sketch.estimate() };
        let mut histogram = [0u32; RANKS];
        registers.ranks.iter().for_each(|&rank| histogram[usize::from(rank)] += 1);
        let m = REGISTERS as f64;
        let mut z = m * tau(1.0 - f64::from(histogram[RANKS - 1]) / m);
        for rank in (1..=RANK_BITS as usize).rev() {
            z = 0.5 * (z + f64::from(histogram[rank]));
        }
        z += m * sigma(f64::from(histogram[0]) / m);
        (m * m / (2.0 * std::f64::consts::LN_2 * z)).round() as u64
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn counts_of_ranks_are_those_of_the_registers(
            steps in prop::collection::vec((0..4u8, any::<u64>(), 0..2_000u64), 1..20),
        ) {
            let mut sketch = HyperLogLog::default();
            for (step, first, count) in steps {
                match step {
                    // Hashes whose rank is any, up to the highest.
                    0 => (0..count % 64).for_each(|bits| sketch.insert(first.unbounded_shr(12 + bits as u32) | first << 52)),
                    1 => sketch.merge(&self::sketch(first..first.saturating_add(count))),
                    2 => {
                        let mut bytes = Vec::new();
                        sketch.encode(&mut bytes);
                        sketch = HyperLogLog::decode(&mut bytes.as_slice()).unwrap();
                    }
                    _ => (0..count).for_each(|value| sketch.insert(hash_word(first.wrapping_add(value)))),
                }
                prop_assert_eq!(sketch.estimate(), estimate_of_registers(&sketch));
            }
        }
    }

    #[test]
    fn small_sets_are_counted_exactly() {
        assert_eq!(HyperLogLog::default().estimate(), 0);
        assert_eq!(sketch(0..256).estimate(), 256);
        let mut twice = sketch(0..200);
        twice.merge(&sketch(100..256));
        assert_eq!(twice.estimate(), 256);
    }

    #[test]
    fn large_sets_are_counted_within_five_standard_errors() {
        for count in [257, 1_000, 10_000, 1_000_000] {
            let estimate = sketch(0..count).estimate();
            let error = (estimate as f64 / count as f64 - 1.0).abs();
            assert!(error < 5.0 * 1.04 / (REGISTERS as f64).sqrt(), "{count}: {estimate}");
        }
    }

    #[test]
    fn merging_is_the_same_as_counting_together() {
        for (first, second) in [(0..100, 50..5000), (0..5000, 4000..9000), (0..5000, 7..9), (0..200, 200..400)] {
            let mut merged = sketch(first.clone());
            merged.merge(&sketch(second.clone()));
            let mut together = sketch(first);
            second.for_each(|value| together.insert(hash_word(value)));
            assert_eq!(merged, together);
        }
    }

    #[test]
    fn bytes_round_trip_and_broken_bytes_are_refused() {
        for sketch in [sketch(0..0), sketch(0..10), sketch(0..10_000)] {
            let mut bytes = Vec::new();
            sketch.encode(&mut bytes);
            assert_eq!(HyperLogLog::decode(&mut bytes.as_slice()), Some(sketch));
            assert_eq!(HyperLogLog::decode(&mut &bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(HyperLogLog::decode(&mut [255u8; 4100].as_slice()), None);
    }

    #[test]
    fn texts_hash_by_content_and_length() {
        assert_ne!(hash_text("a"), hash_text("a\0"));
        assert_ne!(hash_text("12345678"), hash_text("123456781"));
        // Sketches are on disks: a change here is a change of format.
        assert_eq!((hash_word(1), hash_text("device-1")), PINNED_HASHES);
        let mut sketch = HyperLogLog::default();
        (0..100_000).for_each(|n: u32| sketch.insert(hash_text(&format!("device-{n}"))));
        assert!((sketch.estimate() as f64 / 100_000.0 - 1.0).abs() < 0.08, "{}", sketch.estimate());
    }

    const PINNED_HASHES: (u64, u64) = (2_717_770_620_714_153_248, 7_541_027_587_421_953);
}
