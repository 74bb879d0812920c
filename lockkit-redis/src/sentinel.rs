//! Which server is the primary, according to sentinels.

mod sight;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout};

pub(crate) use self::sight::Sight;
use crate::backoff::Backoff;
use crate::endpoint::Endpoint;
use crate::error::Failure;

/// How long one sentinel may take to say where the primary is.
const LIMIT: Duration = Duration::from_secs(1);
/// How long to wait for the others once a majority has said where the primary is.
const GRACE: Duration = Duration::from_millis(50);
/// How long it may take until all sentinels have heard of a failover. Until then most of them may
/// name the former primary, which takes writes until it is told.
const SPREADING: Duration = Duration::from_secs(5);
/// What a sentinel publishes when it has learnt of a new primary.
const SWITCH: &str = "+switch-master";

/// The sentinels of one group of servers.
#[derive(Debug)]
pub(crate) struct Sentinels {
    sentinels: Vec<Endpoint>,
    /// What the sentinels call the group.
    group: String,
    /// How to greet its servers, wherever they are.
    server: Endpoint,
    /// How long one of them may take to say where the primary is.
    limit: Duration,
    /// How long it may take until all of them have heard of a failover.
    spreading: Duration,
    /// The answer that was believed last.
    believed: Mutex<Option<Said>>,
    /// Of which one of them has told last, without being asked.
    last_switch: Mutex<Option<Switch>>,
    /// How often another primary than before was named.
    switches: AtomicU64,
}

/// Where the primary is, according to those sentinels that have answered.
#[derive(Clone, Debug)]
struct Said {
    primary: Endpoint,
    epoch: u64,
    by_majority: bool,
}

/// That another server has become the primary.
#[derive(Clone, Debug)]
struct Switch {
    from: Endpoint,
    to: Endpoint,
    /// When this was heard.
    at: Instant,
}

impl Sentinels {
    pub(crate) fn new(sentinels: Vec<Endpoint>, group: String, server: Endpoint) -> Self {
        Self {
            sentinels,
            group,
            server,
            limit: LIMIT,
            spreading: SPREADING,
            believed: Mutex::default(),
            last_switch: Mutex::default(),
            switches: AtomicU64::new(0),
        }
    }

