use fastrand::Rng;
use tokio::time::timeout;

use crate::{Figure, Reading, Scale, Subject, Summary, Workload};

/// What is measured, how much, and in which order.
#[derive(Debug)]
pub struct Plan {
    subjects: Vec<Subject>,
    scale: Scale,
    rounds: usize,
    seed: u64,
}

/// What happens while a workload is measured.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Which subject is measured now.
    pub subject: &'a Subject,
    /// How many measurements are over.
    pub done: usize,
    /// How many there will be.
    pub total: usize,
}

/// What was found out with one workload.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The name of the workload.
    pub workload: &'static str,
    /// What it measures.
    pub about: &'static str,
    /// In the order of the plan.
    pub subjects: Vec<SubjectOutcome>,
}

/// What was found out about one subject.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct SubjectOutcome {
    /// What it is called.
    pub label: String,
    /// The cases of the workload, or why it cannot be measured.
    pub rows: Result<Vec<Row>, String>,
}

/// One case.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Row {
    /// Which; empty if there is only one.
    pub case: String,
    /// Its figures, each over all rounds.
    pub summaries: Vec<Summary>,
}

impl Plan {
    /// Five rounds over these subjects.
    pub fn new(subjects: Vec<Subject>, scale: Scale) -> Self {
        Self { subjects, scale, rounds: 5, seed: 0 }
    }

    /// How many rounds there are.
    #[must_use]
    pub fn rounds(mut self, rounds: usize) -> Self {
        self.rounds = rounds;
        self
    }

    /// What decides in which order the subjects are measured in each round.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Measures all subjects with a workload. A subject that fails is not measured again.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: what was taken is released.
    pub async fn run(&self, workload: &dyn Workload, progress: impl Fn(Step<'_>)) -> Outcome {
        let mut rng = Rng::with_seed(self.seed);
        let mut found: Vec<Result<Vec<Vec<Reading>>, String>> =
            self.subjects.iter().map(|_| Ok(Vec::new())).collect();
        let total = self.rounds * self.subjects.len();
        let mut order: Vec<_> = (0..self.subjects.len()).collect();
        let mut done = 0;
        for _ in 0..self.rounds {
            rng.shuffle(&mut order);
            for &at in &order {
                let subject = &self.subjects[at];
                progress(Step { subject, done, total });
                done += 1;
                if let Ok(rounds) = &mut found[at] {
                    match self.measure(workload, subject).await {
                        Ok(readings) => rounds.push(readings),
                        Err(reason) => found[at] = Err(reason),
                    }
                }
            }
        }
        let outcome = |(subject, found): (&Subject, Result<Vec<_>, _>)| SubjectOutcome {
            label: subject.label().into(),
            rows: found.map(rows),
        };
        let subjects = self.subjects.iter().zip(found).map(outcome).collect();
        Outcome { workload: workload.name(), about: workload.about(), subjects }
    }

    async fn measure(
        &self,
        workload: &dyn Workload,
        subject: &Subject,
    ) -> Result<Vec<Reading>, String> {
        let limit = self.scale.limit;
        match timeout(limit, workload.round(subject, &self.scale)).await {
            Ok(Ok(readings)) => Ok(readings),
            Ok(Err(error)) => Err(reason(&*error)),
            Err(_) => Err(format!("not done within {limit:?}")),
        }
    }
}

/// The cases of all rounds, which are the same in each.
fn rows(rounds: Vec<Vec<Reading>>) -> Vec<Row> {
    let Some(first) = rounds.first() else { return Vec::new() };
    let row = |(at, reading): (usize, &Reading)| {
        let mut summaries: Vec<Summary> = Vec::new();
        let in_rounds = || rounds.iter().filter_map(|round| round.get(at));
        // A figure that one round was too short for may be in another.
        for Figure { name, .. } in in_rounds().flat_map(|reading| &reading.figures) {
            if summaries.iter().any(|summary| summary.name == *name) {
                continue;
            }
            let in_round =
                |reading: &Reading| reading.figures.iter().find(|it| it.name == *name).cloned();
            summaries.extend(Summary::of(&in_rounds().filter_map(in_round).collect::<Vec<_>>()));
        }
        Row { case: reading.case.clone(), summaries }
    };
    first.iter().enumerate().map(row).collect()
}

/// An error and what is behind it.
fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}
