//! Options as they were given, checked against their description.
//!
//! What must hold: every given option is described and its value is valid; an option that was not given has its
//! default.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rivulet_dataflow::suggest::nearest;

use super::error::ConnectorError;
use super::option::{Direction, OptionDescription, OptionKind};
use crate::files::{Files, words};

/// The longest time span, in microseconds: a hundred years.
const DURATION_US_MAX: f64 = 100.0 * 365.25 * 86_400e6;

/// Checked options.
#[derive(Clone, Debug)]
pub struct Options {
    connector: &'static str,
    /// The values of options that were given or have a default.
    values: BTreeMap<&'static str, Value>,
    /// Options that are described by their beginning: that beginning, the rest of the name, and the value.
    by_beginning: Vec<(&'static str, String, String)>,
}

/// A value of its option's kind.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Boolean(bool),
    Integer(i64),
    Duration(Duration),
    Names(Vec<String>),
    Text(String),
}

impl Options {
    /// Checks the options that were given to `connector` in this direction.
    pub(crate) fn check(
        connector: &'static str,
        direction: Direction,
        described: &'static [OptionDescription],
        given: &[(String, String)],
    ) -> Result<Self, ConnectorError> {
        let mut options = Self { connector, values: BTreeMap::new(), by_beginning: Vec::new() };
        for (name, text) in given {
            let name = name.trim().to_ascii_lowercase();
            let Some((option, rest)) = find(described, &name) else {
                let names = || described.iter().map(|option| option.name);
                let hint = match (nearest(&name, names()), described.is_empty()) {
                    (Some(near), _) => format!("did you mean '{near}'?"),
                    (None, true) => "it has none".into(),
                    (None, false) => format!("its options are {}", names().collect::<Vec<_>>().join(", ")),
                };
                return Err(ConnectorError::UnknownOption { connector, direction, option: name, hint });
            };
            let is_twice = match rest {
                Some(rest) => options.by_beginning.iter().any(|(other, key, _)| *other == option.name && key == rest),
                None => options.values.contains_key(option.name),
            };
            if is_twice {
                return Err(options.wrong(&name, "is given twice", "give it once"));
            }
            let Some(kind) = option.kind.of(rest) else { return Err(options.not_among(&name, option)) };
            let Some(value) = Value::parse(kind, text) else {
                let problem = format!("cannot be '{}'", shortened(text));
                return Err(options.wrong(&name, problem, format!("it is {kind}")));
            };
            match rest {
                Some(rest) => options.by_beginning.push((option.name, rest.into(), text.clone())),
                None => _ = options.values.insert(option.name, value),
            }
        }
        for option in described {
            if let (Some(text), false) = (option.default, options.values.contains_key(option.name)) {
                let default = Value::parse(option.kind, text).expect("defaults are of their kind, which a test checks");
                options.values.insert(option.name, default);
            }
        }
        Ok(options)
    }

    /// The error for a name that is not allowed for the `*` of `option`.
    fn not_among(&self, name: &str, option: &OptionDescription) -> ConnectorError {
        let beginning = option.name.trim_end_matches('*');
        let OptionKind::Among(names) = option.kind else { return self.wrong(name, "is not known", "leave it out") };
        let rest = name.strip_prefix(beginning).unwrap_or_default();
        let near = nearest(rest, names.iter().map(|(name, _)| *name));
        let hint = near.map_or_else(
            || "docs/reference/connectors.md lists those that may be given".into(),
            |near| format!("did you mean '{beginning}{near}'?"),
        );
        self.wrong(name, "is not allowed in a statement", hint)
    }

    /// All options except this one.
    #[must_use]
    pub(crate) fn without(&self, option: &str) -> Self {
        let mut without = self.clone();
        without.values.remove(option);
        without
    }

    /// The error for one of the options.
    pub fn wrong(&self, option: &str, problem: impl Into<String>, hint: impl Into<String>) -> ConnectorError {
        ConnectorError::Option {
            connector: self.connector,
            option: option.into(),
            problem: problem.into(),
            hint: hint.into(),
        }
    }

    /// The file that is the value of an option, and that other code opens by its path.
    pub(crate) fn file(&self, option: &str, path: &str, files: &Files) -> Result<PathBuf, ConnectorError> {
        files.locate_file(path).map_err(|error| {
            let (problem, hint) = words(&error);
            let hint = hint.unwrap_or_else(|| "it is the path of a file on this machine".into());
            self.wrong(option, format!("cannot be '{}': {problem}", shortened(path)), hint)
        })
    }

