//! Backups, in the form that is written and in that of the version before: archives that were changed, and archives of
//! any files with checksums that fit. One that is restored has what it says, all of it inside of the new folder; of one
//! that is refused nothing is left. What was restored can be examined.

use std::path::Path;

use rivulet::data_folder::{CHECKPOINTS, archive};
use rivulet::examine::examine;
use rivulet_storage::Place;
use xxhash_rust::xxh3::Xxh3;

use crate::edits::{self, Files};
use crate::input::Input;
use crate::{Target, scratch};

/// See the module.
pub const TARGET: Target = Target {
    name: "backup",
    run,
    words: &["RVBACK01", "checkpoints/", "log/", "catalog.redb", "../", "/", "\0", "ustar", "manifest.json"],
    mutations: 1_000,
};

/// The bytes of an archive, and what files it had.
type Archive = (Vec<u8>, Files);

/// Files that archives of any files have at most.
const FILES_MAX: usize = 6;

/// Names, some of which no data folder has.
const NAMES: [&str; 12] = [
    "catalog.redb",
    "checkpoints/applications/00000000000000000001.manifest",
    "checkpoints/applications/00000000000000000001.pack",
    "log/00000000000000000001.log",
    "checkpoints/../../outside",
    "/tmp/outside",
    "log/./../../outside",
    "log//1",
    "log/",
    "checkpoints",
    "catalog.redb/1",
    "log/\u{0}",
];

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let choice = input.byte();
    let (is_made, form) = (choice % 2 == 1, if choice & 2 == 0 { version_1 } else { tar } as Form);
    let (archive, files) = if is_made { made(&mut input, form) } else { changed(&mut input, form) };
    let folder = scratch::folder();
    let (file, inner) = (folder.path().join("archive"), folder.path().join("inner"));
    std::fs::write(&file, &archive).expect("the file can be written");
    std::fs::create_dir(&inner).expect("the folder can be made");
    let data = inner.join("data");
    let restored = archive::restore(&file, &data, &Place::Folder(data.join(CHECKPOINTS)));
    assert_eq!(names_in(folder.path()), ["archive", "inner"]);
    match restored {
        Ok(contents) => {
            assert_eq!(names_in(&inner), ["data"]);
            let mut found = Files::new();
            read_all(&data, &data, &mut found);
            assert!(found.remove("restored").is_some_and(|mark| !mark.is_empty()), "results have other identities now");
            assert_eq!(found.len() as u64, contents.files);
            for (name, bytes) in &found {
                assert_eq!(files.get(name), Some(bytes), "{name} is as it was");
            }
            let found = examine(&data, &Place::Folder(data.join(CHECKPOINTS)));
            assert!(found.findings.iter().all(|finding| !finding.text.is_empty()));
        }
        Err(error) => {
            assert!(names_in(&inner).is_empty(), "nothing is left of what was refused: {error}");
            assert!(!error.hint().is_empty());
            assert!(is_made || archive != whole(form).0, "{error}");
        }
    }
}

/// An archive that is whole, changed.
fn changed(input: &mut Input<'_>, form: Form) -> Archive {
    let (archive, files) = whole(form);
    let mut changed = Files::from([("archive".to_owned(), archive.clone())]);
    edits::apply(&mut changed, input);
    (changed.remove("archive").unwrap_or_default(), files)
}

/// An archive of any files.
fn made(input: &mut Input<'_>, form: Form) -> Archive {
    let mut files = Vec::new();
    while files.len() < FILES_MAX && !input.is_empty() {
        let name = match input.byte() as usize {
            number if number < NAMES.len() => NAMES[number].as_bytes().to_vec(),
            _ => input.piece().to_vec(),
        };
        files.push((name, input.piece().to_vec()));
    }
    let archive = form(&files);
    let named = files.into_iter().filter_map(|(name, bytes)| {
        // As the system writes it: without what says nothing.
        let path: std::path::PathBuf = Path::new(std::str::from_utf8(&name).ok()?).components().collect();
        Some((path.to_str()?.to_owned(), bytes))
    });
    (archive, named.collect())
}

/// How files are written as an archive.
type Form = fn(&[(Vec<u8>, Vec<u8>)]) -> Vec<u8>;

fn tar(files: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut add = |name: &[u8], bytes: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(0o600);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(bytes.len() as u64);
        // Any name, which the library would not write.
        let space = &mut header.as_ustar_mut().expect("it is one").name;
        let length = name.len().min(space.len());
        space[..length].copy_from_slice(&name[..length]);
        header.set_cksum();
        archive.extend_from_slice(header.as_bytes());
        archive.extend_from_slice(bytes);
        archive.resize(archive.len().next_multiple_of(512), 0);
    };
    add(b"rivulet-backup.json", b"{\"version\":2}\n");
    files.iter().for_each(|(name, bytes)| add(name, bytes));
    let entries: Vec<String> = files
        .iter()
        .map(|(name, bytes)| {
            let (name, checksum) = (String::from_utf8_lossy(name), xxhash_rust::xxh3::xxh3_64(bytes));
            let name = serde_json::Value::from(name);
            format!("{{\"name\":{name},\"bytes\":{},\"xxh3\":\"{checksum:016x}\"}}", bytes.len())
        })
        .collect();
    add(b"manifest.json", format!("{{\"files\":[{}]}}\n", entries.join(",")).as_bytes());
    archive.resize(archive.len() + 1024, 0);
    archive
}

fn version_1(files: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut archive = b"RVBACK01".to_vec();
    for (name, bytes) in files {
        let mut checksum = Xxh3::new();
        checksum.update(name);
        checksum.update(bytes);
        archive.extend_from_slice(&(name.len() as u16).to_le_bytes());
        archive.extend_from_slice(name);
        archive.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        archive.extend_from_slice(bytes);
        archive.extend_from_slice(&checksum.digest().to_le_bytes());
    }
    archive.extend_from_slice(&0_u16.to_le_bytes());
    archive.extend_from_slice(&(files.len() as u64).to_le_bytes());
    archive
}

/// An archive that can be restored.
fn whole(form: Form) -> Archive {
    let files: Vec<(Vec<u8>, Vec<u8>)> = NAMES[..4]
        .iter()
        .zip(1..)
        .map(|(name, number)| (name.as_bytes().to_vec(), vec![number; usize::from(number) * 20]))
        .collect();
    let named = NAMES[..4].iter().map(|name| (*name).to_owned()).zip(files.iter().map(|(_, bytes)| bytes.clone()));
    (form(&files), named.collect())
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("the folder can be listed").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    names
}

/// The files in a folder and those below it, by their paths.
fn read_all(root: &Path, folder: &Path, files: &mut Files) {
    for name in names_in(folder) {
        let path = folder.join(name);
        if path.is_dir() {
            read_all(root, &path, files);
            continue;
        }
        let name = path.strip_prefix(root).expect("it is below").to_string_lossy().into_owned();
        files.insert(name, std::fs::read(&path).expect("it can be read"));
    }
}
