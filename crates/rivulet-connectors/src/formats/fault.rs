//! Why a payload does not fit: eight bytes when it happens, words only when they are read.
//!
//! A flood of broken events must cost no more than counting, so a [`Fault`] holds no text. To describe a fault, the
//! payload is read again at the fault's offset.

/// What is wrong with a payload, where, and in which declared column if in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(super) at: u32,
    /// [`NO_COLUMN`] if it lies in none.
    pub(super) column: u16,
    pub(super) problem: Problem,
}

/// The column number of a fault that lies in no declared column.
pub(super) const NO_COLUMN: u16 = u16::MAX;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Problem {
    Empty,
    Missing,
    NullInRequired,
    ExpectedNumber,
    ExpectedBareNumber,
    ExpectedBareBoolean,
    ExpectedInteger,
    ExpectedString,
    ExpectedBoolean,
    ExpectedTimestamp,
    ExpectedDate,
    ExpectedTime,
    ExpectedObject,
    ExpectedArray,
    ExpectedValue,
    ExpectedKey,
    ExpectedColon,
    ExpectedCommaOrBrace,
    ExpectedCommaOrBracket,
    ExpectedRoot,
    ExpectedRecord,
    MalformedNumber,
    NotFinite,
    NumberRange,
    WholeRange,
    DecimalRange,
    DecimalDigits,
    TimestampRange,
    InvalidUtf8,
    ControlCharacter,
    UnknownEscape,
    LoneSurrogate,
    UnterminatedString,
    TrailingBytes,
    TooDeep,
    NoRow,
    TooManyRows,
    TooMuchText,
    TooMuchTopic,
    TooLargeValue,
    NotInMessage,
    TooFewFields,
    TooManyFields,
    QuoteInField,
    TextAfterQuote,
    UnterminatedQuote,
    NoSenMlPack,
    NoSenMlName,
    NoSenMlValue,
    SenMlNameTooLong,
    SenMlMustUnderstand,
    BinaryEnd,
    BinaryTrailing,
    BinaryNumber,
    BinaryLength,
    BinaryBranch,
    BinaryFrame,
    BinaryWireType,
    BinaryDepth,
    BinaryIntegerRange,
    NoChange,
    ChangeOperation,
    NoBefore,
    NoAfter,
}

impl Fault {
    /// What is wrong.
    pub(crate) fn problem(self) -> Problem {
        self.problem
    }

    /// A fault at byte `at` of the payload, in no particular column.
    #[cold]
    #[inline(never)]
    pub(crate) fn new(problem: Problem, at: usize) -> Self {
        // An arena of events stays below 4 GiB, so an offset within one payload does too.
        Self { at: at as u32, column: NO_COLUMN, problem }
    }

    /// The same fault, known to lie in the declared column `column`.
    #[inline]
    pub(crate) fn in_column(self, column: usize) -> Self {
        Self { column: column as u16, ..self }
    }

    /// The same fault in a payload that begins this many bytes before the part in which it was found.
    #[inline]
    pub(crate) fn moved_by(self, bytes: usize) -> Self {
        Self { at: self.at.saturating_add(bytes as u32), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_small() {
        assert!(size_of::<Result<(), Fault>>() <= 8);
    }
}
