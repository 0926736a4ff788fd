//! The Debian package, which `dpkg-deb` writes.

use std::path::PathBuf;
use std::process::Command;

use super::{Release, Tree, examples, in_file, manual, packaged, read, root, said};

/// The scripts that dpkg runs.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Makes the package.
pub(super) fn make(release: &Release) -> Result<PathBuf, String> {
    let tree = Tree::new(release.out.join("tree"))?;
    tree.add("usr/bin/rivulet", 0o755, &release.program)?;
    tree.add("usr/lib/systemd/system/rivulet.service", 0o644, &packaged("rivulet.service")?)?;
    tree.add("etc/rivulet/rivulet.toml", 0o644, &packaged("rivulet.toml")?)?;
    tree.add("usr/share/man/man1/rivulet.1", 0o644, manual::page(&release.version)?.as_bytes())?;
    tree.add("usr/share/doc/rivulet/copyright", 0o644, &read(&root().join("LICENSE"))?)?;
    for page in ["README.md", "CHANGELOG.md"] {
        tree.add(&format!("usr/share/doc/rivulet/{page}"), 0o644, &read(&root().join(page))?)?;
    }
    for (path, script) in &release.completions {
        tree.add(&format!("usr/share/{path}"), 0o644, script)?;
    }
    for (path, content) in examples()? {
        tree.add(&format!("usr/share/doc/rivulet/{path}"), 0o644, &content)?;
    }
    let architecture = architecture()?;
    tree.add("DEBIAN/control", 0o644, control(release, architecture)?.as_bytes())?;
    tree.add("DEBIAN/conffiles", 0o644, &packaged("debian/conffiles")?)?;
    for script in SCRIPTS {
        tree.add(&format!("DEBIAN/{script}"), 0o755, &packaged(&format!("debian/{script}"))?)?;
    }
    tree.finish(release.time)?;
    let package = release.out.join(format!("rivulet_{}_{architecture}.deb", release.version));
    let time = release.time.duration_since(std::time::UNIX_EPOCH).map_err(|error| error.to_string())?;
    let mut dpkg = Command::new("dpkg-deb");
    // Several threads cut what they compress into blocks, and so make other bytes than one.
    dpkg.env("SOURCE_DATE_EPOCH", time.as_secs().to_string()).env("DPKG_DEB_THREADS_MAX", "1");
    dpkg.args(["--root-owner-group", "-Zxz", "--build"]).arg(&tree.0).arg(&package);
    said(&mut dpkg)?;
    tree.remove()?;
    std::fs::metadata(&package).map_err(|error| in_file(&package, &error))?;
    Ok(package)
}

/// What Debian calls the machine.
fn architecture() -> Result<&'static str, String> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => Err(format!("there is no name of Debian for {other}: add it to xtask/src/dist/debian.rs")),
    }
}

fn control(release: &Release, architecture: &str) -> Result<String, String> {
    let control = packaged("debian/control")?;
    let installed_kib = release.program.len().div_ceil(1024);
    Ok(String::from_utf8_lossy(&control)
        .replace("@VERSION@", &release.version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@INSTALLED_KIB@", &installed_kib.to_string())
        .replace("@LIBC@", &format!("2.{}", libc_minor(&release.program))))
}

/// The newest version of glibc, 2.x, that the program asks for. It has the versions of the functions that it calls as
/// text.
fn libc_minor(program: &[u8]) -> u32 {
    const VERSION: &[u8] = b"GLIBC_2.";
    let minor = |rest: &[u8]| {
        let digits = rest.iter().take(3).take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |minor, digit| minor * 10 + u32::from(digit - b'0'))
    };
    let starts =
        program.iter().enumerate().filter(|&(_, &byte)| byte == VERSION[0]).map(|(start, _)| &program[start..]);
    starts.filter_map(|text| text.strip_prefix(VERSION)).map(minor).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_glibc_counts() {
        assert_eq!(libc_minor(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0GLIBC_2."), 34);
        assert_eq!(libc_minor(b"#!/bin/sh"), 0);
    }
}
