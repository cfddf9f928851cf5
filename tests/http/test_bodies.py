"""Bodies are bounded while they arrive, and a refusal reaches its client however much it still sends."""

from __future__ import annotations

from typing import Any

import trio

from tests.http.support import Clock, Probe, Run, body, post, read_all, request, running, start, whole

BIG = b"x" * (2 << 20)


async def test_an_early_answer_arrives_although_the_body_is_unread_and_no_task_stays() -> None:
    async with running() as server:
        client = await server.connect()
        await client.send(request("/early", f"Content-Length: {len(BIG)}", method="POST"))
        status, headers = await client.head()
        assert (status, headers["connection"]) == (413, "close")
        assert await client.exactly(9) == b"too large"
        run = await server.probe.run("/early")
        await run.over.wait()
        await client.half_close()
        assert not await client.ended()


async def test_a_client_that_writes_everything_before_it_reads_gets_the_early_answer() -> None:
    async with running() as server:
        client = await server.connect(receive_buffer=4096)
        await client.send(post("/early", BIG))
        assert await client.answer() == (413, b"too large")


async def test_an_answer_after_a_part_of_the_body_leaves_no_task_behind() -> None:
    """The application takes one piece, thinks while the rest fills every buffer, and then answers."""
    probe = Probe()

    async def picky(run: Run, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        run.begun.set()
        await run.go.wait()
        await whole(send, b"enough", 413)

    probe.routes["/picky"] = picky
    async with running(probe) as server, trio.open_nursery() as nursery:
        client = await server.connect()
        nursery.start_soon(client.send, post("/picky", BIG * 4))
        run = await probe.run("/picky")
        await run.begun.wait()
        await trio.testing.wait_all_tasks_blocked(0.02)
        run.go.set()
        assert await client.answer() == (413, b"enough")


async def test_no_100_continue_when_the_application_answers_at_once() -> None:
    async with running() as server:
        client = await server.connect()
        await client.send(request("/early", "Content-Length: 3", "Expect: 100-continue", method="POST"))
        assert await client.answer() == (413, b"too large")


async def test_100_continue_when_the_application_reads() -> None:
    async with running() as server:
        client = await server.connect()
        await client.send(request("/echo", "Content-Length: 3", "Expect: 100-continue", method="POST"))
        assert await client.answer() == (100, b"")
        await client.send(b"abc")
        assert await client.answer() == (200, b"abc")
        await client.send(post("/echo", b"again"))
        assert await client.answer() == (200, b"again")


async def test_expect_and_then_silence_is_cut_by_the_body_deadline(clock: Clock) -> None:
    async with running(body_stall_s=20) as server:
        client = await server.connect()
        await client.send(request("/echo", "Content-Length: 3", "Expect: 100-continue", method="POST"))
        assert await client.answer() == (100, b"")
        await clock.leap(21)
        await client.ended()
        run = await server.probe.run("/echo")
        await run.over.wait()
        assert run.cancelled


async def test_a_body_that_drips_is_cut(clock: Clock) -> None:
    """A byte now and then does not put the deadline off."""
    async with running(body_stall_s=20) as server:
        client = await server.connect()
        await client.send(request("/echo", "Content-Length: 1000000", method="POST"))
        run = await server.probe.run("/echo")
        await run.begun.wait()
        for _ in range(3):
            assert not run.over.is_set()
            await client.send(b"x")
            await clock.leap(7)
        await client.ended()
        await run.over.wait()
        assert run.cancelled


async def test_an_upload_that_makes_progress_has_all_the_time_it_needs(clock: Clock) -> None:
    async with running(body_stall_s=10, body_rate_bytes=1) as server:
        client = await server.connect()
        await client.send(request("/echo", "Content-Length: 60", method="POST"))
        for _ in range(6):
            await client.send(b"x" * 10)
            await clock.leap(6)
        assert await client.answer() == (200, b"x" * 60)


async def test_there_is_no_deadline_on_a_running_answer(clock: Clock) -> None:
    async with running(body_stall_s=5, header_s=5, idle_s=5) as server:
        bystander = await server.bystander()
        waiting = await server.connect()
        await waiting.get("/wait")
        run = await server.probe.run("/wait")
        for _ in range(3):
            await clock.leap(10)
            await bystander.lives()
        run.go.set()
        assert await waiting.answer() == (200, b"waited")


async def test_many_tiny_chunks_arrive_whole() -> None:
    async with running() as server:
        client = await server.connect()
        await client.send(request("/echo", "Transfer-Encoding: chunked", method="POST"))
        await client.send(b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n")
        assert await client.answer() == (200, b"x" * 20_000)


async def test_memory_for_an_unread_body_is_bounded() -> None:
    """What is held is what is read ahead, however much is sent."""
    probe = Probe()

    async def late(run: Run, scope: Any, receive: Any, send: Any) -> None:
        run.begun.set()
        await run.go.wait()
        first = await receive()
        run.extra = len(first["body"])
        await start(send, 200, (b"content-length", b"0"))
        await read_all(receive)
        await body(send, b"")

    probe.routes["/late"] = late
    async with running(probe, read_ahead_bytes=100_000) as server, trio.open_nursery() as nursery:
        client = await server.connect()
        nursery.start_soon(client.send, post("/late", BIG * 4))
        run = await probe.run("/late")
        await run.begun.wait()
        await trio.testing.wait_all_tasks_blocked(0.02)
        run.go.set()
        assert await client.answer() == (200, b"")
        assert 100_000 <= run.extra <= 100_000 + 2 * 65536
