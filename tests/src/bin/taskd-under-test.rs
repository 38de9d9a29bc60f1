//! The daemon for this member's tests: cargo builds no other package's binaries for them.

fn main() -> std::process::ExitCode {
    mcp_taskd::main()
}
