"""The tests that `make test` leaves out and `make test-all` runs, by marker: the one place that says which.

A pattern is that of a file or of a test without its parameters; it is matched as a file name is, `*` also matches `/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache

#: The marker of each test that uses this fixture.
FIXTURES = {"tiny": "models", "data": "data"}

PATTERNS: dict[str, tuple[str, ...]] = {
    "browser": ("tests/browser/*",),
    "torture": ("tests/torture/*",),
    # Import torch or transformers, which takes seconds, and often train.
    "models": (
        "tests/cli/test_cli_train_consistency.py",
        "tests/cli/test_cli_train_error_analysis.py",
        "tests/cli/test_cli_train_preference.py",
        "tests/compat/test_bart_scorer.py",
        "tests/compat/test_bert_score.py",
        "tests/compat/test_tiger_scorer.py",
        "tests/hostile/test_hostile_weights.py::test_a_state_dict_is_refused",
        "tests/models/test_generation.py",
        "tests/llm/test_openai_real_server.py",
        "tests/metrics/embedding/test_bertscore.py",
        "tests/metrics/likelihood/test_gptscore.py",
        "tests/metrics/likelihood/test_perplexity.py",
        "tests/metrics/test_token_weights.py::test_idf_agrees_with_bert_score",
        "tests/models/test_batching.py::test_torchs_*",
        "tests/models/test_causal.py",
        "tests/models/test_devices.py",
        "tests/models/test_encoder.py",
        "tests/models/test_gguf_export.py",
        "tests/models/test_head.py",
        "tests/models/test_languages.py",
        "tests/models/test_plain_cores.py::test_a_process_forked_*",
        "tests/models/test_plain_reward.py::test_the_real_minilm_*",
        "tests/models/test_reward_layout.py",
        "tests/models/test_reward_model.py",
        "tests/models/test_seq2seq*.py",
        "tests/models/test_text_encoder.py::*_in_torch",
        "tests/models/test_text_encoder.py::test_fewer_bits_*",
        "tests/models/test_trainable_encoder.py",
        "tests/models/test_weights.py::*_hub_*",
        "tests/run/test_resuming_models.py",
        "tests/studies/heap/test_heap_study.py",
        "tests/studies/reproduce/test_shipped_tables.py::test_the_model_beside_*",
        "tests/studies/test_ablation.py",
        "tests/test_model_recipes.py::test_rows_of_several_tasks_*",
        "tests/test_own_metrics.py::test_a_metric_with_a_model_*",
        "tests/test_shipped_*.py",
        "tests/train/*",
    ),
    # Take seconds each: start and kill processes, wait for limits of time, measure memory, repeat a statistic on
    # hundreds of samples.
    "slow": (
        "*::*_a_true_null_*",
        "tests/stats/*::test_intervals_*cover_*",
        "tests/cli/test_cli_prefer.py::test_audit_*",
        "tests/cli/test_progress.py::test_an_interrupted_run_*",
        "tests/evaluate/meta/test_meta_memory.py",
        "tests/evaluate/meta/test_meta_slices.py::test_a_filter_*",
        "tests/evaluate/meta/test_meta_testing.py::test_few_systems_*",
        "tests/evaluate/meta/test_meta_ties.py::test_intervals_*",
        "tests/evaluate/test_evaluate_report.py",
        "tests/io/test_keys.py",
        "tests/io/test_reader_memory.py",
        "tests/kernels/test_ter_edits.py",
        "tests/llm/test_client_faults.py::*_after_the_timeout",
        "tests/llm/test_client_faults.py::test_six_hundred_calls_*",
        "tests/llm/test_client_faults.py::test_what_may_pass_*",
        "tests/llm/test_rate_limit.py::*process*",
        "tests/llm/test_rate_limit.py::*workers*",
        "tests/metrics/errors/test_error_answers.py::*_withstands_attacks_*",
        "tests/metrics/external/test_environments.py",
        "tests/metrics/external/test_external_program.py::test_time_is_limited_*",
        "tests/metrics/judge/test_grades.py::test_the_work_grows_*",
        "tests/run/test_crashes.py",
        "tests/run/test_durability.py",
        "tests/run/test_executors.py::*_cards*",
        "tests/run/test_executors.py::*_worker_*",
        "tests/run/test_pipeline_contract.py::test_a_killed_run_*",
        "tests/run/test_remote_store.py::*_killed_*",
        "tests/run/test_remote_store.py::test_commands_take_urls",
        "tests/run/test_resuming.py",
        "tests/run/test_worker_pool.py",
        "tests/test_docs.py::test_examples_run_*",
        "tests/test_imports.py::test_no_definition_has_a_forbidden_name",
        "tests/test_imports.py::test_there_are_no_import_cycles",
        "tests/web/annotation/test_annotation_server.py::test_a_killed_server_*",
        "tests/web/service/test_service_server.py",
        "tests/web/test_playground.py::test_a_metric_that_takes_too_long_*",
    ),
}


def find_markers(test: str, fixtures: Iterable[str]) -> Iterator[str]:
    """Yield the markers of a test, given its node ID and fixtures."""
    yield from _match_patterns(test.partition("[")[0])
    yield from {FIXTURES[fixture] for fixture in fixtures if fixture in FIXTURES}


@cache
def _match_patterns(name: str) -> list[str]:
    """The markers whose patterns match a test or its file."""
    file = name.partition("::")[0]
    return [
        marker
        for marker, patterns in PATTERNS.items()
        if any(fnmatchcase(name, pattern) or fnmatchcase(file, pattern) for pattern in patterns)
    ]


def is_left_out(file: str, expression: str) -> bool:
    """Whether `-m EXPRESSION` leaves out the whole file, which then need not be imported."""
    return any(
        f"not {marker}" in expression and any(fnmatchcase(file, pattern) for pattern in patterns)
        for marker, patterns in PATTERNS.items()
    )
