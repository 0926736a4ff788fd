//! Whether the configured place has the checkpoints of this catalog. Where it has none, or those of another catalog,
//! queries would begin with empty state, and no user would know. So a server does not start then, unless it is told to.
//!
//! The place has a mark of its server ([`Owner`]), and the catalog records its last place. Each has a generation that
//! grows when the place changes. So the server can tell apart: its last place, the same place under another name
//! because all of it was moved there, an earlier copy, an empty place, and a place of another server.
//!
//! What must hold: the mark is written before the catalog records it, so that a crash between the two looks like a
//! place that was moved.

use std::path::{self, Path};

use rivulet_sql::Statement;
use rivulet_storage::{Epochs, Owner, Place, Store};

use super::CHECKPOINTS;
use super::lines::{self, query_of, refused};
use crate::catalog::{Catalog, CatalogError, CheckpointPlace};
use crate::service::{ErrorKind, ServiceError};

/// The checkpoints of a catalog, found at their place.
#[derive(Debug)]
pub(crate) struct Home {
    owner: Owner,
    place: String,
    /// Marks of servers that have marked the place and saved nothing there.
    strangers: Vec<Owner>,
    /// Whether the mark and the catalog say so already.
    is_noted: bool,
}

/// Checks whether a store, opened at this place, has the checkpoints of a catalog. The store is `None` for a folder
/// that does not exist, which has nothing. `usual` is the place where versions that did not record it had their
/// checkpoints, unless they were configured otherwise. An empty place is right for a catalog without queries, and for
/// others if `accepts_empty`.
///
/// # Errors
/// The place does not have them; the hint says what to do. Nothing was changed.
pub(crate) fn find(
    (store, place): (Option<&Store>, &Place),
    catalog: &Catalog,
    usual: &Path,
    accepts_empty: bool,
) -> Result<Home, ServiceError> {
    let server = catalog.server_id()?;
    let noted = catalog.checkpoint_place()?;
    let place = name_of(place);
    let marks = store.map_or(Ok(Vec::new()), Owner::of);
    let marks = marks.map_err(|error| refused("the checkpoints cannot be read", &error))?;
    let has_epochs = || store.map_or(Ok(false), has_epochs);
    let (own, strangers): (Vec<Owner>, Vec<Owner>) = marks.into_iter().partition(|mark| mark.server == server);
    if let Some(other) = strangers.first().filter(|_| own.is_empty())
        && has_epochs()?
    {
        return Err(of_another(&place, &format!("the server {:016x}, and this one is {server:016x}", other.server)));
    }
    let mark = own.iter().map(|mark| mark.generation).max();
    let has_strangers = !strangers.is_empty();
    let at = |generation| {
        let owner = Owner { server, generation };
        Home { owner, place: place.clone(), strangers: strangers.clone(), is_noted: false }
    };
    match (noted, mark) {
        // Earlier versions made no marks.
        (None, None) => {
            let was_usual = || place != name_of(&Place::Folder(usual.to_owned())) && folder_has_epochs(usual);
            if !has_epochs()? && !accepts_empty && was_usual() && has_queries(catalog)? {
                return Err(empty(&place, &name_of(&Place::Folder(usual.to_owned()))));
            }
            Ok(at(1))
        }
        (None, Some(generation)) => Ok(at(generation)),
        (Some(noted), Some(generation)) if generation >= noted.generation => {
            let is_noted = !has_strangers && noted == CheckpointPlace { generation, place: place.clone() };
            // A copy that stays elsewhere counts as an earlier one from now on.
            let generation = if noted.place == place { generation } else { generation + 1 };
            Ok(Home { is_noted, ..at(generation) })
        }
        (Some(noted), Some(_)) => match has_queries(catalog)? {
            true => Err(earlier(&place, &noted.place)),
            false => Ok(at(noted.generation + 1)),
        },
        (Some(noted), None) if has_epochs()? => match noted.place == place {
            true => Ok(at(noted.generation)),
            false => Err(of_another(
                &place,
                &format!("nobody knows whom: those of this server were last in {}", noted.place),
            )),
        },
        (Some(noted), None) => match !accepts_empty && has_queries(catalog)? {
            true => Err(empty(&place, &noted.place)),
            false => Ok(at(noted.generation + 1)),
        },
    }
}

/// The error with which a server would refuse the place of checkpoints at its start; `None` if it would start.
pub(crate) fn refusal_of_place(folder: &Path, checkpoints: &Place, catalog: &Catalog) -> Option<ServiceError> {
    let store = match checkpoints {
        // Opening it would make the folder.
        Place::Folder(folder) if !folder.is_dir() => None,
        // If it cannot be opened, that is reported when the checkpoints are examined.
        place => Some(Store::open(place).ok()?),
    };
    find((store.as_ref(), checkpoints), catalog, &folder.join(CHECKPOINTS), false).err()
}

