import json

from ananet.pruners import describe_pruners


def test_list(run):
    code, out, _ = run("list")
    assert code == 0 and "(default)" in out
    lines = [line.strip() for line in out.splitlines()]
    assert "@neighbours=4/6/8  a list of whole numbers" in lines
    assert "@rotation=true  true or false" in lines
    assert "@conflict_odds=30.0  a number" in lines
    assert {"Detectors (--detector):", "Matchers (--matcher):", "Estimators (--estimator):"} <= set(lines)


def test_list_as_json(run):
    listed = json.loads(run("list", "--json")[1])
    assert listed["default"] == "ananet"
    assert set(listed["pruners"]) == set(describe_pruners())
    gms = listed["pruners"]["gms"]
    assert gms["summary"] == "Keeps matches whose neighbourhood moves with them."
    assert gms["options"] == {
        "rotation": {"type": "true or false", "default": "true"},
        "scale": {"type": "true or false", "default": "true"},
        "threshold": {"type": "a number", "default": "6.0"},
    }
    assert listed["pruners"]["all"]["options"] == {}
    assert "poselib" in listed["estimators"] and listed["detectors"]["aliked"]["licence"] == "BSD-3-Clause"
