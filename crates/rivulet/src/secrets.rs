//! Secrets: values that options of sources and sinks name, by tenant, in a file of the data folder.
//!
//! What must hold: a value leaves this module only to open a source or sink, and into a backup. It is in no catalog,
//! copy of a catalog, log, error and answer. When a change is answered, it is on disk.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::data_folder::{SECRETS, replace};
use crate::service::{ErrorKind, FullName, SecretInfo, ServiceError, Tenant};

/// The form of the file.
const VERSION: u64 = 1;

/// The most secrets of a tenant. Each change writes all of them.
const SECRETS_MAX: usize = 1_000;

/// The most bytes of the values of a tenant together.
const TENANT_BYTES_MAX: usize = 4 << 20;

/// The longest value, in bytes.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The secrets of a server.
pub(crate) struct Secrets {
    path: PathBuf,
    known: Mutex<BTreeMap<FullName, Secret>>,
}

#[derive(Clone)]
struct Secret {
    value: String,
    changed_at_ms: i64,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    version: u64,
    secrets: Vec<SavedSecret>,
}

#[derive(Serialize, Deserialize)]
struct SavedSecret {
    tenant: String,
    name: String,
    value: String,
    changed_at_ms: i64,
}

impl Secrets {
    /// Reads the secrets in a data folder; there may be none.
    ///
    /// # Errors
    /// The file cannot be read or understood. The error has nothing of its content.
    pub(crate) fn open(data_dir: &Path) -> Result<Self, ServiceError> {
        let path = data_dir.join(SECRETS);
        let failed = |why: String| ServiceError::new(ErrorKind::Unavailable, format!("{}: {why}", path.display()));
        let known = match fs::read(&path) {
            Ok(bytes) => read(&bytes).map_err(|why| failed(why).with_hint("restore the file from a backup"))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(failed(error.to_string())),
        };
        Ok(Self { path, known: Mutex::new(known) })
    }

    /// The value of a secret.
    pub(crate) fn value(&self, name: &FullName) -> Option<String> {
        self.known.lock().get(name).map(|secret| secret.value.clone())
    }

    /// The secrets of a tenant, by name, without their values and users.
    pub(crate) fn infos(&self, tenant: &Tenant) -> Vec<SecretInfo> {
        let known = self.known.lock();
        let own = known.iter().filter(|(name, _)| name.tenant == *tenant);
        let info = |(name, secret): (&FullName, &Secret)| SecretInfo {
            name: name.name.clone(),
            changed_at_ms: secret.changed_at_ms,
            used_by: Vec::new(),
        };
        own.map(info).collect()
    }

    /// Gives a secret its value at this time. Returns whether there was one of its name.
    ///
    /// # Errors
    /// There is one, and it is not to be replaced; it is not within bounds; or it cannot be written. Then nothing has
    /// changed.
    pub(crate) fn put(
        &self,
        name: &FullName,
        value: String,
        replaces: bool,
        now_ms: i64,
    ) -> Result<bool, ServiceError> {
        check(&name.name, &value)?;
        let mut known = self.known.lock();
        let is_there = known.contains_key(name);
        if is_there && !replaces {
            return Err(ServiceError::new(ErrorKind::AlreadyExists, format!("there is a secret '{name}' already"))
                .with_hint("CREATE OR REPLACE SECRET gives it another value"));
        }
        let others = known.iter().filter(|(other, _)| other.tenant == name.tenant && *other != name);
        let (count, bytes) = others.fold((0, 0), |(count, bytes), (_, secret)| (count + 1, bytes + secret.value.len()));
        if count >= SECRETS_MAX || bytes + value.len() > TENANT_BYTES_MAX {
            let message = format!(
                "there are {count} secrets of {bytes} bytes; the most are {SECRETS_MAX} of \
                                   {TENANT_BYTES_MAX} bytes"
            );
            return Err(ServiceError::new(ErrorKind::LimitReached, message)
                .with_hint("the bound is fixed; drop those that are not in use: SHOW SECRETS says which"));
        }
        let mut changed = known.clone();
        changed.insert(name.clone(), Secret { value, changed_at_ms: now_ms });
        self.write(&changed)?;
        *known = changed;
        Ok(is_there)
    }

    /// Removes a secret, which nothing uses.
    ///
    /// # Errors
    /// There is none; or the change cannot be written. Then nothing has changed.
    pub(crate) fn remove(&self, name: &FullName) -> Result<(), ServiceError> {
        let mut known = self.known.lock();
        let mut changed = known.clone();
        changed.remove(name).ok_or_else(|| ServiceError::not_found(format!("there is no secret '{name}'")))?;
        self.write(&changed)?;
        *known = changed;
        Ok(())
    }

