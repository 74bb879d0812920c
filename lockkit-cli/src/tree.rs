//! A program that was started, and everything below it.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgid, getpid, kill_process, kill_process_group,
    test_kill_process_group, wait,
};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, timeout};

#[cfg(target_os = "linux")]
use crate::processes;
use crate::signals::{Signals, Terminal};

/// How long processes may take to end when they are killed.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long until those that are left are looked for again.
const ROUND: Duration = Duration::from_millis(2);

/// A program and its descendants.
///
/// On Linux, processes below it whose parent has ended become children of this process, so that
/// none gets out of sight. Elsewhere only the program and its process group are seen.
pub(crate) struct Tree {
    root: Pid,
    /// Whether the program has ended, so that its number may be somebody else's by now.
    ended: bool,
    terminal: Terminal,
    /// Children that this process had before, from an `exec` in a shell with background jobs.
    others: Vec<Pid>,
    /// Whether descendants are seen, and not the process group alone.
    sees_all: bool,
    news: unix::Signal,
}

impl Tree {
    /// Starts a program: in the process group of this one, or as the leader of its own.
    ///
    /// To be called from the main thread, since a parent-death signal is sent when the thread that
    /// started the process ends.
    pub(crate) fn start(
        mut command: Command,
        terminal: Terminal,
        signals: &Signals,
    ) -> io::Result<Self> {
        let others = adopt()?;
        // From before the start on, so that no end is missed.
        let news = unix::signal(SignalKind::child())?;
        if terminal == Terminal::Apart {
            command.process_group(0);
        }
        let root = Pid::from_child(&signals.as_found(|| command.spawn())?);
        let sees_all = cfg!(target_os = "linux");
        Ok(Self { root, ended: false, terminal, others, sees_all, news })
    }

    /// Returns when the program has ended. Cancel-safe.
    pub(crate) async fn ended(&mut self) -> io::Result<WaitStatus> {
        loop {
            while let Some((pid, status)) = wait(WaitOptions::NOHANG)? {
                self.forget(pid);
                if pid == self.root {
                    return Ok(status);
                }
            }
            self.news.recv().await;
        }
    }

    /// Returns when the program and everything below it have ended. Cancel-safe.
    pub(crate) async fn all_ended(&mut self) {
        loop {
            let has_children = loop {
                match wait(WaitOptions::NOHANG) {
                    Ok(Some((pid, _))) => self.forget(pid),
                    Ok(None) => break true,
                    Err(_) => break false,
                }
            };
            // Where all are seen, such a child is either hidden or one of the others.
            let may_be_hidden = has_children && self.others.is_empty() && self.sees_all;
            let is_group_left = self.is_group_left();
            if self.members().is_empty() && !may_be_hidden && !is_group_left {
                return;
            }
            let news = self.news.recv();
            match is_group_left {
                // Only of its own children a process is told.
                true => drop(timeout(ROUND, news).await),
                false => drop(news.await),
            }
        }
    }

    /// Sees to the end of what the program has left, whose parent this process becomes. Never
    /// returns.
    pub(crate) async fn reap(&mut self) -> Infallible {
        loop {
            // Without children it is told when there are some again.
            while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
                self.forget(pid);
            }
            self.news.recv().await;
        }
    }

    /// Whoever has this number from now on is somebody else.
    fn forget(&mut self, pid: Pid) {
        self.ended |= pid == self.root;
        self.others.retain(|other| *other != pid);
    }

    /// Whether there is anybody in the process group of the program, where nothing else is seen.
    fn is_group_left(&self) -> bool {
        let is_seen = !self.sees_all && self.terminal == Terminal::Apart;
        is_seen && test_kill_process_group(self.root).is_ok()
    }

    /// Signals the process group of the program; where that has others in it, or where the program
    /// has ended before its descendants, signals each process of the tree that is seen.
    pub(crate) fn signal(&self, signal: Signal) {
        // What is gone needs no signal; what is somebody else by now must not be sent any. Nobody
        // new has the number of a group as long as there is anybody in it.
        if self.terminal == Terminal::Apart && !self.ended || self.is_group_left() {
            _ = kill_process_group(self.root, signal);
        } else {
            self.signal_each(signal);
        }
    }

    /// The same, and signals what has left the process group as well.
    pub(crate) fn signal_all(&self, signal: Signal) {
        self.signal(signal);
        if self.terminal == Terminal::Apart && !self.ended {
            // Parents before their children: a run inside the run has to see to its lock first.
            let left =
                self.members().into_iter().filter(|pid| getpgid(Some(*pid)) != Ok(self.root));
            for pid in left {
                // As above.
                _ = kill_process(pid, signal);
            }
        }
    }

    /// Signals the program, and nothing below it, if it is no longer in the process group of this
    /// process.
    #[cfg(target_os = "linux")]
    pub(crate) fn signal_if_left(&self, signal: Signal) {
        let own = rustix::process::getpgrp();
        if !self.ended && getpgid(Some(self.root)).is_ok_and(|group| group != own) {
            // As above.
            _ = kill_process(self.root, signal);
        }
    }

    /// Kills the program and everything below it, and returns when all of it has ended.
    ///
    /// Processes that this user may not kill, or that are stuck in the kernel, are left alone after
    /// a [while](PATIENCE): this then returns how many they are.
    pub(crate) async fn kill(&mut self) -> Result<(), usize> {
        let limit = Instant::now() + PATIENCE;
        loop {
            // The whole group at once, so that none of it can start another process meanwhile.
            self.signal(Signal::KILL);
            self.signal_each(Signal::KILL);
            // What was started behind our back since the last look ends in the next round.
            if timeout(ROUND, self.all_ended()).await.is_ok() {
                return Ok(());
            }
            // By the clock: a look at all processes of a large machine takes its time.
            if Instant::now() >= limit {
                // One that is not seen is one at least.
                return Err(self.members().len().max(1));
            }
        }
    }

    /// The program first: of a large machine, a look at all processes takes its time.
    fn signal_each(&self, signal: Signal) {
        // As above.
        let send = |pid| _ = kill_process(pid, signal);
        if !self.ended {
            send(self.root);
        }
        self.descendants().into_iter().for_each(send);
    }

    /// The program, unless it has ended, and its descendants, parents before their children.
    pub(crate) fn members(&self) -> Vec<Pid> {
        let mut members = Vec::from_iter((!self.ended).then_some(self.root));
        members.extend(self.descendants());
        members
    }

    fn descendants(&self) -> Vec<Pid> {
        match self.sees_all {
            true => descendants(&self.others).into_iter().filter(|pid| *pid != self.root).collect(),
            false => Vec::new(),
        }
    }
}

