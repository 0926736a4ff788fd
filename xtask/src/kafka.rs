//! The broker that the tests of the Kafka connector start: its published jars, fetched once, where Maven and Java are.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{root, which};

/// The variable that names the folder of the jars to the tests.
pub(crate) const JARS: &str = "RIVULET_KAFKA_JARS";
/// The folder of the jars, below that of the user.
const FOLDER: &str = ".cache/rivulet-kafka-4.3.1";
/// In that folder when all jars are there: a fetch that was cut off begins again.
const COMPLETE: &str = "complete";
const PLUGIN: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";

/// The folder with all jars, or what is missing.
pub(crate) fn jars() -> Result<PathBuf, String> {
    let of_user = || std::env::var_os("HOME").map(|home| Path::new(&home).join(FOLDER));
    let folder = std::env::var_os(JARS).map(PathBuf::from).or_else(of_user).ok_or("there is no home folder")?;
    if which("java").is_none() {
        return Err("java is not installed\nhint: apt-get install openjdk-17-jre-headless maven".into());
    }
    if folder.join(COMPLETE).is_file() {
        return Ok(folder);
    }
    if which("mvn").is_none() {
        return Err("its jars are not there, and Maven is not installed\nhint: apt-get install maven".into());
    }
    eprintln!("+ mvn copy-dependencies, the jars of Kafka, into {}", folder.display());
    let status = Command::new("mvn")
        .args(["-q", "-B", "-f"])
        .arg(root().join(".ci/kafka/pom.xml"))
        .args([PLUGIN, "-DincludeScope=runtime"])
        .arg(format!("-DoutputDirectory={}", folder.display()))
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("Maven did not fetch its jars ({status})")),
        Err(error) => return Err(format!("Maven could not be started: {error}")),
    }
    std::fs::write(folder.join(COMPLETE), "").map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}
