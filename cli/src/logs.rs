//! Logs as folders hold them: each subfolder a shard, each file `<number>.json` in it the entry of that version.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use headwater_protocol::{Seqno, ShardName};

use crate::failure::Failure;

/// What a folder holds.
#[derive(Debug)]
pub(crate) struct Logs {
    /// Its logs, by name.
    pub(crate) logs: Vec<Log>,
    /// Files and folders in it, and in its logs' folders, that are neither a log nor a version.
    pub(crate) ignored: u64,
}

/// One log.
#[derive(Debug)]
pub(crate) struct Log {
    /// The folder's name, also where it cannot be a shard's.
    pub(crate) name: String,
    /// Its versions, or why they are no log.
    pub(crate) versions: Result<Versions, String>,
}

/// Versions that follow one another without a gap.
#[derive(Debug)]
pub(crate) struct Versions {
    /// The shard.
    pub(crate) shard: ShardName,
    /// The first version; the others follow it.
    pub(crate) first: Seqno,
    /// Where the bytes of each are. Never empty.
    pub(crate) sources: Vec<Source>,
}

/// Where a version's bytes are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// In a file.
    File(PathBuf),
    /// In this program.
    BuiltIn(&'static [u8]),
}

impl Source {
    /// Reads them.
    pub(crate) fn read(&self) -> Result<Bytes, Failure> {
        match self {
            Source::File(path) => Ok(fs::read(path).map_err(Failure::file("read", path))?.into()),
            Source::BuiltIn(bytes) => Ok(Bytes::from_static(bytes)),
        }
    }
}

impl Versions {
    /// The last version.
    pub(crate) fn last(&self) -> Seqno {
        self.at(self.sources.len() - 1)
    }

    /// The version of the source at that index.
    pub(crate) fn at(&self, index: usize) -> Seqno {
        debug_assert!(index < self.sources.len());
        Seqno::new(self.first.get() + index as u64)
            .expect("each version was a seqno, and they follow one another")
    }

    /// The source of that version, if it is one of these.
    pub(crate) fn source(&self, seqno: Seqno) -> Option<&Source> {
        let index = seqno.get().checked_sub(self.first.get())?;
        self.sources.get(usize::try_from(index).ok()?)
    }
}

/// Looks what a folder holds. No file's content is read yet.
pub(crate) fn read(dir: &Path) -> Result<Logs, Failure> {
    let list = |path: &Path| -> Result<Vec<PathBuf>, Failure> {
        let entries = fs::read_dir(path).map_err(Failure::file("read", path))?;
        let entries = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>();
        let mut entries = entries.map_err(Failure::file("read", path))?;
        entries.sort();
        Ok(entries)
    };
    let mut found = Logs { logs: Vec::new(), ignored: 0 };
    for folder in list(dir)? {
        if !folder.is_dir() {
            found.ignored += 1;
            continue;
        }
        let mut files = Vec::new();
        for file in list(&folder)? {
            match version_of(&file) {
                Some(digits) if file.is_file() => files.push((digits, file)),
                _ => found.ignored += 1,
            }
        }
        if files.is_empty() {
            found.ignored += 1;
            continue;
        }
        let name = folder.file_name().unwrap_or_default();
        let shard = match name.to_str() {
            Some(name) => ShardName::new(name).map_err(|e| e.to_string()),
            None => Err("the folder's name is not UTF-8".into()),
        };
        let versions = shard.and_then(|shard| versions(shard, files));
        found.logs.push(Log { name: name.to_string_lossy().into_owned(), versions });
    }
    Ok(found)
}

/// The digits of `<number>.json`.
fn version_of(file: &Path) -> Option<String> {
    let digits = file.file_name()?.to_str()?.strip_suffix(".json")?;
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| digits.to_owned())
}