/// Sees to the end of orphans while there is no [`Tree`], where this is the first process of a
/// container, which becomes their parent. Never returns, unless it cannot hear of them.
pub(crate) async fn reap_orphans() -> io::Result<Infallible> {
    if !getpid().is_init() {
        return pending().await;
    }
    let mut news = unix::signal(SignalKind::child())?;
    loop {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        news.recv().await;
    }
}

/// Whether it can be told what is below this process; an error says why not.
#[cfg(target_os = "linux")]
pub(crate) fn check() -> lockkit::Result<()> {
    let reason = match processes::are_ours() {
        Ok(true) => return Ok(()),
        Ok(false) => "it has the processes of another container (PID namespace), so that nobody \
                      sees what is below this one; mount the one of this container there, as \
                      `unshare --mount-proc` does"
            .into(),
        Err(error) => format!("it has to be there, and this process in it: {error}"),
    };
    Err(lockkit::Error::config("/proc", reason))
}

/// Makes this process the parent of all orphans below it, and returns the children it has.
#[cfg(target_os = "linux")]
fn adopt() -> io::Result<Vec<Pid>> {
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own))?;
    let processes = processes::all()?;
    Ok(processes.iter().filter(|process| process.parent == Some(own)).map(|it| it.pid).collect())
}

/// Everything that is seen below this process, except what is below `others`.
#[cfg(target_os = "linux")]
fn descendants(others: &[Pid]) -> Vec<Pid> {
    let processes = processes::all().unwrap_or_default();
    let mut found = vec![rustix::process::getpid()];
    let mut next = 0;
    while let Some(&ancestor) = found.get(next) {
        let children = processes.iter().filter(|process| process.parent == Some(ancestor));
        found.extend(children.map(|child| child.pid).filter(|pid| !others.contains(pid)));
        next += 1;
    }
    found.split_off(1)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn check() -> lockkit::Result<()> {
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn adopt() -> io::Result<Vec<Pid>> {
    Ok(Vec::new())
}

#[cfg(not(target_os = "linux"))]
fn descendants(_others: &[Pid]) -> Vec<Pid> {
    Vec::new()
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use rustix::process::{
        Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process_group, waitid,
    };
    use tokio::time::timeout;

    use super::Tree;
    use crate::signals::tests::IN_TURN;
    use crate::signals::{Signals, Terminal};

    /// Its number may be that of a part of the command next.
    #[tokio::test]
    async fn a_job_from_before_is_set_apart_until_it_has_ended() {
        let _turn = IN_TURN.lock().await;
        for is_first in [true, false] {
            let job = Pid::from_child(&Command::new("true").spawn().unwrap());
            // It has ended, and is still there.
            waitid(WaitId::Pid(job), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
            let signals = Signals::catch(Terminal::Apart).unwrap();
            let mut tree = Tree::start(Command::new("true"), Terminal::Apart, &signals).unwrap();
            assert_eq!(tree.others, [job]);
            match is_first {
                true => assert!(tree.ended().await.unwrap().exited()),
                false => tree.all_ended().await,
            }
            assert_eq!(tree.others, []);
        }
    }

    /// As on macOS.
    #[tokio::test]
    async fn where_only_the_group_is_seen_it_counts_beyond_its_leader() {
        let _turn = IN_TURN.lock().await;
        let signals = Signals::catch(Terminal::Apart).unwrap();
        for is_killed in [false, true] {
            let mut leader = Command::new("sh");
            leader.args(["-c", "sleep 1000 &"]);
            let mut tree = Tree::start(leader, Terminal::Apart, &signals).unwrap();
            tree.sees_all = false;
            let group = Group(tree.root);
            assert!(tree.ended().await.unwrap().exited());
            tokio::select! {
                biased;
                () = tree.all_ended() => panic!("the rest of the group is not seen"),
                () = std::future::ready(()) => (),
            }
            match is_killed {
                true => tree.kill().await.unwrap(),
                false => {
                    tree.signal(Signal::TERM);
                    // A guard against hanging, not a limit.
                    timeout(Duration::from_secs(60), tree.all_ended()).await.unwrap();
                }
            }
            assert!(test_kill_process_group(group.0).is_err(), "not all of it has ended");
        }
    }

    /// Ends with the test.
    struct Group(Pid);

    impl Drop for Group {
        fn drop(&mut self) {
            // It is gone if all is well.
            _ = kill_process_group(self.0, Signal::KILL);
        }
    }
}
