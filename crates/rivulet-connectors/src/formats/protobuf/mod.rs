//! PROTOBUF (Protocol Buffers): one message a payload, its type in a `.proto` file.
//!
//! A column is the field with its name; `a.b` is the field `b` of the message in field `a`. Fields without a column are
//! skipped. A field that is not there is null if the message can say that it is not there, and its default otherwise.
//! Enums are TEXT (names) or BIGINT (numbers); whole numbers are also read into DOUBLE and DECIMAL, and into TIMESTAMP
//! as milliseconds, as `google.protobuf.Timestamp` is. DATE, TIME and DECIMAL are texts.
//!
//! Repeated fields, maps and messages are also columns of ARRAY, MAP and ROW; keys of maps are texts.
//!
//! - [`field`]: how a field and a column go together;
//! - [`decoder`]: payloads into rows, [`part_decoder`]: their values with parts, and [`skip`]: what is not read;
//! - [`encoder`]: rows into payloads, [`part_encoder`]: their values with parts, and [`scalar_encoder`]: single values.

mod decoder;
mod encoder;
mod field;
mod format;
mod part_decoder;
mod part_encoder;
mod scalar_encoder;
mod skip;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use parking_lot::Mutex;
use prost_reflect::MessageDescriptor;
use protox::Compiler;
use protox::file::{File, FileResolver, GoogleFileResolver};

use super::binary::Framing;
use super::{Encoder, FormatError};
use crate::files::{Files, words};
pub(crate) use decoder::ProtobufParser;
pub use format::ProtobufFormat;

const NAME: &str = "PROTOBUF";

/// The longest schema file, in bytes.
const SCHEMA_BYTES_MAX: u64 = 1 << 20;

impl ProtobufFormat {
    /// Reads the options of the format: `schema_file` and `message`, `framing` and `schema_id`.
    pub(crate) fn parse<'o>(
        options: impl Iterator<Item = (&'o str, &'o str)>,
        files: &Files,
    ) -> Result<Self, FormatError> {
        let (mut file, mut message, mut framing, mut schema_id) = (None, None, None, None);
        for (option, value) in options {
            match option.to_ascii_lowercase().as_str() {
                "schema_file" => file = Some(value),
                "message" => message = Some(value),
                "framing" => framing = Some(value),
                "schema_id" => schema_id = Some(value),
                _ => {
                    return Err(setting(
                        format!("has no option '{option}'"),
                        "its options are schema_file, message, framing, schema_id",
                    ));
                }
            }
        }
        let Some(file) = file else {
            return Err(setting(
                "needs a schema".into(),
                "FORMAT PROTOBUF (schema_file => 'events.proto', message => 'package.Event')",
            ));
        };
        Ok(Self { message: message_of(file, message, files)?, framing: Framing::parse(NAME, framing, schema_id)? })
    }

    /// A parser into those of the declared columns that are read.
    pub(crate) fn parser(&self, declared: &Schema, read: &[usize]) -> Result<ProtobufParser, FormatError> {
        ProtobufParser::new(self, declared, read)
            .map_err(|problem| setting(problem, "a column is a field with the same name and a type that suits"))
    }

    /// An encoder of rows of `schema`.
    pub(crate) fn encoder(&self, columns: &SchemaRef) -> Result<Box<dyn Encoder>, FormatError> {
        let encoder = encoder::ProtobufEncoder::new(self, columns)
            .map_err(|problem| setting(problem, "a column is a field with the same name and a type that suits"))?;
        Ok(Box::new(encoder))
    }
}

fn setting(problem: String, hint: &str) -> FormatError {
    FormatError::Setting { format: NAME, problem, hint: hint.into() }
}

/// The schema files of a folder, and those that come with Protocol Buffers.
struct SchemaFiles {
    folder: PathBuf,
    files: Files,
    /// Why a file was not read, and what to do: the compiler's own words do not have that.
    refused: Arc<Mutex<Option<io::Error>>>,
}

impl FileResolver for SchemaFiles {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        let read = self.files.read(self.folder.join(name), SCHEMA_BYTES_MAX);
        match read.map(String::from_utf8) {
            Ok(Ok(text)) => File::from_source(name, &text),
            Ok(Err(_)) => Err(protox::Error::new(format!("{name} is not UTF-8 text"))),
            Err(error) => GoogleFileResolver::new().open_file(name).map_err(|not_known| {
                if error.kind() == io::ErrorKind::NotFound {
                    return not_known;
                }
                let problem = protox::Error::new(words(&error).0);
                *self.refused.lock() = Some(error);
                problem
            }),
        }
    }
}

/// Reads a `.proto` file, with what it imports from its folder, and finds the message.
fn message_of(file: &str, name: Option<&str>, files: &Files) -> Result<MessageDescriptor, FormatError> {
    const HINT: &str = "schema_file is a .proto file on this machine; imports are looked for in its folder";
    let path = Path::new(file);
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    let refused = Arc::new(Mutex::new(None));
    let mut compiler =
        Compiler::with_file_resolver(SchemaFiles { folder, files: files.clone(), refused: refused.clone() });
    let opened = compiler.include_imports(true).open_file(path.file_name().unwrap_or_default());
    if let Err(error) = opened {
        let refused = refused.lock().take();
        let (problem, hint) = refused.map_or_else(|| (error.to_string(), None), |error| words(&error));
        return Err(setting(format!("cannot use {file}: {problem}"), hint.as_deref().unwrap_or(HINT)));
    }
    let pool = compiler.descriptor_pool();
    let file_name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let own =
        || pool.files().filter(|file| file.name() == file_name).flat_map(|file| file.messages().collect::<Vec<_>>());
    match name {
        Some(name) => {
            let found = pool.get_message_by_name(name.trim_start_matches('.'));
            found.or_else(|| own().find(|message| message.name() == name)).ok_or_else(|| {
                let names: Vec<String> = own().map(|message| message.full_name().to_owned()).collect();
                setting(format!("has no message '{name}' in {file}"), &format!("there are {}", names.join(", ")))
            })
        }
        None => {
            let mut all = own();
            match (all.next(), all.next()) {
                (Some(only), None) => Ok(only),
                _ => Err(setting(format!("does not say which message of {file}"), "add message => 'package.Event'")),
            }
        }
    }
}
