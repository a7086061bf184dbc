"""The dataclass is the command line: presets, precedence, round trip, refusals."""

import dataclasses

import pytest

from genda_mjx import agents, presets, schedule
from genda_mjx import config as c
from genda_mjx.config import Config, UserError
from genda_mjx.runs.arguments import parse
from genda_mjx.runs.folder import differences, without_start


def test_both_spellings_reach_the_same_field():
    assert parse(["--num_envs", "7"]) == parse(["--num-envs", "7"])
    assert parse(["--no_cib"]).agent.no_cib and parse(["--no-cib"]).agent.no_cib


def test_paper_defaults_of_every_body():
    for env, skill, cib in (("quadruped", 2, 256), ("humanoid", 2, 256), ("fish", 3, 256), ("dog", 2, 512)):
        got = parse(["--env", env])
        assert (got.skill_dim, got.agent.cib_dim, got.hidden, got.batch_size, got.utd) == (skill, cib, 1024, 256, 0.5)
        assert (got.num_envs, got.buffer_size, got.agent.initial_lambda, got.learning_rate) == (
            2,
            1_000_000,
            30.0,
            1e-4,
        )


def test_flags_win_over_presets_wherever_they_stand():
    small = parse(["--preset", "small", "--env", "fish"])
    assert (small.hidden, small.skill_dim) == (128, 3)
    for order in (["--hidden", "77", "--preset", "small"], ["--preset", "small", "--hidden", "77"]):
        assert parse(["--env", "fish", *order]) == dataclasses.replace(small, hidden=77)
    # A flag that repeats the paper's value is still the user's word against the preset.
    assert parse(["--preset", "small", "--hidden", "1024"]).hidden == 1024


def test_small_presets_go_beyond_the_paper_only_where_episodes_can_be_turned():
    quadruped = ["--env", "quadruped", "--preset", "small"]
    assert parse(quadruped).agent.turned_share == 0.5 and parse(quadruped).agent.keep_floor == 1
    assert parse([*quadruped, "--no_cib"]).agent.turned_share == 0.5
    for flags in ("--no_relabel", "--relabel roll", "--relabel random", "--observation paper", "--pixels"):
        config = parse([*quadruped, *flags.split()])
        c.validate(config)
        assert config.agent.turned_share == config.agent.keep_floor == 0
    c.validate(parse([*quadruped, "--algo", "metra"]))
    fish = ["--env", "fish", "--preset", "small"]
    assert parse(fish).agent.keep_floor == 0.5 and parse(fish).agent.turned_share == 0
    humanoid = ["--env", "humanoid", "--preset", "small"]
    assert parse(humanoid).entropy_target == 0 and parse([*humanoid, "--algo", "diayn"]).entropy_target is None
    assert parse([*humanoid, "--entropy_target", "None"]).entropy_target is None  # then it is the paper's
    assert parse([*fish, "--observation", "paper"]).agent.keep_floor == 0  # then it learns as in the paper
    with pytest.raises(UserError, match="--turned_share"):
        c.validate(parse([*quadruped, "--no_relabel", "--turned_share", "0.5"]))


def test_a_list_of_skills_is_longer_than_a_direction():
    assert parse(["--algo", "metra", "--discrete"]).skill_dim == 16
    assert parse(["--algo", "metra", "--discrete", "--skill_dim", "24"]).skill_dim == 24
    assert parse(["--algo", "metra"]).skill_dim == 2
    assert parse(["--algo", "csf", "--discrete"]).skill_dim == 16


def test_json_round_trip_and_unknown_field():
    original = parse(["--env", "dog", "--preset", "small", "--beta", "0.25", "--no_relabel"])
    assert Config.from_json(original.to_json()) == original
    with pytest.raises(UserError, match="colour"):
        Config.from_json('{"algo": "genda", "colour": 1}')


def test_presets_name_real_fields():
    names = set().union(*(Config().replace(algo=algo).flat() for algo in agents.AGENTS))
    for values in (presets.SMALL, presets.ACCELERATOR, *presets.ENV_PRESETS.values(), *presets.SMALL_ENV.values()):
        assert set(values) <= names
    for algo in agents.AGENTS:
        assert set(Config().replace(algo=algo).agent.defaults()) <= set(Config().flat())
    assert names >= c.RESUMABLE


def test_resume_starts_from_the_stored_config(tmp_path):
    stored = parse(["--env", "fish", "--hidden", "33", "--no_cib", "--out", str(tmp_path)])
    (tmp_path / "config.json").write_text(stored.to_json())
    resumed = parse(["--resume", "--out", str(tmp_path), "--total_steps", "123456"])
    assert resumed == dataclasses.replace(stored, resume=True, total_steps=123456)
    assert differences(stored, resumed) == []
    other = parse(["--resume", "--out", str(tmp_path), "--env", "dog", "--hidden", "34", "--no_cib"])
    assert differences(stored, other) == [
        "env is 'fish' in the run, 'dog' asked",
        "hidden is 33 in the run, 34 asked",
    ]
    with pytest.raises(UserError, match="nothing to resume"):
        parse(["--resume", "--out", str(tmp_path / "none")])


