//! What a proxy passes requests on to: a web server at the load's end of the link. Over a memif,
//! which has one peer, a daemon there lets it share that end with the load.

use super::{
    last_lines,
    programs::FILES,
    stage::{PreloadBarError, ProgramStack, ProgramStage, ServingProgram},
};
use crate::{
    layout::BenchLayout,
    limits,
    process::ChildProcess,
    server::{control_socket, daemon_program, daemon_words_at, session_args},
    stack_link::{LinkSide, StackLink},
};
use std::{
    fs::{self, File},
    io,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::Instant,
};

/// Starts what a proxy on a stack passes requests on to, and waits until it listens. Blocks.
pub(super) fn start(
    stage: ProgramStage<'_>,
    stack: ProgramStack,
    serving: &mut ServingProgram,
) -> Result<(), PreloadBarError> {
    let (ProgramStage { layout, scratch, .. }, address) = (stage, serving.origin);
    FILES.prepare(scratch)?;
    let log = scratch.join("origin.log");
    let file = File::create(&log)?;
    let place = &layout.load;
    let mut words = words(address, layout, scratch);
    let (daemon, load_args, mut command) = match stack.link() {
        None => (None, Vec::new(), place.command(&place.program, words)),
        Some(link) => {
            let folder = folder(scratch)?;
            let args = daemon_words(link, layout, scratch, &folder)?;
            let mut command = place.command(&daemon_program(layout), args);
            command.stdout(Stdio::from(file.try_clone()?));
            command.stderr(Stdio::from(file.try_clone()?));
            let daemon = ChildProcess::start(&mut command)?;
            let session = session_args(&folder);
            words.extend(session.iter().cloned());
            let socket = control_socket(&folder);
            let command = place.command_after(&socket, &place.program, words);
            (Some(daemon), session, command)
        }
    };
    command.stdout(Stdio::from(file.try_clone()?)).stderr(Stdio::from(file));
    let server = ChildProcess::start(&mut command)?;
    // They end in this order.
    let mut processes: Vec<ChildProcess> = [server].into_iter().chain(daemon).collect();
    wait_until_ready(stage, address, &mut processes, &log)?;
    serving.set_origin(processes, load_args);
    Ok(())
}

fn wait_until_ready(
    stage: ProgramStage<'_>,
    address: SocketAddr,
    processes: &mut [ChildProcess],
    log: &Path,
) -> Result<(), PreloadBarError> {
    let deadline = Instant::now() + limits::SCENE_PATIENCE;
    loop {
        let is_ready = match processes.len() {
            1 => stage.layout.on_load_side(|| TcpStream::connect(address).is_ok())?,
            _ => has_listener(stage, address)?,
        };
        if is_ready {
            return Ok(());
        }
        let (program, printed) = ("the server behind the proxy".to_owned(), last_lines(log));
        if processes.iter_mut().any(|it| !matches!(it.ended(), Ok(None))) {
            return Err(PreloadBarError::Ended { program, printed });
        }
        if Instant::now() > deadline {
            return Err(PreloadBarError::Late { program, printed });
        }
        thread::sleep(limits::PRELOAD_RETRY);
    }
}

/// Whether the daemon of the load's end has a listener with this port.
fn has_listener(stage: ProgramStage<'_>, address: SocketAddr) -> io::Result<bool> {
    let place = &stage.layout.load;
    let socket = control_socket(&folder(stage.scratch)?).to_string_lossy().into_owned();
    let mut command = place.command(&place.program, ["ss", "-tln", "--service", &socket]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let output = ChildProcess::start(&mut command)?.output_within(limits::SCENE_PATIENCE)?;
    let text = output.map(|it| String::from_utf8_lossy(&it.stdout).into_owned());
    Ok(text.is_some_and(|text| text.contains(&format!(":{}", address.port()))))
}

/// Where the daemon of the load's end has its control socket. That of the server's end has
/// another one.
fn folder(scratch: &Path) -> io::Result<PathBuf> {
    let folder = scratch.join("origin");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn words(address: SocketAddr, layout: &BenchLayout, scratch: &Path) -> Vec<String> {
    let root = FILES.directory(scratch).to_string_lossy().into_owned();
    let (address, cpus) = (address.to_string(), layout.load.cpus.to_string());
    let words = ["serve", "http", "--root", &root, "--listen", &address];
    let more = ["--channels", "1", "--cpus", &cpus];
    words.into_iter().chain(more).map(str::to_owned).collect()
}

fn daemon_words(
    link: StackLink,
    layout: &BenchLayout,
    scratch: &Path,
    folder: &Path,
) -> io::Result<Vec<String>> {
    let args = link.daemon_args(LinkSide::Load, layout, scratch);
    daemon_words_at(args, &layout.load.cpus, folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::LinkChoice;

    #[test]
    fn daemon_has_the_loads_end_and_a_socket_of_its_own() {
        let layout = BenchLayout::new(LinkChoice::Loopback, Path::new("megapipe"), &[0, 1], 1);
        let layout = layout.unwrap();
        let (scratch, folder) = (Path::new("/scratch"), Path::new("/scratch/origin"));
        let args = daemon_words(StackLink::Memif, &layout, scratch, folder).unwrap().join(" ");
        assert!(args.contains("memif.sock,role=client") && !args.contains("--backend"), "{args}");
        assert!(args.contains("--service /scratch/origin/"), "{args}");
        let words = words("192.0.2.2:7100".parse().unwrap(), &layout, scratch).join(" ");
        assert!(words.starts_with("serve http --root /scratch/"), "{words}");
    }
}
