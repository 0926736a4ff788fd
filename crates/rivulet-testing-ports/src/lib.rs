//! Ports for programs that cannot choose one themselves, or that have to listen on the same one after a restart.
//!
//! A port that the system gave for port 0 and that was let go may be given to anybody before the program listens on it:
//! to another test, and to each connection that is opened. So these are below the range that the system chooses from,
//! and each is claimed for as long as the test program runs.
//!
//! The invariant: of all test programs that run at the same time, no two are given the same port.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// The ports that are given: above those of well-known services, below those that systems choose for port 0.
const FIRST: u32 = 12_000;
const COUNT: u32 = 20_000;

/// An address on loopback on which nobody listens. Nobody else is given it as long as this process runs, so a server
/// may stop and listen on it once more.
///
/// # Panics
/// If no port is free.
#[must_use]
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Programs that run side by side begin at different places, so that they seldom meet.
    let start = std::process::id().wrapping_mul(617);
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + start.wrapping_add(step) % COUNT;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::try_from(port).expect("a port")));
        // Nobody uses UDP in tests: the socket of the same number is the claim.
        let Ok(claim) = UdpSocket::bind(address) else { continue };
        if TcpListener::bind(address).is_ok() {
            std::mem::forget(claim);
            return address;
        }
    }
    panic!("none of {COUNT} ports is free");
}

/// The port of a [`free_address`].
///
/// # Panics
/// If no port is free.
#[must_use]
pub fn free_port() -> u16 {
    free_address().port()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_port_is_given_twice_or_taken_from_a_listener() {
        let taken: Vec<TcpListener> = (0..20).map(|_| TcpListener::bind(free_address()).expect("it is free")).collect();
        let ports: BTreeSet<u16> = (0..20).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 20);
        assert!(taken.iter().all(|listener| !ports.contains(&listener.local_addr().expect("its address").port())));
        assert!(ports.iter().all(|port| UdpSocket::bind((Ipv4Addr::LOCALHOST, *port)).is_err()), "each stays claimed");
    }
}
