use std::time::Duration;

use lockkit_bench::{Result, Unit, fairness};
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
    time: Duration,
}

impl Case {
    /// Whether requests are counted: a section changes nothing about them.
    pub(crate) fn is_counted(&self) -> bool {
        self.section.is_zero()
    }
}

pub(crate) fn cases(scale: &Scale) -> Vec<Case> {
    let case = |&(clients, slices): &(usize, u32)| {
        SECTIONS.map(|(section, what)| Case {
            name: format!("{clients} clients, {what}"),
            clients,
            section,
            time: scale.slice * slices,
        })
    };
    scale.clients.iter().flat_map(case).collect()
}

/// Several clients want one lock all the time: what came of it, and for how long after the end the last
/// of them waited. Where there are servers to count at, also how many requests reach them for each
/// grant, if they can tell.
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
    pass.round(case)
}

/// One pass of a case.
struct Pass {
    answer: Value,
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
            let only_that = Case { time: Duration::ZERO, ..case.clone() };
            contend(agent, &only_that, scale.limit).await?;
            count = Some((connecting.end().await?, servers.count().await?));
        }
        let answer = contend(agent, case, scale.limit).await?;
        let mut a_grant = None;
        if let Some((to_connect, Some(all))) = count {
            let requests = all.end().await?.saturating_sub(to_connect);
            let clients = answer["clients"].as_array().ok_or("no clients")?;
            let grants: usize = clients.iter().filter_map(Value::as_array).map(Vec::len).sum();
            a_grant = Some(requests as f64 / grants.max(1) as f64);
        }
        Ok(Self { answer, a_grant })
    }

    fn round(&self, case: &Case) -> Result<(Round, Duration)> {
        let clients = self.answer["clients"].as_array().ok_or("no clients")?;
        let seconds = self.answer["seconds"].as_f64().ok_or("no seconds")?;
        let mut waits = Times::new()?;
        let (mut shares, mut longest) = (Vec::new(), 0.0_f64);
        for client in clients {
            let Course { in_time, seconds } = Course::of(client, case.section, seconds);
            shares.push(in_time);
            longest = longest.max(seconds);
            waits.add(&Times::read(client, 0)?)?;
        }
        let a_second = shares.iter().sum::<u64>() as f64 / seconds;
        let figure = |name: &str, unit, value| Figure { name: name.into(), unit, value };
        let mut figures = vec![figure("grants", Unit::PerSecond, a_second)];
        figures.extend(waits.figures());
        // What somebody who starves waits for is beyond all quantiles.
        figures.extend(waits.longest().map(|longest| figure("longest", Unit::Time, longest)));
        let jain = fairness(&shares);
        figures.extend(jain.map(|index| figure("Jain", Unit::Ratio, index)));
        let a_grant = |value| figure("requests a grant", Unit::Count, value);
        figures.extend(self.a_grant.map(a_grant));
        let overtime = Duration::try_from_secs_f64((longest - seconds).max(0.0))?;
        Ok((waits.round_of(figures), overtime))
    }
}

async fn contend(agent: &mut Hired, case: &Case, limit: Duration) -> Result<Value> {
    let Case { clients, section, time, .. } = case;
    let name = super::name("contended");
    let question =
        format!("contended {name} {clients} {} {}", section.as_micros(), time.as_millis());
    agent.ask(&question, limit + *time).await
}

/// How a client fared.
struct Course {
    /// How many of its grants came before the end: each asks once more, which may take long.
    in_time: u64,
    /// After how many seconds it was through.
    seconds: f64,
}

impl Course {
    fn of(waits: &Value, section: Duration, end: f64) -> Self {
        let mut course = Self { in_time: 0, seconds: 0.0 };
        for wait in waits.as_array().into_iter().flatten().filter_map(Value::as_f64) {
            course.seconds += wait / 1e9;
            course.in_time += u64::from(course.seconds <= end);
            course.seconds += section.as_secs_f64();
        }
        course
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::Course;

    #[test]
    fn a_grant_that_came_after_the_end_is_not_counted() {
        let waits = json!([100_000_000, 100_000_000, 100_000_000]);
        let in_time =
            |waits, section, end| Course::of(waits, Duration::from_millis(section), end).in_time;
        assert_eq!(in_time(&waits, 0, 0.25), 2);
        assert_eq!(in_time(&waits, 100, 0.25), 1);
        assert_eq!(in_time(&waits, 0, 1.0), 3);
        assert_eq!(in_time(&json!([]), 0, 1.0), 0);
        assert!((Course::of(&waits, Duration::from_millis(100), 0.25).seconds - 0.6).abs() < 1e-9);
    }
}
