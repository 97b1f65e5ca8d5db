//! What users of other systems hit when they saved and restored, and what is right: each test names its case.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{EXPECT, KEYS, STAMP, State, load_at, manifest, save, write_parts};
use slackline_checkpoint::{CheckpointError, Damage, Expect, Manifest, RunId, Stamp, Store};
use slackline_core::ids::{KeyRange, Version};

fn store(folder: &Path) -> Store {
    Store::create(folder.to_str().unwrap()).unwrap()
}

// Case 43 (tensorflow/tensorflow issues 6551, 3478, 62215): a restore at another number of servers fails or mixes variables.
#[tokio::test]
async fn a_checkpoint_of_three_servers_is_the_same_at_one_and_five() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let state = State::after(5, KEYS);
    let written = save(&store, 1, &state, 3, 2).await;
    assert_eq!(written.state_hash(), Some(state.hash()));
    for servers in [1, 3, 5] {
        let manifest = store.resume(&EXPECT).await.unwrap();
        assert_eq!(manifest, written, "clock, samples, seed and the coordinator's facts, too");
        let (loaded, hash) = load_at(&store, &manifest, servers).await;
        assert_eq!((loaded, hash), (state.clone(), state.hash()), "{servers} servers");
    }
}

// The same, for every kind of cut: one key, cuts within a part, all.
#[tokio::test]
async fn any_range_of_keys_can_be_loaded_with_the_facts_of_its_owners() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let state = State::after(5, KEYS);
    let manifest = save(&store, 1, &state, 3, 1).await;
    for (start, len) in [(0, 1), (KEYS - 1, 1), (300, 100), (1, KEYS - 2), (0, KEYS), (500, 0)] {
        let loaded = store.load(&manifest, KeyRange::new(start, len)).await.unwrap();
        state.check(&loaded);
        for source in &loaded.sources {
            assert_eq!(source.facts, format!("facts of {}", source.shard).into_bytes());
            assert!(source.keys.start < start + len && source.keys.end() > start);
        }
        assert!(loaded.sources.iter().map(|source| source.keys.len).sum::<u64>() >= len);
        assert_eq!(loaded.origins.len(), usize::from(len > 0));
    }
    let beyond = store.load(&manifest, KeyRange::new(KEYS, 1)).await.unwrap_err();
    assert!(matches!(beyond, CheckpointError::Unfit { .. }));
    assert!(store.load(&manifest, KeyRange::new(u64::MAX, 2)).await.is_err());
}

// Case 47 (Bösen): a run resumed from a mistyped folder starts silently from nothing.
#[tokio::test]
async fn missing_empty_and_half_written_folders_are_three_refusals() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Store::open(folder.path().join("mistyped").to_str().unwrap()).unwrap_err();
    assert!(matches!(missing, CheckpointError::Missing { .. }));
    let store = store(folder.path());
    fs::write(folder.path().join("notes.txt"), "something else").unwrap();
    let empty = store.resume(&EXPECT).await.unwrap_err();
    assert!(matches!(empty, CheckpointError::Empty { .. }));
    write_parts(&store, STAMP, 4, &State::after(1, KEYS), 2).await;
    let unfinished = store.resume(&EXPECT).await.unwrap_err();
    assert!(matches!(unfinished, CheckpointError::Unfinished { number: 4, .. }));
    for error in [missing, empty, unfinished] {
        assert!(error.is_absence() && error.to_string().contains(folder.path().to_str().unwrap()), "{error}");
    }
    assert_eq!(store.newest(&EXPECT).await.unwrap(), None);
    assert_eq!(store.next_number().await.unwrap(), 5, "parts of two attempts never meet");
    let file = folder.path().join("notes.txt");
    assert!(matches!(Store::open(file.to_str().unwrap()), Err(CheckpointError::Address { .. })));
    assert!(matches!(Store::open("ftp://host/path"), Err(CheckpointError::Address { .. })));
    #[cfg(not(feature = "s3"))]
    assert!(Store::open("s3://bucket/path").unwrap_err().to_string().contains("feature s3"));
}

