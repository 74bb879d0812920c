use std::time::{Duration, Instant};

use lockkit_bench::{Result, Unit};
use serde_json::Value;

use crate::hired::Hired;
use crate::run::{Figure, Round};
use crate::scale::Scale;
use crate::servers::Servers;
use crate::times::Times;

/// What is done under the lock.
const SECTIONS: [(Duration, &str); 2] =
    [(Duration::ZERO, "empty"), (Duration::from_millis(1), "1 ms")];

/// So many clients that want one lock all the time, and what they do under it.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    clients: usize,
    section: Duration,
}

impl Case {
    /// Whether requests are counted: a section changes nothing about them.
    pub(crate) fn is_counted(&self) -> bool {
        self.section.is_zero()
    }
}

pub(crate) fn cases(scale: &Scale) -> Vec<Case> {
    let case = |&clients: &usize| {
        SECTIONS.map(|(section, what)| Case {
            name: format!("{clients} clients, {what}"),
            clients,
            section,
        })
    };
    scale.clients.iter().flat_map(case).collect()
}

/// Several clients want one lock all the time: what came of it, and how long that took. Where there
/// are servers to count at, also how many requests reach them for each grant, if they can tell.
pub(crate) async fn contended(
    agent: &mut Hired,
    counting: Option<&Servers>,
    case: &Case,
    scale: &Scale,
) -> Result<(Round, Duration)> {
    let mut pass = Pass::run(agent, counting, case, scale).await?;
    if pass.a_grant.is_some() && counting.is_some_and(Servers::are_slowed_by_counting) {
        let a_grant = pass.a_grant;
        pass = Pass { a_grant, ..Pass::run(agent, None, case, scale).await? };
    }
    Ok((pass.round(case)?, pass.took))
}

/// One pass of a case.
struct Pass {
    answer: Value,
    took: Duration,
    /// How many requests for each grant reached the servers.
    a_grant: Option<f64>,
}

impl Pass {
    async fn run(
        agent: &mut Hired,
        counting: Option<&Servers>,
        case: &Case,
        scale: &Scale,
    ) -> Result<Self> {
        let mut count = None;
        if let Some(servers) = counting
            && let Some(connecting) = servers.count().await?
        {
            // What it takes to connect is not to be counted: it is found by doing only that.
            contend(agent, case, Duration::ZERO, scale.limit).await?;
            count = Some((connecting.end().await?, servers.count().await?));
        }
        let began = Instant::now();
        let answer = contend(agent, case, scale.slice, scale.limit).await?;
        let took = began.elapsed();
        let mut a_grant = None;
        if let Some((to_connect, Some(all))) = count {
            let requests = all.end().await?.saturating_sub(to_connect);
            let clients = answer["clients"].as_array().ok_or("no clients")?;
            let grants: usize = clients.iter().filter_map(Value::as_array).map(Vec::len).sum();
            a_grant = Some(requests as f64 / grants.max(1) as f64);
        }
        Ok(Self { answer, took, a_grant })
    }

    fn round(&self, case: &Case) -> Result<Round> {
        let clients = self.answer["clients"].as_array().ok_or("no clients")?;
        let seconds = self.answer["seconds"].as_f64().ok_or("no seconds")?;
        let mut waits = Times::new()?;
        let mut shares = Vec::new();
        for client in clients {
            shares.push(in_time(client, case.section, seconds) as f64);
            waits.add(&Times::read(client, 0)?)?;
        }
        let a_second = shares.iter().sum::<f64>() / seconds;
        let figure = |name: &str, unit, value| Figure { name: name.into(), unit, value };
        let mut figures = vec![figure("grants", Unit::PerSecond, a_second)];
        figures.extend(waits.figures());
        figures.push(figure("Jain", Unit::Ratio, fairness(&shares)));
        let a_grant = |value| figure("requests a grant", Unit::Count, value);
        figures.extend(self.a_grant.map(a_grant));
        Ok(waits.round_of(figures))
    }
}

async fn contend(agent: &mut Hired, case: &Case, time: Duration, limit: Duration) -> Result<Value> {
    let Case { clients, section, .. } = case;
    let name = super::name("contended");
    let (section, time) = (section.as_micros(), time.as_millis());
    agent.ask(&format!("contended {name} {clients} {section} {time}"), limit).await
}

/// How many of a client's grants came before the end: each asks once more, which may take long.
fn in_time(waits: &Value, section: Duration, seconds: f64) -> usize {
    let mut at = 0.0;
    let waits = waits.as_array().into_iter().flatten().filter_map(Value::as_f64);
    waits
        .take_while(|wait| {
            at += wait / 1e9;
            let came = at;
            at += section.as_secs_f64();
            came <= seconds
        })
        .count()
}

/// Jain's index: 1 if all have got the same, 1/n if one has got all.
fn fairness(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| {
        (sum + share, f64::mul_add(*share, *share, squares))
    });
    match squares {
        0.0 => 1.0,
        squares => sum * sum / (shares.len() as f64 * squares),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::{fairness, in_time};

    #[test]
    fn a_grant_that_came_after_the_end_is_not_counted() {
        let waits = json!([100_000_000, 100_000_000, 100_000_000]);
        assert_eq!(in_time(&waits, Duration::ZERO, 0.25), 2);
        assert_eq!(in_time(&waits, Duration::from_millis(100), 0.25), 1);
        assert_eq!(in_time(&waits, Duration::ZERO, 1.0), 3);
        assert_eq!(in_time(&json!([]), Duration::ZERO, 1.0), 0);
    }

    #[test]
    fn fairness_is_one_for_equal_shares_and_least_for_one_that_has_all() {
        assert_eq!(fairness(&[7.0, 7.0, 7.0, 7.0]), 1.0);
        assert_eq!(fairness(&[9.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(fairness(&[0.0, 0.0]), 1.0);
    }
}
