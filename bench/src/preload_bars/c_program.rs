//! C programs in two builds: with `megapipe_bsd.h`, and for Linux, to be preloaded.

use super::{stage::PreloadBarError, unfit};
use crate::{
    limits,
    preload_library::PreloadLibrary,
    process::{ChildProcess, find_program},
};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The programs, below a prefix.
const EXAMPLES: &str = "share/doc/megapipe/examples";

/// Where `cargo xtask install` has put the C library.
pub(super) struct CPrefix(PathBuf);

/// The compiled programs.
pub(super) struct CPrograms {
    /// With `megapipe_bsd.h`.
    pub(super) ours: PathBuf,
    pub(super) linux: PathBuf,
}

impl CPrefix {
    /// That of the preloaded library, or why there is none.
    pub(super) fn of(library: &PreloadLibrary) -> Result<Self, String> {
        let prefix = library.0.ancestors().nth(3).unwrap_or_else(|| Path::new("")).to_owned();
        let header = prefix.join("include/megapipe_bsd.h");
        if !header.is_file() {
            return Err(format!("{} is missing: `cargo xtask install`", header.display()));
        }
        match find_program("cc") {
            None => Err("cc is not installed (cargo xtask setup)".to_owned()),
            Some(_) => Ok(Self(prefix)),
        }
    }

    /// The source of an example, or why there is none.
    pub(super) fn example(&self, name: &str) -> Result<PathBuf, String> {
        let source = self.0.join(EXAMPLES).join(name).with_extension("c");
        match (source.is_file(), find_program("wrk")) {
            (false, _) => Err(format!("{} is missing: `cargo xtask install`", source.display())),
            (true, None) => Err("wrk is not installed (cargo xtask setup)".to_owned()),
            (true, Some(_)) => Ok(source),
        }
    }

    pub(super) fn compile(
        &self,
        source: &Path,
        scratch: &Path,
    ) -> Result<CPrograms, PreloadBarError> {
        let (include, lib) = (self.0.join("include"), self.0.join("lib"));
        let name = source.file_stem().unwrap_or_default().to_string_lossy();
        let of = |build: &str| scratch.join(format!("{name}-{build}"));
        let programs = CPrograms { ours: of("ours"), linux: of("linux") };
        let compiler = || {
            let mut command = Command::new("cc");
            command.args(["-O2", "-pthread", "-D_GNU_SOURCE"]).arg(source);
            command
        };
        let mut ours = compiler();
        ours.args(["-include", "megapipe_bsd.h", "-I"]).arg(include).arg("-L").arg(&lib);
        ours.arg(format!("-Wl,-rpath,{}", lib.display())).arg("-o").arg(&programs.ours);
        run_compiler(ours.arg("-lmegapipe"))?;
        run_compiler(compiler().arg("-o").arg(&programs.linux))?;
        Ok(programs)
    }
}

/// Tells a compiled program what `megapipe run` takes as options.
pub(super) fn set_link(command: &mut Command, options: &[String]) {
    for (option, variable) in [("--link", "MEGAPIPE_LINK"), ("--address", "MEGAPIPE_ADDRESS")] {
        let place = options.iter().position(|it| it == option);
        if let Some(value) = place.and_then(|place| options.get(place + 1)) {
            command.env(variable, value);
        }
    }
}

fn run_compiler(command: &mut Command) -> Result<(), PreloadBarError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = ChildProcess::start(command)?.output_within(limits::C_HALF_MAX)?;
    let output = output.ok_or_else(|| unfit("cc did not end"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(unfit(format!("cc failed: {}", said.lines().next().unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_without_the_header_is_named() {
        let library = PreloadLibrary(PathBuf::from("/x/lib/megapipe/libmegapipe-preload.so"));
        let why = CPrefix::of(&library).err().unwrap_or_default();
        assert!(why.starts_with("/x/include/megapipe_bsd.h is missing"), "{why}");
        let why = CPrefix(PathBuf::from("/x")).example("a").unwrap_err();
        assert!(why.starts_with("/x/share/doc/megapipe/examples/a.c is missing"), "{why}");
    }

    #[test]
    fn compiled_program_has_the_link_of_the_options() {
        let mut command = Command::new("x");
        let options = ["--link", "memif:/a", "--address", "192.0.2.1/24"].map(str::to_owned);
        set_link(&mut command, &options);
        let set: Vec<_> = command.get_envs().filter_map(|(_, value)| value).collect();
        assert_eq!(set, ["192.0.2.1/24", "memif:/a"]);
    }
}
