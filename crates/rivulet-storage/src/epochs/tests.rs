//! Epochs against a model, with files that are cut, changed or missing between any two of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::*;

const LINE: &str = "applications";

/// What a line says, by name.
type Content = BTreeMap<String, Vec<Vec<u8>>>;

fn open(folder: &Path, retained: usize) -> Epochs {
    let store = Arc::new(Store::folder(folder).unwrap());
    Epochs::open(store, LINE, EpochSettings { retained }).unwrap()
}

fn content(epochs: &Epochs) -> Option<(u64, Content)> {
    let restored = epochs.restore().unwrap()?;
    assert_eq!(restored.note, json!({ "epoch": restored.epoch }));
    let pieces = restored.pieces.into_iter();
    Some((restored.epoch, pieces.map(|(name, all)| (name, all.iter().map(|bytes| bytes.to_vec()).collect())).collect()))
}

fn epoch(number: u64, pieces: &[(&str, bool, &[u8])], dropped: &[&str]) -> Epoch {
    Epoch {
        note: json!({ "epoch": number }),
        pieces: pieces
            .iter()
            .map(|&(name, is_delta, bytes)| Piece { name: name.into(), is_delta, bytes: Bytes::copy_from_slice(bytes) })
            .collect(),
        dropped: dropped.iter().map(|&name| name.into()).collect(),
    }
}

/// The files of the line, oldest first.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder.join(LINE)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<(u8, bool, u16)>, Vec<u8>),
    Reopen,
    /// The file at this place from the newest end loses its last bytes, or has one of them changed.
    Damage(u8, bool, prop::sample::Index),
    /// A pack without a manifest, as a process leaves it that was killed.
    Orphan,
}

