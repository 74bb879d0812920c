//! Guides, compiled with the crate.

#[doc = include_str!("../docs/safety.md")]
pub mod safety {}

#[doc = include_str!("../docs/urls.md")]
pub mod urls {}
