//! A subnet of the scripts, for one test.

pub(crate) use crate::processes::{Background, command, run, succeed, words};
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Debug;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The program under test.
pub(crate) const IPOIB: &str = env!("CARGO_BIN_EXE_ipoib");
/// How long something may take to become true in its own time, and how long it is waited for in between.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);
/// Before a command that goes on in the background until it ends by itself.
pub(crate) const LONGEST: &str = "timeout -k 5 600";
/// How long a test may do nothing with its subnet: longer than any step may take. What takes longer hangs.
const LIFE: Duration = Duration::from_secs(400);

/// Names that no other test has, of this run or of another one.
pub(crate) fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "ipoib-t{}-{}-",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Can these tests run here? Says why not.
pub(crate) fn possible() -> bool {
    let missing = [
        "ip", "ping", "iperf3", "curl", "python3", "ifconfig", "setsid",
    ]
    .into_iter()
    .find(|program| {
        let search = std::env::var_os("PATH").unwrap_or_default();
        !std::env::split_paths(&search).any(|directory| directory.join(program).is_file())
    });
    let why = if !rustix::process::geteuid().is_root() {
        "this test needs root, for network namespaces with names".to_owned()
    } else if !Path::new("/dev/net/tun").exists() {
        "this test needs /dev/net/tun".to_owned()
    } else if let Some(program) = missing {
        format!("this test needs the program {program}; tests/run.sh installs it")
    } else {
        return true;
    };
    eprintln!("SKIPPED: {why}");
    false
}