/// Files as a log, unless a version is missing, twice there, or beyond what a seqno can be.
fn versions(shard: ShardName, files: Vec<(String, PathBuf)>) -> Result<Versions, String> {
    let mut numbered = Vec::with_capacity(files.len());
    for (digits, file) in files {
        let seqno = digits.parse().ok().and_then(|number| Seqno::new(number).ok());
        let seqno =
            seqno.ok_or_else(|| format!("version {digits} is beyond the last seqno, {}", Seqno::MAX))?;
        numbered.push((seqno, file));
    }
    numbered.sort();
    for pair in numbered.windows(2) {
        let [(before, _), (after, _)] = pair else { continue };
        match after.get() - before.get() {
            0 => return Err(format!("version {after} is there twice")),
            1 => {}
            2 => {
                return Err(format!("version {} is missing, between {before} and {after}", before.get() + 1));
            }
            _ => {
                let missing = format!("{} to {}", before.get() + 1, after.get() - 1);
                return Err(format!("versions {missing} are missing, between {before} and {after}"));
            }
        }
    }
    let first = numbered.first().map(|(seqno, _)| *seqno).ok_or("it has no versions")?;
    Ok(Versions { shard, first, sources: numbered.into_iter().map(|(_, file)| Source::File(file)).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        dir
    }

    fn seqno(number: u64) -> Seqno {
        Seqno::new(number).unwrap()
    }

    #[test]
    fn each_folder_is_a_log_in_the_order_of_its_numbers() {
        let dir = folder(&["b/10.json", "b/9.json", "b/00000000000000000011.json", "a/0.json"]);
        let found = read(dir.path()).unwrap();
        assert_eq!(found.ignored, 0);
        let names: Vec<_> = found.logs.iter().map(|log| log.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let b = found.logs[1].versions.as_ref().unwrap();
        assert_eq!((b.first, b.last(), b.sources.len()), (seqno(9), seqno(11), 3));
        assert_eq!(b.source(seqno(10)), Some(&Source::File(dir.path().join("b/10.json"))));
        assert_eq!((b.source(seqno(8)), b.source(seqno(12))), (None, None));
        assert_eq!(b.sources[0].read().unwrap(), "b/9.json");
    }

    #[test]
    fn what_is_no_version_is_counted_not_taken() {
        let dir = folder(&[
            "README.md",
            "0.json",
            "a/0.json",
            "a/_last_checkpoint",
            "a/00000000000000000010.checkpoint.parquet",
            "a/-1.json",
            "a/+1.json",
            "a/1.JSON",
            "a/.json",
            "a/2.json/0.json",
            "empty/x",
        ]);
        let found = read(dir.path()).unwrap();
        assert_eq!(found.logs.len(), 1);
        assert_eq!(found.logs[0].versions.as_ref().unwrap().last(), seqno(0));
        // Two files beside the folders, seven things in `a`, one in `empty`, and `empty` itself.
        assert_eq!(found.ignored, 2 + 7 + 1 + 1);
    }

    #[test]
    fn a_gap_says_which_versions() {
        let dir = folder(&["one/0.json", "one/2.json", "many/3.json", "many/9999.json", "whole/5.json"]);
        let found = read(dir.path()).unwrap();
        let error = |index: usize| found.logs[index].versions.as_ref().unwrap_err().as_str();
        assert_eq!(error(0), "versions 4 to 9998 are missing, between 3 and 9999");
        assert_eq!(error(1), "version 1 is missing, between 0 and 2");
        assert_eq!(found.logs[2].versions.as_ref().unwrap().first, seqno(5));
    }

    #[test]
    fn a_version_twice_or_too_large_is_an_error() {
        let dir = folder(&["large/9223372036854775808.json", "twice/1.json", "twice/01.json"]);
        let found = read(dir.path()).unwrap();
        let error = |index: usize| found.logs[index].versions.as_ref().unwrap_err().as_str();
        assert!(error(0).contains("9223372036854775808"));
        assert_eq!(error(1), "version 1 is there twice");
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = read(Path::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/at/all"), "{error}");
    }
}
