//! Softmax and cross-entropy, together, so that large logits stay finite.

use ndarray::{ArrayViewMut1, ArrayViewMut2};

use super::Evaluation;

/// Turns each row of `logits` (samples, classes) into the gradient of `scale` times its cross-entropy loss:
/// `scale * (softmax(row) - one_hot(label))`. Returns the sum of the unscaled losses, in nats.
///
/// The largest logit is subtracted first, hence no exponent overflows and the sum is at least one. Logits
/// that are not finite give a loss that is not finite.
pub(crate) fn into_gradient(mut logits: ArrayViewMut2<'_, f32>, labels: &[u32], scale: f32) -> f64 {
    let mut loss_sum = 0.0;
    for (mut row, label) in logits.rows_mut().into_iter().zip(labels) {
        let label = *label as usize;
        let (sum, of_label) = exponentiate(&mut row, label);
        loss_sum += f64::from(sum.ln() - of_label);
        let factor = scale / sum;
        row.mapv_inplace(|value| value * factor);
        row[label] -= scale;
    }
    loss_sum
}

/// The losses and hits of each row of `logits` (samples, classes), which are overwritten. The first of
/// several equal largest logits is the model's choice; a row with NaN is never a hit.
pub(crate) fn evaluate(mut logits: ArrayViewMut2<'_, f32>, labels: &[u32]) -> Evaluation {
    let mut total = Evaluation::default();
    for (mut row, label) in logits.rows_mut().into_iter().zip(labels) {
        let label = *label as usize;
        let own = row[label];
        let hit = row
            .iter()
            .enumerate()
            .all(|(class, value)| if class < label { *value < own } else { *value <= own });
        let (sum, of_label) = exponentiate(&mut row, label);
        total.loss_sum += f64::from(sum.ln() - of_label);
        total.correct += u64::from(hit);
        total.samples += 1;
    }
    total
}

/// Replaces a row by `exp(row - max)`; returns the sum of that, and `row[label] - max` from before.
fn exponentiate(row: &mut ArrayViewMut1<'_, f32>, label: usize) -> (f32, f32) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let of_label = row[label] - largest;
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value = (*value - largest).exp();
        sum += *value;
    }
    (sum, of_label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array2, array};

    #[test]
    fn equal_logits_cost_the_logarithm_of_the_class_count() {
        let mut logits = Array2::zeros((1, 4));
        let loss = into_gradient(logits.view_mut(), &[2], 1.0);
        assert!((loss - 4.0_f64.ln()).abs() < 1e-6);
        assert_eq!(logits, array![[0.25, 0.25, -0.75, 0.25]]);
    }

    #[test]
    fn large_logits_stay_finite() {
        let rows = array![[1e4_f32, -1e4, 0.0], [-1e4, -1e4, -1e4], [1e4, 1e4, -1e4]];
        for (label, losses) in
            [(0, [0.0, 3.0_f64.ln(), 2.0_f64.ln()]), (1, [2e4, 3.0_f64.ln(), 2.0_f64.ln()])]
        {
            for (row, expected) in rows.rows().into_iter().zip(losses) {
                let mut logits = row.to_owned().insert_axis(ndarray::Axis(0));
                let evaluation = evaluate(logits.clone().view_mut(), &[label]);
                let loss = into_gradient(logits.view_mut(), &[label], 1.0);
                assert!((loss - expected).abs() < 1e-6 * expected.max(1.0), "{loss} not {expected}");
                assert_eq!(evaluation.loss_sum, loss);
                assert!(logits.iter().all(|value| value.is_finite()));
                assert!(logits.sum().abs() < 1e-6);
            }
        }
    }

    #[test]
    fn a_logit_that_is_not_a_number_shows_in_the_loss_and_is_no_hit() {
        for bad in [f32::NAN, f32::INFINITY] {
            let logits = array![[0.0, bad, 1.0]];
            assert!(!into_gradient(logits.clone().view_mut(), &[0], 1.0).is_finite());
            assert_eq!(evaluate(logits.clone().view_mut(), &[0]).correct, 0);
        }
        assert_eq!(evaluate(array![[f32::NAN, f32::NAN]].view_mut(), &[0]).correct, 0);
    }

    #[test]
    fn the_first_of_equal_logits_is_chosen() {
        assert_eq!(evaluate(array![[1.0, 1.0], [1.0, 1.0]].view_mut(), &[0, 1]).correct, 1);
    }
}
