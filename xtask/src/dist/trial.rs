//! `cargo xtask dist --try`: what was made is installed and used, as its users do.
//!
//! The archive is unpacked, and the demo runs. The package is installed by dpkg into a folder that has nothing but what
//! the package depends on, and a server is started there as its unit says.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Release, TemporaryFolder, in_file, read, said, text_said};
use crate::which;

/// How long a step of the server may take.
const WAIT_MAX: Duration = Duration::from_secs(90);

/// What the scripts of the package call, and what is looked at afterwards.
const PROGRAMS: [&str; 6] = ["sh", "getent", "useradd", "install", "chown", "chmod"];

/// Checks sums, unpacks the archive and runs the demo.
pub(super) fn of_archive(release: &Release) -> Result<(), String> {
    said(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&release.out))?;
    let folder = TemporaryFolder::new("dist-archive")?;
    let name = release.name();
    let archive = release.out.join(format!("{name}.tar.gz"));
    said(Command::new("tar").arg("--extract").arg("--file").arg(archive).arg("--directory").arg(&folder.0))?;
    let unpacked = folder.0.join(&name);
    let program = unpacked.join("rivulet");
    let version = text_said(Command::new(&program).arg("--version"))?;
    if version.trim() != format!("rivulet {}", release.version) {
        return Err(format!("the program in the archive is {version}"));
    }
    said(Command::new("bash").args(["-n", "completions/rivulet"]).current_dir(&unpacked))?;
    let demo = ["demo", "--queries", "1000", "--duration", "3s", "--json"];
    check_demo(&text_said(Command::new(&program).args(demo).current_dir(&unpacked))?)?;
    eprintln!("tried: the archive, with its demo");
    Ok(())
}

