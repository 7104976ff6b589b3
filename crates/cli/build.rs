//! Writes where libmlx lies into the binary, so that an installed `strata` finds it without help: the folder that the
//! build of strata-sys found, or the one named by STRATA_RPATH, with which `cargo xtask dist` says "beside the binary".

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for variable in ["STRATA_RPATH", "DEP_STRATA_MLX_LIB_DIR"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let folder = std::env::var("STRATA_RPATH").or_else(|_| std::env::var("DEP_STRATA_MLX_LIB_DIR"));
    if let Ok(folder) = folder {
        println!("cargo:rustc-link-arg-bins=-Wl,-rpath,{folder}");
    }
}