fn step() -> impl Strategy<Value = Step> {
    let commit =
        (prop::collection::vec((0..4u8, any::<bool>(), 0..2_000u16), 0..4), prop::collection::vec(0..4u8, 0..2));
    prop_oneof![
        6 => commit.prop_map(|(pieces, dropped)| Step::Commit(pieces, dropped)),
        2 => Just(Step::Reopen),
        1 => (0..2u8, any::<bool>(), any::<prop::sample::Index>()).prop_map(|(file, cuts, at)| Step::Damage(file, cuts, at)),
        1 => Just(Step::Orphan),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// After a restart the newest epoch that is whole is there, word for word, and a damaged one is never taken for whole.
    #[test]
    fn the_newest_whole_epoch_counts(steps in prop::collection::vec(step(), 1..40), retained in 1..4usize) {
        let folder = tempfile::tempdir().unwrap();
        let mut epochs = open(folder.path(), retained);
        let mut history: BTreeMap<u64, Content> = BTreeMap::new();
        let mut current = Content::new();
        for step in steps {
            let mut reopens = false;
            match step {
                Step::Commit(pieces, dropped) => {
                    let names = ["a", "b", "c", "d"];
                    let mut seen = std::collections::BTreeSet::new();
                    let bytes: Vec<(usize, bool, Vec<u8>)> = pieces
                        .into_iter()
                        .filter(|(name, ..)| seen.insert(*name))
                        .map(|(name, is_delta, length)| (usize::from(name), is_delta, vec![length as u8; usize::from(length)]))
                        .collect();
                    let dropped: Vec<&str> =
                        dropped.into_iter().filter(|name| !seen.contains(name)).map(|name| names[usize::from(name)]).collect();
                    dropped.iter().for_each(|name| drop(current.remove(*name)));
                    for (name, is_delta, bytes) in &bytes {
                        let all = current.entry(names[*name].into()).or_default();
                        if !is_delta {
                            all.clear();
                        }
                        all.push(bytes.clone());
                    }
                    let number = epochs.next;
                    let pieces: Vec<(&str, bool, &[u8])> =
                        bytes.iter().map(|(name, is_delta, bytes)| (names[*name], *is_delta, bytes.as_slice())).collect();
                    // What it says may have been damaged meanwhile, and then taking it over fails.
                    match epochs.commit(epoch(number, &pieces, &dropped)) {
                        Ok(committed) => {
                            prop_assert_eq!(committed.epoch, number);
                            history.insert(number, current.clone());
                        }
                        Err(error) => {
                            prop_assert!(matches!(error, StorageError::Damaged { .. } | StorageError::Io { .. }), "{}", error);
                            current = epochs.newest().map(|newest| history[&newest].clone()).unwrap_or_default();
                        }
                    }
                }
                Step::Reopen => reopens = true,
                Step::Damage(back, cuts, at) => {
                    let _ = fs::create_dir_all(folder.path().join(LINE));
                    let Some(path) = files(folder.path()).into_iter().rev().nth(usize::from(back)) else { continue };
                    let mut bytes = fs::read(&path).unwrap();
                    if bytes.is_empty() {
                        continue;
                    }
                    let at = at.index(bytes.len());
                    match cuts {
                        true => bytes.truncate(at),
                        false => bytes[at] ^= 0x40,
                    }
                    fs::write(path, bytes).unwrap();
                    reopens = true;
                }
                Step::Orphan => {
                    let store = Store::folder(folder.path()).unwrap();
                    let left = [(Entry::new("a".into(), epochs.next), Bytes::from_static(b"never committed"))];
                    Pack::write(&store, LINE, epochs.next, left.into_iter()).unwrap();
                    reopens = true;
                }
            }
            if reopens {
                    epochs = open(folder.path(), retained);
                    let found = content(&epochs);
                    if let Some((number, found)) = &found {
                        prop_assert_eq!(found, &history[number]);
                    }
                    current = found.map(|(_, found)| found).unwrap_or_default();
            }
        }
    }
}

#[test]
fn what_did_not_change_is_not_written_again_and_what_is_old_goes() {
    let folder = tempfile::tempdir().unwrap();
    let mut epochs = open(folder.path(), 2);
    let large = vec![7; 100_000];
    let first = epochs.commit(epoch(1, &[("large", false, &large), ("small", false, b"one")], &[])).unwrap();
    assert!(first.written_bytes > 100_000);
    for number in 2..20 {
        let committed = epochs.commit(epoch(number, &[("small", false, b"more")], &[])).unwrap();
        assert!(committed.written_bytes < 1_000, "{committed:?}");
    }
    // Two manifests, the pack with what is large, and those of the two last epochs.
    assert_eq!(files(folder.path()).len(), 5, "{:?}", files(folder.path()));
    epochs.commit(epoch(20, &[], &["large"])).unwrap();
    epochs.commit(epoch(21, &[], &[])).unwrap();
    let all: u64 = files(folder.path()).iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(all < 2_000, "{all} bytes are left");
    let expected = Content::from([("small".into(), vec![b"more".to_vec()])]);
    assert_eq!(content(&open(folder.path(), 2)), Some((21, expected)));
}

#[test]
fn a_damaged_epoch_gives_way_to_the_one_before_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut epochs = open(folder.path(), 3);
    epochs.commit(epoch(1, &[("a", false, b"first")], &[])).unwrap();
    epochs.commit(epoch(2, &[("a", false, b"second")], &[])).unwrap();
    let pack = folder.path().join(LINE).join("000000000002.pack");
    let mut bytes = fs::read(&pack).unwrap();
    bytes[10] ^= 1;
    fs::write(&pack, bytes).unwrap();
    let mut epochs = open(folder.path(), 3);
    assert_eq!(content(&epochs), Some((1, Content::from([("a".into(), vec![b"first".to_vec()])]))));
    let [problem] = epochs.problems() else { panic!("{:?}", epochs.problems()) };
    assert!(problem.starts_with("epoch 2 cannot be used:") && problem.contains("checksum of 'a'"), "{problem}");
    // The next one does not meet what is left of it.
    assert_eq!(epochs.commit(epoch(3, &[("a", true, b"third")], &[])).unwrap().epoch, 3);
    let expected = vec![b"first".to_vec(), b"third".to_vec()];
    assert_eq!(content(&open(folder.path(), 3)), Some((3, Content::from([("a".into(), expected)]))));
}

#[test]
fn two_that_write_one_line_do_not_overwrite_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let (mut one, mut other) = (open(folder.path(), 3), open(folder.path(), 3));
    one.commit(epoch(1, &[("a", false, b"one")], &[])).unwrap();
    let error = other.commit(epoch(1, &[("a", false, b"other")], &[])).unwrap_err();
    assert!(matches!(error, StorageError::Taken { .. }), "{error}");
    assert_eq!(content(&open(folder.path(), 3)), Some((1, Content::from([("a".into(), vec![b"one".to_vec()])]))));
}

#[test]
fn a_later_format_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(LINE);
    fs::create_dir_all(&path).unwrap();
    let json = r#"{"format":99,"news":[]}"#;
    let checksum = xxhash_rust::xxh3::xxh3_64(json.as_bytes());
    fs::write(path.join("000000000001.manifest"), format!("{json}\n{checksum:016x}\n")).unwrap();
    let store = Arc::new(Store::folder(folder.path()).unwrap());
    let error = Epochs::open(store, LINE, EpochSettings { retained: 1 }).unwrap_err();
    assert!(matches!(error, StorageError::Version { found: 99, .. }), "{error}");
}