    pub(crate) fn group(&self) -> &str {
        &self.group
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> &[Endpoint] {
        &self.sentinels
    }

    /// How to greet its servers; the address in it is nobody's.
    pub(crate) fn server(&self) -> &Endpoint {
        &self.server
    }

    /// Where the primary is, for who has no connection to it. Those who know of its failover may be
    /// down for a moment, or lost for good: it counts for as long as it is a primary, and then the
    /// one that the others name.
    pub(crate) async fn locate(&self) -> Result<Endpoint, Failure> {
        let said = self.ask_all().await?;
        if let Some(later) = self.later_than(&said) {
            if later.connect().await.is_ok() {
                return Ok(later);
            }
            // It is not forgotten for one that is no primary either.
            drop(said.primary.connect().await?);
        }
        Ok(self.believe(said))
    }

    /// Where the primary is, for who may be connected to it, and does not leave it because of
    /// sentinels that are behind.
    async fn news(&self) -> Option<Endpoint> {
        let said = self.ask_all().await.ok()?;
        self.later_than(&said).is_none().then(|| self.believe(said))
    }

    /// The primary that counts instead of the one that was named, if that is one of before: the one
    /// that took over from it, according to a sentinel, a moment ago, or the one that was believed
    /// last.
    fn later_than(&self, said: &Said) -> Option<Endpoint> {
        let switch = self.switch().clone().filter(|switch| switch.at.elapsed() < self.spreading);
        if let Some(switch) = switch.filter(|switch| said.primary.is_where(&switch.from)) {
            return Some(switch.to);
        }
        let last = self.believed().clone()?;
        // A majority may have been reset, and count from the beginning.
        let is_behind = !said.by_majority && said.epoch < last.epoch;
        (is_behind && !said.primary.is_where(&last.primary)).then_some(last.primary)
    }

    fn believe(&self, said: Said) -> Endpoint {
        let mut believed = self.believed();
        if believed.as_ref().is_some_and(|last| !last.primary.is_where(&said.primary)) {
            self.switches.fetch_add(1, Ordering::Relaxed);
        }
        believed.insert(said).primary.clone()
    }

    fn switch(&self) -> MutexGuard<'_, Option<Switch>> {
        self.last_switch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn believed(&self) -> MutexGuard<'_, Option<Said>> {
        self.believed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the sentinels say. They are asked again if another primary was named meanwhile: their
    /// answers may be from before that.
    async fn ask_all(&self) -> Result<Said, Failure> {
        loop {
            let before = self.switches.load(Ordering::Relaxed);
            let said = self.ask_each().await?;
            if self.switches.load(Ordering::Relaxed) == before {
                return Ok(said);
            }
        }
    }

    /// All sentinels are asked at once; once a majority of those that the URL names has answered,
    /// the others have a moment left. The latest of their answers counts, since a sentinel that was
    /// cut off, or has not heard of a failover yet, names the primary before.
    async fn ask_each(&self) -> Result<Said, Failure> {
        let mut asking = Vec::from_iter(&self.sentinels);
        // Each connection of each client begins with a different one.
        fastrand::shuffle(&mut asking);
        let mut answers: FuturesUnordered<_> =
            asking.into_iter().map(|sentinel| self.ask(sentinel)).collect();
        let majority = self.sentinels.len() / 2 + 1;
        let (mut latest, mut told) = (None::<Sight>, 0);
        let (mut strangers, mut last) = (0, None::<Failure>);
        loop {
            let patience = if told < majority { self.limit } else { GRACE };
            let Ok(Some(answer)) = timeout(patience, answers.next()).await else { break };
            match answer {
                Ok(said) => {
                    told += 1;
                    if latest.as_ref().is_none_or(|latest| latest.epoch < said.epoch) {
                        latest = Some(said);
                    }
                }
                Err(failure) => {
                    strangers += usize::from(matches!(failure, Failure::UnknownGroup(_)));
                    // One that is down may be back, and know what the others do not say.
                    if last.as_ref().is_none_or(Failure::is_lasting) {
                        last = Some(failure);
                    }
                }
            }
        }
        match latest {
            Some(Sight { host, port, epoch, .. }) => {
                let primary = self.server.at(&host, port);
                Ok(Said { primary, epoch, by_majority: told >= majority })
            }
            None if strangers >= majority => Err(Failure::UnknownGroup(self.group.clone())),
            None => Err(Failure::NoPrimary { group: self.group.clone(), last: last.map(Box::new) }),
        }
    }

    /// How each sentinel that the URL names sees the group, or why it does not say, with its
    /// address.
    pub(crate) async fn sights(&self) -> Vec<(String, Result<Sight, String>)> {
        let asking = self.sentinels.iter().map(|sentinel| async {
            let sight = self.ask(sentinel).await.map_err(|failure| failure.to_string());
            (sentinel.address(), sight)
        });
        futures_util::future::join_all(asking).await
    }

    /// Calls `moved` with where the primary is, whenever that may have changed. Never returns.
    pub(crate) async fn watch(&self, moved: impl Fn(&Endpoint)) {
        let watching: FuturesUnordered<_> =
            self.sentinels.iter().map(|sentinel| self.watch_one(sentinel, &moved)).collect();
        watching.collect::<()>().await;
    }

    async fn watch_one(&self, sentinel: &Endpoint, moved: &impl Fn(&Endpoint)) {
        let mut backoff = Backoff::default();
        loop {
            backoff.pause().await;
            let failure = self.listen(sentinel, moved).await;
            tracing::debug!(%sentinel, %failure, "no news from a sentinel for now");
        }
    }

    /// Listens to one sentinel until the connection breaks.
    async fn listen(&self, sentinel: &Endpoint, moved: &impl Fn(&Endpoint)) -> Failure {
        let listening = async {
            let (mut sink, mut messages) = sentinel.subscribe().await?.split();
            match timeout(LIMIT, sink.subscribe(SWITCH)).await {
                Ok(subscribed) => subscribed?,
                Err(_) => return Err(Failure::NoAnswer(LIMIT)),
            }
            // This makes up for what was published before.
            if let Some(primary) = self.news().await {
                moved(&primary);
            }
            while let Some(message) = messages.next().await {
                let Ok(text) = message.get_payload::<String>() else { continue };
                if let Some(primary) = self.told(sentinel, &text).await {
                    moved(&primary);
                }
            }
            Ok::<_, Failure>(())
        };
        listening.await.err().unwrap_or(Failure::Broken)
    }

    /// Where the primary is now, if a sentinel's message says that of this group. One that was away
    /// for several failovers may tell of one that is not the last.
    async fn told(&self, sentinel: &Endpoint, message: &str) -> Option<Endpoint> {
        self.both_primaries(message)?;
        match self.is_behind(sentinel).await {
            true => self.news().await,
            false => self.switched(message),
        }
    }

    /// Whether a sentinel says that it knows less than what is believed.
    async fn is_behind(&self, sentinel: &Endpoint) -> bool {
        let Ok(sight) = self.ask(sentinel).await else { return false };
        self.believed().as_ref().is_some_and(|believed| sight.epoch < believed.epoch)
    }

    /// Where the primary is now, if a message says that of this group.
    fn switched(&self, message: &str) -> Option<Endpoint> {
        let [from, to] =
            self.both_primaries(message)?.map(|(host, port)| self.server.at(host, port));
        *self.switch() = Some(Switch { from, to: to.clone(), at: Instant::now() });
        self.switches.fetch_add(1, Ordering::Relaxed);
        Some(to)
    }

    /// The former and the new primary in a message, if it is one about this group:
    /// `GROUP OLD-HOST OLD-PORT HOST PORT`.
    fn both_primaries<'a>(&self, message: &'a str) -> Option<[(&'a str, u16); 2]> {
        let words: Vec<_> = message.split_whitespace().collect();
        match words[..] {
            [group, old_host, old_port, host, port] if group == self.group => {
                Some([(old_host, old_port.parse().ok()?), (host, port.parse().ok()?)])
            }
            _ => None,
        }
    }

    /// What one sentinel says.
    async fn ask(&self, sentinel: &Endpoint) -> Result<Sight, Failure> {
        Sight::of(sentinel, &self.group, self.limit).await
    }
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the primary of `{}`", self.group)
    }
}