impl Home {
    /// Records it in both.
    ///
    /// # Errors
    /// One of them cannot be written.
    pub(crate) fn note(&self, store: &Store, catalog: &Catalog) -> Result<(), ServiceError> {
        if self.is_noted {
            return Ok(());
        }
        let strangers = || self.strangers.iter().try_for_each(|stranger| stranger.unmark(store));
        let marked = self.owner.mark(store).and_then(|()| strangers());
        marked.map_err(|error| refused("whose checkpoints these are cannot be written", &error))?;
        let place = CheckpointPlace { generation: self.owner.generation, place: self.place.clone() };
        Ok(catalog.set_checkpoint_place(&place)?)
    }
}

/// The name of a place, the same wherever the server is started.
fn name_of(place: &Place) -> String {
    match place {
        Place::Folder(folder) => path::absolute(folder).as_deref().unwrap_or(folder).display().to_string(),
        Place::S3(_) => place.to_string(),
    }
}

/// Whether there is any checkpoint of a server. Only committed epochs count, and only under the names that a server
/// gives: the folder may have files of other programs.
pub(crate) fn has_epochs(store: &Store) -> Result<bool, ServiceError> {
    let names = store.names().map_err(|error| refused("the checkpoints cannot be read", &error))?;
    let is_ours = |line| line == lines::APPLICATIONS || line == lines::CATALOG || query_of(line).is_some();
    Ok(names.iter().any(|(name, _)| Epochs::line_of(name).is_some_and(is_ours)))
}

/// The same of a folder. The folder is not made for that.
fn folder_has_epochs(folder: &Path) -> bool {
    folder.is_dir() && Store::folder(folder).is_ok_and(|store| has_epochs(&store).unwrap_or(false))
}

/// Whether a catalog has anything that has state.
fn has_queries(catalog: &Catalog) -> Result<bool, CatalogError> {
    let is_query = |sql: &str| match rivulet_sql::parse_stored(sql) {
        Ok(stored) => matches!(stored.statement, Statement::CreateBigQuery { .. }),
        // The catalog may be one of a later version.
        Err(_) => true,
    };
    Ok(catalog.queries_count()? > 0 || catalog.statements()?.iter().any(|stored| is_query(&stored.sql)))
}

fn of_another(place: &str, whom: &str) -> ServiceError {
    let message = format!("the checkpoints in {place} do not belong to this data folder, but to {whom}");
    ServiceError::new(ErrorKind::Conflict, message).with_hint(
        "give each server a folder or a prefix of its own with checkpoint.folder; if it is the data folder that is the wrong one, set data_dir",
    )
}

const TO_BEGIN_EMPTY: &str = "start once with `rivulet serve --accept-empty-checkpoints`";

fn empty(place: &str, before: &str) -> ServiceError {
    if place == before {
        let message = format!("the checkpoints of this server, which were in {place}, are not there any more");
        return ServiceError::new(ErrorKind::Conflict, message).with_hint(format!(
            "look whether the disk is mounted, and put them back; to begin with empty state, {TO_BEGIN_EMPTY}"
        ));
    }
    let message = format!("there are no checkpoints in {place}: those of this server were last in {before}");
    ServiceError::new(ErrorKind::Conflict, message).with_hint(format!(
        "set checkpoint.folder back, or move all that is in {before} to {place}; to begin with empty state, {TO_BEGIN_EMPTY}"
    ))
}

