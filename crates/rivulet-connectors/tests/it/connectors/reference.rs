//! The reference of connectors in `docs/reference` is generated from their descriptions. `cargo xtask docs` writes it again.

#[allow(unreachable_pub, reason = "it is public where it stands")]
#[path = "../../../../rivulet-testing/src/page.rs"]
mod page;

#[test]
fn the_reference_of_the_connectors_is_current() {
    page::check("connectors.md", &page::wrapped(&rivulet_connectors::connector::reference()));
}
