//! Seeded randomness for timers.

use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Between `low` and `high` times `base`.
    pub(crate) fn scale(&mut self, base: Duration, low: f64, high: f64) -> Duration {
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        base.mul_f64(low + (high - low) * unit)
    }
}
