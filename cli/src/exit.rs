use std::process::ExitCode;

/// What the exit code says. The same codes for every command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done as asked.
    Done = 0,
    /// Not done, or not all of it: what failed did not happen, and can be tried again.
    Failed = 1,
    /// The command line or the configuration cannot be understood. clap exits with this code too.
    Usage = 2,
    /// A compare-and-set found another head than the expected one.
    Mismatch = 3,
    /// A write may or may not have happened: look before it is done again.
    Unknown = 4,
    /// The shard was never written.
    Nothing = 5,
    /// Data is not what it must be: a damaged WAL, a lost write, a stale read, nodes that differ.
    Damaged = 6,
    /// Ended by a signal before it was done.
    Interrupted = 130,
}

impl Exit {
    /// The codes, for `--help`.
    pub(crate) const HELP: &'static str = "\
Exit codes:
    0  done
    1  not done, or not all of it; what failed did not happen and can be tried again
    2  the command line or the configuration cannot be understood
    3  mismatch: the shard has another head than the expected one
    4  outcome unknown: the write may have happened; look before it is done again
    5  nothing there: the shard was never written
    6  damaged: a WAL that does not verify, a lost write, a stale read, nodes that differ
  130  ended by a signal";
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}
