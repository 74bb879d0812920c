//! Shows that the engine's tests can fail: plants one defect at a time in a copy of the engine and
//! sees the named test go red.
//!
//! `cargo run -p lockkit-testkit --bin engine-defects` compares what it saw with
//! `lockkit-core/DEFECTS.md`; with `LOCKKIT_BLESS=1` it writes that file.
#![expect(clippy::print_stdout, reason = "a tool that reports what it does")]

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

/// A fault that lock clients have had, as a change of the engine's text.
struct Defect {
    what: &'static str,
    file: &'static str,
    sound: &'static str,
    broken: &'static str,
    /// The test that is to notice.
    test: &'static str,
}

const DEFECTS: &[Defect] = &[
    Defect {
        what: "the deadline counts from the answer, not from the request",
        file: "pursuit.rs",
        sound: "let vouched = Vouched::new(grant.vouched(), asked, self.claim.ttl());",
        broken: "let vouched = Vouched::new(grant.vouched(), now, self.claim.ttl());",
        test: "a_late_grant_is_born_with_what_is_left_of_it",
    },
    Defect {
        what: "a pushed grant counts from the push",
        file: "pursuit.rs",
        sound: "Vouched::new(grant.vouched(), refused, self.claim.ttl())",
        broken: "Vouched::new(grant.vouched(), refused.max(self.engine.clock.now()), self.claim.ttl())",
        test: "a_pushed_grant_counts_from_the_last_ask",
    },
    Defect {
        what: "a renewal counts from its answer, not from the request",
        file: "keeper.rs",
        sound: "Vouched::new(vouch, asked, wished)",
        broken: "Vouched::new(vouch, asked.max(engine.clock.stamp()), wished)",
        test: "a_renewal_counts_from_its_request",
    },
    Defect {
        what: "an extension counts from its answer, not from the request",
        file: "keeper.rs",
        sound: "Vouched::new(vouch, asked, ttl)",
        broken: "Vouched::new(vouch, asked.max(engine.clock.stamp()), ttl)",
        test: "an_extension_counts_from_its_request",
    },
    Defect {
        what: "a grant is handed out that was answered after its lease",
        file: "pursuit.rs",
        sound: "if vouched.is_good_at(now) {",
        broken: "if true {",
        test: "a_grant_that_is_answered_after_its_lease_is_not_handed_out",
    },
    Defect {
        what: "clocks are believed not to drift",
        file: "tenure.rs",
        sound: "let margin = ttl / 100 + Duration::from_millis(2);",
        broken: "let margin = Duration::from_millis(2);",
        test: "a_loss_fires_before_the_lease_ends_beside_a_renewal_that_hangs",
    },
    Defect {
        what: "leases are not renewed in time",
        file: "keeper.rs",
        sound: "vouched.since + jitter(vouched.ttl / 3)",
        broken: "vouched.since + jitter(vouched.ttl * 2)",
        test: "a_lock_is_taken_kept_and_let_go",
    },
    Defect {
        what: "one failed renewal is a loss",
        file: "keeper.rs",
        sound: "retry = Some(engine.clock.stamp() + jitter(vouched.ttl / 12));",
        broken: "retry = None; tenure.lose();",
        test: "a_renewal_is_tried_again_until_the_deadline",
    },
    Defect {
        what: "renewal stops after one failure",
        file: "keeper.rs",
        sound: "retry = Some(engine.clock.stamp() + jitter(vouched.ttl / 12));",
        broken: "retry = Some(engine.clock.stamp() + vouched.ttl * 9);",
        test: "a_renewal_is_tried_again_until_the_deadline",
    },
    Defect {
        what: "a late renewal revives a lost hold",
        file: "tenure.rs",
        sound: "if standing.phase != Phase::Held {\n            return;\n        }",
        broken: "standing.phase = Phase::Held;",
        test: "what_was_lost_never_counts_as_held_again",
    },
    Defect {
        what: "the guard believes a flag instead of the clock",
        file: "tenure.rs",
        sound: "let expired = !standing.vouched.is_good_at(now);",
        broken: "let expired = false;",
        test: "a_suspended_machine_has_lost_its_holds",
    },
    Defect {
        what: "timers sleep through a suspension of the machine",
        file: "clock.rs",
        sound: "() = roused => (),",
        broken: "() = std::future::pending() => (),",
        test: "a_suspended_machine_wakes_its_sleepers",
    },
    Defect {
        what: "those who wait sleep through a suspension of the machine",
        file: "pursuit.rs",
        sound: "() = roused => (),",
        broken: "",
        test: "a_suspended_machine_wakes_who_waits",
    },
    Defect {
        what: "the longest hold is ignored",
        file: "tenure.rs",
        sound: "let latest = max_hold.map(|longest| engine.clock.now() + longest);",
        broken: "let latest = max_hold.filter(|_| false).map(|longest| engine.clock.now() + longest);",
        test: "a_lease_can_be_extended_and_bounded",
    },
    Defect {
        what: "an acquisition dropped at the instant of its grant keeps the lock",
        file: "keeper.rs",
        sound: "let guard = LockGuard::new(Arc::clone(&tenure));",
        broken: "let guard = LockGuard::new(Arc::clone(&tenure)); std::mem::forget(Arc::clone(guard.seat()));",
        test: "a_front_waiter_that_is_not_polled_holds_up_nobody",
    },
    Defect {
        what: "a dropped acquisition is abandoned with its request on the way",
        file: "driven.rs",
        sound: "self.report.close();\n        self.hand_over();",
        broken: "self.report.close();\n        drop(self.work.take());",
        test: "futures_dropped_after_any_poll_leave_nothing",
    },
    Defect {
        what: "a request is dropped when nobody waits for its answer",
        file: "pursuit.rs",
        sound: "self.note(asked, &request.await);",
        broken: "",
        test: "a_wait_that_times_out_in_the_middle_of_an_ask_leaves_nothing",
    },
    Defect {
        what: "a try that timed out is believed to have failed",
        file: "pursuit.rs",
        sound: "self.progress.traces = true;\n                self.progress.in_doubt = Some(asked);",
        broken: "",
        test: "a_try_whose_answer_was_lost_blocks_nobody",
    },
    Defect {
        what: "one release is sent, although a request may land after it",
        file: "keeper.rs",
        sound: "if over {",
        broken: "if true {",
        test: "a_request_that_lands_after_its_claim_was_given_up_is_cleaned_up",
    },
    Defect {
        what: "a request in doubt is forgotten once a later one was granted",
        file: "keeper.rs",
        sound: "Tenure::new(engine, claim, &grant, vouched, in_doubt, lease.longest_hold())",
        broken: "Tenure::new(engine, claim, &grant, vouched, in_doubt.filter(|_| false), lease.longest_hold())",
        test: "a_request_that_lands_after_its_hold_has_ended_is_cleaned_up",
    },
    Defect {
        what: "a release forgets that a request may land after it",
        file: "keeper.rs",
        sound: "tenure.longest(), *in_doubt, |answer|",
        broken: "tenure.longest(), in_doubt.filter(|_| false), |answer|",
        test: "a_request_that_lands_after_its_hold_has_ended_is_cleaned_up",
    },
    Defect {
        what: "a release counts from its answer, not from the request",
        file: "keeper.rs",
        sound: "in_doubt.is_none_or(|sent| asked >= sent + claim.ttl())",
        broken: "in_doubt.is_none_or(|sent| asked.max(engine.clock.stamp()) >= sent + claim.ttl())",
        test: "a_request_that_lands_beside_a_slow_release_is_cleaned_up",
    },
    Defect {
        what: "a nurse that leaves loses what came after its last look",
        file: "nursery.rs",
        sound: "self.on_duty = due.is_some();",
        broken: "",
        test: "a_nurse_that_leaves_takes_nobody_along",
    },
    Defect {
        what: "a request that its caller does not come back to is left alone",
        file: "nursery.rs",
        sound: "if begun.adopt(&self.engine) {",
        broken: "if begun.goes_on() {",
        test: "an_acquisition_that_is_left_alone_holds_up_nobody",
    },
    Defect {
        what: "a hold counts from before a suspension that is over",
        file: "keeper.rs",
        sound: "Progress::new(engine.clock.now(), wait, lease.renewal())",
        broken: "Progress::new(engine.clock.stamp(), wait, lease.renewal())",
        test: "what_is_acquired_just_after_a_suspension_is_held",
    },
    Defect {
        what: "silence starts over with each waiter whose turn comes",
        file: "pursuit.rs",
        sound: "self.progress.unanswered = since.map(|since| since.max(started));",
        broken: "_ = (since, started);",
        test: "silence_counts_from_where_the_waiter_before_heard_nothing",
    },
    Defect {
        what: "a wait's time-out is not kept",
        file: "pursuit.rs",
        sound: "Some(self.started + patience)",
        broken: "Some(self.started + patience * 3)",
        test: "a_wait_times_out_in_all_and_says_what_went_wrong",
    },
    Defect {
        what: "a backend that is silent is waited for too long",
        file: "pursuit.rs",
        sound: "Some(silent_since + self.claim.ttl())",
        broken: "Some(silent_since + self.claim.ttl() * 100)",
        test: "a_backend_that_never_answers_is_unreachable_within_a_lease",
    },
    Defect {
        what: "every waiter asks for itself",
        file: "pursuit.rs",
        sound: "self.claim.waits() && !self.has_place()\n",
        broken: "false\n",
        test: "a_thousand_waiters_cost_the_backend_as_much_as_one",
    },
    Defect {
        what: "the next waiter believes what the front one had heard",
        file: "pursuit.rs",
        sound: "let mut ask_at_once = next.is_none();",
        broken: "let mut ask_at_once = false; next = next.or(Some(self.progress.started + self.claim.ttl()));",
        test: "a_front_waiter_that_goes_away_passes_its_turn_on",
    },
    Defect {
        what: "those behind learn of a dead backend one after the other",
        file: "pursuit.rs",
        sound: "map_or(now, |since| since.max(started))",
        broken: "map_or(now, |since| since.max(started).max(now))",
        test: "those_behind_learn_of_a_dead_backend_with_the_front",
    },
    Defect {
        what: "a keeper that is gone leaves its hold standing",
        file: "tenure.rs",
        sound: "fn drop(&mut self) {\n        self.0.lose();",
        broken: "fn drop(&mut self) {",
        test: "a_hold_ends_with_the_runtime_of_its_keeper",
    },
    Defect {
        what: "a hold that has no keeper yet outlives the runtime",
        file: "nursery.rs",
        sound: "holds.iter().for_each(|(tenure, _)| tenure.lose());",
        broken: "drop(holds);",
        test: "a_hold_ends_with_the_runtime_of_its_keeper",
    },
    Defect {
        what: "young holds are forgotten",
        file: "nursery.rs",
        sound: "adopt(&self.engine, tenure, *renew)",
        broken: "drop((tenure, renew))",
        test: "a_lock_is_taken_kept_and_let_go",
    },
    Defect {
        what: "a young hold whose guard is dropped is not released",
        file: "tenure.rs",
        sound: "if !kept {",
        broken: "if false {",
        test: "a_guard_that_is_dropped_anywhere_frees_its_lock",
    },
    Defect {
        what: "an owner re-enters a hold that was lost",
        file: "owner.rs",
        sound: "match seat.is_held() {",
        broken: "match seat.is_held() || true {",
        test: "an_owner_reenters_and_others_wait",
    },
    Defect {
        what: "an owner takes a lock of one locker for that of another",
        file: "owner.rs",
        sound: "(Arc::as_ptr(lock.engine()) as usize, lock.name().clone())",
        broken: "(0, lock.name().clone())",
        test: "an_owner_holds_the_locks_of_each_locker_apart",
    },
    Defect {
        what: "a fair lock that gets a lease is not fair any more",
        file: "lock.rs",
        sound: "Ok(Lock { engine, name, lease, fair, promises: PhantomData })",
        broken: "Ok(Lock { engine, name, lease, fair: fair && false, promises: PhantomData })",
        test: "a_fair_lock_is_fair_whatever_else_it_is",
    },
    Defect {
        what: "shutting down forgets those who wait",
        file: "engine.rs",
        sound: "self.clock.rouse();",
        broken: "",
        test: "shutting_down_ends_holds_and_waits",
    },
    Defect {
        what: "work goes on after its hold was lost",
        file: "traits.rs",
        sound: "() = hold.lost() => None,",
        broken: "() = std::future::pending() => None,",
        test: "work_is_cancelled_when_the_hold_is_lost",
    },
    Defect {
        what: "a grant is believed that was over before the last refusal",
        file: "memory.rs",
        sound: "// A grant pushed before this refusal is over.\n                self.mailboxes.open(owner).take();",
        broken: "self.mailboxes.open(owner);",
        test: "a_grant_that_was_over_before_the_last_refusal_is_not_believed",
    },
    Defect {
        what: "shutting down overlooks requests that callers drive",
        file: "nursery.rs",
        sound: "young.begun.retain(|begun| begun.goes_on());",
        broken: "young.begun.clear();",
        test: "shutting_down_waits_for_requests_that_callers_drive",
    },
    Defect {
        what: "shutting down overlooks a request that is about to leave",
        file: "driven.rs",
        sound: "let _under_way = self.engine.under_way();",
        broken: "",
        test: "shutting_down_waits_for_requests_that_are_about_to_leave",
    },
    Defect {
        what: "a task that drives its work is woken by its own report",
        file: "driven.rs",
        sound: "match this.report.try_recv() {",
        broken: "match match Pin::new(&mut this.report).poll(cx) {\n                    Poll::Ready(report) => report.map_err(|_| TryRecvError::Closed),\n                    Poll::Pending => Err(TryRecvError::Empty),\n                } {",
        test: "an_answer_wakes_its_task_once",
    },
    Defect {
        what: "clean-up forgets that the lease was extended",
        file: "tenure.rs",
        sound: "standing.longest = standing.longest.max(ttl);",
        broken: "_ = (&mut standing, ttl);",
        test: "an_extended_lease_is_cleared_up_for_as_long",
    },
    Defect {
        what: "a crowd asks before its turn",
        file: "pursuit.rs",
        sound: "if !self.progress.ticket.insert(ticket).has_turn() {",
        broken: "self.progress.ticket = Some(ticket);\nif false {",
        test: "of_a_crowd_that_comes_at_once_one_asks",
    },
    Defect {
        what: "a lease that nobody renews has begun before it was handed over",
        file: "pursuit.rs",
        sound: "if self.progress.renew == Renew::Auto",
        broken: "if (self.progress.renew != Renew::Never || true)",
        test: "a_lease_that_nobody_renews_is_a_whole_one_also_after_a_wait",
    },
    Defect {
        what: "news cut the back-off short",
        file: "pursuit.rs",
        sound: "changed(self.claim), if !self.progress.backs_off =>",
        broken: "changed(self.claim) =>",
        test: "news_do_not_cut_the_back_off_short",
    },
    Defect {
        what: "a locker goes on without its runtime",
        file: "engine.rs",
        sound: "self.is_alive.try_read().ok().filter(|is_alive| **is_alive)",
        broken: "self.is_alive.try_read().ok()",
        test: "a_locker_without_its_runtime_is_shut_down",
    },
    Defect {
        what: "a runtime ends while a request of it is being driven elsewhere",
        file: "engine.rs",
        sound: "_alive: alive }",
        broken: "_alive: { static EVER: RwLock<bool> = RwLock::new(true); drop(alive); EVER.try_read().ok()? } }",
        test: "a_runtime_does_not_end_under_a_request_that_is_being_driven",
    },
    Defect {
        what: "a failed renewal is deaf to news until it is tried again",
        file: "keeper.rs",
        sound: "if renewal.is_none() && !heard =>",
        broken: "if renewal.is_none() && retry.is_none() =>",
        test: "a_hold_taken_away_is_reported_also_after_a_renewal_that_failed",
    },
    Defect {
        what: "a look that its caller does not come back to is left alone",
        file: "engine.rs",
        sound: "let requested = Driven::new(self, |mut caller| async move {",
        broken: "let requested = self.inside(request);\n        #[cfg(any())]\n        \
                 let requested = Driven::new(self, |mut caller| async move {",
        test: "looks_that_are_left_alone_hold_up_nobody",
    },
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("engine-defects: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let copy = copy_core(&root)?;
    let mut table = String::from(
        "# Defects of the engine, and the tests that notice them\n\n\
         Each is planted in a copy of the engine by `engine-defects` of the test kit, which writes this\n\
         page. The sound engine passes all tests.\n\n| defect | noticed by |\n| --- | --- |\n",
    );
    let failing = failing(&copy)?;
    if !failing.is_empty() {
        return Err(format!("the sound engine fails: {}", failing.join(", ")).into());
    }
    for defect in DEFECTS {
        let path = copy.join("lockkit-core/src").join(defect.file);
        let sound = fs::read_to_string(&path)?;
        if sound.matches(defect.sound).count() != 1 {
            return Err(format!("{:?} does not stand once in {}", defect.sound, defect.file).into());
        }
        fs::write(&path, sound.replace(defect.sound, defect.broken))?;
        let passes = passes(&copy, defect.test);
        fs::write(&path, sound)?;
        if passes? {
            return Err(format!("not noticed by {}: {}", defect.test, defect.what).into());
        }
        println!("{}: {}", defect.what, defect.test);
        writeln!(table, "| {} | `{}` |", defect.what, defect.test)?;
    }
    let page = root.join("lockkit-core/DEFECTS.md");
    if env::var_os("LOCKKIT_BLESS").is_some() {
        fs::write(page, table)?;
    } else if fs::read_to_string(page)? != table {
        return Err("lockkit-core/DEFECTS.md is not up to date: LOCKKIT_BLESS=1 writes it".into());
    }
    Ok(())
}

/// A workspace with the core only, built in a folder of its own.
fn copy_core(root: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let copy = target.join("engine-defects");
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let only_core = |manifest: &str, list: &str| {
        let (before, rest) = manifest.split_once(list)?;
        let (_, after) = rest.split_once(']')?;
        Some([before, list, "\"lockkit-core\"]", after].concat())
    };
    let manifest = only_core(&manifest, "\nmembers = [").ok_or("no members")?;
    let manifest = only_core(&manifest, "\ndefault-members = [").ok_or("no default members")?;
    // Without what an earlier run has copied, and is not there any more.
    if copy.join("lockkit-core").exists() {
        fs::remove_dir_all(copy.join("lockkit-core"))?;
    }
    copy_folder(&root.join("lockkit-core"), &copy.join("lockkit-core"))?;
    fs::write(copy.join("Cargo.toml"), manifest)?;
    fs::copy(root.join("Cargo.lock"), copy.join("Cargo.lock"))?;
    Ok(copy)
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// Which tests of the engine do not pass.
fn failing(copy: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let (text, success) = test(copy, &["--lib", "--tests"], "", "120")?;
    let named = |line: &str| {
        let path = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned();
        path.rsplit("::").next().map(String::from)
    };
    let mut failing: Vec<_> = text.lines().filter_map(named).collect();
    if !success && failing.is_empty() {
        failing.push("one that does not end".into());
    }
    Ok(failing)
}

/// Whether one test of the engine passes.
fn passes(copy: &Path, name: &str) -> Result<bool, Box<dyn Error>> {
    let definition = format!("fn {name}()");
    let mut of_file = vec!["--lib".into()];
    for entry in fs::read_dir(copy.join("lockkit-core/tests"))? {
        let path = entry?.path();
        if has(&path, &definition)? {
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            of_file = vec!["--test".into(), stem.ok_or("a file without a name")?.to_owned()];
        }
    }
    let of_file = of_file.iter().map(String::as_str).collect::<Vec<_>>();
    let (text, _) = test(copy, &of_file, name, "20")?;
    if text.contains("running 0 tests") {
        return Err(format!("there is no test {name}").into());
    }
    let passed = format!("{name} ... ok");
    Ok(text.lines().any(|line| line.ends_with(&passed)))
}

/// Whether a file, or one of those in a folder, has the text in it.
fn has(path: &Path, text: &str) -> Result<bool, Box<dyn Error>> {
    if !path.is_dir() {
        return Ok(fs::read_to_string(path)?.contains(text));
    }
    for entry in fs::read_dir(path)? {
        if has(&entry?.path(), text)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Builds and runs tests of the engine; what they print, and whether all passed. A broken engine may
/// wait for ever, so a run is cut off after so many seconds.
fn test(
    copy: &Path,
    targets: &[&str],
    name: &str,
    limit: &str,
) -> Result<(String, bool), Box<dyn Error>> {
    let cargo = |limit: &str| {
        let mut command = Command::new("timeout");
        command
            .args([limit, env!("CARGO"), "test", "--offline", "--no-fail-fast"])
            .args(["-p", "lockkit-core"])
            .args(targets)
            .env("CARGO_TARGET_DIR", copy.join("target"))
            .env_remove("CARGO_MANIFEST_DIR")
            .current_dir(copy);
        command
    };
    let built = cargo("600").arg("--no-run").output()?;
    if !built.status.success() {
        return Err(String::from_utf8_lossy(&built.stderr).into_owned().into());
    }
    let output = cargo(limit).args(["--", name]).output()?;
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success()))
}
