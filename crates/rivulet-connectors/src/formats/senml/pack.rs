//! Reads a pack record by record, with base values, names and times resolved (RFC 8428, section 4.6).

use super::super::fault::{Fault, Problem};
use super::super::json::{Reader, Span};
use super::super::number::Number;
use super::super::timestamp;
use super::NAME_BYTES_MAX;

/// A pack being read.
pub(super) struct Pack<'p, 's> {
    reader: Reader<'p>,
    /// Strings that were written with escapes, decoded.
    scratch: &'s mut Vec<u8>,
    arrival_us: i64,
    base: Base,
    /// Whether this is the older form, whose records are in the array `e` of an object.
    is_draft: bool,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Begin,
    Within,
    End,
}

/// The base fields, which apply to the record that has them and to all that follow.
#[derive(Clone, Copy)]
struct Base {
    name: Span,
    unit: Option<Span>,
    time_us: i64,
    value: f64,
    /// The times of this pack are in milliseconds.
    in_milliseconds: bool,
}

/// One resolved record.
pub(super) struct Record<'p> {
    /// The base name; the record's full name is this followed by `name`.
    pub(super) base_name: Span,
    /// The name as the record has it.
    pub(super) name: Span,
    /// The unit.
    pub(super) unit: Option<Span>,
    /// The value.
    pub(super) value: Value<'p>,
    /// The base value, which is added to a numeric value.
    pub(super) base_value: f64,
    /// The absolute time, microseconds since the epoch.
    pub(super) time_us: i64,
    /// Where the value (or the record, if it has none) begins.
    pub(super) at: usize,
}

/// A record's value.
#[derive(Clone, Copy)]
pub(super) enum Value<'p> {
    /// No supported value: only a sum, or binary data.
    None,
    /// `v`, and the text it was written as.
    Number(Number, &'p [u8]),
    /// `v` written as a string, as some devices do.
    NumberText(Span),
    /// `vs`, or `sv` in the older form.
    Text(Span),
    /// `vb`, or `bv` in the older form.
    Flag(bool),
}

/// What a field of a record or of the older form's object means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    BaseName,
    BaseTime,
    BaseUnit,
    /// `bv`: the base value, or a boolean in the older form.
    BaseValue,
    Name,
    Unit,
    Number,
    Text,
    Flag,
    Time,
    /// A sum or binary data: a value, but none that we take.
    OtherValue,
    Entries,
    Ignored,
    MustUnderstand,
}

impl Label {
    fn of(key: &[u8]) -> Self {
        match key {
            b"bn" => Self::BaseName,
            b"bt" => Self::BaseTime,
            b"bu" => Self::BaseUnit,
            b"bv" => Self::BaseValue,
            b"n" => Self::Name,
            b"u" => Self::Unit,
            b"v" => Self::Number,
            b"vs" | b"sv" => Self::Text,
            b"vb" => Self::Flag,
            b"t" => Self::Time,
            b"s" | b"vd" => Self::OtherValue,
            b"e" => Self::Entries,
            [.., b'_'] => Self::MustUnderstand,
            _ => Self::Ignored,
        }
    }
}

impl<'p, 's> Pack<'p, 's> {
    /// Begins to read `payload`, which arrived at `arrival_us`. `scratch` is overwritten.
    pub(super) fn open(payload: &'p [u8], arrival_us: i64, scratch: &'s mut Vec<u8>) -> Result<Self, Fault> {
        scratch.clear();
        let mut pack = Self {
            reader: Reader::new(payload),
            scratch,
            arrival_us,
            // Adding -0.0 changes no number, not even -0.0.
            base: Base { name: Span::default(), unit: None, time_us: 0, value: -0.0, in_milliseconds: false },
            is_draft: false,
            state: State::Begin,
        };
        pack.reader.skip_whitespace();
        match pack.reader.peek() {
            b'[' => Ok(pack),
            b'{' => pack.open_draft(),
            _ => Err(pack.reader.fault(Problem::NoSenMlPack)),
        }
    }

