//! What the tests share: servers to talk to, databases to write to, processes to kill.

pub mod audit;
pub mod bench;
pub mod chaos;
pub mod collector;
pub mod daemon;
pub mod fake;
pub mod family;
pub mod faulty;
pub mod freeze;
pub mod gate;
pub mod hook;
pub mod hostile;
pub mod issuer;
pub mod pooler;
pub mod postgres;
pub mod proxy;
pub mod rows;
pub mod scripted;
pub mod sim;
pub mod wait;
