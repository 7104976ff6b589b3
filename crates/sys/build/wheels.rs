//! The official libmlx wheels, pinned by version and sha256.
//!
//! Raising the version means: change `VERSION`, every hash below, and `mlx-sys` in Cargo.toml when mlx-c must move too.

/// Version of MLX that mlx-c 0.7.0 is written for (0.32.4's headers no longer compile with it).
pub(crate) const VERSION: &str = "0.32.2";

/// One wheel on the Python package index.
pub(crate) struct Wheel {
    /// Value of `STRATA_MLX_BACKEND` that selects it.
    pub(crate) backend: &'static str,
    /// Rust's name of the operating system and processor.
    pub(crate) target: (&'static str, &'static str),
    /// Package name.
    pub(crate) package: &'static str,
    /// pip's platform tag.
    pub(crate) platform: &'static str,
    /// Hash of the whole wheel file.
    pub(crate) sha256: &'static str,
}

/// The first entry that fits the target is the default; macOS entries run from the newest system to the oldest.
pub(crate) const WHEELS: &[Wheel] = &[
    Wheel {
        backend: "cpu",
        target: ("linux", "x86_64"),
        package: "mlx-cpu",
        platform: "manylinux_2_35_x86_64",
        sha256: "fc5d31b90fc4f457b2f9614ed45651a567d22a6a11a03d114a90a4e10bdd8878",
    },
    Wheel {
        backend: "cpu",
        target: ("linux", "aarch64"),
        package: "mlx-cpu",
        platform: "manylinux_2_35_aarch64",
        sha256: "d0f94625588b51a878786dd51cec5617894ce586cf3c94645ce1b64e24c27c0b",
    },
    Wheel {
        backend: "cuda-13",
        target: ("linux", "x86_64"),
        package: "mlx-cuda-13",
        platform: "manylinux_2_35_x86_64",
        sha256: "335094ccd1c0c6dc3e09c8caba207c8180602bacc0c38ba20c1d81e9456ab394",
    },
    Wheel {
        backend: "cuda-12",
        target: ("linux", "x86_64"),
        package: "mlx-cuda-12",
        platform: "manylinux_2_35_x86_64",
        sha256: "35445ead9724855826f310b9085d57137d0a2c5381cc293cb6d86b03bb4feadf",
    },
    Wheel {
        backend: "metal",
        target: ("macos", "aarch64"),
        package: "mlx-metal",
        platform: "macosx_26_0_arm64",
        sha256: "e6abeac9ac5265830c9c1541b6f96e9be37a85c2446763a46ad466c63a3837ab",
    },
    Wheel {
        backend: "metal",
        target: ("macos", "aarch64"),
        package: "mlx-metal",
        platform: "macosx_15_0_arm64",
        sha256: "55a369250d220b2cf10213a87a2ac1b1a420608c5b35b1df4e7147ac8e32f121",
    },
    Wheel {
        backend: "metal",
        target: ("macos", "aarch64"),
        package: "mlx-metal",
        platform: "macosx_14_0_arm64",
        sha256: "3825fff379dbc107dd3413e564a06caeaa24819910ec49c0439e454c06a1b9b8",
    },
];