#[cfg(test)]
mod tests {
    use redis::RedisConnectionInfo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::{LIMIT, Sentinels};
    use crate::endpoint::{Address, Endpoint, Mode};

    #[test]
    fn news_of_another_group_are_none() {
        let server = Endpoint::new(Address::Socket("".into()), RedisConnectionInfo::default());
        let sentinels = Sentinels::new(Vec::new(), "main".into(), server);
        for (message, primaries) in [
            ("main 10.0.0.1 6379 10.0.0.2 6380", Some([("10.0.0.1", 6379), ("10.0.0.2", 6380)])),
            ("main2 10.0.0.1 6379 10.0.0.2 6380", None),
            ("other 10.0.0.1 6379 10.0.0.2 6380", None),
            ("main 10.0.0.1 6379 10.0.0.2", None),
        ] {
            assert_eq!(sentinels.both_primaries(message), primaries, "{message}");
        }
    }

    /// A sentinel that answers when it is told to, and those who ask it.
    struct Fake {
        listener: TcpListener,
        sentinels: Sentinels,
    }

    impl Fake {
        async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let at = |host: &str| Address::Network { host: host.into(), port, tls: None };
            let endpoint = |at| Endpoint::new(at, RedisConnectionInfo::default());
            let sentinel = endpoint(at("127.0.0.1")).expecting(Mode::Sentinel);
            let sentinels = Sentinels::new(vec![sentinel], "main".into(), endpoint(at("")));
            // A machine under load is not to be taken for a silent sentinel.
            Self {
                listener,
                sentinels: Sentinels { limit: 60 * LIMIT, spreading: 60 * LIMIT, ..sentinels },
            }
        }

        /// Where the primary is said to be.
        async fn news(&self) -> String {
            self.sentinels.news().await.unwrap().address()
        }

        /// Says where the primary is said to be, although `a` is answered to a question during
        /// which something happens.
        async fn news_despite(&self, meanwhile: impl Future<Output = ()>) -> String {
            let answering = async {
                let question = self.asked().await;
                meanwhile.await;
                question.answer("a", "1").await;
                self.asked().await.answer("b", "2").await;
                std::future::pending().await
            };
            tokio::select! {
                said = self.news() => said,
                () = answering => unreachable!(),
            }
        }

