//! The name in a client's certificate.
//!
//! What must hold: a certificate has one name of a kind, or none that counts. Which of several were meant cannot be
//! known, and another program could take another one.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The longest name that counts, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The kinds of names in a certificate that can tell who a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// The common name (CN) of the subject.
    CommonName,
    /// The DNS name among the alternative names of the subject.
    Dns,
    /// The URI among the alternative names of the subject, such as a SPIFFE id.
    Uri,
}

impl NameKind {
    /// Each kind with its word in the configuration.
    pub const ALL: [(Self, &'static str); 3] = [(Self::CommonName, "cn"), (Self::Dns, "dns"), (Self::Uri, "uri")];

    /// The name of this kind in a certificate, as DER, that was verified; `None` if it has none, several, or one that
    /// is no text without control characters.
    pub fn of(self, certificate: &[u8]) -> Option<Arc<str>> {
        let certificate = CertificateDer::from(certificate);
        let certificate = EndEntityCert::try_from(&certificate).ok()?;
        let name = match self {
            Self::CommonName => only(common_names(certificate.subject())?.into_iter())?,
            Self::Dns => only(certificate.valid_dns_names())?,
            Self::Uri => only(certificate.valid_uri_names())?,
        };
        let is_name = !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control);
        is_name.then(|| name.into())
    }
}

/// The only one of some names.
fn only<'a>(mut names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names.next().filter(|_| names.next().is_none())
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;

/// `id-at-commonName`, 2.5.4.3.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];

/// The common names in a subject, which is a sequence of sets of pairs of attribute and value (RFC 5280, 4.1.2.4).
/// `None` if it cannot be read, or has a common name in an encoding that is not used any more.
fn common_names(mut subject: &[u8]) -> Option<Vec<&str>> {
    let mut names = Vec::new();
    while !subject.is_empty() {
        let mut set = expect(SET, &mut subject)?;
        while !set.is_empty() {
            let mut pair = expect(SEQUENCE, &mut set)?;
            let attribute = expect(OBJECT_IDENTIFIER, &mut pair)?;
            let (tag, value) = element(&mut pair)?;
            if attribute != COMMON_NAME {
                continue;
            }
            if ![UTF8_STRING, PRINTABLE_STRING].contains(&tag) {
                return None;
            }
            names.push(str::from_utf8(value).ok()?);
        }
    }
    Some(names)
}

fn expect<'a>(wanted: u8, bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    element(bytes).filter(|(tag, _)| *tag == wanted).map(|(_, content)| content)
}

/// Cuts off the first element of DER: its tag and its content.
fn element<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&[tag, length], rest) = bytes.split_first_chunk::<2>()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        // In the long form the rest of the byte is the number of bytes of the length.
        0x81 => {
            let (&[length], rest) = rest.split_first_chunk::<1>()?;
            (usize::from(length), rest)
        }
        0x82 => {
            let (&length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(length)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some((tag, content))
}

#[cfg(test)]
mod tests {
    use rcgen::string::Ia5String;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(common_names: &[&str], dns: &[&str], uris: &[&str]) -> CertificateDer<'static> {
        let mut parameters =
            CertificateParams::new(dns.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()).unwrap();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(DnType::OrganizationName, "Homes");
        for name in common_names {
            parameters.distinguished_name.push(DnType::CommonName, *name);
        }
        for uri in uris {
            parameters.subject_alt_names.push(SanType::URI(Ia5String::try_from(*uri).unwrap()));
        }
        parameters.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn a_certificate_names_its_client() {
        let spiffe = "spiffe://homes.example/gateway/7";
        let shown = certificate(&["gateway 7, ü"], &["gateway.example"], &[spiffe]);
        let names = NameKind::ALL.map(|(kind, _)| kind.of(&shown).map(|name| name.to_string()));
        assert_eq!(names, ["gateway 7, ü", "gateway.example", spiffe].map(|name| Some(name.to_owned())));
        let long = "x".repeat(300);
        for (common_names, dns, uris) in [
            (&[][..], &[][..], &[][..]),
            (&[""], &["a.example", "b.example"], &["urn:a", "urn:b"]),
            (&["a\nb"], &[], &["urn:\u{1}"]),
            (&[long.as_str()], &[], &[long.as_str()]),
        ] {
            let shown = certificate(common_names, dns, uris);
            assert_eq!(NameKind::ALL.map(|(kind, _)| kind.of(&shown)), [None, None, None], "{common_names:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_subject_have_no_names() {
        let pair = [SEQUENCE, 8, OBJECT_IDENTIFIER, 3, 0x55, 4, 3, UTF8_STRING, 1, b'a'];
        let subject = [&[SET, 10][..], &pair].concat();
        assert_eq!(common_names(&subject), Some(vec!["a"]));
        assert_eq!(common_names(&[&subject[..], &subject].concat()), Some(vec!["a", "a"]));
        for end in 1..subject.len() {
            assert_eq!(common_names(&subject[..end]), None, "{end}");
        }
        let mut other = subject.clone();
        // A string of 16-bit characters.
        other[9] = 0x1e;
        assert_eq!(common_names(&other), None);
        assert_eq!(common_names(&[SET, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
