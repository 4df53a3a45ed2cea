use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Open files that clients' connections leave to the log, the regions, the ROs and their links.
const FILES_KEPT: u64 = 256;

/// How many clients' connections the process can have, however many it is told to take.
pub(crate) fn connections_max(configured: usize) -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let possible = usize::try_from(files.saturating_sub(FILES_KEPT)).unwrap_or(usize::MAX).max(1);
    if possible < configured {
        warn!(
            configured,
            possible, files, "fewer clients than configured: the process may open no more files"
        );
    }
    possible.min(configured)
}

/// Takes as many open files as the process may have: a connection is one.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        warn!(%error, "cannot raise the limit of open files");
    }
}
