//! Which instruction set a kernel body may use, found out once at run time.

mod convert;

pub use convert::{narrow, widen};

use std::sync::OnceLock;

/// Instruction sets with bodies of their own, from plain to wide. A kernel without a body for a level uses the next
/// plainer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Plain Rust.
    Portable,
    /// 128-bit vectors (aarch64: `neon`).
    Neon,
    /// 128-bit vectors with dot products of bytes (aarch64: `dotprod`, and all of `Neon`).
    NeonDot,
    /// 256-bit vectors (x86-64: AVX2, FMA, F16C).
    Avx2,
    /// 512-bit vectors with dot products of bytes (x86-64: AVX-512 F, BW, DQ, VL, VNNI, VBMI, and all of `Avx2`).
    Avx512,
}

impl Level {
    /// The widest level of this machine.
    pub fn best() -> Self {
        static BEST: OnceLock<Level> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().last().copied().unwrap_or(Self::Portable))
    }

    /// All levels this machine can run, plain first. Tests walk this list.
    pub fn available() -> Vec<Self> {
        [Self::Portable, Self::Neon, Self::NeonDot, Self::Avx2, Self::Avx512]
            .into_iter()
            .filter(|level| level.runs())
            .collect()
    }

    /// Float32 lanes of a vector.
    pub const fn lanes(self) -> usize {
        match self {
            Self::Portable | Self::Neon | Self::NeonDot => 4,
            Self::Avx2 => 8,
            Self::Avx512 => 16,
        }
    }

    fn runs(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot => Self::Neon.runs() && std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.runs()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
                    && is_x86_feature_detected!("avx512vbmi")
            }
            #[allow(unreachable_patterns, reason = "each architecture has only its own levels")]
            _ => false,
        }
    }
}
