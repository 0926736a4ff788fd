//! What is shown of applications and tables, and what a new version of an application does.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::queries::EndHealth;
use crate::counted::counted;

/// What an application is made of.
#[derive(Clone, Copy, Debug)]
pub enum Code<'c> {
    /// The text of one `CREATE APPLICATION`.
    Statement(&'c str),
    /// Code of some kind, as the server may load it. That of the kind `sql` is the text of one `CREATE APPLICATION`.
    Of(&'c str, &'c [u8]),
}

/// A reference table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Table)]
pub struct TableInfo {
    /// Its name.
    #[schema(example = "stations")]
    pub name: String,
    /// The SQL text it was created with, without rows that stand in it and are long.
    pub sql: String,
    /// The file its rows are read from, or that there is none.
    #[schema(example = "data/stations.csv")]
    pub file: String,
    /// Its columns.
    pub columns: Vec<TableColumn>,
    /// How many rows it has.
    pub rows: u64,
    /// How many bytes they take in memory.
    pub bytes: u64,
    /// The applications that look events up in it.
    pub applications: Vec<String>,
    /// The views and big queries that cannot exist without it; not in a list of tables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needed_by: Vec<String>,
    /// Why it has no rows; the applications that use it do not run then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_running: Option<String>,
    /// What is wrong with lines of the file that the start of the server could not read, so that the table runs without
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// A column of a reference table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TableColumn {
    /// Its name.
    #[schema(example = "price")]
    pub name: String,
    /// Its SQL type.
    #[serde(rename = "type")]
    #[schema(example = "DOUBLE")]
    pub data_type: String,
}

/// A secret, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Secret)]
pub struct SecretInfo {
    /// Its name.
    #[schema(example = "kafka_password")]
    pub name: String,
    /// When it got its value, in milliseconds since 1970.
    pub changed_at_ms: i64,
    /// What names it, as `sink 'alarms'` and `application 'floors'`.
    pub used_by: Vec<String>,
}

impl TableInfo {
    /// `running`, or `not running: ` and the reason; and the lines it runs without.
    pub fn state(&self) -> String {
        match (&self.not_running, &self.left_out) {
            (Some(reason), _) => format!("not running: {reason}"),
            (None, Some(left_out)) => format!("running without lines that cannot be read: {left_out}"),
            (None, None) => "running".into(),
        }
    }
}

/// A registered application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Application)]
pub struct ApplicationInfo {
    /// The hash of its canonical text; the same text has the same id.
    #[schema(example = "5f1c4c2be1f0a0c1")]
    pub id: String,
    /// Its name.
    #[schema(example = "ac_control")]
    pub name: String,
    /// The SQL text it was registered with.
    pub sql: String,
    /// Its parameters.
    pub parameters: Vec<ParameterInfo>,
    /// Template of the input topic; of several inputs all, with `, ` between.
    #[schema(example = "home/{home}/temperature")]
    pub input_topic: String,
    /// Template of the output topic; of several outputs all, with `, ` between.
    #[schema(example = "home/{home}/ac")]
    pub output_topic: String,
    /// Queries that run.
    pub queries_running: u64,
    /// Queries that are paused.
    pub queries_paused: u64,
    /// Queries that are registered and cannot run.
    #[serde(default)]
    pub queries_not_running: u64,
    /// Why this version cannot run it; parameters and topics are empty then. It can be dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_running: Option<String>,
    /// What of it is probably a mistake: it runs all the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// How what is no topic gets on: the source of each input, and the sink of each output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<EndHealth>,
    /// What became of the application of its name, where it was to be replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<Replacement>,
}

/// What became of an application of which a new version was registered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replacement {
    /// Whether there was none of its name.
    pub is_new: bool,
    /// Whether there was one with another text, which it has replaced.
    pub is_changed: bool,
    /// How many queries it has taken over.
    pub queries: u64,
    /// Parameters that queries had values for and that are no more; the values are forgotten.
    pub parameters_dropped: Vec<String>,
    /// Operators of the version before whose state is forgotten, and why.
    pub state_discarded: Vec<String>,
}

