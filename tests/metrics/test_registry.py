"""What every metric of the catalog keeps to, in one parametrised test each; and how metrics are named and found."""

from __future__ import annotations

import copy
import dataclasses
import importlib.metadata
import pickle
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import encoder_folders
import metrist
import tiny_rewards
from error_codes import raises_code
from metrist.errors import ModelError, SpecError
from metrist.metrics import registry
from metrist.metrics.base import Metric, Shard
from metrist.metrics.lexical.chrf import Chrf
from metrist.metrics.lexical.descriptive import Length
from metrist.metrics.registry import build, build_all, example, names
from metrist.records import Record
from metrist.scores import Scores
from tiny_text_encoders import write_text_encoder

ODD_TEXTS = [
    "",
    " \n\t ",
    "\x00",
    "\ud800\udfff lone",
    "the cat sat on the mat.",
    "The cat, the CAT and the hat\nsat on 1,000.50 mats!",
    "мама мыла раму",
    "我喜欢猫。 カタカナ 한국어",
    "ภาษาไทย हिन्दी",
    "\u202eשלום עולם\u202c مرحبا",
    "👩‍👩‍👧 ❤️ e\u0301 İ ß ﬁ",
    "a a a a a a a a a a a a",
    "&quot;x&quot; <skipped> -\n",
]
any_text = st.one_of(st.sampled_from(ODD_TEXTS), st.text(st.characters(), max_size=20))


def odd_records(count: int = 60) -> list[Record]:
    rng = random.Random(3)
    return [
        Record(
            item=str(i),
            system="s",
            output=rng.choice(ODD_TEXTS),
            source=rng.choice(ODD_TEXTS),
            references=tuple(rng.choices(ODD_TEXTS, k=rng.randint(1, 3))),
        )
        for i in range(count)
    ]


def rows(scores: Scores) -> list[tuple[object, ...]]:
    """Scores as bytes, so that equal means equal to the bit (and NaN equals NaN)."""
    columns = [scores.values, *scores.parts.values(), *scores.stats.T]
    numbers = np.stack(columns, axis=1)
    return [(numbers[i].tobytes(), scores.failures.get(i)) for i in range(len(scores))]


#: Metrics with a model, and the kind of tiny model that stands in for theirs. Those with a model in their name cannot
#: take another, and share all but the name with one that can.
TINY = {
    "bertscore": "bert",
    "moverscore": "bert",
    "embedding_cosine": "bert",
    "likelihood": "t5",
    "bartscore": "bart",
    "bartscore_para": "bart",
    "prism_style": "marian",
    "gptscore": "gpt2",
    "perplexity": "llama",
    "preference": "bert",
    "fluency": "text encoder",
    "consistency": "text encoder",
}
PLAIN = [name for name in names() if not example(name).resident and example(name).text == name]

each_metric = pytest.mark.parametrize("name", names())
each_plain = pytest.mark.parametrize("name", PLAIN)


