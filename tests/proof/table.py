"""The promises, their tests and figures. docs/PROMISES.md is generated from this table and from `measured.json`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.promises import faults

PAGE = Path(__file__).parents[2] / "docs" / "PROMISES.md"
MEASURED = Path(__file__).parent / "measured.json"


@dataclass(frozen=True)
class Promise:
    """One row.

    Attributes:
        name: as in `P3`.
        says: the promise, in one sentence.
        tests: node ids; those of the first line run in `make test`.
        gate: what `make test` tries.
        full: what `make proof` tries.
        proofs: node ids that `make proof` runs for it, in place of or besides `tests`.
        instead: where the figure or the promise cannot hold as it was meant: why, and what holds.
    """

    name: str
    says: str
    tests: tuple[str, ...]
    gate: str
    full: str
    proofs: tuple[str, ...] = ()
    instead: str = ""


LIVES = "tests/promises/test_lives.py::"
MOMENTS = "tests/promises/test_moments.py::"
FIGURES = "tests/proof/test_figures.py::"
HTTP = "tests/proof/test_http_figures.py::"
SWARM = LIVES + "test_swarms_of_faults"
FAULTS = "tests/promises/test_simulated.py::test_a_fault_strikes_often_enough_and_everything_heals"

PROMISES: tuple[Promise, ...] = (
    Promise(
        "P1",
        "No worker outlives a supervisor that is killed by SIGKILL.",
        ("tests/worker/test_orphans.py::test_no_worker_outlives_the_module",),
        "13 states, once each",
        "200 kills over 13 states, each gone within 250 ms",
        (FIGURES + "test_no_orphans",),
    ),
    Promise(
        "P2",
        "A stop leaves nothing: no process, socket, file or waiting caller.",
        (MOMENTS + "test_a_stop_at_any_step", "tests/app/test_cli.py::test_a_signal_ends_everything"),
        "25 moments of a simulated life, 2 signals to a gateway",
        "every step of a simulated life; 50 SIGTERMs to a gateway under load, exit within grace + 1 s",
        (MOMENTS + "test_a_stop_at_any_step", FIGURES + "test_clean_stops"),
    ),
    Promise(
        "P3",
        "Every operation ends by its deadline and the kill grace.",
        (SWARM, MOMENTS + "test_a_reply_one_tick_around_its_deadline"),
        "960 operations under faults, exact in virtual time",
        "120,000 operations under faults",
        (SWARM,),
    ),
    Promise(
        "P4",
        "Each operation has one outcome, and a served one has the right answer.",
        (SWARM, "tests/lane/test_simulation.py::test_ten_thousand_requests_and_every_kind_of_trouble"),
        "10,000 + 960 operations",
        "120,000 operations",
        (SWARM,),
    ),
    Promise(
        "P5",
        "Nothing is replayed: no part of an operation reaches a worker twice.",
        (SWARM, "tests/lane/test_faults.py::test_a_worker_killed_in_mid_quantum"),
        "960 operations, by the bytes sent",
        "120,000 operations",
        (SWARM,),
        "A sequence that a worker refused for want of KV cells before it evaluated anything is started once more "
        "(docs/scheduler.md): the worker has said itself that nothing happened.",
    ),
    Promise(
        "P6",
        "`not_admitted` is true: no byte of the request went to a worker.",
        (SWARM,),
        "960 operations, by the bytes sent",
        "120,000 operations",
        (SWARM,),
    ),
    Promise(
        "P7",
        "A worker has one request at a time.",
        (SWARM, "tests/worker/test_life.py::test_one_request_at_a_time"),
        "960 operations, by the bytes on the wire",
        "120,000 operations",
        (SWARM,),
    ),
    Promise(
        "P8",
        "Who is not the worker that was started gets nothing.",
        (
            "tests/worker/test_crashes.py::test_an_impostor_gets_nothing",
            "tests/worker/test_crashes.py::test_a_boot_that_fails",
            "tests/wire/test_hostile.py::test_an_impostor_gets_nothing",
            "tests/worker/test_crashes.py::test_a_launcher_in_between_is_an_impostor",
        ),
        "14 wrong HELLOs, 14 failing boots, strangers and launchers",
        "10,000 wrong handshakes, 2,000 strangers closed within 100 ms",
        (FIGURES + "test_impostors", FIGURES + "test_strangers"),
    ),
    Promise(
        "P9",
        "Whatever a peer sends is events or one RemoteProtocolError, however it is cut.",
        (
            "tests/wire/test_hostile.py::test_any_bytes_however_cut",
            "tests/wire/test_hostile.py::test_a_thousand_mutated_control_frames",
        ),
        "1,000 mutated frames and Hypothesis' examples",
        "2 million mutated frames; `make fuzz` goes on from there",
        (FIGURES + "test_any_frame",),
        "100 million frames and 4 hours of coverage guidance are the sum over `make fuzz` runs, in its ledger.",
    ),
    Promise(
        "P10",
        "Memory follows the bytes that came, not the length that was claimed.",
        ("tests/wire/test_hostile.py::test_memory_follows_what_came",),
        "128 ends",
        "10,000 hostile prefixes, one after the other",
        (FIGURES + "test_hostile_prefixes",),
    ),
    Promise(
        "P11",
        "Quarantine comes with the N-th crash in the window, never before.",
        (
            "tests/policy/test_budget.py::test_quarantine_comes_with_the_nth_crash_in_the_window_and_never_before",
            "tests/lane/test_faults.py::test_quarantine_at_exactly_the_third_crash_and_only_there",
        ),
        "500 schedules, and real workers",
        "100,000 schedules",
        (FIGURES + "test_crash_budget",),
    ),
    Promise(
        "P12",
        "A quarantined model costs the others nothing.",
        (LIVES + "test_quarantine_is_local",),
        "50 of 50 served beside it",
        "5,000 of 5,000",
        (LIVES + "test_quarantine_is_local",),
    ),
    Promise(
        "P13",
        "Health never waits on a worker.",
        (FIGURES + "test_health_beside_stopped_workers",),
        "20 answers, all workers stopped",
        "1,000 answers, all workers stopped; p99 within 5 ms",
        (FIGURES + "test_health_beside_stopped_workers",),
        "The bound is on the supervisor's own answer; over HTTP on a machine of two cores p99 is reported beside it.",
    ),
    Promise(
        "P14",
        "A worker's output is bounded and never blocks anybody.",
        ("tests/worker/test_crashes.py::test_a_log_flood_is_bounded_and_blocks_nobody",),
        "5 MB, the tail exact",
        "1 GB, memory up by 2 MiB at most",
        (FIGURES + "test_log_flood",),
    ),
    Promise(
        "P15",
        "Nothing leaks: descriptors, processes, threads, sockets, permits.",
        ("tests/host/test_process.py::test_the_suite_sees_a_leak", SWARM),
        "after every test of the suite (`no_leaks` in tests/conftest.py)",
        "the same, and `make soak`",
        (SWARM,),
    ),
    Promise(
        "P16",
        "A caller that leaves takes its work along.",
        (
            MOMENTS + "test_a_caller_cancelled_at_every_checkpoint",
            "tests/http/test_disconnect.py::test_in_mid_stream",
            "tests/http/test_disconnect.py::test_while_the_first_byte_is_awaited",
            "tests/app/test_streams.py::test_a_client_that_leaves_ends_its_generation",
        ),
        "3 styles, silent, ticking and stalled; every checkpoint of a call",
        "1,000 disconnects, released within 50 ms",
        (HTTP + "test_disconnects",),
    ),
    Promise(
        "P17",
        "A client that does not read hurts itself only.",
        (
            "tests/http/test_many.py::test_slow_and_silent_connections_do_not_keep_others_from_being_served",
            "tests/http/test_shutdown.py::test_a_client_that_does_not_read_cannot_hold_it_up",
            "tests/lane/test_serving.py::test_a_slow_reader_holds_back_only_itself",
        ),
        "500 bad connections, 20 good ones",
        "32 stalled and 32 good ones: p99 at most doubled, 1 MiB each",
        (HTTP + "test_stalled_readers",),
    ),
    Promise(
        "P18",
        "An early refusal arrives and leaks nothing.",
        (
            "tests/http/test_bodies.py::test_an_early_answer_arrives_although_the_body_is_unread_and_no_task_stays",
            "tests/http/test_bodies.py::test_a_client_that_writes_everything_before_it_reads_gets_the_early_answer",
        ),
        "2 MiB in flight",
        "1,000 refusals with a large body in flight, 0 leaked",
        (HTTP + "test_early_refusals",),
    ),
    Promise(
        "P19",
        "`completed` never lies: a stream cut anywhere is no success.",
        (
            "tests/contract/test_events.py::test_a_stream_cut_at_any_byte_never_looks_complete",
            "tests/app/test_consumer.py::test_a_stream_that_is_cut_anywhere_is_no_success",
            "tests/upstream/test_misbehaviour.py::test_every_cut_of_a_good_stream_fails",
        ),
        "every byte",
        "every byte",
    ),
    Promise(
        "P20",
        "Every documented limit holds, at the limit and one beyond.",
        (
            "tests/contract/test_limits.py::test_limit",
            "tests/app/test_consumer.py::test_bounds_are_what_descriptors_say",
        ),
        "all limits",
        "all limits",
    ),
    Promise(
        "P21",
        "Requests are closed and errors are shaped.",
        ("tests/contract/test_mutations.py::test_every_mutation_is_refused_as_it_must_be",),
        "20,000 mutated bodies",
        "1 million mutated bodies",
        (FIGURES + "test_mutated_bodies",),
    ),
    Promise(
        "P22",
        "Secrets do not leak.",
        (
            "tests/contract/test_redact.py::test_a_planted_credential_does_not_leave",
            "tests/app/test_typed.py::test_prompts_are_never_logged",
            "tests/upstream/test_misbehaviour.py::test_nothing_is_sent_twice_and_no_key_leaks",
        ),
        "all planted shapes",
        "all planted shapes",
    ),
    Promise(
        "P23",
        "Only our callers: Host, Origin, key, content type, HTTP version.",
        (
            "tests/http/test_guard.py::test_host",
            "tests/http/test_guard.py::test_origin",
            "tests/http/test_guard.py::test_key",
            "tests/http/test_guard.py::test_content_type",
            "tests/http/test_http1.py::test_refused_before_any_application_sees_it",
        ),
        "the whole matrix",
        "the whole matrix",
    ),
    Promise(
        "P24",
        "Workers are boxed.",
        (
            "tests/worker/test_sandbox.py::test_a_worker_reads_its_model_and_nothing_else",
            "tests/host/test_process.py::test_the_environment_is_an_allow_list",
        ),
        "tried from inside",
        "tried from inside",
        instead="exec is not refused by itself: what is executed keeps the box (no_new_privs, Landlock).",
    ),
    Promise(
        "P25",
        "The wall clock is decoration.",
        (LIVES + "test_the_wall_clock_moves_nothing",),
        "a life under a clock that jumps by days: the same journal",
        "the same",
        (LIVES + "test_the_wall_clock_moves_nothing",),
    ),
    Promise(
        "P26",
        "A seed replays.",
        (LIVES + "test_a_seed_replays_in_every_interpreter",),
        "2 seeds, three times each, in two interpreters",
        "200 seeds",
        (LIVES + "test_a_seed_replays_in_every_interpreter",),
        "It takes trio's deterministic scheduling, which is private to trio and which the test switches on.",
    ),
    Promise(
        "P27",
        "Numbers are faithful.",
        (
            "tests/contract/test_results.py::test_float32_survives_json_bit_for_bit",
            "tests/contract/test_results.py::test_cut_vectors_are_the_leading_values_with_norm_one",
            "tests/contract/test_results.py::test_incoherent_embeddings_are_refused",
        ),
        "1 million patterns",
        "1 million patterns",
    ),
    Promise(
        "P28",
        "A hostile runtime directory is refused.",
        (
            "tests/host/test_rundir.py::test_a_wider_mode_is_refused",
            "tests/host/test_rundir.py::test_a_symbolic_link_is_refused",
            "tests/host/test_rundir.py::test_a_path_too_long_for_sockets_is_refused_at_once",
            "tests/host/test_rundir.py::test_a_second_instance_is_refused",
        ),
        "all kinds",
        "all kinds",
    ),
    Promise(
        "P29",
        "When the faults end everything is ready again within 60 s.",
        (FAULTS, SWARM),
        "37 faults, one after the other, and 8 swarms",
        "37 faults, 100 times each, at every place where they can strike; and 1,000 swarms (P3)",
        (FAULTS,),
    ),
    Promise(
        "P30",
        "Overload is polite.",
        (LIVES + "test_overload_is_polite",),
        "1 s at ten times the capacity, in virtual time",
        "60 s at ten times the capacity, in virtual time",
        (LIVES + "test_overload_is_polite",),
    ),
    Promise(
        "G1",
        "What is generated under a schema validates, or ends with `length`.",
        ("tests/llama/test_grammar.py::test_generated_schemas_validate_or_end_with_length",),
        "60 generated schemas, the real engine",
        "200 generated schemas",
        ("tests/llama/test_grammar.py::test_generated_schemas_validate_or_end_with_length",),
    ),
    Promise(
        "G2",
        "The same prompt, options and seed give the same text under any load.",
        ("tests/llama/test_generate.py::test_eight_streams_equal_each_alone",),
        "8 streams of 32 tokens, the real engine, at one thread and two, each equal to itself alone",
        "8 streams of 200 tokens, greedy and sampled; the same of Gemma 3 270M Q4_K_M in `strict`",
        (
            "tests/llama/test_generate.py::test_eight_streams_equal_each_alone",
            "tests/llama/test_generate.py::test_gemma_in_strict_is_the_same_in_any_company",
        ),
    ),
)


def read_measured() -> dict[str, dict[str, str]]:
    """promise → gate | full → what was measured last."""
    if not MEASURED.exists():
        return {}
    found: dict[str, dict[str, str]] = msgspec.json.decode(MEASURED.read_bytes())
    return found


def write_measured(found: dict[str, dict[str, str]]) -> None:
    MEASURED.write_bytes(msgspec.json.format(msgspec.json.encode(dict(sorted(found.items()))), indent=2) + b"\n")


def as_markdown() -> str:
    """The generated part of docs/PROMISES.md."""
    measured = read_measured()
    lines = ["| | promise | tests | `make test` | `make proof` | last measured |", "|---|---|---|---|---|---|"]
    for promise in PROMISES:
        tests = "<br>".join(f"`{test}`" for test in dict.fromkeys((*promise.tests, *promise.proofs)))
        figure = measured.get(promise.name, {})
        last = "; ".join(f"{kind}: {figure[kind]}" for kind in ("gate", "full") if figure.get(kind)) or "not yet"
        lines.append(f"| {promise.name} | {promise.says} | {tests} | {promise.gate} | {promise.full} | {last} |")
    lines += ["", "What does not hold as it was meant:", ""]
    lines += [f"- **{promise.name}**: {promise.instead}" for promise in PROMISES if promise.instead]
    soak = measured.get("soak", {}).get("full")
    lines += ["", f"Soak, last run: {soak or 'not yet'}."]
    return "\n".join(lines) + "\n"


END = "<!-- end -->\n"


def renewed(text: str) -> str:
    """The page's text with its tables as the code has them."""
    for name, table in (("promises", as_markdown()), ("faults", faults.as_markdown())):
        begin = f"<!-- table: {name} -->\n"
        before, found, rest = text.partition(begin)
        if not found:
            raise ValueError(f"{PAGE} has no table {name}")
        text = before + begin + table + END + rest.partition(END)[2]
    return text


def renew_page() -> None:
    """Put the tables into the page."""
    PAGE.write_text(renewed(PAGE.read_text()))
