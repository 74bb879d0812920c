//! The whole terminal, for a view that is kept up to date.

use std::io::{self, Read as _, Write as _};
use std::thread;

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// A screen other than that of the shell, which comes back when this is dropped.
pub(crate) struct Screen {
    /// The state in which the terminal was found.
    before: Termios,
    keys: UnboundedReceiver<Key>,
}

/// What was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Quit,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

/// The other screen, no cursor, and lines that are too long end at the margin.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &[u8] = b"\x1b[?7h\x1b[?25h\x1b[?1049l";

impl Screen {
    /// Takes the terminal of standard input and output.
    pub(crate) fn open() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let (sender, keys) = unbounded_channel();
        // Ends with the process, or when the terminal is gone.
        thread::Builder::new().name("keys".into()).spawn(move || {
            let mut bytes = [0; 64];
            while let Ok(read @ 1..) = io::stdin().read(&mut bytes) {
                // An escape sequence comes in one piece, even from far away.
                if keys_in(&bytes[..read]).try_for_each(|key| sender.send(key)).is_err() {
                    return;
                }
            }
        })?;
        let screen = Self { before, keys };
        screen.enter()?;
        Ok(screen)
    }

    /// Takes the terminal again, after somebody else had it.
    pub(crate) fn enter(&self) -> io::Result<()> {
        let mut modes = self.before.clone();
        // Keys come at once and are not shown; Ctrl-C and Ctrl-Z stay signals.
        modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Now, &modes)?;
        write(ENTER)
    }

    /// Gives the terminal back as it was.
    pub(crate) fn leave(&self) {
        // A terminal that is gone needs nothing.
        _ = write(LEAVE);
        _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }

    /// Columns and rows.
    pub(crate) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (size.ws_col.into(), size.ws_row.into())
            }
            _ => (80, 24),
        }
    }

    /// Shows these lines, which fit, with the last one at the bottom of the screen.
    pub(crate) fn draw(&self, lines: &[String]) -> io::Result<()> {
        // All in one piece, over what was there, so that nothing flickers.
        let frame = format!("\x1b[H{}\x1b[J", lines.join("\x1b[K\r\n"));
        write(frame.as_bytes())
    }

    /// The next key; `None` if the terminal is gone. Cancel-safe.
    pub(crate) async fn key(&mut self) -> Option<Key> {
        self.keys.recv().await
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The keys that a terminal sends as these bytes.
fn keys_in(mut bytes: &[u8]) -> impl Iterator<Item = Key> {
    const KEYS: &[(&[u8], Key)] = &[
        (b"\x1b[A", Key::Up),
        (b"\x1bOA", Key::Up),
        (b"k", Key::Up),
        (b"\x1b[B", Key::Down),
        (b"\x1bOB", Key::Down),
        (b"j", Key::Down),
        (b"\x1b[5~", Key::PageUp),
        (b"b", Key::PageUp),
        (b"\x1b[6~", Key::PageDown),
        (b" ", Key::PageDown),
        (b"\x1b[H", Key::Home),
        (b"\x1bOH", Key::Home),
        (b"\x1b[1~", Key::Home),
        (b"g", Key::Home),
        (b"\x1b[F", Key::End),
        (b"\x1bOF", Key::End),
        (b"\x1b[4~", Key::End),
        (b"G", Key::End),
        (b"q", Key::Quit),
        // Ctrl-D
        (b"\x04", Key::Quit),
    ];
    std::iter::from_fn(move || {
        while !bytes.is_empty() {
            if let Some((code, key)) = KEYS.iter().find(|(code, _)| bytes.starts_with(code)) {
                bytes = &bytes[code.len()..];
                return Some(*key);
            }
            bytes = &bytes[unknown(bytes)..];
        }
        None
    })
}

/// How many bytes a key has that means nothing here: one, unless it is a sequence, whose letters
/// are not keys either.
fn unknown(bytes: &[u8]) -> usize {
    if !bytes.starts_with(b"\x1b[") {
        return 1;
    }
    let is_final = |byte: &u8| matches!(byte, b'@'..=b'~');
    bytes.iter().skip(2).position(is_final).map_or(bytes.len(), |at| at + 3)
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::{Key, keys_in};

    #[test]
    fn keys_are_told_apart() {
        let keys = |bytes| keys_in(bytes).collect::<Vec<_>>();
        assert_eq!(keys(b"jk\x1b[A\x1bOB"), [Key::Down, Key::Up, Key::Up, Key::Down]);
        assert_eq!(
            keys(b"\x1b[5~\x1b[6~ gG"),
            [Key::PageUp, Key::PageDown, Key::PageDown, Key::Home, Key::End]
        );
        // Ctrl and an arrow, and what nobody knows, up to the letter that ends it.
        assert_eq!(keys(b"\x1b[1;5Aq"), [Key::Quit]);
        assert_eq!(keys(b"x\x1b[200"), []);
    }
}
