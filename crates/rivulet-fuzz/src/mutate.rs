//! Bytes into other bytes, without knowing what they mean: what a fuzzer does, but without observing which code is
//! reached.

/// The source of random numbers: each call returns one below its argument, which is not 0.
pub type Random<'r> = &'r mut dyn FnMut(usize) -> usize;

/// The longest input that is made.
const BYTES_MAX: usize = 1 << 14;

/// Bytes at which programs often fail.
const BYTES: [u8; 9] = [0, 1, 0x7f, 0x80, 0xff, b'"', b'\n', b'(', b' '];

/// Changes `bytes` in one to eight places. `others` are inputs of the same target, and `words` pieces of its input.
pub fn mutate(bytes: &mut Vec<u8>, others: &[Vec<u8>], words: &[&str], random: Random<'_>) {
    for _ in 0..=random(8) {
        mutate_once(bytes, others, words, random);
    }
    bytes.truncate(BYTES_MAX);
}

fn mutate_once(bytes: &mut Vec<u8>, others: &[Vec<u8>], words: &[&str], random: Random<'_>) {
    let at = random(bytes.len() + 1);
    let range = |length: usize, random: Random<'_>| {
        let begin = random(length + 1);
        begin..(begin + random(32)).min(length)
    };
    match random(9) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random(8);
            }
        }
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random(256) as u8;
            }
        }
        2 => bytes.insert(at, BYTES[random(BYTES.len())]),
        3 => {
            bytes.drain(range(bytes.len(), random));
        }
        4 => {
            let again = bytes[range(bytes.len(), random)].to_vec();
            bytes.splice(at..at, again);
        }
        5 if !others.is_empty() => {
            let other = &others[random(others.len())];
            let piece = &other[range(other.len(), random)];
            bytes.splice(at..at, piece.iter().copied());
        }
        6 if !others.is_empty() => {
            let other = &others[random(others.len())];
            bytes.truncate(at);
            bytes.extend_from_slice(&other[random(other.len() + 1)..]);
        }
        7 if !words.is_empty() => {
            let word = words[random(words.len())];
            bytes.splice(at..at, word.bytes());
        }
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = BYTES[random(BYTES.len())];
            }
        }
    }
}
