//! Objects in a bucket of an S3-compatible object store, by the `object_store` crate.
//!
//! The crate signs requests, lists, uploads in parts and renews credentials. This module adds what the crate does not
//! do: it never overwrites an object, whichever answer is lost ([`Bucket::put`]).
//!
//! In reading order: [`settings`]: which bucket, and where; here: writing; [`transport`]: how requests are sent;
//! [`failure`]: why they fail.
//!
//! What must hold: an object is written only if no object has its name, and after a successful write it can be read. A
//! call to a store that does not answer fails after a few [`S3Settings::timeout`]s.

mod failure;
mod settings;
mod transport;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    Attribute, Attributes, BackoffConfig, GetOptions, ObjectStore, PutMode, PutMultipartOptions, PutOptions,
    PutPayload, Result, RetryConfig,
};
use ring::rand::{SecureRandom, SystemRandom};

use crate::StorageError;
use transport::Transport;

pub(in crate::store) use failure::{Failure, explained};
pub use settings::{BucketName, Credentials, S3Settings};

/// How often a request is repeated that is not answered, or that the store asks to repeat.
const RETRIES_MAX: usize = 2;

/// The first and the longest pause before a repetition; each pause is four times the one before.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// A list whose pages stay empty for this many timeouts is abandoned.
const LIST_TIMEOUTS_MAX: u32 = 20;

/// The size of a part in an upload in parts, and of the largest object that is written in one request.
const PART_BYTES: usize = 64 << 20;

/// The most parts of an object. The parts of a very large object are larger.
const PARTS_MAX: usize = 10_000;

/// The most parts in transfer at a time.
const PARTS_AT_ONCE: usize = 4;

/// Names the request that wrote an object, so that the object is recognised if the answer was lost.
const MARK: Attribute = Attribute::Metadata(std::borrow::Cow::Borrowed("rivulet-put"));

/// How objects are written to a bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    /// Whether a write in one request has the condition that no object has that name. Set to false if the store does
    /// not support it.
    puts_on_condition: AtomicBool,
    /// The same for uploads in parts.
    uploads_on_condition: Arc<AtomicBool>,
    part_bytes: usize,
    /// How long a list may go on without giving an object.
    pub(super) list_wait: Duration,
}

/// Opens a bucket, or the objects in it whose names begin with a prefix. Sends no request yet.
///
/// # Errors
/// The settings are invalid, or a file that they name cannot be read.
pub(super) fn open(settings: &S3Settings) -> Result<(Arc<dyn ObjectStore>, Bucket), StorageError> {
    let place = settings.name.to_string();
    let failed = |detail: String, hint: &str| StorageError::Remote {
        what: format!("cannot use {place}"),
        detail,
        hint: hint.to_owned(),
    };
    let endpoint = settings.endpoint().map_err(|(detail, hint)| failed(detail, hint))?;
    let bucket = format!("{}://{}{}", endpoint.scheme, endpoint.host, endpoint.path);
    let transport = Transport::new(&bucket, settings).map_err(|problem| {
        let path = settings.ca_file.as_deref().unwrap_or_else(|| std::path::Path::new(""));
        failed(
            format!("'{}' cannot be read as PEM: {problem}", path.display()),
            "checkpoint.s3.ca_file must exist, be readable, and hold certificates",
        )
    })?;
    if let Some((file, key)) = settings.credentials.token_file() {
        std::fs::File::open(file).map_err(|error| {
            failed(
                format!("'{}' cannot be read: {error}", file.display()),
                &format!("{key} must exist and be readable"),
            )
        })?;
    }
    let retry = RetryConfig {
        max_retries: RETRIES_MAX,
        retry_timeout: settings.timeout,
        backoff: BackoffConfig { init_backoff: PAUSES.0, max_backoff: PAUSES.1, base: 4.0 },
    };
    let builder = AmazonS3Builder::new()
        .with_bucket_name(&settings.name.bucket)
        .with_endpoint(bucket)
        // The endpoint already names the bucket, in its host or in its path.
        .with_virtual_hosted_style_request(true)
        .with_region(&settings.region)
        // Deleting one object at a time needs no further right, and every store supports it.
        .with_disable_bulk_delete(true)
        .with_retry(retry)
        .with_http_connector(transport.clone());
    let built = with_credentials(builder, &settings.credentials).build();
    let prefix = Path::parse(&settings.name.prefix);
    let (store, prefix) = match (built, prefix) {
        (Ok(store), Ok(prefix)) => (store, prefix),
        (Err(error), _) => return Err(failed(error.to_string(), "check checkpoint.s3")),
        (_, Err(error)) => return Err(failed(error.to_string(), "check the prefix in checkpoint.folder")),
    };
    let bucket = Bucket {
        puts_on_condition: AtomicBool::new(true),
        uploads_on_condition: transport.uploads_on_condition,
        part_bytes: PART_BYTES,
        list_wait: settings.timeout * LIST_TIMEOUTS_MAX,
    };
    Ok((Arc::new(PrefixStore::new(store, prefix)), bucket))
}

fn with_credentials(builder: AmazonS3Builder, credentials: &Credentials) -> AmazonS3Builder {
    use AmazonS3ConfigKey as Key;
    match credentials {
        Credentials::Key { access_key_id, secret_access_key, session_token } => {
            let builder = builder.with_access_key_id(access_key_id).with_secret_access_key(secret_access_key);
            session_token.iter().fold(builder, AmazonS3Builder::with_token)
        }
        Credentials::WebIdentity { role_arn, token_file, sts_endpoint } => {
            let builder = builder
                .with_config(Key::RoleArn, role_arn)
                .with_config(Key::RoleSessionName, "rivulet")
                .with_config(Key::WebIdentityTokenFile, token_file.to_string_lossy());
            sts_endpoint.iter().fold(builder, |builder, endpoint| builder.with_config(Key::StsEndpoint, endpoint))
        }
        Credentials::Task { path } => builder.with_config(Key::ContainerCredentialsRelativeUri, path),
        Credentials::Pod { url, token_file } => builder
            .with_config(Key::ContainerCredentialsFullUri, url)
            .with_config(Key::ContainerAuthorizationTokenFile, token_file.to_string_lossy()),
        Credentials::Instance { endpoint } => endpoint.iter().fold(builder, AmazonS3Builder::with_metadata_endpoint),
    }
}