    /// The same check before the file is opened: the file may be created later.
    pub(crate) fn check_file(&self, option: &str, path: &str, files: &Files) -> Result<(), ConnectorError> {
        match files.locate_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            _ => self.file(option, path, files).map(drop),
        }
    }

    /// Whether a switch is on.
    pub fn boolean(&self, name: &str) -> bool {
        matches!(self.values.get(name), Some(Value::Boolean(true)))
    }

    /// A number.
    pub fn integer(&self, name: &str) -> Option<i64> {
        match self.values.get(name) {
            Some(Value::Integer(value)) => Some(*value),
            _ => None,
        }
    }

    /// A number that counts something: a negative number counts as zero.
    pub fn count(&self, name: &str) -> Option<usize> {
        self.integer(name).map(|value| usize::try_from(value.max(0)).unwrap_or(usize::MAX))
    }

    /// A time span.
    pub fn duration(&self, name: &str) -> Option<Duration> {
        match self.values.get(name) {
            Some(Value::Duration(value)) => Some(*value),
            _ => None,
        }
    }

    /// A text or a choice.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.values.get(name) {
            Some(Value::Text(value)) => Some(value),
            _ => None,
        }
    }

    /// Names, as they were written; empty if the option is not given.
    pub fn names(&self, name: &str) -> &[String] {
        match self.values.get(name) {
            Some(Value::Names(names)) => names,
            _ => &[],
        }
    }

    /// The options described by this beginning: the rest of each name, and the value.
    pub fn by_beginning(&self, name: &str) -> impl Iterator<Item = (&str, &str)> {
        self.by_beginning
            .iter()
            .filter(move |(described, ..)| *described == name)
            .map(|(_, rest, value)| (rest.as_str(), value.as_str()))
    }
}

/// The value `text` of an option as it may be shown: `***` replaces what is secret. An option that is not described was
/// refused, or belongs to an older version, and is hidden.
pub(crate) fn shown<'t>(described: &'static [OptionDescription], name: &str, text: &'t str) -> Cow<'t, str> {
    const HIDDEN: &str = "***";
    let kind = find(described, &name.trim().to_ascii_lowercase()).and_then(|(option, rest)| option.kind.of(rest));
    match kind {
        None | Some(OptionKind::Secret) => HIDDEN.into(),
        Some(OptionKind::Broker) => match text.rsplit_once('@') {
            Some((login, place)) => {
                let (scheme, login) = login.split_once("://").unwrap_or(("", login));
                let user = login.split_once(':').map_or(login, |(user, _)| user);
                format!("{scheme}://{user}:{HIDDEN}@{place}").into()
            }
            None => text.into(),
        },
        Some(_) => text.into(),
    }
}

/// The description of the option `name`, and the rest of the name if it is described by its beginning.
pub(super) fn find<'n>(
    described: &'static [OptionDescription],
    name: &'n str,
) -> Option<(&'static OptionDescription, Option<&'n str>)> {
    described.iter().find_map(|option| match option.name.strip_suffix('*') {
        Some(beginning) => {
            let rest = name.strip_prefix(beginning).filter(|rest| !rest.is_empty())?;
            Some((option, Some(rest)))
        }
        None => (option.name == name).then_some((option, None)),
    })
}

impl Value {
    fn parse(kind: OptionKind, text: &str) -> Option<Self> {
        let trimmed = text.trim();
        match kind {
            OptionKind::Boolean if trimmed.eq_ignore_ascii_case("true") => Some(Self::Boolean(true)),
            OptionKind::Boolean if trimmed.eq_ignore_ascii_case("false") => Some(Self::Boolean(false)),
            OptionKind::Boolean => None,
            OptionKind::Integer { min, max } => {
                trimmed.parse().ok().filter(|value| (min..=max).contains(value)).map(Self::Integer)
            }
            OptionKind::Duration => duration(trimmed).map(Self::Duration),
            OptionKind::Bytes => bytes(trimmed).map(Self::Integer),
            OptionKind::Choice(words) => {
                let word = words.iter().find(|word| word.eq_ignore_ascii_case(trimmed))?;
                Some(Self::Text((*word).to_owned()))
            }
            OptionKind::Names => {
                let names: Vec<String> = trimmed.split(',').map(|name| name.trim().to_owned()).collect();
                names.iter().all(|name| !name.is_empty()).then_some(Self::Names(names))
            }
            OptionKind::Text | OptionKind::Secret | OptionKind::Broker | OptionKind::File | OptionKind::Among(_) => {
                Some(Self::Text(text.to_owned()))
            }
        }
    }
}

/// Splits `1.5 s` into its number and its unit in lower case.
fn number_and_unit(text: &str) -> Option<(f64, String)> {
    let end = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let number = text[..end].parse::<f64>().ok()?;
    Some((number, text[end..].trim().to_ascii_lowercase()))
}

fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = number_and_unit(text)?;
    let unit_us = match unit.as_str() {
        "us" | "microsecond" | "microseconds" => 1.0,
        "ms" | "millisecond" | "milliseconds" => 1e3,
        "s" | "sec" | "second" | "seconds" => 1e6,
        "m" | "min" | "minute" | "minutes" => 60e6,
        "h" | "hour" | "hours" => 3_600e6,
        "d" | "day" | "days" => 86_400e6,
        _ => return None,
    };
    let us = number * unit_us;
    (1.0..=DURATION_US_MAX).contains(&us).then(|| Duration::from_micros(us as u64))
}

fn bytes(text: &str) -> Option<i64> {
    let (number, unit) = number_and_unit(text)?;
    let factor: f64 = match unit.as_str() {
        "" | "b" | "bytes" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "kib" | "k" => 1024.0,
        "mib" | "m" => 1048576.0,
        "gib" | "g" => 1073741824.0,
        _ => return None,
    };
    let bytes = number * factor;
    // Up to 2^53 every whole number is a float.
    (1.0..=9.0e15).contains(&bytes).then_some(bytes as i64)
}

