//! `lockkit status --watch`: how locks stand, until somebody has seen enough.

use std::future::pending;
use std::io;

use lockkit::{Error, Locker, Result};
use rustix::process::Signal;
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::exit;
use crate::report::chain;
use crate::screen::{Key, Screen};
use crate::signals::{self, Signals, Terminal};
use crate::status::{REFRESH, Room, View};
use crate::table::{cut, roughly};

/// Shows how locks stand until a key or a signal ends it, and returns the exit code.
pub(crate) async fn watch(locker: &Locker, name: Option<&str>) -> Result<u8> {
    // A name that cannot be looked at is an error now, and not at each look.
    let mut page = Page::new(View::see(locker, name).await?);
    show(locker, name, &mut page)
        .await
        .map_err(|error| Error::config("the terminal", error.to_string()))
}

async fn show(locker: &Locker, name: Option<&str>, page: &mut Page) -> io::Result<u8> {
    let mut signals = Signals::catch(Terminal::Apart)?;
    let mut resized = signal(SignalKind::window_change())?;
    let mut screen = Screen::open()?;
    let mut due = interval(REFRESH);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    due.reset();
    let mut look = None;
    loop {
        screen.draw(&page.frame(screen.size()))?;
        select! {
            signal = signals.next() => match signal {
                Signal::TSTP => {
                    screen.leave();
                    signals::stop();
                    screen.enter()?;
                }
                // After a stop that could not be caught, whoever had the terminal has changed it.
                Signal::CONT => screen.enter()?,
                signal => return Ok(exit::of_signal(signal)),
            },
            key = screen.key() => match key {
                Some(Key::Quit) | None => return Ok(exit::OK),
                Some(key) => page.scroll(key, screen.size()),
            },
            _ = resized.recv() => (),
            _ = due.tick(), if look.is_none() => look = Some(Box::pin(View::see(locker, name))),
            seen = async {
                match &mut look {
                    Some(look) => look.await,
                    None => pending().await,
                }
            } => {
                look = None;
                page.update(seen);
            }
        }
    }
}

/// What is shown, and which part of it.
struct Page {
    view: View,
    seen: Instant,
    /// Why there is nothing newer.
    problem: Option<Error>,
    /// The first line of the list that is shown, below its heading.
    top: usize,
}

impl Page {
    fn new(view: View) -> Self {
        Self { view, seen: Instant::now(), problem: None, top: 0 }
    }

    fn update(&mut self, seen: Result<View>) {
        match seen {
            Ok(view) => (self.view, self.seen, self.problem) = (view, Instant::now(), None),
            // It may work next time.
            Err(error) => self.problem = Some(error),
        }
    }

    fn scroll(&mut self, key: Key, (_, rows): (usize, usize)) {
        let page = room(rows);
        self.top = match key {
            Key::Up => self.top.saturating_sub(1),
            Key::Down => self.top + 1,
            Key::PageUp => self.top.saturating_sub(page),
            Key::PageDown => self.top + page,
            Key::Home | Key::Quit => 0,
            Key::End => usize::MAX,
        };
        self.stay_inside(page, self.view.lines(Room::Scarce).len().saturating_sub(1));
    }

    /// Leaves the page no emptier than it has to be.
    fn stay_inside(&mut self, page: usize, lines: usize) {
        self.top = self.top.min(lines.saturating_sub(page));
    }

    /// A summary, the heading of the list, as much of the list as there is room for, and a line
    /// at the bottom about this view itself.
    fn frame(&mut self, (columns, rows): (usize, usize)) -> Vec<String> {
        let page = room(rows);
        let lines = self.view.lines(Room::Scarce);
        let (heading, list) =
            lines.split_first().map_or(("", &[][..]), |(first, rest)| (first, rest));
        self.stay_inside(page, list.len());
        let part = list.iter().skip(self.top).take(page);

        let mut frame = vec![bold(&cut(&self.view.summary(), columns)), String::new()];
        frame.push(bold(&cut(heading, columns)));
        frame.extend(part.map(|line| cut(line, columns).into_owned()));
        frame.resize(rows.saturating_sub(1).max(frame.len()), String::new());
        frame.push(inverse(&cut(&self.footer(page, list.len()), columns)));
        // A terminal of a line or two shows the first ones.
        frame.truncate(rows.max(1));
        frame
    }

    fn footer(&self, page: usize, lines: usize) -> String {
        if let Some(problem) = &self.problem {
            let old = roughly(self.seen.elapsed());
            return format!("this is how it was {old} ago: {}", chain(problem));
        }
        match lines > page {
            false => "q quits".into(),
            true => format!(
                "q quits, arrows scroll: {} to {} of {lines}",
                self.top + 1,
                (self.top + page).min(lines),
            ),
        }
    }
}

/// How many lines of the list there is room for beside summary, blank line, heading and footer.
fn room(rows: usize) -> usize {
    rows.saturating_sub(4).max(1)
}

fn bold(text: &str) -> String {
    format!("\x1b[1m{text}\x1b[0m")
}

fn inverse(text: &str) -> String {
    format!("\x1b[7m{text}\x1b[0m")
}

#[cfg(test)]
mod tests {
    use lockkit::driver::OwnerId;
    use lockkit::{Error, Holder, LockName, LockStatus, Namespace};
    use unicode_width::UnicodeWidthStr as _;

    use super::Page;
    use crate::screen::Key;
    use crate::status::View;

    fn page(locks: usize) -> Page {
        let namespace = Namespace::default();
        let locks = (0..locks).map(|number| {
            let name = LockName::new(&namespace, &format!("鎖-{number:03}")).unwrap();
            LockStatus::free(name).held_by(Holder::new(OwnerId::random()))
        });
        Page::new(View { driver: "memory", locks: locks.collect(), namespace, by_name: false })
    }

    /// Without bold and inverse.
    fn plain(line: &str) -> String {
        ["\x1b[1m", "\x1b[7m", "\x1b[0m"]
            .iter()
            .fold(line.into(), |line, code| line.replace(code, ""))
    }

    #[test]
    fn a_frame_fits_every_screen() {
        for locks in [0, 1, 5, 100] {
            for rows in 1..30 {
                for columns in [1, 2, 3, 10, 37, 80, 200] {
                    let mut page = page(locks);
                    for key in [Key::End, Key::Up, Key::PageDown, Key::Home] {
                        page.scroll(key, (columns, rows));
                        let frame = page.frame((columns, rows));
                        assert_eq!(frame.len(), rows);
                        for line in frame {
                            assert!(plain(&line).width() <= columns, "{line:?} in {columns}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_list_that_got_shorter_is_still_seen() {
        let mut long = page(100);
        long.scroll(Key::End, (80, 24));
        assert!(long.frame((80, 24))[22].contains("鎖-099"));
        long.update(Ok(page(5).view));
        let frame = long.frame((80, 24));
        assert!(frame[3].contains("鎖-000") && frame[7].contains("鎖-004"), "{frame:?}");
    }

    #[test]
    fn an_error_stands_beside_what_was_seen_until_it_is_over() {
        let (mut page, nothing) = (page(1), page(0));
        page.update(Err(Error::config("backend", "gone")));
        let frame = page.frame((80, 24));
        assert!(frame[3].contains("鎖-000"), "{frame:?}");
        assert!(frame[23].contains("this is how it was") && frame[23].contains("backend: gone"));
        page.update(Ok(nothing.view));
        assert!(page.frame((80, 24))[23].contains("q quits"));
    }
}
