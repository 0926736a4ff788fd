//! `cargo xtask numa`: the program on an emulated machine with two memory nodes.
//!
//! A Linux kernel is booted in QEMU with two nodes of two cores each, and nothing but our program, the libraries it
//! needs and BusyBox. What the program says about where its workers and tasks stand is compared with what that kernel
//! says about nodes, threads and pages. Emulation without hardware support shows places, not speed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::dist::TemporaryFolder;
use crate::which;

/// How long the machine may take.
const SECONDS_MAX: &str = "600";

/// Where the kernel is, unless it is in `/boot`.
const KERNEL: &str = "RIVULET_NUMA_KERNEL";

const HINT: &str = "\
hint: apt-get install qemu-system-x86 busybox-static linux-image-cloud-amd64; a kernel that is not in /boot is named with \
RIVULET_NUMA_KERNEL=path/to/vmlinuz";

/// What runs on the machine. Each part of the output begins with a line of its own.
const INIT: &str = r#"#!/bin/sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sysfs /sys; $b mount -t devtmpfs dev /dev; $b mount -t tmpfs tmpfs /tmp
cd /tmp
for node in /sys/devices/system/node/node*; do
  echo "NODE ${node##*node} $($b cat $node/cpulist)"
  echo "  distance $($b cat $node/distance), $($b grep MemTotal $node/meminfo)"
done
query="SELECT auction, count(*) AS n FROM bid GROUP BY auction, tumble(date_time, INTERVAL '10 seconds')"
for workers in 2 4; do
  echo "PLACES $workers"
  rivulet run -p $workers -c "CREATE SOURCE bid FROM 'nexmark:bid' WITH (events => 20000); EXPLAIN ANALYZE $query"
  echo "THREADS $workers"
  rivulet run -q -p $workers -c "CREATE SOURCE bid FROM 'nexmark:bid'; CREATE SINK none TO 'blackhole:'; INSERT INTO none $query" &
  $b sleep 8
  for thread in $($b ls /proc/$!/task | $b sort -n); do
    echo "$($b cat /proc/$!/task/$thread/comm) $($b awk '/Cpus_allowed_list/ { print $2 }' /proc/$!/task/$thread/status)"
  done
  echo "PAGES $workers"
  $b awk '/anon=/ { for (i = 1; i <= NF; i++) if (split($i, n, "=") == 2 && n[1] ~ /^N[0-9]+$/) pages[n[1]] += n[2] }
          END { for (node in pages) print substr(node, 2), pages[node] }' /proc/$!/numa_maps
  $b kill -9 $!; wait
done 2>&1
echo END
$b poweroff -f
"#;

/// Boots the machine and checks what it says.
pub(crate) fn run(program: &Path) -> Result<(), String> {
    let missing = |what: &str| format!("{what} is missing, and the machine cannot be emulated\n{HINT}");
    let qemu = which("qemu-system-x86_64").ok_or_else(|| missing("qemu-system-x86_64"))?;
    let busybox = which("busybox").ok_or_else(|| missing("busybox"))?;
    let kernel = kernel().ok_or_else(|| missing("a kernel"))?;
    let folder = TemporaryFolder::new("numa")?;
    let said = boot(&qemu, &kernel, &busybox, program, &folder.0)?;
    println!("{said}");
    let problems = check(&said);
    match problems.is_empty() {
        true => {
            println!("workers, tasks and pages are where they should be");
            Ok(())
        }
        false => Err(problems.join("\n")),
    }
}

fn kernel() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(KERNEL) {
        return Some(path.into());
    }
    let mut kernels: Vec<PathBuf> = fs::read_dir("/boot").ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    kernels.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")));
    kernels.sort();
    kernels.pop()
}

