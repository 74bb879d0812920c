//! `lockkit status --watch`, at a terminal that `script` makes, of 24 rows of 80 columns.

use std::fs;

use crate::status::hold;
use crate::support::{AtTerminal, Locks, Running};

/// Watches, and says afterwards how it ended and how the terminal was left.
const WATCH: &str = "trap : INT; before=$(stty -g); \"$PROGRAM\" status --watch; code=$?; \
                     [ \"$before\" = \"$(stty -g)\" ] && echo same; echo code $code";

const OTHER_SCREEN: &str = "\x1b[?1049h";
const OWN_SCREEN: &str = "\x1b[?1049l";

/// What was shown last, from the top of the screen.
fn frame(shown: &str) -> &str {
    shown.rsplit_once("\x1b[H").map_or("", |(_, frame)| frame)
}

#[test]
fn it_shows_how_locks_stand_as_that_changes() {
    let locks = Locks::new();
    let holder = hold(&locks, "first/name");
    let Some(mut watch) = AtTerminal::start(&locks, WATCH) else { return };
    let label = format!(":{}", holder.pid);
    watch.until("the holder", |shown| {
        let frame = frame(shown);
        frame.contains("first/name") && frame.contains(&label) && frame.contains("1 lock is held")
    });
    let waiter = locks.start(&["--fair"], "first/name", "echo $LOCKKIT_OWNER; read -r _ <gate");
    let waits = format!(":{}", waiter.pid);
    watch.until("the waiter", |shown| {
        frame(shown).split_once(" 1: ").is_some_and(|(_, who)| who.contains(&waits))
    });
    locks.open_gate();
    assert_eq!(holder.finish().code, 0);
    assert_eq!(waiter.line().map(|owner| owner.len()), Some(32));
    let label = format!(":{} ", waiter.pid);
    watch.until("the next holder", |shown| {
        frame(shown).contains(&label) && !frame(shown).contains(" 1: ")
    });
    locks.open_gate();
    assert_eq!(waiter.finish().code, 0);
    watch.until("nobody", |shown| frame(shown).contains("no lock is held"));

    watch.press("q");
    let shown = watch.finish().out;
    assert!(shown.starts_with(OTHER_SCREEN), "{shown:?}");
    let after = shown.rsplit_once(OWN_SCREEN).unwrap().1;
    assert_eq!(after, "same\r\ncode 0\r\n");
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let locks = Locks::new();
    let Some(mut watch) = AtTerminal::start(&locks, WATCH) else { return };
    watch.until("the screen", |shown| shown.contains("q quits"));
    watch.press("\x03");
    let shown = watch.finish().out;
    let after = shown.rsplit_once(OWN_SCREEN).unwrap().1;
    assert!(after.ends_with("same\r\ncode 130\r\n"), "{after:?}");
}

#[test]
fn long_lists_scroll() {
    let locks = Locks::new();
    let names: Vec<_> = (10..40).map(|number| format!("lock-{number}")).collect();
    let holders: Vec<_> = names.iter().map(|name| hold(&locks, name)).collect();
    let Some(mut watch) = AtTerminal::start(&locks, WATCH) else { return };
    let shows = |first: usize, last: usize| {
        move |shown: &str| {
            let frame = frame(shown);
            let is_whole = frame.contains(&format!("{} to {} of 30", first - 9, last - 9));
            is_whole
                && frame.contains(&format!("lock-{first} "))
                && frame.contains(&format!("lock-{last} "))
                && !frame.contains(&format!("lock-{} ", first - 1))
                && !frame.contains(&format!("lock-{} ", last + 1))
        }
    };
    for (keys, first, last) in [
        ("", 10, 29),
        ("j", 11, 30),
        ("\x1b[B\x1b[B", 13, 32),
        ("\x1b[A", 12, 31),
        ("G", 20, 39),
        ("\x1b[B", 20, 39),
        ("\x1b[5~", 10, 29),
    ] {
        watch.press(keys);
        watch.until(&format!("{keys:?}"), shows(first, last));
    }
    watch.press("q");
    assert!(watch.finish().out.contains("code 0"));
    for _ in &holders {
        locks.open_gate();
    }
    for holder in holders {
        assert_eq!(holder.finish().code, 0);
    }
}

#[test]
fn a_backend_that_fails_is_told_and_asked_again() {
    let locks = Locks::new();
    let Some(mut watch) = AtTerminal::start(&locks, WATCH) else { return };
    watch.until("the screen", |shown| shown.contains("q quits"));
    fs::rename(locks.path("locks.db"), locks.path("gone")).unwrap();
    watch.until("the error", |shown| frame(shown).contains("this is how it was"));
    fs::rename(locks.path("gone"), locks.path("locks.db")).unwrap();
    watch.until("no error", |shown| frame(shown).contains("q quits"));
    watch.press("q");
    assert!(watch.finish().out.contains("code 0"));
}

#[test]
fn a_name_is_shown_with_all_there_is_to_say() {
    let locks = Locks::new();
    let holder = hold(&locks, "name");
    let shell = "\"$PROGRAM\" status --watch name";
    let Some(mut watch) = AtTerminal::start(&locks, shell) else { return };
    watch.until("the holder", |shown| {
        frame(shown).contains("lock `name` is held")
            && frame(shown).contains("unless it is renewed")
    });
    locks.open_gate();
    assert_eq!(holder.finish().code, 0);
    watch.until("nobody", |shown| frame(shown).contains("lock `name` is free"));
    watch.press("q");
    assert_eq!(watch.finish().code, 0);
}

#[test]
fn what_cannot_be_watched_is_an_error() {
    let locks = Locks::new();
    // No terminal.
    let ended = Running::start(locks.lockkit("status", &["--watch"])).finish();
    assert_eq!((ended.code, &*ended.out), (64, ""), "{ended:?}");
    assert!(ended.err.contains("--watch needs a terminal"), "{ended:?}");
    let shell = "\"$PROGRAM\" status --watch --url redis://127.0.0.1:1";
    let Some(watch) = AtTerminal::start(&locks, shell) else { return };
    let ended = watch.finish();
    assert_eq!(ended.code, 69, "{ended:?}");
    assert!(!ended.out.contains(OTHER_SCREEN), "{ended:?}");
}

#[test]
fn a_terminal_that_cannot_be_drawn_on_is_left_alone() {
    let locks = Locks::new();
    for terminal in ["TERM=dumb", "TERM=", "unset TERM;"] {
        let shell = format!("{terminal} \"$PROGRAM\" status --watch; echo code $?");
        let Some(watch) = AtTerminal::start(&locks, &shell) else { return };
        let shown = watch.finish().out;
        assert!(shown.contains("TERM") && shown.ends_with("code 64\r\n"), "{shown:?}");
        assert!(!shown.contains('\x1b'), "{shown:?}");
    }
}
