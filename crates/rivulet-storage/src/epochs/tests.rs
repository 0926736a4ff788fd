//! Epochs against a model, in a folder and in a bucket, with objects that are truncated, changed or missing between any
//! two epochs.

use std::collections::BTreeMap;
use std::fs;

use proptest::prelude::*;
use rivulet_testing_s3::{Fault, S3Server};
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::Place;
use crate::store::test_settings;

const LINE: &str = "applications";

/// The content of a line, by name.
type Content = BTreeMap<String, Vec<Vec<u8>>>;

/// The store of a line.
enum Home {
    Folder(TempDir),
    Bucket(Box<S3Server>),
}

impl Home {
    fn folder() -> Self {
        Self::Folder(tempfile::tempdir().unwrap())
    }

    fn bucket() -> Self {
        Self::Bucket(Box::new(S3Server::start()))
    }

    fn store(&self) -> Arc<Store> {
        let place = match self {
            Self::Folder(folder) => Place::Folder(folder.path().to_owned()),
            Self::Bucket(server) => Place::S3(test_settings(server, "of/one server")),
        };
        Arc::new(Store::open(&place).unwrap())
    }

    fn open(&self, retained: usize) -> Epochs {
        Epochs::open(self.store(), LINE, EpochSettings { retained }).unwrap()
    }

    /// The objects of the line, oldest first.
    fn names(&self) -> Vec<String> {
        let names: Vec<String> = self.store().names().unwrap().into_iter().map(|(name, _)| name).collect();
        names.into_iter().filter(|name| name.starts_with(LINE)).collect()
    }

    fn bytes(&self) -> u64 {
        self.store().names().unwrap().into_iter().map(|(_, bytes)| bytes).sum()
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        match self {
            Self::Folder(folder) => {
                let path = folder.path().join(name);
                let mut bytes = fs::read(&path).unwrap();
                change(&mut bytes);
                fs::write(path, bytes).unwrap();
            }
            Self::Bucket(server) => server.change(&format!("of/one server/{name}"), change),
        }
    }
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
            .map(|&(name, is_delta, bytes)| match is_delta {
                true => Piece::delta(name, Bytes::copy_from_slice(bytes)),
                false => Piece::whole(name, Bytes::copy_from_slice(bytes)),
            })
            .collect(),
        dropped: dropped.iter().map(|&name| name.into()).collect(),
    }
}

/// A step of a test.
#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<(u8, bool, u16)>, Vec<u8>),
    Reopen,
    /// The object at this index from the newest on loses its last bytes, or has one byte changed.
    Damage(u8, bool, prop::sample::Index),
    /// A pack without a manifest, as a killed process leaves it.
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

    /// After a restart the newest intact epoch is restored exactly, and a damaged epoch is never taken for intact.
    #[test]
    fn the_newest_whole_epoch_counts(
        steps in prop::collection::vec(step(), 1..40),
        retained in 1..4usize,
        is_remote in any::<bool>(),
    ) {
        let home = if is_remote { Home::bucket() } else { Home::folder() };
        let mut epochs = home.open(retained);
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
                    // A live piece may have been damaged meanwhile; then moving it to a new pack fails.
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
                    let Some(name) = home.names().into_iter().rev().nth(usize::from(back)) else { continue };
                    home.change(&name, |bytes| {
                        let at = at.index(bytes.len().max(1));
                        match bytes.get_mut(at) {
                            Some(byte) if !cuts => *byte ^= 0x40,
                            _ => bytes.truncate(at),
                        }
                    });
                    reopens = true;
                }
                Step::Orphan => {
                    let store = home.store();
                    let never = Bytes::from_static(b"never committed");
                    let left = [(Entry::new(&Piece::whole("a", never.clone()), epochs.next), never)];
                    Pack::write(&store, LINE, epochs.next, left.into_iter()).unwrap();
                    reopens = true;
                }
            }
            if reopens {
                    epochs = home.open(retained);
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
    for home in [Home::folder(), Home::bucket()] {
        let mut epochs = home.open(2);
        let large = vec![7; 100_000];
        let first = epochs.commit(epoch(1, &[("large", false, &large), ("small", false, b"one")], &[])).unwrap();
        assert!(first.written_bytes > 100_000);
        for number in 2..20 {
            let committed = epochs.commit(epoch(number, &[("small", false, b"more")], &[])).unwrap();
            assert!(committed.written_bytes < 1_000, "{committed:?}");
        }
        // Two manifests, the pack with the large piece, and the packs of the two last epochs.
        assert_eq!(home.names().len(), 5, "{:?}", home.names());
        epochs.commit(epoch(20, &[], &["large"])).unwrap();
        epochs.commit(epoch(21, &[], &[])).unwrap();
        assert!(home.bytes() < 2_000, "{} bytes are left", home.bytes());
        let expected = Content::from([("small".into(), vec![b"more".to_vec()])]);
        assert_eq!(content(&home.open(2)), Some((21, expected)));
    }
}

