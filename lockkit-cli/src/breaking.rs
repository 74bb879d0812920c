//! `lockkit break`: ends somebody's hold.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use lockkit::driver::blocking;
use lockkit::{Holder, Locker, Result};

use crate::args::Break;
use crate::report::{answer, say};
use crate::status::{held_by, shortened};
use crate::table::visible;
use crate::{backend, exit};

/// Breaks a hold and returns the exit code.
pub(crate) fn break_hold(options: &Break) -> u8 {
    if !options.yes && !io::stdin().is_terminal() {
        say("--yes is needed where there is no terminal to ask at");
        return exit::USAGE;
    }
    backend::at(&options.place, async |locker| attempt(locker, options).await)
}

async fn attempt(locker: &Locker, options: &Break) -> Result<u8> {
    let name = visible(&options.name);
    let victim = if options.yes && options.owner.is_none() {
        None
    } else {
        let status = locker.look(&options.name).await?;
        let Some(holder) = status.holder() else { return Ok(nobody(&name)) };
        let is = describe(holder);
        if options.owner.as_ref().is_some_and(|id| !holder.owner().to_string().starts_with(id)) {
            say(format!("lock `{name}` is {is}: not by the owner to be broken"));
            return Ok(exit::NO);
        }
        if !options.yes {
            let question = format!("lock `{name}` is {is}. Break it? [y/N] ");
            // Whoever is asked may take their time, and a session has to be kept alive meanwhile.
            let reply = blocking(move || confirmed(&question)).await;
            // No answer is no yes.
            if !reply.unwrap_or(false) {
                say("nothing was broken");
                return Ok(exit::NO);
            }
        }
        // The hold that was seen, not that of somebody who came meanwhile.
        Some(holder.owner())
    };
    match (locker.break_hold(&options.name, victim).await?, victim) {
        (Some(holder), _) => {
            let text = format!("broken: lock `{name}` was {}\n", describe(&holder));
            Ok(answer(text, exit::OK))
        }
        (None, None) => Ok(nobody(&name)),
        (None, Some(owner)) => {
            say(format!("lock `{name}`: the hold of owner {owner} had ended by itself"));
            Ok(exit::NO)
        }
    }
}

fn nobody(name: &str) -> u8 {
    say(format!("nobody holds lock `{name}`"));
    exit::NO
}

fn describe(holder: &Holder) -> String {
    let token = holder.fencing_token().map_or(String::new(), |token| format!(", token {token}"));
    format!("{} (owner {}{token})", held_by(holder), shortened(holder.owner()))
}

/// Whether somebody at the terminal says yes. Whoever closes it does not.
fn confirmed(question: &str) -> bool {
    // Whoever cannot read the question does not answer it with yes.
    if io::stderr().write_all(question.as_bytes()).is_err() {
        return false;
    }
    let mut reply = String::new();
    let read = io::stdin().lock().read_line(&mut reply);
    read.is_ok() && matches!(reply.trim().to_lowercase().as_str(), "y" | "yes")
}
