"""What each command prints, run for real."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Posttrain

from posttrain.config import load_recipe, recipe_fingerprint
from posttrain.records import Attempt, Split


def test_config_show_prints_a_recipe_that_means_the_same(
    posttrain: Posttrain, repository: Path, tmp_path: Path
) -> None:
    quickstart = repository / "recipes" / "quickstart.toml"
    done = posttrain("config", "show", quickstart, "--set", "rl.steps=2", "--set", "run.minutes_limit=1.5")
    assert done.returncode == 0, done.stderr
    copy = tmp_path / "copy.toml"
    copy.write_text(done.stdout, encoding="utf-8")
    wanted = load_recipe([quickstart], ["rl.steps=2", "run.minutes_limit=1.5"]).recipe
    assert load_recipe([copy]).recipe == wanted


def test_config_show_why_names_file_line_flag_and_default(posttrain: Posttrain, tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text("[rl]\nsteps = 3\n", encoding="utf-8")
    lines = posttrain("config", "show", recipe, "--why", "--set", "run.seed=7").stdout.splitlines()
    said = {line.split(" = ")[0]: line.partition("# ")[2] for line in lines if " = " in line}
    assert said["steps"] == f"{recipe}:2" and said["seed"] == "--set" and said["group_size"] == "default"


def test_config_show_json_holds_recipe_origins_and_fingerprint(posttrain: Posttrain, tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text("[rl]\nsteps = 3\n", encoding="utf-8")
    found = json.loads(posttrain("config", "show", recipe, "--why", "--json").stdout)
    assert found["recipe"]["rl"]["steps"] == 3 and found["origins"]["rl.steps"] == f"{recipe}:2"
    assert found["fingerprint"] == recipe_fingerprint(load_recipe([recipe]).recipe)


def test_init_writes_a_domain_that_really_works(posttrain: Posttrain, tmp_path: Path) -> None:
    done = posttrain("init", tmp_path / "mine")
    assert done.returncode == 0, done.stderr
    recipe = tmp_path / "mine" / "recipe.toml"
    loaded = load_recipe([recipe])
    assert loaded.recipe.mixture.domains == ["second-word"]
    sampled = posttrain("domains", "sample", "second-word", "--recipe", recipe, "--json", "-n", 5)
    tasks = json.loads(sampled.stdout)
    for task in tasks:
        prompt, last = task["prompt"][0]["content"], task["prompt"][0]["content"].splitlines()[-1]
        assert prompt.startswith("Words: cup tree dog.") and last.split()[2].rstrip(".") == task["answer"]


def test_the_starters_verifier_tells_right_from_wrong_and_has_enough_held_out_tasks(
    posttrain: Posttrain, tmp_path: Path
) -> None:
    from posttrain.cli.domains import find
    from posttrain.rewards import resolve_verifier

    posttrain("init", tmp_path)
    recipe = tmp_path / "recipe.toml"
    domain = find("second-word", recipe)
    judge = resolve_verifier("verifier.py:judge", tmp_path)
    for task in domain.draw(5, "train", 0):
        assert judge(task, Attempt(f" {task.answer}")) and judge(task, Attempt(f" '{task.answer.upper()}' x"))
        assert not judge(task, Attempt(" walnuts")) and not judge(task, Attempt(""))
    settings = load_recipe([recipe]).recipe
    assert len(domain.tasks(Split.DEV)) >= settings.evaluation.items_per_domain


def test_init_overwrites_nothing(posttrain: Posttrain, tmp_path: Path) -> None:
    (tmp_path / "verifier.py").write_text("mine", encoding="utf-8")
    done = posttrain("init", tmp_path)
    assert done.returncode == 2 and "verifier.py exists and is not overwritten" in done.stderr
    assert not (tmp_path / "recipe.toml").exists() and (tmp_path / "verifier.py").read_text() == "mine"


def test_doctor_says_whether_the_quickstart_can_run(posttrain: Posttrain) -> None:
    done = posttrain("doctor", "--json")
    found = json.loads(done.stdout)
    levels = {check["name"]: check["level"] for check in found["checks"]}
    assert set(levels) == {"python", "torch", "bfloat16", "cores", "memory", "disk", "cache", "sandbox", "models"}
    assert found["ok"] == (done.returncode == 0) == ("fail" not in levels.values())
    assert levels["python"] == levels["torch"] == "ok" and levels["models"] == "note"


def test_doctor_fails_where_the_cache_can_not_be_written(posttrain: Posttrain) -> None:
    done = posttrain("doctor", POSTTRAIN_CACHE="/proc/1/cache")
    assert done.returncode == 1
    assert "set POSTTRAIN_CACHE to another disk" in done.stdout and "can not run here" in done.stdout


def test_model_list_and_show_say_how_to_fetch_one(posttrain: Posttrain) -> None:
    done = posttrain("model", "list")
    assert done.returncode == 0 and "posttrain model import smollm2-135m" in done.stdout
    assert json.loads(posttrain("model", "list", "--json").stdout) == []
    missing = posttrain("model", "show", "smollm2-135m")
    assert missing.returncode == 2 and "is not in the cache" in missing.stderr


def test_a_model_that_does_not_exist_is_one_line(posttrain: Posttrain) -> None:
    done = posttrain("model", "import", "smollm2-153m")
    assert done.returncode == 2 and "did you mean smollm2-135m?" in done.stderr and done.stderr.count("\n") == 1


def run_folder(path: Path) -> Path:
    path.mkdir()
    row = {"role": "training", "before": 0.2, "after": 0.5, "n": 30, "interval_change": [0.1, 0.5]}
    summary = {"domains": {"larger": row}, "decision": {"verdict": "promote", "reasons": ["targets improved"]}}
    turns = [{"producer": "prompt", "text": "1 or 2? "}, {"producer": "policy", "text": "[red]2[/red]\x1b[31m"}]
    episode = {"task_id": "larger/dev/1", "domain": "larger", "when": "after", "turns": turns, "reward": 1.0}
    (path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    (path / "episodes.json").write_text(json.dumps([episode, episode]), encoding="utf-8")
    return path


def test_show_prints_the_decision_and_episodes_as_plain_text(posttrain: Posttrain, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    done = posttrain("show", folder, "--episodes", 1)
    assert done.returncode == 0, done.stderr
    assert "PROMOTE" in done.stdout and "+30.0" in done.stdout
    assert done.stdout.count("larger/dev/1") == 1
    assert "[red]2[/red]" in done.stdout and "\x1b[31m" not in done.stdout
    found = json.loads(posttrain("show", folder, "--json").stdout)
    assert found["summary"]["decision"]["verdict"] == "promote" and len(found["episodes"]) == 2


def test_show_of_an_unfinished_run_says_how_far_it_is(posttrain: Posttrain, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 0, "phase": "rl"}\n{"step": 1, "phase": "rl"}\n', encoding="utf-8"
    )
    assert "has no summary yet: 2 steps are done" in posttrain("show", tmp_path).stdout.replace("\n", " ")


def test_report_writes_the_page_again(posttrain: Posttrain, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    done = posttrain("report", folder)
    assert done.returncode == 0 and done.stdout.strip() == str(folder / "report.html")
    assert "larger" in (folder / "report.html").read_text(encoding="utf-8")
    missing = posttrain("report", tmp_path / "none")
    assert missing.returncode == 2 and "there is no run folder" in missing.stderr


def test_eval_refuses_what_measures_nothing(posttrain: Posttrain) -> None:
    assert "--domains names none" in posttrain("eval", "m", "--domains", " , ").stderr
    done = posttrain("eval", "m", "--domains", "larger", "--split", "train")
    assert done.returncode == 2 and "train tasks measure nothing" in done.stderr


def test_domains_are_listed_shown_and_sampled(posttrain: Posttrain) -> None:
    cards = json.loads(posttrain("domains", "list", "--json").stdout)
    assert {"arithmetic", "shell", "multiply"} <= {card["name"] for card in cards}
    listed = posttrain("domains", "list").stdout.splitlines()
    assert len(listed) == len(cards) and listed[0].startswith(cards[0]["name"])
    shown = posttrain("domains", "show", "arithmetic").stdout
    assert shown.startswith("name         arithmetic") and "right" in shown
    sampled = posttrain("domains", "sample", "arithmetic", "-n", 2, "--split", "dev").stdout
    assert sampled.count("--- arithmetic/dev/") == 2 and "=> " in sampled
    assert posttrain("domains", "sample", "arithmetic", "-n", 2, "--split", "dev").stdout == sampled


def test_a_domain_that_does_not_exist_names_the_nearest(posttrain: Posttrain) -> None:
    done = posttrain("domains", "show", "arithmetics")
    assert done.returncode == 2 and "did you mean 'arithmetic'" in done.stderr and done.stderr.count("\n") == 1


def test_a_recipe_that_trains_no_domain_is_refused_before_a_model_is_fetched(
    posttrain: Posttrain, tmp_path: Path
) -> None:
    recipe = tmp_path / "r.toml"
    for text, says in (("", "trains no domain"), ('[mixture]\ndomains = ["largr"]\n', "did you mean 'larger'")):
        recipe.write_text(text, encoding="utf-8")
        done = posttrain("run", recipe)
        assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "cache").exists() and not (tmp_path / "here" / "runs").exists()
