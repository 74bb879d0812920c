//! Checks that go through the engine, as an application does.

pub(super) mod ending;
pub(super) mod exclusion;
pub(super) mod holding;
pub(super) mod inspection;
pub(super) mod waiting;
