//! Codecs that know matrices: power-sgd, sufficient factors and rows.

use super::pieces::Pieces;
use super::*;

/// `sum over r of left[r][i] * right[r][j]`, one after another.
fn product(left: &[f32], right: &[f32], rank: usize) -> Vec<f32> {
    let (rows, cols) = (left.len() / rank, right.len() / rank);
    let value = |i: usize, j: usize| {
        let products = (0..rank).map(|r| left[r * rows + i] * right[r * cols + j]);
        products.reduce(|sum, product| sum + product).unwrap_or(0.0)
    };
    (0..rows * cols).map(|at| value(at / cols, at % cols)).collect()
}

fn one_matrix(rows: usize, cols: usize) -> (Layout, KeyRange) {
    let mut layout = Layout::new();
    layout.parameter("weight", &[rows as u64, cols as u64], true);
    (layout, KeyRange::new(0, (rows * cols) as u64))
}

fn power(rank: u32, rows: usize, cols: usize, error_feedback: bool) -> Encoder {
    let (layout, range) = one_matrix(rows, cols);
    Encoder::new(CodecSpec { kind: CodecKind::PowerSgd { rank }, error_feedback }, &layout, range, 5)
}

#[test]
fn a_range_is_cut_into_whole_rows_and_runs() {
    let mut layout = Layout::new();
    layout.parameter("a", &[4, 5], true);
    layout.parameter("b", &[5], false);
    layout.parameter("empty", &[0, 3], false);
    layout.parameter("c", &[3, 2, 2], true);
    layout.parameter("column", &[6, 1], true);
    let cut = |start, len| {
        let pieces = Pieces::of(&layout, KeyRange::new(start, len));
        pieces.iter().map(|piece| (piece.at, piece.rows, piece.cols, piece.matrix)).collect::<Vec<_>>()
    };
    let (a, c) = (|first| Some((0, first)), |first| Some((3, first)));
    assert_eq!(cut(0, 43), [(0, 4, 5, a(0)), (20, 1, 5, None), (25, 3, 4, c(0)), (37, 1, 6, None)]);
    // Begins and ends within a row.
    assert_eq!(cut(3, 30), [(0, 1, 2, None), (2, 3, 5, a(1)), (17, 1, 5, None), (22, 2, 4, c(0))]);
    assert_eq!(
        cut(3, 31),
        [(0, 1, 2, None), (2, 3, 5, a(1)), (17, 1, 5, None), (22, 2, 4, c(0)), (30, 1, 1, None)]
    );
    // Less than two whole rows are none.
    assert_eq!(cut(4, 9), [(0, 1, 9, None)]);
    assert_eq!(cut(5, 0), []);
    for start in 0..43 {
        for len in 0..=43 - start {
            let pieces = Pieces::of(&layout, KeyRange::new(start, len));
            let mut at = 0;
            for piece in pieces.iter() {
                assert_eq!(piece.at, at);
                at += piece.len();
            }
            assert_eq!(at as u64, len);
        }
    }
}

#[test]
fn power_sgd_is_a_projection_and_contracts() {
    for (rank, rows, cols) in [(1, 50, 40), (3, 64, 33), (4, 41, 100), (8, 100, 90)] {
        let mut encoder = power(rank, rows, cols, false);
        let matrix = normal(u64::from(rank), rows * cols);
        let all = squares(matrix.iter().copied());
        let mut losses = Vec::new();
        for _ in 0..60 {
            let payload = received(&encoder.encode(&matrix, None, Vec::new()));
            assert_eq!(payload.encoding(), Encoding::LowRank);
            let sent = decoded(&payload);
            let lost = squares(matrix.iter().zip(&sent).map(|(value, sent)| value - sent));
            let held = squares(sent.iter().copied());
            assert!((lost + held - all).abs() <= 1e-5 * all, "rank {rank}: {lost} and {held} are not {all}");
            assert!(lost < all);
            losses.push(lost);
        }
        // Repeated, it comes nearer to the best.
        assert!(losses.is_sorted_by(|early, late| *late <= early * (1.0 + 1e-6)), "rank {rank}: {losses:?}");
    }
}

