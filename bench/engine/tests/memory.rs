//! What the engine allocates, counted by the allocator.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use allocation_counter::measure;
use lockkit_bench_engine::{AtOnce, Stage, WORKS};
use lockkit_core::Lock;
use lockkit_core::driver::Driver;
use lockkit_core::memory::MemoryDriver;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;

#[test]
fn a_waiter_costs_less_than_two_kibibytes() {
    for waiters in [1_000, 10_000] {
        for (how, bytes) in [
            ("in turns", bytes_per_waiter(AtOnce::single(), waiters)),
            ("in the driver's queue", bytes_per_waiter(MemoryDriver::new(), waiters)),
        ] {
            println!("{bytes} bytes for each of {waiters} waiters {how}");
            assert!(bytes < 2 * 1024, "{bytes} bytes for each of {waiters} waiters {how}");
        }
    }
}

#[test]
fn operations_allocate_as_often_as_they_have_to() {
    // Without metrics, and with them.
    for (name, most, metered) in [
        ("plain", 9.1, 14.1),
        ("fair", 9.1, 14.1),
        ("leased", 10.1, 15.1),
        ("dropped", 8.1, 13.1),
        ("reentered", 0.0, 0.0),
        ("turn", 12.1, 18.1),
        ("handed", 12.1, 18.1),
        ("renewal", 4.1, 4.1),
    ] {
        let most = if cfg!(feature = "metrics") { metered } else { most };
        let work = WORKS.iter().find(|work| work.name == name).unwrap();
        let allocations = |times| {
            let stage = Stage::virtual_time();
            measure(|| work.perform(&stage, times)).count_total
        };
        let each = (allocations(3_000) - allocations(1_000)) as f64 / 2_000.0;
        println!("{name}: {each} allocations");
        assert!(each <= most, "{} takes {each} allocations, not {most}", work.what);
    }
}

#[test]
fn a_hold_that_is_kept_costs_less_than_two_kibibytes() {
    const HOLDS: usize = 10_000;
    let stage = Stage::virtual_time();
    let driver = AtOnce::free();
    let locker = stage.locker(driver.clone());
    let mut guards = Vec::with_capacity(HOLDS);
    let held = measure(|| {
        stage.perform(async {
            for number in 0..HOLDS {
                let lock = locker.lock(&format!("orders/{number}")).unwrap();
                guards.push(lock.acquire().await.unwrap());
            }
            sleep(Stage::TTL).await;
        });
    });
    assert!(driver.renewals() >= 2 * HOLDS as u64, "all have their keepers");
    let bytes = held.bytes_current / HOLDS as i64;
    println!("{bytes} bytes for each of {HOLDS} holds");
    assert!(bytes < 2 * 1024, "{bytes} bytes for each of {HOLDS} holds");
}

/// All that is allocated for waiters of one locker on one name: the task that calls, the engine's
/// own, the queue, and the driver's part.
fn bytes_per_waiter(driver: impl Driver, waiters: usize) -> i64 {
    let stage = Stage::virtual_time();
    let lock = stage.lock(driver);
    let holder = stage.perform(lock.acquire()).unwrap();
    let mut tasks = Vec::new();
    let waiting = measure(|| {
        stage.perform(async {
            tasks.extend((0..waiters).map(|_| waiter(&lock)));
            // The runtime does dozens of steps in between, and a waiter takes two.
            for _ in 0..waiters / 10 {
                yield_now().await;
            }
        });
    });
    let serving = measure(|| {
        stage.perform(async {
            holder.release().await.unwrap();
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
    assert!(serving.bytes_current < 0, "nothing is kept of those who have been served");
    waiting.bytes_current / waiters as i64
}

fn waiter(lock: &Lock) -> JoinHandle<()> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
}
