//! The code blocks of the README and of the book are run, in their order on each page, and give what the page shows.
//!
//! The words behind the fence say how:
//!
//! - `sql`: on a server that the page has for itself, by `rivulet sql`;
//! - `sql,run`: by `rivulet run`, behind the blocks of this kind before it that only create something; `sql,alone`: for
//!   itself;
//! - `sh`: by bash, where `rivulet` and the clients of Mosquitto speak to the page's server;
//! - `sh,background`: a command that stays, and `text,background`: what the last one of these has printed so far;
//! - `sh,serve`: starts a server, as the page's is started; `sh,build`: needs a compiler, so it is only shown;
//! - `...,wrong`: fails, with the error as its output;
//! - `toml`: read as configuration; `json`: read;
//! - `text,output`: what the block before it prints; `...` stands for any text, and a line of it for any lines;
//! - `text`: not run.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rivulet_testing::page::root;
use tempfile::TempDir;

use crate::server::{Server, free_port, rivulet, said, wait_for};

/// How long the output of a command in the background is waited for.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// A block of code.
#[derive(Debug)]
struct Block {
    /// The words behind the fence.
    kind: String,
    text: String,
    /// Of its fence, from 1.
    line: usize,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (number, line) in page.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), is_open) {
            (Some(kind), false) => {
                found.push(Block { kind: kind.to_owned(), text: String::new(), line: number + 1 });
                is_open = true;
            }
            (Some(_), true) => is_open = false,
            (None, true) => {
                let text = &mut found.last_mut().expect("it was opened").text;
                let _ = writeln!(text, "{line}");
            }
            (None, false) => {}
        }
    }
    assert!(!is_open, "a block of code has no end");
    found
}

/// Whether a text is as is shown, where `...` stands for any text and a line of it for any lines.
fn is_as_shown(shown: &[&str], text: &[&str]) -> bool {
    match (shown.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((&"...", rest)), _) => (0..=text.len()).any(|skipped| is_as_shown(rest, &text[skipped..])),
        (Some((line, shown)), Some((first, text))) => is_line_as_shown(line, first) && is_as_shown(shown, text),
        _ => false,
    }
}

