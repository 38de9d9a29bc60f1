//! A benchmark as a program: its runtime and its exit code.

use std::process::ExitCode;

/// Measures: success where every target was met.
pub fn measure(all: impl Future<Output = anyhow::Result<bool>>) -> ExitCode {
    if cfg!(debug_assertions) {
        println!("This is a debug build; its figures say nothing.");
    }
    run(all)
}

/// Runs one of the benchmark's processes to its end: success where it says true.
pub fn run(what: impl Future<Output = anyhow::Result<bool>>) -> ExitCode {
    // Every client asks for a provider, though nothing here is encrypted. One that is there already does as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let ended = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        let ended = runtime.block_on(what);
        // A read of standard input cannot be interrupted.
        runtime.shutdown_background();
        ended
    });
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
