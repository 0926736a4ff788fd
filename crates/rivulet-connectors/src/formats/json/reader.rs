//! Reads JSON (RFC 8259) from one payload, token by token, refusing whatever is not exactly that.
//!
//! Nothing is allocated here: strings are copied to where they are wanted, or handed out as spans. Past the end the
//! reader sees the byte 0, which is no token, so most places need no separate check for the end.

use super::super::fault::{Fault, Problem};
use super::super::number::{Number, word_at};
use super::DEPTH_MAX;

/// A position in a payload.
pub(crate) struct Reader<'p> {
    bytes: &'p [u8],
    at: usize,
}

/// A decoded string: a part of the payload, or of the scratch buffer where it had escapes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    start: u32,
    end: u32,
    in_scratch: bool,
}

impl Span {
    /// The bytes of the string, valid UTF-8 without quotes.
    #[inline]
    pub(crate) fn of<'a>(self, payload: &'a [u8], scratch: &'a [u8]) -> &'a [u8] {
        let whole = if self.in_scratch { scratch } else { payload };
        &whole[self.start as usize..self.end as usize]
    }

    /// The number of bytes.
    pub(crate) fn len(self) -> usize {
        (self.end - self.start) as usize
    }
}

/// Where the content of a string goes.
trait Destination {
    fn append(&mut self, text: &[u8]);
}

impl Destination for Vec<u8> {
    #[inline(always)]
    fn append(&mut self, text: &[u8]) {
        self.extend_from_slice(text);
    }
}

/// For strings that are checked and not kept.
struct Discard;

impl Destination for Discard {
    #[inline(always)]
    fn append(&mut self, _text: &[u8]) {}
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

impl<'p> Reader<'p> {
    /// A reader at the beginning of `bytes`.
    #[inline]
    pub(crate) fn new(bytes: &'p [u8]) -> Self {
        Self::at(bytes, 0)
    }

    /// A reader at byte `at`.
    #[inline]
    pub(crate) fn at(bytes: &'p [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// The whole payload.
    #[inline]
    pub(crate) fn payload(&self) -> &'p [u8] {
        self.bytes
    }

    /// The offset of the next byte.
    #[inline]
    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    /// The next byte, or 0 at the end.
    #[inline(always)]
    pub(crate) fn peek(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    /// Eight bytes beginning `ahead` bytes from here, little-endian, zeros past the end.
    #[inline(always)]
    pub(crate) fn word(&self, ahead: usize) -> u64 {
        word_at(self.bytes, self.at + ahead)
    }

    /// Whether the bytes from here on begin with `text`.
    #[inline]
    pub(crate) fn starts_with(&self, text: &[u8]) -> bool {
        self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(text))
    }

    /// Moves on by `count` bytes that were looked at and are there.
    #[inline(always)]
    pub(crate) fn advance(&mut self, count: usize) {
        self.at += count;
    }

    /// A fault at the next byte.
    #[inline]
    pub(crate) fn fault(&self, problem: Problem) -> Fault {
        Fault::new(problem, self.at)
    }

    /// Moves past white space.
    #[inline(always)]
    pub(crate) fn skip_whitespace(&mut self) {
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
    }

    /// Checks that nothing but white space follows.
    #[inline(always)]
    pub(crate) fn finish(&mut self) -> Result<(), Fault> {
        if self.at == self.bytes.len() {
            return Ok(());
        }
        self.skip_whitespace();
        if self.at < self.bytes.len() { Err(self.fault(Problem::TrailingBytes)) } else { Ok(()) }
    }

    /// Takes `literal`, or fails with `problem`.
    #[inline(always)]
    pub(crate) fn literal(&mut self, literal: &'static [u8], problem: Problem) -> Result<(), Fault> {
        if !self.starts_with(literal) {
            return Err(self.fault(problem));
        }
        self.at += literal.len();
        Ok(())
    }

    /// Whether the next token is `null`, which is then taken.
    #[inline]
    pub(crate) fn take_null(&mut self) -> bool {
        let is_null = self.peek() == b'n' && self.starts_with(b"null");
        if is_null {
            self.at += 4;
        }
        is_null
    }

    /// Takes a number and the text it was written as; anything else fails with `expected`.
    #[inline]
    pub(crate) fn number(&mut self, expected: Problem) -> Result<(Number, &'p [u8]), Fault> {
        if !is_number_start(self.peek()) {
            return Err(self.fault(expected));
        }
        let start = self.at;
        let number = self.scan_number()?;
        Ok((number, self.since(start)))
    }