/// The beginning of a text from outside, for a message.
pub fn shortened(text: &str) -> String {
    const CHARACTERS_MAX: usize = 80;
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::description::Opening;
    use super::super::{ConnectorDescription, DirectionDescription};
    use super::*;

    const DESCRIPTION: ConnectorDescription = ConnectorDescription {
        name: "pipe",
        summary: "",
        address: "",
        source: Some(DirectionDescription {
            help: "",
            formats: &[],
            guarantees: &[],
            options: &[
                option("follow", OptionKind::Boolean, Some("false")),
                option("rows", OptionKind::Integer { min: 1, max: 9 }, None),
                option("wait", OptionKind::Duration, Some("1 s")),
                option("size", OptionKind::Bytes, Some("1 MiB")),
                option("start", OptionKind::Choice(&["first", "last"]), None),
                option("columns", OptionKind::Names, None),
                option("properties.*", OptionKind::Text, None),
                option("tls.*", OptionKind::Among(&[("ca", OptionKind::File), ("key", OptionKind::Secret)]), None),
                option("broker", OptionKind::Broker, None),
            ],
        }),
        sink: None,
        example: "",
        open: Opening::NONE,
    };

    const fn option(name: &'static str, kind: OptionKind, default: Option<&'static str>) -> OptionDescription {
        OptionDescription { name, kind, default, help: "" }
    }

    fn check(given: &[(&str, &str)]) -> Result<Options, String> {
        let given: Vec<(String, String)> =
            given.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        DESCRIPTION.check_options(Direction::Source, &given).map_err(|error| error.to_string())
    }

    #[test]
    fn values_and_defaults() {
        let options = check(&[
            ("FOLLOW", "True"),
            ("rows", " 7"),
            ("wait", "1.5 minutes"),
            ("start", "LAST"),
            ("columns", "a, B"),
            ("properties.a.b", "c"),
        ])
        .unwrap();
        assert!(options.boolean("follow"));
        assert_eq!((options.integer("rows"), options.count("size")), (Some(7), Some(1 << 20)));
        assert_eq!(options.duration("wait"), Some(Duration::from_secs(90)));
        assert_eq!(
            (options.text("start"), options.names("columns")),
            (Some("last"), &["a".to_owned(), "B".into()][..])
        );
        assert_eq!(options.by_beginning("properties.*").collect::<Vec<_>>(), [("a.b", "c")]);
        let options = check(&[]).unwrap();
        assert_eq!((options.boolean("follow"), options.integer("rows"), options.text("start")), (false, None, None));
        assert_eq!(options.duration("wait"), Some(Duration::from_secs(1)));
    }

    #[test]
    fn secrets_are_not_shown() {
        let described = DESCRIPTION.source.as_ref().unwrap().options;
        for (name, value, seen) in [
            ("rows", "7", "7"),
            ("properties.a", "b", "b"),
            ("TLS.key", "rose", "***"),
            ("tls.ca", "/a/b", "/a/b"),
            ("tls.older", "rose", "***"),
            ("unknown", "rose", "***"),
            ("broker", "mqtt://kim:rose@host", "mqtt://kim:***@host"),
            ("broker", "mqtt://kim:ro:s@e@host", "mqtt://kim:***@host"),
            ("broker", "mqtt://host:1883", "mqtt://host:1883"),
        ] {
            assert_eq!(shown(described, name, value), seen, "{name}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_a_hint() {
        let problem = |name: &str, value: &str| check(&[(name, value)]).unwrap_err();
        assert_eq!(problem("folow", "true"), "'pipe:' as a source has no option 'folow'\nhint: did you mean 'follow'?");
        assert!(
            problem("x", "").ends_with(
                "hint: its options are follow, rows, wait, size, start, columns, properties.*, tls.*, broker"
            )
        );
        assert!(problem("properties.", "x").contains("no option 'properties.'"));
        assert_eq!(
            problem("rows", "10"),
            "the option 'rows' of 'pipe:' cannot be '10'\nhint: it is a whole number from 1 to 9"
        );
        assert!(problem("wait", "0 s").contains("a time span, as '500 ms'"));
        assert!(problem("wait", "1e9 days").contains("cannot be"));
        assert!(problem("size", "lots").contains("'64 MiB'"));
        assert!(problem("start", "middle").ends_with("one of first, last"));
        assert!(problem("columns", "a,,b").ends_with("names with commas between"));
        assert!(problem("rows", &"9".repeat(1000)).len() < 250);
        assert!(check(&[("rows", "1"), ("Rows", "2")]).unwrap_err().contains("given twice"));
        assert!(check(&[("tls.ca", "x")]).is_ok());
        assert_eq!(
            problem("tls.cb", "x"),
            "the option 'tls.cb' of 'pipe:' is not allowed in a statement\nhint: did you mean 'tls.ca'?"
        );
        assert!(problem("tls.engine", "x").contains("hint: docs/reference/connectors.md lists"));
    }
}
