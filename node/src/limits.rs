use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Takes as many open files as the process may have: a connection is one.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        warn!(%error, "cannot raise the limit of open files");
    }
}