#[test]
fn power_sgd_finds_a_matrix_of_its_rank() {
    let (rows, cols, rank) = (70, 50, 3);
    let matrix = product(&normal(1, rank * rows), &normal(2, rank * cols), rank);
    let mut encoder = power(4, rows, cols, true);
    let sent = decoded(&encoder.encode(&matrix, None, Vec::new()));
    let (lost, all) = (squares(matrix.iter().zip(&sent).map(|(value, sent)| value - sent)), squares(matrix));
    assert!(lost < 1e-9 * all, "lost {lost} of {all}");
}

#[test]
fn power_sgd_stands_nothing_tiny_and_huge() {
    let (rows, cols) = (40, 30);
    let mut encoder = power(3, rows, cols, true);
    for scale in [0.0_f32, 1.0, 1e-38, 1e-44, 0.0, 1e26, 1e38, 1.0] {
        let matrix: Vec<f32> = normal(4, rows * cols).iter().map(|value| value * scale).collect();
        let payload = received(&encoder.encode(&matrix, None, Vec::new()));
        assert_eq!(payload.first_not_finite(), None, "{scale:e}");
        assert!(encoder.kept().iter().all(|kept| kept.is_finite()), "{scale:e}");
        // What is too large is sent as it is, with all that was kept.
        assert_eq!(payload.encoding() == Encoding::F32, scale > 1e30, "{scale:e}");
    }
    // After a matrix of zeros the next is still found.
    let _ = encoder.encode(&vec![0.0; rows * cols], None, Vec::new());
    let matrix = product(&normal(1, rows), &normal(2, cols), 1);
    let mut fresh = power(3, rows, cols, false);
    let _ = fresh.encode(&vec![0.0; rows * cols], None, Vec::new());
    let sent = decoded(&fresh.encode(&matrix, None, Vec::new()));
    let lost = squares(matrix.iter().zip(&sent).map(|(value, sent)| value - sent));
    assert!(lost < 1e-9 * squares(matrix.iter().copied()), "{lost}");
}

/// The pieces that a low-rank payload says of itself, with their data.
fn read_pieces(payload: &Payload) -> Vec<(usize, usize, usize, Vec<f32>)> {
    let words = payload.words();
    let number = |at: usize| words[at].to_bits() as usize;
    let mut data = &words[1 + 3 * number(0)..];
    let mut pieces = Vec::new();
    for piece in 0..number(0) {
        let [rows, cols, rank] = std::array::from_fn(|place| number(1 + 3 * piece + place));
        let (here, rest) = data.split_at(if rank == 0 { rows * cols } else { rank * (rows + cols) });
        data = rest;
        pieces.push((rows, cols, rank, here.to_vec()));
    }
    pieces
}

#[test]
fn low_rank_is_read_as_its_sum_of_products() {
    for rank in 1..=9 {
        let (rows, cols) = (60, 50);
        let mut encoder = power(rank, rows, cols, false);
        let payload = encoder.encode(&normal(u64::from(rank), rows * cols), None, Vec::new());
        let [(_, _, _, data)] = &read_pieces(&payload)[..] else { panic!("one piece") };
        let (left, right) = data.split_at(rank as usize * rows);
        assert_eq!(bits(&decoded(&payload)), bits(&product(left, right, rank as usize)), "rank {rank}");
    }
}

/// Activations, errors and the gradient that they make, of a layer of `rows` inputs and `cols` outputs.
fn layer(seed: u64, samples: usize, rows: usize, cols: usize) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let (activations, errors) = (normal(seed, samples * rows), normal(seed + 1, samples * cols));
    let gradient = product(&activations, &errors, samples);
    (activations, errors, gradient)
}

