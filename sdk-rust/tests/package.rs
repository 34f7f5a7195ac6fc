//! The package that cargo makes of this crate, as a fresh project uses it: the README's program and
//! the examples, against a real server.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cronoq::testing::TestServer;

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where built things go: beside those of this test.
fn target_folder() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.ancestors().nth(3).unwrap().to_owned()
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {said}");
    output
}

fn cargo(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(folder).args(arguments).env("CARGO_TARGET_DIR", target_folder());
    run(&mut command)
}

/// Packs the crate and unpacks the package, which holds all that it needs.
fn unpacked(into: &Path) -> PathBuf {
    let packed = into.join("packed");
    let to = packed.to_str().unwrap();
    let arguments =
        ["package", "--allow-dirty", "--no-verify", "--offline", "--target-dir", to, "--quiet"];
    run(Command::new(env!("CARGO")).current_dir(crate_folder()).args(arguments));
    let name = concat!("cronoq-", env!("CARGO_PKG_VERSION"));
    let archive = packed.join("package").join(format!("{name}.crate"));
    run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(into));
    into.join(name)
}

fn quickstart(endpoint: &str) -> String {
    let readme = std::fs::read_to_string(crate_folder().join("README.md")).unwrap();
    let (_, rest) = readme.split_once("```rust,no_run\n").unwrap();
    let (program, _) = rest.split_once("```").unwrap();
    assert!(program.contains("127.0.0.1:7070"));
    program.replace("127.0.0.1:7070", endpoint)
}

/// A project that is new to the crate uses its package and does what the README says.
#[tokio::test]
async fn a_fresh_project_runs_the_quickstart() {
    let beside = crate_folder().join("../.venv/bin/cronoq-server");
    let program = std::env::var_os("CRONOQ_SERVER").map_or(beside, PathBuf::from);
    if !program.exists() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "no server: see CRONOQ_SERVER");
        eprintln!("skipped: no server to test against (see CRONOQ_SERVER)");
        return;
    }
    let server = TestServer::start_program(program).await.unwrap();
    let folder = std::env::temp_dir().join(format!("cronoq-package-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("project/src")).unwrap();
    let dependency = unpacked(&folder);
    let project = folder.join("project");
    let manifest = format!(
        "[package]\nname = \"quickstart\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\ncronoq = {{ path = {dependency:?} }}\n\
         tokio = {{ version = \"1\", features = [\"macros\", \"rt-multi-thread\"] }}\n\n\
         [profile.dev]\ndebug = \"line-tables-only\"\n\n[workspace]\n",
    );
    std::fs::write(project.join("Cargo.toml"), manifest).unwrap();
    std::fs::copy(crate_folder().join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
    std::fs::write(project.join("src/main.rs"), quickstart(server.endpoint())).unwrap();
    let output = cargo(&project, &["run", "--quiet", "--offline"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello world\n");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Runs a program against a server whose clock runs by itself, and returns what it printed.
fn with_a_running_clock(server: &Path, program: &Path) -> String {
    let mut serving = Command::new(server)
        .args(["--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(serving.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let endpoint = line.trim().strip_prefix("serving gRPC on ").unwrap();
    let output = run(Command::new(program).arg(endpoint));
    run(Command::new("kill").arg(serving.id().to_string()));
    assert!(serving.wait().unwrap().success());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The examples do what they are there to show.
#[tokio::test]
async fn the_examples_run() {
    let beside = crate_folder().join("../.venv/bin/cronoq-server");
    let program = std::env::var_os("CRONOQ_SERVER").map_or(beside, PathBuf::from);
    if !program.exists() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "no server: see CRONOQ_SERVER");
        eprintln!("skipped: no server to test against (see CRONOQ_SERVER)");
        return;
    }
    let server = TestServer::start_program(&program).await.unwrap();
    // Built along with the tests.
    let examples = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples");
    let endpoint = server.endpoint();
    let told = |name: &str| {
        let output = run(Command::new(examples.join(name)).arg(endpoint));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(
        with_a_running_clock(&program, &examples.join("first_steps")),
        "Ada owes 12.50\nsucceeded in attempt 3\ntrue true\n30\n"
    );
    assert!(told("pipeline").contains("sum of squares: 30\n"));
    let worker = Command::new(examples.join("hello_worker")).arg(endpoint).spawn();
    let mut worker = worker.unwrap();
    let said = told("submit_and_wait");
    assert!(said.contains("baked: 3 × bread\n") && said.contains("nothing to bake"), "{said}");
    // SIGTERM makes it drain and end in order.
    run(Command::new("kill").arg(worker.id().to_string()));
    assert!(worker.wait().unwrap().success());
}