/// A coordinator that is killed before it hears that its manifest is there begins again, a little later.
#[tokio::test]
async fn a_checkpoint_is_committed_again_with_the_same_parts_only() {
    let (_folder, store, newest) = three().await;
    let later = Manifest { created: newest.created + 60, ..newest.clone() };
    store.commit(&later, 3).await.unwrap();
    assert_eq!(store.newest(&EXPECT).await.unwrap(), Some(newest.clone()), "the first one stays");
    let mut other = newest;
    other.parts[0].version = Version(99);
    assert!(matches!(store.commit(&other, 3).await, Err(CheckpointError::Taken { number: 3, .. })));
}

/// Three checkpoints; answers the folder, the store and the newest manifest.
async fn three() -> (tempfile::TempDir, Store, Manifest) {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    for number in 1..=2 {
        save(&store, number, &State::after(number, KEYS), 3, 3).await;
    }
    let newest = save(&store, 3, &State::after(3, KEYS), 3, 3).await;
    (folder, store, newest)
}

/// What reading the newest checkpoint ends in, after checking that no error passes it over and that each names the file and the way out.
async fn refusal(store: &Store, newest: &Manifest, file: &Path) -> Damage {
    let error = store.resume(&EXPECT).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(file.to_str().unwrap()), "{text}");
    assert!(text.contains("checkpoint 2 before it is whole"), "{text}");
    let whole = KeyRange::new(0, KEYS);
    if file.extension().is_some_and(|end| end == "safetensors") {
        let loaded = store.load(newest, whole).await.unwrap_err();
        assert_eq!(loaded.damage(), error.damage());
        assert_eq!(store.verify(newest).await.unwrap_err().damage(), error.damage());
    }
    error.damage().unwrap().clone()
}

fn path_of(folder: &Path, manifest: &Manifest, part: usize) -> PathBuf {
    folder.join(&manifest.parts[part].file)
}

#[tokio::test]
async fn a_torn_part_is_called_torn() {
    let (folder, store, newest) = three().await;
    let path = path_of(folder.path(), &newest, 1);
    let bytes = fs::read(&path).unwrap();
    for len in [0, 5, 100, bytes.len() - 1] {
        fs::write(&path, &bytes[..len]).unwrap();
        let found = len as u64;
        let expected = bytes.len() as u64;
        assert!(
            matches!(refusal(&store, &newest, &path).await, Damage::Torn { expected: e, found: f, .. } if (e, f) == (expected, found))
        );
    }
    fs::remove_file(&path).unwrap();
    assert!(matches!(refusal(&store, &newest, &path).await, Damage::PartMissing { .. }));
}

#[tokio::test]
async fn one_rotten_bit_anywhere_in_a_part_is_noticed() {
    let (folder, store, newest) = three().await;
    let path = path_of(folder.path(), &newest, 2);
    let bytes = fs::read(&path).unwrap();
    for at in (0..bytes.len()).step_by(97).chain([bytes.len() - 1]) {
        let mut rotten = bytes.clone();
        rotten[at] ^= 1 << (at % 8);
        fs::write(&path, rotten).unwrap();
        let error = store.resume(&EXPECT).await.unwrap_err();
        assert!(error.damage().is_some(), "bit in byte {at}");
    }
    let mut rotten = bytes.clone();
    rotten[bytes.len() - 40] ^= 1;
    fs::write(&path, rotten).unwrap();
    assert!(matches!(refusal(&store, &newest, &path).await, Damage::Rotten { from: 0, .. }));
}

