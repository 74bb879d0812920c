use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// What the server at that port says to a command whose arguments have no space in them.
pub(super) fn ask(port: u16, command: &str) -> io::Result<String> {
    ask_for(Duration::from_secs(5), port, command)
}

/// The same, for a server that may be stopped.
pub(super) fn ask_for(patience: Duration, port: u16, command: &str) -> io::Result<String> {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&addr, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    // If the connection is closed before it answers, Valkey drops what waits for replicas; after
    // that, it says the rest before it closes the connection as well.
    let mut first = [0; 1];
    let mut answer = match stream.read(&mut first)? {
        0 => String::new(),
        _ => char::from(first[0]).into(),
    };
    stream.shutdown(Shutdown::Write)?;
    stream.read_to_string(&mut answer)?;
    match answer.starts_with('-') {
        true => Err(io::Error::other(format!("port {port}: {command}: {}", answer.trim_end()))),
        false => Ok(answer),
    }
}

/// The value of a field, in answers that are arrays of names and values.
pub(super) fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = answer.lines();
    lines.find(|line| *line == name)?;
    // Its length comes in between.
    lines.nth(1)
}

/// Waits until something is so. What cannot be asked now may be possible to ask later.
pub(super) fn wait_until(
    what: &str,
    mut is_so: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(120);
    const PAUSE: Duration = Duration::from_millis(10);
    let started = Instant::now();
    loop {
        let failure = match is_so() {
            Ok(true) => return Ok(()),
            Ok(false) => String::new(),
            Err(error) => format!(": {error}"),
        };
        if started.elapsed() > PATIENCE {
            return Err(io::Error::other(format!("{what} took more than {PATIENCE:?}{failure}")));
        }
        thread::sleep(PAUSE);
    }
}
