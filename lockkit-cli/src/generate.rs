//! What is made from the grammar of the arguments: completions and manual pages.

use std::io;

use crate::args::{Completions, Man, grammar};
use crate::exit;
use crate::report::{answer, say};

/// Writes a shell's completions and returns the exit code.
pub(crate) fn completions(options: &Completions) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut grammar(), "lockkit", &mut script);
    answer(&script, exit::OK)
}

/// Writes a page of the manual and returns the exit code.
pub(crate) fn man(options: &Man) -> u8 {
    match page(options.command.as_deref()) {
        Ok(Some(page)) => answer(&page, exit::OK),
        Ok(None) => {
            say("there is no such command; see `lockkit --help`");
            exit::USAGE
        }
        Err(error) => {
            say(error.to_string());
            exit::IO
        }
    }
}

/// `None` if there is no such command.
fn page(name: Option<&str>) -> io::Result<Option<Vec<u8>>> {
    let mut grammar = grammar();
    // Gives the commands their full names.
    grammar.build();
    let command = match name {
        Some(name) => grammar.find_subcommand(name),
        None => Some(&grammar),
    };
    let Some(command) = command.cloned() else { return Ok(None) };
    let title = command.get_display_name().unwrap_or("lockkit").to_owned();
    let source = concat!("lockkit ", env!("CARGO_PKG_VERSION"));
    let mut page = Vec::new();
    clap_mangen::Man::new(command).title(title).source(source).render(&mut page)?;
    Ok(Some(page))
}
