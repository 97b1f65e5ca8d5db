//! Random numbers for codecs: many, cheaply, and by count, so that nothing depends on when they are asked for.

use rand_chacha::rand_core::Rng;

use crate::schedule::random_stream;

/// Generators side by side: so many that the compiler makes vectors of the loop over them and does not unroll it.
pub(super) const LANES: usize = 64;

/// Streams of a seed from here on belong to codecs.
const STREAM: u64 = 1 << 56;

/// Generators xoshiro128++ side by side (Blackman and Vigna 2021), whose states come from the stream of a count; ChaCha itself
/// would take more time than all the rest of a codec.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    state: [[u32; LANES]; 4],
}

impl Lanes {
    /// The numbers of `count` in a seed.
    pub(super) fn new(seed: u64, count: u64) -> Self {
        let mut random = random_stream(seed, STREAM.wrapping_add(count));
        Self { state: std::array::from_fn(|_| std::array::from_fn(|_| random.next_u32())) }
    }

    /// All generators in one state.
    #[cfg(test)]
    pub(super) fn of_state(state: [u32; 4]) -> Self {
        Self { state: state.map(|word| [word; LANES]) }
    }

    /// The next number of each generator.
    pub(super) fn step(&mut self, numbers: &mut [u32; LANES]) {
        let [a, b, c, d] = &mut self.state;
        for lane in 0..LANES {
            let (s0, s1) = (a[lane], b[lane]);
            let (s2, s3) = (c[lane] ^ s0, d[lane] ^ s1);
            numbers[lane] = s0.wrapping_add(d[lane]).rotate_left(7).wrapping_add(s0);
            a[lane] = s0 ^ s3;
            b[lane] = s1 ^ s2;
            c[lane] = s2 ^ (s1 << 9);
            d[lane] = s3.rotate_left(11);
        }
    }

    /// Fills `numbers`, the lanes in turns; numbers that do not fill a turn are left over and lost.
    pub(super) fn fill(&mut self, numbers: &mut [u32]) {
        let (turns, rest) = numbers.as_chunks_mut();
        for turn in turns {
            self.step(turn);
        }
        if !rest.is_empty() {
            let mut turn = [0; LANES];
            self.step(&mut turn);
            rest.copy_from_slice(&turn[..rest.len()]);
        }
    }
}

/// A seed for a count.
pub(super) fn seed_of(seed: u64, count: u64) -> u64 {
    random_stream(seed, STREAM.wrapping_add(count)).next_u64()
}
