use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

/// Below all ports that any system hands out by itself, so that no outgoing connection takes a
/// server's port while it is down.
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

/// Makes something at a free port, or at another one if that fails because another process was
/// faster.
pub(crate) fn at_free_port<T, E>(
    failed: impl Fn(io::Error) -> E,
    mut make: impl FnMut(u16) -> Result<T, E>,
) -> Result<T, E> {
    const PORTS_TO_TRY: usize = 10;
    let mut tried = 0;
    loop {
        let port = free_port().map_err(&failed)?;
        tried += 1;
        match make(port) {
            Err(_) if !is_free(port) && tried < PORTS_TO_TRY => continue,
            outcome => return outcome,
        }
    }
}

pub(crate) fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
