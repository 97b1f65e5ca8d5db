//! Products of matrices: a safe face for the f32 kernel of the `gemm` family. The only unsafe code of this
//! crate.
//!
//! The kernel for the processor's best instructions (AVX-512, AVX2 with FMA, NEON, or plain code) is chosen
//! once a process, when it runs. How a sum over the inner dimension is blocked depends on that choice and on
//! the sizes of the caches, so bits repeat on one machine but not between machines of different kinds.

use gemm_common::Parallelism;
use ndarray::{ArrayView2, ArrayViewMut2};

/// What to do with the values already in the target of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Replace them; they are never read.
    Overwrite,
    /// Add the product to them.
    Accumulate,
}

/// `target = left * right`, or `target += left * right`, on the calling thread. Views of any layout,
/// transposed ones included, cost no copy.
///
/// # Panics
///
/// When the shapes do not fit, or a view runs backwards (negative strides, which the kernel does not take).
pub(crate) fn multiply(
    left: ArrayView2<'_, f32>,
    right: ArrayView2<'_, f32>,
    target: Target,
    mut out: ArrayViewMut2<'_, f32>,
) {
    let ((rows, inner), columns) = (left.dim(), right.ncols());
    assert_eq!(inner, right.nrows(), "inner dimensions of a product");
    assert_eq!((rows, columns), out.dim(), "shape of a product's target");
    let (left_strides, right_strides) = (strides(left.strides()), strides(right.strides()));
    let out_strides = strides(out.strides());
    let kernel = gemm_f32::gemm::f32::get_gemm_fn();
    // The kernel wants a target whose columns are contiguous. Ours are row-major, so we ask for the
    // transposed product, out' = right' * left': the same memory with the strides of each view exchanged.
    //
    // SAFETY: the three pointers come from live views with the strides given. The asserts above make the
    // kernel's index ranges (columns x rows, inner) exactly the shapes of those views, and `strides` refuses
    // negative strides, so every access stays within a view. `out` is borrowed mutably, hence overlaps
    // neither input. f32 has no invalid bit pattern and needs no drop. The kernel is picked for the running
    // processor by the crate itself; its flags ask for no conjugation and for this thread only.
    unsafe {
        kernel(
            columns,
            rows,
            inner,
            out.as_mut_ptr(),
            out_strides[0],
            out_strides[1],
            target == Target::Accumulate,
            right.as_ptr(),
            right_strides[0],
            right_strides[1],
            left.as_ptr(),
            left_strides[0],
            left_strides[1],
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

fn strides(strides: &[isize]) -> [isize; 2] {
    assert!(strides.iter().all(|stride| *stride >= 0), "a product takes no reversed view");
    [strides[0], strides[1]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array2, s};

    fn matrix(rows: usize, columns: usize, seed: f32) -> Array2<f32> {
        Array2::from_shape_fn((rows, columns), |(row, column)| {
            ((row * 31 + column * 7) as f32 * 0.37 + seed).sin()
        })
    }

    fn check(left: ArrayView2<'_, f32>, right: ArrayView2<'_, f32>) {
        let start = matrix(left.nrows(), right.ncols(), 0.5);
        for target in [Target::Overwrite, Target::Accumulate] {
            let mut out = start.clone();
            multiply(left, right, target, out.view_mut());
            for ((row, column), value) in out.indexed_iter() {
                let mut exact =
                    if target == Target::Accumulate { f64::from(start[(row, column)]) } else { 0.0 };
                for inner in 0..left.ncols() {
                    exact += f64::from(left[(row, inner)]) * f64::from(right[(inner, column)]);
                }
                let tolerance = 1e-6 * (left.ncols() as f64 + 1.0);
                assert!((f64::from(*value) - exact).abs() < tolerance, "{row},{column}: {value} not {exact}");
            }
        }
    }

    #[test]
    fn a_product_equals_the_sum_of_its_terms_for_every_orientation_and_odd_size() {
        for (rows, inner, columns) in
            [(1, 1, 1), (1, 7, 9), (5, 1, 3), (3, 2, 5), (17, 33, 31), (130, 70, 10), (129, 513, 65)]
        {
            let (left, right) = (matrix(rows, inner, 0.1), matrix(inner, columns, 0.2));
            let (left_t, right_t) = (matrix(inner, rows, 0.3), matrix(columns, inner, 0.4));
            check(left.view(), right.view());
            check(left_t.t(), right.view());
            check(left.view(), right_t.t());
            check(left_t.t(), right_t.t());
        }
    }

    #[test]
    fn a_product_with_nothing_inside_is_zero_or_leaves_the_target() {
        let (left, right) = (Array2::zeros((3, 0)), Array2::zeros((0, 2)));
        let mut out = Array2::from_elem((3, 2), 5.0);
        multiply(left.view(), right.view(), Target::Accumulate, out.view_mut());
        assert!(out.iter().all(|value| *value == 5.0));
        multiply(left.view(), right.view(), Target::Overwrite, out.view_mut());
        assert!(out.iter().all(|value| *value == 0.0));
    }

    #[test]
    fn an_overwritten_target_is_never_read() {
        let (left, right) = (matrix(4, 40, 0.1), matrix(40, 6, 0.2));
        let mut out = Array2::from_elem((4, 6), f32::NAN);
        multiply(left.view(), right.view(), Target::Overwrite, out.view_mut());
        assert!(out.iter().all(|value| value.is_finite()));
    }

    #[test]
    #[should_panic(expected = "reversed")]
    fn a_reversed_view_is_refused() {
        let (left, right) = (matrix(2, 3, 0.1), matrix(3, 2, 0.2));
        let mut out = Array2::zeros((2, 2));
        multiply(left.slice(s![..;-1, ..]), right.view(), Target::Overwrite, out.view_mut());
    }
}
