//! The policy file: `--check`, and what users get by it while the daemon runs.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use rustix::process::geteuid;

use super::*;

/// A user that no machine has.
const USER: u32 = 54_321;

fn check(path: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapiped"));
    let output = command.args(["--check", "--policy", path]).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Writes a policy file that only its owner may write, whatever the umask.
fn write_policy(path: &str, text: &str) {
    std::fs::write(path, text).expect("there is room");
    set_mode(path, 0o644);
}

fn set_mode(path: &str, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
}

#[test]
fn policy_file_that_others_may_write_is_refused() {
    let folder = Folder::new("writable");
    let path = folder.file("policy.toml");
    write_policy(&path, "[default]\n");
    for mode in [0o664, 0o646, 0o620] {
        set_mode(&path, mode);
        let (code, table, errors) = check(&path);
        assert_eq!((code, &*table), (Some(2), ""));
        let named = format!("{path} has owner {} and mode {mode:04o}", geteuid().as_raw());
        assert!(errors.contains(&named), "{errors}");
    }
    for mode in [0o644, 0o600, 0o444] {
        set_mode(&path, mode);
        assert_eq!(check(&path).0, Some(0), "{mode:o}");
    }
    if geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(USER), None).expect("root may");
        let (code, _, errors) = check(&path);
        assert_eq!(code, Some(2));
        assert!(errors.contains(&format!("has owner {USER}")), "{errors}");
    }
}

#[test]
fn check_prints_the_policy_or_the_line_of_a_mistake() {
    let folder = Folder::new("check");
    let path = folder.file("policy.toml");
    write_policy(&path, "[rules.web]\nusers = ['root', 33]\nports = [80]\nweight = 3\n");
    let (code, table, errors) = check(&path);
    assert_eq!((code, &*errors), (Some(0), ""));
    let lines: Vec<_> = table.lines().collect();
    let column = lines[0].find("ports").expect("a column");
    assert!(lines[1][column..].starts_with("1024-65535"), "{table}");
    assert!(lines[2].starts_with("web") && lines[2][column..].starts_with("80 "), "{table}");
    assert!(lines[2].contains("root,") && lines[2].ends_with('3'), "{table}");
    write_policy(&path, "[default]\n\nweigth = 3\n");
    let (code, table, errors) = check(&path);
    assert_eq!((code, &*table), (Some(2), ""));
    assert!(errors.contains(&format!("{path}:3: unknown key \"default.weigth\"")), "{errors}");
    let (code, _, errors) = check(&folder.file("missing"));
    assert_eq!(code, Some(2));
    assert!(errors.contains("cannot read the policy file"), "{errors}");
    // A FIFO has no writer that would end the wait.
    let fifo = folder.file("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .expect("there is room");
    let (code, _, errors) = check(&fifo);
    assert_eq!(code, Some(2));
    assert!(errors.contains(&format!("{fifo} is no regular file")), "{errors}");
}

#[test]
fn policy_file_with_a_mistake_starts_no_daemon() {
    let folder = Folder::new("mistake");
    let path = folder.file("policy.toml");
    write_policy(&path, "[default]\nports = 80\n");
    let output = megapiped(&folder, 0).args(["--policy", &path]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(text_of(&output).contains(&format!("{path}:2: default.ports")));
    assert!(!Path::new(&folder.file("service0")).exists());
}

/// A server of the user without privileges.
fn server_of_user(folder: &Folder, port: u16) -> Command {
    let line = format!("serve rpc --listen {}:{port}", ADDRESSES[0]);
    let original = attached(folder, 0, &line);
    // The user may not get to where the program was built.
    let program = folder.file("megapipe");
    if !Path::new(&program).exists() {
        let built = original.get_program().to_owned();
        let linked = std::fs::hard_link(&built, &program);
        linked.or_else(|_| std::fs::copy(&built, &program).map(drop)).expect("there is room");
    }
    let mut command = Command::new(program);
    command.args(original.get_args()).uid(USER).gid(USER).current_dir("/").stdin(Stdio::null());
    command
}

#[track_caller]
fn assert_refused(folder: &Folder, port: u16, why: &str) {
    let output = server_of_user(folder, port).output().expect("it runs");
    let text = text_of(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(why), "{text}");
}

#[track_caller]
fn assert_served_at(folder: &Folder, port: u16) {
    let target = ADDRESSES[0];
    let line = format!("load rpc {target}:{port} --connections 4 --warmup 0 --duration 0.5");
    let load = attached(folder, 1, &line).output().expect("it runs");
    let text = text_of(&load);
    assert!(load.status.success() && text.contains("transactions"), "{text}");
}

/// Two users need root.
#[test]
fn reloaded_policy_applies_to_new_listeners_alone() {
    if !geteuid().is_root() {
        println!("skipped: root can become another user, and this user cannot");
        return;
    }
    let folder = Folder::new("reload");
    let path = folder.file("policy.toml");
    let gives = |port: u16| {
        let quotas = "channel = { listeners = 1 }";
        let text = format!("[rules.own]\nusers = [{USER}]\nports = [{port}]\n{quotas}\n");
        write_policy(&path, &text);
    };
    gives(81);
    let mut first = megapiped(&folder, 0);
    first.args(["--policy", &path]);
    let [mut daemon, other] = [Running::start(first), Running::start(megapiped(&folder, 1))]
        .map(|daemon| daemon.until_ready("ready at"));
    let mut lines = BufReader::new(daemon.child.stderr.take().expect("a pipe"));
    // Until a line of the log has a text.
    let mut log = |part: &str| {
        let mut line = String::new();
        while !line.contains(part) {
            line.clear();
            assert!(lines.read_line(&mut line).expect("text") > 0, "{part}: the daemon has ended");
        }
    };
    assert_refused(&folder, 80, "no rule gives port 80; rule `own` gives 81");
    let server = Running::start(server_of_user(&folder, 81)).until_ready("listening on");
    assert_served_at(&folder, 81);
    write_policy(&path, "[rules.own]\nusers = ['no-such-user']\n");
    daemon.signal(Signal::HUP);
    log("policy.toml:2: unknown user \"no-such-user\"");
    assert_served_at(&folder, 81);
    // The listener stays, and nothing new is there.
    gives(80);
    daemon.signal(Signal::HUP);
    log("the policy is that of");
    assert_refused(&folder, 81, "no rule gives port 81");
    let second = Running::start(server_of_user(&folder, 80)).until_ready("listening on");
    assert_served_at(&folder, 81);
    assert_served_at(&folder, 80);
    drop((server, second, daemon, other));
}