    /// Reads the base fields of the older form, which may stand behind the records, and goes back to these.
    fn open_draft(mut self) -> Result<Self, Fault> {
        let begin = self.reader.offset();
        self.is_draft = true;
        let mut entries_at = None;
        let mut another = self.reader.enter(b'}');
        while another {
            match self.label()? {
                Label::Entries if self.reader.peek() == b'[' => {
                    entries_at = Some(self.reader.offset());
                    self.reader.skip_value(1)?;
                }
                Label::Entries => return Err(self.reader.fault(Problem::NoSenMlPack)),
                Label::BaseName => self.base.name = self.string()?,
                Label::BaseUnit => self.base.unit = Some(self.string()?),
                Label::BaseTime => self.base_time()?,
                Label::BaseValue => self.base.value = self.base_value()?,
                _ => self.reader.skip_value(1)?,
            }
            another = self.reader.another(b'}')?;
        }
        self.reader.finish()?;
        let entries_at = entries_at.ok_or(Fault::new(Problem::NoSenMlPack, begin))?;
        self.reader = Reader::at(self.reader.payload(), entries_at);
        Ok(self)
    }

    /// The bytes of a string of this pack, valid UTF-8.
    #[inline]
    pub(super) fn text(&self, span: Span) -> &[u8] {
        span.of(self.reader.payload(), self.scratch)
    }

