//! Whether a driver sweeps when it is made. One in fifty does, which is a few requests more, and
//! another connection: in a test, that is not left to chance.

/// The driver that is connected next, on this thread, will sweep.
pub(crate) fn draw_a_sweep() {
    draw(true);
}

/// It will not.
pub(crate) fn draw_no_sweep() {
    draw(false);
}

/// With a seed that is drawn as well: ports of servers are drawn on this thread, too, and not to be the
/// same in all tests.
fn draw(sweeps: bool) {
    let draws_a_sweep = |seed| fastrand::Rng::with_seed(seed).u32(0..50) == 0;
    let mut seeds = std::iter::repeat_with(|| fastrand::u64(..));
    fastrand::seed(seeds.find(|&seed| draws_a_sweep(seed) == sweeps).unwrap());
}
