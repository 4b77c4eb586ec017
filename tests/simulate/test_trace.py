"""Traces: the four public schemas, and made-up ones that are the same everywhere."""

from pathlib import Path

import pytest

from octavo_operator.simulate.synthetic import SYNTHETIC, crowd, diurnal, step
from octavo_operator.simulate.trace import Request, Trace, TraceError, load


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_azure_2023(tmp_path):
    path = written(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
    )
    trace = load(path)
    assert [request[1:] for request in trace.requests] == [(374, 44, ()), (396, 109, ())]
    assert trace.requests[1].at == pytest.approx(4.314579, abs=1e-5)
    assert trace.seconds == 5


def test_azure_2024_writes_a_zone_and_whole_seconds(tmp_path):
    path = written(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,2399,6\n",
    )
    trace = load(path)
    assert [request.prompt for request in trace.requests] == [2162, 2399]
    assert trace.requests[1].at == pytest.approx(0.99007)


def test_burst_gpt_leaves_failed_requests_out(tmp_path):
    path = written(
        tmp_path,
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n"
        "118.5,GPT-4,417,276,693,API log\n",
    )
    assert load(path).requests == (Request(0.0, 472, 18), Request(113.5, 417, 276))


def test_mooncake_names_blocks_of_512_tokens(tmp_path):
    path = written(
        tmp_path,
        '{"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}\n\n'
        '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [7, 5]}\n',
        "conversation.jsonl",
    )
    trace = load(path)
    assert [request.at for request in trace.requests] == [0.0, 3.0]
    assert trace.digests(trace.requests[1], 512) == (7, 8)
    assert trace.digests(trace.requests[1], 256) == (14, 15, 16, 17)
    with pytest.raises(ValueError, match="take a block size that divides 512"):
        trace.checked_block_size(24)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b,c\n1,2,3\n", "none of the known traces"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,many,44\n", "line 2"),
        ('{"timestamp": 1}\n', "line 1"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_sentence(tmp_path, text, sentence):
    with pytest.raises(TraceError, match=sentence):
        load(written(tmp_path, text))


def test_a_missing_file_is_refused_with_a_sentence(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        load(tmp_path / "absent.csv")


def test_cut_and_scaled():
    trace = Trace("t", (Request(0.0, 1, 1), Request(5.0, 2, 2), Request(9.0, 3, 3)), 10.0)
    assert [request.prompt for request in trace.cut(9.0).requests] == [1, 2]
    assert [request.prompt for request in trace.cut(6.0).scaled(2).requests] == [1, 1, 2, 2]


@pytest.mark.parametrize("name", SYNTHETIC)
def test_the_same_seed_gives_the_same_requests(name):
    assert SYNTHETIC[name](3) == SYNTHETIC[name](3)
    assert SYNTHETIC[name](3) != SYNTHETIC[name](4)


def test_the_rates_are_those_that_are_stated():
    def rate(trace: Trace, begin: float, end: float) -> float:
        return sum(begin <= request.at < end for request in trace.requests) / (end - begin)

    wave = diurnal(1, seconds=7200.0, low=1.0, high=8.0, day=3600.0)
    assert rate(wave, 0, 300) == pytest.approx(1.0, abs=0.4)
    assert rate(wave, 1650, 1950) == pytest.approx(8.0, abs=0.6)
    jump = step(1)
    assert rate(jump, 0, 1200) == pytest.approx(1.5, abs=0.15)
    assert rate(jump, 1200, 2400) == pytest.approx(7.5, abs=0.3)
    flood = crowd(1)
    assert rate(flood, 1230, 1290) > 8 * rate(flood, 0, 1200)
