//! What the engine costs by itself: its operations over a driver that answers at once.
//!
//! - `cargo bench -p lockkit-bench-engine` measures time, on the machine's clock.
//! - `tests/instructions.rs` counts instructions, which a noisy machine does not change, and compares
//!   them with those on record.
//! - `tests/memory.rs` counts what is allocated.

mod at_once;
mod stage;
mod work;

pub use crate::at_once::AtOnce;
pub use crate::stage::Stage;
pub use crate::work::{WORKS, Work};
