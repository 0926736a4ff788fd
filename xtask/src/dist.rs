//! `cargo xtask dist`: what people install, in `target/dist`: a release archive, a Debian package, what an image of a
//! container is built from, and their checksums.
//!
//! The program is built with the profile `dist`, which optimises across all crates. What must hold: one program and one
//! commit give the same bytes. So files stand in the order of their names, have the time of the commit and belong to
//! root. The files that go along are in `packaging/`.

mod debian;
mod image;
mod manual;
#[cfg(test)]
mod tests;
mod trial;

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::{built_program, root, which};

const USAGE: &str = "hint: cargo xtask dist [--try] [--program FILE]";

pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    let (mut tries, mut program) = (false, None);
    let mut arguments = arguments.iter();
    while let Some(&argument) = arguments.next() {
        match argument {
            "--try" => tries = true,
            "--program" => {
                let file = arguments.next().ok_or_else(|| format!("--program needs a file\n{USAGE}"))?;
                program = Some(PathBuf::from(file));
            }
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(());
            }
            other => return Err(format!("there is no option {other}\n{USAGE}")),
        }
    }
    let program = program.map_or_else(|| built_program("dist"), Ok)?;
    let release = Release::new(&program, &root().join("target/dist"))?;
    let package = release.make()?;
    if tries {
        trial::of_archive(&release)?;
        package.as_deref().map_or(Ok(()), trial::of_package)?;
    }
    image::build(&release, tries)
}

