//! Randomness as a pure function of a seed, the number of an event, and the purpose ("lane") within that event.
//!
//! So any partition makes any range of events, any column is made without the others, and two engines that do not
//! communicate read the same stream. The mixing is that of SplitMix64 (Steele, Lea, Flood 2014). Only integer
//! arithmetic and correctly rounded operations are used, so that the numbers are the same on every machine. Not for
//! secrets.

use std::sync::LazyLock;

/// The increment of SplitMix64: the golden ratio in 64 bits.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Turns neighbouring numbers into unrelated ones.
#[inline(always)]
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The seed that all events of a run share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seed(u64);

impl Seed {
    pub(super) fn new(seed: u64) -> Self {
        Self(mix(seed.wrapping_add(GOLDEN)))
    }

    /// The draws of event `number` for the purpose `lane`.
    #[inline(always)]
    pub(super) fn draws(self, number: u64, lane: u64) -> Draws {
        let event = mix(self.0 ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        Draws(mix(event.wrapping_add((lane + 1).wrapping_mul(GOLDEN))))
    }
}

/// 64 random bits that are used from the top: several small draws for the price of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws(u64);

impl Draws {
    /// Uniform in 0..bound, with a bias of at most `bound / 2^(bits that are left)`: enough for draws whose bounds
    /// multiply to less than 2^40. The low half of the product is as random as before, and is used for the next draw.
    #[inline(always)]
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.0) * u128::from(bound);
        self.0 = product as u64;
        (product >> 64) as u64
    }

    /// Log-uniform in 100..=100,000,000: the prices of the benchmark, `round(10^(6u) * 100)` with u uniform in [0, 1).
    #[inline(always)]
    pub(super) fn price(&mut self) -> i64 {
        /// 6 ln(10) / 1024, the logarithm of one step of the table.
        const STEP: f64 = 0.013_491_709_529_261_985;
        let step = (self.0 >> 54) as usize;
        let rest = ((self.0 >> 11) & ((1 << 43) - 1)) as f64 * (1.0 / (1u64 << 43) as f64) * STEP;
        self.0 = mix(self.0);
        // The series of the exponential function. What is left out is at most 0.0135 to the fifth power, a hundredth of
        // a cent of the highest price.
        let series = 1.0 + rest * (1.0 + rest * (1.0 / 2.0) * (1.0 + rest * (1.0 / 3.0) * (1.0 + rest * (1.0 / 4.0))));
        (PRICE_STEPS[step] * series + 0.5) as i64
    }

    /// Draws from the next word of a sequence.
    #[inline(always)]
    pub(super) fn of_word(words: &mut Words) -> Self {
        Self(words.bits())
    }

    /// For more than 64 bits: words that follow from these bits.
    #[inline(always)]
    pub(super) fn words(self) -> Words {
        Words(self.0)
    }

    /// Nearly normal with mean 0 and standard deviation 1: the sum of four uniform numbers of 16 bits.
    #[inline(always)]
    pub(super) fn normal(&mut self) -> f64 {
        let parts = [0, 16, 32, 48].map(|shift| (self.0 >> shift) & 0xffff);
        self.0 = mix(self.0);
        // Four uniform numbers have the mean 2 and the variance 4/12.
        (parts.iter().sum::<u64>() as f64 * (1.0 / 65_536.0) - 2.0) * 1.732_050_807_568_877_2
    }
}

/// 100 * 10^(6 i / 1024), computed only from square roots and products: these are rounded in the same way everywhere,
/// and `powf` is not.
static PRICE_STEPS: LazyLock<[f64; 1024]> = LazyLock::new(|| {
    let mut roots = [0.0; 10];
    let mut root = 1e6f64;
    for place in (0..10).rev() {
        root = root.sqrt();
        roots[place] = root;
    }
    std::array::from_fn(|step| (0..10).filter(|bit| step >> bit & 1 == 1).fold(100.0, |price, bit| price * roots[bit]))
});

/// A sequence of random words, for text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words(u64);

impl Words {
    /// The next 64 bits.
    #[inline(always)]
    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_a_function_of_seed_number_and_lane() {
        let draw = |seed, number, lane| Seed::new(seed).draws(number, lane).0;
        assert_eq!(draw(1, 2, 3), draw(1, 2, 3));
        assert_ne!(draw(1, 2, 3), draw(2, 1, 3));
        assert_ne!(draw(1, 2, 3), draw(1, 3, 2));
        // A change here changes every committed answer.
        assert_eq!(draw(42, 1_000, 7), 18_007_461_477_018_529_085);
    }

    #[test]
    fn several_draws_of_one_word_are_uniform_and_independent() {
        let mut counts = [[0u32; 10]; 4];
        for number in 0..40_000 {
            let mut draws = Seed::new(5).draws(number, 0);
            counts[draws.below(4) as usize][draws.below(10) as usize] += 1;
        }
        assert!(counts.as_flattened().iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn prices_are_log_uniform_and_near_the_power() {
        let mut below = [0u32; 6];
        for number in 0..60_000 {
            let mut draws = Seed::new(1).draws(number, 0);
            let unit = (draws.0 >> 11) as f64 / (1u64 << 53) as f64;
            let price = draws.price();
            let exact = (10f64.powf(6.0 * unit) * 100.0).round() as i64;
            assert!((price - exact).abs() <= 1, "{price} is not {exact}");
            below[((price as f64 / 100.0).log10() as usize).min(5)] += 1;
        }
        assert!(below.iter().all(|count| (9_600..10_400).contains(count)), "{below:?}");
        assert_eq!(Draws(0).price(), 100);
        assert_eq!(Draws(u64::MAX).price(), 100_000_000);
    }

    #[test]
    fn normal_numbers_have_their_moments() {
        let samples: Vec<f64> = (0..100_000).map(|number| Seed::new(3).draws(number, 1).normal()).collect();
        let mean = samples.iter().sum::<f64>() / 1e5;
        let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }
}
