//! What is seen of sessions, also of other programs', and how they are broken.

use libtest_mimic::Trial;
use lockkit_core::driver::{ErrorKind, OwnerId, Release, Renewal};
use lockkit_core::{Error, Grade, Namespace};
use lockkit_testkit::{POSTGRES, Proxy, Server, trial};

use crate::support::{
    Raw, claim, connect, driver, impatient_driver, kind, of_a_process, on_each, refused, take,
};

pub(crate) fn trials() -> Vec<Trial> {
    let of_postgres = trial(
        "postgres::a_look_at_a_table_that_is_locked_leaves_no_session_waiting",
        || POSTGRES.start(),
        locked,
    );
    let prepared = trial(
        "postgres::a_prepared_transaction_is_seen_and_not_broken",
        || POSTGRES.start_with(&["-c", "max_prepared_transactions=1"]),
        prepared,
    );
    [
        on_each("another_program_is_seen_and_not_broken", foreign),
        on_each("a_break_says_what_else_would_end", others),
        on_each("a_break_that_comes_late_ends_no_other_hold", late),
        on_each("a_break_that_comes_late_ends_no_further_hold", late_for_one),
        on_each("a_diagnosis_knows_the_time_out", diagnosed),
        on_each("a_diagnosis_names_rights_that_are_missing", rights),
    ]
    .into_iter()
    .flatten()
    .chain([of_postgres, prepared])
    .collect()
}

async fn foreign(server: Server) {
    let (mut raw, driver) = (Raw::to(&server).await, driver(&server.url(), "keys=exact").await);
    let claim = claim("42");
    // A row that tells of an earlier hold.
    take(&*driver, &claim).await;
    driver.release(&claim).await.unwrap();
    assert!(raw.takes("42").await);
    let id = raw.ask("SELECT pg_backend_pid()::bigint", "SELECT CAST(CONNECTION_ID() AS SIGNED)");
    let id = id.await;
    let inspect = driver.inspect().unwrap();
    let status = inspect.look(claim.name()).await.unwrap();
    let holder = status.holder().unwrap();
    assert_eq!(holder.owner(), of_a_process(id));
    assert_eq!(holder.fencing_token(), None);
    assert!(holder.label().unwrap().as_str().contains(&format!("session {id}")));
    assert!(inspect.held(&Namespace::default()).await.unwrap().is_empty());
    for owner in [None, Some(holder.owner())] {
        match inspect.break_hold(claim.name(), owner).await {
            Ok(None) => assert!(owner.is_some()),
            broken => {
                let (kind, text) = kind(broken);
                assert_eq!(kind, ErrorKind::Unsupported);
                assert!(text.contains("another program"), "{text}");
            }
        }
    }
    raw.gives_back("42").await;
}

async fn prepared(server: Server) {
    let (mut raw, driver) = (Raw::to(&server).await, driver(&server.url(), "keys=exact").await);
    raw.run("BEGIN; SELECT pg_advisory_xact_lock(42); PREPARE TRANSACTION 'other'").await;
    let (claim, inspect) = (claim("42"), driver.inspect().unwrap());
    refused(&*driver, &claim).await;
    let status = inspect.look(claim.name()).await.unwrap();
    assert_eq!(status.holder().unwrap().label().unwrap().as_str(), "a prepared transaction");
    let (kind, text) = kind(inspect.break_hold(claim.name(), None).await);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("pg_prepared_xacts"), "{text}");
    raw.run("COMMIT PREPARED 'other'").await;
    assert!(inspect.break_hold(claim.name(), None).await.unwrap().is_none());
    take(&*driver, &claim).await;
}

