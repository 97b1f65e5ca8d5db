//! Codecs: what goes in comes out, as far as each says.

use super::*;
use crate::ids::KeyRange;
use crate::layout::Layout;

fn encoder(kind: CodecKind, keys: usize) -> Encoder {
    let mut layout = Layout::new();
    layout.parameter("weight", &[keys as u64], true);
    Encoder::new(CodecSpec { kind, error_feedback: true }, &layout, KeyRange::new(0, keys as u64), 1)
}

#[test]
fn halves_and_what_is_kept_are_the_gradient() {
    for kind in [CodecKind::F32, CodecKind::F16, CodecKind::Bf16 { stochastic: false }] {
        let gradient: Vec<f32> = (0..4999).map(|index| (index as f32).sin() * 0.1).collect();
        let mut encoder = encoder(kind, gradient.len());
        let payload = encoder.encode(&gradient, None, Vec::new());
        let again = Payload::new(payload.encoding(), payload.keys(), payload.words().to_vec()).unwrap();
        let mut sent = vec![0.0; gradient.len()];
        again.decode_into(&mut sent);
        for (index, produced) in gradient.iter().enumerate() {
            let kept = encoder.kept().get(index).copied().unwrap_or_default();
            assert_eq!((sent[index] + kept).to_bits(), produced.to_bits(), "{kind:?} {index}");
        }
        encoder.take_back(&payload);
        if kind.is_lossy() {
            assert_eq!(encoder.kept(), gradient);
        }
    }
}
