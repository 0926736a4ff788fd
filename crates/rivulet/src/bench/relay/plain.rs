//! Plain sockets: how many bytes they carry through three processes, and links of a given rate.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::report::Setup;
use crate::bench::process::free_port;
use crate::bench::streams::Apart;

/// The bytes that are read and written at once, and where a rate is kept.
const PLAIN_BYTES: usize = 256 << 10;
const LIMITED_BYTES: usize = 16 << 10;

/// What a link may carry at once above its rate: what comes in so long.
const BURST: Duration = Duration::from_millis(10);

/// Messages a second, as large as those of a run, over a link as those of the run and through three processes by plain
/// sockets: this one sends and receives, another one passes on.
pub(super) fn ceiling(setup: &Setup, duration: Duration) -> Result<f64, String> {
    let failed = |error: io::Error| format!("plain sockets: {error}");
    let (from, back) = (free_port()?, TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?);
    let program = std::env::current_exe().map_err(failed)?;
    let arguments = ["bench", "forward", &from.to_string(), &back.local_addr().map_err(failed)?.to_string()];
    let child = Command::new(program).args(arguments).stdin(Stdio::null()).spawn().map_err(failed)?;
    let _ends = Apart(child);
    let (mut returning, _) = back.accept().map_err(failed)?;
    let mut sending = TcpStream::connect(link_to(from, setup.rate_mbit).map_err(failed)?).map_err(failed)?;
    let sender = thread::spawn(move || {
        let (buffer, begun) = (vec![7_u8; PLAIN_BYTES], Instant::now());
        while begun.elapsed() < duration && sending.write_all(&buffer).is_ok() {}
    });
    let (mut buffer, mut bytes, begun) = (vec![0; PLAIN_BYTES], 0, Instant::now());
    while let Ok(read @ 1..) = returning.read(&mut buffer) {
        bytes += read;
    }
    let elapsed_s = begun.elapsed().as_secs_f64();
    sender.join().map_err(|_| "plain sockets: the sender failed".to_owned())?;
    Ok(bytes as f64 / setup.message_bytes as f64 / elapsed_s)
}

/// Passes what comes at one address on to the other, until it ends.
///
/// # Errors
/// Those of sockets.
pub fn forward(from: SocketAddr, to: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(from)?;
    let onwards = TcpStream::connect(to)?;
    pass_on(listener.accept()?.0, onwards, None);
    Ok(())
}

/// The address of a link to another one: that one, or if there is a rate in megabits a second, that of a token bucket
/// for each direction of a connection, in threads of this process.
pub(super) fn link_to(address: SocketAddr, rate_mbit: Option<u32>) -> io::Result<SocketAddr> {
    if rate_mbit.is_none() {
        return Ok(address);
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let link = listener.local_addr()?;
    let carry = move |coming: TcpStream| -> io::Result<()> {
        let onwards = TcpStream::connect(address)?;
        for (from, to) in [(onwards.try_clone()?, coming.try_clone()?), (coming, onwards)] {
            to.set_nodelay(true)?;
            thread::spawn(move || pass_on(from, to, rate_mbit));
        }
        Ok(())
    };
    // Where nobody listens yet, whoever came comes again.
    thread::spawn(move || listener.incoming().flatten().for_each(|coming| _ = carry(coming)));
    Ok(link)
}

/// Passes on one direction until it ends.
fn pass_on(mut coming: TcpStream, mut onwards: TcpStream, rate_mbit: Option<u32>) {
    let mut buffer = vec![0; if rate_mbit.is_some() { LIMITED_BYTES } else { PLAIN_BYTES }];
    let mut due = Instant::now();
    while let Ok(read @ 1..) = coming.read(&mut buffer) {
        if let Some(rate_mbit) = rate_mbit {
            due = due.max(Instant::now() - BURST) + Duration::from_nanos(read as u64 * 8_000 / u64::from(rate_mbit));
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        if onwards.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = (coming.shutdown(Shutdown::Read), onwards.shutdown(Shutdown::Write));
}
