//! Bytes read as a list of choices. Behind the end there are zeros, so any bytes are such a list.

/// What is left of the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Input<'b> {
    rest: &'b [u8],
}

impl<'b> Input<'b> {
    /// All of them.
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

    /// The next two bytes as a number.
    pub fn short(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        let number = if end <= 256 { usize::from(self.byte()) } else { self.short() };
        number % end
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// As many of the next bytes as a byte in front of them says, or as there are.
    pub fn piece(&mut self) -> &'b [u8] {
        let wanted = usize::from(self.byte());
        let (piece, rest) = self.rest.split_at(wanted.min(self.rest.len()));
        self.rest = rest;
        piece
    }

    /// All that is left.
    pub fn rest(self) -> &'b [u8] {
        self.rest
    }
}
