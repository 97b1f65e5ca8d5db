//! Codecs: what goes in comes out, as far as each says.

mod conservation;
mod foreign;
mod halves;
mod matrices;
mod picked;
mod quantised;
mod reading;
mod relative;

use proptest::prelude::*;

use super::*;
use crate::ids::KeyRange;
use crate::layout::Layout;

/// A layout of one matrix and a bias, of so many keys together.
fn layout(keys: usize) -> Layout {
    let mut layout = Layout::new();
    let (rows, cols) = (keys / 24, 20);
    layout.parameter("weight", &[rows as u64, cols as u64], true);
    layout.parameter("bias", &[(keys - rows * cols) as u64], false);
    layout
}

fn encoder(kind: CodecKind, error_feedback: bool, keys: usize) -> Encoder {
    let spec = CodecSpec { kind, error_feedback };
    Encoder::new(spec, &layout(keys), KeyRange::new(0, keys as u64), 7)
}

fn decoded(payload: &Payload) -> Vec<f32> {
    let mut values = vec![f32::NAN; payload.keys()];
    payload.decode_into(&mut values);
    values
}

/// The payload as its receiver makes it of the bytes.
fn received(payload: &Payload) -> Payload {
    let most = payload.encoding().bytes_max(payload.keys() as u64);
    assert!(payload.bytes().len() as u64 <= most, "{} beyond the most", payload.encoding());
    Payload::new(payload.encoding(), payload.keys(), payload.words().to_vec())
        .unwrap_or_else(|error| panic!("what was encoded is refused: {error}"))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn squares(values: impl IntoIterator<Item = f32>) -> f64 {
    values.into_iter().map(|value| f64::from(value).powi(2)).sum()
}

/// Numbers of one size, as gradients are: nearly normal, the same for the same seed.
fn normal(seed: u64, count: usize) -> Vec<f32> {
    let mut random = random::Lanes::new(seed, 0);
    let mut numbers = vec![0; count * 4];
    random.fill(&mut numbers);
    let unit = |number: &u32| f64::from(*number) / f64::from(u32::MAX) - 0.5;
    numbers.chunks(4).map(|four| four.iter().map(unit).sum::<f64>() as f32).collect()
}

/// Numbers of all kinds that are finite: of one size, of any size, subnormal, huge, zeros.
fn number() -> impl Strategy<Value = f32> {
    let any_bits = any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |value| value.is_finite());
    prop_oneof![
        6 => -1.0_f32..1.0,
        2 => (-1.0_f32..1.0, -40_i32..40).prop_map(|(value, exponent)| value * 2_f32.powi(exponent)),
        1 => any_bits,
        1 => (0_u32..1 << 23, any::<bool>()).prop_map(|(bits, sign)| f32::from_bits(bits | u32::from(sign) << 31)),
        1 => Just(0.0_f32),
    ]
}

/// The same without those that make codecs write plain values.
fn usual() -> impl Strategy<Value = f32> {
    number().prop_map(|value| if value.abs() < 60_000.0 { value } else { value.signum() })
}

/// Every codec.
fn kinds() -> Vec<CodecKind> {
    vec![
        CodecKind::F32,
        CodecKind::F16,
        CodecKind::Bf16 { stochastic: false },
        CodecKind::Bf16 { stochastic: true },
        CodecKind::Int8 { block: 16 },
        CodecKind::Int8 { block: 250 },
        CodecKind::OneBit,
        CodecKind::TopK { share: 0.01 },
        CodecKind::TopK { share: 0.3 },
        CodecKind::RelativeK { budget: 200, floor: 0.01 },
        CodecKind::RelativeK { budget: 2000, floor: 0.5 },
        CodecKind::RandomK { share: 0.1 },
        CodecKind::Qsgd { levels: 1 },
        CodecKind::Qsgd { levels: 7 },
        CodecKind::Qsgd { levels: 127 },
        CodecKind::PowerSgd { rank: 1 },
        CodecKind::PowerSgd { rank: 5 },
        CodecKind::SufficientFactor,
        CodecKind::Significance { threshold: 1.0 },
        CodecKind::Rows,
    ]
}
