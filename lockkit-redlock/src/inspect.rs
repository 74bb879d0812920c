use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use lockkit_core::driver::{Clock, Driver, DriverError, ErrorKind, Inspect, OwnerId};
use lockkit_core::{Diagnosis, Grade, Holder, LockName, LockStatus, Namespace};
use tokio::time::Instant;

use crate::ballot::{self, A_MOMENT, Settled, Votes, count, reached};
use crate::driver::{Quorum, RedlockDriver};
use crate::electorate::Electorate;
use crate::failure::{Left, silent};
use crate::member::{Member, causes};

/// How long to wait for the nodes.
const LIMIT: Duration = Duration::from_secs(3);
/// How long to wait for their lists. The more locks there are, the more requests a node's driver
/// needs, each of which has its own limit.
const LIST_LIMIT: Duration = Duration::from_secs(60);
/// How long to wait for the others, once most agree on who holds what. A node that lags behind the
/// holder's last renewal makes a lease look shorter, unless the nodes that have the renewal are
/// heard.
const FOR_THE_OTHERS: Duration = Duration::from_millis(100);

type Answer<T> = Result<T, DriverError>;

/// Whoever a majority says holds a lock holds it.
#[async_trait]
impl Inspect for RedlockDriver {
    async fn look(&self, name: &LockName) -> Result<LockStatus, DriverError> {
        let look = {
            let name = name.clone();
            move |inspect: Arc<dyn Driver>| -> BoxFuture<'static, Answer<LockStatus>> {
                let name = name.clone();
                Box::pin(async move { inspector(&*inspect)?.look(&name).await })
            }
        };
        let quorum = self.quorum.nodes.quorum();
        let is_settled =
            |votes: &Votes<_>| is_agreed(votes, quorum, |seen| hold(seen).into_iter().collect());
        let seen = self.quorum.poll(look, LIMIT, is_settled).await?;
        Ok(self.quorum.agreed(name.clone(), seen.iter()))
    }

    async fn held(&self, namespace: &Namespace) -> Result<Vec<LockStatus>, DriverError> {
        let namespace = namespace.clone();
        let list = move |inspect: Arc<dyn Driver>| -> BoxFuture<'static, Answer<Vec<LockStatus>>> {
            let namespace = namespace.clone();
            Box::pin(async move { inspector(&*inspect)?.held(&namespace).await })
        };
        let quorum = self.quorum.nodes.quorum();
        let is_settled = |votes: &Votes<Answer<Vec<LockStatus>>>| {
            is_agreed(votes, quorum, |seen| seen.iter().filter_map(hold).collect())
        };
        let mut by_name: BTreeMap<LockName, Vec<LockStatus>> = BTreeMap::new();
        for status in self.quorum.poll(list, LIST_LIMIT, is_settled).await?.into_iter().flatten() {
            by_name.entry(status.name().clone()).or_default().push(status);
        }
        let agreed = by_name.into_iter().map(|(name, seen)| self.quorum.agreed(name, seen.iter()));
        Ok(agreed.filter(|status| status.holder().is_some()).collect())
    }

    async fn break_hold(
        &self,
        name: &LockName,
        owner: Option<OwnerId>,
    ) -> Result<Option<Holder>, DriverError> {
        let status = self.look(name).await?;
        let meant = |holder: &&Holder| owner.is_none_or(|owner| holder.owner() == owner);
        let Some(holder) = status.holder().filter(meant) else { return Ok(None) };
        let (name, owner) = (name.clone(), Some(holder.owner()));
        let break_it =
            move |inspect: Arc<dyn Driver>| -> BoxFuture<'static, Answer<Option<Holder>>> {
                let name = name.clone();
                Box::pin(async move { inspector(&*inspect)?.break_hold(&name, owner).await })
            };
        let votes = self.quorum.ask_all(break_it, LIMIT, |_| Settled::No).await;
        let broken = count(&votes, |vote| matches!(vote, Ok(Some(_))));
        let answered = count(&votes, Result::is_ok);
        // The nodes that have not answered are too few to keep the hold.
        if answered > self.quorum.nodes.len() - self.quorum.nodes.quorum() {
            return Ok((broken > 0).then(|| holder.clone()));
        }
        Err(self.quorum.no_majority(answered, failures(votes), Left::AsTheySay))
    }

    async fn diagnose(&self, namespace: &Namespace) -> Result<Vec<Diagnosis>, DriverError> {
        let quorum = &self.quorum;
        let (total, needed) = (quorum.nodes.len(), quorum.nodes.quorum());
        let asks = (0..total).map(|at| {
            let (nodes, namespace) = (Arc::clone(&quorum.nodes), namespace.clone());
            let examination = async move { examined(&nodes, at, &namespace).await };
            Box::pin(examination) as BoxFuture<'static, Examined>
        });
        // A node that takes much longer than most is not waited for.
        let is_settled = |votes: &Votes<Examined>| match count(votes, |_| true) >= needed {
            true => Settled::Nearly(A_MOMENT),
            false => Settled::No,
        };
        let requests = asks.collect();
        let examined = ballot::hold(requests, LIMIT, &quorum.stragglers, is_settled).await;

        let voters = count(&examined, |examined| examined.votes);
        let found = format!("{voters} of {total} nodes vote, {needed} are needed");
        let mut findings = vec![match voters {
            voters if voters < needed => {
                Diagnosis::error("majority", found, "see to the other nodes")
            }
            _ => Diagnosis::good("majority", found),
        }];
        if !quorum.nodes.settings.delayed_restart {
            findings.push(Diagnosis::warning(
                "restarts",
                "a node that has lost its locks in a restart votes at once",
                "leave out delayed_restart=false",
            ));
        }
        for (examined, member) in examined.into_iter().zip(&quorum.nodes.members) {
            match examined {
                Some(examined) => findings.extend(examined.findings),
                None => findings.push(Diagnosis::warning(
                    "nodes",
                    format!("{} takes much longer than most to answer", member.name),
                    "see to that node",
                )),
            }
        }
        Ok(findings)
    }
}

