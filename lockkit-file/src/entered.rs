//! The folders of namespaces that stay open.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many folders stay open.
pub(crate) const STAY_OPEN: usize = 16;

/// The folders that locks were last taken in, the latest at the end. They stay open: a process may
/// have no descriptor to spare except that of the lock. Not all of them do: some processes have a
/// namespace for each of their users.
#[derive(Debug, Default)]
pub(crate) struct Entered(Mutex<Vec<(PathBuf, Arc<File>)>>);

impl Entered {
    /// The folder that was entered at `path`, which is the latest from now on.
    pub(crate) fn at(&self, path: &Path) -> Option<Arc<File>> {
        let mut entered = self.lock();
        let at = entered.iter().position(|(entered, _)| entered == path)?;
        entered[at..].rotate_left(1);
        entered.last().map(|(_, folder)| Arc::clone(folder))
    }

    /// Keeps a folder open, instead of the one that was used least lately.
    pub(crate) fn keep(&self, path: &Path, folder: Arc<File>) {
        let mut entered = self.lock();
        // It may be another one that was there before.
        entered.retain(|(entered, _)| entered != path);
        if entered.len() >= STAY_OPEN {
            // What is in use would not be closed before its user is done.
            let unused = entered.iter().position(is_unused);
            entered.remove(unused.unwrap_or(0));
        }
        entered.push((path.into(), folder));
    }

    /// Closes the folders that nobody uses at this moment, and says whether there were any.
    pub(crate) fn close_unused(&self) -> bool {
        let mut entered = self.lock();
        let before = entered.len();
        entered.retain(|folder| !is_unused(folder));
        entered.len() < before
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(PathBuf, Arc<File>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_unused((_, folder): &(PathBuf, Arc<File>)) -> bool {
    Arc::strong_count(folder) == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folders_that_were_used_last_stay_open() {
        let entered = Entered::default();
        let path = |number: usize| PathBuf::from(number.to_string());
        let enter = |number| {
            entered.at(&path(number)).unwrap_or_else(|| {
                let folder = Arc::new(tempfile::tempfile().unwrap());
                entered.keep(&path(number), Arc::clone(&folder));
                folder
            })
        };
        let in_use = enter(0);
        enter(1);
        for number in 2..100 {
            enter(number);
            assert!(entered.at(&path(1)).is_some(), "{number}");
        }
        let are_open = |numbers: &[usize]| {
            let mut open: Vec<_> = entered.lock().iter().map(|(path, _)| path.clone()).collect();
            let mut expected: Vec<_> = numbers.iter().map(|number| path(*number)).collect();
            open.sort();
            expected.sort();
            assert_eq!(open, expected);
        };
        are_open(&[&[0, 1], &Vec::from_iter(102 - STAY_OPEN..100)[..]].concat());
        // Another one is there by now.
        entered.keep(&path(99), Arc::new(tempfile::tempfile().unwrap()));
        are_open(&[&[0, 1], &Vec::from_iter(102 - STAY_OPEN..100)[..]].concat());
        assert!(entered.close_unused());
        are_open(&[0]);
        drop(in_use);
        assert!(entered.close_unused() && !entered.close_unused());
    }
}
