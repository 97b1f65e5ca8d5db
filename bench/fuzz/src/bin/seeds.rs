//! Writes the inputs that fuzzing begins with: `seeds CORPUS`. Run by hand when a form has changed; what it writes is kept.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use slackline_checkpoint::{Array, Blocks, FORMAT, Kind, Manifest, Part, RunId, Stamp, Store};
use slackline_core::codec::{CodecKind, CodecSpec, Encoder, Factors};
use slackline_core::config::reference_toml;
use slackline_core::ids::{Clock, KeyRange, Moment, ServerId, ShardId, Version};
use slackline_core::layout::Layout;
use slackline_core::trace;
use slackline_net::keys;
use slackline_server_core::assign::Position;

fn main() -> io::Result<()> {
    let corpus = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("bench/fuzz/corpus"), PathBuf::from);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    golden(&root, &corpus)?;
    network(&corpus)?;
    payloads(&corpus)?;
    key_files(&corpus)?;
    let write = |target: &str, name: &str, bytes: &[u8]| put(&corpus, target, name, bytes);
    let quickstart = fs::read(root.join("configs/quickstart.toml"))?;
    write("config", "quickstart", &quickstart)?;
    let mut layered = quickstart;
    layered.extend_from_slice(b"\0workers=4\nconsistency.staleness=inf\nout='x'\n\0TRAIN__BATCH=16\n");
    write("config", "layers", &layered)?;
    write("config", "reference", reference_toml().as_bytes())?;
    write("recorded", "two-workers", b"worker,iteration,seconds\n0,0,0.5\n0,1,0.25\n1,0,1e-3\n")?;
    write("results", "empty", br#"{"format":1}"#)?;
    write(
        "results",
        "machine",
        b"{\"kind\":\"machine\"}\n{\"kind\":\"skipped\",\"peer\":\"mpi\",\"reason\":\"none\"}\n",
    )?;
    write("trace", "empty", b"")?;
    write("trace", "one-apply", &trace())?;
    write("facts", "one-worker", &slackline_fuzz::sample_facts())?;
    for (target, bytes) in
        slackline_server::fuzzing::samples().map_err(|error| io::Error::other(error.to_string()))?
    {
        write(target, "whole", &bytes)?;
    }
    checkpoint(&corpus)
}

/// A payload of every encoding, and of every form of indices.
fn payloads(corpus: &Path) -> io::Result<()> {
    let (rows, cols) = (12, 10);
    let mut layout = Layout::new();
    layout.parameter("weight", &[rows, cols], true);
    layout.parameter("bias", &[17], false);
    let range = KeyRange::new(0, layout.len());
    let value = |key: u64| if (key / cols).is_multiple_of(3) { 0.25 + key as f32 } else { 0.0 };
    let gradient: Vec<f32> = (0..layout.len()).map(value).collect();
    let one: Vec<f32> = (0..layout.len()).map(|key| if key == 99 { 1.0 } else { 0.0 }).collect();
    let kinds = [
        ("f32", CodecKind::F32, &gradient),
        ("f16", CodecKind::F16, &gradient),
        ("bf16", CodecKind::Bf16 { stochastic: false }, &gradient),
        ("int8", CodecKind::Int8 { block: 32 }, &gradient),
        ("one-bit", CodecKind::OneBit, &gradient),
        ("list", CodecKind::TopK { share: 1.0 }, &one),
        ("gaps", CodecKind::TopK { share: 0.1 }, &gradient),
        ("bitmap", CodecKind::TopK { share: 1.0 }, &gradient),
        ("random-k", CodecKind::RandomK { share: 0.1 }, &gradient),
        ("qsgd", CodecKind::Qsgd { levels: 7 }, &gradient),
        ("low-rank", CodecKind::PowerSgd { rank: 2 }, &gradient),
        ("factors", CodecKind::SufficientFactor, &gradient),
        ("rows", CodecKind::Rows, &gradient),
    ];
    let factors = [Factors { tensor: 0, samples: 1, activations: &[0.5; 12], errors: &[0.25; 10] }];
    for (name, kind, gradient) in kinds {
        let spec = CodecSpec { kind, error_feedback: false };
        let payload = Encoder::new(spec, &layout, range, 1).encode_factors(gradient, &factors, Vec::new());
        let keys = (payload.keys() as u32).to_le_bytes();
        let bytes = [&[payload.encoding().to_wire()], &keys[..], payload.bytes()].concat();
        put(corpus, "payload", name, &bytes)?;
    }
    Ok(())
}

/// A trace with a header and an end.
fn trace() -> Vec<u8> {
    let keys = KeyRange::new(0, 50);
    let header = trace::Header {
        server: ServerId(0),
        shard: ShardId(0),
        keys,
        key_count: keys.len,
        servers: 1,
        shards: 1,
        workers: 2,
        config_hash: 7,
        began_unix_ns: 1_700_000_000_000_000_000,
        rule: trace::Rule::Ssp { staleness: 2 },
        policy: "ssp(2)".to_owned(),
        prefetch: 0,
    };
    let record = trace::Record::new(0, Moment::default(), trace::What::End);
    [&header.encode()[..], &record.encode()].concat()
}

