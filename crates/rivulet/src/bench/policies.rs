//! The scheduling policies that a measurement can name: those that a server can be configured with, and in a program
//! that was built with the feature `baselines` those of other engines.

use rivulet_bench::policies::{ALL, NAMES};
use rivulet_runtime::Policy;

/// Whether this program can imitate other engines.
pub(super) const HAS_BASELINES: bool = cfg!(feature = "baselines");

/// What is said of a policy or model that only a program with baselines has.
pub(super) fn without_baselines(name: &str) -> String {
    format!("this program was built without '{name}'; `cargo build --release --features baselines` builds one with it")
}

/// A policy by its name.
pub(crate) fn policy(name: &str) -> Result<&'static Policy, String> {
    named(name, HAS_BASELINES)
}

fn named(name: &str, has_baselines: bool) -> Result<&'static Policy, String> {
    if !NAMES.contains(&name) {
        return name.parse().map_err(|error| format!("{error}, and to compare with {}", NAMES.join(", ")));
    }
    // A program without baselines has none of their code: nothing else uses it.
    let baselines = if HAS_BASELINES && has_baselines { &ALL[..] } else { &[] };
    let found = baselines.iter().copied().find(|policy| policy.name == name);
    found.ok_or_else(|| without_baselines(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_go_by_name_and_a_program_without_baselines_says_where_they_are() {
        for policy in Policy::ALL.into_iter().chain(ALL) {
            assert_eq!(named(policy.name, true), Ok(policy));
        }
        for name in NAMES {
            assert!(named(name, false).unwrap_err().contains("--features baselines"), "{name}");
        }
        let unknown = named("shortest", true).unwrap_err();
        assert!(
            unknown.contains("'shortest'") && unknown.contains("congestion, and to compare with random"),
            "{unknown}"
        );
    }
}
