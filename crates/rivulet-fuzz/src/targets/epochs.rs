//! A line of epochs, with changed objects. An epoch is restored as it was committed, or none is and the reason is
//! given; the next commit is restored in any case. If checksums were made to fit, anything may be restored, and nothing
//! panics.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use rivulet_storage::{Epoch, EpochSettings, Epochs, Piece, Restored, Store};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use xxhash_rust::xxh3::xxh3_64;

use crate::Target;
use crate::edits::{self, Files};
use crate::input::Input;

/// See the module.
pub const TARGET: Target = Target {
    name: "epochs",
    run,
    words: &[
        "\"epoch\":",
        "\"live\":[",
        "\"packs\":[",
        "\"note\":",
        "\"offset\":",
        "18446744073709551615",
        "RVPACK01",
        "\n",
    ],
    mutations: 2_000,
};

const LINE: &str = "line";
const EPOCHS: u64 = 5;
const SETTINGS: EpochSettings = EpochSettings { retained: 3 };

/// What an epoch restores: its note and its pieces.
type Content = (serde_json::Value, BTreeMap<String, Vec<Bytes>>);

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (whole, known) = whole();
    let mut files = whole.clone();
    let seals = input.byte() % 2 == 1;
    edits::apply(&mut files, &mut input);
    if seals {
        files.iter_mut().for_each(|(name, bytes)| seal(name, bytes));
    }
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let runtime = runtime();
    for (name, bytes) in files {
        let name = Path::from(name);
        let put = objects.put(&name, Bytes::from(bytes).into());
        runtime.block_on(put).expect("memory takes it");
    }
    let store = || Arc::new(Store::over(objects.clone(), None, "(memory)".into()).expect("no thread is needed"));
    // An epoch of a later version is an error.
    let Ok(mut epochs) = Epochs::open(store(), LINE, SETTINGS) else { return };
    let restored = epochs.restore();
    assert_eq!(epochs.newest().is_some(), epochs.note().is_some());
    if !seals {
        match restored.expect("what was found whole can be read") {
            Some(restored) => {
                let number = restored.epoch;
                assert_eq!(Some(&content(restored)), known.get(&number), "epoch {number} is as it was committed");
            }
            None => assert!(epochs.newest().is_none()),
        }
    }
    let newer = Bytes::from_static(b"newer");
    let epoch = Epoch { note: json!("last"), pieces: vec![Piece::whole("new", newer.clone())], dropped: Vec::new() };
    // Pieces whose place in a pack is wrong cannot be taken over.
    let Ok(committed) = epochs.commit(epoch) else {
        assert!(seals, "an epoch can be committed");
        return;
    };
    let again = Epochs::open(store(), LINE, SETTINGS).expect("it was opened before");
    if !seals {
        let restored = again.restore().expect("it can be read").expect("it was committed");
        assert_eq!((restored.epoch, &restored.note), (committed.epoch, &json!("last")));
        assert_eq!(restored.pieces.get("new"), Some(&vec![newer]));
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().build().expect("no thread is needed")
}

fn content(restored: Restored) -> Content {
    (restored.note, restored.pieces)
}

/// The objects of an intact line, and what its epochs restore.
fn whole() -> &'static (Files, BTreeMap<u64, Content>) {
    static WHOLE: OnceLock<(Files, BTreeMap<u64, Content>)> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let store = Arc::new(Store::over(objects.clone(), None, "(memory)".into()).expect("no thread is needed"));
        let mut epochs = Epochs::open(store, LINE, SETTINGS).expect("there is nothing yet");
        let mut known = BTreeMap::new();
        for number in 1..=EPOCHS {
            let piece = |name: &str, is_delta, bytes: usize| match is_delta {
                true => Piece::delta(name, vec![number as u8; bytes]),
                false => Piece::whole(name, vec![number as u8; bytes]),
            };
            let pieces =
                vec![piece("changes", true, 20), piece("state", false, 60), piece(&format!("own-{number}"), false, 10)];
            let dropped = if number == 4 { vec!["own-2".into()] } else { Vec::new() };
            epochs.commit(Epoch { note: json!({"number": number}), pieces, dropped }).expect("memory takes it");
            let restored = epochs.restore().expect("it can be read").expect("it was committed");
            known.insert(number, content(restored));
        }
        let runtime = runtime();
        let listed =
            runtime.block_on(objects.list_with_delimiter(Some(&Path::from(LINE)))).expect("memory can be listed");
        let files = listed.objects.into_iter().map(|object| {
            let read = async { objects.get(&object.location).await?.bytes().await };
            (object.location.to_string(), runtime.block_on(read).expect("it can be read").to_vec())
        });
        (files.collect(), known)
    })
}

/// Makes checksums fit the content of an object.
fn seal(name: &str, bytes: &mut Vec<u8>) {
    if name.ends_with(".manifest") {
        let end = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
        bytes.truncate(end);
        bytes.extend_from_slice(format!("\n{:016x}\n", xxh3_64(&bytes[..end])).as_bytes());
    } else if let Some(index_end) = bytes.len().checked_sub(16) {
        let length = u64::from_le_bytes(std::array::from_fn(|at| bytes[index_end + at]));
        let begin = usize::try_from(length).ok().and_then(|length| index_end.checked_sub(length));
        // An index whose length was changed begins where an array does.
        let begin = begin.or_else(|| bytes.windows(2).position(|pair| pair == b"[{")).unwrap_or(0).min(index_end);
        let trailer = [(index_end - begin) as u64, xxh3_64(&bytes[begin..index_end])];
        bytes.truncate(index_end);
        bytes.extend(trailer.iter().flat_map(|number| number.to_le_bytes()));
    }
}
