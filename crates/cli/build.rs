//! Writes where libmlx lies into the binary, so that an installed `strata` finds it without help.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=DEP_STRATA_MLX_LIB_DIR");
    if let Ok(folder) = std::env::var("DEP_STRATA_MLX_LIB_DIR") {
        println!("cargo:rustc-link-arg-bins=-Wl,-rpath,{folder}");
    }
}
