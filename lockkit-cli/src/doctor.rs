//! `lockkit doctor`: what is wrong with a backend, and what to do about it.

use lockkit::driver::ErrorKind;
use lockkit::{Diagnosis, Error, Failure, Grade};
use tokio::time::timeout;

use crate::args::{Doctor, Place};
use crate::report::{self, Volume, answer, chain};
use crate::table::{columns, visible};
use crate::{backend, exit, json};

/// Examines the backend and returns the exit code.
pub(crate) fn doctor(options: &Doctor) -> u8 {
    report::listen(Volume::Errors);
    let examined = backend::block_on(examine(&options.place)).and_then(|examined| {
        let text = match options.json {
            true => json::diagnosis(examined.driver, &examined.findings)?,
            false => text(&examined.findings),
        };
        let worst = examined.findings.iter().map(Diagnosis::grade).max();
        Ok(answer(text, if worst == Some(Grade::Error) { exit::NO } else { exit::OK }))
    });
    examined.unwrap_or_else(|error| backend::failed(&error))
}

struct Examined {
    /// `None` if no backend was reached.
    driver: Option<&'static str>,
    findings: Vec<Diagnosis>,
}

async fn examine(place: &Place) -> Examined {
    let mut findings = Vec::new();
    let url = match backend::url(place) {
        Ok(url) => url,
        Err(error) => return Examined { driver: None, findings: vec![failed("url", &error)] },
    };
    let password = url.password().or(url.parameter("sentinel_password"));
    if password.is_some() && place.url.is_some() {
        findings.push(Diagnosis::warning(
            "password",
            "it stands in the arguments of this command, where other users can see it",
            "put the URL into the variable LOCKKIT_URL instead of --url",
        ));
    }
    let locker = match lockkit::connect_url(&url).await {
        Ok(locker) => locker,
        Err(error) => {
            findings.push(failed("connection", &error));
            return Examined { driver: None, findings };
        }
    };
    let driver = locker.driver().id();
    findings.push(Diagnosis::good("connection", format!("{driver} answers at {url}")));
    match locker.diagnose().await {
        Ok(more) => findings.extend(more),
        Err(Error::Unsupported { .. }) => findings.push(Diagnosis::warning(
            "diagnosis",
            format!("the driver of {driver} cannot tell how its backend is set up"),
            "`lockkit conformance` shows whether locks work there",
        )),
        Err(error) => findings.push(failed("diagnosis", &error)),
    }
    _ = timeout(backend::CLEAN_UP, locker.shutdown()).await;
    Examined { driver: Some(driver), findings }
}

/// What became of an attempt, with what to try next.
fn failed(topic: &'static str, error: &Error) -> Diagnosis {
    let advice = match error {
        Error::Denied(_) => {
            "check user and password in the URL, and whether that user may do what the page of \
             the driver in docs/ lists"
        }
        Error::Unreachable(Failure { kind: ErrorKind::Unknown, .. }) => {
            "it was asked and did not answer in time: look at its load and its log"
        }
        Error::Unreachable(_) => {
            "check that the backend runs, that host and port in the URL are right, and that no \
             firewall stands between"
        }
        Error::Capacity(_) => "make room for it: memory, disk, or its own limits",
        Error::Foreign(_) | Error::Misconfigured(_) => {
            "name another place in the URL, or set this one up as the page of the driver in docs/ \
             says"
        }
        Error::Config { what, .. } if what == backend::DEFAULT => {
            "set LOCKKIT_URL, or HOME or XDG_STATE_HOME to a folder of this user"
        }
        _ => "correct the URL, in --url or LOCKKIT_URL: docs/urls.md has what can stand there",
    };
    Diagnosis::error(topic, chain(error), advice)
}

fn text(findings: &[Diagnosis]) -> String {
    let row = |finding: &Diagnosis| {
        let (grade, topic) = (finding.grade().to_string(), finding.topic().to_owned());
        let mut rows = vec![vec![grade, topic, visible(finding.finding())]];
        let advice = finding.advice().map(|advice| format!("-> {}", visible(advice)));
        rows.extend(advice.map(|advice| vec![String::new(), String::new(), advice]));
        rows
    };
    let mut lines = columns(&findings.iter().flat_map(row).collect::<Vec<_>>());
    let count = |grade| findings.iter().filter(|finding| finding.grade() == grade).count();
    lines.push(match (count(Grade::Error), count(Grade::Warning)) {
        (0, 0) => "nothing is wrong".into(),
        (0, warnings) => format!("locks work; warnings: {warnings}"),
        (errors, warnings) => format!("errors: {errors}, warnings: {warnings}"),
    });
    lines.join("\n") + "\n"
}