async fn others(server: Server) {
    let (holder, outside) = (driver(&server.url(), "").await, driver(&server.url(), "").await);
    let (one, other) = (claim("orders/1"), claim("orders/2"));
    for claim in [&one, &other] {
        take(&*holder, claim).await;
    }
    let inspect = outside.inspect().unwrap();
    let (kind, text) = kind(inspect.break_hold(one.name(), Some(one.owner())).await);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("orders/2") && !text.contains("orders/1,"), "{text}");
    for claim in [&one, &other] {
        assert_ne!(holder.renew(claim).await.unwrap(), Renewal::Lost);
    }
    let nobody = inspect.break_hold(one.name(), Some(OwnerId::random())).await.unwrap();
    assert!(nobody.is_none());
    holder.release(&other).await.unwrap();
    let broken = inspect.break_hold(one.name(), Some(one.owner())).await.unwrap();
    assert_eq!(broken.map(|broken| broken.owner()), Some(one.owner()));
    take(&*outside, &claim("orders/1")).await;
    assert_eq!(holder.renew(&one).await.unwrap(), Renewal::Lost);
}

/// What ends a session.
fn end(server: &Server) -> &'static str {
    match server.url().starts_with("postgres") {
        true => "lockkit_session_break",
        false => "SET @lockkit_session",
    }
}

/// The session has let go meanwhile, and holds another lock, or the same for another owner.
async fn late(server: Server) {
    let (holder, proxy) = (driver(&server.url(), "").await, Proxy::start(server.addr()).await);
    for next in ["orders/2", "orders/1"] {
        let (one, next) = (claim("orders/1"), claim(next));
        take(&*holder, &one).await;
        // Another one each time, since a connection sends the text of a statement once.
        let outside = driver(&server.url_at(proxy.addr()), "").await;
        let inspect = outside.inspect().unwrap();
        let late = proxy.requests().hold(end(&server));
        let hand_over = async {
            late.caught().await;
            assert_eq!(holder.release(&one).await.unwrap(), Release::Freed);
            take(&*holder, &next).await;
            late.go_on();
        };
        let breaking = inspect.break_hold(one.name(), Some(one.owner()));
        let (broken, ()) = tokio::join!(breaking, hand_over);
        assert!(broken.unwrap().is_none());
        assert_ne!(holder.renew(&next).await.unwrap(), Renewal::Lost);
        assert_eq!(holder.release(&next).await.unwrap(), Release::Freed);
    }
}

/// The session has taken another lock as well.
async fn late_for_one(server: Server) {
    let (holder, proxy) = (driver(&server.url(), "").await, Proxy::start(server.addr()).await);
    let outside = driver(&server.url_at(proxy.addr()), "").await;
    let (one, further) = (claim("orders/1"), claim("orders/2"));
    take(&*holder, &one).await;
    let late = proxy.requests().hold(end(&server));
    let taking = async {
        late.caught().await;
        take(&*holder, &further).await;
        late.go_on();
    };
    let breaking = outside.inspect().unwrap().break_hold(one.name(), Some(one.owner()));
    let (broken, ()) = tokio::join!(breaking, taking);
    assert_eq!(kind(broken).0, ErrorKind::Unsupported);
    for claim in [&one, &further] {
        assert_ne!(holder.renew(claim).await.unwrap(), Renewal::Lost);
    }
}

/// As while the table is rewritten. MySQL and MariaDB have a limit for the whole session.
async fn locked(server: Server) {
    const WAITING: &str = "SELECT count(*) FROM pg_stat_activity \
         WHERE application_name = 'lockkit' AND wait_event_type = 'Lock'";
    let (mut raw, mut keeper) = (Raw::to(&server).await, Raw::to(&server).await);
    let driver = impatient_driver(&server.url(), "call_limit=8s").await;
    let held = claim("orders");
    take(&*driver, &held).await;
    let inspect = driver.inspect().unwrap();
    keeper.run("BEGIN; LOCK TABLE lockkit_session").await;
    let seen = kind(inspect.look(held.name()).await);
    let list = kind(inspect.held(&Namespace::default()).await);
    let broken = kind(inspect.break_hold(held.name(), Some(held.owner())).await);
    for (kind, text) in [seen, list, broken] {
        assert_eq!(kind, ErrorKind::Unreachable, "{text}");
        assert!(text.contains("lock timeout"), "{text}");
    }
    assert_eq!(raw.ask(WAITING, "").await, 0, "a session is left waiting");
    keeper.run("COMMIT").await;
    let status = inspect.look(held.name()).await.unwrap();
    assert_eq!(status.holder().unwrap().owner(), held.owner());
    assert_ne!(driver.renew(&held).await.unwrap(), Renewal::Lost);
}

