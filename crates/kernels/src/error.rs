//! Why a kernel refuses its operands.

/// A refusal, found before any work is done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An operand's shape does not fit the others.
    #[error("[{kernel}] {operand} needs {expected} but has {got}")]
    Shape {
        /// Name of the kernel.
        kernel: &'static str,
        /// Name of the operand.
        operand: &'static str,
        /// What would fit.
        expected: String,
        /// What was given.
        got: String,
    },
    /// No form of the kernel exists for this request.
    #[error("[{kernel}] no form for {what}")]
    Unsupported {
        /// Name of the kernel.
        kernel: &'static str,
        /// What was asked for.
        what: String,
    },
}
