//! Every script of `tests/scripts` on both systems.
//!
//! A script with a remark `// SYSTEM: differs: why` is not expected to hold on that system. If it
//! holds there nevertheless, the test says so: the remark should go.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use megapipe_scripts::report::ScriptVerdict;
use megapipe_scripts::script::ScriptSetting;
use megapipe_scripts::{Invocation, On, prepare};

/// Number of concurrent scripts on Linux: they mostly sleep, and each has its own namespace.
const AT_ONCE: usize = 4;
/// Number of retries of a failed script, alone.
const ATTEMPTS: usize = 4;
/// Other tests run meanwhile, and timers of the kernel may be a tick of 4 ms late.
const LINUX_TOLERANCE_US: &str = "10000";

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/scripts");
    let entries = std::fs::read_dir(&folder).expect("the folder of scripts");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "pkt"));
    paths.sort();
    assert!(paths.len() > 30, "scripts are missing from {}", folder.display());
    paths
}

/// What is wrong with a script on a system; `Err` holds why it could not be run.
fn fault(path: &Path, on: On) -> Result<Option<String>, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let text = std::fs::read(path).expect("a script");
    let mut invocation = Invocation::default();
    if on == On::Linux {
        let value = LINUX_TOLERANCE_US.to_owned();
        invocation.settings.push(ScriptSetting {
            line: 0,
            name: "tolerance_usecs".to_owned(),
            value,
        });
    }
    let prepared = match prepare(&text, &invocation) {
        Ok(prepared) => prepared,
        Err(error) => return Ok(Some(format!("{name}:{error}"))),
    };
    match (prepared.run(on).verdict, prepared.difference(on)) {
        (ScriptVerdict::Skipped(why), _) => Err(why),
        (ScriptVerdict::Passed, Some(reason)) => {
            println!("remark no longer true: {name} on {}: {reason}", on.name());
            Ok(None)
        }
        (ScriptVerdict::Passed, None) | (_, Some(_)) => Ok(None),
        (ScriptVerdict::Failed(failure), None) => Ok(Some(format!("{name}:{failure}"))),
        (ScriptVerdict::Unsupported { line, what }, None) => {
            Ok(Some(format!("{name}:{line}: {what}")))
        }
    }
}

/// The fault of a script that fails each time. Real time is only as exact as the machine is idle:
/// the kernel's own threads have to wait for others too.
fn lasting_fault(path: &Path) -> Option<String> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        match fault(path, On::Linux) {
            Ok(None) => return None,
            Ok(Some(fault)) | Err(fault) => last = Some(fault),
        }
    }
    last
}

#[test]
fn scripts_hold_on_our_stack() {
    let faults: Vec<String> =
        scripts().iter().filter_map(|path| fault(path, On::Stack).expect("no skip")).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn scripts_hold_on_service() {
    let faults: Vec<String> =
        scripts().iter().filter_map(|path| fault(path, On::Service).expect("no skip")).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn scripts_hold_on_linux() {
    let scripts = scripts();
    // One first: if it cannot be run, none can.
    if let Err(why) = fault(&scripts[0], On::Linux) {
        println!("skipped: scripts_hold_on_linux: {why}");
        return;
    }
    let faulty = Mutex::new(Vec::new());
    let next = AtomicUsize::new(1);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                // A number of its own for each; it orders nothing else.
                while let Some(path) = scripts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if fault(path, On::Linux) != Ok(None) {
                        faulty.lock().expect("no panic").push(path);
                    }
                }
            });
        }
    });
    let faulty = faulty.into_inner().expect("no panic");
    let faults: Vec<String> = faulty.into_iter().filter_map(|path| lasting_fault(path)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
