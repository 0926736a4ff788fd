//! What a fuzz target is.

/// A function that accepts any bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name, also of the folder of its inputs and of the program that fuzzes it.
    pub name: &'static str,
    /// The function. It panics if something that must hold does not hold.
    pub run: fn(&[u8]),
    /// Pieces of its input, for mutations.
    pub words: &'static [&'static str],
    /// How many mutations the test tries; slow targets have fewer.
    pub mutations: usize,
}