/// The demo's report says that events were processed and none was refused.
pub(super) fn check_demo(report: &str) -> Result<(), String> {
    let number = |key: &str| {
        let rest = report.split_once(&format!("\"{key}\":"))?.1;
        rest.split(|one: char| !one.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    match (number("events_processed"), number("events_refused")) {
        (Some(1..), Some(0)) => Ok(()),
        _ => Err(format!("the demo did not work: {report}")),
    }
}

/// Installs the package into a clean root, starts its server, changes its log level, and removes it.
pub(super) fn of_package(package: &Path) -> Result<(), String> {
    if text_said(Command::new("id").arg("--user"))?.trim() != "0" {
        return Err("the package can be tried by root only: dpkg makes a user, and the server runs as that\n\
                    hint: run it in a container, or build first and then `sudo target/release/xtask dist --try \
                    --program target/release/rivulet`"
            .into());
    }
    let folder = TemporaryFolder::new("dist-package")?;
    let root = Root::make(&folder.0.join("root"), package)?;
    let begun = Instant::now();
    root.dpkg(&["--install", &package.display().to_string()])?;
    let unit = String::from_utf8_lossy(&read(&root.0.join("usr/lib/systemd/system/rivulet.service"))?).into_owned();
    let mut server = Server::start(&root, &unit, &folder.0.join("log"))?;
    let url = server.wait_for("ready at ", " ")?;
    let rivulet = |arguments: &[&str]| {
        let mut command = root.command(None);
        text_said(command.arg("/usr/bin/rivulet").args(arguments).args(["--server", &url]))
    };
    rivulet(&["sql", "/usr/share/doc/rivulet/examples/ac_control.sql"])?;
    rivulet(&["sql", "-c", "CREATE QUERY kims_ac FROM APPLICATION ac_control WITH (home => '42', target => 22.5)"])?;
    let status = rivulet(&["status", "--json"])?;
    if !status.contains("\"queries_running\":1") {
        return Err(format!("the query does not run: {status}"));
    }
    eprintln!("tried: the package; {:.1} s from its installation to a running query", begun.elapsed().as_secs_f64());
    server.reload(&root, &unit)?;
    server.stop()?;
    root.dpkg(&["--remove", "rivulet"])?;
    match (root.0.join("usr/bin/rivulet").exists(), root.0.join("var/lib/rivulet/catalog.redb").exists()) {
        (false, true) => Ok(()),
        (program, data) => Err(format!("after the package was removed: program there {program}, data there {data}")),
    }
}

/// A folder that stands for a small Debian.
struct Root(PathBuf);

impl Root {
    /// Makes it of libraries of the packages that this one depends on, and of what its scripts call. dpkg is told that
    /// these packages are installed, so it checks what the package depends on.
    fn make(folder: &Path, package: &Path) -> Result<Self, String> {
        let root = Self(folder.to_owned());
        for name in ["bin", "sbin", "lib", "lib64"] {
            root.folder(&format!("usr/{name}"))?;
            let link = folder.join(name);
            symlink(format!("usr/{name}"), &link).map_err(|error| in_file(&link, &error))?;
        }
        for name in ["dev", "tmp", "etc", "var/lib/dpkg/info", "var/lib/dpkg/updates"] {
            root.folder(name)?;
        }
        let depends = text_said(Command::new("dpkg-deb").arg("--field").arg(package).arg("Depends"))?;
        let depends = depends.split(',').filter_map(|one| one.split_whitespace().next());
        let depends: Vec<&str> = depends.collect();
        let files = text_said(Command::new("dpkg-query").arg("--listfiles").args(&depends))?;
        for path in files.lines().filter(|path| is_library(path)) {
            root.copy(Path::new(path))?;
        }
        for name in PROGRAMS {
            let program = which(name).ok_or_else(|| format!("{name} is missing"))?;
            root.copy(&program)?;
            let libraries = text_said(Command::new("ldd").arg(&program))?;
            for path in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
                root.copy(Path::new(path))?;
            }
        }
        let status = said(Command::new("dpkg-query").arg("--status").args(&depends))?;
        root.write("var/lib/dpkg/status", &status)?;
        root.write("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")?;
        root.write("etc/group", b"root:x:0:\n")?;
        root.write("dev/null", b"")?;
        // Others than root go through it, whatever the umask.
        said(Command::new("chmod").args(["--recursive", "a+rwX"]).arg(folder.join("dev")))?;
        said(Command::new("chmod").args(["--recursive", "a+rX"]).arg(folder))?;
        Ok(root)
    }

    fn folder(&self, name: &str) -> Result<(), String> {
        let folder = self.0.join(name);
        fs::create_dir_all(&folder).map_err(|error| in_file(&folder, &error))
    }

    fn write(&self, path: &str, content: &[u8]) -> Result<(), String> {
        let file = self.0.join(path);
        fs::write(&file, content).map_err(|error| in_file(&file, &error))
    }

    /// Copies a file of this machine to the same place, under its own name and under that to which it links.
    fn copy(&self, file: &Path) -> Result<(), String> {
        let own = fs::canonicalize(file).map_err(|error| in_file(file, &error))?;
        for path in [file, &own] {
            let copy = self.0.join(path.strip_prefix("/").unwrap_or(path));
            let folders = copy.parent().map_or(Ok(()), fs::create_dir_all);
            folders.and_then(|()| fs::copy(&own, &copy)).map_err(|error| in_file(&copy, &error))?;
        }
        Ok(())
    }

    fn dpkg(&self, arguments: &[&str]) -> Result<(), String> {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", self.0.display())).arg("--log=/dev/null").args(arguments);
        let said = text_said(dpkg.env("DEBIAN_FRONTEND", "noninteractive"))?;
        said.lines().for_each(|line| eprintln!("  {line}"));
        Ok(())
    }

    /// A command that runs in it, with no setting of whoever runs this; by a user, or by root.
    fn command(&self, user: Option<&str>) -> Command {
        let mut command = Command::new(which("chroot").unwrap_or_else(|| "chroot".into()));
        if let Some(ids) = user {
            command.arg(format!("--userspec={ids}")).arg("--groups=");
        }
        command.arg(&self.0).env_clear();
        command
    }
}

/// Whether a file of a package is a library that programs load, and no plug-in.
fn is_library(path: &str) -> bool {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    name.contains(".so") && !folder.contains("/gconv") && Path::new(path).is_file()
}

/// A server that runs as the unit says.
struct Server {
    child: Child,
    log: PathBuf,
}

impl Server {
    fn start(root: &Root, unit: &str, log: &Path) -> Result<Self, String> {
        let users = String::from_utf8_lossy(&read(&root.0.join("etc/passwd"))?).into_owned();
        let user = value(unit, "User")?;
        let entry = users.lines().find(|line| line.split(':').next() == Some(user));
        let entry: Vec<&str> = entry.ok_or_else(|| format!("there is no user {user}"))?.split(':').collect();
        let [_, _, uid, gid, ..] = entry.as_slice() else { return Err(format!("the user {user} is not whole")) };
        let file = File::create(log).map_err(|error| in_file(log, &error))?;
        let child = root
            .command(Some(&format!("{uid}:{gid}")))
            .args(value(unit, "ExecStart")?.split_whitespace())
            // Ports that are free, as /etc/default/rivulet could say.
            .env("RIVULET_HTTP_ADDRESS", "127.0.0.1:0")
            .env("RIVULET_MQTT_EMBEDDED_ADDRESS", "127.0.0.1:0")
            .stdin(Stdio::null())
            .stderr(file)
            .spawn()
            .map_err(|error| format!("chroot could not be started: {error}"))?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// Waits for a text in the log. Returns what follows it, up to another one.
    fn wait_for(&mut self, text: &str, end: &str) -> Result<String, String> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let log = String::from_utf8_lossy(&read(&self.log)?).into_owned();
            if let Some((found, _)) = log.split_once(text).and_then(|(_, rest)| rest.split_once(end)) {
                return Ok(found.to_owned());
            }
            let ended = self.child.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || Instant::now() > deadline {
                return Err(format!("the server did not say {text:?} (ended: {ended:?}); its log:\n{log}"));
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// Has it read its configuration again, as `systemctl reload` does.
    fn reload(&mut self, root: &Root, unit: &str) -> Result<(), String> {
        let configured = root.0.join("etc/rivulet/rivulet.toml");
        let text = String::from_utf8_lossy(&read(&configured)?).replace("# level = \"info\"", "level = \"debug\"");
        root.write("etc/rivulet/rivulet.toml", text.as_bytes())?;
        let command = value(unit, "ExecReload")?.replace("$MAINPID", &self.child.id().to_string());
        let mut words = command.split_whitespace();
        said(Command::new(words.next().unwrap_or_default()).args(words))?;
        self.wait_for("log.level is now \"debug\"", "\n").map(drop)
    }

    /// Stops it, as systemd does.
    fn stop(mut self) -> Result<(), String> {
        said(Command::new("kill").arg("-TERM").arg(self.child.id().to_string()))?;
        let deadline = Instant::now() + WAIT_MAX;
        let ended: ExitStatus = loop {
            match self.child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break status,
                None if Instant::now() > deadline => return Err("the server did not stop".into()),
                None => sleep(Duration::from_millis(20)),
            }
        };
        if ended.success() { Ok(()) } else { Err(format!("the server did not stop well ({ended})")) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a unit says.
fn value<'u>(unit: &'u str, key: &str) -> Result<&'u str, String> {
    let found = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    found.ok_or_else(|| format!("the unit has no {key}"))
}
