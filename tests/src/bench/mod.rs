//! What the benchmark commands share: processes to measure, what is read of them, and figures against targets.

pub mod measure;
pub mod process;
pub mod program;
pub mod report;