    /// Takes a number, of which only the first byte was looked at.
    #[inline(always)]
    pub(crate) fn scan_number(&mut self) -> Result<Number, Fault> {
        let (number, end) = Number::scan::<false>(self.bytes, self.at).map_err(|problem| self.fault(problem))?;
        self.at = end;
        Ok(number)
    }

    /// What was taken since byte `start`.
    #[inline]
    pub(crate) fn since(&self, start: usize) -> &'p [u8] {
        &self.bytes[start..self.at]
    }

    /// Takes a boolean; anything else fails.
    #[inline(always)]
    pub(crate) fn boolean(&mut self) -> Result<bool, Fault> {
        if self.peek() == b't' {
            self.literal(b"true", Problem::ExpectedBoolean).map(|()| true)
        } else {
            self.literal(b"false", Problem::ExpectedBoolean).map(|()| false)
        }
    }

    /// Takes a string and appends its decoded content to `out`. The next byte must be the opening quote.
    #[inline(always)]
    pub(crate) fn string_into(&mut self, out: &mut Vec<u8>) -> Result<(), Fault> {
        self.string(out)
    }

    /// Takes a string. It is put into `scratch` only if it has escapes. The next byte must be the opening quote.
    #[inline]
    pub(crate) fn string_span(&mut self, scratch: &mut Vec<u8>) -> Result<Span, Fault> {
        let quote = self.at;
        self.at += 1;
        let start = self.at;
        self.plain_run()?;
        if self.peek() == b'"' {
            let span = Span { start: start as u32, end: self.at as u32, in_scratch: false };
            self.at += 1;
            return Ok(span);
        }
        self.at = quote;
        let start = scratch.len() as u32;
        self.string(scratch)?;
        Ok(Span { start, end: scratch.len() as u32, in_scratch: true })
    }

    #[inline(always)]
    fn string(&mut self, out: &mut impl Destination) -> Result<(), Fault> {
        debug_assert_eq!(self.peek(), b'"');
        self.at += 1;
        loop {
            let run = self.plain_run()?;
            out.append(run);
            match self.peek() {
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                b'\\' => {
                    let (buffer, length) = self.escape()?;
                    out.append(&buffer[..length]);
                }
                _ if self.at == self.bytes.len() => return Err(self.fault(Problem::UnterminatedString)),
                _ => return Err(self.fault(Problem::ControlCharacter)),
            }
        }
    }

