//! Disks that are full or read-only, and other users: what takes rights to arrange. Where they are
//! missing, the test is ignored with the reason.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::sync::OnceLock;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lockkit_core::driver::{Attempt, Claim, Driver as _, Inspect as _, Release};
use lockkit_core::{LockName, Locker, Namespace};
use lockkit_file::FileDriver;
use tempfile::TempDir;

/// What this binary, started again, is to ask for: names of locks with blanks between, or the room
/// that there is. Asked in the folder that the first argument names.
const ASKS: &str = "LOCKKIT_TEST_FILE_ASKS";

/// What stands for the room among the names.
const ROOM: &str = "?";

/// That it is to wait for a lock that it holds itself instead.
const WAITS: &str = "LOCKKIT_TEST_FILE_WAITS";

/// That it is to break the hold of a lock.
const BREAKS: &str = "LOCKKIT_TEST_FILE_BREAKS";

fn main() -> ExitCode {
    if let Ok(names) = std::env::var(ASKS) {
        let folder = std::env::args_os().nth(1).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (folder, is_set) = (Path::new(&folder), |role| std::env::var_os(role).is_some());
        if is_set(WAITS) {
            runtime.block_on(wait(folder, &names));
        } else if is_set(BREAKS) {
            runtime.block_on(break_hold(folder, &names));
        } else {
            runtime.block_on(ask(folder, &names));
        }
        return ExitCode::SUCCESS;
    }
    let trial =
        |name: &str, test: fn() -> Result<Completion, Failed>| Trial::ignorable_test(name, test);
    let trials = vec![
        trial("a_full_disk_is_capacity_and_frees_nothing", full_disk),
        trial("a_full_disk_has_no_room_for_a_new_lock", no_room),
        trial("a_full_disk_has_no_room_to_break_a_hold", no_room_to_break),
        trial("a_read_only_file_system_is_denied", read_only),
        trial("a_lock_that_is_taken_on_a_read_only_file_system_is_denied", read_only_and_taken),
        trial("where_nothing_can_be_watched_waiters_poll", no_watches),
        trial("a_folder_without_the_right_to_write_is_denied", no_right),
        trial("a_group_shares_its_locks", group),
        trial("a_group_breaks_holds_of_its_members", group_breaks),
    ];
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let copy = BINARY.get_or_init(|| folder.path().join("weather"));
    fs::copy(std::env::current_exe().unwrap(), copy).unwrap();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn claim(name: &str) -> Claim {
    let name = LockName::new(&Namespace::default(), name).unwrap();
    Claim::new(name, Duration::from_secs(60))
}

/// Asks for each lock and prints what came of it, a line each.
#[expect(clippy::print_stdout, reason = "for the test that started this process")]
async fn ask(folder: &Path, names: &str) {
    let driver = match FileDriver::open(folder).await {
        Ok(driver) => driver,
        Err(error) => return println!("did not open: {error:?}"),
    };
    for name in names.split(' ') {
        if name == ROOM {
            let findings = driver.diagnose(&Namespace::default()).await.unwrap();
            let room = findings.iter().find(|finding| finding.topic() == "space").unwrap();
            println!("{}", room.grade());
            continue;
        }
        let claim = claim(name);
        match driver.try_acquire(&claim).await {
            Ok(Attempt::Granted(grant)) => {
                println!("granted {}", grant.fencing_token().unwrap());
                assert_eq!(driver.release(&claim).await.unwrap(), Release::Freed);
            }
            Ok(answer) => println!("{answer:?}"),
            Err(error) => println!("{:?}", error.kind()),
        }
    }
}

/// Waits for a lock, and prints how it is told to.
#[expect(clippy::print_stdout, reason = "for the test that started this process")]
async fn wait(folder: &Path, name: &str) {
    let driver = FileDriver::open(folder).await.unwrap();
    let (held, waiting) = (claim(name), claim(name).waiting());
    assert!(matches!(driver.try_acquire(&held).await, Ok(Attempt::Granted(_))));
    for _ in 0..2 {
        match driver.try_acquire(&waiting).await {
            Ok(Attempt::Taken(taken)) if taken.is_unheard() => println!("unheard"),
            other => println!("{other:?}"),
        }
    }
    let locker = Locker::new(driver);
    let lock = locker.lock(name).unwrap();
    let release = async { locker.driver().release(&held).await.unwrap() };
    let (guard, _) = tokio::join!(lock.acquire(), release);
    guard.unwrap().release().await.unwrap();
    println!("had it");
}

/// Breaks the hold of a lock, which it takes if nobody has it, and prints what came of it.
#[expect(clippy::print_stdout, reason = "for the test that started this process")]
async fn break_hold(folder: &Path, name: &str) {
    let claim = claim(name);
    let driver = FileDriver::open(folder).await.unwrap();
    let asked = driver.try_acquire(&claim).await.unwrap();
    match driver.break_hold(claim.name(), None).await {
        Ok(holder) => println!("{}", if holder.is_some() { "broken" } else { "not held" }),
        Err(error) => println!("{:?}", error.kind()),
    }
    if let Attempt::Granted(_) = asked {
        println!("{:?}", driver.release(&claim).await.unwrap());
    }
}

/// A copy of this binary that other users can start. Made before there are threads: a program
/// that is open for writing, in whatever process that was forked meanwhile, cannot be started.
static BINARY: OnceLock<PathBuf> = OnceLock::new();

/// A folder that other users can get at.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        for folder in [place.0.path(), &place.locks()] {
            fs::create_dir_all(folder).unwrap();
            fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        }
        place
    }

    /// For all of [`GROUP`].
    fn of_a_group() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let place = Self::new();
        chown(place.locks(), None, Some(GROUP)).unwrap();
        fs::set_permissions(place.locks(), Permissions::from_mode(0o770)).unwrap();
        Some(place)
    }

    fn locks(&self) -> PathBuf {
        self.0.path().join("locks")
    }

    fn ask(&self, names: &str) -> Command {
        let mut command = Command::new(BINARY.get().unwrap());
        command.arg(self.locks()).env(ASKS, names);
        command
    }

    /// Asks where this shell script has arranged the file systems, for nobody else to see.
    fn ask_behind(&self, script: &str, names: &str) -> Result<Vec<String>, String> {
        const SHELL: [&str; 4] = ["--map-root-user", "--mount", "sh", "-ec"];
        let trial = Command::new("unshare").args(SHELL).arg("mount -t tmpfs none /tmp").output();
        match trial {
            Ok(output) if output.status.success() => (),
            Ok(output) => return Err(String::from_utf8_lossy(&output.stderr).trim().into()),
            Err(error) => return Err(format!("unshare: {error}")),
        }
        let script = format!("cd \"$2\"\n{script}\nexec \"$1\" locks");
        let output = Command::new("unshare")
            .args(SHELL)
            .args([&script, "sh"])
            .args([BINARY.get().unwrap(), self.0.path()])
            .env(ASKS, names)
            .output();
        Ok(lines(output.unwrap()))
    }
}

