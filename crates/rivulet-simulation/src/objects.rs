//! Objects as files of the simulated disk, written as the object store of folders does: under another name first, then
//! linked to their own name, without a sync; and the catalog's file.

use std::fmt;
use std::io;
use std::path::{Path as FilePath, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use rivulet_storage::{Disk, DiskFile};

use crate::disk::{SimulatedDisk, SimulatedFile};

/// The most files of an object that were not linked.
const STAGED_MAX: u32 = 1_000;

/// Objects in a folder.
#[derive(Clone, Debug)]
pub(crate) struct Objects {
    disk: SimulatedDisk,
    root: PathBuf,
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Objects({})", self.root.display())
    }
}

impl Objects {
    pub(crate) fn new(disk: SimulatedDisk, root: &FilePath) -> Self {
        Self { disk, root: root.to_owned() }
    }

    fn path(&self, name: &Path) -> PathBuf {
        self.root.join(name.as_ref())
    }

    fn put(&self, name: &Path, payload: &PutPayload) -> io::Result<()> {
        let path = self.path(name);
        if let Some(folder) = path.parent() {
            self.disk.make_unsynced_folder(folder)?;
        }
        // Always a new file, as in the real one: what is left of one that was not linked may come back.
        let mut staged = (0..STAGED_MAX).map(|number| path.with_added_extension(format!("{number}.staged")));
        let staged = staged.find(|staged| self.disk.open(staged).is_err());
        let staged = staged.ok_or_else(|| io::Error::other("too many files are left"))?;
        let file = self.disk.create(&staged)?;
        let mut at = 0;
        for part in payload {
            file.write_at(part, at)?;
            at += part.len() as u64;
        }
        let linked = self.disk.link(&staged, &path);
        // The result is ignored, as in the real one.
        let _ = self.disk.remove(&staged);
        linked
    }

    fn listed(&self, prefix: Option<&Path>) -> io::Result<Vec<ObjectMeta>> {
        let folder = prefix.map_or_else(|| self.root.clone(), |prefix| self.path(prefix));
        let found = match self.disk.files(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            found => found?,
        };
        let is_staged = |path: &FilePath| path.extension().is_some_and(|extension| extension == "staged");
        let objects = found.into_iter().filter(|(path, _)| !is_staged(path)).filter_map(|(path, bytes)| {
            let name = path.strip_prefix(&self.root).ok()?.to_str()?;
            Some(meta(Path::from(name), bytes))
        });
        Ok(objects.collect())
    }
}

fn meta(location: Path, size: u64) -> ObjectMeta {
    ObjectMeta { location, last_modified: Default::default(), size, e_tag: None, version: None }
}

fn failed(path: String, error: io::Error) -> object_store::Error {
    match error.kind() {
        io::ErrorKind::NotFound => object_store::Error::NotFound { path, source: error.into() },
        io::ErrorKind::AlreadyExists => object_store::Error::AlreadyExists { path, source: error.into() },
        _ => object_store::Error::Generic { store: "simulated", source: error.into() },
    }
}

fn unsupported(operation: &str) -> object_store::Error {
    object_store::Error::NotImplemented { operation: operation.into(), implementer: "simulated".into() }
}

#[async_trait]
impl ObjectStore for Objects {
    async fn put_opts(&self, name: &Path, payload: PutPayload, _: PutOptions) -> Result<PutResult> {
        self.put(name, &payload).map_err(|error| failed(name.to_string(), error))?;
        Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(unsupported("put_multipart_opts"))
    }

    async fn get_opts(&self, name: &Path, options: GetOptions) -> Result<GetResult> {
        let bytes = Bytes::from(self.disk.read(&self.path(name)).map_err(|error| failed(name.to_string(), error))?);
        let length = bytes.len() as u64;
        let invalid =
            |error| failed(name.to_string(), io::Error::new(io::ErrorKind::InvalidInput, format!("{error:?}")));
        let range = match &options.range {
            Some(range) => range.as_range(length).map_err(invalid)?,
            None => 0..length,
        };
        let part = bytes.slice(range.start as usize..range.end as usize);
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::once(async move { Ok(part) }).boxed()),
            meta: meta(name.clone(), length),
            range,
            attributes: Default::default(),
            extensions: Default::default(),
        })
    }

    fn delete_stream(&self, names: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let objects = self.clone();
        names
            .and_then(move |name| {
                let done = objects.disk.remove(&objects.path(&name)).map_err(|error| failed(name.to_string(), error));
                async move { done.map(|()| name) }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.listed(prefix) {
            Ok(listed) => stream::iter(listed.into_iter().map(Ok)).boxed(),
            Err(error) => stream::once(async move { Err(failed(String::new(), error)) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(unsupported("list_with_delimiter"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(unsupported("copy_opts"))
    }
}

impl redb::StorageBackend for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        self.bytes()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_at(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        DiskFile::set_len(self, length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(bytes, offset)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rivulet_storage::{Epoch, EpochSettings, Epochs, StorageError, Store};

    use super::*;
    use crate::disk::Lies;

    #[test]
    fn epochs_that_cannot_be_read_for_a_moment_are_not_given_up() {
        let (disk, root) = (SimulatedDisk::new(1, Lies::default()), FilePath::new("checkpoints"));
        disk.make_folder(root).unwrap();
        let open = || -> Result<Epochs, StorageError> {
            let (objects, folder) =
                (Objects::new(disk.clone(), root), (Arc::new(disk.clone()) as Arc<_>, root.to_owned()));
            let store = Store::over(Arc::new(objects), Some(folder), "checkpoints".into())?;
            Epochs::open(Arc::new(store), "line", EpochSettings { retained: 2 })
        };
        let mut epochs = open().unwrap();
        for number in 1..3 {
            epochs.commit(Epoch { note: number.into(), pieces: Vec::new(), dropped: Vec::new() }).unwrap();
        }
        disk.fail_to_read(true);
        // Whoever went on from the first one would undo what the second one says.
        let error = open().unwrap_err();
        assert!(error.to_string().contains("the disk does not answer"), "{error}");
        disk.fail_to_read(false);
        assert_eq!(open().unwrap().newest(), Some(2));
    }
}
