//! What the tests share: servers to talk to, databases to write to, processes to kill.

pub mod daemon;
pub mod fake;
pub mod faulty;
pub mod postgres;
pub mod scripted;
pub mod sim;
pub mod wait;
