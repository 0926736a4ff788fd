//! Bytes read as a list of choices. Behind the end there are zeros, so any bytes are a valid list.

/// The bytes that are not read yet.
#[derive(Clone, Copy, Debug)]
pub struct Input<'b> {
    rest: &'b [u8],
}

impl<'b> Input<'b> {
    /// Starts with all bytes.
    pub fn new(bytes: &'b [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        first
    }

    /// Returns the next two bytes as a number.
    pub fn short(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }

    /// Returns a number below `end`, which must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        let number = if end <= 256 { usize::from(self.byte()) } else { self.short() };
        number % end
    }

    /// Returns one of several choices.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Returns as many bytes as the next byte says, or all that are left if there are fewer.
    pub fn piece(&mut self) -> &'b [u8] {
        let wanted = usize::from(self.byte());
        let (piece, rest) = self.rest.split_at(wanted.min(self.rest.len()));
        self.rest = rest;
        piece
    }

    /// Returns all bytes that are left.
    pub fn rest(self) -> &'b [u8] {
        self.rest
    }
}