        /// Waits for the next question.
        async fn asked(&self) -> Question {
            let (stream, _) = self.listener.accept().await.unwrap();
            let mut question = Question(stream);
            question.read_to("HELLO\r\n").await;
            question.say(&["mode", "sentinel"]).await;
            question.read_to(env!("CARGO_PKG_VERSION")).await;
            question.0.write_all(b"+OK\r\n+OK\r\n").await.unwrap();
            question.read_to("MASTER\r\n$4\r\nmain\r\n").await;
            question
        }
    }

    struct Question(TcpStream);

    impl Question {
        async fn read_to(&mut self, end: &str) {
            let mut bytes = Vec::new();
            while !bytes.windows(end.len()).any(|it| it.eq_ignore_ascii_case(end.as_bytes())) {
                assert!(self.0.read_buf(&mut bytes).await.unwrap() > 0);
            }
        }

        async fn say(&mut self, words: &[&str]) {
            let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
            let all: Vec<String> =
                [format!("*{}\r\n", words.len())].into_iter().chain(words).collect();
            self.0.write_all(all.concat().as_bytes()).await.unwrap();
        }

        async fn answer(mut self, host: &str, epoch: &str) {
            self.say(&[host, "1"]).await;
            let counts = ["num-other-sentinels", "0", "quorum", "1", "num-slaves", "1"];
            let place = ["ip", host, "port", "1", "config-epoch", epoch, "flags", "master"];
            self.say(&[&place[..], &counts[..]].concat()).await;
            // Who asks is done with the connection.
            _ = self.0.read(&mut [0]).await;
        }
    }

    /// Where one sentinel has told of a failover, most may not have heard of it yet.
    #[tokio::test]
    async fn answers_that_name_the_server_that_was_just_left_are_not_believed() {
        let fake = Fake::start().await;
        assert!(fake.sentinels.switched("main a 1 b 1").is_some());
        for (primary, is_believed) in [("a", false), ("b", true)] {
            let (news, ()) = tokio::join!(fake.sentinels.news(), async {
                fake.asked().await.answer(primary, "1").await;
            });
            assert_eq!(news.is_some(), is_believed, "{primary}");
        }
    }

    /// It may have been started a moment ago, and the others know better.
    #[tokio::test]
    async fn that_one_sentinel_knows_no_group_is_no_lasting_failure_while_others_are_down() {
        for others in [0, 2] {
            let Fake { listener, mut sentinels } = Fake::start().await;
            let nobody = Address::Socket("/nonexistent/sentinel".into());
            let nobody = Endpoint::new(nobody, RedisConnectionInfo::default());
            sentinels.sentinels.extend(vec![nobody; others]);
            let fake = Fake { listener, sentinels };
            let (said, ()) = tokio::join!(fake.sentinels.ask_all(), async {
                let mut question = fake.asked().await;
                question
                    .0
                    .write_all(b"*-1\r\n-ERR No such master with that name\r\n")
                    .await
                    .unwrap();
                _ = question.0.read(&mut [0]).await;
            });
            let failure = said.unwrap_err();
            assert_eq!(failure.is_lasting(), others == 0, "{failure}");
        }
    }

    #[tokio::test]
    async fn a_sentinel_that_is_behind_tells_of_no_switch() {
        let fake = Fake::start().await;
        let told = || fake.sentinels.told(&fake.sentinels.all()[0], "main a 1 b 1");
        tokio::join!(async { assert_eq!(fake.news().await, "a:1") }, async {
            fake.asked().await.answer("a", "2").await;
        });
        for (answers, primary) in [(&[("b", "1"), ("a", "2")][..], "a:1"), (&[("b", "3")], "b:1")] {
            let answering = async {
                for (host, epoch) in answers {
                    fake.asked().await.answer(host, epoch).await;
                }
                std::future::pending().await
            };
            tokio::select! {
                told = told() => assert_eq!(told.unwrap().address(), primary),
                () = answering => unreachable!(),
            }
        }
    }

    #[tokio::test]
    async fn an_answer_from_before_a_switch_is_not_believed() {
        let fake = Fake::start().await;
        let switched = async { assert!(fake.sentinels.switched("main a 1 b 1").is_some()) };
        assert_eq!(fake.news_despite(switched).await, "b:1");
    }

    #[tokio::test]
    async fn an_answer_from_before_another_that_is_believed_is_not() {
        let fake = Fake::start().await;
        tokio::join!(async { assert_eq!(fake.news().await, "a:1") }, async {
            fake.asked().await.answer("a", "1").await;
        });
        let believed = async {
            tokio::join!(async { assert_eq!(fake.news().await, "b:1") }, async {
                fake.asked().await.answer("b", "2").await;
            });
        };
        assert_eq!(fake.news_despite(believed).await, "b:1");
    }
}
