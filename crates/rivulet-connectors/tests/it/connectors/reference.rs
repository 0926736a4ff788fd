//! The reference of connectors in `docs/reference` is generated from their descriptions. `cargo xtask docs` writes it again.

use std::path::Path;

#[test]
fn the_reference_of_the_connectors_is_current() {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this");
    let path = Path::new(&root).join("../../docs/reference/connectors.md");
    let generated = rivulet_connectors::connector::reference();
    if std::env::var_os("RIVULET_UPDATE").is_some() {
        std::fs::write(&path, generated).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == generated, "docs/reference/connectors.md is stale; `cargo xtask docs` writes it again");
}
