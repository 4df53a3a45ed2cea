//! Configuration: a TOML file, then `HEADWATER_*` variables, then flags; what comes later wins.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Metadata, Profile, Provider};
use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

/// Variables that begin with the prefix but are not the nodes'.
const FOREIGN_VARIABLES: [&str; 3] = ["nodes", "config", "shared"];

/// A configuration that cannot be used. The text names the setting and where its value comes from.
#[derive(Debug, Error)]
#[error("configuration: {0}")]
pub struct ConfigError(pub String);

/// One setting: its key in TOML (the flag has `-` for `_`, the variable is in capitals behind `HEADWATER_`), and its help.
pub struct Setting(pub &'static str, pub &'static str, pub &'static str);

/// What every node is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Common {
    /// Where clients (and on the RW the ROs) connect; port 0 takes a free one.
    pub listen: String,
    /// What others are told to connect to; where it listens, if not set.
    pub advertise: Option<String>,
    /// For people: in `status` and in logs.
    #[serde(deserialize_with = "text")]
    pub name: String,
    /// Nodes of another cluster are refused.
    #[serde(deserialize_with = "text")]
    pub cluster: String,
    /// Written with the address once the node serves.
    pub ready_file: Option<PathBuf>,
    /// What is logged.
    pub log: String,
    /// Clients' connections at most.
    pub connections_max: usize,
    /// How long a request may take whose client does not say.
    #[serde(with = "humantime_serde")]
    pub deadline: Duration,
}

impl Common {
    /// The settings of every node and their help.
    pub const SETTINGS: [Setting; 8] = [
        Setting("listen", "HOST:PORT", "where clients and ROs connect; port 0 takes a free one"),
        Setting("advertise", "HOST:PORT", "what others are told to connect to [default: where it listens]"),
        Setting("name", "NAME", "the node's name in `status` and logs"),
        Setting("cluster", "NAME", "the cluster's name; nodes of another cluster are refused"),
        Setting("ready_file", "FILE", "written with the node's address once it serves"),
        Setting("log", "FILTER", "what is logged: error, warn, info, debug, or per module"),
        Setting("connections_max", "N", "clients' connections at most"),
        Setting("deadline", "TIME", "how long a request may take whose client does not say"),
    ];

    /// Defaults for a node of that name that listens there.
    pub fn new(name: &str, listen: &str) -> Common {
        Common {
            listen: listen.into(),
            advertise: None,
            name: name.into(),
            cluster: "headwater".into(),
            ready_file: None,
            log: "info".into(),
            connections_max: 20_000,
            deadline: Duration::from_secs(10),
        }
    }

    /// Checks what types cannot.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.cluster.is_empty() || self.cluster.len() > 64 {
            return Err(ConfigError(format!("cluster: a name of 1 to 64 bytes, not {}", self.cluster.len())));
        }
        if self.deadline.is_zero() {
            return Err(ConfigError("deadline: must be more than 0".into()));
        }
        Ok(())
    }
}

/// Names that look like numbers are still names.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    struct Text;
    impl Visitor<'_> for Text {
        type Value = String;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text")
        }
        fn visit_str<E>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }
        fn visit_u64<E>(self, number: u64) -> Result<String, E> {
            Ok(number.to_string())
        }
        fn visit_i64<E>(self, number: i64) -> Result<String, E> {
            Ok(number.to_string())
        }
    }
    deserializer.deserialize_any(Text)
}

/// Reads the command line of the program `command` and builds its configuration from `defaults`, the file that `--config` or
/// `HEADWATER_CONFIG` names, the environment and the flags. `--help` and a wrong flag end the process, as usual.
pub fn load<C: Serialize + DeserializeOwned>(
    command: Command,
    settings: &[&[Setting]],
    defaults: &C,
) -> Result<C, ConfigError> {
    let shown = serde_json::to_value(defaults).map_err(|e| ConfigError(e.to_string()))?;
    let mut command = command
        .version(env!("CARGO_PKG_VERSION"))
        .arg(Arg::new("config").long("config").value_name("FILE").env("HEADWATER_CONFIG").help("a TOML file with the settings below, `-` written `_`"))
        .after_help("Each setting can also be given in the TOML file or as HEADWATER_<NAME>. Flags win over variables, variables over the file.");
    for Setting(key, value_name, help) in settings.iter().copied().flatten() {
        let default = match &shown[key] {
            serde_json::Value::Null => String::new(),
            serde_json::Value::String(text) => format!(" [default: {text}]"),
            other => format!(" [default: {other}]"),
        };
        command = command.arg(
            Arg::new(*key)
                .long(key.replace('_', "-"))
                .value_name(*value_name)
                .help(format!("{help}{default}")),
        );
    }
    let matches = command.get_matches();
    let file = matches.get_one::<String>("config").map(Path::new);
    let flags = flags(&matches, settings);
    merge(defaults, settings, file, &flags)
}