@pytest.mark.parametrize(
    "change",
    [
        {"num_envs": 0},
        {"utd": 0.0},
        {"batch_size": 1},
        {"mix_ratio": 1.5},
        {"keep_threshold": -0.1},
        {"seed": -1},
        {"hidden": -4},
        {"eval_every": -1},
        {"discount": 1.01},
        {"learning_rate": float("nan")},
        {"learning_rate": float("inf")},
        {"beta": float("inf")},
        {"initial_lambda": 0.0, "algo": "metra"},
    ],
)
def test_out_of_range_values_name_their_flag(change):
    with pytest.raises(UserError, match=f"--{next(iter(change))}"):
        c.validate(Config().replace(**change))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--discrete"], "--discrete is an option of metra and csf, not of genda"),
        (["--algo", "csf", "--no_cib"], "--no_cib is an option of genda, not of csf"),
        (
            ["--algo", "diayn", "--initial_lambda", "3"],
            "--initial_lambda is an option of genda and metra, not of diayn",
        ),
    ],
)
def test_an_option_of_another_agent_is_refused(arguments, words):
    with pytest.raises(UserError, match=words):
        parse(arguments)


def test_another_agent_starts_with_its_own_options():
    config = Config().replace(beta=3.0, hidden=7)
    assert (config.agent.beta, config.hidden) == (3.0, 7)
    other = config.replace(algo="metra", discrete=True)
    assert (other.agent.discrete, other.hidden) == (True, 7) and "beta" not in other.flat()
    with pytest.raises(TypeError, match="beta"):
        other.replace(beta=1.0)


def test_schedule_of_the_paper():
    plan = schedule.derive(presets.preset("quadruped", "paper"), 200)
    assert plan.steps_per_iteration == 400 and plan.updates_per_iteration == 200  # 2 episodes, 200 gradient steps
    assert plan.capacity == 5000 and plan.warmup_iterations == 50 and plan.iterations == 25_000


def test_schedule_of_thousands_of_envs():
    """2048 envs in 8 cohorts: 256 episodes end every 25 steps, and each step is sampled 64 times."""
    config = presets.preset("quadruped", "accelerator")
    plan = schedule.derive(config, 200, 8)
    assert (plan.steps_per_iteration, plan.episodes_at_once, plan.updates_per_iteration) == (51_200, 256, 800)
    assert plan.capacity == 20_480 and plan.warmup_iterations == 7
    assert plan.updates_per_iteration * config.batch_size / plan.steps_per_iteration == 64


def test_many_envs_alone_choose_their_schedule():
    """`--num_envs 2048` is the accelerator's schedule; a schedule of one's own, few envs or --preset paper are not."""
    dog = ["--env", "dog", "--num_envs"]
    chosen = parse([*dog, "2048"])
    assert chosen == presets.preset("dog", "accelerator").replace(preset="auto", out=chosen.out)
    assert chosen.agent.cib_dim == 512
    small = parse([*dog, "256", "--hidden", "64"])
    assert (small.cohorts, small.batch_size, small.utd, small.hidden) == (8, 512, 1 / 8, 64)
    paper = (1, 256, 0.5)
    for flags in (["255"], ["2048", "--preset", "paper"]):
        got = parse([*dog, *flags])
        assert (got.cohorts, got.batch_size, got.utd) == paper
    assert (parse([*dog, "2048", "--utd=0.1"]).batch_size, parse([*dog, "2048", "--cohorts", "4"]).utd) == paper[1:]
    assert parse([*dog, "260"]).cohorts == 4  # which divides 260


def test_a_start_says_what_the_schedule_means():
    dog = schedule.derive(many := parse(["--env", "dog", "--num_envs", "2048"]), 200)
    lines = schedule.remarks(many, dog, 10_000_000)
    assert "--preset paper keeps" in lines[0] and "at least" in lines[1] and "days; --preset small" in lines[1]
    paper = parse(["--env", "dog", "--num_envs", "2048", "--preset", "paper"])
    assert "on one policy" in schedule.remarks(paper, schedule.derive(paper, 200), 10_000_000)[0]
    small = parse(["--preset", "small"])
    assert schedule.remarks(small, schedule.derive(small, 200), 100_000) == []


def test_what_belongs_to_a_start_is_not_stored():
    config = parse(["--num_devices", "2", "--coordinator", "a:1", "--num_processes", "2", "--process_id", "0"])
    stored = without_start(config)
    assert stored == parse([]) and differences(stored, config) == []


def test_schedule_rounds_to_whole_iterations():
    config = dataclasses.replace(
        Config(),
        num_envs=3,
        total_steps=2000,
        warmup_episodes=4,
        buffer_size=1999,
        eval_every=601,
        checkpoint_every=0,
        utd=0.01,
    )
    plan = schedule.derive(config, 200)
    assert (plan.iterations, plan.warmup_iterations, plan.capacity, plan.updates_per_iteration) == (3, 2, 9, 6)
    assert (plan.eval_steps, plan.checkpoint_steps, plan.total_steps) == (1200, 0, 1800)


@pytest.mark.parametrize(
    ("change", "word"),
    [({"total_steps": 399}, "one iteration"), ({"buffer_size": 399}, "holds"), ({"utd": 0.001}, "no update")],
)
def test_schedule_refuses(change, word):
    with pytest.raises(UserError, match=word):
        schedule.derive(dataclasses.replace(Config(), **change), 200)
