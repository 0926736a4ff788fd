//! Tokens that commands remember, by server: one file in the user's configuration folder, which only the user reads.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::catalog::OWNER_ONLY;

/// The file's name in the folder `rivulet` of the user's configuration.
const FILE_NAME: &str = "tokens.json";

/// The file; `None` for a user without a home.
pub(super) fn path() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let configuration = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(configuration.join("rivulet").join(FILE_NAME))
}

/// The token for a server. A file that cannot be read has none.
pub(super) fn token(server: &str) -> Option<String> {
    read(&path()?).ok()?.remove(server.trim_end_matches('/'))
}

/// Remembers the token for a server, or forgets it. Returns whether there was one.
pub(super) fn set_token(path: &Path, server: &str, token: Option<&str>) -> io::Result<bool> {
    let mut tokens = read(path)?;
    let server = server.trim_end_matches('/');
    let before = match token {
        Some(token) => tokens.insert(server.to_owned(), token.to_owned()),
        None => tokens.remove(server),
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Another name first: a command that reads meanwhile sees a whole file.
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().create_new(true).write(true).mode(OWNER_ONLY).open(&new)?;
    file.write_all(&serde_json::to_vec_pretty(&tokens).map_err(io::Error::from)?)?;
    fs::rename(&new, path)?;
    Ok(before.is_some())
}

fn read(path: &Path) -> io::Result<BTreeMap<String, String>> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_remembered_for_its_server_and_for_its_user() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rivulet").join(FILE_NAME);
        assert!(!set_token(&path, "http://a:1/", Some("one")).expect("a file"));
        assert!(!set_token(&path, "http://b:1", Some("two")).expect("a file"));
        assert!(set_token(&path, "http://a:1", Some("three")).expect("a file"));
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        let tokens = read(&path).expect("tokens");
        assert_eq!((tokens["http://a:1"].as_str(), tokens["http://b:1"].as_str()), ("three", "two"));
        assert!(set_token(&path, "http://a:1", None).expect("a file"));
        assert!(!read(&path).expect("tokens").contains_key("http://a:1"));
    }
}
