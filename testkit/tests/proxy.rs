//! Each fault of the proxy, seen from both of its sides.

#![expect(clippy::unwrap_used, reason = "in the helpers of tests")]

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use lockkit_testkit::Proxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

#[tokio::test]
async fn bytes_pass_and_are_counted() {
    let (_echo, proxy) = echo_and_proxy().await;
    let mut client = connect(&proxy).await;
    assert_eq!(answer_to(&mut client, b"hello").await, b">hello");
    assert_eq!((proxy.requests().bytes(), proxy.answers().bytes()), (5, 6));
    assert_eq!((proxy.connections(), proxy.open()), (1, 1));
    let mut other = connect(&proxy).await;
    assert_eq!(answer_to(&mut other, b"x").await, b">x");
    assert_eq!((proxy.requests().bytes(), proxy.answers().bytes()), (6, 8));
    assert_eq!((proxy.connections(), proxy.open()), (2, 2));
}

#[tokio::test]
async fn the_clients_end_of_a_connection_passes() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connect(&proxy).await;
    assert_eq!(answer_to(&mut client, b"bye").await, b">bye");
    drop(client);
    echo.hears(b"bye.").await;
}

#[tokio::test]
async fn the_servers_end_of_a_connection_passes() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).await;
    let mut client = connect(&proxy).await;
    let (mut served, _) = listener.accept().await.unwrap();
    served.write_all(b"bye").await.unwrap();
    drop(served);
    let mut said = Vec::new();
    soon(client.read_to_end(&mut said)).await.unwrap();
    assert_eq!(said, b"bye");
}

#[tokio::test]
async fn a_delay_holds_each_message_back_and_keeps_the_order() {
    const DELAY: Duration = Duration::from_millis(50);
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connect(&proxy).await;
    for direction in [proxy.requests(), proxy.answers()] {
        let sent = Instant::now();
        direction.delay(DELAY);
        assert_eq!(answer_to(&mut client, b"slow").await, b">slow");
        direction.pass();
        assert!(sent.elapsed() >= DELAY);
    }
    proxy.requests().delay(DELAY);
    client.write_all(b"1").await.unwrap();
    soon(proxy.requests().bytes_reach(9)).await;
    proxy.requests().pass();
    client.write_all(b"2").await.unwrap();
    echo.hears(b"slowslow12").await;
}

#[tokio::test]
async fn what_is_blocked_arrives_later_with_the_end_after_it() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connect(&proxy).await;
    assert_eq!(answer_to(&mut client, b"a").await, b">a");
    proxy.requests().block();
    client.write_all(b"late").await.unwrap();
    drop(client);
    soon(proxy.requests().bytes_reach(5)).await;
    assert_eq!((proxy.open(), echo.heard()), (1, b"a".to_vec()));
    proxy.requests().unblock();
    echo.hears(b"alate.").await;
    // Neither does a new connection get through.
    proxy.requests().block();
    let mut other = connect(&proxy).await;
    other.write_all(b"x").await.unwrap();
    soon(proxy.requests().bytes_reach(6)).await;
    assert_eq!(echo.heard(), b"alate.");
    proxy.requests().unblock();
    echo.hears(b"alate.x").await;
}

#[tokio::test]
async fn swallowed_requests_arrive_nowhere() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connect(&proxy).await;
    assert_eq!(answer_to(&mut client, b"a").await, b">a");
    proxy.requests().swallow();
    client.write_all(b"lost").await.unwrap();
    soon(proxy.requests().bytes_reach(5)).await;
    proxy.requests().pass();
    assert_eq!(answer_to(&mut client, b"b").await, b">b");
    echo.hears(b"ab").await;
}

#[tokio::test]
async fn swallowed_answers_were_heard_by_the_server() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connect(&proxy).await;
    proxy.answers().swallow();
    client.write_all(b"done").await.unwrap();
    echo.hears(b"done").await;
    soon(proxy.answers().bytes_reach(5)).await;
    assert!(has_nothing(&client));
    proxy.answers().pass();
    assert_eq!(answer_to(&mut client, b"b").await, b">b");
}

#[tokio::test]
async fn a_swallowed_end_leaves_the_connection_half_open() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connect(&proxy).await;
    assert_eq!(answer_to(&mut client, b"a").await, b">a");
    proxy.requests().swallow();
    drop(client);
    let mut other = connect(&proxy).await;
    other.write_all(b"lost").await.unwrap();
    soon(proxy.requests().bytes_reach(5)).await;
    assert_eq!((proxy.open(), echo.heard()), (2, b"a".to_vec()));
    proxy.close().await;
    echo.hears(b"a..").await;
}

#[tokio::test]
async fn a_reset_cuts_both_sides_and_admits_new_connections() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connect(&proxy).await;
    assert_eq!(answer_to(&mut client, b"a").await, b">a");
    proxy.reset().await;
    let error = soon(client.read(&mut [0])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    echo.hears(b"a.").await;
    assert_eq!(proxy.open(), 0);
    assert_eq!(answer_to(&mut connect(&proxy).await, b"b").await, b">b");
}

#[tokio::test]
async fn a_close_ends_both_sides_and_admits_new_connections() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connect(&proxy).await;
    assert_eq!(answer_to(&mut client, b"a").await, b">a");
    proxy.close().await;
    assert_eq!(soon(client.read(&mut [0])).await.unwrap(), 0);
    echo.hears(b"a.").await;
    assert_eq!(answer_to(&mut connect(&proxy).await, b"b").await, b">b");
}

