"""The text scanner: prometheus_client is the oracle for well-formed pages, and no bytes make it raise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from monitor.engines.scan import MAX_LINE, Page, labels, present, remembered

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
WELL_FORMED = sorted(path.name for path in SAMPLES.glob("*.txt") if "edge-cases" not in path.name)

# Values as text, in which NaN equals NaN; + 0.0 because the oracle knows no negative zero.
Series = dict[str, dict[frozenset[tuple[str, str]], str]]


def by_oracle(page: str) -> Series:
    series: Series = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            series.setdefault(sample.name, {})[frozenset(sample.labels.items())] = repr(
                float(sample.value) + 0.0
            )
    return series


def by_scanner(body: bytes, names: Iterable[str]) -> Series:
    page = Page(body, b"")
    series = {
        name: {
            frozenset(labels(raw).items()): repr(value + 0.0)
            for raw, value in page.bare(name.encode()).items()
        }
        for name in names
    }
    assert page.bad_lines == 0
    return series


def read(text: str) -> dict[bytes, float]:
    return dict(Page(text.encode(), b"vllm").family(b"x"))


@pytest.mark.parametrize("name", WELL_FORMED)
def test_every_sample_page_reads_as_the_oracle_reads_it(name: str) -> None:
    body = (SAMPLES / name).read_bytes()
    oracle = by_oracle(body.decode())
    assert by_scanner(body, oracle) == oracle


blanks = st.sampled_from(["", " ", "\t", "  "])
some_blanks = st.sampled_from([" ", "\t", " \t "])
names = st.sampled_from(["vllm:a", "vllm:a_total", "vllm:a_b", "vllm_a", "b"])
values = st.one_of(
    st.floats(allow_nan=False).map(repr).map(lambda text: text.replace("inf", "Inf")),
    st.sampled_from(["NaN", "+Inf", "-Inf", "+1", "1.", ".5", "1e3", "1E-3", "-0"]),
)
# The oracle strips lines of more kinds of blanks than the format knows; none of them is at the end of a value here.
label_values = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@st.composite
def sample_lines(draw: st.DrawFn) -> str:
    keys = draw(st.lists(st.sampled_from(["le", "engine", "model_name", "_x"]), unique=True, max_size=3))
    pairs = [
        f'{draw(blanks)}{key}{draw(blanks)}={draw(blanks)}"{escaped(draw(label_values))}"{draw(blanks)}'
        for key in keys
    ]
    text = "{" + ",".join(pairs) + (draw(st.sampled_from(["", ","])) if pairs else "") + "}"
    braces = text if bool(keys) or draw(st.booleans()) else ""
    gap = draw(some_blanks) if not braces else draw(blanks)
    stamp = draw(st.sampled_from(["", " 1764430000123", "\t-5"]))
    return draw(blanks) + draw(names) + braces + gap + draw(values) + stamp + draw(blanks)


comment_lines = st.sampled_from(["", "# HELP vllm:a text", "# TYPE vllm:a gauge", "# vllm:a 1", "#", "   "])


@settings(max_examples=150, deadline=None)
@given(
    lines=st.lists(st.one_of(sample_lines(), comment_lines), max_size=12),
    newline=st.sampled_from(["\n", "\r\n"]),
    ended=st.booleans(),
)
def test_any_well_formed_page_reads_as_the_oracle_reads_it(
    lines: list[str], newline: str, ended: bool
) -> None:
    page = newline.join(lines) + (newline if ended else "")
    oracle = by_oracle(page)
    assert by_scanner(page.encode(), oracle) == oracle


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=200),
    st.lists(st.sampled_from([b"vllm:x", b"{", b'a="', b'"', b"\\", b"}", b" 1", b"\n", b"NaN"])),
)
def test_no_bytes_make_the_scanner_raise(noise: bytes, parts: list[bytes]) -> None:
    for body in (noise, b"".join(parts), b"".join(parts) + noise, noise.join(parts)):
        page = Page(body, b"vllm")
        for series in (page.family(b"x"), page.counter(b"x"), page.bare(b"vllm:x")):
            for raw, value in series.items():
                labels(raw)
                assert isinstance(value, float)
        page.has_prefix()


def test_only_the_full_name_matches_and_look_alikes_are_no_bad_lines() -> None:
    page = Page(
        b'vllm:x_by_reason{a="b"} 1\nvllm:xx 2\nray_vllm:x 3\n# vllm:x 4\nfoo{a="vllm:x 5"} 6\n', b"vllm"
    )
    assert page.family(b"x") == {}
    assert page.bad_lines == 0


@pytest.mark.parametrize(
    "line", ["vllm:x 1", "vllm_x 1", "\tvllm:x\t1\t", "vllm:x{} 1", "vllm:x 1 1764430000123\r\n"]
)
def test_both_prefix_separators_blanks_and_time_stamps_are_read(line: str) -> None:
    assert read(line) == {b"": 1.0}


def test_a_family_in_both_spellings_is_read_once() -> None:
    assert read("vllm_x 7\nvllm:x 5\n") == {b"": 5.0}


def test_a_series_written_twice_counts_once() -> None:
    assert read("vllm:x 7\nvllm:x 5\n") == {b"": 5.0}


@pytest.mark.parametrize("name", ["x", "x_total"])
def test_a_counter_is_read_with_and_without_total(name: str) -> None:
    assert Page(f"vllm:{name} 3\nvllm:x_created 1.7e9\n".encode(), b"vllm").counter(b"x") == {b"": 3.0}


@pytest.mark.parametrize(
    "line",
    [
        "vllm:x",
        "vllm:x ",
        "vllm:x 1_000",
        "vllm:x 0x10",
        "vllm:x \u0661",
        "vllm:x 1,5",
        "vllm:x one",
        "vllm:x 1 2 3",
        "vllm:x 1 later",
        'vllm:x{a="b" 1',
        'vllm:x{a="b} 1',
        "vllm:x{a=b} 1",
        'vllm:x{="b"} 1',
        'vllm:x{a="b",,} 1',
        'vllm:x{a="b"}',
        "vllm:x{,} 1",
    ],
)
def test_a_bad_line_costs_only_itself_and_is_counted_once(line: str) -> None:
    page = Page(f'vllm:x{{e="0"}} 3\n{line}\nvllm:x{{e="1"}} 4\n'.encode(), b"vllm")
    assert page.family(b"x") == page.family(b"x") == {b'e="0"': 3.0, b'e="1"': 4.0}
    assert page.bad_lines == 1


@pytest.mark.parametrize("text", ["NaN", "nan", "-nan", "+Inf", "-Inf", "inf", "Infinity"])
def test_values_that_are_no_finite_number_are_handed_on_as_written(text: str) -> None:
    assert not math.isfinite(read(f"vllm:x {text}")[b""])


def test_labels_are_unescaped_and_bytes_that_are_no_text_are_replaced() -> None:
    assert labels(rb' a = "x}\"y,z=\\n\n" ,b="",') == {"a": 'x}"y,z=\\n\n', "b": ""}
    assert labels(b'a="\xff"') == {"a": "\ufffd"}


def test_braces_blanks_and_commas_in_label_values_break_nothing() -> None:
    (raw,) = read('vllm:x{model_name="org/model, v=2 {tuned} \\" 5",engine="0"} 9')
    assert labels(raw)["model_name"] == 'org/model, v=2 {tuned} " 5'


def test_a_hostile_line_of_a_megabyte_is_read_in_passing() -> None:
    for filler in (
        b'"' * 10**6,
        b"vllm:x " * 150_000,
        b" " * 10**6 + b"vllm:x",
        b'a="b",' * 150_000,
        b"1" * 10**6,
    ):
        page = Page(b"vllm:x{" + filler + b"\nvllm:x 2\n" + filler, b"vllm")
        assert page.family(b"x") == {b"": 2.0}


def test_a_line_longer_than_any_engine_writes_is_a_bad_line_and_is_not_matched() -> None:
    filler = b'a="b",' * (MAX_LINE // 6 + 1)
    for labelled in (b"{" + filler, b"{" + filler + b"}"):
        page = Page(b"vllm:x" + labelled + b" 1\nvllm:x 2\n", b"vllm")
        assert (page.family(b"x"), page.bad_lines) == ({b"": 2.0}, 1)


def test_only_short_labels_are_remembered() -> None:
    parsed: list[bytes] = []

    @remembered
    def parse(raw: bytes) -> int:
        parsed.append(raw)
        return len(raw)

    for raw in (b"short", b"l" * 10_000) * 3:
        assert parse(raw) == len(raw)
    assert parsed == [b"short", *[b"l" * 10_000] * 3]


def test_the_edge_case_page_loses_its_bad_lines_and_nothing_else() -> None:
    page = Page((SAMPLES / "edge-cases-constructed.txt").read_bytes(), b"vllm")
    assert list(page.family(b"num_requests_running").values()) == [3.0, 2.0, 1.0, 5.0]
    assert list(page.family(b"num_requests_waiting").values()) == [4.0, 1.0]
    assert page.counter(b"request_success") == {b'engine="0",finished_reason="stop"': math.inf}
    assert len(page.family(b"kv_cache_usage_perc")) == 5
    assert page.bad_lines == 0
    assert page.counter(b"generation_tokens") == {}
    assert page.counter(b"prompt_tokens") == {}
    assert page.bad_lines == 2
    first, *_ = page.family(b"num_requests_running")
    assert labels(first) == {"engine": "0", "model_name": 'a}b"c,d=\\e{f\n'}


def test_present_names_the_families_that_have_a_sample() -> None:
    assert present(b"# TYPE vllm:a gauge\nvllm:b 1\n", [b"vllm:a", b"vllm:b"]) == {b"vllm:b"}


@pytest.mark.parametrize("body", [b"vllm:x 1", b"vllm_x 1", b"\n# TYPE vllm:x gauge", b"# HELP vllm_x t"])
def test_a_page_has_a_prefix_in_samples_or_headers(body: bytes) -> None:
    assert Page(body, b"vllm").has_prefix()


@pytest.mark.parametrize("body", [b"", b"ray_vllm:x 1", b'up{job="vllm:x"} 1', b"# vllm:x", b"vllmx 1"])
def test_a_page_that_only_mentions_a_prefix_does_not_have_it(body: bytes) -> None:
    assert not Page(body, b"vllm").has_prefix()
