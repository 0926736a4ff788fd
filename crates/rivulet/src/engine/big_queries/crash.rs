//! A note in the data folder that the process has crashed: it was ended by a signal that its own fault causes. A lack
//! of memory causes one, if the kernel refuses the memory.

use std::fs::File;
use std::path::Path;

const NOTE: &str = "crashed";

/// Whether the last process on this data folder has noted a crash.
pub(super) fn was_noted(folder: &Path) -> bool {
    std::fs::metadata(folder.join(NOTE)).is_ok_and(|note| note.len() > 0)
}

/// Empties the note.
pub(super) fn forget(folder: &Path) {
    if was_noted(folder)
        && let Err(error) = File::create(folder.join(NOTE))
    {
        tracing::warn!("a crash will be counted once more: {error}");
    }
}

/// Makes a crash of this process leave a note in its data folder. Only the first call in a process has an effect.
#[cfg(unix)]
pub(crate) fn note_crashes(folder: &Path) {
    let noting = File::options().create(true).append(true).open(folder.join(NOTE)).and_then(|note| {
        let is_first = handler::CRASHED.set(note).is_ok();
        if is_first { handler::install().map_err(std::io::Error::from) } else { Ok(()) }
    });
    if let Err(error) = noting {
        tracing::warn!("a crash will not be noted: {error}");
    }
}

/// Makes a crash of this process leave a note in its data folder.
#[cfg(not(unix))]
pub(crate) fn note_crashes(_folder: &Path) {}

#[cfg(unix)]
mod handler {
    use std::ffi::c_int;
    use std::fs::File;
    use std::io::Write;
    use std::sync::OnceLock;

    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};

    /// The signals that faults of a process cause.
    const SIGNALS: [Signal; 5] = [Signal::SIGABRT, Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGILL, Signal::SIGFPE];

    pub(super) static CRASHED: OnceLock<File> = OnceLock::new();

    /// The earlier action of each signal. The standard library's action reports a stack overflow.
    static BEFORE: OnceLock<[SigAction; SIGNALS.len()]> = OnceLock::new();

    pub(super) fn install() -> nix::Result<()> {
        let own = SigAction::new(SigHandler::Handler(note), SaFlags::SA_ONSTACK, SigSet::empty());
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        let mut before = [default; SIGNALS.len()];
        for (signal, before) in SIGNALS.into_iter().zip(&mut before) {
            // SAFETY: the handler does only what is allowed wherever a signal interrupts: it reads values that are set
            // once, writes to an open file, and sets and raises signals.
            *before = unsafe { sigaction(signal, &own)? };
        }
        // A signal that comes before this gets the default action.
        let _ = BEFORE.set(before);
        Ok(())
    }

    extern "C" fn note(number: c_int) {
        if let Some(mut crashed) = CRASHED.get() {
            let _ = crashed.write(b"!");
        }
        let Ok(signal) = Signal::try_from(number) else { return };
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        let place = SIGNALS.iter().position(|one| *one == signal);
        let before = BEFORE.get().zip(place).map_or(default, |(before, place)| before[place]);
        // SAFETY: it is the earlier action of this signal.
        let _ = unsafe { sigaction(signal, &before) };
        // A fault is repeated by itself when this returns. An abort, own or from outside, is not.
        if signal == Signal::SIGABRT {
            let _ = raise(signal);
        }
    }
}