#[test]
fn a_damaged_epoch_gives_way_to_the_one_before_and_says_so() {
    for home in [Home::folder(), Home::bucket()] {
        let mut epochs = home.open(3);
        epochs.commit(epoch(1, &[("a", false, b"first")], &[])).unwrap();
        epochs.commit(epoch(2, &[("a", false, b"second")], &[])).unwrap();
        home.change(&format!("{LINE}/000000000002.pack"), |bytes| bytes[10] ^= 1);
        let mut epochs = home.open(3);
        assert_eq!(content(&epochs), Some((1, Content::from([("a".into(), vec![b"first".to_vec()])]))));
        let [problem] = epochs.problems() else { panic!("{:?}", epochs.problems()) };
        assert!(problem.starts_with("epoch 2 cannot be used:") && problem.contains("checksum of 'a'"), "{problem}");
        // The next epoch does not collide with the remains of the failed one.
        assert_eq!(epochs.commit(epoch(3, &[("a", true, b"third")], &[])).unwrap().epoch, 3);
        let expected = vec![b"first".to_vec(), b"third".to_vec()];
        assert_eq!(content(&home.open(3)), Some((3, Content::from([("a".into(), expected)]))));
    }
}

#[test]
fn of_two_that_write_one_line_one_stops_and_harms_nothing() {
    for home in [Home::folder(), Home::bucket()] {
        let one_of = |text: &[u8]| Content::from([("a".into(), vec![text.to_vec()])]);
        let (mut one, mut other) = (home.open(3), home.open(3));
        one.commit(epoch(1, &[("a", false, b"one")], &[])).unwrap();
        for number in 1..3 {
            let error = other.commit(epoch(number, &[("a", false, b"other")], &[])).unwrap_err();
            assert!(matches!(error, StorageError::Taken { .. }), "{error}");
        }
        assert_eq!(content(&home.open(3)), Some((1, one_of(b"one"))));
        // A process that pauses while another one advances far and deletes old objects.
        let mut sleeper = home.open(1);
        for number in 2..9 {
            one.commit(epoch(number, &[("a", false, b"one")], &[])).unwrap();
        }
        let _ = sleeper.commit(epoch(2, &[("a", false, b"sleeper")], &[]));
        let error = sleeper.commit(epoch(3, &[("a", false, b"sleeper")], &[])).unwrap_err();
        assert!(matches!(error, StorageError::Taken { .. }), "{error}");
        assert_eq!(content(&home.open(3)), Some((8, one_of(b"one"))));
    }
}

#[test]
fn nothing_goes_while_somebody_reads_all_of_it() {
    let home = Home::folder();
    let store = home.store();
    let mut epochs = Epochs::open(store.clone(), LINE, EpochSettings { retained: 1 }).unwrap();
    epochs.commit(epoch(1, &[("a", false, b"one")], &[])).unwrap();
    let before = home.names();
    let hold = store.hold();
    for number in 2..5 {
        epochs.commit(epoch(number, &[("a", false, b"two")], &[])).unwrap();
    }
    assert!(before.iter().all(|name| home.names().contains(name)));
    let other = Epochs::open(store.clone(), LINE, EpochSettings { retained: 1 }).unwrap();
    assert!(other.delete().unwrap_err().to_string().contains("a backup"));
    drop(hold);
    epochs.commit(epoch(5, &[], &[])).unwrap();
    assert_eq!(home.names().len(), 2, "{:?}", home.names());
}

#[test]
fn a_later_format_is_refused_by_name() {
    let home = Home::folder();
    let Home::Folder(folder) = &home else { panic!("a folder") };
    let path = folder.path().join(LINE);
    fs::create_dir_all(&path).unwrap();
    let json = r#"{"format":99,"news":[]}"#;
    let checksum = xxhash_rust::xxh3::xxh3_64(json.as_bytes());
    fs::write(path.join("000000000001.manifest"), format!("{json}\n{checksum:016x}\n")).unwrap();
    let error = Epochs::open(home.store(), LINE, EpochSettings { retained: 1 }).unwrap_err();
    assert!(matches!(error, StorageError::Version { found: 99, .. }), "{error}");
}

