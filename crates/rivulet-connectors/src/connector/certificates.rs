//! The options with which a connection to a server is encrypted, for every connector that has them.

use super::{ConnectorError, OptionDescription, OptionKind, Options};
use crate::files::Files;
use crate::tls::{ClientCertificates, ClientTls, NameKind, ServerTls, TlsError};

/// Option: the authorities to trust.
pub(super) const CA_FILE: OptionDescription = OptionDescription {
    name: "ca_file",
    kind: OptionKind::File,
    default: None,
    help: "The authorities to trust: a file of certificates in PEM. Without it, those that browsers trust.",
};

/// Option: the certificate to show.
pub(super) const CERTIFICATE_FILE: OptionDescription = OptionDescription {
    name: "certificate_file",
    kind: OptionKind::File,
    default: None,
    help: "The client certificate to show, in PEM, with `key_file`.",
};

/// Option: its key.
pub(super) const KEY_FILE: OptionDescription = OptionDescription {
    name: "key_file",
    kind: OptionKind::File,
    default: None,
    help: "The private key of the client certificate, in PEM.",
};

/// Option of a listener: the authorities of its clients.
const CLIENT_CA_FILE: &str = "client_ca_file";

/// The authorities and the certificate that the options name.
///
/// # Errors
/// A file that a statement may not name, or a certificate without its key.
pub(super) fn client_tls(options: &Options, files: &Files) -> Result<ClientTls, ConnectorError> {
    let file = |option: &OptionDescription| {
        options.text(option.name).map(|path| options.file(option.name, path, files)).transpose()
    };
    let identity = match (file(&CERTIFICATE_FILE)?, file(&KEY_FILE)?) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => return Err(without(options, &KEY_FILE)),
        (None, Some(_)) => return Err(without(options, &CERTIFICATE_FILE)),
    };
    Ok(ClientTls { ca_file: file(&CA_FILE)?, identity })
}

/// Checks the options before they are used: files may be created later.
pub(super) fn check(options: &Options, files: &Files) -> Result<(), ConnectorError> {
    for option in [&CA_FILE, &CERTIFICATE_FILE, &KEY_FILE] {
        options.text(option.name).map_or(Ok(()), |path| options.check_file(option.name, path, files))?;
    }
    match [&CERTIFICATE_FILE, &KEY_FILE].map(|option| options.text(option.name)) {
        [Some(_), None] => Err(without(options, &KEY_FILE)),
        [None, Some(_)] => Err(without(options, &CERTIFICATE_FILE)),
        _ => Ok(()),
    }
}

/// The certificate of a listener that the options name, and the authorities of its clients.
///
/// # Errors
/// As [`client_tls`].
pub(super) fn server_tls(options: &Options, files: &Files) -> Result<Option<ServerTls>, ConnectorError> {
    check_server(options, files)?;
    let file = |name: &str| options.text(name).map(|path| options.file(name, path, files)).transpose();
    let (Some(certificate), Some(key)) = (file(CERTIFICATE_FILE.name)?, file(KEY_FILE.name)?) else { return Ok(None) };
    let clients = file(CLIENT_CA_FILE)?.map(|ca_file| {
        // Events have no owner: whoever has a certificate may post.
        ClientCertificates { ca_file, required: true, name: NameKind::CommonName }
    });
    Ok(Some(ServerTls { clients, ..ServerTls::new(certificate, key) }))
}

/// The same check before the certificate is used.
pub(super) fn check_server(options: &Options, files: &Files) -> Result<(), ConnectorError> {
    check(options, files)?;
    options.text(CLIENT_CA_FILE).map_or(Ok(()), |path| options.check_file(CLIENT_CA_FILE, path, files))?;
    match (options.text(CLIENT_CA_FILE), options.text(CERTIFICATE_FILE.name)) {
        (Some(_), None) => Err(without(options, &CERTIFICATE_FILE)),
        _ => Ok(()),
    }
}

/// The error of files that cannot be used.
pub(super) fn unusable(options: &Options, error: &TlsError) -> ConnectorError {
    let text = error.to_string();
    let (problem, hint) = text.split_once("\nhint: ").unwrap_or((&text, "name files in PEM"));
    options.wrong(CERTIFICATE_FILE.name, format!("or another certificate cannot be used: {problem}"), hint)
}

fn without(options: &Options, missing: &OptionDescription) -> ConnectorError {
    options.wrong(missing.name, "is missing", "a certificate needs certificate_file and key_file")
}
