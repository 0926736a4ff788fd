//! Random numbers that cost about a nanosecond and are the same on every machine: with the same seed a run can be
//! repeated. The generator is SplitMix64 (Steele, Lea, Flood 2014). Not for secrets.

/// A seeded source of random numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

/// The increment of SplitMix64: the golden ratio in 64 bits.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// Makes a source. The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Makes the source of item `number` of a run. It is a pure function of both arguments, so that two processes agree
    /// about the item without communicating.
    pub fn of(seed: u64, number: u64) -> Self {
        let mut mixer = Self::new(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        Self::new(mixer.bits() ^ number)
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Uniform in [0, 1).
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in [low, high).
    #[inline]
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform in 0..bound (a bias of at most bound / 2^64 is accepted); 0 for a bound of 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// True with this probability.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Nearly standard normal: the number of ones in 64 fair bits (binomial, standard deviation 4) with a uniform
    /// dither between its steps, scaled to a standard deviation of one. It is within 0.3 % of the normal distribution
    /// function everywhere, which is enough for the noise of sensors, and costs a tenth of the exact distribution.
    #[inline]
    pub fn normal(&mut self) -> f32 {
        let bits = self.bits();
        // The dither comes from a product of the same bits, whose high half is almost independent of their count.
        let dither = (bits.wrapping_mul(GOLDEN) >> 40) as f32 * (1.0 / (1u32 << 24) as f32) - 0.5;
        // 16 + 1/12 is the variance of count plus dither.
        const SCALE: f32 = 0.249_351;
        (bits.count_ones() as f32 - 32.0 + dither) * SCALE
    }

    /// Exponential with this mean.
    #[inline]
    pub fn exponential(&mut self, mean: f64) -> f64 {
        // 1 - unit() lies in (0, 1], so the logarithm is finite.
        -(1.0 - self.unit()).ln() * mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        // The reference values of SplitMix64 for seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!([random.bits(), random.bits()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
        assert_ne!(Random::of(1, 2).bits(), Random::of(2, 1).bits());
        assert_eq!(Random::of(7, 9).bits(), Random::of(7, 9).bits());
    }

    #[test]
    fn normal_has_the_moments_and_the_tails_of_the_normal_distribution() {
        let mut random = Random::new(1);
        let samples: Vec<f64> = (0..200_000).map(|_| f64::from(random.normal())).collect();
        let count = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / count;
        let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        let beyond_two = samples.iter().filter(|x| x.abs() > 2.0).count() as f64 / count;
        let below_half = samples.iter().filter(|&&x| x < 0.5).count() as f64 / count;
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((variance - 1.0).abs() < 0.02, "{variance}");
        assert!((beyond_two - 0.0455).abs() < 0.004, "{beyond_two}");
        assert!((below_half - 0.6915).abs() < 0.005, "{below_half}");
    }

    #[test]
    fn uniform_and_exponential_have_their_means() {
        let mut random = Random::new(2);
        let count = 100_000;
        let mean = |mut next: Box<dyn FnMut() -> f64 + '_>| (0..count).map(|_| next()).sum::<f64>() / f64::from(count);
        let mut other = random.clone();
        assert!((mean(Box::new(|| random.between(2.0, 4.0))) - 3.0).abs() < 0.01);
        assert!((mean(Box::new(|| other.exponential(5.0))) - 5.0).abs() < 0.1);
        assert!((0..1000).all(|_| random.below(7) < 7));
        assert_eq!(random.below(0), 0);
    }
}
