//! The image of a container, if a program that builds images is there.

use std::process::{Command, Stdio};

use super::{Release, said, text_said};
use crate::which;

const BUILDERS: [&str; 3] = ["podman", "docker", "buildah"];

/// Builds the image, and runs the demo in it if it is to be tried.
pub(super) fn build(release: &Release, tries: bool) -> Result<(), String> {
    let Some(builder) = BUILDERS.into_iter().find(|builder| works(builder)) else {
        eprintln!(
            "not built: the image, because none of {} is there and answers\n\
             hint: apt-get install podman, or start the service of docker",
            BUILDERS.join(", ")
        );
        return Ok(());
    };
    let image = format!("rivulet:{}", release.version);
    eprintln!("+ {builder} build --tag {image}");
    let mut build = Command::new(builder);
    build.arg("build").arg("--build-arg").arg(format!("RELEASE={}", release.name()));
    build.args(["--tag", &image, "--file", "Containerfile", "."]).current_dir(&release.out);
    said(&mut build)?;
    if !tries || builder == "buildah" {
        return Ok(());
    }
    let demo = ["run", "--rm", &image, "demo", "--queries", "1000", "--duration", "3s", "--json"];
    let report = text_said(Command::new(builder).args(demo))?;
    super::trial::check_demo(&report)
}

/// Whether the builder is installed, and what it needs runs.
fn works(builder: &str) -> bool {
    let mut info = Command::new(builder);
    info.arg("info").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    which(builder).is_some() && info.status().is_ok_and(|status| status.success())
}