#[test]
fn a_bucket_that_fails_costs_one_epoch_and_never_what_was_committed() {
    let home = Home::bucket();
    let Home::Bucket(server) = &home else { panic!("a bucket") };
    let mut epochs = home.open(2);
    epochs.commit(epoch(1, &[("a", false, b"first")], &[])).unwrap();
    // The pack is written and the manifest is not, as if the process were killed between the two.
    for fault in [Fault::NoPutOf(".manifest"), Fault::Denied, Fault::Full] {
        server.set_fault(Some(fault.clone()));
        let error = epochs.commit(epoch(2, &[("a", false, b"lost")], &[])).unwrap_err();
        assert!(error.to_string().contains("hint: "), "{fault:?}: {error}");
        server.set_fault(None);
        assert_eq!(content(&home.open(2)), Some((1, Content::from([("a".into(), vec![b"first".to_vec()])]))));
    }
    let number = epochs.next();
    // The object is written but the answer is lost: the writer asks.
    server.set_fault(Some(Fault::LostAnswers(1)));
    epochs.commit(epoch(number, &[("a", false, b"second")], &[])).unwrap();
    server.set_fault(None);
    epochs.commit(epoch(number + 1, &[], &[])).unwrap();
    // Read from another machine: the failed commits have left nothing.
    let expected = Content::from([("a".into(), vec![b"second".to_vec()])]);
    assert_eq!(content(&home.open(2)), Some((number + 1, expected)));
    let first = format!("{LINE}/{number:012}.manifest");
    assert!(home.names().iter().all(|name| *name >= first), "{:?}", home.names());
    // An object that cannot be read is not taken for damaged.
    for fault in [Fault::Denied, Fault::Busy(1_000)] {
        server.set_fault(Some(fault));
        let error = Epochs::open(home.store(), LINE, EpochSettings { retained: 2 }).unwrap_err();
        assert!(matches!(error, StorageError::Remote { .. }), "{error}");
    }
}

#[test]
fn many_pieces_are_read_with_few_requests() {
    let home = Home::bucket();
    let Home::Bucket(server) = &home else { panic!("a bucket") };
    let names: Vec<String> = (0..300).map(|number| format!("piece-{number}")).collect();
    let pieces: Vec<(&str, bool, &[u8])> = names.iter().map(|name| (name.as_str(), false, name.as_bytes())).collect();
    let mut epochs = home.open(1);
    epochs.commit(epoch(1, &pieces, &[])).unwrap();
    epochs.commit(epoch(2, &[], &["piece-7", "piece-250"])).unwrap();
    server.requests();
    let (_, found) = content(&home.open(1)).unwrap();
    let requests = server.requests();
    assert_eq!((found.len(), found["piece-8"].as_slice()), (298, &[b"piece-8".to_vec()][..]));
    assert!(requests.len() < 10, "{requests:?}");
}

#[test]
fn going_back_leaves_the_epochs_before_and_numbers_go_on() {
    let home = Home::folder();
    let mut epochs = home.open(3);
    for number in 1..=4 {
        let text = number.to_string();
        epochs.commit(epoch(number, &[("a", false, text.as_bytes()), ("b", true, text.as_bytes())], &[])).unwrap();
    }
    assert!(!epochs.go_back(Some(1)).unwrap(), "it is not kept any more");
    assert!(!epochs.go_back(Some(9)).unwrap());
    assert_eq!(epochs.newest(), Some(4));
    let of = |a: &str, b: &[&str]| {
        let bytes = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
        Content::from([("a".to_owned(), bytes(&[a])), ("b".to_owned(), bytes(b))])
    };
    let held = epochs.store.hold();
    let error = epochs.go_back(Some(3)).unwrap_err().to_string();
    assert!(error.contains("a backup is being made"), "{error}");
    assert_eq!((epochs.newest(), content(&home.open(3)).map(|(number, _)| number)), (Some(4), Some(4)));
    drop(held);
    assert!(epochs.go_back(Some(3)).unwrap());
    assert_eq!(content(&epochs), Some((3, of("3", &["1", "2", "3"]))));
    assert_eq!(content(&home.open(3)), Some((3, of("3", &["1", "2", "3"]))), "also after a restart");
    epochs.commit(epoch(5, &[("b", true, b"5")], &[])).unwrap();
    assert_eq!(content(&epochs), Some((5, of("3", &["1", "2", "3", "5"]))));
    assert_eq!(content(&home.open(3)), content(&epochs));
    assert!(epochs.go_back(None).unwrap());
    assert_eq!((epochs.newest(), content(&epochs)), (None, None));
    assert_eq!(content(&home.open(3)), None);
    epochs.commit(epoch(6, &[("a", false, b"6")], &[])).unwrap();
    assert_eq!(content(&home.open(3)).map(|(number, _)| number), Some(6));
}

