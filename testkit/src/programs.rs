//! Finds or builds programs, and finds free addresses for them. [`Process`] runs a program.

mod process;

use std::{
    collections::BTreeMap,
    env,
    ffi::OsStr,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

pub use self::process::{Process, ServerProcess};

/// Directory with the programs; if set, they are not built.
pub const BIN_DIR_VARIABLE: &str = "COOKIESYNC_BIN_DIR";

/// Prefixes of the variables with which cargo describes the package of the running program.
const PACKAGE_VARIABLES: [&str; 4] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "OUT_DIR"];

/// Version of each program found, by name.
static FOUND: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Programs found so far by this process, each with its version, such as `0.1.0 (dist)`.
pub fn found_programs() -> Vec<(String, String)> {
    let found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    found.clone().into_iter().collect()
}

/// The version that a program prints; empty if none.
fn version(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output();
    let stdout = output.map(|output| output.stdout).unwrap_or_default();
    let stdout = String::from_utf8_lossy(&stdout);
    stdout
        .trim()
        .split_once(' ')
        .map_or_else(String::new, |(_name, version)| version.to_owned())
}

/// Finds programs of this workspace: in `$COOKIESYNC_BIN_DIR`, or, under cargo, by building them in the profile of this
/// program, or in the directory of this program. Blocks while cargo builds.
///
/// # Errors
/// If a program is missing or cannot be built.
pub fn find<const N: usize>(names: [&str; N]) -> Result<[PathBuf; N]> {
    find_with(names, "")
}

/// Like [`find`]; cargo builds with these features.
///
/// # Errors
/// As [`find`].
pub fn find_with<const N: usize>(names: [&str; N], features: &str) -> Result<[PathBuf; N]> {
    let programs = find_or_build(names, features)?;
    for (name, program) in names.into_iter().zip(&programs) {
        let version = version(program);
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        found.insert(name.to_owned(), version);
    }
    Ok(programs)
}

fn find_or_build<const N: usize>(names: [&str; N], features: &str) -> Result<[PathBuf; N]> {
    if let Some(dir) = env::var_os(BIN_DIR_VARIABLE) {
        return in_dir(names, Path::new(&dir))
            .with_context(|| format!("invalid ${BIN_DIR_VARIABLE}"));
    }
    if let (Some(cargo), Some(package)) = (env::var_os("CARGO"), env::var_os("CARGO_MANIFEST_DIR"))
    {
        return build(names, features, &cargo, Path::new(&package));
    }
    let own = env::current_exe().context("cannot determine the path of this program")?;
    let dir = own
        .parent()
        .context("this program has no parent directory")?;
    in_dir(names, dir).context("failed to find the other programs in the directory of this program")
}

fn in_dir<const N: usize>(names: [&str; N], dir: &Path) -> Result<[PathBuf; N]> {
    let programs = names.map(|name| dir.join(name));
    match programs.iter().find(|program| !program.is_file()) {
        None => Ok(programs),
        Some(program) => bail!("program not found: {}", program.display()),
    }
}

/// Builds from the workspace root without `-p`, so that cargo does not rebuild dependencies with other features.
fn build<const N: usize>(
    names: [&str; N],
    features: &str,
    cargo: &OsStr,
    package: &Path,
) -> Result<[PathBuf; N]> {
    let root = package
        .parent()
        .context("$CARGO_MANIFEST_DIR has no parent directory")?;
    let mut command = Command::new(cargo);
    command
        .current_dir(root)
        .args(["build", "--message-format=json-render-diagnostics"])
        .args(["--profile", &own_profile()])
        .args(["--features", features])
        .arg("--target-dir")
        .arg(target_dir())
        .stderr(Stdio::inherit());
    for name in names {
        command.args(["--bin", name]);
    }
    // With these variables, build scripts that read them would run again, and cargo would recompile their dependents (ring, TLS).
    remove_variables(&mut command, &PACKAGE_VARIABLES);
    let output = command.output().context("failed to run cargo")?;
    if !output.status.success() {
        bail!("cargo failed to build the programs ({})", output.status);
    }
    let built: BTreeMap<String, PathBuf> = output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<Artifact>(line).ok())
        .filter_map(|artifact| Some((artifact.target.name, artifact.executable?)))
        .collect();
    match names.iter().find(|name| !built.contains_key(**name)) {
        None => Ok(names.map(|name| built[name].clone())),
        Some(name) => bail!("cargo did not build {name}"),
    }
}

