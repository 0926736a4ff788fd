//! Signals with which a user or the system asks the process to stop, or to read its configuration again.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tokio::runtime;

use super::error::CliError;

/// Whether Ctrl-C was pressed since [`interruptible`] began.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Runs `act`, which Ctrl-C ends instead of the process: it sets the flag that `act` is given, and a read that waits
/// returns. Says whether that was so.
#[cfg(unix)]
pub(super) fn interruptible<T>(act: impl FnOnce(&'static AtomicBool) -> T) -> (T, bool) {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

    extern "C" fn note(_number: std::ffi::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    INTERRUPTED.store(false, Ordering::Relaxed);
    // Without SA_RESTART, so that a read returns.
    let own = SigAction::new(SigHandler::Handler(note), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing but store a flag.
    let before = unsafe { sigaction(Signal::SIGINT, &own) };
    let done = act(&INTERRUPTED);
    if let Ok(before) = before {
        // SAFETY: it is the earlier action of this signal.
        let _ = unsafe { sigaction(Signal::SIGINT, &before) };
    }
    (done, INTERRUPTED.load(Ordering::Relaxed))
}

/// Where there are no signals, Ctrl-C ends the process.
#[cfg(not(unix))]
pub(super) fn interruptible<T>(act: impl FnOnce(&'static AtomicBool) -> T) -> (T, bool) {
    (act(&INTERRUPTED), false)
}

/// Has the server read its configuration again.
pub(super) type Reload = Arc<dyn Fn() + Send + Sync>;

/// Writes a line to standard error, if there is still anybody to read it: the terminal may be closed.
pub(super) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Sets `stop` at the first [`stop_signal`].
pub(super) fn stop_on_signal(stop: Arc<AtomicBool>) -> Result<(), CliError> {
    let failed = |error: io::Error| CliError::new(format!("cannot listen for Ctrl-C: {error}"));
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let listen = move || {
        runtime.block_on(stop_signal());
        stop.store(true, Ordering::Relaxed);
    };
    thread::Builder::new().name("signals".into()).spawn(listen).map_err(failed)?;
    Ok(())
}

/// Completes when the user (Ctrl-C), the system (SIGTERM) or the end of the terminal (SIGHUP) asks the server to stop.
/// A second Ctrl-C or SIGTERM ends it at once; a terminal that is closed may send SIGHUP twice.
async fn stop_signal() {
    first_signal(None).await;
    end_at_second_signal();
}

pub(super) fn end_at_second_signal() {
    thread::Builder::new()
        .name("second-signal".into())
        .spawn(|| {
            let Ok(runtime) = runtime::Builder::new_current_thread().enable_all().build() else { return };
            runtime.block_on(next_signal());
            say("stopped at once");
            std::process::exit(130);
        })
        .map_or_else(|error| tracing::warn!(%error, "a second signal will not end the server at once"), drop);
}

/// Completes at Ctrl-C, at SIGTERM, and at SIGHUP; but if the process can read its configuration again, SIGHUP means
/// that, unless it comes because the terminal is closed.
pub(super) async fn first_signal(reload: Option<Reload>) {
    #[cfg(unix)]
    {
        let (outlives_terminal, had_terminal) = (ignores_hangup(), has_terminal());
        if (reload.is_some() || !outlives_terminal)
            && let Ok(mut hangup) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())
        {
            let ended = async {
                while hangup.recv().await.is_some() {
                    let Some(reload) = reload.clone() else { return };
                    if had_terminal && !has_terminal() && !outlives_terminal {
                        return;
                    }
                    // A defect is logged where it is; the server goes on.
                    let _ = tokio::task::spawn_blocking(move || reload()).await;
                }
                std::future::pending().await
            };
            tokio::select! {
                () = next_signal() => {}
                () = ended => {}
            }
            return;
        }
    }
    next_signal().await;
}

/// Whether a terminal controls the process. The kernel takes it away before it says that it is closed.
#[cfg(unix)]
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Whether the process was started to outlive its terminal, as `nohup` does: then it does.
#[cfg(unix)]
fn ignores_hangup() -> bool {
    // Linux tells which signals are ignored, a bit for each, SIGHUP in the lowest. Where nobody tells, none is.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).is_some_and(|bits| bits & 1 != 0)
}

async fn next_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    // Without signals the server ends with the process.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
