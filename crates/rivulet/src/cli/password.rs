//! Reads passwords: from the terminal without showing them, or a line of standard input. There is no option for one,
//! because everybody on a machine sees the options of a program.

use std::io::{self, BufRead, IsTerminal, Write};

use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

use super::error::CliError;

/// The most bytes that are read; the server takes fewer.
const BYTES_MAX: u64 = 64 << 10;

/// Reads the password that somebody has.
pub(super) fn read(prompt: &str) -> Result<String, CliError> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Ok(line(stdin.lock())?);
    }
    ask(prompt)
}

/// Reads a new password; from a terminal twice, because nobody sees what is typed.
pub(super) fn read_new(prompt: &str) -> Result<String, CliError> {
    let password = read(prompt)?;
    if io::stdin().is_terminal() && ask("the same again: ")? != password {
        return Err(CliError::new("the two are not the same").with_hint("nothing was changed; try again"));
    }
    Ok(password)
}

fn ask(prompt: &str) -> Result<String, CliError> {
    let mut out = io::stderr().lock();
    write!(out, "{prompt}")?;
    out.flush()?;
    let read = {
        let _silence = Silence::begin().map_err(io::Error::from)?;
        line(io::stdin().lock())
    };
    writeln!(out)?;
    Ok(read?)
}

/// A line without its end.
fn line(from: impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    from.take(BYTES_MAX).read_line(&mut line)?;
    let end = line.strip_suffix('\n').map_or(line.len(), |rest| rest.strip_suffix('\r').unwrap_or(rest).len());
    line.truncate(end);
    Ok(line)
}

/// As long as it is there, the terminal does not show what is typed.
struct Silence(Termios);

impl Silence {
    fn begin() -> nix::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(io::stdin(), SetArg::TCSAFLUSH, &silent)?;
        Ok(Self(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // There is nobody to tell.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_is_without_its_end() {
        for (given, read) in
            [("rose\nlily\n", "rose"), ("rose\r\n", "rose"), (" rose ", " rose "), ("", ""), ("\n", "")]
        {
            assert_eq!(line(given.as_bytes()).expect("text"), read);
        }
        assert!(line(&b"\xff\n"[..]).is_err());
    }
}
