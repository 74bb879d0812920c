use std::process::Command;

use crate::support::{Ended, Running, lockkit};

const COMMANDS: [&str; 7] =
    ["run", "status", "break", "doctor", "conformance", "completions", "man"];

/// What a feature adds.
const MORE: &[&str] = if cfg!(feature = "bench") { &["bench"] } else { &[] };

fn generate(arguments: &[&str]) -> Ended {
    let mut command = lockkit();
    command.env("LOCKKIT_URL", "redis://:hunter2@h").args(arguments);
    let ended = Running::start(command).finish();
    assert!(!ended.out.contains("hunter2"), "{ended:?}");
    assert!(!ended.out.contains("__"), "a hidden step is no command: {ended:?}");
    ended
}

#[test]
fn every_shell_learns_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let mut command = lockkit();
        command.args(["completions", shell]);
        let ended = Running::start(command).finish();
        assert_eq!((ended.code, &*ended.err), (0, ""));
        for command in COMMANDS.iter().chain(MORE).chain(&["at-least", "watch"]) {
            assert!(ended.out.contains(command), "{shell} does not know {command}");
        }
        if shell == "bash" {
            let check = Command::new("bash").args(["-n", "-c", &ended.out]).status();
            assert!(check.is_err() || check.unwrap().success());
        }
    }
    assert_eq!(generate(&["completions", "tcsh"]).code, 64);
    assert_eq!(generate(&["completions"]).code, 64);
}

#[test]
fn every_command_has_a_page() {
    let main = generate(&["man"]);
    assert_eq!((main.code, &*main.err), (0, ""));
    for command in COMMANDS.iter().chain(MORE) {
        assert!(main.out.contains(&format!("lockkit\\-{command}(1)")), "{command}: {}", main.out);
        let page = generate(&["man", command]);
        assert_eq!((page.code, &*page.err), (0, ""));
        assert!(page.out.contains(&format!(".TH lockkit-{command} 1")), "{}", page.out);
        assert!(page.out.contains("Examples:"), "{}", page.out);
    }
    let page = generate(&["man", "run"]).out;
    assert!(page.contains("<NAME> \\-\\- <COMMAND>"), "{page}");
    assert_eq!(generate(&["man", "walk"]).code, 64);
}

/// Also those examples that name a check.
#[test]
fn the_checks_of_an_example_are_there() {
    let help = generate(&["conformance", "--help"]).out;
    let example = help.lines().find(|line| line.contains("--ttl 3s ")).unwrap();
    let filter = example.split_whitespace().next_back().unwrap();
    let listed = generate(&["conformance", "--list", filter]);
    assert_eq!((listed.code, listed.out.is_empty()), (0, false), "{filter}: {listed:?}");
}

#[test]
fn help_says_where_secrets_belong() {
    for command in ["run", "status", "break", "doctor", "conformance"].iter().chain(MORE) {
        let help = generate(&[command, "--help"]);
        assert_eq!((help.code, &*help.err), (0, ""));
        for part in ["Examples:", "Exit codes:", "LOCKKIT_URL"] {
            assert!(help.out.contains(part), "{command} has no {part}: {}", help.out);
        }
    }
    assert!(generate(&["--help"]).out.contains("password"));
}

/// A line of ours that is longer than help is wide is broken once more: a word is left alone.
#[test]
fn paragraphs_of_help_are_filled() {
    for command in COMMANDS.iter().chain(MORE) {
        let help = generate(&[command, "--help"]).out;
        let lines: Vec<_> = help.lines().collect();
        for three in lines.windows(3) {
            let in_text = three.iter().all(|line| line.starts_with(|first: char| first != ' '));
            assert!(!in_text || three[1].len() > 50, "{command}: {three:#?}");
        }
    }
}
