use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Sends log lines at or above `filter` (`info`, `warn,headwater_ro_node=debug`, …) to standard error.
pub fn init_logging(filter: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|e| format!("log filter {filter:?}: {e}"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .try_init()
        .map_err(|e| format!("log: {e}"))
}