@pytest.fixture(scope="module", params=TINY)
def with_tiny_model(
    request: pytest.FixtureRequest, tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Metric:
    """A metric with a small random model."""
    name, tmp_path = request.param, tmp_path_factory.mktemp("models")
    cls: Callable[..., Metric] = type(example(name))
    if name == "consistency":
        return cls(model=str(write_text_encoder(tmp_path / name)))
    if name == "preference":
        return cls(model=str(tiny_rewards.plain(tiny(TINY[name]), tmp_path / name)))
    if TINY[name] == "text encoder":
        return cls(model=str(encoder_folders.export_random(tmp_path / name, "bert", {"fluency": 1, "tags": 1})))
    own = {"prism_style": {"language": None}}.get(name, {})
    return cls(**{"model": str(tiny(TINY[name])), **own})


@pytest.mark.parametrize(
    ("text", "extra"),
    [
        ("consistency", "standard"),
        ("consistency(model='large')", "large"),
        ("fluency(model='metrist:english-large')", "large"),
        ("preference(model='large')", "large"),
        ("preference(model=['small', 'large'])", "large"),
        ("preference", "standard"),
        ("quality(size='large')", "large"),
        ("errors(size='large')", "large"),
        ("errors", "standard"),
        ("fluency(model='my-folder')", "standard"),
    ],
)
def test_the_extra_is_that_of_the_model(text, extra):
    assert build(text).extra == extra


def test_every_metric_is_plain_or_tried_with_a_tiny_model_or_has_its_reason():
    own_tests = {
        "bartscore_large",
        "bartscore_cnn",
        "calibrated",
        "answer_preference",
        "translation_quality",
        "answer_relevance",
        "context_relevance",
        "rag",
        "quality",
        "external",
        "comet",
        "bleurt",
        "unieval",
    }
    own_tests |= {"judge", "panel", "errors", "tigerscore", "error_analysis", "by_score", "judge_pair", "panel_pair"}
    own_tests |= {"judge_choice", "judge_grade"}
    assert sorted([*PLAIN, *TINY, *own_tests]) == sorted(names())


@each_metric
def test_the_text_reads_back_to_an_equal_metric(name):
    metric = example(name)
    assert metric.name == name
    assert build(metric.text) == metric


@each_plain
def test_the_signature_carries_all_settings_and_the_version(name):
    spec, *facts = build(name).signature.split(" | ")
    assert f"metrist {metrist.__version__}" in facts
    assert build(spec) == build(name)


def test_the_signature_of_a_metric_with_a_model_tells_its_weights(with_tiny_model):
    spec, *facts = with_tiny_model.signature.split(" | ")
    assert build(spec) == with_tiny_model
    assert any(fact.startswith("weights ") for fact in facts)


def test_scores_of_a_model_do_not_depend_on_shard_size_or_order(with_tiny_model):
    records = odd_records(24)
    full = with_tiny_model.score(Shard(records))
    halves = [with_tiny_model.score(Shard(part)) for part in (records[:7], records[7:])]
    backwards = with_tiny_model.score(Shard(records[::-1]))
    # Exponentials of log-probabilities, such as a perplexity, keep only relative precision.
    np.testing.assert_allclose(np.concatenate([half.values for half in halves]), full.values, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(backwards.values[::-1], full.values, rtol=1e-5, atol=1e-5)


def test_any_text_is_scored_by_a_model_within_the_bounds_or_fails_with_a_reason(with_tiny_model):
    low, high = with_tiny_model.bounds
    scores = with_tiny_model.score(Shard(odd_records(100)))
    scored = scores.values[~np.isnan(scores.values)]
    assert len(scored) > 30
    assert low - 1e-6 <= scored.min() <= scored.max() <= high + 1e-6


def test_an_empty_output_fails_with_a_reason_and_no_records_give_no_scores(with_tiny_model):
    record = Record(item="0", system="s", output="", source="a", references=("the cat", "a dog"))
    score = with_tiny_model.score(Shard([record]))[0]
    assert score.failure or np.isfinite(score.value)
    assert len(with_tiny_model.score(Shard([]))) == 0


@each_plain
@pytest.mark.parametrize("reduce", ["native", "max", "mean"])
def test_scores_do_not_depend_on_shard_size_or_order(name, reduce):
    metric = build(f"{name}(reduce='{reduce}')" if hasattr(build(name), "reduce") else name)
    records = odd_records()
    full = rows(metric.score(Shard(records)))
    alone = [row for record in records for row in rows(metric.score(Shard([record])))]
    backwards = rows(metric.score(Shard(records[::-1])))[::-1]
    assert full == alone == backwards


@each_metric
def test_the_pickle_is_small_and_the_metric_survives_it(name):
    pickled = pickle.dumps(example(name))
    assert len(pickled) < 1000
    assert pickle.loads(pickled) == example(name)


@each_plain
def test_any_text_in_any_field_is_scored_within_the_bounds(name):
    metric = build(name)
    low, high = metric.bounds

    @settings(max_examples=40)
    @given(output=any_text, source=any_text, references=st.lists(any_text, min_size=1, max_size=3))
    def scored(output, source, references):
        record = Record(item=output, system=source, output=output, source=source, references=tuple(references))
        score = metric.score(Shard([record]))[0]
        assert (score.failure is not None) or low <= score.value <= high

    scored()


@each_plain
def test_an_empty_output_gets_a_score_or_a_failure_that_says_why(name):
    score = build(name).score(Shard([Record(item="0", system="s", output="", source="a", references=("a b", "c"))]))[0]
    assert score.failure or score.value in (0.0, 1.0, 100.0) or name == "ter"


@each_plain
def test_an_equal_output_is_not_worse_than_another(name):
    metric = build(name)
    text, other = "the small cat sat on the old mat near the warm red stove", "no word of it"
    built = [Record(item="0", system="s", output=o, source=text, references=(text,)) for o in (text, other)]
    equal, different = metric.score(Shard(built)).values
    if metric.higher_is_better is not None:
        assert equal > different if metric.higher_is_better else equal < different


@each_plain
def test_a_shard_without_records_has_no_scores(name):
    assert len(build(name).score(Shard([]))) == 0


@each_metric
def test_an_unknown_setting_is_refused(name):
    with raises_code(SpecError, "unknown_name", name, "'wibble'"):
        build(f"{name}(wibble=1)")


@each_metric
def test_a_setting_with_choices_takes_no_other_value(name):
    metric: Any = example(name)
    types = get_type_hints(type(metric))
    for setting in dataclasses.fields(metric):
        if setting.init and get_origin(types[setting.name]) is Literal:
            choices = ", ".join(map(repr, get_args(types[setting.name])))
            with raises_code(SpecError, "invalid_value", name, setting.name, choices, "'wibble'"):
                dataclasses.replace(metric, **{setting.name: "wibble"})


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("chrff", "unknown_name", ("'chrff'", "did you mean 'chrf'")),
        ("rogueL", "unknown_name", ("'rogueL'", "did you mean 'rougeL'")),
        ("rougeL(stemm=True)", "unknown_name", ("'stemm'", "did you mean 'stem'")),
        ("rougeL(stem=1)", "invalid_value", ("stem", "True or False", "got 1")),
        ("rouge2(order=3)", "conflict", ("rouge2", "order")),
        ("distinct(order='two')", "invalid_value", ("order", "a whole number", "'two'")),
        ("distinct(order=True)", "invalid_value", ("order", "a whole number", "True")),
        ("meteor(wordnet=3)", "invalid_value", ("wordnet", "a string or None", "got 3")),
        ("meteor(alpha='x')", "invalid_value", ("alpha", "a number", "'x'")),
        ("rougeL(reduce=1)", "invalid_value", ("reduce", "'native', 'max', 'mean'", "got 1")),
        ("no_such_module.Metric", "invalid_value", ("'no_such_module.Metric'", "'no_such_module'")),
        ("json.Metric", "invalid_value", ("'json.Metric'", "json has no 'Metric'")),
        ("json.JSONDecoder", "invalid_value", ("'json.JSONDecoder'",)),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_reason(text, code, values):
    with raises_code(SpecError, code, *values):
        build(text)


OF_A_USER = '''
from dataclasses import dataclass

from metrist import Metric, Scores


@dataclass(frozen=True)
class Shouting(Metric):
    """The share of capital letters."""

    marks: str
    weight: float = 1.0
    bounds = (0, 1)
    higher_is_better = False

    def score(self, shard):
        return Scores.of(self.weight * sum(map(str.isupper, r.output)) / max(1, len(r.output)) for r in shard.records)
'''


@pytest.fixture
def users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in ("my_metrics", "broken_metrics"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    (tmp_path / "my_metrics.py").write_text(OF_A_USER)
    return tmp_path


@pytest.mark.usefixtures("users_folder")
def test_a_users_metric_is_imported_by_its_dotted_name_and_printed_back():
    metric = build("my_metrics.Shouting(marks='!')")
    assert metric.text == "my_metrics.Shouting(marks='!')"
    assert build(metric.text) == metric
    assert " | code " in metric.signature
    assert metric.score(Shard([Record(item="0", system="s", output="HeLlo")])).values.tolist() == [0.4]


@pytest.mark.usefixtures("users_folder")
def test_an_edit_of_a_users_metric_changes_its_signature(users_folder, monkeypatch):
    before = build("my_metrics.Shouting(marks='!')").signature
    (users_folder / "other_metrics.py").write_text(OF_A_USER.replace("max(1, ", "max(2, "))
    monkeypatch.delitem(sys.modules, "other_metrics", raising=False)
    after = build("other_metrics.Shouting(marks='!')").signature
    assert before.split(" | code ")[1] != after.split(" | code ")[1]


@pytest.mark.usefixtures("users_folder")
def test_a_setting_without_a_default_must_be_given():
    with raises_code(SpecError, "missing_value", "'marks'", "my_metrics.Shouting"):
        build("my_metrics.Shouting")


@pytest.mark.usefixtures("users_folder")
def test_import_paths_are_refused_where_a_text_comes_from_a_file():
    with raises_code(SpecError, "untrusted", "accepted"):
        build("my_metrics.Shouting(marks='!')", allow_import=False)
    assert build("rougeL", allow_import=False).name == "rougeL"


SENDS = "openai(model='m', url='http://127.0.0.1:9/v1', key='SOME_SECRET')"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (f"judge(llm={SENDS})", ("openai(key=…)", "http://127")),
        (f"by_score(metric=judge(llm={SENDS}))", ("openai(key=…)",)),
        (f"panel(judges=[judge(llm={SENDS}), judge(llm=openai(model='m'))])", ("openai(key=…)",)),
        ("judge(llm=openai(model='m', headers=['X-Gate: $SOME_SECRET']))", ("openai(headers=…)", "//api.openai")),
        ("judge(llm=openai(model='m', key='SOME_SECRET'))", ("openai(key=…)", "https://api.openai")),
        ("tigerscore(llm=vllm(model='m', trust_remote_code=True))", ("vllm(trust_remote_code=True)",)),
        ("bertscore(model='m', trust_remote_code=True)", ("bertscore(trust_remote_code=True)",)),
    ],
)
def test_a_text_from_a_file_neither_runs_code_nor_sends_what_the_environment_holds(text, values):
    with raises_code(SpecError, "untrusted", "--allow-import", *values):
        build(text, allow_import=False)
    assert build(text).text == text


@pytest.mark.parametrize(
    "llm",
    [
        "openai(model='m')",
        "openai(model='m', key='OPENAI_API_KEY')",
        "openai(model='m', url='http://127.0.0.1:9/v1', headers=['X-Team: red'])",
        "transformers(model='m')",
        "replay(file='answers.jsonl')",
    ],
)
def test_an_llm_that_is_sent_no_variable_may_stand_in_a_file(llm):
    assert build(f"judge(llm={llm})", allow_import=False) == build(f"judge(llm={llm})")


def test_a_risky_llm_of_stored_scores_is_built_but_disabled():
    metric = build(f"judge(llm={SENDS})", allow_import=False, disable_risky_llms=True)
    assert metric == build(f"judge(llm={SENDS})")
    for disabled in (metric, pickle.loads(pickle.dumps(metric))):
        with raises_code(ModelError, "model_unusable", "yourself"):
            disabled.score(Shard([Record(item="0", system="s", output="a", source="b")]))


def test_a_users_module_that_breaks_is_named(users_folder):
    (users_folder / "broken_metrics.py").write_text("1 / 0")
    with raises_code(SpecError, "invalid_value", "'broken_metrics.X'"):
        build("broken_metrics.X")


def points(*pairs: tuple[str, str]) -> importlib.metadata.EntryPoints:
    group = registry.ENTRY_POINTS
    return importlib.metadata.EntryPoints(importlib.metadata.EntryPoint(n, v, group) for n, v in pairs)


def test_other_packages_add_metrics_through_entry_points(monkeypatch):
    added = points(
        ("size", "metrist.metrics.lexical.descriptive:Length"), ("rougeL", "json:loads"), ("gone", "no_such:Thing")
    )
    monkeypatch.setattr(registry, "entry_points", lambda group: added.select(group=group))
    assert [*names()[-2:]] == ["size", "gone"]
    assert build("size(unit='characters')") == Length(unit="characters")
    assert build("rougeL").name == "rougeL"  # metrist's own names cannot be taken over
    with raises_code(SpecError, "invalid_value", "'gone'", "'no_such'"):
        build("gone")


def test_a_metric_object_is_taken_as_it_is():
    metric = Length()
    assert build(metric) is metric


class Plain(Metric):
    def score_record(self, record: Record) -> float:
        return float(len(record.output))


@dataclass(frozen=True, kw_only=True)
class Demanding(Metric):
    words: str


def test_a_class_is_built_with_its_defaults_and_other_values_are_refused_with_a_hint() -> None:
    assert isinstance(build(Plain), Plain)
    assert [type(metric) for metric in build_all([Plain, "chrf"])] == [Plain, Chrf]
    assert build_all({"mine": Plain})[0].label == "mine"
    with raises_code(SpecError, "invalid_value", "class int"):
        build(int)
    with raises_code(SpecError, "missing_value", "'words'"):
        build(Demanding)
    for value, named in ((3.5, "3.5 (float)"), (None, "None (NoneType)")):
        with raises_code(SpecError, "invalid_value", named):
            build(value)
    with raises_code(SpecError, "missing_value", "5"):
        build_all(5)


def test_a_name_changes_neither_text_nor_signature_nor_equality_and_travels_with_copies() -> None:
    metric = build("chrf(word_order=2)")
    named = build("plus=chrf(word_order=2)")
    assert (named.label, named.text, named.signature) == ("plus", metric.text, metric.signature)
    assert named == metric
    assert hash(named) == hash(metric)
    assert pickle.loads(pickle.dumps(named)).label == copy.deepcopy(named).label == "plus"
    assert metric.label == named.named(None).label == "chrf(word_order=2)"


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a,b", "(a", "'a'", "-a", "a/b", "a\n"])
def test_names_that_could_be_misread_are_refused(name: str) -> None:
    with raises_code(SpecError, "invalid_value", repr(name)):
        build("chrf").named(name)


def test_a_metric_has_one_name() -> None:
    with raises_code(SpecError, "invalid_value", "a=chrf"):
        build("a=b=chrf")


def test_a_setting_cannot_take_the_place_of_what_every_metric_has() -> None:
    with raises_code(SpecError, "invalid_value", "'label'"):
        type("Labelled", (Metric,), {"__annotations__": {"label": "str"}})


def test_an_alias_is_the_metric_it_stands_for():
    assert build("chrF++") == build("chrf++") == build("chrf(word_order=2)")
    assert build("chrf++").text == "chrf(word_order=2)"
    named = build("plus=chrf++")
    assert (named.label, named.text) == ("plus", "chrf(word_order=2)")
