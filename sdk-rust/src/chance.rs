//! Decides where chance comes from: the keys that the standard library draws from the system.
//!
//! Good enough to spread delays, and one dependency less; nothing secret is made of it.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

thread_local! {
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(std::process::id()));
}

/// A fraction in [0, 1), even over it.
pub(crate) fn fraction() -> f64 {
    // SplitMix64: each state gives one well mixed number.
    let state = STATE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    STATE.set(state);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let high = u32::try_from((mixed ^ (mixed >> 31)) >> 32).unwrap_or_default();
    f64::from(high) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fractions lie in [0, 1) and are spread over all of it.
    #[test]
    fn fractions_are_spread() {
        let drawn: Vec<f64> = (0..10_000).map(|_| fraction()).collect();
        assert!(drawn.iter().all(|part| (0.0..1.0).contains(part)));
        for tenth in 0..10 {
            let bounds = f64::from(tenth) / 10.0..f64::from(tenth + 1) / 10.0;
            let count = drawn.iter().filter(|part| bounds.contains(part)).count();
            assert!((800..1200).contains(&count), "{count} in {bounds:?}");
        }
    }
}
