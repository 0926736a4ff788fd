//! A finding about a data folder.

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Good,
    /// Worth knowing.
    Notice,
    /// Something is lost, or a server cannot use it.
    Problem,
}

impl Level {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Notice => "notice",
            Self::Problem => "problem",
        }
    }
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// Its subject: `folder`, `catalog`, `checkpoints`, `big queries`, `log`, `broker`.
    pub about: &'static str,
    /// What was found, in a sentence without a full stop.
    pub text: String,
    /// What to do about it.
    pub advice: Option<String>,
}

pub(super) fn good(about: &'static str, text: String) -> Finding {
    Finding { level: Level::Good, about, text, advice: None }
}

pub(super) fn notice(about: &'static str, text: String, advice: &str) -> Finding {
    Finding { level: Level::Notice, about, text, advice: Some(advice.to_owned()) }
}

pub(super) fn problem(about: &'static str, text: String, advice: impl Into<String>) -> Finding {
    Finding { level: Level::Problem, about, text, advice: Some(advice.into()) }
}