fn lines(output: Output) -> Vec<String> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect()
}

fn token(line: &str) -> u64 {
    line.strip_prefix("granted ").unwrap_or_else(|| panic!("{line}")).parse().unwrap()
}

fn full_disk() -> Result<Completion, Failed> {
    let place = Place::new();
    // One block, which the first lock takes.
    let script = "mount -t tmpfs -o size=4k,mode=755 none locks";
    match place.ask_behind(script, "a a b b") {
        Err(reason) => Ok(Completion::ignored_with(reason)),
        Ok(lines) => {
            token(&lines[0]);
            // Its second token has no room, and neither has another lock.
            assert_eq!(lines[1..], ["Capacity", "Capacity", "Capacity"]);
            Ok(Completion::Completed)
        }
    }
}

/// A lock that was taken twice has a file of the whole length.
fn no_room() -> Result<Completion, Failed> {
    for folder in ["locks", "locks/lockkit"] {
        let script = format!("mkdir -p {folder}; mount -t tmpfs -o size=8k,mode=755 none {folder}");
        match Place::new().ask_behind(&script, "? a a ? a b") {
            Err(reason) => return Ok(Completion::ignored_with(reason)),
            Ok(lines) => {
                for granted in [1, 2, 4] {
                    token(&lines[granted]);
                }
                assert_eq!([&lines[0], &lines[3], &lines[5]], ["warning", "error", "Capacity"]);
            }
        }
    }
    Ok(Completion::Completed)
}

/// Nothing is left of the attempt, and the hold stands.
fn no_room_to_break() -> Result<Completion, Failed> {
    let script = format!(
        "mount -t tmpfs -o size=4k,mode=755 none locks
        {BREAKS}=yes \"$1\" locks
        ls -A locks/lockkit"
    );
    match Place::new().ask_behind(&script, "a") {
        Err(reason) => Ok(Completion::ignored_with(reason)),
        Ok(lines) => {
            // The last one asks for another token, for which there is no room either.
            assert_eq!(lines, ["Capacity", "Freed", "a", "Capacity"]);
            Ok(Completion::Completed)
        }
    }
}