impl Bucket {
    /// Writes an object as a whole.
    ///
    /// # Errors
    /// [`object_store::Error::AlreadyExists`], and all others.
    pub(super) async fn put(&self, objects: &dyn ObjectStore, path: &Path, parts: &[Bytes]) -> Result<()> {
        let mark = random_name()?;
        // A store may support the condition for one kind of request only.
        let can_condition =
            if self.fits_into_one(parts) { &self.puts_on_condition } else { &*self.uploads_on_condition };
        loop {
            let on_condition = can_condition.load(Ordering::Relaxed);
            if !on_condition && mark_of(objects, path).await?.is_some() {
                return Err(taken(path, "the object store was asked before it was put"));
            }
            let mode = if on_condition { PutMode::Create } else { PutMode::Overwrite };
            let Err(error) = self.put_once(objects, path, parts, mode, &mark).await else { return Ok(()) };
            if on_condition && Failure::status(&error) == Some(501) {
                tracing::warn!(
                    object = %path,
                    "the object store cannot put an object only where none is; two servers on one prefix would not \
                     notice each other at once"
                );
                can_condition.store(false, Ordering::Relaxed);
                continue;
            }
            // An earlier request whose answer was lost may have written the object.
            return match mark_of(objects, path).await {
                Ok(Some(found)) if found == mark => Ok(()),
                Ok(Some(_)) if Failure::status(&error) == Some(412) => Err(taken(path, error)),
                _ => Err(error),
            };
        }
    }

    /// Whether an object is written in one request.
    fn fits_into_one(&self, parts: &[Bytes]) -> bool {
        bytes_of(parts) <= self.part_bytes
    }

    async fn put_once(
        &self,
        objects: &dyn ObjectStore,
        path: &Path,
        parts: &[Bytes],
        mode: PutMode,
        mark: &str,
    ) -> Result<()> {
        let attributes = Attributes::from_iter([(MARK, mark.to_owned())]);
        if self.fits_into_one(parts) {
            let options = PutOptions { mode, attributes, ..PutOptions::default() };
            return objects.put_opts(path, parts.iter().cloned().collect(), options).await.map(drop);
        }
        let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
        let mut upload = objects.put_multipart_opts(path, options).await?;
        let has_failed = Cell::new(false);
        let sendings: Vec<_> = cut(parts, self.part_bytes.max(bytes_of(parts).div_ceil(PARTS_MAX)))
            .into_iter()
            .map(|part| {
                let (sending, has_failed) = (upload.put_part(part), &has_failed);
                async move {
                    if has_failed.get() {
                        return Ok(());
                    }
                    sending.await.inspect_err(|_| has_failed.set(true))
                }
            })
            .collect();
        // All parts in transfer must arrive before the upload ends: parts that arrive after its abort would stay in the
        // bucket.
        let sent: Vec<Result<()>> = stream::iter(sendings).buffer_unordered(PARTS_AT_ONCE).collect().await;
        let ended = match sent.into_iter().collect::<Result<()>>() {
            Ok(()) => upload.complete().await.map(drop),
            Err(error) => Err(error),
        };
        if ended.is_err()
            && let Err(error) = upload.abort().await
            && !Failure::is_missing(&error)
        {
            tracing::warn!(object = %path, "the parts of an upload that failed are left in the bucket: {error}");
        }
        ended
    }
}

fn bytes_of(parts: &[Bytes]) -> usize {
    parts.iter().map(Bytes::len).sum()
}

/// The mark of the object at a path: empty if it has no mark, `None` if there is no object.
async fn mark_of(objects: &dyn ObjectStore, path: &Path) -> Result<Option<String>> {
    match objects.get_opts(path, GetOptions { head: true, ..GetOptions::default() }).await {
        Ok(found) => Ok(Some(found.attributes.get(&MARK).map_or("", |mark| mark.as_ref()).to_owned())),
        Err(error) if Failure::is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn taken(path: &Path, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::AlreadyExists { path: path.to_string(), source: source.into() }
}

/// Cuts bytes, given in pieces of any size, into payloads of one size, and a last one with the rest.
fn cut(pieces: &[Bytes], bytes_each: usize) -> Vec<PutPayload> {
    let (mut payloads, mut payload, mut room) = (Vec::new(), Vec::new(), bytes_each);
    for piece in pieces {
        let mut piece = piece.clone();
        while !piece.is_empty() {
            let part = piece.split_to(room.min(piece.len()));
            room -= part.len();
            payload.push(part);
            if room == 0 {
                payloads.push(std::mem::take(&mut payload).into_iter().collect());
                room = bytes_each;
            }
        }
    }
    if !payload.is_empty() {
        payloads.push(payload.into_iter().collect());
    }
    payloads
}

fn random_name() -> Result<String> {
    let mut random = [0; 16];
    SystemRandom::new().fill(&mut random).map_err(|_| object_store::Error::Generic {
        store: "S3",
        source: "the system gives no random numbers".into(),
    })?;
    Ok(format!("{:032x}", u128::from_ne_bytes(random)))
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::settings as test_settings;
