//! Reports of long tasks: what is being done, how far it is, how far there is to go.

/// What a long task is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Waiting for another process that installs the same model.
    Waiting,
    /// Bytes arrive from the network.
    Download,
    /// Downloaded archives are unpacked and their hashes compared.
    Verify,
    /// A file is rewritten in the layout of a model folder.
    Convert,
}

/// One report. Counts are bytes of the current stage and never go back within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub stage: Stage,
    /// Bytes done.
    pub done: u64,
    /// Bytes in all, where that is known.
    pub total: Option<u64>,
}
