//! Compiles mlx-c and our shim. The mlx-c sources are those of the package `mlx-sys`, which cargo pins, checks and
//! fetches like any other dependency; it is never built itself (its build script does not run on Linux).

use cargo_metadata::MetadataCommand;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Compiles everything into one static library and links it.
pub(crate) fn compile(mlx_include: &Path) -> Result<(), String> {
    let root = sources()?;
    let manifest =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo did not set CARGO_MANIFEST_DIR")?);
    let shim = manifest.join("src/shim");
    println!("cargo:rerun-if-changed={}", shim.display());
    println!("cargo:rerun-if-changed={}", manifest.join("compat").display());
    println!("cargo:include={}", root.display());

    let mut build = cc::Build::new();
    build.cpp(true).std("c++20").include(&root).include(&shim).include(mlx_include).warnings(false);
    build.flag_if_supported("-fvisibility=hidden").opt_level(2).debug(false);
    if !has_format(&build)? {
        build.include(manifest.join("compat"));
    }
    // Some of mlx-c's files use std::format without including it.
    build.flag("-include").flag("format");
    let mut files: Vec<PathBuf> = fs::read_dir(root.join("mlx/c"))
        .map_err(|e| format!("{}: {e}", root.display()))?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "cpp"))
        .collect();
    files.sort();
    build.files(files).files(["host.cpp", "program.cpp"].map(|file| shim.join(file)));
    build
        .try_compile("mlxc")
        .map_err(|e| format!("compiling mlx-c failed: {e}\nhelp: a C++20 compiler is needed"))
}

fn sources() -> Result<PathBuf, String> {
    let metadata = MetadataCommand::new()
        .exec()
        .map_err(|e| format!("cargo metadata could not find the mlx-c sources (package mlx-sys): {e}"))?;
    let package = metadata
        .packages
        .iter()
        .find(|p| p.name.as_str() == "mlx-sys")
        .ok_or("the package mlx-sys is not among the dependencies")?;
    let root = package.manifest_path.as_std_path().with_file_name("src").join("mlx-c");
    if root.join("mlx/c/mlx.h").is_file() {
        Ok(root)
    } else {
        Err(format!("{} holds no mlx-c", root.display()))
    }
}

/// True when the compiler's library has `<format>` (GCC 12's has not; mlx-c needs `std::format` with `{}` only).
fn has_format(build: &cc::Build) -> Result<bool, String> {
    let probe =
        PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo did not set OUT_DIR")?).join("has_format.cpp");
    fs::write(&probe, "#if __has_include(<format>)\nSTRATA_HAS_FORMAT\n#endif\n")
        .map_err(|e| format!("{}: {e}", probe.display()))?;
    let expanded =
        build.clone().file(&probe).try_expand().map_err(|e| {
            format!("no working C++ compiler: {e}\nhelp: install one, such as g++ or clang++")
        })?;
    Ok(String::from_utf8_lossy(&expanded).contains("STRATA_HAS_FORMAT"))
}
