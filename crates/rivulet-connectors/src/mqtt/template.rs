//! Topic templates: `home/{home}/temperature`, parsed once, filled in for every query.

use std::fmt;

use super::topic::{self, TopicError, push_level};

/// The connector's prefix in the address of a source or sink.
const PREFIX: &str = "mqtt:";

/// The use of a template's topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Queries read from them: the literal text may contain wildcards.
    Input,
    /// Queries write to them: wildcards are not allowed.
    Output,
    /// Queries read the events of a key, which begins with [`SOURCE_MARK`](topic::SOURCE_MARK) in the place of a topic:
    /// a value is any text.
    Key,
}

/// A topic with parameters in it.
///
/// A template that consists of one parameter (`{input}`) stands for a whole topic: its values may contain `/` and, for
/// inputs, wildcards, and may begin with `mqtt:`. Everywhere else a value is a part of one level.
///
/// ```
/// use rivulet_connectors::mqtt::template::{Direction, Template};
///
/// let template = Template::parse("home/{home}/temperature", &["home", "target"], Direction::Input).unwrap();
/// assert_eq!(template.filter().as_deref(), Some("home/+/temperature"));
/// assert_eq!(template.bind(|_| "42").unwrap(), "home/42/temperature");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
    /// The names of the parameters, for messages.
    names: Vec<Box<str>>,
    direction: Direction,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(Box<str>),
    /// A parameter: its index in the list given to [`Template::parse`], and its index in `names`.
    Parameter {
        index: usize,
        name: usize,
    },
}

/// Why a template cannot be parsed, or a value does not fit into it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A `{` is not closed.
    #[error("the '{{' at byte {position} of the topic template '{template}' is not closed\nhint: write '{{name}}'")]
    Unclosed {
        /// The template.
        template: String,
        /// The byte position.
        position: usize,
    },
    /// A `}` closes nothing.
    #[error("the '}}' at byte {position} of the topic template '{template}' closes nothing\nhint: write '{{name}}'")]
    Unopened {
        /// The template.
        template: String,
        /// The byte position.
        position: usize,
    },
    /// No parameter has this name.
    #[error("unknown parameter '{name}' at byte {position} of the topic template '{template}'\nhint: {}", known(.parameters))]
    UnknownParameter {
        /// The template.
        template: String,
        /// The byte position.
        position: usize,
        /// The name.
        name: String,
        /// The known names.
        parameters: Vec<String>,
    },
    /// A value is not allowed in its place.
    #[error(
        "parameter '{parameter}' with the value '{value}' does not fit into the topic template '{template}': {problem}\nhint: a value is a part of one topic level: not empty, without '+', '#', '/' and NUL; a name of several levels is a parameter that is the whole topic, 'mqtt:{{topic}}'"
    )]
    Value {
        /// The template.
        template: String,
        /// The parameter.
        parameter: String,
        /// Its value.
        value: String,
        /// The problem.
        problem: &'static str,
    },
    /// The template, or the filled-in text, is not a topic.
    #[error(transparent)]
    Topic(#[from] TopicError),
}

fn known(parameters: &[String]) -> String {
    match parameters {
        [] => "the application declares no parameters".to_owned(),
        names => format!("the parameters are {}", names.join(", ")),
    }
}

impl Template {
    /// Parses a template over these parameters.
    pub fn parse(text: &str, parameters: &[&str], direction: Direction) -> Result<Self, TemplateError> {
        let mut template = Self { pieces: Vec::new(), names: Vec::new(), direction };
        let mut position = 0;
        while let Some(offset) = text[position..].find(['{', '}']) {
            let brace = position + offset;
            if brace > position {
                template.pieces.push(Piece::Literal(text[position..brace].into()));
            }
            if text.as_bytes()[brace] == b'}' {
                return Err(TemplateError::Unopened { template: text.to_owned(), position: brace });
            }
            let rest = &text[brace + 1..];
            let Some(close) = rest.find(['{', '}']).filter(|&close| rest.as_bytes()[close] == b'}') else {
                return Err(TemplateError::Unclosed { template: text.to_owned(), position: brace });
            };
            let name = &rest[..close];
            let Some(index) = parameters.iter().position(|parameter| *parameter == name) else {
                return Err(TemplateError::UnknownParameter {
                    template: text.to_owned(),
                    position: brace,
                    name: name.to_owned(),
                    parameters: parameters.iter().map(|name| (*name).to_owned()).collect(),
                });
            };
            template.pieces.push(Piece::Parameter { index, name: template.names.len() });
            template.names.push(name.into());
            position = brace + 1 + close + 1;
        }
        if position < text.len() {
            template.pieces.push(Piece::Literal(text[position..].into()));
        }
        // With plain values for the parameters it must be a topic.
        template.check(&template.fill(|_| "x"))?;
        Ok(template)
    }