/// Removes the environment variables with these prefixes.
fn remove_variables(command: &mut Command, prefixes: &[&str]) {
    for (variable, _) in env::vars_os() {
        let name = variable.to_string_lossy();
        if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(&variable);
        }
    }
}

/// The cargo profile of this program, from its directory below the target directory.
fn own_profile() -> String {
    let own = env::current_exe().unwrap_or_default();
    let dir = own.strip_prefix(target_dir()).ok();
    let mut dirs = dir.into_iter().flat_map(Path::components);
    // A cross-compiled program is one level deeper, in a directory named by target triple, which has dashes.
    let profile = dirs.find(|dir| !dir.as_os_str().to_string_lossy().contains('-'));
    match profile.map(|dir| dir.as_os_str().to_string_lossy()) {
        Some(profile) if profile != "debug" => profile.into_owned(),
        _ => "dev".to_owned(),
    }
}

#[derive(Deserialize)]
struct Artifact {
    target: Target,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Cargo's target directory if cargo built this program; otherwise `target` in the current directory.
pub fn target_dir() -> PathBuf {
    let own = env::current_exe().unwrap_or_default();
    // The directory of a target triple has a tag file too, so take the outermost.
    own.ancestors()
        .filter(|dir| dir.join("CACHEDIR.TAG").is_file())
        .last()
        .map_or_else(|| PathBuf::from("target"), Path::to_path_buf)
}

/// The installed program of this name, from the PATH and the `sbin` directories.
pub fn installed(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
}

/// A free loopback address that this process has not returned before.
///
/// Its port is below the ephemeral range, so that outgoing connections of a load do not occupy it.
///
/// # Errors
/// If no port is free.
pub fn free_address() -> Result<SocketAddr> {
    static TAKEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..1_000 {
        let port = fastrand::u16(12_000..32_000);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if !taken.contains(&port) && TcpListener::bind(address).is_ok() {
            taken.push(port);
            return Ok(address);
        }
    }
    bail!("no free port on 127.0.0.1");
}

/// Converts flags and values to arguments.
pub fn flags<const N: usize, V: Into<String>>(flags: [(&str, V); N]) -> Vec<String> {
    let arguments = flags.map(|(flag, value)| [flag.to_owned(), value.into()]);
    arguments.into_iter().flatten().collect()
}

/// The last value of `flag` in the arguments, as `--flag value` or `--flag=value`.
pub fn flag_value<'a, A: AsRef<str>>(args: &'a [A], flag: &str) -> Option<&'a str> {
    let at = args.iter().rposition(|arg| {
        let rest = arg.as_ref().strip_prefix(flag);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })?;
    let value = args[at].as_ref().split_once('=').map(|(_, value)| value);
    value.or_else(|| Some(args.get(at + 1).map_or("", AsRef::as_ref)))
}

#[cfg(test)]
mod tests {
    use super::flag_value;

    #[test]
    fn flag_value_is_found_in_both_forms() {
        let args = ["--a", "1", "--b=2", "--b-c=3", "--d", "--a=4"];
        assert_eq!(flag_value(&args, "--a"), Some("4"));
        assert_eq!(flag_value(&args, "--b"), Some("2"));
        assert_eq!(flag_value(&args[..2], "--a"), Some("1"));
        assert_eq!(flag_value(&args[4..5], "--d"), Some(""));
        assert_eq!(flag_value(&args, "--c"), None);
    }
}
