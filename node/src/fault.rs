use std::panic;
use std::process;

use tracing::error;

/// A node ends with this when it finds a fault in itself.
pub const EXIT_FAULT: i32 = 70;

/// Ends the process when any of its threads panics: a node that goes on without one of them would look alive and be none.
pub fn exit_on_panic() {
    panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        error!(thread = thread.name(), "{panic}: this is a fault in Headwater; the node ends");
        eprintln!("{}", std::backtrace::Backtrace::force_capture());
        process::exit(EXIT_FAULT);
    }));
}
