//! Where libmlx comes from: `STRATA_MLX_DIR`, else the user's cache, else `pip download` into that cache.
//!
//! The cache holds each wheel unpacked, so that `mlx/lib` and its private libraries stay side by side (libmlx finds
//! them by a relative RPATH) and an installed binary's rpath stays valid. A folder in the cache is complete or absent:
//! it is unpacked beside its final place and renamed.

use crate::wheels::{VERSION, WHEELS, Wheel};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A usable libmlx.
pub(crate) struct Runtime {
    /// `cpu`, `cuda-12`, `cuda-13`, `metal`, or `custom` for `STRATA_MLX_DIR`.
    pub(crate) backend: String,
    /// C++ headers.
    pub(crate) include: PathBuf,
    /// Folder of libmlx for the linker, below OUT_DIR, which cargo puts on the search path of `run` and `test`.
    pub(crate) lib: PathBuf,
    /// The same folder where it stays after the build.
    pub(crate) installed_lib: PathBuf,
}

/// Finds or fetches the runtime.
pub(crate) fn locate() -> Result<Runtime, String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?);
    let (backend, root) = if let Some(dir) = env::var_os("STRATA_MLX_DIR") {
        ("custom".to_owned(), given(Path::new(&dir))?)
    } else {
        let wheel = choose()?;
        (wheel.backend.to_owned(), unpacked(wheel, &out)?.join("mlx"))
    };
    let link = out.join("runtime");
    link_to(&link, root.parent().unwrap_or(&root))?;
    let name = root.file_name().map_or_else(|| "mlx".into(), ToOwned::to_owned);
    Ok(Runtime {
        backend,
        include: root.join("include"),
        lib: link.join(name).join("lib"),
        installed_lib: root.join("lib"),
    })
}

fn given(dir: &Path) -> Result<PathBuf, String> {
    let dir = dir.canonicalize().map_err(|e| format!("STRATA_MLX_DIR={}: {e}", dir.display()))?;
    if dir.join("include/mlx/mlx.h").is_file() && dir.join("lib").is_dir() {
        return Ok(dir);
    }
    Err(format!(
        "STRATA_MLX_DIR={} holds no MLX: it must contain lib/libmlx.* and include/mlx/mlx.h of version {VERSION}",
        dir.display()
    ))
}

fn choose() -> Result<&'static Wheel, String> {
    let os = env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let wanted = env::var("STRATA_MLX_BACKEND").ok();
    let system = macos_major(&os);
    WHEELS
        .iter()
        .filter(|w| w.target == (os.as_str(), arch.as_str()))
        .filter(|w| wanted.as_deref().is_none_or(|name| name == w.backend))
        .find(|w| system.is_none_or(|major| w.platform <= format!("macosx_{major}_0_arm64").as_str()))
        .ok_or_else(|| {
            let mut known = String::new();
            for w in WHEELS {
                let _ = write!(known, "\n  {} on {}-{}", w.backend, w.target.0, w.target.1);
            }
            format!(
                "there is no MLX {VERSION} wheel for {os}-{arch} with backend {}. Known:{known}\n\
                 help: set STRATA_MLX_BACKEND to one of these, or STRATA_MLX_DIR to a folder with an MLX {VERSION} \
                 of your own (lib/ and include/)",
                wanted.as_deref().unwrap_or("(default)")
            )
        })
}

/// Major version of the running macOS, if that is what is being built for; the newest wheel it can load is taken.
fn macos_major(os: &str) -> Option<u32> {
    if os != "macos" {
        return None;
    }
    let output = Command::new("sw_vers").arg("-productVersion").output().ok()?;
    String::from_utf8_lossy(&output.stdout).split('.').next()?.trim().parse().ok()
}

