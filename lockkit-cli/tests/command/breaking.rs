use crate::status::{hold, json};
use crate::support::{AtTerminal, Ended, Locks, Running};

/// At a terminal.
const ASK: &str = "exec \"$PROGRAM\" break name";

fn break_hold(locks: &Locks, arguments: &[&str]) -> Ended {
    Running::start(locks.lockkit("break", arguments)).finish()
}

fn owner_of(locks: &Locks, name: &str) -> Option<String> {
    let seen = json(locks, &[name]);
    seen["locks"][0]["holder"]["owner"].as_str().map(String::from)
}

#[test]
fn a_broken_hold_ends_its_command_and_goes_to_the_next() {
    let locks = Locks::with_ttl("3s");
    let broken = locks.start(&[], "name", "echo $LOCKKIT_TOKEN; sleep 1000");
    let token: u64 = broken.line().unwrap().parse().unwrap();
    let next = locks.start(&[], "name", "echo $LOCKKIT_TOKEN");
    assert!(next.complaint().unwrap().contains("waiting"));

    let ended = break_hold(&locks, &["--yes", "name"]);
    assert_eq!((ended.code, &*ended.err), (0, ""), "{ended:?}");
    for part in ["broken: lock `name`", &format!(":{}", broken.pid), &format!("token {token}")] {
        assert!(ended.out.contains(part), "{part}: {ended:?}");
    }
    let higher: u64 = next.line().unwrap().parse().unwrap();
    assert!(higher > token);
    assert_eq!(next.finish().code, 0);
    let broken = broken.finish();
    assert_eq!(broken.code, 70, "{broken:?}");
    assert!(broken.err.contains("is lost: killing"), "{broken:?}");
}

#[test]
fn nothing_to_break_is_1() {
    let locks = Locks::new();
    for arguments in [&["--yes", "name"][..], &["--yes", "--owner", "0123456789abcdef", "name"]] {
        let ended = break_hold(&locks, arguments);
        assert_eq!((ended.code, &*ended.out), (1, ""), "{ended:?}");
        assert_eq!(ended.err, "lockkit: nobody holds lock `name`\n");
    }
}

#[test]
fn only_the_named_owner_is_broken() {
    let locks = Locks::new();
    let holder = hold(&locks, "name");
    let owner = owner_of(&locks, "name").unwrap();
    // Differs in the last digit.
    let last = if owner.ends_with('0') { "1" } else { "0" };
    let other = format!("{}{last}", &owner[..31]);
    for wrong in [&other, "00000000"] {
        let ended = break_hold(&locks, &["--yes", "--owner", wrong, "name"]);
        assert_eq!((ended.code, &*ended.out), (1, ""), "{ended:?}");
        assert!(ended.err.contains("not by the owner to be broken"), "{ended:?}");
        assert_eq!(owner_of(&locks, "name").as_ref(), Some(&owner));
    }
    // As the table shows it, and in capitals.
    let ended = break_hold(&locks, &["--yes", "--owner", &owner[..12].to_uppercase(), "name"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(owner_of(&locks, "name"), None);
    drop(holder);
}

#[test]
fn wrong_usage_is_64() {
    let locks = Locks::new();
    let holder = hold(&locks, "name");
    for arguments in [
        // There is no terminal to ask at.
        &["name"][..],
        &[],
        &["--yes"],
        &["--yes", "--owner", "0123456", "name"],
        &["--yes", "--owner", "not digits", "name"],
        &["--yes", "--owner", &"0".repeat(33), "name"],
        &["--yes", "a\nb"],
    ] {
        let ended = break_hold(&locks, arguments);
        assert_eq!((ended.code, &*ended.out), (64, ""), "{arguments:?}: {ended:?}");
    }
    locks.open_gate();
    assert_eq!(holder.finish().code, 0);
}

#[test]
fn at_a_terminal_the_default_is_no() {
    let locks = Locks::new();
    let holder = hold(&locks, "name");
    // Return, a word that is not yes, and the end of input.
    for reply in ["\n", "no\n", "yessir\n", "\x04"] {
        let Some(mut asking) = AtTerminal::start(&locks, ASK) else { return };
        asking.press(reply);
        let ended = asking.finish();
        assert_eq!(ended.code, 1, "{reply:?}: {ended:?}");
        assert!(ended.out.contains(&format!(":{} for", holder.pid)), "{ended:?}");
        assert!(ended.out.contains("nothing was broken"), "{ended:?}");
    }
    assert!(owner_of(&locks, "name").is_some());
    let Some(mut asking) = AtTerminal::start(&locks, ASK) else { return };
    asking.press("y\n");
    let ended = asking.finish();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.out.contains("broken: lock `name`"), "{ended:?}");
    assert_eq!(owner_of(&locks, "name"), None);
}

#[test]
fn a_signal_is_no_answer() {
    let locks = Locks::new();
    let holder = hold(&locks, "name");
    let Some(mut asking) = AtTerminal::start(&locks, ASK) else { return };
    asking.until("it asks", |shown| shown.contains("[y/N]"));
    asking.press("\x03");
    assert_eq!(asking.finish().code, 130);
    assert!(owner_of(&locks, "name").is_some());
    drop(holder);
}

/// Who came between the question and the answer was not asked about.
#[test]
fn a_yes_is_for_the_hold_that_was_shown() {
    let locks = Locks::new();
    let first = hold(&locks, "name");
    let Some(mut asking) = AtTerminal::start(&locks, ASK) else { return };
    asking.until("it asks", |shown| shown.contains("[y/N]"));
    locks.open_gate();
    assert_eq!(first.finish().code, 0);
    let second = hold(&locks, "name");
    asking.press("y\n");
    let ended = asking.finish();
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.out.contains("had ended by itself"), "{ended:?}");
    assert!(owner_of(&locks, "name").is_some());
    locks.open_gate();
    assert_eq!(second.finish().code, 0);
}
