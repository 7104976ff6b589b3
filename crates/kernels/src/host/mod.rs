//! What all host kernels share: the thread pool, the instruction-set level, element types and scratch memory.

pub mod element;
pub mod heads;
pub mod lanes;
pub(crate) mod memory;
pub(crate) mod node;
pub mod pool;
pub mod rows;
pub mod scratch;
pub mod simd;
#[cfg(test)]
pub(crate) mod testing;

pub use element::Element;
pub use simd::Level;
