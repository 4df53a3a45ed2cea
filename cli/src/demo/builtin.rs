use headwater_protocol::{Seqno, ShardName};

use crate::logs::{Log, Logs, Source, Versions};

/// A log of `demo-logs/`: its name, its first version, and the bytes of each.
struct BuiltIn(&'static str, u64, &'static [&'static [u8]]);

macro_rules! log {
    ($name:literal, $first:literal: $($version:literal)*) => {
        BuiltIn($name, $first, &[
            $(include_bytes!(concat!("../../demo-logs/", $name, "/000000000000000000", $version, ".json"))),*
        ])
    };
}

const LOGS: [BuiltIn; 4] = [
    log!("cdf-table", 0: "00" "01" "02" "03"),
    log!("checkpoints_vacuumed", 5: "05" "06" "07" "08" "09" "10" "11" "12"),
    log!("delta-0.8.0", 0: "00" "01"),
    log!("simple_table", 0: "00" "01" "02" "03" "04" "05"),
];

/// A few commit logs of real tables, for who has none at hand.
pub(crate) fn logs() -> Logs {
    let log = |BuiltIn(name, first, files): &BuiltIn| {
        let versions = Versions {
            shard: ShardName::new(name).expect("the built-in names are legal"),
            first: Seqno::new(*first).expect("the built-in versions are small"),
            sources: files.iter().map(|bytes| Source::BuiltIn(bytes)).collect(),
        };
        Log { name: (*name).to_owned(), versions: Ok(versions) }
    };
    Logs { logs: LOGS.iter().map(log).collect(), ignored: 0 }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn they_are_what_the_folder_holds() {
        let folder = crate::logs::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("demo-logs")).unwrap();
        let built_in = logs();
        assert_eq!(folder.logs.len(), built_in.logs.len());
        for (folder, built_in) in folder.logs.iter().zip(&built_in.logs) {
            let (folder, built_in) = (folder.versions.as_ref().unwrap(), built_in.versions.as_ref().unwrap());
            assert_eq!((&folder.shard, folder.first), (&built_in.shard, built_in.first));
            assert_eq!(folder.sources.len(), built_in.sources.len());
            for (a, b) in folder.sources.iter().zip(&built_in.sources) {
                assert_eq!(a.read().unwrap(), b.read().unwrap());
            }
        }
    }
}
