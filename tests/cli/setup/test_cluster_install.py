"""``cluster install`` with a real sshd and small programs instead of the real ones."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.cli.setup import offline_files
from airflow_megatron.cli.setup.cluster_install import pinned_commit
from airflow_megatron.cli.setup.installation_scripts import InstallationError, LoginNode
from airflow_megatron.cli.setup.offline_files import BUILD_TOOLS, RemotePython, send_file
from airflow_megatron.slurm.remote.login_command import module_lines
from airflow_megatron.slurm.remote.transport import CommandResult
from airflow_megatron.spec.documents.project import job_programs_dir
from airflow_megatron.spec.documents.shipped_files import shipped

if TYPE_CHECKING:
    from login_site import LoginSite

PROFILE = """\
ssh_conn_id: slurm_site
run_root: {cluster}/runs
python: {cluster}/venv/bin/python
megatron_lm_dir: {cluster}/our programs/Megatron-LM
trainers: {{megatron_lm: {{checkout: "{cluster}/upstream/core"}}}}
"""
TAG = "core_v9.9.9"


class Cluster:
    """The site's cluster, its folder, and the project's programs."""

    def __init__(self, site: LoginSite) -> None:
        self.site, self.place = site, site.place / "cluster"
        self.profile = site.place / "sbatch" / "clusters" / "site.yaml"
        self.profile.write_text(PROFILE.format(cluster=self.place))
        self.sources = site.place / "Megatron-LM"
        self.sources.unlink()
        (self.sources / "package" / "__pycache__").mkdir(parents=True)
        for name in (
            "check_environment.py",
            "install.sh",
            "checkout.sh",
            "numpy_product.py",
            "numpy_product.pth",
        ):
            shutil.copyfile(shipped("Megatron-LM") / name, self.sources / name)
        (self.sources / "package" / "part.py").write_text("print('1 ä')\n")
        (self.sources / "package" / "__pycache__" / "part.pyc").write_text("")
        (self.sources / "requirements.lock").write_text("")
        self.programs = self.place / "our programs" / "Megatron-LM"

    def install(self, *words: str, status: int = 0) -> str:
        answer = self.site.call("cluster", "install", "site", *words)
        assert answer.status == status, answer
        return answer.stderr if status else answer.stdout


@pytest.fixture
def cluster(site: LoginSite) -> Cluster:
    return Cluster(site)


def listed(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


class TestPrograms:
    @pytest.mark.slow
    def test_they_are_copied_once(self, cluster: Cluster) -> None:
        assert "copied to" in cluster.install("--only", "programs")
        assert listed(cluster.programs) == {
            "check_environment.py",
            "install.sh",
            "checkout.sh",
            "numpy_product.py",
            "numpy_product.pth",
            "package/part.py",
            "requirements.lock",
        }
        assert (cluster.programs / "package" / "part.py").read_text() == "print('1 ä')\n"
        assert os.access(cluster.programs / "install.sh", os.X_OK)
        assert not os.access(cluster.programs / "requirements.lock", os.X_OK)
        before = cluster.programs.resolve()
        assert "is in place" in cluster.install("--only", "programs")
        assert cluster.programs.resolve() == before

    @pytest.mark.slow
    def test_a_job_that_runs_keeps_the_version_it_began_with(self, cluster: Cluster) -> None:
        cluster.install("--only", "programs")
        before = cluster.programs.resolve()
        (cluster.sources / "package" / "part.py").write_text("print(2)\n")
        assert "copied to" in cluster.install("--only", "programs")
        assert (cluster.programs / "package" / "part.py").read_text() == "print(2)\n"
        assert (before / "package" / "part.py").read_text() == "print('1 ä')\n"
        assert len([*cluster.programs.parent.joinpath("Megatron-LM.versions").iterdir()]) == 2

    @pytest.mark.slow
    def test_old_versions_are_removed_on_request(self, cluster: Cluster) -> None:
        versions = Path(f"{cluster.programs}.versions")
        for text in "abc":
            (cluster.sources / "package" / "part.py").write_text(text)
            cluster.install("--only", "programs")
        now = cluster.programs.resolve()
        first, second = sorted(set(versions.iterdir()) - {now}, key=lambda path: path.stat().st_mtime)
        (versions / "wheels").mkdir()
        month = time.time() - 31 * 86400
        for path in (first, now, versions / "wheels"):
            os.utime(path, (month, month))
        # the age of a version is the time since it was replaced, not since it was created
        (cluster.sources / "package" / "part.py").write_text("d")
        cluster.install("--only", "programs")
        output = cluster.install("--only", "programs", "--prune")
        assert f"old versions: removed {first.name} from {versions}\n" in output
        assert set(versions.iterdir()) == {second, now, versions / "wheels", cluster.programs.resolve()}
        assert "nothing to remove" in cluster.install("--only", "programs", "--prune")

    @pytest.mark.slow
    def test_changed_files_are_restored(self, cluster: Cluster) -> None:
        cluster.install("--only", "programs")
        (cluster.programs / "package" / "part.py").write_text("print(3)\n")
        assert "copied to" in cluster.install("--only", "programs")
        assert (cluster.programs / "package" / "part.py").read_text() == "print('1 ä')\n"

    @pytest.mark.slow
    def test_a_copy_made_by_hand_is_used_when_it_is_the_same(self, cluster: Cluster) -> None:
        shutil.copytree(cluster.sources, cluster.programs)
        assert "is in place" in cluster.install("--only", "programs")
        assert not cluster.programs.is_symlink()

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["folder", "link", "file"])
    def test_a_foreign_folder_is_not_changed(self, kind: str, cluster: Cluster) -> None:
        cluster.programs.parent.mkdir(parents=True)
        other = cluster.site.place / "other"
        other.mkdir()
        (other / "mine").write_text("precious")
        match kind:
            case "folder":
                other.rename(cluster.programs)
            case "link":
                cluster.programs.symlink_to(other)
            case "file":
                cluster.programs.write_text("precious")
        assert "holds something else" in cluster.install("--only", "programs", status=1)
        kept = cluster.programs if kind == "file" else cluster.programs / "mine"
        assert kept.read_text() == "precious"
        assert not Path(f"{cluster.programs}.versions").exists()

    @pytest.mark.slow
    def test_a_place_that_cannot_be_written(self, cluster: Cluster) -> None:
        cluster.place.mkdir()
        (cluster.place / "our programs").write_text("a file")
        assert "cannot be written" in cluster.install("--only", "programs", status=1)

    def test_a_damaged_archive_leaves_nothing(self, cluster: Cluster) -> None:
        with pytest.raises(InstallationError, match="cannot be written"):
            here().call("am_put_programs", str(cluster.programs), "d1", f"{'0' * 64}  x", "bm8gdGFy")
        assert not cluster.programs.exists()
        assert [*Path(f"{cluster.programs}.versions").iterdir()] == []

    def test_a_full_disk_is_one_line(self, cluster: Cluster, tmp_path: Path) -> None:
        tar = tmp_path / "bin" / "tar"
        tar.parent.mkdir()
        tar.write_text(
            "#!/bin/sh\nfor n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do\n"
            '  echo "tar: $n.py: Cannot write: No space left on device" >&2\ndone\nexit 2\n'
        )
        tar.chmod(0o755)
        with pytest.raises(InstallationError) as error:
            here().call(
                *("am_put_programs", str(cluster.programs), "d1", f"{'0' * 64}  x", "bm8gdGFy"),
                variables={"PATH": f"{tar.parent}:{os.environ['PATH']}"},
            )
        reason = "tar: 1.py: Cannot write: No space left on device"
        assert str(error.value) == f"{cluster.programs} cannot be written: {reason}"


def here() -> LoginNode:
    """Return a login node that is this machine."""

    def run(script: str) -> CommandResult:
        ended = subprocess.run(["/bin/sh"], input=script, capture_output=True, text=True, check=False)
        return CommandResult(ended.returncode, ended.stdout, ended.stderr)

    return LoginNode(run)


class TestCheckouts:
    @pytest.fixture(autouse=True)
    def upstream(self, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        """Create a repository with one release; return its commit."""
        repository = tmp_path / "upstream.git"
        monkeypatch.setenv("MEGATRON_LM_REPOSITORY", f"file://{repository}")
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")

        def git(*words: str) -> str:
            me = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
            return subprocess.run(
                ["git", "-C", str(repository), *me, *words], capture_output=True, text=True, check=True
            ).stdout.strip()

        repository.mkdir()
        git("init", "--quiet")
        (repository / "pretrain_gpt.py").write_text("print('gpt')\n")
        git("add", ".")
        git("commit", "--quiet", "-m", "Release")
        git("tag", TAG)
        commit = git("rev-parse", "HEAD")
        (cluster.sources / "releases.yaml").write_text(
            f"repository: nowhere\nreleases:\n  {TAG}: {commit}\n  core_v0.0.1: {'0' * 40}\n"
        )
        return commit

    @pytest.mark.slow
    @pytest.mark.parametrize("words", [[], ["--offline"]])
    def test_a_pinned_release(self, words: list[str], cluster: Cluster, upstream: str) -> None:
        words = ["--only", "programs", "--only", "checkout", "--release", TAG, *words]
        if "--offline" not in words:
            # sshd does not pass variables on, so the command passes the caller's repository to checkout.sh
            assert "MEGATRON_LM_REPOSITORY" not in cluster.site.server.settings
        output = cluster.install(*words)
        folder = cluster.place / "upstream" / "core"
        assert f"checkout of {TAG}: " in output
        assert (folder / "pretrain_gpt.py").is_file()
        head = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        )
        assert head.stdout.strip() == upstream
        assert [path.name for path in folder.parent.iterdir()] == ["core"]
        assert f"checkout of {TAG}: {folder} is in place" in cluster.install(*words)

    @pytest.mark.slow
    @pytest.mark.parametrize("words", [[], ["--offline"]])
    def test_a_foreign_checkout_is_not_changed(self, words: list[str], cluster: Cluster) -> None:
        folder = cluster.place / "upstream" / "core"
        folder.mkdir(parents=True)
        (folder / "mine").write_text("precious")
        cluster.install("--only", "programs")
        message = cluster.install("--only", "checkout", "--release", TAG, *words, status=1)
        assert f"{folder} exists and is not {TAG}" in message
        assert listed(folder) == {"mine"}

    @pytest.mark.slow
    def test_a_release_that_is_not_pinned(self, cluster: Cluster) -> None:
        cluster.install("--only", "programs")
        for words in ([], ["--offline"]):
            message = cluster.install("--only", "checkout", "--release", "core_v1", *words, status=1)
            assert "core_v1" in message
            assert TAG in message

    @pytest.mark.slow
    def test_a_moved_tag(self, cluster: Cluster) -> None:
        cluster.install("--only", "programs")
        (cluster.sources / "releases.yaml").write_text(f"repository: x\nreleases:\n  {TAG}: {'1' * 40}\n")
        message = cluster.install("--offline", "--only", "checkout", "--release", TAG, status=1)
        assert "the tag has moved" in message

    @pytest.mark.slow
    def test_the_place_comes_from_the_profile(self, cluster: Cluster) -> None:
        text = PROFILE.format(cluster=cluster.place)
        cluster.install("--only", "programs")
        two = ["--only", "checkout", "--release", "core_v1", "--release", "core_v2"]
        assert "one place for all releases" in cluster.install(*two, status=1)
        cluster.profile.write_text(text.partition("trainers:")[0])
        assert "names no place for core_v1" in cluster.install(*two, status=1)
        assert "not created" in cluster.install("--only", "checkout")
        cluster.profile.write_text(text.replace('"', "").replace("checkout: ", f"checkout: {{{TAG}: ") + "\n")
        cluster.profile.write_text(cluster.profile.read_text().replace("core}}", "core}}}"))
        assert TAG in cluster.install("--only", "checkout")


def test_the_shipped_releases_are_pinned() -> None:
    assert len(pinned_commit(shipped("Megatron-LM"), "core_v0.16.1")) == 40


CORE = {"megatron/core/__init__.py": "__version__ = '1.0'\n", "megatron/core/datasets/helpers_cpp.py": ""}


def wheel(folder: Path, name: str, version: str, modules: dict[str, str]) -> Path:
    """Write a wheel of modules: path → text."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for module, text in modules.items():
            archive.writestr(module, text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


class TestEnvironments:
    @pytest.mark.integration
    def test_created_from_sent_wheels(self, cluster: Cluster, tmp_path: Path) -> None:
        wheels = tmp_path / "wheels"
        wheel(wheels, "torch", "2.13.0", {"torch.py": "__version__ = '2.13.0'\n"})
        core = wheel(wheels, "megatron-core", "1.0", CORE)
        digest = hashlib.sha256(core.read_bytes()).hexdigest()
        (cluster.sources / "requirements.lock").write_text(f"megatron-core==1.0 --hash=sha256:{digest}\n")
        words = ["--only", "programs", "--only", "environment", "--offline", "--wheels", str(wheels)]
        venv = cluster.place / "venv"

        (wheels / "torch-2.13.0-py3-none-any.whl").rename(tmp_path / "torch-2.13.0-py3-none-any.whl")
        assert "torch" in cluster.install(*words, status=1)
        assert not venv.exists()
        assert [path.name for path in Path(f"{venv}.versions").iterdir()] == ["wheels"]

        (tmp_path / "torch-2.13.0-py3-none-any.whl").rename(wheels / "torch-2.13.0-py3-none-any.whl")
        assert f"environment: made {venv}" in cluster.install(*words)
        python = venv / "bin" / "python"
        code = (
            "import sys; at_start = 'numpy_product' in sys.modules\n"
            "import torch, megatron.core; print(torch.__version__, sys.prefix, at_start)"
        )
        ran = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        assert ran.stdout.split() == ["2.13.0", str(venv), "True"]
        before = venv.resolve()
        for again in (words, words[:-3]):
            output = cluster.install(*again)
            assert f"environment: {venv} is in place" in output
            assert "takes some minutes" not in output
        assert venv.resolve() == before

    @pytest.mark.slow
    def test_a_foreign_environment_is_not_changed(self, cluster: Cluster) -> None:
        venv = cluster.place / "venv"
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python").write_text("precious")
        words = ["--only", "programs", "--only", "environment"]
        assert "was not made by this command" in cluster.install(*words, status=1)
        assert listed(venv) == {"bin/python"}

    @pytest.mark.slow
    def test_an_interpreter_or_a_container_needs_no_environment(self, cluster: Cluster) -> None:
        text = PROFILE.format(cluster=cluster.place).replace(f"{cluster.place}/venv/bin/python", "python3")
        cluster.profile.write_text(text)
        assert "python is python3; write the path" in cluster.install("--only", "environment")
        cluster.profile.write_text(text + "container: {runtime: apptainer, image: /images/x.sif}\n")
        assert "run in the container /images/x.sif" in cluster.install("--only", "environment")

    @pytest.mark.slow
    def test_an_old_interpreter(self, cluster: Cluster) -> None:
        python = cluster.site.place / "python"
        python.write_text("#!/bin/sh\nexit 1\n")
        python.chmod(0o755)
        words = ["--only", "programs", "--only", "environment", "--python", str(python)]
        assert "is not Python 3.11 or newer" in cluster.install(*words, status=1)
        assert not (cluster.place / "venv").exists()

    @pytest.mark.slow
    def test_the_source_of_megatron_core_is_sent_with_its_build_tools(self, tmp_path: Path) -> None:
        """It has no wheel for Python 3.14; to read the name of a source distribution, pip needs the same tools."""
        lock = (job_programs_dir() / "requirements.lock").read_text(encoding="utf-8")
        core = next(line.split()[0] for line in lock.splitlines() if line.startswith("megatron-core=="))
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        source = ["--no-binary", "megatron-core", core]
        subprocess.run([*download, "--dest", tmp_path, *source], check=True)
        subprocess.run([*download, "--dest", tmp_path, *BUILD_TOOLS], check=True)
        offline = ["--no-index", "--find-links", tmp_path, "--dest", tmp_path / "again"]
        subprocess.run([*download, *offline, *source], check=True)
        assert len(list((tmp_path / "again").glob("*.tar.gz"))) == 1

    @pytest.mark.slow
    def test_an_interpreter_without_wheels_needs_a_compiler(self, cluster: Cluster) -> None:
        """For Python 3.14 and newer, megatron-core is compiled."""
        python = cluster.site.place / "python"
        python.write_text(
            "#!/bin/sh\n"
            'case "$*" in *sysconfig*) echo /nonexistent ;; --version) echo Python 3.14.2 ;; esac\n'
        )
        python.chmod(0o755)
        words = ["--only", "programs", "--only", "environment", "--python", str(python)]
        message = cluster.install(*words, status=1)
        assert "Python 3.14.2 needs a C++ compiler" in message
        assert "apt-get install g++ python3-dev" in message
        assert not (cluster.place / "venv").exists()

    @pytest.mark.slow
    def test_an_environment_without_the_compiled_module(self, cluster: Cluster, tmp_path: Path) -> None:
        wheel(tmp_path, "torch", "2.13.0", {"torch.py": "__version__ = '2.13.0'\n"})
        core = wheel(tmp_path, "megatron-core", "1.0", {name: CORE[name] for name in list(CORE)[:1]})
        digest = hashlib.sha256(core.read_bytes()).hexdigest()
        (cluster.sources / "requirements.lock").write_text(f"megatron-core==1.0 --hash=sha256:{digest}\n")
        words = ["--only", "programs", "--only", "environment", "--offline", "--wheels", str(tmp_path)]
        message = cluster.install(*words, status=1)
        assert "the environment is incomplete" in message
        assert "No module named 'megatron.core.datasets'" in message
        assert not (cluster.place / "venv").exists()

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            ("python 3.12 x86_64 glibc 2.28", RemotePython("3.12", "x86_64", 28)),
            ("python 3.11 aarch64", RemotePython("3.11", "aarch64", None)),
            ("python 3.13 x86_64 musl 1.2", RemotePython("3.13", "x86_64", None)),
        ],
    )
    def test_what_wheels_are_collected_for(self, answer: str, expected: RemotePython) -> None:
        remote = RemotePython.of(answer)
        assert remote == expected
        arguments = remote.pip_arguments()
        assert arguments[:4] == ["--python-version", expected.version, "--implementation", "cp"]
        newest = f"manylinux_2_{expected.libc or 17}_{expected.machine}"
        assert arguments[5] == newest
        assert f"manylinux_2_17_{expected.machine}" in arguments
        assert f"manylinux_2_{(expected.libc or 17) + 1}_{expected.machine}" not in arguments

    def test_nothing_is_restricted_for_an_interpreter_like_this_one(self) -> None:
        assert RemotePython.here().pip_arguments() == []


