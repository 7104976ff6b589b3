//! Finds the pinned native runtime (libmlx), compiles mlx-c and our shim against it, and links both.
//!
//! Each step is a file in `build/`; this one only puts them in order and tells cargo.

#[path = "build/mlx_c.rs"]
mod mlx_c;
#[path = "build/runtime.rs"]
mod runtime;
#[path = "build/wheels.rs"]
mod wheels;

fn main() {
    for variable in ["STRATA_MLX_DIR", "STRATA_MLX_BACKEND", "STRATA_HOME", "XDG_CACHE_HOME"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    if let Err(message) = build() {
        // Cargo shows a build script's stderr under its own heading; a panic would bury the remedy in a backtrace.
        eprintln!("error: {message}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    let runtime = runtime::locate()?;
    mlx_c::compile(&runtime.include)?;
    println!("cargo:rustc-link-search=native={}", runtime.lib.display());
    println!("cargo:rustc-link-lib=dylib=mlx");
    // `links = "strata-mlx"` hands these to the build scripts of crates that depend on this one.
    println!("cargo:lib_dir={}", runtime.installed_lib.display());
    println!("cargo:backend={}", runtime.backend);
    println!("cargo:rustc-env=STRATA_MLX_BACKEND_BUILT={}", runtime.backend);
    println!("cargo:rustc-env=STRATA_MLX_LIB_DIR={}", runtime.installed_lib.display());
    Ok(())
}