    /// Copies the file, if there are secrets. Returns whether there are.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn copy_to(&self, path: &Path) -> io::Result<bool> {
        let known = self.known.lock();
        if known.is_empty() {
            return Ok(false);
        }
        // The copy is made in the same mode.
        fs::copy(&self.path, path).map(|_| true)
    }

    fn write(&self, known: &BTreeMap<FullName, Secret>) -> Result<(), ServiceError> {
        let secrets = known.iter().map(|(name, secret)| SavedSecret {
            tenant: name.tenant.as_str().to_owned(),
            name: name.name.clone(),
            value: secret.value.clone(),
            changed_at_ms: secret.changed_at_ms,
        });
        let saved = Saved { version: VERSION, secrets: secrets.collect() };
        let json = serde_json::to_vec(&saved).map_err(io::Error::other);
        json.and_then(|json| replace(&self.path, &json)).map_err(|error| {
            ServiceError::new(ErrorKind::Unavailable, format!("{} cannot be written: {error}", self.path.display()))
        })
    }
}

/// Checks name and value of a secret from outside.
fn check(name: &str, value: &str) -> Result<(), ServiceError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let message = format!("the name of a secret has 1 to {NAME_BYTES_MAX} bytes, and no control characters");
        return Err(ServiceError::invalid(message));
    }
    if value.is_empty() || value.len() > VALUE_BYTES_MAX {
        return Err(ServiceError::invalid(format!("the value of a secret has 1 to {VALUE_BYTES_MAX} bytes"))
            .with_hint("`rivulet secret create NAME` reads it from standard input, or with --from-file from a file"));
    }
    Ok(())
}

/// Understands the content of the file.
fn read(bytes: &[u8]) -> Result<BTreeMap<FullName, Secret>, String> {
    // The words of the parser may have a part of a value.
    let saved: Saved = serde_json::from_slice(bytes).map_err(|error| {
        format!("the file of secrets is damaged at line {}, column {}", error.line(), error.column())
    })?;
    if saved.version != VERSION {
        let version = saved.version;
        return Err(format!("the file of secrets has the form {version}, and this version knows {VERSION}"));
    }
    let entry = |SavedSecret { tenant, name, value, changed_at_ms }: SavedSecret| {
        (Tenant::new(&tenant).named(name), Secret { value, changed_at_ms })
    };
    Ok(saved.secrets.into_iter().map(entry).collect())
}

/// Reads bytes as the file of secrets, for tests with any bytes. Returns what is wrong with them.
pub fn try_read(bytes: &[u8]) -> Option<String> {
    read(bytes).err()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::catalog::OWNER_ONLY;

    #[test]
    fn secrets_outlive_the_process_in_a_file_of_their_owner() {
        let folder = tempfile::tempdir().unwrap();
        let (own, other) = (Tenant::default(), Tenant::new("acme"));
        let name = own.named("kafka");
        let secrets = Secrets::open(folder.path()).unwrap();
        assert_eq!(secrets.put(&name, "rose".into(), false, 7), Ok(false));
        assert_eq!(secrets.put(&other.named("kafka"), "thorn".into(), false, 8), Ok(false));
        let twice = secrets.put(&name, "lily".into(), false, 9).unwrap_err();
        assert!(twice.kind == ErrorKind::AlreadyExists && !twice.to_string().contains("lily"), "{twice}");
        drop(secrets);
        let mode = fs::metadata(folder.path().join(SECRETS)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, OWNER_ONLY);
        let secrets = Secrets::open(folder.path()).unwrap();
        assert_eq!(secrets.value(&name).as_deref(), Some("rose"));
        assert_eq!(secrets.value(&other.named("kafka")).as_deref(), Some("thorn"));
        assert_eq!(secrets.infos(&own).len(), 1, "a tenant sees its own");
        assert_eq!(secrets.put(&name, "lily".into(), true, 9), Ok(true));
        assert_eq!(secrets.infos(&own)[0].changed_at_ms, 9);
        assert_eq!(Secrets::open(folder.path()).unwrap().value(&name).as_deref(), Some("lily"));
        secrets.remove(&name).unwrap();
        assert_eq!(secrets.remove(&name).unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(secrets.value(&name), None);
    }

    #[test]
    fn what_is_not_within_bounds_or_damaged_is_refused_without_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let secrets = Secrets::open(folder.path()).unwrap();
        let own = Tenant::default();
        for (name, value) in [("", "rose".to_owned()), ("a\nb", "rose".into()), ("a", String::new())] {
            assert!(secrets.put(&own.named(name), value, true, 0).is_err());
        }
        assert!(secrets.put(&own.named("a"), "x".repeat(VALUE_BYTES_MAX + 1), true, 0).is_err());
        for content in [r#"{"version":1,"secrets":["rose"]}"#, r#"{"version":2,"secrets":[]}"#, "rose", ""] {
            fs::write(folder.path().join(SECRETS), content).unwrap();
            let error = Secrets::open(folder.path()).map(drop).unwrap_err().to_string();
            assert!(error.contains(SECRETS) && !error.contains("rose"), "{error}");
        }
    }
}
