//! Build, policy and parity tasks.
fn main() {}