    /// Whether the template consists of one parameter, whose values are whole topics.
    pub fn is_whole_topic(&self) -> bool {
        matches!(self.pieces[..], [Piece::Parameter { .. }])
    }

    /// The parameters in the template, by their index in the list given to [`Template::parse`], in order of appearance.
    pub fn parameters(&self) -> impl Iterator<Item = usize> + '_ {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Parameter { index, .. } => Some(*index),
            Piece::Literal(_) => None,
        })
    }

    /// The one filter that matches the topics of all queries: every level with a parameter is a `+`.
    ///
    /// `None` if the template is a whole topic: then every query needs its own subscription, to the result of
    /// [`Template::bind`]. Also `None` for keys, which have no subscriptions.
    pub fn filter(&self) -> Option<String> {
        if self.is_whole_topic() || self.direction == Direction::Key {
            return None;
        }
        // NUL stands for the parameters: no topic contains it.
        let text = self.fill(|_| "\0");
        let levels: Vec<&str> = text.split('/').map(|level| if level.contains('\0') { "+" } else { level }).collect();
        Some(levels.join("/"))
    }

    /// The topic (or, for an input, filter) of one query. `value` gives the text of a parameter by its index in the
    /// list given to [`Template::parse`].
    ///
    /// Fails if a value does not fit, so that one query cannot read or write the topics of others.
    pub fn bind<'v>(&self, value: impl Fn(usize) -> &'v str) -> Result<String, TemplateError> {
        if !self.is_whole_topic() && self.direction != Direction::Key {
            for piece in &self.pieces {
                if let Piece::Parameter { index, name } = *piece
                    && let Some(problem) = level_problem(value(index))
                {
                    return Err(TemplateError::Value {
                        template: self.to_string(),
                        parameter: self.names[name].to_string(),
                        value: value(index).to_owned(),
                        problem,
                    });
                }
            }
        }
        let text = self.fill(value);
        self.check(&text)?;
        Ok(text)
    }

    /// Appends the topic of one query to `out` without checking it: [`Template::bind`] has checked the values. `write`
    /// appends the text of a parameter by its index in the list given to [`Template::parse`].
    #[inline]
    pub fn write(&self, out: &mut String, mut write: impl FnMut(usize, &mut String)) {
        let start = out.len();
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => out.push_str(text),
                Piece::Parameter { index, .. } if self.direction == Direction::Key => {
                    let start = out.len();
                    write(*index, out);
                    escape_from(start, out);
                }
                Piece::Parameter { index, .. } => write(*index, out),
            }
        }
        if self.is_whole_topic() && out[start..].starts_with(PREFIX) {
            out.replace_range(start..start + PREFIX.len(), "");
        }
    }

    fn fill<'v>(&self, value: impl Fn(usize) -> &'v str) -> String {
        let mut text = String::new();
        self.write(&mut text, |index, out| out.push_str(value(index)));
        text
    }

    fn check(&self, text: &str) -> Result<(), TopicError> {
        match self.direction {
            Direction::Input => topic::check_filter(text),
            Direction::Key => topic::check_route(text),
            Direction::Output => topic::check_topic(text.as_bytes()).map(|_| ()),
        }
    }
}

/// Escapes the text from `start` on as one level of a topic.
fn escape_from(start: usize, out: &mut String) {
    if out[start..].contains(['+', '#', '/', '%', '{', '}', '\0']) {
        let mut level = Vec::new();
        push_level(&out[start..], &mut level);
        out.truncate(start);
        out.push_str(&String::from_utf8_lossy(&level));
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => f.write_str(text)?,
                Piece::Parameter { name, .. } => write!(f, "{{{}}}", self.names[*name])?,
            }
        }
        Ok(())
    }
}