/// The outcome of giving a new version of a big query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryReplacement {
    /// Whether there was no query of its name.
    pub is_new: bool,
    /// Whether it has replaced a query with another text.
    pub is_changed: bool,
    /// The checkpoint of the version before from which it continues; without one it begins anew.
    pub epoch: Option<u64>,
    /// Whether it is paused, as the version before was.
    pub is_paused: bool,
    /// Operators of the version before whose state it has taken over.
    pub state_kept: Vec<String>,
    /// Operators of the version before whose state is discarded, and why.
    pub state_discarded: Vec<String>,
    /// Sources that the version before did not read.
    pub sources_new: Vec<String>,
    /// Sources that it no longer reads.
    pub sources_gone: Vec<String>,
    /// Sources whose rows between the two versions it does not get, because these sources cannot repeat rows.
    pub sources_not_repeated: Vec<String>,
}

impl QueryReplacement {
    /// In a sentence, for users.
    pub fn text(&self, name: &str) -> String {
        if !self.is_changed {
            return match self.is_new {
                true => format!("query {name} created"),
                false => format!("query {name} has this text already, nothing was done"),
            };
        }
        let mut text = match self.epoch {
            Some(epoch) => format!("query {name} replaced, goes on from its checkpoint {epoch}"),
            None => format!("query {name} replaced, begins anew"),
        };
        let mut add = |what: &str, named: &[String]| {
            if !named.is_empty() {
                text += &format!("; {what}: {}", named.join("; "));
            }
        };
        add("state is taken over", &self.state_kept);
        add("state is forgotten", &self.state_discarded);
        add("begins with", &self.sources_new);
        add("does not read any more", &self.sources_gone);
        add("not read is what came meanwhile by", &self.sources_not_repeated);
        if self.is_paused {
            text += "; it is paused";
        }
        text
    }

    /// The same as rows: what happened, and to what.
    pub fn rows(&self) -> Vec<[&str; 2]> {
        let kinds: [(&[String], &str); 5] = [
            (&self.state_kept, "state taken over"),
            (&self.state_discarded, "state forgotten"),
            (&self.sources_new, "source begins"),
            (&self.sources_gone, "source not read any more"),
            (&self.sources_not_repeated, "what came meanwhile is not read"),
        ];
        kinds.into_iter().flat_map(|(named, became)| named.iter().map(move |one| [became, one.as_str()])).collect()
    }
}

impl Replacement {
    /// In a sentence, for users.
    pub fn text(&self, name: &str) -> String {
        if !self.is_changed {
            return match self.is_new {
                true => format!("application {name} created"),
                false => format!("application {name} is registered already"),
            };
        }
        let go = if self.queries == 1 { "goes" } else { "go" };
        let mut text = format!("application {name} replaced, {} {go} on", counted(self.queries, "query"));
        if !self.parameters_dropped.is_empty() {
            text += &format!("; their values of {} are forgotten", self.parameters_dropped.join(", "));
        }
        if !self.state_discarded.is_empty() && self.queries > 0 {
            text += &format!("; state is forgotten: {}", self.state_discarded.join("; "));
        }
        text
    }
}

impl ApplicationInfo {
    /// `running`, or `not running: ` and the reason.
    pub fn state(&self) -> String {
        self.not_running.as_ref().map_or_else(|| "running".into(), |reason| format!("not running: {reason}"))
    }

    /// The number of its queries, in words.
    pub fn queries(&self) -> String {
        let mut text = format!("{} running, {} paused", self.queries_running, self.queries_paused);
        if self.queries_not_running > 0 {
            text.push_str(&format!(", {} not running", self.queries_not_running));
        }
        text
    }
}

/// A parameter of an application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ParameterDeclaration)]
pub struct ParameterInfo {
    /// Its name.
    #[schema(example = "target")]
    pub name: String,
    /// Its SQL type.
    #[serde(rename = "type")]
    #[schema(example = "DOUBLE")]
    pub data_type: String,
    /// The default as SQL text; a parameter without one is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "24.0")]
    pub default: Option<String>,
}
