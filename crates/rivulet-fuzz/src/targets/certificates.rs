//! Certificates of clients, as bytes: of each kind a certificate has one name, or none that counts. A name is text that
//! may stand in topics and logs, and stands in the certificate.

use rivulet_connectors::tls::NameKind;

use crate::Target;
use crate::edits::{self, Files};
use crate::input::Input;

/// See the module.
pub const TARGET: Target =
    Target { name: "certificates", run, words: &["\u{3}U\u{4}\u{3}", "\u{c}", "\u{13}", "0", "1"], mutations: 10_000 };

/// A certificate of a gateway, with a name of each kind.
const WHOLE: &[u8] = include_bytes!("../../../../fuzz/corpus/certificates/one-of-each");

fn run(bytes: &[u8]) {
    check(bytes);
    let mut files = Files::from([("certificate".to_owned(), WHOLE.to_vec())]);
    edits::apply(&mut files, &mut Input::new(bytes));
    if let Some(changed) = files.get("certificate") {
        check(changed);
    }
    assert_eq!(NameKind::CommonName.of(WHOLE).as_deref(), Some("gateway-7"));
}

fn check(certificate: &[u8]) {
    for (kind, word) in NameKind::ALL {
        let Some(name) = kind.of(certificate) else { continue };
        assert!(!name.is_empty() && name.len() <= 255, "{word}: {name:?}");
        assert!(!name.chars().any(char::is_control), "{word}: {name:?}");
        assert!(certificate.windows(name.len()).any(|part| part == name.as_bytes()), "{word}: {name:?}");
    }
}