#[test]
fn factors_are_sent_where_they_are_less() {
    let mut layout = Layout::new();
    layout.parameter("weight", &[50, 40], true);
    layout.parameter("bias", &[40], false);
    layout.parameter("small", &[4, 5], true);
    layout.parameter("last", &[30, 60], true);
    let spec = CodecSpec { kind: CodecKind::SufficientFactor, error_feedback: true };
    for samples in [1, 8, 20, 23] {
        let (a0, e0, g0) = layer(10, samples, 50, 40);
        let (a1, e1, g1) = layer(20, samples, 4, 5);
        let (a2, e2, g2) = layer(30, samples, 30, 60);
        let factors = [(0, &a0, &e0), (2, &a1, &e1), (3, &a2, &e2)];
        let factors =
            factors.map(|(tensor, activations, errors)| Factors { tensor, samples, activations, errors });
        let whole = [g0, normal(3, 40), g1, g2].concat();
        // A shard may begin and end anywhere.
        for (start, len) in [(0, 3860), (7, 3000), (300, 3500), (2000, 1860), (100, 10)] {
            let mut encoder = Encoder::new(spec, &layout, KeyRange::new(start as u64, len as u64), 1);
            let gradient = &whole[start..start + len];
            let payload = received(&encoder.encode_factors(gradient, &factors, Vec::new()));
            assert!(encoder.kept().is_empty());
            let sent = decoded(&payload);
            for (sent, value) in sent.iter().zip(gradient) {
                assert_eq!(sent.to_bits(), value.to_bits(), "the same sum in the same order");
            }
            if payload.encoding() == Encoding::LowRank {
                for (rows, cols, rank, _) in read_pieces(&payload) {
                    assert!(rank == 0 || rank == samples && samples * (rows + cols) < rows * cols);
                }
            }
            let chosen = |rows: usize, cols: usize| samples * (rows + cols) < rows * cols;
            if len == 3860 {
                assert_eq!(
                    payload.encoding() == Encoding::LowRank,
                    chosen(50, 40) || chosen(30, 60),
                    "{samples}"
                );
            }
        }
    }
}

#[test]
fn another_order_of_the_sum_is_within_its_bound() {
    let (samples, rows, cols) = (16, 60, 50);
    let (activations, errors, _) = layer(1, samples, rows, cols);
    let exact = |at: usize, magnitude: bool| {
        let products = (0..samples).map(|k| {
            let product =
                f64::from(activations[k * rows + at / cols]) * f64::from(errors[k * cols + at % cols]);
            if magnitude { product.abs() } else { product }
        });
        products.sum::<f64>()
    };
    let (layout, range) = one_matrix(rows, cols);
    let spec = CodecSpec { kind: CodecKind::SufficientFactor, error_feedback: false };
    let factors = [Factors { tensor: 0, samples, activations: &activations, errors: &errors }];
    let gradient: Vec<f32> = (0..rows * cols).map(|at| exact(at, false) as f32).collect();
    let sent =
        decoded(&Encoder::new(spec, &layout, range, 1).encode_factors(&gradient, &factors, Vec::new()));
    for (at, sent) in sent.iter().enumerate() {
        let bound = samples as f64 * 2_f64.powi(-23) * exact(at, true);
        assert!((f64::from(*sent) - exact(at, false)).abs() <= bound);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rows_are_all_that_is_not_zero(
        start in 0_u64..300,
        len in 0_u64..900,
        rows in prop::collection::btree_set(0_usize..60, 0..20),
        bias in any::<bool>(),
    ) {
        let mut layout = Layout::new();
        layout.parameter("embedding", &[60, 20], true);
        layout.parameter("bias", &[70], false);
        let mut whole = vec![0.0; 1270];
        for row in &rows {
            whole[row * 20 + row % 20] = 1.0 + *row as f32;
        }
        whole[1200..].fill(if bias { 0.5 } else { 0.0 });
        let len = len.min(1270 - start);
        let range = KeyRange::new(start, len);
        let gradient = &whole[range.as_indices()];
        let mut encoder = Encoder::new(CodecSpec { kind: CodecKind::Rows, error_feedback: true }, &layout, range, 1);
        let payload = received(&encoder.encode(gradient, None, Vec::new()));
        prop_assert_eq!(decoded(&payload), gradient);
        let rows_bytes = rows.len() * 84 + if bias { 280 } else { 0 };
        prop_assert!(payload.bytes().len() <= (rows_bytes + 200).min(gradient.len() * 4));
    }
}