/// Asks until the answer satisfies `is_right`.
#[track_caller]
pub(crate) fn wait_until<T: Debug>(
    what: &str,
    mut ask: impl FnMut() -> T,
    is_right: impl Fn(&T) -> bool,
) -> T {
    let begin = Instant::now();
    loop {
        let answer = ask();
        if is_right(&answer) {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: still {answer:#?}");
        std::thread::sleep(PAUSE);
    }
}

/// Fabric and hosts. Dropping it takes them down.
pub(crate) struct Subnet {
    pub(crate) prefix: String,
    place: TempDir,
    /// Tells the watchdog that all is well.
    alive: mpsc::Sender<()>,
}

impl Subnet {
    fn new() -> Subnet {
        Subnet {
            prefix: unique(),
            place: tempfile::tempdir().unwrap(),
            alive: watchdog(),
        }
    }

    /// Runs `up.sh`; none where that is not possible.
    pub(crate) fn up(hosts: u32) -> Option<Subnet> {
        Subnet::up_with(hosts, &[])
    }

    /// The same with arguments for the fabric.
    pub(crate) fn up_with(hosts: u32, fabric: &[&str]) -> Option<Subnet> {
        if !possible() {
            return None;
        }
        let subnet = Subnet::new();
        succeed(subnet.script("up.sh").arg(hosts.to_string()).args(fabric));
        Some(subnet)
    }

    /// The same with arguments for `ipoib up` of each host, in words between spaces.
    pub(crate) fn up_as(hosts: u32, up: &str) -> Option<Subnet> {
        if !possible() {
            return None;
        }
        let subnet = Subnet::new();
        let mut script = subnet.script("up.sh");
        succeed(script.arg(hosts.to_string()).env("IPOIB_NETNS_UP", up));
        Some(subnet)
    }

    /// The same where the hosts come up by what `manage` does to the fabric, which it finds listening.
    pub(crate) fn up_managed<T>(
        hosts: u32,
        fabric: &[&str],
        manage: impl FnOnce(&Subnet) -> T,
    ) -> Option<(Subnet, T)> {
        if !possible() {
            return None;
        }
        let subnet = Subnet::new();
        let mut up = subnet.script("up.sh");
        let up = up.arg(hosts.to_string()).args(fabric);
        let mut up = Background(up.stdout(Stdio::null()).process_group(0).spawn().unwrap());
        let listens = || std::fs::read_to_string(subnet.directory().join("fabric.url"));
        let listens = || listens().unwrap_or_default();
        wait_until("the fabric listens", listens, |url| url.ends_with('\n'));
        let managers = manage(&subnet);
        let ended = || up.0.try_wait().unwrap();
        let ended = wait_until("up.sh ends", ended, Option::is_some);
        assert!(ended.unwrap().success(), "up.sh failed");
        Some((subnet, managers))
    }

    /// The test goes on.
    fn step(&self) {
        self.alive.send(()).expect("the watchdog watches");
    }

    /// The scripts' directory.
    pub(crate) fn directory(&self) -> PathBuf {
        self.place.path().join("state")
    }

    /// One of the scripts.
    pub(crate) fn script(&self, name: &str) -> Command {
        self.step();
        let mut command = Command::new(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("netns-scripts")
                .join(name),
        );
        command
            .env("IPOIB", IPOIB)
            .env("IPOIB_NETNS_DIR", self.directory())
            .env("IPOIB_NETNS_PREFIX", &self.prefix);
        command
    }

    pub(crate) fn namespace(&self, host: u32) -> String {
        format!("{}{host}", self.prefix)
    }

    /// A command, in words between spaces, in a host's namespace.
    pub(crate) fn on(&self, host: u32, line: &str) -> Command {
        self.step();
        command(&format!("ip netns exec {} {line}", self.namespace(host)))
    }

    /// `ip ARGUMENTS` for a host's namespace.
    #[track_caller]
    pub(crate) fn ip(&self, host: u32, arguments: &str) -> String {
        succeed(&mut command(&format!(
            "ip -n {} {arguments}",
            self.namespace(host)
        )))
    }

    /// One echo, waiting a second for it.
    pub(crate) fn reaches(&self, host: u32, address: &str) -> bool {
        run(&mut self.on(host, &format!("ping -n -c 1 -W 1 {address}")))
            .status
            .success()
    }

    /// Echoes until one comes back.
    #[track_caller]
    pub(crate) fn wait_reaches(&self, host: u32, address: &str) {
        wait_until(
            &format!("host {host} reaches {address}"),
            || self.reaches(host, address),
            |reached| *reached,
        );
    }

    /// `ipoib show TOPIC` of a host.
    pub(crate) fn show(&self, host: u32, topic: &str) -> serde_json::Value {
        self.ask(topic, &format!("ib0@{}", self.namespace(host)))
    }

    /// `ipoib show fabric`.
    pub(crate) fn show_fabric(&self) -> serde_json::Value {
        self.ask("fabric", &format!("fabric@{}", self.port()))
    }

    /// `ipoib show stats` of the fabric.
    pub(crate) fn show_fabric_stats(&self) -> serde_json::Value {
        self.ask("stats", &format!("fabric@{}", self.port()))
    }

    /// A program on a node, by `ipoib diag`: did it succeed, and all that it said.
    pub(crate) fn diag(&self, node: &str, line: &str) -> (bool, String) {
        let mut diag = Command::new(IPOIB);
        diag.args(["diag", "--on", node, "--fabric"])
            .arg(format!("fabric@{}", self.port()))
            .args(line.split_whitespace())
            .current_dir(self.place.path());
        let output = run(&mut diag);
        (output.status.success(), words(&output))
    }

    /// Null where nobody answers.
    fn ask(&self, topic: &str, instance: &str) -> serde_json::Value {
        self.step();
        let output = run(Command::new(IPOIB).args(["show", topic, "--json", "--on", instance]));
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// A host's GID, in words.
    pub(crate) fn gid(&self, host: u32) -> String {
        self.show(host, "link")["gid"]
            .as_str()
            .expect("the host runs")
            .to_owned()
    }

    /// Does the fabric know this GID as a member of any group?
    pub(crate) fn is_member(&self, gid: &str) -> bool {
        let fabric = self.show_fabric();
        let groups = fabric["groups"].as_array().expect("groups of the fabric");
        groups
            .iter()
            .flat_map(|group| group["members"].as_array().unwrap())
            .any(|member| member["gid"] == gid)
    }

    /// Where the fabric listens.
    pub(crate) fn url(&self) -> String {
        self.file("fabric.url")
    }

    /// The port of it.
    pub(crate) fn port(&self) -> String {
        self.url().rsplit(':').next().unwrap().to_owned()
    }

    /// The process of `fabric` or `hostK`.
    pub(crate) fn pid(&self, name: &str) -> i32 {
        self.file(&format!("{name}.pid"))
            .split(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }

    /// SIGKILL to `fabric` or `hostK`, and waits until the process is gone.
    pub(crate) fn kill(&self, name: &str) {
        let pid = self.pid(name);
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        wait_until("the process ends", || runs(pid), |runs| !runs);
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory().join(name))
            .unwrap()
            .trim_end()
            .to_owned()
    }
}

/// Ends all tests, and says what runs, if nothing is heard for too long from what it returns: better than to hang for ever.
fn watchdog() -> mpsc::Sender<()> {
    let (alive, life) = mpsc::channel();
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    std::thread::spawn(move || {
        let silent = loop {
            match life.recv_timeout(LIFE) {
                Ok(()) => {}
                Err(why) => break why == mpsc::RecvTimeoutError::Timeout,
            }
        };
        if silent {
            let ps = command("ps -e -H -ww -o pid,stat,wchan:20,etime,args").output();
            let processes = ps.map(|output| words(&output)).unwrap_or_default();
            // The harness keeps what goes through `eprintln`.
            let said = format!("{test} hangs; these processes run:\n{processes}\n");
            let _ = std::io::stderr().write_all(said.as_bytes());
            std::process::exit(101);
        }
    });
    alive
}

/// Is there such a process, and is it not just waiting for its parent to ask how it ended? As long as one thread has not ended, its devices and
/// sockets are there, whatever became of the first thread.
pub(crate) fn runs(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| threads > 1 || !stat.rsplit(')').next().unwrap().starts_with(" Z"))
}

impl Drop for Subnet {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Ok(files) = std::fs::read_dir(self.directory())
        {
            for path in files
                .flatten()
                .map(|file| file.path())
                .filter(|path| path.extension().is_some_and(|e| e == "log"))
            {
                eprintln!(
                    "{}:\n{}",
                    path.display(),
                    std::fs::read_to_string(&path).unwrap_or_default()
                );
            }
        }
        let output = run(&mut self.script("down.sh"));
        if !output.status.success() {
            eprintln!("down.sh: {}", words(&output));
        }
    }
}