    /// The next record that is more than base fields.
    pub(super) fn next(&mut self) -> Result<Option<Record<'p>>, Fault> {
        loop {
            let another = match self.state {
                State::Begin => self.reader.enter(b']'),
                State::Within => self.reader.another(b']')?,
                State::End => false,
            };
            if !another {
                // The rest behind the records of the older form was read before them.
                if self.state != State::End && !self.is_draft {
                    self.reader.finish()?;
                }
                self.state = State::End;
                return Ok(None);
            }
            self.state = State::Within;
            if let Some(record) = self.record()? {
                return Ok(Some(record));
            }
        }
    }

    fn record(&mut self) -> Result<Option<Record<'p>>, Fault> {
        let depth = 2 + usize::from(self.is_draft);
        let mut at = self.reader.offset();
        if self.reader.peek() != b'{' {
            return Err(self.reader.fault(Problem::ExpectedRecord));
        }
        let (mut name, mut unit, mut time, mut value) = (Span::default(), None, None, None);
        let mut only_base = true;
        let mut another = self.reader.enter(b'}');
        while another {
            let key_at = self.reader.offset();
            let label = self.label()?;
            let value_at = self.reader.offset();
            only_base &= matches!(label, Label::BaseName | Label::BaseTime | Label::BaseUnit | Label::BaseValue)
                || label == Label::Ignored;
            match label {
                Label::BaseName => self.base.name = self.string()?,
                Label::BaseUnit => self.base.unit = Some(self.string()?),
                Label::BaseTime => self.base_time()?,
                Label::BaseValue if matches!(self.reader.peek(), b't' | b'f') => {
                    only_base = false;
                    value = Some(Value::Flag(self.reader.boolean()?));
                    at = value_at;
                }
                Label::BaseValue => self.base.value = self.base_value()?,
                Label::Name => name = self.string()?,
                Label::Unit => unit = Some(self.string()?),
                Label::Time => time = Some(self.time(self.base.in_milliseconds)?.0),
                Label::Number if self.reader.peek() == b'"' => {
                    value = Some(Value::NumberText(self.string()?));
                    at = value_at;
                }
                Label::Number => {
                    let (number, text) = self.reader.number(Problem::ExpectedNumber)?;
                    value = Some(Value::Number(number, text));
                    at = value_at;
                }
                Label::Text => {
                    value = Some(Value::Text(self.string()?));
                    at = value_at;
                }
                Label::Flag => {
                    value = Some(Value::Flag(self.reader.boolean()?));
                    at = value_at;
                }
                Label::OtherValue => {
                    self.reader.skip_value(depth)?;
                    value = value.or(Some(Value::None));
                }
                Label::Entries | Label::Ignored => self.reader.skip_value(depth)?,
                Label::MustUnderstand => return Err(Fault::new(Problem::SenMlMustUnderstand, key_at)),
            }
            another = self.reader.another(b'}')?;
        }
        if only_base {
            return Ok(None);
        }
        let base = self.base;
        let unit = unit.or(base.unit);
        match base.name.len() + name.len() {
            0 => return Err(Fault::new(Problem::NoSenMlName, at)),
            1..=NAME_BYTES_MAX if unit.is_none_or(|unit| unit.len() <= NAME_BYTES_MAX) => {}
            _ => return Err(Fault::new(Problem::SenMlNameTooLong, at)),
        }
        let value = value.ok_or(Fault::new(Problem::NoSenMlValue, at))?;
        let time_us = self.absolute_time(time.unwrap_or(0)).map_err(|problem| Fault::new(problem, at))?;
        Ok(Some(Record { base_name: base.name, name, unit, value, base_value: base.value, time_us, at }))
    }

    fn label(&mut self) -> Result<Label, Fault> {
        if let Some((key, length)) = self.reader.take_short_key() {
            self.reader.skip_whitespace();
            return Ok(Label::of(&key[..length]));
        }
        let key = self.reader.key(self.scratch)?;
        Ok(Label::of(self.text(key)))
    }

    fn string(&mut self) -> Result<Span, Fault> {
        if self.reader.peek() != b'"' {
            return Err(self.reader.fault(Problem::ExpectedString));
        }
        self.reader.string_span(self.scratch)
    }

    fn base_value(&mut self) -> Result<f64, Fault> {
        let at = self.reader.offset();
        let (number, text) = self.reader.number(Problem::ExpectedNumber)?;
        number.to_f64(text).map_err(|problem| Fault::new(problem, at))
    }

    fn base_time(&mut self) -> Result<(), Fault> {
        (self.base.time_us, self.base.in_milliseconds) = self.time(false)?;
        Ok(())
    }

    /// A time in microseconds, and whether it was in milliseconds. RFC 8428 has seconds; packs of the older form are
    /// in use with milliseconds, which show by their size (as seconds they would lie beyond the year 5000).
    fn time(&mut self, in_milliseconds: bool) -> Result<(i64, bool), Fault> {
        const MILLISECONDS_FROM: f64 = 1e11;
        let at = self.reader.offset();
        let here = |problem| Fault::new(problem, at);
        let (number, text) = if self.reader.peek() == b'"' {
            let span = self.string()?;
            let text = span.of(self.reader.payload(), self.scratch);
            (Number::of(text).map_err(here)?, text)
        } else {
            self.reader.number(Problem::ExpectedNumber)?
        };
        let in_milliseconds = in_milliseconds || (self.is_draft && number.is_at_least(text, MILLISECONDS_FROM));
        let scale = if in_milliseconds { 3 } else { 6 };
        let time_us = number.to_scaled_rounded(text, scale).map_err(|_| here(Problem::TimestampRange))?;
        Ok((time_us, in_milliseconds))
    }

    /// Base time plus the record's time; a sum below 2^28 seconds is relative to the arrival (RFC 8428, 4.5.3).
    fn absolute_time(&self, time_us: i64) -> Result<i64, Problem> {
        const ABSOLUTE_FROM_US: i64 = (1 << 28) * 1_000_000;
        let sum_us = self.base.time_us.checked_add(time_us).ok_or(Problem::TimestampRange)?;
        let absolute_us = if sum_us < ABSOLUTE_FROM_US {
            self.arrival_us.checked_add(sum_us).ok_or(Problem::TimestampRange)?
        } else {
            sum_us
        };
        timestamp::check_range(absolute_us)
    }
}