/// What was found out about a node.
struct Examined {
    votes: bool,
    findings: Vec<Diagnosis>,
}

async fn examined(nodes: &Electorate, at: usize, namespace: &Namespace) -> Examined {
    let name = &nodes.members[at].name;
    let mut findings = Vec::new();
    let voter = nodes.voter(at, &Clock::system(), LIMIT).await;
    let votes = voter.is_ok();
    match voter {
        Err(error) => findings.push(Diagnosis::warning(
            "nodes",
            format!("{name} has no vote: {}", causes(&*DriverError::from(error).into_source())),
            "see to that node",
        )),
        Ok(voter) if voter.driver.node().is_none() => findings.push(Diagnosis::warning(
            "restarts",
            format!("{name} does not tell when it was restarted"),
            "let it keep its locks over a restart",
        )),
        Ok(_) => (),
    }
    if let Ok(driver) = nodes.members[at].driver()
        && let Some(inspect) = driver.inspect()
    {
        let patience = nodes.settings.patience(nodes.settings.max_ttl);
        if let Some(pace) = pace(inspect, namespace).await
            && pace > patience / 2
        {
            findings.push(Diagnosis::warning(
                "nodes",
                format!("{name} takes {pace:.0?} to answer, and is waited for {patience:?}"),
                "set node_timeout to several times what the nodes take",
            ));
        }
        let as_a_node = match driver.node() {
            Some(node) => node.diagnose_node(namespace).await,
            None => None,
        };
        let (found, then) = match as_a_node {
            Some(found) => (found, after_a_loss(nodes.settings.silence_after_restart())),
            None => (inspect.diagnose(namespace).await, String::new()),
        };
        match found {
            Ok(found) => {
                findings.extend(found.iter().filter_map(|finding| of_node(name, finding, &then)));
            }
            Err(error) if votes => findings.push(Diagnosis::warning(
                "nodes",
                format!("{name} cannot be examined: {}", causes(&*error.into_source())),
                "see to that node",
            )),
            // It has been named already, mostly for the same reason.
            Err(error) => tracing::debug!(node = %name, %error, "cannot be examined"),
        }
    }
    Examined { votes, findings }
}

/// How long a node takes to answer, at best.
async fn pace(inspect: &dyn Inspect, namespace: &Namespace) -> Option<Duration> {
    const TRIES: usize = 3;
    let name = LockName::new(namespace, "any").ok()?;
    let mut quickest = Duration::MAX;
    for _ in 0..TRIES {
        let asked = Instant::now();
        // Why it cannot be asked is found out otherwise.
        inspect.look(&name).await.ok()?;
        quickest = quickest.min(asked.elapsed());
    }
    Some(quickest)
}