#[tokio::test]
async fn a_file_that_is_no_manifest_is_called_that() {
    let (folder, store, newest) = three().await;
    let path = folder.path().join("0000000003/manifest.json");
    let bytes = fs::read(&path).unwrap();
    for text in [&b""[..], b"{}", b"\x00\xff\x00", b"[1, 2", &bytes[..bytes.len() / 2], b"{\"format\": 1}\n"]
    {
        fs::write(&path, text).unwrap();
        assert!(matches!(refusal(&store, &newest, &path).await, Damage::NotAManifest { .. }));
        assert!(store.newest(&EXPECT).await.is_err(), "not passed over either");
    }
    let edited = String::from_utf8(bytes.clone()).unwrap().replace("\"seed\": 7", "\"seed\": 8");
    fs::write(&path, edited).unwrap();
    assert!(matches!(refusal(&store, &newest, &path).await, Damage::Rotten { .. }));
    fs::copy(folder.path().join("0000000002/manifest.json"), &path).unwrap();
    assert!(matches!(refusal(&store, &newest, &path).await, Damage::NotAManifest { .. }));
    fs::write(&path, "{ \"format\": 77 }").unwrap();
    assert!(matches!(refusal(&store, &newest, &path).await, Damage::Newer { format: 77, .. }));
}

#[tokio::test]
async fn a_part_of_another_run_configuration_model_or_place_is_called_that() {
    let (folder, store, newest) = three().await;
    let other_folder = tempfile::tempdir().unwrap();
    let other = self::store(other_folder.path());
    let path = path_of(folder.path(), &newest, 1);
    let good = fs::read(&path).unwrap();
    let run = Stamp { run: RunId(0xdef), ..STAMP };
    let config = Stamp { config_hash: 0xc1, ..STAMP };
    let layout = Stamp { layout_hash: 0x1b, ..STAMP };
    let longer = Stamp { keys: KEYS + 200, ..STAMP };
    for (stamp, is) in [
        (
            run,
            (|damage| matches!(damage, Damage::OtherRun { found: RunId(0xdef), .. })) as fn(&Damage) -> bool,
        ),
        (config, |damage| matches!(damage, Damage::OtherConfig { found: 0xc1, .. })),
        (layout, |damage| matches!(damage, Damage::OtherLayout { found: 0x1b, .. })),
        (longer, |damage| matches!(damage, Damage::OtherLayout { found_keys: 1_200, .. })),
    ] {
        let parts = write_parts(&other, stamp, 3, &State::after(9, stamp.keys), 3).await;
        fs::copy(other_folder.path().join(&parts[1].file), &path).unwrap();
        let damage = refusal(&store, &newest, &path).await;
        assert!(is(&damage), "{damage}");
    }
    fs::copy(path_of(folder.path(), &newest, 0), &path).unwrap();
    assert!(matches!(refusal(&store, &newest, &path).await, Damage::Misplaced { .. }));
    fs::write(&path, good).unwrap();
    store.resume(&EXPECT).await.unwrap();
}

#[tokio::test]
async fn a_manifest_of_another_run_configuration_or_model_is_called_that() {
    let (_folder, store, _) = three().await;
    let damage = |expect: Expect| {
        let store = store.clone();
        async move { store.newest(&expect).await.unwrap_err().damage().unwrap().clone() }
    };
    assert!(matches!(damage(Expect { run: Some(RunId(1)), ..EXPECT }).await, Damage::OtherRun { .. }));
    assert!(matches!(damage(Expect { config_hash: Some(1), ..EXPECT }).await, Damage::OtherConfig { .. }));
    assert!(matches!(damage(Expect { layout_hash: 1, ..EXPECT }).await, Damage::OtherLayout { .. }));
    assert!(matches!(damage(Expect { keys: 1, ..EXPECT }).await, Damage::OtherLayout { .. }));
    assert!(
        store.newest(&Expect { run: Some(STAMP.run), config_hash: None, ..EXPECT }).await.unwrap().is_some()
    );
}

