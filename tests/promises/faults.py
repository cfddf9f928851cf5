"""The 72 faults, where each is injected, and the tests that do it.

`simulated` names sites of `synapse.testing.SITES`: each strikes at least three times in a run of `make test` and a
hundred times in one of `make proof`, or the run fails. The others strike in real processes, from HTTP clients, or as
input.
"""

from __future__ import annotations

from dataclasses import dataclass

SIMULATED = "tests/promises/test_simulated.py::test_a_fault_strikes_often_enough_and_everything_heals"
_W = "tests/worker/test_crashes.py::"
_M = "tests/promises/test_moments.py::"
_L = "tests/promises/test_lives.py::"
_H = "tests/http/"


@dataclass(frozen=True)
class Fault:
    number: int
    what: str
    simulated: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    """Besides the simulation: real processes and sockets, HTTP clients, input."""
    note: str = ""


FAULTS: tuple[Fault, ...] = (
    Fault(1, "exit before connect", ("exit_at_boot",), (_W + "test_a_boot_that_fails",)),
    Fault(2, "connects, says nothing", ("mute_in_handshake", "mute_at_boot"), (_W + "test_a_boot_that_hangs",)),
    Fault(3, "abort in load", ("crash_in_load",), (_W + "test_death_in_load",)),
    Fault(4, "SIGSEGV in a request", ("crash_in_request",), (_W + "test_death_in_a_request",)),
    Fault(
        5,
        "SIGKILL inside a frame",
        ("crash_in_reply",),
        ("tests/lane/test_faults.py::test_a_worker_killed_in_mid_quantum",),
    ),
    Fault(6, "SIGSTOP while idle", ("deaf",), (_W + "test_a_full_pipe_cannot_extend_the_deadline",)),
    Fault(7, "SIGSTOP while busy, then SIGCONT", ("pause",), (_W + "test_a_hang_ends_at_the_deadline",)),
    Fault(8, "spins in Python", ("hang",), (_W + "test_a_hang_ends_at_the_deadline",)),
    Fault(9, "spins in C, holding the GIL", ("hang",), (_W + "test_a_hang_ends_at_the_deadline",)),
    Fault(10, "ignores SHUTDOWN", ("ignore_shutdown",), ("tests/worker/test_life.py::test_the_kill_ladder",)),
    Fault(11, "exits 0 in a request", ("exit_in_request",), (_W + "test_death_in_a_request",)),
    Fault(
        12, "exits after a complete reply", ("crash_after_reply",), (_W + "test_death_while_idle_is_noticed_at_once",)
    ),
    Fault(
        13, "a grandchild holds output or socket", (), (_W + "test_a_grandchild_that_holds_everything_delays_nothing",)
    ),
    Fault(14, "cannot be killed", ("unkillable",), (), "only a driver makes it so; simulated"),
    Fault(
        15,
        "spawn fails: ENOENT, EACCES, EAGAIN",
        ("spawn_fails",),
        (
            "tests/host/test_process.py::test_programs_that_cannot_be_run",
            "tests/host/test_process.py::test_without_descriptors_a_spawn_fails_typed_and_leaves_nothing",
        ),
    ),
    Fault(
        16,
        "dies at each boot",
        ("exit_at_boot",),
        ("tests/lane/test_faults.py::test_a_worker_that_dies_at_every_start_is_spawned_three_times",),
    ),
    Fault(
        17,
        "PING fine, work hangs",
        ("hang",),
        ("tests/lane/test_faults.py::test_a_hang_is_ended_at_the_units_deadline",),
    ),
    Fault(
        18,
        "SIGKILL to the supervisor in each state",
        (),
        ("tests/worker/test_orphans.py::test_no_worker_outlives_the_module",),
    ),
    Fault(
        19,
        "SIGTERM, SIGINT, also during boot",
        (),
        (
            "tests/app/test_cli.py::test_a_signal_ends_everything",
            "tests/app/test_cli.py::test_a_signal_while_it_loads_ends_it",
        ),
    ),
    Fault(
        20,
        "exits between reap and restart",
        ("exit_at_boot", "spawn_fails"),
        (_W + "test_after_every_kind_of_end_the_next_worker_serves",),
    ),
    Fault(21, "one byte at a time", ("fragment", "drip"), (_W + "test_a_drip_within_the_deadline_is_an_answer",)),
    Fault(22, "EOF between header and raw frame", ("cut_in_reply",), (_W + "test_death_in_a_request",)),
    Fault(23, "half-close", ("half_close",), (_W + "test_a_closed_connection_is_death",)),
    Fault(24, "never reads", ("deaf",), (_W + "test_a_full_pipe_cannot_extend_the_deadline",)),
    Fault(25, "a second connection", (), (_W + "test_the_socket_is_gone_once_the_worker_is_here",)),
    Fault(26, "a stranger connects first", (), (_W + "test_an_impostor_gets_nothing",)),
    Fault(
        27,
        "the socket file is deleted or replaced",
        (),
        ("tests/promises/test_faults.py::test_the_socket_file_vanishes",),
    ),
    Fault(
        28,
        "a stale socket of an earlier generation",
        (),
        ("tests/host/test_rundir.py::test_the_lock_ends_with_its_holder",),
    ),
    Fault(
        29,
        "partial sends and receives",
        ("fragment",),
        ("tests/host/test_endpoint.py::test_many_buffers_and_a_slow_reader",),
        "Python repeats calls that a signal interrupted",
    ),
    Fault(30, "EPIPE while writing", ("reset",), ("tests/host/test_endpoint.py::test_a_peer_that_is_gone",)),
    Fault(31, "a frame of length 0", ("empty_frame",), (_W + "test_a_lie_is_a_crash_of_stage_protocol",)),
    Fault(
        32,
        "a frame of 2**32 - 1 bytes",
        ("garbage",),
        ("tests/wire/test_hostile.py::test_a_length_is_judged_before_anything_is_allocated",),
    ),
    Fault(
        33,
        "bad UTF-8, NaN, depth, doubled keys",
        ("malformed",),
        ("tests/wire/test_hostile.py::test_a_wrong_reply_is_a_violation",),
    ),
    Fault(
        34,
        "an unknown type",
        ("unknown_reply",),
        ("tests/wire/test_conversation.py::test_an_unknown_type_is_read_with_its_raw_frames",),
    ),
    Fault(35, "a wrong or used req_id", ("other_request",), (_W + "test_a_lie_is_a_crash_of_stage_protocol",)),
    Fault(36, "raw size is not the header's", ("raw_lie",), (_W + "test_a_lie_is_a_crash_of_stage_protocol",)),
    Fault(
        37,
        "a frame that nobody asked for",
        ("unsolicited",),
        ("tests/wire/test_hostile.py::test_an_idle_module_takes_nothing",),
    ),
    Fault(38, "HELLO twice", ("hello_twice",), ("tests/wire/test_hostile.py::test_an_idle_module_takes_nothing",)),
    Fault(39, "another version", ("wrong_version", "wrong_nonce"), (_W + "test_a_boot_that_fails",)),
    Fault(40, "a reply of the wrong kind", ("wrong_kind",), (_W + "test_a_lie_is_a_crash_of_stage_protocol",)),
    Fault(41, "text for an unknown sequence", ("unknown_sequence",)),
    Fault(
        42,
        "dims lie, n lies, NaN",
        ("dims_lie", "nan"),
        ("tests/lane/test_faults.py::test_a_reply_that_cannot_be_trusted_is_a_crash",),
    ),
    Fault(
        43,
        "ERR with a flood of text, ANSI, a token",
        ("err", "err_flood"),
        ("tests/contract/test_redact.py::test_control_characters_and_direction_marks_are_escaped",),
    ),
    Fault(
        44,
        "a delta inside a character",
        (),
        ("tests/llama/test_text.py::test_a_character_over_several_tokens_leaves_whole",),
        "JSON cannot carry half a character: 33 covers a worker that tries",
    ),
    Fault(45, "a reply one tick around its deadline", ("slow",), (_M + "test_a_reply_one_tick_around_its_deadline",)),
    Fault(46, "cancelled at every checkpoint", (), (_M + "test_a_caller_cancelled_at_every_checkpoint",)),
    Fault(47, "ready and dead in one moment", ("crash_after_reply",)),
    Fault(48, "a quarantine's end and a request", (), (_L + "test_a_quarantine_and_what_is_asked_at_that_moment",)),
    Fault(49, "a stop during spawn, handshake, load, kill", (), (_M + "test_a_stop_at_any_step",)),
    Fault(50, "a load longer than a boot", ("slow_load",)),
    Fault(
        51,
        "ended by the OOM killer; RLIMIT_DATA",
        ("crash_in_request",),
        (
            "tests/lane/test_faults.py::test_a_worker_killed_in_mid_quantum",
            "tests/text/test_service.py::test_a_template_bomb_costs_its_request_only",
        ),
    ),
    Fault(
        52,
        "no memory for a frame in the supervisor",
        (),
        ("tests/promises/test_faults.py::test_no_memory_for_a_reply",),
    ),
    Fault(
        53,
        "no space, read-only",
        (),
        (
            "tests/promises/test_faults.py::test_a_quarantine_that_cannot_be_recorded",
            "tests/host/test_rundir.py::test_a_directory_that_cannot_be_made",
        ),
    ),
    Fault(
        54,
        "a model cut, swapped or touched",
        (),
        (
            "tests/llama/test_load.py::test_the_digest_is_verified_before_anything_else",
            "tests/text/test_service.py::test_a_file_that_was_replaced_is_not_taken_for_the_old_one",
        ),
    ),
    Fault(
        55,
        "EMFILE at accept, spawn, pidfd",
        (),
        (
            "tests/http/test_listen.py::test_a_process_without_descriptors_accepts_again_when_it_has_some",
            "tests/host/test_process.py::test_without_descriptors_a_spawn_fails_typed_and_leaves_nothing",
        ),
    ),
    Fault(
        56,
        "ENFILE",
        (),
        ("tests/http/test_listen.py::test_a_process_without_descriptors_accepts_again_when_it_has_some",),
        "the same code path as EMFILE; a full system table cannot be had in a test",
    ),
    Fault(57, "the wall clock jumps", (), (_L + "test_the_wall_clock_moves_nothing",)),
    Fault(58, "the event loop stalls for 5 s", (), (_L + "test_a_stalled_event_loop_hangs_nobody",)),
    Fault(
        59,
        "slow headers, slow body",
        (),
        (_H + "test_http1.py::test_slow_headers_are_cut", _H + "test_bodies.py::test_a_body_that_drips_is_cut"),
    ),
    Fault(
        60,
        "a body longer or shorter than declared; bad chunks",
        (),
        (
            _H + "test_faults.py::test_a_body_that_breaks_the_framing_ends_the_request",
            _H + "test_faults.py::test_a_body_shorter_than_declared_is_a_disconnect",
        ),
    ),
    Fault(
        61,
        "over the bound, refused while it comes",
        (),
        (
            _H + "test_guard.py::test_the_bodys_bound",
            _H + "test_bodies.py::test_a_client_that_writes_everything_before_it_reads_gets_the_early_answer",
        ),
    ),
    Fault(
        62,
        "never reads",
        (),
        (_H + "test_backpressure.py::test_a_blocked_client_blocks_send_and_nothing_more_is_accepted",),
    ),
    Fault(
        63,
        "FIN, RST, half-close",
        (),
        (
            _H + "test_disconnect.py::test_while_the_first_byte_is_awaited",
            _H + "test_disconnect.py::test_in_mid_stream",
        ),
    ),
    Fault(
        64, "pipelines and leaves", (), (_H + "test_disconnect.py::test_in_mid_stream_with_a_pipelined_request_behind",)
    ),
    Fault(
        65,
        "h2, WebSocket, TLS, CL+TE, two Hosts, absolute form",
        (),
        (
            _H + "test_http1.py::test_refused_before_any_application_sees_it",
            _H + "test_faults.py::test_h2_is_never_spoken",
        ),
    ),
    Fault(
        66,
        "500 connections, idlers, a flood",
        (),
        (
            _H + "test_many.py::test_slow_and_silent_connections_do_not_keep_others_from_being_served",
            _H + "test_listen.py::test_beyond_the_limit_connections_wait_unaccepted",
        ),
    ),
    Fault(
        67,
        "one request_id several times at once",
        (),
        ("tests/promises/test_faults.py::test_one_request_id_several_times_at_once",),
    ),
    Fault(
        68,
        "Expect: 100-continue, then silence",
        (),
        (_H + "test_bodies.py::test_expect_and_then_silence_is_cut_by_the_body_deadline",),
    ),
    Fault(
        69,
        "hostile GGUF headers",
        (),
        (
            "tests/tokenizer/test_gguf.py::test_twenty_thousand_mutated_headers",
            "tests/tokenizer/test_gguf.py::test_bad_files_are_refused_by_name",
        ),
    ),
    Fault(
        70,
        "hostile images",
        (),
        (
            "tests/contract/test_media.py::test_what_is_no_png",
            "tests/contract/test_media.py::test_what_is_no_jpeg",
            "tests/contract/test_media.py::test_random_bytes_never_raise",
        ),
    ),
    Fault(
        71,
        "template bombs, tokenizer backtracking",
        (),
        (
            "tests/text/test_service.py::test_a_template_bomb_costs_its_request_only",
            "tests/tokenizer/test_hostile.py::test_long_texts",
        ),
    ),
    Fault(
        72,
        "paths: links, devices, FIFOs",
        (),
        (
            "tests/llama/test_load.py::test_what_is_no_regular_file_is_never_waited_for",
            "tests/tokenizer/test_gguf.py::test_what_is_no_regular_file",
        ),
    ),
)


def as_markdown() -> str:
    """The table of docs/PROMISES.md."""
    lines = ["| | fault | simulated as | and in |", "|---|---|---|---|"]
    for fault in FAULTS:
        sites = ", ".join(f"`{site}`" for site in fault.simulated)
        tests = "<br>".join(f"`{test}`" for test in fault.tests) or fault.note
        note = f" ({fault.note})" if fault.note and fault.tests else ""
        lines.append(f"| {fault.number} | {fault.what}{note} | {sites} | {tests} |")
    return "\n".join(lines) + "\n"
