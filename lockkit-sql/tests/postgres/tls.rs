//! Connections that are encrypted, and those that should be and are not.

use std::fs::{self, OpenOptions};
use std::process::Command;

use libtest_mimic::Trial;
use lockkit_core::Error;
use lockkit_core::driver::{Driver as _, Release};
use lockkit_sql::postgres::PostgresDriver;
use lockkit_testkit::{Authority, POSTGRES, Server, Unavailable, trial};
use tokio::task::spawn_blocking;

use crate::support::{Database, LONG, causes, claim, driver, take};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_verified_server_is_used", with_authority, verified),
        trial("another_authority_is_refused", with_authority, another_authority),
        trial("another_host_is_refused", with_authority, another_host),
        trial("a_file_that_cannot_be_opened_yet_is_given_up_in_time", with_authority, pipe),
        trial("a_client_is_known_by_its_certificate", with_authority, client),
        trial("a_server_without_tls_is_refused", || POSTGRES.url(), without_tls),
    ]
}

fn with_authority() -> Result<(Server, Authority), Unavailable> {
    Ok((POSTGRES.start()?, Authority::new(&POSTGRES)?))
}

/// Has the server show a certificate for `host`, and trust what the authority signs.
async fn speak_tls(server: &Server, authority: &Authority, host: &str) {
    let identity = authority.server(host).unwrap();
    server.add_file(&identity.certificate, "server.crt").unwrap();
    server.add_file(&identity.key, "server.key").unwrap();
    server.add_file(&authority.certificate(), "root.crt").unwrap();
    let mut database = Database::at(&server.url()).await;
    for setting in ["ssl = on", "ssl_ca_file = 'root.crt'"] {
        database.run(&format!("ALTER SYSTEM SET {setting}")).await;
    }
    server.restart().unwrap();
}

fn trusting(server: &Server, authority: &Authority, mode: &str) -> String {
    let file = authority.certificate();
    format!("{}?sslmode={mode}&sslrootcert={}", server.url(), file.display())
}

async fn refused(url: &str) -> String {
    let error = PostgresDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    causes(&error)
}

async fn verified((server, authority): (Server, Authority)) {
    speak_tls(&server, &authority, "127.0.0.1").await;
    let [full, ca] = ["verify-full", "verify-ca"].map(|mode| trusting(&server, &authority, mode));
    for url in [full, ca, format!("{}?sslmode=require", server.url())] {
        let driver = driver(&url).await;
        let claim = claim(LONG);
        take(&driver, &claim).await;
        let mut database = Database::at(&server.url()).await;
        let encrypted = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                         WHERE ssl AND application_name = 'lockkit'";
        assert!(database.ask::<i64>(encrypted).await > 0, "{url}");
        assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
    }
}

async fn another_authority((server, authority): (Server, Authority)) {
    speak_tls(&server, &authority, "127.0.0.1").await;
    let another = Authority::new(&POSTGRES).unwrap();
    for mode in ["verify-full", "verify-ca"] {
        let told = refused(&trusting(&server, &another, mode)).await;
        assert!(told.contains("certificate") && told.contains("UnknownIssuer"), "{mode}: {told}");
    }
}

async fn another_host((server, authority): (Server, Authority)) {
    speak_tls(&server, &authority, "db.example").await;
    let told = refused(&trusting(&server, &authority, "verify-full")).await;
    assert!(told.contains("certificate") && told.contains("db.example"), "{told}");
    // Whose it is was not asked.
    driver(&trusting(&server, &authority, "verify-ca")).await;
}

/// One that is written whenever it is read, except just now.
async fn pipe((server, authority): (Server, Authority)) {
    speak_tls(&server, &authority, "127.0.0.1").await;
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let url = format!("{}?sslmode=verify-full&sslrootcert={}", server.url(), pipe.display());
    let error = PostgresDriver::connect(&url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    // Threads wait for it still.
    let opening = spawn_blocking(move || OpenOptions::new().write(true).open(pipe));
    opening.await.unwrap().unwrap();
}

async fn client((server, authority): (Server, Authority)) {
    speak_tls(&server, &authority, "127.0.0.1").await;
    let mut database = Database::at(&server.url()).await;
    database.run("CREATE ROLE certified LOGIN SUPERUSER").await;
    let rules = server.data().join("pg_hba.conf");
    let before = fs::read_to_string(&rules).unwrap();
    let rule = "hostssl all certified 127.0.0.1/32 cert\nhost all certified 127.0.0.1/32 reject\n";
    fs::write(&rules, format!("{rule}{before}")).unwrap();
    database.run("SELECT pg_reload_conf()").await;

    let url = database.url_of("certified");
    let url =
        format!("{url}?sslmode=verify-full&sslrootcert={}", authority.certificate().display());
    let showing = |name: &str| {
        let identity = authority.client(name).unwrap();
        let (certificate, key) = (identity.certificate.display(), identity.key.display());
        format!("{url}&sslcert={certificate}&sslkey={key}")
    };
    take(&driver(&showing("certified")).await, &claim(LONG)).await;
    for wrong in [url.clone(), showing("somebody-else")] {
        let error = PostgresDriver::connect(&wrong.parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Denied(_)), "{error:?}");
    }
}

async fn without_tls(server: String) {
    let told = refused(&format!("{server}?sslmode=require")).await;
    assert!(told.contains("does not support TLS"), "{told}");
}