class TestSentFiles:
    @pytest.fixture
    def source(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(offline_files, "PIECE", 1000)
        path = tmp_path / "some file"
        path.write_bytes(os.urandom(4500))
        return path

    def send(self, source: Path, target: Path) -> list[str]:
        sent: list[str] = []
        node = here()

        def run(script: str) -> CommandResult:
            sent.append("am_append" if "\nam_append " in script else "")
            return node.run(script)

        send_file(LoginNode(run), source, str(target), lambda text: None)
        assert target.read_bytes() == source.read_bytes()
        assert not Path(f"{target}.part").exists()
        return [each for each in sent if each]

    @pytest.mark.slow
    def test_whole_and_again(self, source: Path, tmp_path: Path) -> None:
        target = tmp_path / "there" / "it's"
        assert len(self.send(source, target)) == 5
        assert self.send(source, target) == []

    def test_an_empty_one(self, source: Path, tmp_path: Path) -> None:
        source.write_bytes(b"")
        self.send(source, tmp_path / "there")

    def test_an_interrupted_transfer_is_resumed(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "there.part").write_bytes(source.read_bytes()[:2777])
        assert len(self.send(source, tmp_path / "there")) == 2

    @pytest.mark.slow
    @pytest.mark.parametrize("there", ["there", "there.part"])
    def test_a_damaged_one_begins_anew(self, there: str, source: Path, tmp_path: Path) -> None:
        (tmp_path / there).write_bytes(b"x" * 100)
        if there.endswith(".part"):
            with pytest.raises(InstallationError, match="did not arrive as it was sent"):
                self.send(source, tmp_path / "there")
            assert not (tmp_path / "there").exists()
        assert len(self.send(source, tmp_path / "there")) == 5


def test_modules_are_loaded_before() -> None:
    node = here()._replace(
        preparation='module() { echo "$@" >&2; touch /dev/null; }\n' + module_lines(["A b", "C"])
    )
    assert node.call("am_size", "/nowhere/at/all", "x") == "0"


@pytest.mark.slow
def test_unknown_arguments(cluster: Cluster) -> None:
    assert "'wheels' is none of" in cluster.install("--only", "wheels", status=2)
    assert "--wheels requires --offline" in cluster.install("--wheels", "/tmp", status=2)
