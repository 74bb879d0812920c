//! The gate for fencing tokens, and a holder whose process is stopped for longer than its lease.

use std::env;
use std::process::{ExitCode, Stdio};

use libtest_mimic::Trial;
use lockkit_core::{BoxError, FencingToken, Lease, LockGuard, Locker};
use lockkit_redis::gate::{self, Error};
use lockkit_testkit::{REDIS, RedisCluster, Server, trial};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Script, pipe};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, stdin};
use tokio::process::Command;

use crate::patient;
use crate::support::{Raw, causes, driver, millis};

/// Tells this program that it is to be the holder, and where the server is.
const HOLDER: &str = "LOCKKIT_TEST_HOLDER";

const GATE: &str = "{stock}:gate";
const PIECES: &str = "{stock}:pieces";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_gate_refuses_what_is_older", || REDIS.start(), older),
        trial("a_gate_compares_all_digits", || REDIS.start(), digits),
        trial("a_gate_answers_as_a_pipeline_does", || REDIS.start(), answers),
        trial("a_gate_that_is_something_else_is_left_alone", || REDIS.start(), foreign),
        trial("a_gate_stands_before_a_script_of_ones_own", || REDIS.start(), own_script),
        trial("a_gate_rounds_no_answer", || REDIS.start(), large),
        trial("a_gate_goes_with_its_slot", one_node, in_a_cluster),
        trial(
            "a_gate_whose_slot_moves_lets_all_through_or_nothing",
            || RedisCluster::start(std::time::Duration::from_secs(5)),
            moving,
        ),
        trial("a_gate_outlives_forgotten_scripts", || REDIS.start(), forgotten),
        trial("a_gate_needs_few_rights", || REDIS.start(), rights),
        trial("a_stopped_holder_changes_nothing", || REDIS.start(), stopped),
    ]
}