/// Why a value cannot be a part of one level, if it cannot.
pub(crate) fn level_problem(value: &str) -> Option<&'static str> {
    if value.is_empty() {
        return Some("it is empty");
    }
    value.chars().find_map(|character| match character {
        '+' | '#' => Some("it contains a wildcard"),
        '/' => Some("it contains a '/'"),
        '\0' => Some("it contains a NUL character"),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMETERS: &[&str] = &["home", "room", "input"];

    fn input(text: &str) -> Template {
        Template::parse(text, PARAMETERS, Direction::Input).unwrap()
    }

    fn values(index: usize) -> &'static str {
        ["42", "kitchen", "mqtt:a/+/b"][index]
    }

    #[test]
    fn a_level_with_a_parameter_becomes_a_plus() {
        assert_eq!(input("home/{home}/temperature").filter().unwrap(), "home/+/temperature");
        assert_eq!(input("h-{home}-{room}/x/{room}").filter().unwrap(), "+/x/+");
        assert_eq!(input("plain/topic").filter().unwrap(), "plain/topic");
        assert_eq!(input("{home}/{room}").filter().unwrap(), "+/+");
        assert_eq!(input("{input}").filter(), None);
    }

    #[test]
    fn parameters_are_filled_in() {
        let template = input("h-{home}-{room}/x/{room}");
        assert_eq!(template.bind(values).unwrap(), "h-42-kitchen/x/kitchen");
        assert_eq!(template.parameters().collect::<Vec<_>>(), [0, 1, 1]);
        let mut out = String::from(">");
        template.write(&mut out, |index, out| out.push_str(values(index)));
        assert_eq!(out, ">h-42-kitchen/x/kitchen");
        assert_eq!(template.to_string(), "h-{home}-{room}/x/{room}");
    }

    #[test]
    fn a_whole_topic_may_have_levels_wildcards_and_the_prefix() {
        assert_eq!(input("{input}").bind(values).unwrap(), "a/+/b");
        let output = Template::parse("{input}", PARAMETERS, Direction::Output).unwrap();
        assert!(matches!(output.bind(values), Err(TemplateError::Topic(TopicError::Wildcard { .. }))));
        assert_eq!(output.bind(|_| "mqtt:a/b").unwrap(), "a/b");
        assert_eq!(output.bind(|_| ""), Err(TemplateError::Topic(TopicError::Empty)));
    }

    #[test]
    fn values_that_reach_beyond_their_level_are_refused() {
        let template = input("home/{home}/temperature");
        for value in ["", "+", "#", "a/b", "a\0", "4+2"] {
            let error = template.bind(|_| value).unwrap_err();
            assert!(matches!(&error, TemplateError::Value { parameter, .. } if parameter == "home"), "{error}");
            assert!(error.to_string().contains("hint:"));
        }
    }

    #[test]
    fn broken_templates_are_refused_with_their_position() {
        let error = |text: &str| Template::parse(text, PARAMETERS, Direction::Input).unwrap_err();
        assert!(matches!(error("a/{home"), TemplateError::Unclosed { position: 2, .. }));
        assert!(matches!(error("a/{home/{room}"), TemplateError::Unclosed { position: 2, .. }));
        assert!(matches!(error("a/home}"), TemplateError::Unopened { position: 6, .. }));
        assert!(matches!(error("a/{hme}"), TemplateError::UnknownParameter { position: 2, .. }));
        assert!(error("a/{hme}").to_string().ends_with("hint: the parameters are home, room, input"));
        assert!(matches!(error("a/#/{home}"), TemplateError::Topic(TopicError::HashNotLast { .. })));
        assert!(matches!(error(""), TemplateError::Topic(TopicError::Empty)));
        assert!(Template::parse("a/+/{home}", PARAMETERS, Direction::Output).is_err());
        assert!(Template::parse("a/+/{home}", PARAMETERS, Direction::Input).is_ok());
    }
}
