//! What a measurement compares with: other engines, which only a program that was built with the feature `baselines`
//! imitates.

/// Whether this program can imitate other engines.
pub(super) const HAS_BASELINES: bool = cfg!(feature = "baselines");

/// What is said of a policy or model that only a program with baselines has.
pub(super) fn without_baselines(name: &str) -> String {
    format!("this program was built without '{name}'; `cargo build --release --features baselines` builds one with it")
}