/// Whether the nodes that have not answered yet can no longer change who holds what according to a
/// majority, but only for how long.
fn is_agreed<T>(
    votes: &Votes<Answer<T>>,
    quorum: usize,
    held: impl Fn(&T) -> Vec<(&LockName, OwnerId)>,
) -> Settled {
    let open = votes.iter().filter(|vote| vote.is_none()).count();
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for hold in votes.iter().flatten().flatten().flat_map(held) {
        *counts.entry(hold).or_default() += 1;
    }
    let answered = count(votes, Result::is_ok);
    let is_known = answered >= quorum
        && open < quorum
        && counts.values().all(|&count| count >= quorum || count + open < quorum);
    let is_held = counts.values().any(|&count| count >= quorum);
    match (is_known, is_held) {
        (false, _) => Settled::No,
        (true, true) => Settled::Nearly(FOR_THE_OTHERS),
        (true, false) => Settled::Yes,
    }
}

fn hold(status: &LockStatus) -> Option<(&LockName, OwnerId)> {
    Some((status.name(), status.holder()?.owner()))
}

/// What comes of it that a node has forgotten locks, where it has `silence` before it votes again.
fn after_a_loss(silence: Duration) -> String {
    match silence {
        Duration::ZERO => "; it then votes at once, and two may hold a lock".into(),
        _ => format!("; it then gives no vote for {silence:?}, until every lease is over"),
    }
}

/// What is wrong with a node. The others may do without it. `then` is what comes of what it does
/// not keep.
fn of_node(name: &str, found: &Diagnosis, then: &str) -> Option<Diagnosis> {
    let then = match (found.topic(), found.grade()) {
        ("persistence", Grade::Warning) => then,
        _ => "",
    };
    let finding = format!("{name}: {}{then}", found.finding());
    let advice = found.advice().unwrap_or_default();
    (found.grade() != Grade::Good).then(|| Diagnosis::warning(found.topic(), finding, advice))
}

fn inspector(driver: &dyn Driver) -> Answer<&dyn Inspect> {
    driver.inspect().ok_or_else(|| {
        DriverError::new(ErrorKind::Unsupported, "its driver does not tell who holds a lock")
    })
}

fn failures<T>(votes: Votes<Answer<T>>) -> impl Iterator<Item = Option<DriverError>> {
    votes.into_iter().map(|vote| match vote {
        None => Some(silent()),
        Some(vote) => vote.err(),
    })
}

impl Quorum {
    /// Asks every node, and returns what the ones that answered have said, if they are a majority.
    async fn poll<T: Send + 'static>(
        &self,
        ask: impl Fn(Arc<dyn Driver>) -> BoxFuture<'static, Answer<T>>,
        limit: Duration,
        is_settled: impl FnMut(&Votes<Answer<T>>) -> Settled,
    ) -> Answer<Vec<T>> {
        let votes = self.ask_all(ask, limit, is_settled).await;
        match count(&votes, Result::is_ok) {
            answered if answered < self.nodes.quorum() => {
                Err(self.no_majority(answered, failures(votes), Left::Nothing))
            }
            _ => Ok(votes.into_iter().flatten().filter_map(Result::ok).collect()),
        }
    }

    async fn ask_all<T: Send + 'static>(
        &self,
        ask: impl Fn(Arc<dyn Driver>) -> BoxFuture<'static, Answer<T>>,
        limit: Duration,
        is_settled: impl FnMut(&Votes<Answer<T>>) -> Settled,
    ) -> Votes<Answer<T>> {
        let request = |member: &Member| match member.driver() {
            Ok(driver) => ask(driver),
            Err(reason) => {
                let error = DriverError::new(ErrorKind::Unreachable, String::from(&*reason));
                Box::pin(std::future::ready(Err(error)))
            }
        };
        let requests = self.nodes.members.iter().map(request).collect();
        ballot::hold(requests, limit, &self.stragglers, is_settled).await
    }

    /// What a majority says about a lock.
    fn agreed<'a>(&self, name: LockName, seen: impl Iterator<Item = &'a LockStatus>) -> LockStatus {
        let mut by_owner: BTreeMap<OwnerId, Vec<&Holder>> = BTreeMap::new();
        for holder in seen.filter_map(LockStatus::holder) {
            by_owner.entry(holder.owner()).or_default().push(holder);
        }
        let quorum = self.nodes.quorum();
        let majority = by_owner.into_iter().find(|(_, holders)| holders.len() >= quorum);
        let status = LockStatus::free(name);
        let Some((owner, holders)) = majority else { return status };
        let mut holder = Holder::new(owner);
        if let Some(label) = holders.iter().find_map(|holder| holder.label()) {
            holder = holder.with_label(label.clone());
        }
        if let Some(since) = reached(holders.iter().filter_map(|holder| holder.held_for()), quorum)
        {
            holder = holder.with_held_for(since);
        }
        if let Some(left) = reached(holders.iter().filter_map(|holder| holder.remaining()), quorum)
        {
            holder = holder.with_remaining(left);
        }
        status.held_by(holder)
    }
}