#[tokio::test]
async fn refusing_closes_the_port_and_leaves_present_connections() {
    let (_echo, proxy) = echo_and_proxy().await;
    let mut client = connect(&proxy).await;
    assert_eq!(answer_to(&mut client, b"a").await, b">a");
    proxy.refuse().await;
    let refused = TcpStream::connect(proxy.addr()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(answer_to(&mut client, b"b").await, b">b");
    proxy.accept().await;
    assert_eq!(answer_to(&mut connect(&proxy).await, b"c").await, b">c");
}

#[tokio::test]
async fn an_upstream_that_is_gone_resets_its_clients() {
    let (echo, proxy) = echo_and_proxy().await;
    let addr = echo.addr;
    drop(echo);
    while TcpStream::connect(addr).await.is_ok() {
        tokio::task::yield_now().await;
    }
    let mut client = connect(&proxy).await;
    let error = soon(client.read(&mut [0])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn one_matching_message_is_held_and_others_pass() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let (mut held, mut free) = (connect(&proxy).await, connect(&proxy).await);
    let hold = proxy.requests().hold("TAKE");
    assert_eq!(answer_to(&mut held, b"ask").await, b">ask");
    held.write_all(b"first,TAKE it,").await.unwrap();
    soon(hold.caught()).await;
    echo.hears(b"askfirst,").await;
    held.write_all(b"then").await.unwrap();
    assert_eq!(answer_to(&mut free, b"TAKE too,").await, b">TAKE too,");
    assert_eq!(echo.heard(), b"askfirst,TAKE too,");
    hold.go_on();
    echo.hears(b"askfirst,TAKE too,TAKE it,then").await;
}

#[tokio::test]
async fn a_message_that_comes_in_pieces_is_held() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connect(&proxy).await;
    let hold = proxy.requests().hold("TAKE");
    assert_eq!(answer_to(&mut client, b"xTA").await, b">xTA");
    client.write_all(b"KE it").await.unwrap();
    soon(hold.caught()).await;
    assert_eq!(echo.heard(), b"xTA");
    drop(hold);
    echo.hears(b"xTAKE it").await;
}

#[tokio::test]
async fn a_pattern_that_has_passed_is_not_held() {
    let (_echo, proxy) = echo_and_proxy().await;
    let mut client = connect(&proxy).await;
    assert_eq!(answer_to(&mut client, b"TAKE").await, b">TAKE");
    let hold = proxy.requests().hold("TAKE");
    assert_eq!(answer_to(&mut client, b"AKE").await, b">AKE");
    client.write_all(b"TAKE").await.unwrap();
    soon(hold.caught()).await;
}

#[tokio::test]
async fn a_held_request_lands_after_its_client_has_gone() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connect(&proxy).await;
    let hold = proxy.requests().hold("TAKE");
    client.write_all(b"TAKE").await.unwrap();
    soon(hold.caught()).await;
    drop(client);
    assert_eq!(answer_to(&mut connect(&proxy).await, b"RELEASE").await, b">RELEASE");
    echo.hears(b"RELEASE.").await;
    hold.go_on();
    echo.hears(b"RELEASE.TAKE.").await;
}

#[tokio::test]
async fn new_connections_go_to_another_upstream() {
    let (_echo, proxy) = echo_and_proxy().await;
    let other = Echo::start(b'<').await;
    let mut before = connect(&proxy).await;
    assert_eq!(answer_to(&mut before, b"a").await, b">a");
    proxy.switch_upstream(other.addr);
    assert_eq!(answer_to(&mut connect(&proxy).await, b"b").await, b"<b");
    assert_eq!(answer_to(&mut before, b"c").await, b">c");
}

#[tokio::test]
async fn a_dropped_proxy_ends_its_connections() {
    let (mut echo, proxy) = echo_and_proxy().await;
    let mut client = connect(&proxy).await;
    assert_eq!(answer_to(&mut client, b"a").await, b">a");
    drop(proxy);
    assert_eq!(soon(client.read(&mut [0])).await.unwrap(), 0);
    echo.hears(b"a.").await;
}

/// A server that answers every message with a letter and the message.
struct Echo {
    addr: SocketAddr,
    heard: watch::Receiver<Vec<u8>>,
    task: JoinHandle<()>,
}

impl Echo {
    async fn start(letter: u8) -> Echo {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (hear, heard) = watch::channel(Vec::new());
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let hear = hear.clone();
                tokio::spawn(async move {
                    let mut buffer = [0; 1024];
                    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                        hear.send_modify(|heard| heard.extend_from_slice(&buffer[..read]));
                        let answer = [&[letter], &buffer[..read]].concat();
                        if stream.write_all(&answer).await.is_err() {
                            break;
                        }
                    }
                    hear.send_modify(|heard| heard.push(b'.'));
                });
            }
        });
        Echo { addr, heard, task }
    }

    fn heard(&self) -> Vec<u8> {
        self.heard.borrow().clone()
    }

    /// Waits until it has heard that in all, with a full stop for each end of a connection.
    async fn hears(&mut self, all: &[u8]) {
        soon(self.heard.wait_for(|heard| heard == all)).await.unwrap();
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn echo_and_proxy() -> (Echo, Proxy) {
    let echo = Echo::start(b'>').await;
    let proxy = Proxy::start(echo.addr).await;
    (echo, proxy)
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.addr()).await.unwrap()
}

async fn answer_to(stream: &mut TcpStream, message: &[u8]) -> Vec<u8> {
    stream.write_all(message).await.unwrap();
    let mut answer = vec![0; message.len() + 1];
    soon(stream.read_exact(&mut answer)).await.unwrap();
    answer
}

fn has_nothing(stream: &TcpStream) -> bool {
    stream.try_read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// What should come at once fails the test instead of hanging it.
async fn soon<F: Future>(event: F) -> F::Output {
    timeout(Duration::from_secs(30), event).await.expect("it does not come")
}