async fn diagnosed(server: Server) {
    let driver = driver(&server.url(), "ttl=7s").await;
    let findings = driver.inspect().unwrap().diagnose(&Namespace::default()).await.unwrap();
    assert!(findings.iter().all(|finding| finding.grade() != Grade::Error), "{findings:?}");
    let session = findings.iter().find(|finding| finding.topic() == "session").unwrap();
    assert!(session.finding().contains("7s"), "{session:?}");
}

async fn rights(server: Server) {
    let (url, mut raw) = (server.url(), Raw::to(&server).await);
    driver(&url, "").await.close().await;
    // Each with what is missing then.
    let (app, mut steps) = match raw {
        Raw::Postgres(_) => {
            let steps = vec![
                (
                    "CREATE ROLE app LOGIN; GRANT SELECT ON lockkit_layout TO app; \
                     GRANT INSERT, UPDATE, DELETE ON lockkit_session TO app",
                    Some("(lockkit_session: SELECT)"),
                ),
                (
                    "GRANT SELECT ON lockkit_session TO app; \
                     REVOKE EXECUTE ON FUNCTION lockkit_session_release FROM PUBLIC",
                    Some("(functions: EXECUTE)"),
                ),
                (
                    "GRANT EXECUTE ON FUNCTION lockkit_session_release TO app; \
                     ALTER ROLE app SET default_transaction_read_only = on",
                    Some("default_transaction_read_only"),
                ),
                ("ALTER ROLE app RESET default_transaction_read_only", None),
            ];
            (url.replace("://postgres@", "://app@"), steps)
        }
        // Who has no right at all to a table does not see it.
        Raw::Mysql(_) => {
            let steps = vec![
                (
                    "CREATE USER app@127.0.0.1; \
                     GRANT SELECT ON shop.lockkit_layout TO app@127.0.0.1; \
                     GRANT INSERT, UPDATE, DELETE ON shop.lockkit_session TO app@127.0.0.1",
                    Some("(SELECT)"),
                ),
                (
                    "GRANT SELECT ON shop.lockkit_session TO app@127.0.0.1; \
                     REVOKE DELETE ON shop.lockkit_session FROM app@127.0.0.1",
                    Some("(DELETE)"),
                ),
                ("GRANT DELETE ON shop.lockkit_session TO app@127.0.0.1", None),
            ];
            (url.replace("://root@", "://app@"), steps)
        }
    };
    // It does not prepare what would read, so there is no connection, and nothing to diagnose.
    if url.starts_with("mysql:") {
        raw.run(steps.remove(0).0).await;
    }
    for (change, missing) in steps {
        let driver = match missing {
            // Who takes no writes is refused when it connects, and looked at later.
            Some("default_transaction_read_only") => {
                let driver = driver(&app, "").await;
                raw.run(change).await;
                let error = connect(&app, "").await.unwrap_err();
                assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
                driver
            }
            _ => {
                raw.run(change).await;
                driver(&app, "").await
            }
        };
        let findings = driver.inspect().unwrap().diagnose(&Namespace::default()).await.unwrap();
        let mut errors = findings.iter().filter(|finding| finding.grade() == Grade::Error);
        let error = errors.next().map(|finding| (finding.topic(), finding.finding()));
        match missing {
            Some(missing) => assert!(
                error.is_some_and(|(topic, text)| topic == "rights" && text.contains(missing)),
                "{missing}: {findings:?}"
            ),
            None => assert_eq!(error, None),
        }
        assert_eq!(errors.next(), None);
    }
    let (driver, claim) = (driver(&app, "").await, claim("orders/1"));
    take(&*driver, &claim).await;
    assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
}