async fn connect(server: &Server) -> MultiplexedConnection {
    patient::client(&server.url()).await.unwrap()
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

fn set(pieces: i64) -> Pipeline {
    let mut writes = pipe();
    writes.set(PIECES, pieces);
    writes
}

async fn older(server: Server) {
    let (mut connection, mut raw) = (connect(&server).await, Raw::connect(&server.url()).await);
    for (number, pieces) in [(5, 10), (5, 9), (7, 8)] {
        gate::pass::<()>(&mut connection, GATE, token(number), &set(pieces)).await.unwrap();
        assert_eq!(raw.ask::<i64>(&["GET", PIECES]).await, pieces);
    }
    for writes in [set(99), pipe()] {
        let refused = gate::pass::<()>(&mut connection, GATE, token(6), &writes).await;
        let Err(Error::Stale { gate, token, highest, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!((&*gate, token.get(), highest.get()), (GATE, 6, 7));
    }
    assert_eq!(raw.ask::<i64>(&["GET", PIECES]).await, 8);
    // Passing keeps older ones out also where nothing is written.
    gate::pass::<()>(&mut connection, GATE, token(8), &pipe()).await.unwrap();
    assert_eq!(raw.ask::<String>(&["GET", GATE]).await, "8");
    assert_eq!(raw.ask::<i64>(&["TTL", GATE]).await, -1);
    gate::pass::<()>(&mut connection, GATE, token(7), &set(7)).await.unwrap_err();
    // Another gate knows nothing of this one.
    gate::pass::<()>(&mut connection, "{stock}:other", token(1), &set(7)).await.unwrap();
}

async fn digits(server: Server) {
    let mut connection = connect(&server).await;
    // As Lua numbers, the last two are equal.
    let rising = [9, 10, 99, 1 << 53, (1 << 53) + 1, i64::MAX.cast_unsigned() - 1];
    for number in rising {
        gate::pass::<()>(&mut connection, GATE, token(number), &pipe()).await.unwrap();
        let refused = gate::pass::<()>(&mut connection, GATE, token(number - 1), &pipe()).await;
        assert!(matches!(refused, Err(Error::Stale { .. })), "{number}: {refused:?}");
    }
    gate::pass::<()>(&mut connection, GATE, token(i64::MAX.cast_unsigned()), &pipe())
        .await
        .unwrap();
}

async fn answers(server: Server) {
    let mut connection = connect(&server).await;
    let bytes: &[u8] = b"\0\xff \r\n";
    let mut writes = pipe();
    writes.set("{stock}:bytes", bytes).get("{stock}:bytes").get("{stock}:none").incr(PIECES, 3);
    let (done, back, none, pieces): (String, Vec<u8>, Option<String>, i64) =
        gate::pass(&mut connection, GATE, token(1), &writes).await.unwrap();
    assert_eq!((&*done, &*back, none, pieces), ("OK", bytes, None, 3));

    // What is refused by the server says so, and what came before it stays.
    let mut writes = pipe();
    writes.incr(PIECES, 1).lpush(PIECES, "no list").incr(PIECES, 1);
    let error = gate::pass::<()>(&mut connection, GATE, token(2), &writes).await.unwrap_err();
    assert!(matches!(error, Error::Redis { .. }), "{error:?}");
    assert!(
        causes(&error).contains("WRONGTYPE") || causes(&error).contains("wrong kind"),
        "{error:?}"
    );
    let mut raw = Raw::connect(&server.url()).await;
    assert_eq!(raw.ask::<i64>(&["GET", PIECES]).await, 4);

    // A command that Lua could not carry out is not begun.
    let mut writes = pipe();
    writes.incr(PIECES, 1).rpush("{stock}:list", vec![1; 8_000]);
    let error = gate::pass::<()>(&mut connection, GATE, token(3), &writes).await.unwrap_err();
    assert!(causes(&error).contains("too many words"), "{error:?}");
    assert_eq!(raw.ask::<(i64, i64)>(&["MGET", PIECES, GATE]).await, (4, 2));
}

async fn large(server: Server) {
    let (mut connection, mut raw) = (connect(&server).await, Raw::connect(&server.url()).await);
    raw.ask::<()>(&["SET", PIECES, &((1_i64 << 53) - 2).to_string()]).await;
    let mut writes = pipe();
    writes.incr(PIECES, 1);
    let pieces: [i64; 1] = gate::pass(&mut connection, GATE, token(1), &writes).await.unwrap();
    assert_eq!(pieces, [(1 << 53) - 1]);
    writes.get(PIECES);
    let error =
        gate::pass::<(i64, i64)>(&mut connection, GATE, token(1), &writes).await.unwrap_err();
    assert!(causes(&error).contains("too large a number"), "{error:?}");
    assert_eq!(raw.ask::<i64>(&["GET", PIECES]).await, 1 << 53);
}

async fn foreign(server: Server) {
    let (mut connection, mut raw) = (connect(&server).await, Raw::connect(&server.url()).await);
    for value in ["", "mine", "-1", "007", "99999999999999999999", "7 "] {
        raw.ask::<()>(&["SET", GATE, value]).await;
        let refused = gate::pass::<()>(&mut connection, GATE, token(9), &set(1)).await;
        assert!(matches!(refused, Err(Error::Redis { .. })), "{value}: {refused:?}");
        assert!(causes(&refused.unwrap_err()).contains("something else"));
        assert_eq!(raw.ask::<String>(&["GET", GATE]).await, value);
    }
    raw.ask::<()>(&["DEL", GATE]).await;
    raw.ask::<()>(&["LPUSH", GATE, "x"]).await;
    gate::pass::<()>(&mut connection, GATE, token(9), &set(1)).await.unwrap_err();
    assert_eq!(raw.keys().await, [GATE]);
}

async fn own_script(server: Server) {
    let mut connection = connect(&server).await;
    let sell = [gate::CHECK, "return redis.call('DECR', KEYS[2])"].concat();
    let sell = Script::new(&sell);
    let mut sell_with = async |number: u64| {
        let mut sell = sell.prepare_invoke();
        let sold = sell.key(GATE).key(PIECES).arg(number).invoke_async(&mut connection).await;
        sold.map_err(|error| Error::of(GATE, token(number), error))
    };
    assert_eq!(sell_with(4).await.unwrap(), -1);
    assert_eq!(sell_with(5).await.unwrap(), -2);
    let refused: Result<i64, _> = sell_with(4).await;
    assert!(matches!(refused, Err(Error::Stale { .. })), "{refused:?}");
    assert_eq!(sell_with(5).await.unwrap(), -3);
}

/// A cluster of one server, which has all slots once it is told so.
fn one_node() -> Result<Server, lockkit_testkit::Unavailable> {
    RedisCluster::start_member(&[])
}

async fn in_a_cluster(server: Server) {
    let mut raw = Raw::connect(&server.url()).await;
    raw.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    while !raw.ask::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok") {
        tokio::time::sleep(millis(10)).await;
    }
    let mut connection = connect(&server).await;
    gate::pass::<()>(&mut connection, GATE, token(2), &set(1)).await.unwrap();
    let refused = gate::pass::<()>(&mut connection, GATE, token(1), &set(2)).await;
    assert!(matches!(refused, Err(Error::Stale { .. })), "{refused:?}");
    assert_eq!(raw.ask::<i64>(&["GET", PIECES]).await, 1);
}

async fn moving(cluster: RedisCluster) {
    const OTHER: &str = "{stock}:other";
    let members = cluster.members();
    let slot = Raw::connect(&members[0].url()).await.ask(&["CLUSTER", "KEYSLOT", GATE]).await;
    let from = cluster.owner(slot);
    let to = (from + 1) % 3;
    let mut writes = pipe();
    writes.incr(PIECES, 1).incr(OTHER, 1);
    let mut source = connect(&members[from]).await;
    gate::pass::<()>(&mut source, GATE, token(1), &writes).await.unwrap();
    cluster.begin_to_move(slot, to);
    for key in [OTHER, GATE] {
        cluster.move_key(slot, to, key);
        // As one follows a key that has gone ahead.
        let mut target = connect(&members[to]).await;
        redis::cmd("ASKING").exec_async(&mut target).await.unwrap();
        for connection in [&mut source, &mut target] {
            let error = gate::pass::<()>(connection, GATE, token(1), &writes).await.unwrap_err();
            assert!(matches!(error, Error::Redis { .. }), "{error:?}");
        }
    }
    cluster.move_key(slot, to, PIECES);
    cluster.end_move(slot, to);
    let mut target = connect(&members[to]).await;
    let sums: (i64, i64) = gate::pass(&mut target, GATE, token(1), &writes).await.unwrap();
    assert_eq!(sums, (2, 2));
}

async fn forgotten(server: Server) {
    let (mut connection, mut raw) = (connect(&server).await, Raw::connect(&server.url()).await);
    for number in 1..4 {
        raw.ask::<()>(&["SCRIPT", "FLUSH"]).await;
        gate::pass::<()>(&mut connection, GATE, token(number), &set(1)).await.unwrap();
    }
}

async fn rights(server: Server) {
    let mut raw = Raw::connect(&server.url()).await;
    let user = "ACL SETUSER app on >pw ~{stock}:* +evalsha +script|load +get +set";
    raw.ask::<()>(&user.split(' ').collect::<Vec<_>>()).await;
    let url = server.url().replace("redis://", "redis://app:pw@");
    let mut connection = patient::client(&url).await.unwrap();
    gate::pass::<()>(&mut connection, GATE, token(1), &set(1)).await.unwrap();
    let mut writes = pipe();
    writes.incr(PIECES, 1);
    let error = gate::pass::<()>(&mut connection, GATE, token(1), &writes).await.unwrap_err();
    assert!(matches!(error, Error::Redis { .. }), "{error:?}");
}

async fn stopped(server: Server) {
    let mut holder = Command::new(env::current_exe().unwrap())
        .env(HOLDER, server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut says = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert_eq!(says.next_line().await.unwrap().unwrap(), "wrote as a holder");
    let mut raw = Raw::connect(&server.url()).await;
    assert_eq!(raw.ask::<i64>(&["GET", PIECES]).await, 999);

    let pid = Pid::from_raw(holder.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    // Its lease runs out.
    let second = lock(&server.url()).await;
    write(&server.url(), &second, 998).await.unwrap();
    kill_process(pid, Signal::CONT).unwrap();

    holder.stdin.take().unwrap().write_all(b"go on\n").await.unwrap();
    assert_eq!(says.next_line().await.unwrap().unwrap(), "refused; held: false");
    assert_eq!(raw.ask::<i64>(&["GET", PIECES]).await, 998);
    assert!(holder.wait().await.unwrap().success());
}

/// What the holder's process does instead of tests.
#[expect(clippy::print_stdout, reason = "the test listens")]
pub(crate) fn hold() -> Option<ExitCode> {
    let url = env::var(HOLDER).ok()?;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let guard = lock(&url).await;
        write(&url, &guard, 999).await.unwrap();
        println!("wrote as a holder");
        // Stopped here.
        BufReader::new(stdin()).lines().next_line().await.unwrap().unwrap();
        let error = write(&url, &guard, 997).await.unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(Error::Stale { .. })), "{error:?}");
        println!("refused; held: {}", guard.is_held());
    });
    Some(ExitCode::SUCCESS)
}

async fn lock(url: &str) -> LockGuard {
    let locker = Locker::new(driver(url).await);
    let lease = Lease::new(millis(1_000));
    locker.lock("stock").unwrap().leased(lease).unwrap().acquire().await.unwrap()
}

async fn write(url: &str, guard: &LockGuard, pieces: i64) -> Result<(), BoxError> {
    let mut connection = patient::client(url).await?;
    let token = guard.fencing_token().ok_or("no token")?;
    Ok(gate::pass(&mut connection, GATE, token, &set(pieces)).await?)
}