/// A checkpoint of two shards, one of them in blocks.
fn checkpoint(corpus: &Path) -> io::Result<()> {
    let failed = |error: slackline_checkpoint::CheckpointError| io::Error::other(error.to_string());
    let folder = tempfile::tempdir()?;
    let at = folder.path().to_string_lossy().into_owned();
    let stamp = Stamp { run: RunId(1), config_hash: 2, layout_hash: 3, keys: 20 };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let store = Store::create(&at).map_err(failed)?;
        let mut parts = Vec::new();
        for (shard, keys) in [(ShardId(0), KeyRange::new(0, 12)), (ShardId(1), KeyRange::new(12, 8))] {
            let values = Arc::new((0_u8..20).take(keys.as_indices().len()).map(f32::from).collect());
            let arrays = vec![Array { name: "values".to_owned(), values }];
            let facts = Arc::new(slackline_fuzz::sample_facts());
            let part = Part { shard, keys, version: Version(5), arrays, facts, blocks: None };
            parts.push(store.write_part(stamp, 1, &part).await.map_err(failed)?);
            let blocks = Some(Blocks::new(keys, 4, &[1]));
            store.write_part(stamp, 2, &Part { blocks, ..part }).await.map_err(failed)?;
        }
        let manifest = Manifest {
            format: FORMAT,
            number: 1,
            stamp,
            kind: Kind::Full,
            seed: 4,
            clock: Clock(6),
            samples_done: 7,
            created: 8,
            parts,
            bases: Vec::new(),
            coordinator: serde_json::to_value(position()).map_err(io::Error::other)?,
        };
        store.commit(&manifest, 9).await.map(drop).map_err(failed)
    })?;
    let mut entries = walk(folder.path())?;
    entries.sort();
    for (at, entry) in entries.into_iter().enumerate() {
        let name = entry.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let target = if name.ends_with(".json") { "manifest" } else { "part" };
        put(corpus, target, &format!("{at}-{name}"), &fs::read(&entry)?)?;
    }
    Ok(())
}

/// The middle of a run.
fn position() -> Position {
    Position {
        number: 1,
        clock: Clock(6),
        epoch_samples: 45,
        sample_total: 90,
        next: 7,
        todo: vec![(2, 1), (5, 1)],
        batches_done: 5,
        samples_done: 50,
        ..Position::default()
    }
}

fn walk(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(walk(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

fn put(corpus: &Path, target: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    let folder = corpus.join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), bytes)
}

/// The golden bytes of the wire, as its tests write them down.
fn golden(root: &Path, corpus: &Path) -> io::Result<()> {
    let mut count = 0;
    for entry in fs::read_dir(root.join("common/core/src/wire/tests"))? {
        // A backslash at a line's end joins it to the next, as in Rust.
        let text = fs::read_to_string(entry?.path())?.replace("\\\n", " ");
        for literal in text.split('"').skip(1).step_by(2) {
            let digits: Vec<u8> = literal.bytes().filter(u8::is_ascii_hexdigit).collect();
            let is_hexadecimal =
                literal.bytes().all(|byte| byte.is_ascii_hexdigit() || byte.is_ascii_whitespace());
            if !is_hexadecimal || digits.len() < 8 || digits.len() % 2 == 1 {
                continue;
            }
            let value = |digit: u8| {
                char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok()).unwrap_or(0)
            };
            let bytes: Vec<u8> = digits.chunks(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect();
            for target in ["messages", "transfer_header"] {
                let is_header = bytes.len() == slackline_core::wire::HEADER_BYTES;
                if is_header == (target == "transfer_header") {
                    put(corpus, target, &format!("golden-{count:03}"), &bytes)?;
                }
            }
            count += 1;
        }
    }
    Ok(())
}

/// Datagrams of other protocols, and frames of first packets.
fn network(corpus: &Path) -> io::Result<()> {
    let framed = |datagrams: &[&[u8]]| -> Vec<u8> {
        let length = |datagram: &[u8]| u16::try_from(datagram.len()).unwrap_or(u16::MAX).to_le_bytes();
        datagrams.iter().flat_map(|datagram| [&length(datagram)[..], datagram].concat()).collect()
    };
    put(corpus, "datagrams", "http", &framed(&[b"GET / HTTP/1.1\r\nHost: slackline\r\n\r\n"]))?;
    let long = [&[0xc0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x44, 0xd0][..], &[7; 1200]].concat();
    put(corpus, "datagrams", "first-packet", &framed(&[&long]))?;
    let other = [&[0xc0, 0xff, 0, 0, 29, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0][..], &[0; 1200]].concat();
    put(corpus, "datagrams", "other-version", &framed(&[&other, &[0x40; 40]]))?;
    put(corpus, "handshake", "ping", &[1])?;
    put(corpus, "handshake", "close", &[0x1c, 0, 0, 4, b'n', b'o', b'n', b'e'])?;
    // CRYPTO at offset 0 with the beginning of a hello (RFC 8446, section 4.1.2).
    let mut hello = vec![1, 0, 0, 60, 3, 3];
    hello.extend_from_slice(&[9; 32]);
    hello.extend_from_slice(&[
        0, 0, 2, 0x13, 1, 1, 0, 0, 17, 0, 43, 0, 3, 2, 3, 4, 0, 16, 0, 6, 0, 4, 3, b'a', b'b', b'c',
    ]);
    let length = u8::try_from(hello.len()).unwrap_or(u8::MAX);
    put(corpus, "handshake", "hello", &[&[6, 0, 0x40, length][..], &hello].concat())
}

/// The files of a key directory with somebody revoked, and with two authorities.
fn key_files(corpus: &Path) -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let failed = |error: keys::KeysError| io::Error::other(error.to_string());
    keys::init(folder.path()).map_err(failed)?;
    keys::revoke(folder.path(), "observer").map_err(failed)?;
    keys::rotate(folder.path(), 3650).map_err(failed)?;
    let mut all = Vec::new();
    for name in ["ca.pem", "revoked.pem", "worker.pem"] {
        let bytes = fs::read(folder.path().join(name))?;
        all.extend_from_slice(&bytes);
        put(corpus, "keys", name.trim_end_matches(".pem"), &bytes)?;
    }
    put(corpus, "keys", "together", &all)
}
