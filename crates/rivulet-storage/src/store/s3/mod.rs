//! Objects in a bucket of an S3-compatible object store, by the `object_store` crate.
//!
//! The crate signs, lists, uploads in parts and renews credentials. Here is what it does not: an object that is there
//! is never written over, whichever answer was lost ([`Bucket::put`]).
//!
//! In reading order: [`settings`]: which bucket and where; here: writing; [`transport`]: how requests travel;
//! [`failure`]: why they fail.
//!
//! What must hold: an object is written only where none is of its name, and whoever is told that it was written finds
//! it. Who waits for a store that says nothing is told so after a few [`S3Settings::timeout`]s.

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

/// How often a request is made again that is not answered, or that the store asks to make again.
const RETRIES_MAX: usize = 2;

/// The pauses before it is made again grow from the first to the second, each four times the one before.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// A list that gives no object for so many timeouts is given up: each of its pages is empty, and names a next one.
const LIST_TIMEOUTS_MAX: u32 = 20;

/// The size of a part of an object that is put in parts, and the largest object that is put at once.
const PART_BYTES: usize = 64 << 20;

/// The most parts that an object may have. Of a larger one the parts are larger.
const PARTS_MAX: usize = 10_000;

/// So many parts travel at once.
const PARTS_AT_ONCE: usize = 4;

/// Tells which request has put an object, so that one whose answer was lost is known again.
const MARK: Attribute = Attribute::Metadata(std::borrow::Cow::Borrowed("rivulet-put"));

/// How a bucket is written.
#[derive(Debug)]
pub(super) struct Bucket {
    /// Whether an object that is put at once is put only where none is of its name. One whose store cannot do that
    /// sets it to false.
    puts_on_condition: AtomicBool,
    /// The same of one that is put in parts.
    uploads_on_condition: Arc<AtomicBool>,
    part_bytes: usize,
    /// How long a list may give no object.
    pub(super) list_wait: Duration,
}

/// The objects of a bucket, or those that begin with a prefix in it. Nothing is asked of it yet.
///
/// # Errors
/// What is set makes no sense, or a file that it names cannot be read.
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
        // The endpoint names the bucket, in its host or in its path.
        .with_virtual_hosted_style_request(true)
        .with_region(&settings.region)
        // One object at a time, which needs no further right and every store can do.
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
    /// Puts an object, all of it or nothing.
    ///
    /// # Errors
    /// [`object_store::Error::AlreadyExists`], and any other.
    pub(super) async fn put(&self, objects: &dyn ObjectStore, path: &Path, parts: &[Bytes]) -> Result<()> {
        let mark = random_name()?;
        // A store may know the condition for one kind of request only.
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
            // A request whose answer was lost may have written it.
            return match mark_of(objects, path).await {
                Ok(Some(found)) if found == mark => Ok(()),
                Ok(Some(_)) if Failure::status(&error) == Some(412) => Err(taken(path, error)),
                _ => Err(error),
            };
        }
    }

    /// Whether an object is put by one request.
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
        // All that travel arrive before the upload ends: parts that come behind its abort would stay in the bucket.
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

/// The mark of the object at a path; empty if it has none, `None` if there is no object.
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

/// Bytes in pieces of any size, as payloads of one size and a last one of the rest.
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
