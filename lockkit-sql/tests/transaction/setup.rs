//! The tables: made once, and only on request.

use libtest_mimic::Trial;
use lockkit_core::Wait;
use lockkit_sql::transaction::{Error, create_tables, gate, row_lock};
use sqlx::{Connection as _, MySql, Postgres, Sqlite};

use crate::support::{Home, Shop, Tested, causes, name, on, token};

pub(crate) fn trials() -> Vec<Trial> {
    let all = [of::<Postgres>(), of::<MySql>(), of::<Sqlite>()];
    let own = [
        on::<Postgres, _>("layout_1_is_as_it_was", |home| {
            as_it_was::<Postgres>(home, include_str!("layout-1.postgres.sql"))
        }),
        on::<MySql, _>("layout_1_is_as_it_was", |home| {
            as_it_was::<MySql>(home, include_str!("layout-1.mysql.sql"))
        }),
        on::<Sqlite, _>("layout_1_is_as_it_was", |home| {
            as_it_was::<Sqlite>(home, include_str!("layout-1.sqlite.sql"))
        }),
        on::<Postgres, _>("tables_are_part_of_an_open_transaction", part::<Postgres>),
        on::<Sqlite, _>("tables_are_part_of_an_open_transaction", part::<Sqlite>),
        on::<MySql, _>("no_table_is_made_while_a_transaction_is_open", not_part),
        on::<MySql, _>("tables_are_there_where_nothing_commits_by_itself", uncommitted),
        on::<MySql, _>("tables_that_were_restored_without_the_procedure_are_completed", restored),
        on::<Postgres, _>("the_documented_rights_are_enough", rights),
        on::<MySql, _>("the_documented_rights_are_enough", rights_of_mysql),
    ];
    all.into_iter().flatten().chain(own).collect()
}

fn of<DB: Tested>() -> Vec<Trial> {
    vec![
        on::<DB, _>("ten_at_once_make_the_tables_once", ten_at_once::<DB>),
        on::<DB, _>("an_unknown_layout_is_refused", unknown::<DB>),
        on::<DB, _>("a_gate_without_tables_is_said", no_tables::<DB>),
    ]
}

async fn ten_at_once<DB: Tested>(home: Home) {
    for _ in 0..3 {
        let shop = Shop::<DB>::empty(home.clone()).await;
        let pool = shop.pool(10).await;
        let ten: Vec<_> = (0..10)
            .map(|_| {
                let pool = pool.clone();
                tokio::spawn(async move {
                    let mut connection = pool.acquire().await.unwrap();
                    create_tables::<DB::Connection>(&mut connection).await
                })
            })
            .collect();
        for made in ten {
            made.await.unwrap().unwrap();
        }
        let mut transaction = pool.begin().await.unwrap();
        gate(&mut transaction, &name("a"), token(1)).await.unwrap();
        transaction.commit().await.unwrap();
    }
}

async fn unknown<DB: Tested>(home: Home) {
    let mut shop = Shop::<DB>::at(home).await;
    let pool = shop.pool(1).await;
    let mut connection = pool.acquire().await.unwrap();
    for (change, said) in [
        ("UPDATE lockkit_transaction_layout SET version = 2", "layout version 2"),
        ("DELETE FROM lockkit_transaction_layout", "no layout version"),
    ] {
        if DB::ID == "mariadb" && said.starts_with("no") {
            continue; // making the tables is done in steps there, and completed
        }
        shop.execute(change).await;
        let error = create_tables::<DB::Connection>(&mut connection).await.unwrap_err();
        assert!(matches!(error, Error::NotSetUp(_)), "{error:?}");
        assert!(causes(&error).contains(said), "{}", causes(&error));
    }
}

async fn no_tables<DB: Tested>(home: Home) {
    let shop = Shop::<DB>::empty(home).await;
    let mut transaction = shop.pool(1).await.begin().await.unwrap();
    let error = gate(&mut transaction, &name("a"), token(1)).await.unwrap_err();
    assert!(matches!(error, Error::NotSetUp(_)), "{error:?}");
}

/// Tables made by lockkit 0.1, or by a migration with its SQL, stay usable: a change of these files
/// is a new layout.
async fn as_it_was<DB: Tested>(home: Home, layout: &str) {
    let mut shop = Shop::<DB>::empty(home).await;
    shop.execute(layout).await;
    let pool = shop.pool(1).await;
    create_tables::<DB::Connection>(&mut *pool.acquire().await.unwrap()).await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    gate(&mut transaction, &name("a"), token(7)).await.unwrap();
    transaction.commit().await.unwrap();
    let row = "SELECT token FROM lockkit_gate WHERE namespace = 'lockkit' AND resource = 'a'";
    assert_eq!(shop.ask(row).await, 7);
    let version = "SELECT version + 9223372036854775806 FROM lockkit_transaction_layout";
    assert_eq!(shop.ask(version).await, i64::MAX);
}