    /// Takes the bytes of a string up to a quote, a backslash, a control character or the end. What it returns is
    /// valid UTF-8: none of these stops is part of a longer character.
    #[inline(always)]
    fn plain_run(&mut self) -> Result<&'p [u8], Fault> {
        let start = self.at;
        let mut high_bits = 0;
        loop {
            let word = self.word(0);
            // In each of these, the lowest byte that is flagged is flagged rightly; those above it may not be, because
            // the subtraction borrows. Only the lowest is used.
            let quote = zero_bytes(word ^ (ONES * u64::from(b'"')));
            let backslash = zero_bytes(word ^ (ONES * u64::from(b'\\')));
            let control = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
            let stops = quote | backslash | control;
            high_bits |= word & HIGHS;
            if stops != 0 {
                self.at += (stops.trailing_zeros() / 8) as usize;
                break;
            }
            self.at += 8;
        }
        let run = &self.bytes[start..self.at];
        if high_bits != 0 && std::str::from_utf8(run).is_err() {
            return Err(Fault::new(Problem::InvalidUtf8, start));
        }
        Ok(run)
    }

    /// Takes an escape; returns its character as UTF-8 in a buffer, and its length.
    #[cold]
    fn escape(&mut self) -> Result<([u8; 4], usize), Fault> {
        let start = self.at;
        let simple = match self.bytes.get(start + 1) {
            Some(b'"') => b'"',
            Some(b'\\') => b'\\',
            Some(b'/') => b'/',
            Some(b'b') => 0x08,
            Some(b'f') => 0x0c,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'u') => return self.unicode_escape(),
            Some(_) => return Err(self.fault(Problem::UnknownEscape)),
            None => return Err(Fault::new(Problem::UnterminatedString, self.bytes.len())),
        };
        self.at += 2;
        Ok(([simple, 0, 0, 0], 1))
    }

    fn unicode_escape(&mut self) -> Result<([u8; 4], usize), Fault> {
        let lone = self.fault(Problem::LoneSurrogate);
        let first = self.hex_unit()?;
        let code = match first {
            0xd800..0xdc00 => match self.starts_with(b"\\u") {
                true => match self.hex_unit()? {
                    second @ 0xdc00..0xe000 => 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00),
                    _ => return Err(lone),
                },
                false => return Err(lone),
            },
            _ => first,
        };
        let character = char::from_u32(code).ok_or(lone)?;
        let mut buffer = [0; 4];
        let length = character.encode_utf8(&mut buffer).len();
        Ok((buffer, length))
    }

    /// Takes `\u` and four hexadecimal digits.
    fn hex_unit(&mut self) -> Result<u32, Fault> {
        let digits = self.bytes.get(self.at + 2..).and_then(<[u8]>::first_chunk::<4>);
        let unit = digits.and_then(|digits| {
            digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | (digit as char).to_digit(16)?))
        });
        let unit = unit.ok_or_else(|| self.fault(Problem::UnknownEscape))?;
        self.at += 6;
        Ok(unit)
    }

    /// Takes a key of one or two letters and the colon after it, if that is what comes next without white space; the
    /// key, and how many of the two bytes it has.
    #[inline(always)]
    pub(crate) fn take_short_key(&mut self) -> Option<([u8; 2], usize)> {
        let [quote, first, second, third, fourth, ..] = self.word(0).to_le_bytes();
        if quote != b'"' || !first.is_ascii_alphabetic() {
            return None;
        }
        let length = match (second, third, fourth) {
            (b'"', b':', _) => 1,
            (letter, b'"', b':') if letter.is_ascii_alphabetic() => 2,
            _ => return None,
        };
        self.at += length + 3;
        Some(([first, second], length))
    }

    /// Takes a key and the colon after it; the key is left in the payload or in `scratch`. White space around both is
    /// taken too.
    #[inline]
    pub(crate) fn key(&mut self, scratch: &mut Vec<u8>) -> Result<Span, Fault> {
        self.skip_whitespace();
        if self.peek() != b'"' {
            return Err(self.fault(Problem::ExpectedKey));
        }
        let span = self.string_span(scratch)?;
        self.colon()?;
        Ok(span)
    }

    #[inline]
    fn colon(&mut self) -> Result<(), Fault> {
        self.skip_whitespace();
        if self.peek() != b':' {
            return Err(self.fault(Problem::ExpectedColon));
        }
        self.at += 1;
        self.skip_whitespace();
        Ok(())
    }

    fn skip_key(&mut self) -> Result<(), Fault> {
        self.skip_whitespace();
        if self.take_short_key().is_some() {
            self.skip_whitespace();
            return Ok(());
        }
        if self.peek() != b'"' {
            return Err(self.fault(Problem::ExpectedKey));
        }
        self.string(&mut Discard)?;
        self.colon()
    }

    /// Steps into the container that begins here, closed by `close`; whether it has anything in it. An empty one is
    /// taken whole.
    #[inline]
    pub(crate) fn enter(&mut self, close: u8) -> bool {
        self.at += 1;
        self.skip_whitespace();
        let empty = self.peek() == close;
        self.at += usize::from(empty);
        !empty
    }

    /// After an item of a container closed by `close`: whether another one follows. Takes the comma or the end.
    #[inline]
    pub(crate) fn another(&mut self, close: u8) -> Result<bool, Fault> {
        self.skip_whitespace();
        match self.peek() {
            b',' => {
                self.at += 1;
                self.skip_whitespace();
                Ok(true)
            }
            byte if byte == close => {
                self.at += 1;
                Ok(false)
            }
            _ if close == b'}' => Err(self.fault(Problem::ExpectedCommaOrBrace)),
            _ => Err(self.fault(Problem::ExpectedCommaOrBracket)),
        }
    }

    /// Takes any value and white space before it, checking all of it. `depth` is how many containers are open around
    /// it.
    pub(crate) fn skip_value(&mut self, depth: usize) -> Result<(), Fault> {
        self.skip_whitespace();
        if self.skip_scalar()? { Ok(()) } else { self.skip_container(depth) }
    }

    /// Takes a value that is no object and no array; whether there was one.
    #[inline(always)]
    fn skip_scalar(&mut self) -> Result<bool, Fault> {
        match self.peek() {
            b'"' => self.string(&mut Discard)?,
            b'-' | b'0'..=b'9' => {
                self.scan_number()?;
            }
            b't' => self.literal(b"true", Problem::ExpectedValue)?,
            b'f' => self.literal(b"false", Problem::ExpectedValue)?,
            b'n' => self.literal(b"null", Problem::ExpectedValue)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn skip_container(&mut self, depth: usize) -> Result<(), Fault> {
        // The kinds of the open containers, one bit each (1: object), the innermost lowest.
        const { assert!(DEPTH_MAX <= u64::BITS as usize) };
        let mut objects = 0u64;
        let mut open = depth;
        loop {
            if !self.skip_scalar()? {
                let is_object = match self.peek() {
                    b'{' => true,
                    b'[' => false,
                    _ => return Err(self.fault(Problem::ExpectedValue)),
                };
                if open >= DEPTH_MAX {
                    return Err(self.fault(Problem::TooDeep));
                }
                if self.enter(if is_object { b'}' } else { b']' }) {
                    open += 1;
                    objects = objects << 1 | u64::from(is_object);
                    if is_object {
                        self.skip_key()?;
                    }
                    continue;
                }
            }
            loop {
                if open == depth {
                    return Ok(());
                }
                let in_object = objects & 1 == 1;
                if self.another(if in_object { b'}' } else { b']' })? {
                    if in_object {
                        self.skip_key()?;
                    }
                    break;
                }
                open -= 1;
                objects >>= 1;
            }
        }
    }
}

/// Whether a JSON number can begin with `byte`.
#[inline(always)]
pub(crate) fn is_number_start(byte: u8) -> bool {
    matches!(byte, b'-' | b'0'..=b'9')
}

/// The high bit of the lowest byte of `word` that is zero (and perhaps of some above it).
#[inline(always)]
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGHS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(json: &str) -> Result<String, Fault> {
        let mut out = Vec::new();
        let mut reader = Reader::new(json.as_bytes());
        reader.string_into(&mut out)?;
        reader.finish()?;
        let mut scratch = Vec::new();
        let span = Reader::new(json.as_bytes()).string_span(&mut scratch)?;
        assert_eq!(span.of(json.as_bytes(), &scratch), out);
        assert_eq!(span.len(), out.len());
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn strings_with_and_without_escapes() {
        for length in 0..40 {
            let text = "x".repeat(length);
            assert_eq!(string(&format!("\"{text}\"")).unwrap(), text);
            assert_eq!(string(&format!("\"{text}\\n{text}\"")).unwrap(), format!("{text}\n{text}"));
            assert_eq!(string(&format!("\"{text}é\"")).unwrap(), format!("{text}é"));
        }
        assert_eq!(string(r#""\"\\\/\b\f\n\r\t\u00e9\uD83D\uDE00""#).unwrap(), "\"\\/\u{8}\u{c}\n\r\té😀");
    }

    #[test]
    fn broken_strings_say_what_and_where() {
        for (json, problem, at) in [
            (r#""abc"#, Problem::UnterminatedString, 4),
            ("\"abc\n\"", Problem::ControlCharacter, 4),
            (r#""a\x""#, Problem::UnknownEscape, 2),
            (r#""a\u12g4""#, Problem::UnknownEscape, 2),
            (r#""a\u12"#, Problem::UnknownEscape, 2),
            (r#""\ud800""#, Problem::LoneSurrogate, 1),
            (r#""\ud800\u0041""#, Problem::LoneSurrogate, 1),
            (r#""\udc00""#, Problem::LoneSurrogate, 1),
            ("\"\\", Problem::UnterminatedString, 2),
        ] {
            assert_eq!(string(json), Err(Fault::new(problem, at)), "{json}");
        }
        let mut out = Vec::new();
        let fault = Reader::new(b"\"a\xff\"").string_into(&mut out).unwrap_err();
        assert_eq!(fault, Fault::new(Problem::InvalidUtf8, 1));
    }

    #[test]
    fn skipping_checks_everything() {
        let skip = |json: &str| {
            let mut reader = Reader::new(json.as_bytes());
            reader.skip_value(1).and_then(|()| reader.finish())
        };
        for json in ["1", "\"\"", "{}", "[]", "[[],{}]", r#"{"a":[1,{"b":"\u0041"}],"c":null}"#, "[ 1 , true , false ]"]
        {
            assert_eq!(skip(json), Ok(()), "{json}");
        }
        for json in ["", "{", "[", "[1", "[1,]", "{,}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "[1}", "nul", "01", "[\"]"]
        {
            assert!(skip(json).is_err(), "{json}");
        }
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(skip(&nested(DEPTH_MAX - 1)), Ok(()));
        assert_eq!(skip(&nested(DEPTH_MAX)), Err(Fault::new(Problem::TooDeep, DEPTH_MAX - 1)));
        assert!(skip(&"[".repeat(1_000_000)).is_err());
    }
}