fn boot(qemu: &Path, kernel: &Path, busybox: &Path, program: &Path, folder: &Path) -> Result<String, String> {
    let failed = |error: io::Error| format!("the files of the machine cannot be written: {error}");
    let image = folder.join("initrd");
    let mut archive = Archive(io::BufWriter::new(fs::File::create(&image).map_err(failed)?));
    write_image(&mut archive, busybox, program).map_err(failed)?;
    archive.end().map_err(failed)?;
    eprintln!("+ {} on two nodes of two cores", qemu.display());
    let output = Command::new("timeout")
        .args([SECONDS_MAX.as_ref(), qemu.as_os_str()])
        // The guest hangs where a nested hypervisor pretends to help.
        .args(["-accel", "tcg", "-nographic", "-no-reboot", "-m", "2G", "-smp", "4,sockets=2,cores=2"])
        .args(["-object", "memory-backend-ram,id=m0,size=1G", "-numa", "node,nodeid=0,cpus=0-1,memdev=m0"])
        .args(["-object", "memory-backend-ram,id=m1,size=1G", "-numa", "node,nodeid=1,cpus=2-3,memdev=m1"])
        .args(["-numa", "dist,src=0,dst=1,val=21", "-append", "console=ttyS0 quiet panic=-1"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(&image)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{} could not be started: {error}", qemu.display()))?;
    let said = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    match (said.find("NODE 0"), said.find("\nEND")) {
        (Some(begin), Some(end)) if begin < end => Ok(said[begin..end].to_owned()),
        _ => Err(format!("the machine did not come to the end of its script:\n{said}")),
    }
}

/// The root of the machine: our program with its libraries, BusyBox, and a script.
fn write_image(archive: &mut Archive, busybox: &Path, program: &Path) -> io::Result<()> {
    let mut folders: BTreeSet<PathBuf> = ["bin", "proc", "sys", "dev", "tmp"].map(PathBuf::from).into();
    let mut files: Vec<(PathBuf, PathBuf)> = vec![
        ("bin/busybox".into(), busybox.into()),
        ("bin/sh".into(), busybox.into()),
        ("bin/rivulet".into(), program.into()),
    ];
    let libraries = Command::new("ldd").arg(program).output()?;
    for word in String::from_utf8_lossy(&libraries.stdout).split_whitespace().filter(|word| word.starts_with('/')) {
        let inside = PathBuf::from(word.trim_start_matches('/'));
        folders
            .extend(inside.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_path_buf));
        files.push((inside, word.into()));
    }
    for folder in &folders {
        archive.add(folder, 0o040_755, &[])?;
    }
    for (inside, outside) in files {
        archive.add(&inside, 0o100_000 | fs::metadata(&outside)?.permissions().mode() & 0o777, &fs::read(outside)?)?;
    }
    archive.add(Path::new("init"), 0o100_755, INIT.as_bytes())
}

/// An archive in the form that kernels unpack (cpio, "newc").
struct Archive(io::BufWriter<fs::File>);

impl Archive {
    fn add(&mut self, path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
        let name = path.to_str().ok_or_else(|| io::Error::other("a path is no text"))?;
        let (name_bytes, size) = (name.len() + 1, content.len());
        // Everything that is 0: number of the file, owner, time, device, checksum.
        let links = 1;
        write!(self.0, "070701{0:08x}{mode:08x}{0:08x}{0:08x}{links:08x}{0:08x}{size:08x}", 0)?;
        write!(self.0, "{0:08x}{0:08x}{0:08x}{0:08x}{name_bytes:08x}{0:08x}{name}\0", 0)?;
        // Header and content end at a multiple of four bytes.
        self.pad(110 + name_bytes)?;
        self.0.write_all(content)?;
        self.pad(size)
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.0.write_all(&[0; 3][..written.next_multiple_of(4) - written])
    }

    fn end(mut self) -> io::Result<()> {
        self.add(Path::new("TRAILER!!!"), 0, &[])?;
        self.0.flush()
    }
}

/// What the machine said about one number of workers.
#[derive(Debug, Default)]
struct Run {
    /// Core and node of each worker, as our program says.
    places: BTreeMap<usize, (usize, usize)>,
    /// Worker and node of each task.
    tasks: Vec<(usize, usize)>,
    /// The cores that the kernel lets each worker thread use.
    allowed: BTreeMap<usize, String>,
    /// Pages by node.
    pages: BTreeMap<usize, u64>,
}

/// What is not as it should be.
fn check(said: &str) -> Vec<String> {
    let (mut cores, mut runs): (BTreeMap<usize, Vec<usize>>, BTreeMap<usize, Run>) = Default::default();
    let (mut part, mut workers) = ("", 0);
    for line in said.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: usize| words.get(word).and_then(|word| word.trim_end_matches(',').parse::<usize>().ok());
        match words.as_slice() {
            ["NODE", node, list] => _ = cores.insert(node.parse().unwrap_or(usize::MAX), numbers(list)),
            [name @ ("PLACES" | "THREADS" | "PAGES"), count] => {
                (part, workers) = (*name, count.parse().unwrap_or(0));
            }
            _ if part.is_empty() => {}
            ["worker", _, "stays", ..] => {
                if let (Some(worker), Some(core), Some(node)) = (number(1), number(5), number(7)) {
                    runs.entry(workers).or_default().places.insert(worker, (core, node));
                }
            }
            // The kernel keeps 15 characters of a name, so all workers have the same one; they come in the order of
            // their start.
            [thread, allowed] if part == "THREADS" && thread.starts_with("rivulet-worker") => {
                let allowed_of = &mut runs.entry(workers).or_default().allowed;
                allowed_of.insert(allowed_of.len(), (*allowed).to_owned());
            }
            [_, _] if part == "THREADS" => {}
            [_, _] if part == "PAGES" => {
                if let (Some(node), Some(pages)) = (number(0), number(1)) {
                    runs.entry(workers).or_default().pages.insert(node, pages as u64);
                }
            }
            _ if part == "PLACES" => {
                if let Some(at) = words.iter().position(|word| *word == "node")
                    && let (Some(worker), Some(node)) = (at.checked_sub(1).and_then(number), number(at + 1))
                    && words[0].contains('.')
                {
                    runs.entry(workers).or_default().tasks.push((worker, node));
                }
            }
            _ => {}
        }
    }
    let mut problems = Vec::new();
    let mut expect = |is_so: bool, problem: String| {
        if !is_so {
            problems.push(problem);
        }
    };
    expect(cores.len() == 2, format!("two nodes are expected, and there are {cores:?}"));
    for workers in [2, 4] {
        let Some(run) = runs.get(&workers) else {
            expect(false, format!("nothing was said about {workers} workers"));
            continue;
        };
        expect(run.places.len() == workers, format!("{workers} workers are expected to stay somewhere: {run:?}"));
        let nodes: BTreeSet<usize> = run.places.values().map(|(_, node)| *node).collect();
        expect(nodes.len() == workers / 2, format!("{workers} workers stand on the nodes {nodes:?}"));
        for (worker, (core, node)) in &run.places {
            let has_it = cores.get(node).is_some_and(|cores| cores.contains(core));
            expect(has_it, format!("worker {worker} says core {core} of node {node}, which has {:?}", cores.get(node)));
            let allowed = run.allowed.get(worker);
            expect(
                allowed.is_some_and(|allowed| *allowed == core.to_string()),
                format!("worker {worker} says core {core}, and the kernel lets it use {allowed:?}"),
            );
        }
        expect(run.tasks.len() >= workers, format!("tasks say where they are: {run:?}"));
        for (worker, node) in &run.tasks {
            let stands = run.places.get(worker).map(|(_, node)| *node);
            expect(
                stands == Some(*node),
                format!("a task says worker {worker} of node {node}, which is on {stands:?}"),
            );
        }
        // What workers on one node need is there, but for what the main thread has made on the other.
        if nodes.len() == 1 {
            let own: u64 = run.pages.iter().filter(|(node, _)| nodes.contains(node)).map(|(_, pages)| *pages).sum();
            let all: u64 = run.pages.values().sum();
            expect(own * 4 >= all * 3, format!("{own} of {all} pages are on the node of the workers"));
        } else {
            expect(run.pages.len() == nodes.len(), format!("memory of all nodes is used: {:?}", run.pages));
        }
    }
    problems
}