/// The folder that holds the unpacked wheel: in the user's cache, or in OUT_DIR where no cache can be written.
fn unpacked(wheel: &Wheel, out: &Path) -> Result<PathBuf, String> {
    let name = format!("{}-{VERSION}-{}", wheel.package, wheel.platform);
    let homes: Vec<PathBuf> = cache_folder().into_iter().chain([out.to_owned()]).collect();
    if let Some(found) = homes.iter().map(|h| h.join(&name)).find(|p| is_complete(p, wheel)) {
        return Ok(found);
    }
    let home = homes
        .iter()
        .find(|h| fs::create_dir_all(h).is_ok() && fs::write(h.join(".writable"), b"").is_ok())
        .ok_or("neither the user's cache folder nor OUT_DIR can be written")?;
    let _ = fs::remove_file(home.join(".writable"));
    let place = home.join(&name);
    let work = home.join(format!(".{name}.{}", std::process::id()));
    let result =
        fetch(wheel, &work).and_then(|file| unpack(&file, &work.join("unpacked"), wheel)).and_then(|()| {
            let _ = fs::remove_dir_all(&place);
            match fs::rename(work.join("unpacked"), &place) {
                // Another build may have put it there in the meantime: theirs is as good.
                Err(_) if is_complete(&place, wheel) => Ok(()),
                other => other.map_err(|e| format!("{}: {e}", place.display())),
            }
        });
    let _ = fs::remove_dir_all(&work);
    result.map(|()| place)
}

fn is_complete(place: &Path, wheel: &Wheel) -> bool {
    fs::read_to_string(place.join("sha256")).is_ok_and(|hash| hash.trim() == wheel.sha256)
}

fn cache_folder() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let strata = absolute("STRATA_HOME")
        .or_else(|| absolute("XDG_CACHE_HOME").map(|p| p.join("strata")))
        .or_else(|| absolute("HOME").map(|p| p.join(".cache/strata")))?;
    Some(strata.join("runtime"))
}

/// Downloads the wheel into `work` and proves its hash.
fn fetch(wheel: &Wheel, work: &Path) -> Result<PathBuf, String> {
    fs::create_dir_all(work).map_err(|e| format!("{}: {e}", work.display()))?;
    let requirement = format!("{}=={VERSION}", wheel.package);
    let mut failures = String::new();
    for pip in [&["python3", "-m", "pip"][..], &["python", "-m", "pip"], &["pip3"], &["pip"]] {
        let output = Command::new(pip[0])
            .args(&pip[1..])
            .args(["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"])
            .args(["--python-version", "3.12", "--platform", wheel.platform, "--dest"])
            .arg(work)
            .arg(&requirement)
            .output();
        match output {
            Ok(o) if o.status.success() => return check(wheel, work),
            Ok(o) => {
                let _ =
                    write!(failures, "\n  {}: {}", pip.join(" "), String::from_utf8_lossy(&o.stderr).trim());
            }
            Err(e) => {
                let _ = write!(failures, "\n  {}: {e}", pip.join(" "));
            }
        }
    }
    Err(format!(
        "could not download {requirement} for {}:{failures}\n\
         help: install Python's pip and make the package index reachable, or set STRATA_MLX_DIR to a folder with MLX {VERSION}",
        wheel.platform
    ))
}

fn check(wheel: &Wheel, work: &Path) -> Result<PathBuf, String> {
    let file = fs::read_dir(work)
        .map_err(|e| format!("{}: {e}", work.display()))?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .find(|p| p.extension().is_some_and(|e| e == "whl"))
        .ok_or_else(|| format!("pip reported success but left no wheel in {}", work.display()))?;
    let bytes = fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let mut hash = String::new();
    for byte in Sha256::digest(&bytes) {
        let _ = write!(hash, "{byte:02x}");
    }
    if hash == wheel.sha256 {
        return Ok(file);
    }
    Err(format!(
        "{} has sha256 {hash}, but {} is pinned. It was not used.\n\
         help: a mirror or proxy may have changed it; set STRATA_MLX_DIR to use an MLX {VERSION} you trust",
        file.display(),
        wheel.sha256
    ))
}

fn unpack(file: &Path, into: &Path, wheel: &Wheel) -> Result<(), String> {
    let reader = fs::File::open(file).map_err(|e| format!("{}: {e}", file.display()))?;
    zip::ZipArchive::new(reader)
        .and_then(|mut archive| archive.extract(into))
        .map_err(|e| format!("{}: {e}", file.display()))?;
    fs::write(into.join("sha256"), wheel.sha256).map_err(|e| format!("{}: {e}", into.display()))
}

/// Points `link` at `target`, by a symbolic link, replacing what an earlier build left.
fn link_to(link: &Path, target: &Path) -> Result<(), String> {
    if fs::read_link(link).is_ok_and(|old| old == target) {
        return Ok(());
    }
    let _ = fs::remove_file(link);
    std::os::unix::fs::symlink(target, link).map_err(|e| format!("{}: {e}", link.display()))
}