/// What is released, and where it goes.
struct Release {
    version: String,
    /// What all files have as their time.
    time: SystemTime,
    program: Vec<u8>,
    /// What completes commands in a shell, by where Debian keeps it.
    completions: [(&'static str, Vec<u8>); 3],
    out: PathBuf,
}

impl Release {
    fn new(program: &Path, out: &Path) -> Result<Self, String> {
        for tool in ["tar", "gzip", "sha256sum"] {
            which(tool).ok_or_else(|| format!("{tool} is missing\nhint: apt-get install tar gzip coreutils"))?;
        }
        let manifest = read(&root().join("Cargo.toml"))?;
        let manifest = String::from_utf8_lossy(&manifest).into_owned();
        let version = manifest.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
        let completions = |shell| said(Command::new(program).args(["completions", shell]));
        Ok(Self {
            version: version.ok_or("Cargo.toml has no version")?.to_owned(),
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(time_s()?),
            completions: [
                ("bash-completion/completions/rivulet", completions("bash")?),
                ("zsh/vendor-completions/_rivulet", completions("zsh")?),
                ("fish/vendor_completions.d/rivulet.fish", completions("fish")?),
            ],
            program: read(program)?,
            out: out.to_owned(),
        })
    }

    /// What the archive and the folder in it are called.
    fn name(&self) -> String {
        format!("rivulet-{}-{}-{}", self.version, std::env::consts::ARCH, std::env::consts::OS)
    }

    /// Makes everything anew. Returns the Debian package, if the machine can make one.
    fn make(&self) -> Result<Option<PathBuf>, String> {
        remove(&self.out)?;
        fs::create_dir_all(&self.out).map_err(|error| in_file(&self.out, &error))?;
        self.make_archive()?;
        let package = match which("dpkg-deb") {
            Some(_) => Some(debian::make(self)?),
            None => {
                eprintln!("NOT MADE: the Debian package, because dpkg-deb is missing\nhint: apt-get install dpkg");
                None
            }
        };
        let file = self.out.join("Containerfile");
        fs::write(&file, packaged("Containerfile")?).map_err(|error| in_file(&file, &error))?;
        let mut names: Vec<String> = Vec::new();
        for entry in fs::read_dir(&self.out).map_err(|error| in_file(&self.out, &error))?.flatten() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        let sums = said(Command::new("sha256sum").args(&names).current_dir(&self.out))?;
        let file = self.out.join("SHA256SUMS");
        fs::write(&file, &sums).map_err(|error| in_file(&file, &error))?;
        for name in names {
            let bytes = fs::metadata(self.out.join(&name)).map_or(0, |file| file.len());
            eprintln!("{bytes:>11} bytes  {}", self.out.join(name).display());
        }
        Ok(package)
    }

    fn make_archive(&self) -> Result<(), String> {
        let name = self.name();
        let tree = Tree::new(self.out.join("tree"))?;
        let add = |path: &str, mode, content: &[u8]| tree.add(&format!("{name}/{path}"), mode, content);
        add("rivulet", 0o755, &self.program)?;
        for page in ["LICENSE", "README.md", "CHANGELOG.md"] {
            add(page, 0o644, &read(&root().join(page))?)?;
        }
        add("rivulet.1", 0o644, manual::page(&self.version)?.as_bytes())?;
        for (path, script) in &self.completions {
            add(&format!("completions/{}", path.rsplit_once('/').map_or(*path, |(_, name)| name)), 0o644, script)?;
        }
        for file in ["rivulet.service", "rivulet.toml"] {
            add(&format!("systemd/{file}"), 0o644, &packaged(file)?)?;
        }
        for (path, content) in examples()? {
            add(&path, 0o644, &content)?;
        }
        tree.finish(self.time)?;
        let file = self.out.join(format!("{name}.tar.gz"));
        let mut tar = Command::new("tar");
        tar.args(["--create", "--format=gnu", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
        // Without its own name and time in it.
        tar.args(["--use-compress-program", "gzip -n"]);
        tar.arg("--file").arg(&file).arg("--directory").arg(&tree.0).arg(&name);
        said(&mut tar)?;
        tree.remove()
    }
}

/// A folder that is packed.
struct Tree(PathBuf);

impl Tree {
    fn new(folder: PathBuf) -> Result<Self, String> {
        fs::create_dir_all(&folder).map_err(|error| in_file(&folder, &error))?;
        Ok(Self(folder))
    }

    /// Adds a file, and the folders it is in.
    fn add(&self, path: &str, mode: u32, content: &[u8]) -> Result<(), String> {
        let file = self.0.join(path);
        let folders = file.parent().map_or(Ok(()), fs::create_dir_all);
        let written = folders.and_then(|()| fs::write(&file, content));
        written
            .and_then(|()| fs::set_permissions(&file, Permissions::from_mode(mode)))
            .map_err(|error| in_file(&file, &error))
    }

    /// Gives all folders the same mode, and everything the same time: whoever packs may have another umask.
    fn finish(&self, time: SystemTime) -> Result<(), String> {
        fn finish(path: &Path, time: SystemTime) -> io::Result<()> {
            if path.is_dir() {
                for entry in fs::read_dir(path)? {
                    finish(&entry?.path(), time)?;
                }
                fs::set_permissions(path, Permissions::from_mode(0o755))?;
            }
            File::open(path)?.set_modified(time)
        }
        finish(&self.0, time).map_err(|error| in_file(&self.0, &error))
    }

    fn remove(self) -> Result<(), String> {
        remove(&self.0)
    }
}

/// The time of the commit, or what `SOURCE_DATE_EPOCH` says, in seconds since 1970.
fn time_s() -> Result<u64, String> {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let text = match given {
        Some(text) => text,
        None => text_said(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root()))?,
    };
    text.trim().parse().map_err(|_| format!("SOURCE_DATE_EPOCH is {text:?}, which is no number of seconds"))
}

/// The files in `examples/` that git knows, by their paths.
fn examples() -> Result<Vec<(String, Vec<u8>)>, String> {
    let listed = text_said(Command::new("git").args(["ls-files", "examples"]).current_dir(root()))?;
    listed.lines().map(|path| Ok((path.to_owned(), read(&root().join(path))?))).collect()
}

/// A file of `packaging/`.
fn packaged(name: &str) -> Result<Vec<u8>, String> {
    read(&root().join("packaging").join(name))
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| in_file(file, &error))
}

fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(in_file(folder, &error)),
        _ => Ok(()),
    }
}

fn in_file(file: &Path, error: &io::Error) -> String {
    format!("{}: {error}", file.display())
}

/// What a program writes to its standard output.
fn said(command: &mut Command) -> Result<Vec<u8>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("{name} could not be started: {error}"))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => {
            let errors = String::from_utf8_lossy(&output.stderr);
            Err(format!("`{command:?}` failed ({}): {}", output.status, errors.trim_end()))
        }
    }
}

fn text_said(command: &mut Command) -> Result<String, String> {
    said(command).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A folder that is removed at the end.
pub(crate) struct TemporaryFolder(pub(crate) PathBuf);

impl TemporaryFolder {
    pub(crate) fn new(purpose: &str) -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("rivulet-{purpose}-{}", std::process::id()));
        remove(&folder)?;
        fs::create_dir_all(&folder).map_err(|error| in_file(&folder, &error))?;
        Ok(Self(folder))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