#[tokio::test]
async fn two_runs_do_not_share_a_folder_and_numbers_only_rise() {
    let (_folder, store, newest) = three().await;
    let run = Stamp { run: RunId(0xdef), ..STAMP };
    let parts = write_parts(&store, run, 4, &State::after(9, KEYS), 3).await;
    let error = store.commit(&manifest(run, 4, parts), 3).await.unwrap_err();
    assert!(matches!(error.damage(), Some(Damage::OtherRun { .. })), "{error}");
    store.commit(&newest, 3).await.unwrap();
    let mut other = newest.clone();
    other.seed += 1;
    assert!(matches!(
        store.commit(&other, 3).await,
        Err(CheckpointError::Taken { number: 3, newest: 3, .. })
    ));
    let older = store.manifest(2).await.unwrap();
    assert!(matches!(
        store.commit(&older, 3).await,
        Err(CheckpointError::Taken { number: 2, newest: 3, .. })
    ));
    assert!(matches!(store.manifest(99).await, Err(CheckpointError::Absent { number: 99, .. })));
}

#[tokio::test]
async fn parts_that_are_not_there_or_do_not_cover_the_model_are_not_committed() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let parts = write_parts(&store, STAMP, 1, &State::after(1, KEYS), 3).await;
    let refused = |parts: Vec<_>| {
        let store = store.clone();
        async move { store.commit(&manifest(STAMP, 1, parts), 1).await.unwrap_err() }
    };
    let gap = refused(vec![parts[0].clone(), parts[2].clone()]).await;
    assert!(matches!(&gap, CheckpointError::Unfit { why } if why.contains("leave key")), "{gap}");
    let twice = refused(vec![parts[0].clone(), parts[0].clone(), parts[1].clone(), parts[2].clone()]).await;
    assert!(matches!(&twice, CheckpointError::Unfit { why } if why.contains("two parts")), "{twice}");
    // A server that wrote to a disk of its own.
    fs::remove_file(folder.path().join(&parts[1].file)).unwrap();
    let lost = refused(parts.clone()).await;
    assert!(matches!(lost.damage(), Some(Damage::PartMissing { .. })), "{lost}");
    assert_eq!(store.newest(&EXPECT).await.unwrap(), None);
}

#[tokio::test]
async fn the_last_ones_are_kept_and_older_ones_go_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    write_parts(&store, STAMP, 2, &State::after(0, KEYS), 3).await;
    for number in 3..=7 {
        save(&store, number, &State::after(number, KEYS), 3, 2).await;
        let mut there: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        there.sort();
        let expected: Vec<_> = (3.max(number - 1)..=number).map(|number| format!("{number:010}")).collect();
        assert_eq!(there, expected, "what an attempt left behind is gone, too");
    }
    for number in [6, 7] {
        let manifest = store.manifest(number).await.unwrap();
        store.verify(&manifest).await.unwrap();
    }
}

#[tokio::test]
async fn nothing_is_removed_beside_a_checkpoint_that_cannot_be_read() {
    let (folder, store, _) = three().await;
    fs::write(folder.path().join("0000000003/manifest.json"), "torn").unwrap();
    let parts = write_parts(&store, STAMP, 4, &State::after(4, KEYS), 3).await;
    let committed = store.commit(&manifest(STAMP, 4, parts), 2).await.unwrap();
    assert!(committed.left.is_some() && committed.removed == 0);
    store.resume(&EXPECT).await.unwrap();
    assert!(folder.path().join("0000000001/manifest.json").exists());
}

// Python users read a part with safetensors alone; the crate of that name is the judge here.
#[tokio::test]
async fn a_part_is_a_plain_safetensors_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let state = State::after(5, KEYS);
    let manifest = save(&store, 1, &state, 1, 1).await;
    let bytes = fs::read(path_of(folder.path(), &manifest, 0)).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let values = tensors.tensor("values").unwrap();
    assert_eq!((values.dtype(), values.shape()), (safetensors::Dtype::F32, &[KEYS as usize][..]));
    assert_eq!(values.data(), bytemuck::cast_slice::<f32, u8>(&state.values));
    assert_eq!(tensors.tensor("facts").unwrap().data(), b"facts of shard 0");
    let parsed = slackline_checkpoint::parse_part("part", &bytes).unwrap();
    assert_eq!((parsed.values("slots"), parsed.facts()), (Some(state.slots), &b"facts of shard 0"[..]));
}
