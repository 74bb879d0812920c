use std::time::Duration;

/// How much is measured: what bounds a round.
#[derive(Clone, Debug)]
pub struct Scale {
    /// How long each thing is measured that is measured over time.
    pub slice: Duration,
    /// How many hand-overs there are, each after a while.
    pub hand_overs: usize,
    /// How many contend for one name, one number after the other, and for how many slices: a crowd
    /// has begun, and comes to its end, only after a while.
    pub clients: Vec<(usize, u32)>,
    /// The lease of those who are killed.
    pub lease: Duration,
    /// How long an agent may take for one answer, beside what it is to measure.
    pub limit: Duration,
}

impl Scale {
    /// Enough to see that all can be measured.
    pub fn quick() -> Self {
        Self {
            slice: Duration::from_millis(100),
            hand_overs: 3,
            clients: vec![(2, 1), (8, 1)],
            lease: Duration::from_secs(2),
            limit: Duration::from_secs(10),
        }
    }

    /// Enough for medians that mean something.
    pub fn full() -> Self {
        Self {
            slice: Duration::from_millis(250),
            hand_overs: 7,
            clients: vec![(2, 1), (8, 1), (64, 2)],
            lease: Duration::from_secs(2),
            limit: Duration::from_secs(15),
        }
    }
}
