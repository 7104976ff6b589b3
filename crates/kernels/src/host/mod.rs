//! What all host kernels share: the thread pool, the instruction-set level, element types and scratch memory.

pub mod element;
pub mod lanes;
pub(crate) mod memory;
pub mod pool;
pub mod scratch;
pub mod simd;

pub use element::Element;
pub use simd::Level;