fn earlier(place: &str, before: &str) -> ServiceError {
    let message = format!("{place} has an earlier copy of the checkpoints of this server, which were last in {before}");
    ServiceError::new(ErrorKind::Conflict, message).with_hint(format!(
        "set checkpoint.folder back; or empty {place} and move all that is in {before} there; to begin with empty state, empty it and {TO_BEGIN_EMPTY}"
    ))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;
    use crate::service::Tenant;

    /// A catalog, and folders in which its checkpoints may be.
    struct World {
        folder: TempDir,
        catalog: Catalog,
    }

    impl World {
        fn new() -> Self {
            let folder = TempDir::new().expect("a folder");
            Self { folder, catalog: Catalog::in_memory().expect("memory") }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn find(&self, name: &str, accepts_empty: bool) -> Result<(), ServiceError> {
            let path = self.path(name);
            let store = Store::folder(&path).expect("a folder");
            let found = find((Some(&store), &Place::Folder(path)), &self.catalog, &self.path("usual"), accepts_empty)?;
            found.note(&store, &self.catalog)
        }

        /// Starts at this place, or returns why it cannot.
        fn start(&self, name: &str) -> Result<(), String> {
            self.find(name, false).map_err(|error| format!("{}; {}", error.message, error.hint.expect("a hint")))
        }

        fn add_query(&self) {
            self.catalog
                .insert_statement(&Tenant::default(), "CREATE QUERY q AS SELECT n FROM numbers INTO copies")
                .expect("it is stored");
        }

        fn add_manifest(&self, folder: &str) {
            let folder = self.path(folder);
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(folder.join("000000000001.manifest"), "{}").expect("written");
        }

        fn rename(&self, from: &str, to: &str) {
            std::fs::rename(self.path(from), self.path(to)).expect("it is moved");
        }

        fn copy(&self, from: &str, to: &str) {
            for entry in std::fs::read_dir(self.path(from).join("owner")).expect("marks") {
                let entry = entry.expect("a mark");
                std::fs::create_dir_all(self.path(to).join("owner")).expect("a folder");
                std::fs::copy(entry.path(), self.path(to).join("owner").join(entry.file_name())).expect("copied");
            }
        }
    }

    #[test]
    fn a_place_that_is_empty_is_refused_where_there_are_queries() {
        let world = World::new();
        for place in ["one", "one", "two", "one"] {
            assert_eq!(world.start(place), Ok(()), "no state, nothing lost");
        }
        world.add_query();
        assert_eq!(world.start("one"), Ok(()));
        let refused = world.start("three").expect_err("it is empty");
        for words in ["/three", "were last in", "/one", "--accept-empty-checkpoints"] {
            assert!(refused.contains(words), "{refused}");
        }
        assert_eq!(world.start("one"), Ok(()), "set back");
        assert_eq!(world.find("three", true), Ok(()), "as it was asked for");
        assert_eq!(world.start("three"), Ok(()), "and no more");
        let refused = world.start("one").expect_err("what was there is older");
        assert!(refused.contains("an earlier copy") && refused.contains("/three"), "{refused}");
        assert!(world.find("one", true).is_err(), "state of then is no empty state");
        world.rename("three", "gone");
        let place = Place::Folder(world.path("three"));
        let refused = find((None, &place), &world.catalog, &world.path("usual"), false).expect_err("gone").message;
        assert!(refused.contains("not there any more"), "before the folder is made: {refused}");
        assert!(world.start("three").expect_err("gone").contains("not there any more"));
    }

    #[test]
    fn what_was_moved_is_found_and_a_copy_that_stayed_is_not_taken_for_it() {
        let world = World::new();
        world.add_query();
        assert_eq!(world.start("one"), Ok(()));
        world.rename("one", "two");
        assert_eq!(world.start("two"), Ok(()), "moved");
        world.copy("two", "three");
        assert_eq!(world.start("three"), Ok(()), "copied");
        assert!(world.start("two").expect_err("it stayed").contains("an earlier copy"));
        assert_eq!(world.start("three"), Ok(()));
    }

    #[test]
    fn checkpoints_of_another_server_are_refused_and_a_place_where_it_has_none_is_free() {
        let (world, other) = (World::new(), World::new());
        assert_eq!(world.start("one"), Ok(()));
        let store = Store::folder(&world.path("one")).expect("a folder");
        let place = Place::Folder(world.path("one"));
        let find = |catalog: &Catalog, accepts_empty| {
            find((Some(&store), &place), catalog, &other.path("usual"), accepts_empty)
        };
        // A file without the name of an epoch is not one, nor is a file in a folder that no server has.
        std::fs::create_dir(world.path("one/applications")).expect("a folder");
        std::fs::write(world.path("one/applications/x.manifest"), "{}").expect("written");
        world.add_manifest("one/mine");
        find(&other.catalog, false).expect("nothing was saved there").note(&store, &other.catalog).expect("noted");
        assert_eq!(Owner::of(&store).expect("read").len(), 1, "it belongs to one");
        world.add_manifest("one/applications");
        assert!(find(&other.catalog, false).is_ok());
        for accepts_empty in [false, true] {
            let refused = find(&world.catalog, accepts_empty).expect_err("they are another's").message;
            assert!(refused.contains("do not belong to this data folder"), "{refused}");
        }
    }

    #[test]
    fn what_versions_before_have_left_goes_on() {
        let world = World::new();
        world.add_query();
        world.add_manifest("usual/applications");
        assert!(world.start("new").expect_err("it was never there").contains("/usual"));
        assert_eq!(world.start("usual"), Ok(()));
        assert!(!Owner::of(&Store::folder(&world.path("usual")).expect("a folder")).expect("read").is_empty());
    }
}