#[test]
fn what_a_killed_process_did_not_write_in_full_is_removed() {
    let home = Home::folder();
    let Home::Folder(folder) = &home else { panic!("a folder") };
    let mut epochs = home.open(3);
    epochs.commit(epoch(1, &[("a", false, b"first")], &[])).unwrap();
    let objects = || fs::read_dir(folder.path().join(LINE)).unwrap().count();
    let before = objects();
    fs::write(folder.path().join(LINE).join("000000000002.pack#1"), b"half").unwrap();
    fs::create_dir_all(folder.path().join("queries/7")).unwrap();
    fs::write(folder.path().join("queries/7/000000000001.manifest#12"), b"half").unwrap();
    fs::write(folder.path().join("queries/7/note#of mine"), b"not ours").unwrap();
    let store = home.store();
    store.remove_unfinished().unwrap();
    assert_eq!(objects(), before);
    assert_eq!(fs::read_dir(folder.path().join("queries/7")).unwrap().count(), 1);
    assert_eq!(Epochs::lines(&store, "queries").unwrap(), BTreeSet::from(["queries/7".to_owned()]));
}

/// What [`Epochs::open_apart`] finds: the epoch, the content, and the names that come from an older epoch.
fn apart(home: &Home) -> Option<(Epochs, u64, Content, BTreeMap<String, u64>)> {
    let epochs = Epochs::open_apart(home.store(), LINE, EpochSettings { retained: 3 }).unwrap();
    let restored = epochs.restore().unwrap()?;
    let pieces = restored.pieces.into_iter();
    let pieces = pieces.map(|(name, all)| (name, all.iter().map(|bytes| bytes.to_vec()).collect())).collect();
    let older = restored.older.into_iter().map(|(name, note)| (name, note["epoch"].as_u64().unwrap())).collect();
    Some((epochs, restored.epoch, pieces, older))
}

