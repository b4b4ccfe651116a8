"""What a recipe on disk, its layers and its flags add up to, and what each mistake says."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.config import ConfigError, LoadedRecipe, load_recipe, recipe_fingerprint
from posttrain.config.load import MAX_FILE_BYTES


def write(folder: Path, text: str, name: str = "r.toml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def error_of(*paths: Path, overrides: tuple[str, ...] = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        load_recipe(paths, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def origins(loaded: LoadedRecipe) -> dict[str, str]:
    return {key: str(origin) for key, origin in loaded.origins.items() if str(origin) != "default"}


DOMAIN = '[[domain]]\nname = "capitals"\ntasks = "tasks.jsonl"\nprompt = "{question}"\n'


def test_an_empty_recipe_is_all_defaults(tmp_path: Path) -> None:
    loaded = load_recipe([write(tmp_path, "")])
    assert (loaded.recipe.rl.steps, loaded.recipe.adapter.rank, loaded.recipe.model.source) == (28, 16, "smollm2-135m")
    assert origins(loaded) == {} and "rl.steps" in loaded.origins


def test_an_unknown_key_names_the_nearest_one_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "[rl]\nsteps = 3\n\ngroup_sise = 8\n")
    assert error_of(path) == f"{path}:4: rl.group_sise: unknown key; did you mean group_size?"


def test_a_key_of_another_section_is_told_where_it_belongs(tmp_path: Path) -> None:
    assert "did you mean rl.steps?" in error_of(write(tmp_path, "[run]\nsteps = 3\n"))
    assert "steps belongs under [rl]" in error_of(write(tmp_path, "steps = 3\n"))
    assert "did you mean [rl]?" in error_of(write(tmp_path, "[rll]\nsteps = 3\n"))


def test_even_a_hopeless_key_names_a_valid_one(tmp_path: Path) -> None:
    assert "the nearest key of [rl] is " in error_of(write(tmp_path, "[rl]\nzzz = 3\n"))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("rl.learning_rate=-0.1", "rl.learning_rate = -0.1: give a number above 0 and at most 1"),
        ("rl.groups_per_step=0", "give a whole number of at least 1"),
        ("rl.steps=-1", "rl.steps = -1: give a whole number of at least 0"),
        ("rl.steps=1.5", "give a whole number"),
        ("rl.steps=true", "give a whole number"),
        ("rl.steps=many", 'rl.steps = "many": give a whole number'),
        ("rl.temperature=nan", "give a number above 0"),
        ("rl.temperature=inf", "give a number above 0"),
        ("gate.confidence=0.5", "give a number above 0.5 and below 1"),
        ("evaluation.confidence=1", "give a number above 0.5 and below 1"),
        ("evaluation.split=train", 'give "dev" or "sealed"'),
        ("mixture.domains=larger", 'give a list of strings, like ["a", "b"]'),
        ('mixture.domains=["La rger"]', 'mixture.domains holds "La rger"'),
        ("run.name=a/b", "run.name"),
        ("sandbox.driver=process", "allow_unsafe_process = true"),
        ("diagnosis.learnable_min=0.99", "must be below learnable_max"),
    ],
)
def test_a_value_out_of_range_is_told_with_what_may_stand_there(override: str, says: str) -> None:
    assert says in error_of(overrides=(override,))


def test_the_least_share_of_all_domains_together_must_fit(tmp_path: Path) -> None:
    path = write(tmp_path, '[mixture]\ndomains = ["a", "b", "c"]\nfloor = 0.4\n')
    assert error_of(path) == f"{path}:3: mixture.floor: 0.4 times 3 domains is more than all groups: at most 0.3333"
    assert "mixture.floor: 0.4 is above ceiling, 0.3" in error_of(
        write(tmp_path, "[mixture]\nfloor=0.4\nceiling=0.3\n")
    )


def test_a_retention_domain_must_not_be_trained(tmp_path: Path) -> None:
    path = write(tmp_path, '[mixture]\ndomains = ["a"]\nretention = ["a"]\n')
    assert f"{path}:3: mixture.retention: 'a' is trained too" in error_of(path)


def test_later_layers_win_and_every_value_says_where_it_came_from(tmp_path: Path) -> None:
    base = write(tmp_path, "[rl]\nsteps = 1\ngroup_size = 4\nwarmup_steps = 1\n", "base.toml")
    first = write(tmp_path, 'extends = "base.toml"\n[rl]\nsteps = 2\ngroup_size = 5\n', "first.toml")
    second = write(tmp_path, "[rl]\ngroup_size = 6\n", "second.toml")
    loaded = load_recipe([first, second], ["rl.steps=9", "run.name=mine"])
    rl = loaded.recipe.rl
    assert (rl.steps, rl.group_size, rl.warmup_steps, loaded.recipe.run.name) == (9, 6, 1, "mine")
    assert origins(loaded) == {
        "run.name": "--set",
        "rl.steps": "--set",
        "rl.group_size": f"{second}:2",
        "rl.warmup_steps": f"{base}:4",
    }


def test_lists_are_replaced_not_joined(tmp_path: Path) -> None:
    base = write(tmp_path, '[mixture]\ndomains = ["a", "b"]\n', "base.toml")
    assert load_recipe([base], ['mixture.domains=["c"]']).recipe.mixture.domains == ["c"]


def test_recipes_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 'extends = "b.toml"\n', "a.toml")
    write(tmp_path, 'extends = "a.toml"\n', "b.toml")
    assert "extends itself through a.toml -> b.toml -> a.toml" in error_of(tmp_path / "a.toml")


def test_a_missing_parent_is_told_with_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, '# comment\nextends = "nowhere.toml"\n')
    assert f"{path}:2: extends = 'nowhere.toml': there is no file" in error_of(path)
    assert "give the name of one TOML file" in error_of(write(tmp_path, "extends = 3\n"))


def test_a_missing_recipe_names_those_that_exist(tmp_path: Path) -> None:
    write(tmp_path, "", "quickstart.toml")
    assert "no such recipe" in error_of(tmp_path / "quikstart.toml")
    assert "quickstart.toml" in error_of(tmp_path / "quikstart.toml")
    assert "posttrain init" in error_of(tmp_path / "none" / "r.toml")


def test_broken_files_are_one_line_errors(tmp_path: Path) -> None:
    path = write(tmp_path, "[rl]\nsteps = = 3\n")
    assert error_of(path).startswith(f"{path}:2: not valid TOML: ")
    assert "not valid TOML" in error_of(write(tmp_path, 'a = "unfinished'))
    binary = tmp_path / "b.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8 text" in error_of(binary)
    assert "can not be read" in error_of(tmp_path)
    binary.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    assert "is this a recipe?" in error_of(binary)


@pytest.mark.parametrize("override", ["rl.steps", "rl=3", "=3", "rl.=3", ".steps=3"])
def test_a_flag_that_is_no_assignment_shows_how_to_write_one(override: str) -> None:
    assert "--set section.key=value" in error_of(overrides=(override,))


def test_flags_that_miss_the_level_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "[rl]\nsteps = 3\n")
    assert "rl.steps is a value and has no keys" in error_of(path, overrides=("rl.steps.x=3",))
    plain = write(tmp_path, "rl = 3\n", "b.toml")
    assert error_of(path, plain) == f"{plain}:1: rl is a table: set one of its keys, like rl.steps"
    assert error_of(plain, path) == f"{path}:2: rl.steps: rl is a value and has no keys"
    assert error_of(plain) == f"{plain}:1: rl = 3: give a table: write [rl] above its keys"


def test_a_flag_can_not_smuggle_in_a_second_key() -> None:
    loaded = load_recipe([], ["model.source=1\nthreads = 3"])
    assert loaded.recipe.model.source == "1\nthreads = 3" and loaded.recipe.model.threads == 0


def test_values_of_every_toml_shape_have_their_line(tmp_path: Path) -> None:
    text = (
        'model = {source = "x", threads = 2}\n'
        "rl.steps = 4\n"
        "[mixture]\n"
        'domains = [\n  "a",\n  "b", # a comment\n]\n'
        '"retention" = ["""c"""]\n'
        "[run]\n# nothing\nseed = 1\n"
    )
    path = write(tmp_path, text)
    assert origins(load_recipe([path])) == {
        "run.seed": f"{path}:11",
        "model.source": f"{path}:1",
        "model.threads": f"{path}:1",
        "mixture.domains": f"{path}:4",
        "mixture.retention": f"{path}:8",
        "rl.steps": f"{path}:2",
    }


def test_a_domain_of_ones_own_is_read_with_its_lines(tmp_path: Path) -> None:
    write(tmp_path, "{}\n", "tasks.jsonl")
    path = write(tmp_path, '[mixture]\ndomains = ["capitals"]\n' + DOMAIN)
    loaded = load_recipe([path], ["domain.capitals.max_new_tokens=8"])
    (domain,) = loaded.recipe.domain
    assert (domain.name, domain.max_new_tokens, domain.verifier, domain.stop) == ("capitals", 8, "exact", ["\n"])
    assert origins(loaded)["domain.capitals.prompt"] == f"{path}:6"
    assert origins(loaded)["domain.capitals.max_new_tokens"] == "--set"
    assert loaded.value("domain.capitals.prompt") == "{question}"
    assert loaded.base_folder == tmp_path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ('prompt = "{question}"|prompt = "no column"', "needs a named column"),
        ('prompt = "{question}"|prompt = "{question"', "is not a format string"),
        ('prompt = "{question}"|prompt = "{}"', "needs a named column"),
        ('prompt = "{question}"|', "r.toml:3: domain.capitals.prompt is missing"),
        ('prompt = "{question}"|prompt = "{q}"\nstop = [""]', "holds an empty string"),
        ('prompt = "{question}"|promt = "{q}"', "r.toml:6: domain.capitals.promt: unknown key; did you mean prompt?"),
        ('tasks = "tasks.jsonl"|tasks = "gone.jsonl"', "r.toml:5: domain.capitals.tasks: there is no file"),
        (
            'tasks = "tasks.jsonl"|tasks = "tasks.jsonl"\nverifier = "v.py:f"',
            "domain.capitals.verifier: there is no file",
        ),
        ('name = "capitals"|name = 3', "each [[domain]] needs a name"),
        ("[[domain]]|[domain]", "write [[domain]], with two brackets"),
        ('name = "capitals"|name = "other"', "'other' is not used: name it in mixture.domains"),
    ],
)
def test_a_mistake_in_a_domain_is_told_by_its_name(tmp_path: Path, change: str, says: str) -> None:
    write(tmp_path, "{}\n", "tasks.jsonl")
    old, _, new = change.partition("|")
    text = '[mixture]\ndomains = ["capitals"]\n' + DOMAIN
    assert old in text
    assert says in error_of(write(tmp_path, text.replace(old, new)))


def test_two_domains_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "{}\n", "tasks.jsonl")
    assert "an earlier domain has this name" in error_of(write(tmp_path, DOMAIN + DOMAIN))


def test_a_domains_files_stay_with_the_recipe_that_names_them(tmp_path: Path) -> None:
    write(tmp_path, "{}\n", "lib/tasks.jsonl")
    write(tmp_path, "", "lib/v.py")
    write(tmp_path, '[mixture]\ndomains = ["capitals"]\n' + DOMAIN + 'verifier = "v.py:check"\n', "lib/base.toml")
    loaded = load_recipe([write(tmp_path, 'extends = "../lib/base.toml"\n', "mine/r.toml")])
    (domain,) = loaded.recipe.domain
    assert (domain.tasks, domain.verifier) == ("../lib/tasks.jsonl", "../lib/v.py:check")
    assert (loaded.base_folder / domain.tasks).is_file()


def test_sft_can_only_warm_up_what_is_trained(tmp_path: Path) -> None:
    path = write(tmp_path, '[mixture]\ndomains = ["a"]\n[sft]\ndomains = ["b"]\n')
    assert f"{path}:4: sft.domains: 'b' is not trained" in error_of(path)


def test_the_fingerprint_sees_what_changes_results_and_only_that(tmp_path: Path) -> None:
    def fingerprint(*overrides: str) -> str:
        return recipe_fingerprint(load_recipe([], overrides).recipe)

    same = fingerprint()
    assert fingerprint("run.folder=elsewhere", "run.minutes_limit=3") == same
    assert recipe_fingerprint(load_recipe([write(tmp_path, "[rl]\nsteps = 28\n")]).recipe) == same
    changed = ["rl.steps=27", "run.seed=1", "model.threads=1", "model.dtype=float32", "adapter.alpha=8"]
    assert len({same, *(fingerprint(c) for c in changed)}) == len(changed) + 1


def test_the_quickstart_recipe_loads(repository: Path) -> None:
    recipe = load_recipe([repository / "recipes" / "quickstart.toml"]).recipe
    assert len(recipe.mixture.domains) >= 7 and len(recipe.mixture.retention) >= 2
    assert recipe.evaluation.items_per_domain >= 30