fn read_only() -> Result<Completion, Failed> {
    let place = Place::new();
    let before = lines(place.ask("a").output().unwrap());
    let script = "mount --bind locks locks; mount -o remount,bind,ro locks";
    match place.ask_behind(script, "a b") {
        Err(reason) => Ok(Completion::ignored_with(reason)),
        Ok(found) => {
            assert_eq!(found, ["Denied", "Denied"]);
            let after = lines(place.ask("a").output().unwrap());
            assert!(token(&after[0]) > token(&before[0]));
            Ok(Completion::Completed)
        }
    }
}

/// It would wait for what it cannot have.
fn read_only_and_taken() -> Result<Completion, Failed> {
    let place = Place::new();
    lines(place.ask("a").output().unwrap());
    let script = "exec 9<locks/lockkit/a; flock 9
        mount --bind locks locks; mount -o remount,bind,ro locks";
    match place.ask_behind(script, "a") {
        Err(reason) => Ok(Completion::ignored_with(reason)),
        Ok(found) => {
            assert_eq!(found, ["Denied"]);
            Ok(Completion::Completed)
        }
    }
}

fn no_watches() -> Result<Completion, Failed> {
    if !cfg!(any(target_os = "linux", target_os = "android")) {
        return Ok(Completion::ignored_with("nothing is ever watched here"));
    }
    for what in ["instances", "watches"] {
        let script = format!(
            "export {WAITS}=yes
            echo 0 > /proc/sys/user/max_inotify_{what}"
        );
        match Place::new().ask_behind(&script, "a") {
            Err(reason) => return Ok(Completion::ignored_with(reason)),
            Ok(found) => {
                assert_eq!(found, ["unheard", "unheard", "had it"], "without {what}");
            }
        }
    }
    Ok(Completion::Completed)
}

/// Root may write everywhere, so somebody else asks.
const NOBODY: u32 = 65534;

/// Whose members are to share locks.
const GROUP: u32 = 4711;

fn no_right() -> Result<Completion, Failed> {
    let place = Place::new();
    fs::set_permissions(place.locks(), Permissions::from_mode(0o555)).unwrap();
    let mut command = place.ask("a");
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    assert_eq!(lines(command.output().unwrap()), ["Denied"]);
    fs::set_permissions(place.locks(), Permissions::from_mode(0o755)).unwrap();
    Ok(Completion::Completed)
}

fn group() -> Result<Completion, Failed> {
    let Some(place) = Place::of_a_group() else {
        return Ok(Completion::ignored_with("only root can be several users"));
    };
    let mut last = 0;
    // Whoever comes first makes the files.
    for (user, names) in [(0, "a"), (NOBODY, "a b"), (1, "b a"), (0, "a b")] {
        let mut command = place.ask(names);
        if user != 0 {
            command.uid(user).gid(GROUP);
        }
        for line in lines(command.output().unwrap()) {
            let token = token(&line);
            assert!(token > last, "{token} after {last}");
            last = token;
        }
    }
    let mut command = place.ask("a");
    command.uid(NOBODY).gid(NOBODY);
    let line = lines(command.output().unwrap()).concat();
    assert!(line.contains("Denied"), "{line}");
    Ok(Completion::Completed)
}

/// Who breaks one cannot give the new file to the user whose the old one was.
fn group_breaks() -> Result<Completion, Failed> {
    let Some(place) = Place::of_a_group() else {
        return Ok(Completion::ignored_with("only root can be several users"));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let held = claim("a");
    let driver = runtime.block_on(FileDriver::open(&place.locks())).unwrap();
    let before = match runtime.block_on(driver.try_acquire(&held)).unwrap() {
        Attempt::Granted(grant) => grant.fencing_token().unwrap().get(),
        other => panic!("not granted: {other:?}"),
    };
    let mut command = place.ask("a");
    command.uid(NOBODY).gid(GROUP).env(BREAKS, "yes");
    assert_eq!(lines(command.output().unwrap()), ["broken"]);
    assert_eq!(runtime.block_on(driver.release(&held)).unwrap(), Release::NotHeld);
    let file = fs::metadata(place.locks().join("lockkit/a")).unwrap();
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o777), (NOBODY, GROUP, 0o660));
    // Another one of them has the lock next.
    let mut command = place.ask("a");
    command.uid(1).gid(GROUP);
    let after = token(&lines(command.output().unwrap())[0]);
    assert!(after > before, "{after} after {before}");
    Ok(Completion::Completed)
}