async fn part<DB: Tested>(home: Home) {
    let mut shop = Shop::<DB>::empty(home).await;
    let pool = shop.pool(1).await;
    let mut transaction = pool.begin().await.unwrap();
    create_tables::<DB::Connection>(&mut transaction).await.unwrap();
    transaction.rollback().await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    create_tables::<DB::Connection>(&mut transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(shop.ask("SELECT count(*) FROM lockkit_gate").await, 0);
}

async fn not_part(home: Home) {
    let mut shop = Shop::<MySql>::empty(home).await;
    shop.execute("CREATE TABLE mine (id BIGINT) ENGINE = InnoDB").await;
    let pool = shop.pool(1).await;
    let mut transaction = pool.begin().await.unwrap();
    MySql::execute(&mut transaction, "INSERT INTO mine VALUES (1)").await.unwrap();
    let error = create_tables::<sqlx::MySqlConnection>(&mut transaction).await.unwrap_err();
    assert!(causes(&error).contains("MySQL would commit"), "{}", causes(&error));
    transaction.rollback().await.unwrap();
    assert_eq!(shop.ask("SELECT count(*) FROM mine").await, 0);
}

async fn uncommitted(home: Home) {
    let mut shop = Shop::<MySql>::empty(home).await;
    let pool = shop.pool_at(2, "SET autocommit = 0").await;
    let (mut one, mut other) = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
    for connection in [&mut one, &mut other] {
        create_tables::<sqlx::MySqlConnection>(&mut *connection).await.unwrap();
    }
    assert_eq!(shop.ask("SELECT count(*) FROM lockkit_transaction_layout").await, 1);
    // What they ask is no transaction of the caller's.
    create_tables::<sqlx::MySqlConnection>(&mut one).await.unwrap();
}

/// As by `mysqldump`, which leaves procedures out unless it is told not to.
async fn restored(home: Home) {
    let mut shop = Shop::<MySql>::at(home).await;
    shop.execute("DROP PROCEDURE lockkit_row_lock").await;
    let pool = shop.pool(1).await;
    create_tables::<sqlx::MySqlConnection>(&mut *pool.acquire().await.unwrap()).await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    row_lock(&mut transaction, &name("a"), Wait::No).await.unwrap();
}

async fn rights(home: Home) {
    let mut shop = Shop::<Postgres>::at(home).await;
    let role = format!("role_of_{}", shop.url.rsplit_once('/').unwrap().1);
    shop.execute(&format!(
        "CREATE ROLE {role} LOGIN;
         GRANT SELECT ON lockkit_transaction_layout TO {role};
         GRANT SELECT, INSERT, UPDATE ON lockkit_row, lockkit_turn, lockkit_gate TO {role}"
    ))
    .await;
    let url = shop.url.replace("postgres://postgres@", &format!("postgres://{role}@"));
    let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
    create_tables(&mut connection).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    row_lock(&mut transaction, &name("a"), Wait::No).await.unwrap();
    gate(&mut transaction, &name("a"), token(1)).await.unwrap();
    transaction.commit().await.unwrap();
}

async fn rights_of_mysql(home: Home) {
    let mut shop = Shop::<MySql>::at(home).await;
    let database = shop.url.rsplit_once('/').unwrap().1.to_owned();
    let user = &database["lockkit_".len()..]; // no longer than names of users may be
    shop.execute(&format!(
        "CREATE USER '{user}'@'127.0.0.1';
         GRANT SELECT ON {database}.lockkit_transaction_layout TO '{user}'@'127.0.0.1';
         GRANT SELECT, INSERT, UPDATE ON {database}.lockkit_row TO '{user}'@'127.0.0.1';
         GRANT SELECT, INSERT, UPDATE ON {database}.lockkit_gate TO '{user}'@'127.0.0.1';
         GRANT EXECUTE ON PROCEDURE {database}.lockkit_row_lock TO '{user}'@'127.0.0.1'"
    ))
    .await;
    let url = shop.url.replace("://root@", &format!("://{user}@"));
    let mut connection = sqlx::MySqlConnection::connect(&url).await.unwrap();
    create_tables::<sqlx::MySqlConnection>(&mut connection).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    row_lock(&mut transaction, &name("a"), Wait::No).await.unwrap();
    gate(&mut transaction, &name("a"), token(1)).await.unwrap();
    transaction.commit().await.unwrap();
}
