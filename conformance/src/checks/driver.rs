//! Checks that ask the driver alone.

pub(super) mod asking;
pub(super) mod breaking;
pub(super) mod closing;
pub(super) mod cutting;
pub(super) mod handing;
pub(super) mod inspection;
pub(super) mod leasing;
pub(super) mod looking;
pub(super) mod names;
pub(super) mod overlapping;
pub(super) mod releasing;
pub(super) mod renewing;
pub(super) mod resuming;
pub(super) mod sharing;
pub(super) mod silence;
pub(super) mod tokens;
pub(super) mod vouching;
pub(super) mod waiting;
