"""A device of one's own from the command line, and times that were measured on another."""

import json

import pytest
from making import model_head

from profiles.machines.clusters import CLUSTERS, load_cluster
from profiles.machines.devices import DEVICES
from sim.cli.main import main

MODEL = f"""{model_head("mine")}[[components]]
name = "net"
trainable = true
"""
LAYERS = """\
component,index,block,name,parameters,backward,conv_gflop,matmul_gflop,attention_gflop,moved_MB,kernels,output_MB,saved_MB
net,0,0,a,1000,full,0,100,0,1,1,1,1
"""
TIMES = "component,index,batch_size,forward_ms,backward_ms\nnet,0,1,500,1000\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model ``mine``, a device ``my-gpu`` and a cluster of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "times").mkdir(parents=True)
    (tmp_path / "mine" / "model.toml").write_text(MODEL)
    (tmp_path / "mine" / "layers.csv").write_text(LAYERS)
    device = (DEVICES / "a100-80gb-sxm.toml").read_text(encoding="utf-8")
    (tmp_path / "my-gpu.toml").write_text(device.replace('"a100-80gb-sxm"', '"my-gpu"', 1))
    cluster = (CLUSTERS / "p4de.toml").read_text(encoding="utf-8")
    (tmp_path / "box.toml").write_text(cluster.replace('"a100-80gb-sxm"', '"my-gpu.toml"', 1))
    return tmp_path


@pytest.fixture
def run(capsys):
    """A function that runs a point and gives its result and what went to stderr."""

    def run(cluster, *arguments):
        asked = ["run", "--model", "mine", "--gpus", "1", "--strategy", "ddp", "--batch-size", "1"]
        asked += ["--cluster", cluster]
        assert main([*asked, "--json", *arguments]) == 0
        out, err = capsys.readouterr()
        return json.loads(out), err

    return run


def test_a_result_of_a_brought_device_is_reproduced_by_its_cluster_file(folder, run):
    assert load_cluster("box.toml").device.name == "my-gpu"
    result, err = run("box.toml")
    assert (result["cluster"], result["provenance"], err) == ("box.toml", "estimated", "")
    assert result["iteration_s"] == run("p4de")[0]["iteration_s"]  # the same rates under another name
    assert run(result["cluster"])[0] == result


def test_times_measured_on_other_devices_alone_are_warned_of(folder, run):
    for name in ("my-gpu", "older-gpu"):
        (folder / "mine" / "times" / f"{name}.csv").write_text(TIMES)
    for task in ((), ("--checkpointing", "full")):
        result, err = run("p4de", *task)
        assert result["provenance"] == "estimated"
        assert err == (
            "sim: warning: mine has times measured on my-gpu, older-gpu, but cluster p4de is of device"
            " a100-80gb-sxm: layers without times on it are estimated by its rates\n"
        )