fn is_line_as_shown(shown: &str, line: &str) -> bool {
    let mut parts = shown.trim_end().split("...");
    let Some(mut rest) = parts.next().and_then(|begin| line.trim_end().strip_prefix(begin)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.split_once(part) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// A page while it is run.
struct Page {
    /// With the program and the clients of Mosquitto as its commands see them, and a copy of the data.
    folder: TempDir,
    server: Server,
    /// The blocks `sql,run` that only create something.
    created: String,
    background: Vec<Background>,
}

/// A command that stays.
struct Background {
    child: Child,
    output: PathBuf,
}

impl Background {
    fn all(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// What it printed, without what a client says of its connection.
    fn printed(&self) -> String {
        let is_said = |line: &&str| line.starts_with("Client ") || line.starts_with("Subscribed (");
        let all = self.all();
        all.lines().filter(|line| !is_said(line)).map(|line| format!("{line}\n")).collect()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Page {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        copy(&root().join("docs/data"), &folder.path().join("data"));
        copy(&root().join("examples"), &folder.path().join("examples"));
        let mqtt = free_port();
        let settings = [
            ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
            ("RIVULET_DATA_DIR", folder.path().join("rivulet-data").display().to_string()),
        ];
        let server = Server::spawn(folder.path(), mqtt, &settings);
        server.wait_until_ready();
        let commands = folder.path().join("commands");
        std::fs::create_dir(&commands).expect("a folder");
        let program = rivulet().get_program().to_string_lossy().into_owned();
        write_command(&commands.join("rivulet"), &format!("exec '{program}' \"$@\""));
        // With `-d` a subscriber says when it has subscribed, at once line by line; `printed` leaves that out.
        for (client, by, more) in [("mosquitto_pub", "", ""), ("mosquitto_sub", "stdbuf -oL ", "-d ")] {
            let ending = format!("exec {by}/usr/bin/{client} {more}-p {} \"$@\"", mqtt.port());
            write_command(&commands.join(client), &ending);
        }
        Self { folder, server, created: String::new(), background: Vec::new() }
    }

    /// Commands as bash runs them, for a minute at most unless they are to stay.
    fn bash(&self, text: &str, stays: bool) -> Command {
        let address = self.server.url().trim_start_matches("http://").to_owned();
        let commands = self.folder.path().join("commands");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut bash = Command::new(if stays { "bash" } else { "timeout" });
        if !stays {
            bash.args(["60", "bash"]);
        }
        bash.args(["-e", "-u", "-o", "pipefail", "-c", &text.replace("127.0.0.1:8080", &address)]);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RIVULET_")) {
            bash.env_remove(name);
        }
        bash.current_dir(self.folder.path()).stdin(Stdio::null());
        bash.env("PATH", format!("{}:{path}", commands.display())).env("RIVULET_SERVER", self.server.url());
        bash
    }

    /// Runs a block; its output if it ran to its end.
    fn run(&mut self, block: &Block) -> Result<Option<String>, String> {
        let (kind, is_wrong) = match block.kind.strip_suffix(",wrong") {
            Some(kind) => (kind, true),
            None => (block.kind.as_str(), false),
        };
        let mut command = match kind {
            "sql" => {
                let mut command = rivulet();
                command.args(["sql", "-c", &block.text]).env("RIVULET_SERVER", self.server.url());
                command
            }
            "sql,run" => {
                let is_created = ["SELECT", "WITH", "EXPLAIN", "INSERT"]
                    .iter()
                    .all(|word| !block.text.lines().any(|line| line.starts_with(word)));
                if is_created {
                    self.created.push_str(&block.text);
                    return Ok(None);
                }
                let mut command = rivulet();
                command.args(["run", "-q", "-c", &format!("{}{}", self.created, block.text)]);
                command
            }
            "sql,alone" => {
                let mut command = rivulet();
                command.args(["run", "-q", "-c", &block.text]);
                command
            }
            "sh" => self.bash(&format!("exec 2>&1\n{}", block.text), false),
            "sh,background" => {
                let output = self.folder.path().join(format!("output-{}", block.line));
                let file = std::fs::File::create(&output).map_err(|error| error.to_string())?;
                let mut command = self.bash(&format!("exec {}", block.text), true);
                command.stdout(file.try_clone().map_err(|error| error.to_string())?).stderr(file);
                let child = command.spawn().map_err(|error| error.to_string())?;
                let command = Background { child, output };
                // It has to listen before the page goes on.
                if block.text.starts_with("mosquitto_sub") {
                    wait_for(WAIT_MAX, "a subscription", || command.all().contains("Subscribed ("));
                } else {
                    std::thread::sleep(Duration::from_secs(2));
                }
                self.background.push(command);
                return Ok(None);
            }
            "sh,serve" if block.text.trim_start().starts_with("rivulet serve") => return Ok(None),
            "sh,build" if block.text.lines().all(|line| line.starts_with("cargo ")) => return Ok(None),
            "toml" => return self.configuration(&block.text).map(|()| None),
            "json" => {
                let mut values = serde_json::Deserializer::from_str(&block.text).into_iter::<serde_json::Value>();
                return match values.find_map(Result::err) {
                    Some(error) => Err(error.to_string()),
                    None => Ok(None),
                };
            }
            "text,background" => return self.wait_for(&block.text).map(|()| None),
            "text" => return Ok(None),
            other => return Err(format!("`{other}` is no kind of block")),
        };
        let output = command.current_dir(self.folder.path()).output().map_err(|error| error.to_string())?;
        let text =
            if is_wrong || kind == "sql" { said(&output) } else { String::from_utf8_lossy(&output.stdout).into() };
        match output.status.success() == is_wrong {
            true => Err(said(&output)),
            false => Ok(Some(text)),
        }
    }

    /// Reads a configuration, with files that it names made here.
    fn configuration(&self, text: &str) -> Result<(), String> {
        let secret = self.folder.path().join("secret");
        std::fs::write(&secret, "rose").map_err(|error| error.to_string())?;
        let mut written = String::new();
        for line in text.lines() {
            match line.split_once("_file = ") {
                Some((name, _)) => _ = writeln!(written, "{name}_file = \"{}\"", secret.display()),
                None => _ = writeln!(written, "{line}"),
            }
        }
        let file = self.folder.path().join("rivulet.toml");
        std::fs::write(&file, written).map_err(|error| error.to_string())?;
        let output = rivulet().arg("config").current_dir(self.folder.path()).output();
        std::fs::remove_file(&file).map_err(|error| error.to_string())?;
        let output = output.map_err(|error| error.to_string())?;
        if output.status.success() { Ok(()) } else { Err(said(&output)) }
    }

    /// Waits until the last command in the background has printed what is shown.
    fn wait_for(&self, shown: &str) -> Result<(), String> {
        let command = self.background.last().ok_or("no command runs in the background")?;
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let output = command.printed();
            if is_as_shown(&shown.lines().collect::<Vec<_>>(), &output.lines().collect::<Vec<_>>()) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("the command in the background printed\n{output}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn write_command(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("a file");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a file that can be run");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, target).expect("a copy");
        }
    }
}

/// Runs a page; what is wrong with it.
fn run(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let blocks = blocks(&text);
    if blocks.iter().all(|block| block.kind == "text") {
        return Vec::new();
    }
    let needs_clients = blocks.iter().any(|block| block.text.contains("mosquitto_"));
    if needs_clients && !Path::new("/usr/bin/mosquitto_pub").exists() {
        // Past the capture of the output of tests.
        _ = std::io::Write::write_all(&mut std::io::stderr(), b"skipped: mosquitto-clients are not installed\n");
        return Vec::new();
    }
    let mut page = Page::new();
    let mut problems = Vec::new();
    let mut printed = None;
    for block in &blocks {
        let at = format!("{}, line {}", path.display(), block.line);
        if block.kind == "text,output" {
            let output: String = printed.take().unwrap_or_default();
            if !is_as_shown(&block.text.lines().collect::<Vec<_>>(), &output.lines().collect::<Vec<_>>()) {
                problems.push(format!("{at}: the block before it printed\n{output}"));
            }
            continue;
        }
        printed = match page.run(block) {
            Ok(output) => output,
            Err(error) => {
                problems.push(format!("{at}: {error}"));
                None
            }
        };
    }
    problems
}

/// The README and all pages of the book.
fn pages() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn code_blocks_of_the_book_run_and_print_what_is_shown() {
    let wanted = std::env::var("RIVULET_PAGE").unwrap_or_default();
    let pages: Vec<PathBuf> = pages().into_iter().filter(|path| path.to_string_lossy().contains(&wanted)).collect();
    let (next, problems) = (std::sync::atomic::AtomicUsize::new(0), parking_lot::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(path) = pages.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    problems.lock().extend(run(path));
                }
            });
        }
    });
    let problems = problems.into_inner();
    assert!(problems.is_empty(), "{} problems:\n\n{}", problems.len(), problems.join("\n\n"));
}

#[test]
fn three_dots_stand_for_anything() {
    let is =
        |shown: &str, text: &str| is_as_shown(&shown.lines().collect::<Vec<_>>(), &text.lines().collect::<Vec<_>>());
    assert!(is("a\nb 1...9 c", "a\nb 1 to 9 c"));
    assert!(is("a\n...\nd", "a\nb\nc\nd") && is("a\n...", "a"));
    assert!(!is("a", "a\nb") && !is("a ...c", "a b") && !is("a", "ab"));
}
