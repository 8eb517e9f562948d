//! Reproducible randomness for jitter: SplitMix64 (Steele, Lea, Flood 2014). Not for secrets.

use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in `0..=max` to the microsecond.
    pub(crate) fn up_to(&mut self, max: Duration) -> Duration {
        Duration::from_micros(self.next() % (max.as_micros() as u64).saturating_add(1))
    }
}
