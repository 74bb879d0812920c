use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

/// Below what any system hands out by itself, so that no outgoing connection takes a server's port
/// while it is down.
const PORTS: Range<u16> = 20_000..32_000;

/// A loopback port that was free a moment ago. Whoever binds it must be ready to lose the race.
///
/// # Errors
/// If none is found.
pub fn free_port() -> io::Result<u16> {
    const ATTEMPTS: usize = 100;
    (0..ATTEMPTS)
        .map(|_| fastrand::u16(PORTS))
        .find(|&port| is_free(port))
        .ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, "no free loopback port"))
}

pub(crate) fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