/// A list as Linux writes it: `0-1,4`.
fn numbers(list: &str) -> Vec<usize> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::check;

    const SAID: &str = "\
NODE 0 0-1
  distance 10 21, Node 0 MemTotal: 1 kB
NODE 1 2-3
PLACES 2
1.1   source > window  0, node 0  1  2
1.2   source > window  1, node 0  1  2
worker 0 stays on core 0, node 0
worker 1 stays on core 1, node 0
THREADS 2
rivulet 0-3
rivulet-worker- 0
rivulet-worker- 1
PAGES 2
0 9000
1 100
PLACES 4
1.1   source > window  0, node 0  1  2
1.2   source > window  1, node 0  1  2
1.3   source > window  2, node 1  1  2
1.4   source > window  3, node 1  1  2
worker 0 stays on core 0, node 0
worker 1 stays on core 1, node 0
worker 2 stays on core 2, node 1
worker 3 stays on core 3, node 1
THREADS 4
rivulet-worker- 0
rivulet-worker- 1
rivulet-worker- 2
rivulet-worker- 3
PAGES 4
0 9000
1 8000
";

    #[test]
    fn what_is_in_its_place_is_and_what_is_not_is_told() {
        assert_eq!(check(SAID), Vec::<String>::new());
        for (right, wrong, problem) in [
            ("worker 3 stays on core 3, node 1", "worker 3 stays on core 3, node 0", "core 3 of node 0"),
            ("rivulet-worker- 2", "rivulet-worker- 0-3", "lets it use Some(\"0-3\")"),
            ("1.4   source > window  3, node 1", "1.4   source > window  3, node 0", "a task says worker 3"),
            ("0 9000\n1 100\n", "0 100\n1 9000\n", "100 of 9100 pages"),
            ("NODE 1 2-3\n", "", "two nodes are expected"),
        ] {
            let problems = check(&SAID.replace(right, wrong));
            assert!(problems.iter().any(|one| one.contains(problem)), "{wrong}: {problems:?}");
        }
    }
}
