use std::sync::{Mutex, PoisonError};

/// The last usable value of a file that is replaced while a driver runs, as certificates are before
/// they run out. It stands in when a read falls into the middle of a write.
///
/// ```
/// use lockkit_core::driver::LastGood;
///
/// let certificate = LastGood::new("the first");
/// assert_eq!(certificate.or_last(Err("half a file")), ("the first", Some("half a file")));
/// assert_eq!(certificate.or_last(Ok::<_, &str>("the second")), ("the second", None));
/// assert_eq!(certificate.or_last(Err("no file")).0, "the second");
/// ```
#[derive(Debug)]
pub struct LastGood<T>(Mutex<T>);

impl<T: Clone> LastGood<T> {
    /// Starts with what was read first.
    pub fn new(first: T) -> Self {
        Self(Mutex::new(first))
    }

    /// What was read now, if it can be used; otherwise the last usable value, and the reason.
    pub fn or_last<E>(&self, read: Result<T, E>) -> (T, Option<E>) {
        // A panic in a clone leaves what there was.
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(good) => {
                last.clone_from(&good);
                (good, None)
            }
            Err(problem) => (last.clone(), Some(problem)),
        }
    }
}
