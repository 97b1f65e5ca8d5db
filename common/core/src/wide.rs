//! Loops over values, compiled once more for vectors of 32 bytes and run so where the processor has them (AVX2).
//!
//! The plain build must run on any x86-64 and has vectors of 16 bytes; other architectures have one width only. What a loop computes is
//! the same bit for bit: no operations are fused or reordered, only more of them are done at once. Vectors of 64 bytes are left alone:
//! where they were measured, steps that are bound by memory were a tenth slower with them.

/// Runs a kernel. It is compiled for the wide vectors only as far as it is inlined: a closure over loops, or over functions that are
/// marked so.
#[inline(always)]
pub fn wide<R>(kernel: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    if let Some(wide) = pulp::x86::V3::try_new() {
        return wide.vectorize(kernel);
    }
    kernel()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_runs_once_and_its_result_is_returned() {
        let (mut runs, values) = (0, [1.5_f32, -2.0, 3.25]);
        let sum = wide(|| {
            runs += 1;
            values.iter().sum::<f32>()
        });
        assert_eq!((runs, sum), (1, 2.75));
    }

    // With a fused multiplication and addition the product would not be rounded, and the rest not be zero.
    #[test]
    fn products_are_rounded_before_they_are_added() {
        let (factor, product) = ([1.0 + f32::EPSILON; 64], (1.0 + f32::EPSILON) * (1.0 + f32::EPSILON));
        let mut rest = [-product; 64];
        wide(|| {
            for (rest, factor) in rest.iter_mut().zip(&factor) {
                *rest += factor * factor;
            }
        });
        assert_eq!(rest, [0.0; 64]);
    }
}
