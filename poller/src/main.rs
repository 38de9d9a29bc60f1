//! The `mcp-taskd` binary.

fn main() -> std::process::ExitCode {
    mcp_taskd::main()
}
