use headwater_attach::Choice;
use headwater_node::config::{Common, ConfigError, Setting};
use serde::{Deserialize, Serialize};

/// What an RO is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Config {
    #[serde(flatten)]
    pub(crate) common: Common,
    pub(crate) rw: Option<String>,
    pub(crate) transport: Choice,
    pub(crate) rdma: Option<String>,
}

impl Config {
    pub(crate) const SETTINGS: [Setting; 3] = [
        Setting("rw", "HOST:PORT", "the RW to attach to (required)"),
        Setting("transport", "auto|shm|verbs|tcp", "how the log and timestamps come"),
        Setting("rdma", "ADDRESS|DEVICE", "the RDMA device to use [default: any that leads to the RW]"),
    ];

    /// The RW's address, once everything is checked.
    pub(crate) fn validate(&self) -> Result<String, ConfigError> {
        self.common.validate()?;
        self.rw.clone().ok_or_else(|| {
            ConfigError("rw: missing; say which RW to attach to, e.g. --rw 127.0.0.1:7600".into())
        })
    }
}

impl Default for Config {
    fn default() -> Config {
        Config { common: Common::new("ro", "127.0.0.1:0"), rw: None, transport: Choice::Auto, rdma: None }
    }
}
