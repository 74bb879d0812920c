//! What people read of a run: `summary.md`, `report.html`, `overview.svg`, and a part of the README.

mod canvas;
mod digest;
mod gallery;
mod noise;
mod page;
mod pictures;
mod readme;
mod scale;
mod summary;
mod targets;

use std::fs;
use std::path::Path;

use lockkit_bench::Result;

use crate::run::Run;

pub use readme::readme;

/// Writes the reports of a run into a folder that exists, over what is there.
///
/// # Errors
///
/// If one cannot be drawn or written.
pub fn write(run: &Run, folder: &Path) -> Result<()> {
    for (name, text) in files(run)? {
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}

/// What [`write()`] writes: names and texts. The same run makes the same texts.
///
/// # Errors
///
/// If one cannot be drawn.
pub fn files(run: &Run) -> Result<[(&'static str, String); 3]> {
    Ok([
        ("summary.md", summary::summary(run)),
        ("report.html", page::page(run)?),
        ("overview.svg", readme::picture(run)?),
    ])
}
