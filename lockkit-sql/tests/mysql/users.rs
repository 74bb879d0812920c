//! What users do: drop futures anywhere, wait by the thousand on two connections.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use libtest_mimic::Trial;
use lockkit_core::driver::Driver;
use lockkit_core::{Fifo, Lock, Locker, Namespace};
use lockkit_testkit::{Server, trial};
use tokio::time::{sleep, timeout};

use crate::support::{
    Database, NAME, driver, impatient_driver, millis, named, refused, shared, take,
    without_durability,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_dropped_future_leaves_nothing_on_the_server", shared, dropped),
        trial("a_thousand_waiters_hold_up_nobody", without_durability, thousand),
    ]
}

async fn dropped(server: String) {
    let mut database = Database::on(&server).await;
    let url = format!("{}?connections=2", database.url);
    let locker = Locker::new(driver(&url).await);
    let lock = locker.lock(NAME).unwrap();
    let fair: Lock<Fifo> = locker.lock(NAME).unwrap().fair().unwrap();
    for is_held in [false, true] {
        for is_fair in [false, true] {
            for polls in 1..=8 {
                let holder = if is_held { Some(lock.acquire().await.unwrap()) } else { None };
                {
                    let mut acquiring = pin!(async {
                        match is_fair {
                            true => fair.acquire().await,
                            false => lock.acquire().await,
                        }
                    });
                    let mut left = polls;
                    let polling = poll_fn(|context| {
                        left -= 1;
                        match acquiring.as_mut().poll(context) {
                            Poll::Pending if left > 0 => Poll::Pending,
                            _ => Poll::Ready(()),
                        }
                    });
                    // Who waits is not polled before there is something to tell.
                    _ = timeout(millis(30), polling).await;
                }
                if let Some(holder) = holder {
                    holder.release().await.unwrap();
                }
                let left = "SELECT (SELECT COUNT(owner) FROM lockkit_lock) \
                            + (SELECT COUNT(*) FROM lockkit_place)";
                while database.ask::<i64>(left).await > 0 {
                    sleep(millis(2)).await;
                }
                assert_eq!(database.transactions().await, 0);
                // One may sleep until it is told.
                assert!(database.sessions().await.len() <= 3);
            }
        }
    }
    // No seat is kept.
    locker.lock(NAME).unwrap().acquire().await.unwrap().release().await.unwrap();
}

async fn thousand(server: Server) {
    const HOUR: Duration = Duration::from_secs(60 * 60);
    let mut database = Database::on(&server.url()).await;
    // They stand in line for one connection, on a machine under load.
    let url = format!("{}?connections=2&call_limit=30s", database.url);
    let driver = impatient_driver(&url).await;
    let name = |number: usize| format!("{}", number % 100);
    let holders: Vec<_> = (0..100).map(|number| named(&name(number), HOUR)).collect();
    let waiters: Vec<_> = (0..1000).map(|number| named(&name(number), HOUR).fair()).collect();
    for holder in &holders {
        take(&driver, holder).await;
    }
    // They ask all at once, and the holders are not kept from keeping and releasing.
    let mut asking =
        pin!(futures_util::future::join_all(waiters.iter().map(|waiter| refused(&driver, waiter))));
    let keeping = async {
        for holder in &holders {
            driver.renew(holder).await.unwrap();
        }
    };
    tokio::select! {
        biased;
        _ = &mut asking => panic!("renewals wait for asks"),
        () = keeping => (),
    }
    asking.await;
    assert!(database.sessions().await.len() <= 3);
    for holder in &holders {
        driver.release(holder).await.unwrap();
    }
    let seen = driver.inspect().unwrap().look(holders[0].name()).await.unwrap();
    assert_eq!(seen.waiters().len(), 10);
    for waiter in &waiters {
        driver.release(waiter).await.unwrap();
    }
    assert!(driver.inspect().unwrap().held(&Namespace::default()).await.unwrap().is_empty());
    assert_eq!(database.ask::<i64>("SELECT COUNT(*) FROM lockkit_place").await, 0);
    assert_eq!(database.ask::<i64>("SELECT COUNT(owner) FROM lockkit_lock").await, 0);
    assert_eq!(database.ask::<i64>("SELECT MAX(queued) FROM lockkit_lock").await, 0);
}