#[test]
fn where_names_stand_for_themselves_damage_costs_only_the_name_that_it_hits() {
    // Each piece contains its name and its epoch, so that it can be found in the bytes of its pack. It is so long that
    // no piece is moved to another pack.
    let text = |name: &str, number: u64| format!("<{name} of {number}>").repeat(50).into_bytes();
    let mut model: BTreeMap<u64, Content> = BTreeMap::new();
    let home = Home::folder();
    let mut epochs = home.open(3);
    let written: [&[(&str, bool)]; 3] =
        [&[("a", false), ("b", false), ("c", false)], &[("a", true)], &[("b", false), ("a", true)]];
    let mut now = Content::new();
    for (number, written) in (1..).zip(written) {
        let pieces: Vec<(&str, bool, Vec<u8>)> =
            written.iter().map(|&(name, is_delta)| (name, is_delta, text(name, number))).collect();
        for (name, is_delta, bytes) in &pieces {
            let all = now.entry((*name).to_owned()).or_default();
            if !is_delta {
                all.clear();
            }
            all.push(bytes.clone());
        }
        let pieces: Vec<(&str, bool, &[u8])> =
            pieces.iter().map(|(name, is_delta, bytes)| (*name, *is_delta, bytes.as_slice())).collect();
        epochs.commit(epoch(number, &pieces, &[])).unwrap();
        model.insert(number, now.clone());
    }
    let (whole, found, content, older) = apart(&home).unwrap();
    assert_eq!((found, &content, older.len(), whole.problems().len()), (3, &model[&3], 0, 0));
    for object in home.names() {
        let bytes = home.store().get(&object).unwrap();
        for place in (0..bytes.len()).step_by(13) {
            home.change(&object, |bytes| bytes[place] ^= 0x20);
            let hit = ["a", "b", "c"].into_iter().flat_map(|name| (1..=3).map(move |number| (name, number))).find(
                |&(name, number)| {
                    let piece = text(name, number);
                    let at = bytes.windows(piece.len()).position(|window| window == piece);
                    at.is_some_and(|at| (at..at + piece.len()).contains(&place))
                },
            );
            let Some((opened, found, content, older)) = apart(&home) else {
                assert!(object.ends_with("1.pack") && hit.is_none(), "the index that all need: {object} at {place}");
                home.change(&object, |bytes| bytes[place] ^= 0x20);
                continue;
            };
            match hit.filter(|(name, number)| model[&3][*name].contains(&text(name, *number))) {
                Some((name, number)) => {
                    assert_eq!(found, 3, "{object} at {place}: {:?}", opened.problems());
                    // The newest epoch before that piece which has the name.
                    let before = (1..number).rev().find(|before| model[before].contains_key(name));
                    assert_eq!(older.get(name).copied(), before, "{object} at {place}");
                    for other in ["a", "b", "c"] {
                        let expected = if other == name {
                            before.map(|before| &model[&before][name])
                        } else {
                            model[&3].get(other)
                        };
                        assert_eq!(content.get(other), expected, "{other}, {object} at {place}");
                    }
                    assert!(opened.problems().iter().any(|problem| problem.contains(&format!("'{name}'"))));
                }
                // The damage hit the manifest, the index or a piece that is not live.
                None => assert_eq!((&content, older.len()), (&model[&found], 0), "{object} at {place}"),
            }
            home.change(&object, |bytes| bytes[place] ^= 0x20);
        }
    }
    // The next epoch replaces the older pieces.
    home.change(&format!("{LINE}/000000000001.pack"), |bytes| {
        let place = bytes.windows(4).position(|window| window == b"<a o").unwrap();
        bytes[place] ^= 1;
    });
    let (mut epochs, ..) = apart(&home).unwrap();
    epochs.commit(epoch(4, &[("a", false, b"anew")], &[])).unwrap();
    let (epochs, found, content, older) = apart(&home).unwrap();
    assert_eq!((found, &content["a"][..], &content["b"]), (4, &[b"anew".to_vec()][..], &model[&3]["b"]));
    assert!(older.is_empty() && epochs.problems().is_empty());
}

#[test]
fn what_came_back_from_an_older_epoch_is_written_again() {
    // The pieces written next, and the content of "a" after that; before it, "a" came back as one whole piece and two
    // deltas.
    type Texts<'a> = &'a [&'a str];
    type Next<'a> = (&'a [(&'a str, bool, &'a [u8])], Texts<'a>, Option<Texts<'a>>);
    let nexts: [Next<'_>; 4] = [
        (&[("b", false, b"anew")], &[], Some(&["a of 1", "a of 2", "a of 3"])),
        (&[("a", true, b"behind")], &[], Some(&["a of 1", "a of 2", "a of 3", "behind"])),
        (&[("a", false, b"anew")], &[], Some(&["anew"])),
        (&[], &["a"], None),
    ];
    for (pieces, dropped, expected) in nexts {
        let expected: Option<Vec<Vec<u8>>> =
            expected.map(|texts| texts.iter().map(|text| text.as_bytes().to_vec()).collect());
        let home = Home::folder();
        let mut epochs = home.open(3);
        for number in 1..=4 {
            let text = format!("a of {number}");
            epochs.commit(epoch(number, &[("a", number > 1, text.as_bytes()), ("b", false, b"b")], &[])).unwrap();
        }
        home.change(&format!("{LINE}/000000000004.pack"), |bytes| {
            let place = bytes.windows(6).position(|window| window == b"a of 4").unwrap();
            bytes[place] ^= 1;
        });
        let (mut epochs, found, _, older) = apart(&home).unwrap();
        assert_eq!((found, older.get("a")), (4, Some(&3)));
        epochs.commit(epoch(5, pieces, dropped)).unwrap();
        // This also holds when no retained epoch has the name intact any more.
        for number in 6..=9 {
            let (mut epochs, found, content, older) = apart(&home).unwrap();
            assert_eq!((found, content.get("a"), older.len()), (number - 1, expected.as_ref(), 0));
            assert!(epochs.problems().is_empty(), "{:?}", epochs.problems());
            epochs.commit(epoch(number, &[("c", false, b"c")], &[])).unwrap();
        }
    }
}
