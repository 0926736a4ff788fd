//! What is made of a small program in place of ours.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use super::{Release, TemporaryFolder, text_said};
use crate::which;

/// Makes everything, with a program that repeats what it is asked.
fn make(out: &Path) -> String {
    let release = Release::new(Path::new("/bin/echo"), out).unwrap();
    release.make().unwrap();
    fs::read_to_string(out.join("SHA256SUMS")).unwrap()
}

#[test]
fn the_same_program_gives_the_same_bytes_and_everything_is_in_its_place() {
    let folder = TemporaryFolder::new("dist-test").unwrap();
    let (one, other) = (folder.0.join("one"), folder.0.join("other"));
    let sums = make(&one);
    assert_eq!(sums, make(&other));

    let version = env!("CARGO_PKG_VERSION");
    let name = format!("rivulet-{version}-{}-linux", env::consts::ARCH);
    let listed = text_said(Command::new("tar").arg("-tvzf").arg(one.join(format!("{name}.tar.gz")))).unwrap();
    for (mode, path) in [
        ("-rwxr-xr-x", "rivulet"),
        ("-rw-r--r--", "LICENSE"),
        ("-rw-r--r--", "rivulet.1"),
        ("-rw-r--r--", "completions/_rivulet"),
        ("-rw-r--r--", "completions/rivulet.fish"),
        ("-rw-r--r--", "systemd/rivulet.service"),
        ("-rw-r--r--", "examples/ac_control.sql"),
    ] {
        let is_it = |line: &&str| line.starts_with(mode) && line.ends_with(&format!(" {name}/{path}"));
        assert!(listed.lines().any(|line| is_it(&line)), "{mode} {path} in\n{listed}");
    }
    assert!(sums.contains(&format!("  {name}.tar.gz\n")) && sums.contains("  Containerfile\n"), "{sums}");
    if which("dpkg-deb").is_none() {
        eprintln!("skipped: the Debian package, because dpkg-deb is missing");
        return;
    }
    let package = sums.lines().find_map(|line| line.split("  ").nth(1).filter(|name| name.ends_with(".deb"))).unwrap();
    let field = |name: &str| {
        text_said(Command::new("dpkg-deb").arg("--field").arg(one.join(package)).arg(name)).unwrap().trim().to_owned()
    };
    assert_eq!((field("Package"), field("Version")), ("rivulet".to_owned(), version.to_owned()));
    assert!(field("Depends").starts_with("libc6 (>= 2."), "{}", field("Depends"));
    let listed = text_said(Command::new("dpkg-deb").arg("--contents").arg(one.join(package))).unwrap();
    for path in [
        "usr/bin/rivulet",
        "usr/lib/systemd/system/rivulet.service",
        "etc/rivulet/rivulet.toml",
        "usr/share/bash-completion/completions/rivulet",
        "usr/share/man/man1/rivulet.1",
        "usr/share/doc/rivulet/examples/ac_control.sql",
    ] {
        let is_it = |line: &str| line.contains(" root/root ") && line.ends_with(&format!(" ./{path}"));
        assert!(listed.lines().any(is_it), "{path} in\n{listed}");
    }
    // What the administrator has changed is kept.
    let conffiles = folder.0.join("control");
    text_said(Command::new("dpkg-deb").arg("--control").arg(one.join(package)).arg(&conffiles)).unwrap();
    assert_eq!(fs::read_to_string(conffiles.join("conffiles")).unwrap(), "/etc/rivulet/rivulet.toml\n");
}

#[test]
fn an_option_that_is_not_there_is_refused() {
    let error = super::run(&["--all"]).unwrap_err();
    assert!(error.contains("--all") && error.contains("hint: cargo xtask dist"), "{error}");
}
