"""What goes out, byte for byte, in the form that llama-server's README documents ("POST /v1/chat/completions", "POST
/v1/embeddings", "POST /v1/systemone"); that a real server takes it is in test_gateway.py."""

from __future__ import annotations

import base64
import io
import wave

import msgspec
import numpy as np
import pytest

from pumas.contract.errors import ContractError
from pumas.operations import AudioPart, Decide, Embed, GenerateText, ImagePart, Message, Rerank, TextOptions, TextPart
from pumas.providers.upstream import bodies
from tests.upstream.media import pcm

IMAGE = ImagePart("jpeg", b"\xff\xd8picture")
URL = "data:image/jpeg;base64,/9hwaWN0dXJl"
CLIP = AudioPart("pcm_s16le", 16000, 1, 4, b"\1\0\2\0\3\0\4\0")


def test_a_wav_header_is_put_before_the_samples_as_they_are() -> None:
    data = pcm(800)
    stereo = bodies.wav(AudioPart("pcm_s16le", 8000, 2, 400, data))
    with wave.open(io.BytesIO(stereo)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth(), file.getnframes()) == (8000, 2, 2, 400)
        assert file.readframes(400) == data
    floats = np.linspace(-1, 1, 8, dtype="<f4").tobytes()
    made = bodies.wav(AudioPart("pcm_f32le", 44100, 1, 8, floats))
    assert (made[20:22], made[44:]) == (b"\3\0", floats)  # WAVE_FORMAT_IEEE_FLOAT


def test_chat_with_parts() -> None:
    message = Message(role="user", content=(TextPart("See and hear"), IMAGE, CLIP))
    options = TextOptions(max_tokens=5, temperature=0.5, stop=("\n",))
    operation = GenerateText(capability="chat_generation", messages=(message,), options=options, stream=True)
    sound = base64.b64encode(bodies.wav(CLIP)).decode()
    expected = (
        '{"model":"m","max_tokens":5,"temperature":0.5,"stop":["\\n"],"stream":true,'
        '"stream_options":{"include_usage":true},"messages":[{"role":"user","content":['
        '{"type":"text","text":"See and hear"},'
        '{"type":"image_url","image_url":{"url":"' + URL + '"}},'
        '{"type":"input_audio","input_audio":{"data":"' + sound + '","format":"wav"}}]}]}'
    )
    assert bodies.generate(operation, "m") == (b"/v1/chat/completions", expected.encode())


def test_completion_embeddings_rerank() -> None:
    operation = GenerateText(capability="text_generation", prompt="Once")
    assert bodies.generate(operation, "m") == (b"/v1/completions", b'{"model":"m","stream":false,"prompt":"Once"}')
    embed = Embed(inputs=("a", (TextPart("b"), IMAGE), (1, 2)))
    expected = (
        '{"model":"m","input":["a",{"content":[{"type":"text","text":"b"},'
        '{"type":"image_url","image_url":{"url":"' + URL + '"}}]},[1,2]],"encoding_format":"float"}'
    )
    assert bodies.embed(embed, "m") == (b"/v1/embeddings", expected.encode())
    rerank = Rerank(query="q", documents=("d", "e"))
    assert bodies.rerank(rerank, "m") == (b"/v1/rerank", b'{"model":"m","query":"q","documents":["d","e"]}')


def test_decision() -> None:
    questions = {"q": {"type": "noul", "instructions": "Is it?"}}
    decide = Decide(state={"b": 1, "a": [None]}, questions=questions, images=(IMAGE,))
    expected = (
        '{"model":"m","state":{"b":1,"a":[null]},"questions":{"q":{"type":"noul","instructions":"Is it?"}},'
        '"images":["' + URL + '"]}'
    )
    assert bodies.decide(decide, "m") == (b"/v1/systemone", expected.encode())


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://a/x"}},
        {"type": "image_url", "image_url": "https://a/x"},
        {"type": "input_audio", "input_audio": {"url": "data:audio/wav;base64,AA==", "data": "http://a/x"}},
        {"type": "video_url", "video_url": {"url": "file:///etc/passwd"}},
    ],
)
def test_a_program_of_ours_is_not_sent_where_a_client_points(part: dict[str, object]) -> None:
    body = msgspec.json.encode({"model": "a", "messages": [{"role": "user", "content": [part]}]})
    with pytest.raises(ContractError) as caught:
        bodies.forwarded("/v1/chat/completions", True, body, "m")
    assert (caught.value.code, caught.value.outcome) == ("invalid_request", "not_admitted")
    route, sent = bodies.forwarded("/v1/chat/completions", False, body, "m")
    assert sent == body.replace(b'"model":"a"', b'"model":"m"'), "a server that runs elsewhere decides that itself"


@pytest.mark.parametrize("wrapped", [False, True])
def test_images_inside_of_a_decisions_state_are_refused(wrapped: bool) -> None:
    """The server would take them out of it, past the contract's bounds."""
    part = {"type": "image_url", "image_url": {"url": "http://169.254.0.1/x"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "t"}, part]}]
    state = {"messages": messages} if wrapped else messages
    with pytest.raises(ContractError) as caught:
        bodies.decide(Decide(state=state, questions={}), "m")
    assert (caught.value.code, caught.value.outcome) == ("invalid_request", "not_admitted")