/// Flags that were given, as text.
fn flags(matches: &ArgMatches, settings: &[&[Setting]]) -> Vec<(&'static str, String)> {
    let keys = settings.iter().copied().flatten().map(|setting| setting.0);
    keys.filter_map(|key| Some((key, matches.get_one::<String>(key)?.clone()))).collect()
}

/// The flags as a source of settings, so that a wrong value is reported with the flag's name.
struct Flags<'a>(&'a [(&'static str, String)]);

impl Provider for Flags<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::named("flags").interpolater(|_, path| format!("--{}", path.join(".").replace('_', "-")))
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let value = |text: &String| text.parse::<Value>().unwrap_or_else(|_| Value::from(text.as_str()));
        let values = self.0.iter().map(|(key, text)| ((*key).to_owned(), value(text))).collect();
        Ok(Map::from([(Profile::Default, values)]))
    }
}

fn merge<C: Serialize + DeserializeOwned>(
    defaults: &C,
    settings: &[&[Setting]],
    file: Option<&Path>,
    flags: &[(&'static str, String)],
) -> Result<C, ConfigError> {
    let failed = |error: figment::Error| {
        ConfigError(error.into_iter().map(|e| e.to_string()).collect::<Vec<_>>().join("; "))
    };
    let mut given = Figment::new();
    if let Some(file) = file {
        if !file.is_file() {
            return Err(ConfigError(format!("{}: there is no such file", file.display())));
        }
        given = given.merge(Toml::file_exact(file));
    }
    given = given.merge(Env::prefixed("HEADWATER_").ignore(&FOREIGN_VARIABLES)).merge(Flags(flags));

    let known: BTreeSet<&str> = settings.iter().copied().flatten().map(|setting| setting.0).collect();
    let keys: Dict = given.extract().map_err(failed)?;
    if let Some(key) = keys.keys().find(|key| !known.contains(key.as_str())) {
        let source =
            given.find_metadata(key).map_or_else(String::new, |source| format!(" (in {})", source.name));
        return Err(ConfigError(format!("unknown setting {key:?}{source}; --help lists them all")));
    }
    Figment::from(Serialized::defaults(defaults)).merge(given).extract().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(file: Option<&str>, flags: &[(&'static str, &str)]) -> Result<Common, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.toml");
        if let Some(text) = file {
            std::fs::write(&path, text).unwrap();
        }
        let flags: Vec<_> = flags.iter().map(|(key, text)| (*key, (*text).to_owned())).collect();
        merge(&Common::new("n", "127.0.0.1:0"), &[&Common::SETTINGS], file.map(|_| path.as_path()), &flags)
    }

    #[test]
    fn flags_win_over_the_file() {
        let file = "name = 'from-file'\ndeadline = '3s'\n";
        assert_eq!(merged(Some(file), &[]).unwrap().name, "from-file");
        let both = merged(Some(file), &[("name", "7")]).unwrap();
        assert_eq!((both.name.as_str(), both.deadline), ("7", Duration::from_secs(3)));
    }

    #[test]
    fn a_bad_value_is_reported_with_its_place() {
        let error = merged(None, &[("connections_max", "many")]).unwrap_err().to_string();
        assert!(error.contains("connections-max") && error.contains("many"), "{error}");
        let error = merged(Some("conections_max = 3\n"), &[]).unwrap_err().to_string();
        assert!(error.contains("conections_max") && error.contains("TOML"), "{error}");
        let error = merged(Some("deadline = 'soon'\n"), &[]).unwrap_err().to_string();
        assert!(error.contains("deadline"), "{error}");
    }

    #[test]
    fn every_setting_is_a_field() {
        let fields = serde_json::to_value(Common::new("n", "l")).unwrap();
        for Setting(key, ..) in Common::SETTINGS {
            assert!(fields.as_object().unwrap().contains_key(key), "{key}");
        }
        assert_eq!(fields.as_object().unwrap().len(), Common::SETTINGS.len());
    }
}
