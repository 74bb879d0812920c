//! How long the engine's operations take: `cargo bench -p lockkit-bench-engine`.

use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use lockkit_bench_engine::{Stage, WORKS};

fn engine(criterion: &mut Criterion) {
    for work in WORKS {
        criterion.bench_function(work.name, |bencher| {
            // A renewal is due when time goes on, which is nothing to wait for.
            let stage = if work.name == "renewal" { Stage::virtual_time() } else { Stage::real() };
            bencher.iter_custom(|times| {
                let began = Instant::now();
                work.perform(&stage, times);
                began.elapsed()
            });
        });
    }
}

criterion_group!(benches, engine);
criterion_main!(benches);
