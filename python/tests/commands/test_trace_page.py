"""The page that shows a trace, in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from crosslane._engines.tracing.page import to_page
from crosslane._engines.tracing.recording import Event, Recording

from ..conftest import eventually

pytestmark = pytest.mark.any_duckdb

ROOT = Path(__file__).parents[3]


def made_up(count: int) -> Recording:
    """A trace of two workers, with calls of 10 µs each 20 µs, and of one long call in the middle."""
    events = [
        Event("function", f"f{i % 2}", "/a/b.py", 1 + i % 2, 7, 1, i * 10.0, 10.0, 100, None)
        for i in range(count)
    ]
    middle = count * 5.0
    long = Event("function", HOSTILE, "/a/b.py", 3, 7, 1, middle, 1e3, 5, f"x = '{HOSTILE}'")
    exception = Event("exception", HOSTILE, "/a/b.py", 3, 7, 1, middle + 1e3, 0.0, 1, "ValueError: no")
    wait = Event("wait", "f0", "/a/b.py", 1, 7, 11, 0.0, 50.0, 0, None)
    return Recording(HOSTILE, sorted([wait, *events, long, exception], key=lambda one: one.start), dropped=12)


#: The name of a function that would end elements and run a script.
HOSTILE = "</script><script>alert(1)</script><!--"


def test_the_page(tmp_path: Path, browser: Any) -> None:
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    page = tmp_path / "a.html"
    page.write_text(to_page(made_up(100_000)))
    browser.get(page.as_uri())

    def texts(where: str) -> list[str]:
        return browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", where
        )

    # All names are shown as text, and the page has loaded nothing.
    assert texts("#title") == [HOSTILE]
    assert browser.execute_script("return document.scripts.length") == 2
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert texts("#dropped") == [
        "The trace was full: it has the first 100,003 events, and 12 later ones are missing."
    ]
    assert texts("#legend button") == ["wait for a worker", "function", "exception"]
    totals = browser.execute_script(
        "return [...document.querySelectorAll('#totals tbody tr')].map((row) =>"
        " [...row.cells].slice(0, 7).map((cell) => cell.textContent))"
    )
    assert totals == [
        ["f0", "function", "50,000", "5,000,000", "10 µs", "10 µs", "500 ms"],
        ["f0", "wait for a worker", "1", "", "50 µs", "50 µs", "50 µs"],
        ["f1", "function", "50,000", "5,000,000", "10 µs", "10 µs", "500 ms"],
        [HOSTILE, "function", "1", "5", "1 ms", "1 ms", "1 ms"],
        [HOSTILE, "exception", "1", "1", "", "", ""],
    ]
    (slowest,) = browser.find_elements("css selector", "#slowest tbody tr")
    assert slowest.text.startswith(HOSTILE)
    assert slowest.text.endswith(f"x = '{HOSTILE}'")

    def place(fraction: float, row: int) -> tuple[float, float]:
        """A point of the canvas, at a fraction of the time that is shown, in the middle of a row."""
        return browser.execute_script(
            "return [timeLine.left + arguments[0] * (timeLine.right() - timeLine.left),"
            " trace.rows[arguments[1]].top + 13]",
            fraction,
            row,
        )

    def alpha(fraction: float, row: int) -> int:
        """The opacity of the colour at a point, after the page has painted."""
        return browser.execute_async_script(
            "const [x, y, done] = arguments; const scale = window.devicePixelRatio;"
            " requestAnimationFrame(() => requestAnimationFrame(() =>"
            " done(timeLine.context.getImageData(x * scale, y * scale, 1, 1).data[3])))",
            *place(fraction, row),
        )

    def shown() -> float:
        """The number of nanoseconds that the time line shows."""
        return browser.execute_script("return timeLine.view.to - timeLine.view.from")

    canvas = browser.find_element("id", "timeline")
    show_all = browser.find_element("id", "all")
    whole = shown()
    # Each worker works half of the time. The page draws that with half of the colour's opacity.
    assert 100 < alpha(0.33, 0) < 200
    assert 100 < alpha(0.73, 1) < 200
    assert not show_all.is_enabled()
    # A click on a slow call shows the call.
    browser.find_element("css selector", "#slowest button").click()
    assert shown() == pytest.approx(5e6)
    assert (alpha(0.47, 2), alpha(0.13, 2)) == (255, 0)
    # The pointer shows an explanation of the call.
    browser.execute_script("arguments[0].scrollIntoView({ block: 'center' })", canvas)
    size = canvas.size
    x, y = place(0.5, 2)
    ActionChains(browser).move_to_element_with_offset(
        canvas, int(x - size["width"] / 2), int(y - size["height"] / 2)
    ).perform()
    hint = browser.find_element("id", "hint")
    assert hint.text.splitlines() == [
        HOSTILE,
        "1 ms, 200 µs per row",
        "5 rows",
        "at 500 ms, worker 3, process 7",
        f"x = '{HOSTILE}'",
    ]
    # The wheel zooms in at the pointer. A drag zooms to its range. A double click shows everything, and so
    # does the button.
    origin = ScrollOrigin.from_element(canvas, int(x - size["width"] / 2), int(y - size["height"] / 2))
    ActionChains(browser).scroll_from_origin(origin, 0, -400).perform()
    assert eventually(lambda: shown() < 4e6)
    ActionChains(browser).move_to_element(canvas).double_click().perform()
    assert eventually(lambda: shown() == whole)
    ActionChains(browser).move_to_element(canvas).click_and_hold().move_by_offset(100, 0).release().perform()
    assert 0 < shown() < whole / 2
    show_all.click()
    assert shown() == whole
    # Keys zoom and move the view. A drag with Shift moves it, too.
    canvas.send_keys("++")
    assert shown() == pytest.approx(whole * 0.36)

    def begin() -> float:
        """The beginning of the visible range, as a fraction of the whole."""
        return browser.execute_script("return timeLine.view.from") / whole

    assert begin() == pytest.approx(0.32)
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert begin() == pytest.approx(0.32 + 0.2 * 0.36)
    actions = ActionChains(browser).move_to_element(canvas).key_down(Keys.SHIFT).click_and_hold()
    actions.move_by_offset(100, 0).release().key_up(Keys.SHIFT).perform()
    assert begin() < 0.38
    assert shown() == pytest.approx(whole * 0.36)
    canvas.send_keys("0")
    assert shown() == whole
    # A search keeps the colour of the calls that it finds.
    search = browser.find_element("id", "search")
    before = alpha(0.33, 0), alpha(0.33, 1)
    search.send_keys("F1")
    after = alpha(0.33, 0), alpha(0.33, 1)
    assert after[0] < before[0]
    assert after[1] == before[1]
    search.send_keys(Keys.BACKSPACE * 2)
    # A click on the legend hides a kind.
    browser.find_element("css selector", "#legend button[data-kind=function]").click()
    assert alpha(0.33, 0) == 0
    # The browser has refused nothing, and no script has failed. The browser warns that this test reads
    # points.
    assert [one for one in browser.get_log("browser") if "getImageData" not in one["message"]] == []


def test_pages_of_unusual_traces(tmp_path: Path, browser: Any) -> None:
    def show(*events: Event) -> list[str]:
        """The numbers on a page of these events."""
        page = tmp_path / "a.html"
        page.write_text(to_page(Recording("", list(events), 0)))
        browser.get(page.as_uri())
        numbers = "return [...document.querySelectorAll('dd')].map((one) => one.textContent)"
        return browser.execute_script(numbers)

    assert show() == ["0 ns", "0", "0 ns", "0 ns", "0", "0", "0"]
    # A query whose workers die has a great number of these events.
    lost = [Event("lane_lost", "f", "/a/b.py", i, i, 1, i * 10.0, 0.0, 0, None) for i in range(1, 1001)]
    assert show(*lost)[4:] == ["1,000", "0", "1,000"]
    names = browser.execute_script("return trace.rows.map((row) => row.name)")
    assert (len(names), names[0], names[-1]) == (251, "worker 1, process 1", "750 more")
    # One event of each kind that the engine records.
    source = (ROOT / "crates" / "crosslane" / "src" / "trace" / "event.rs").read_text()
    kinds = re.findall(r'=> "(\w+)"', source)
    show(*(Event(kind, "f", "/a/b.py", 1, 1, 1, at * 10.0, 0.0, 1, None) for at, kind in enumerate(kinds)))
    signs = browser.execute_script(
        "return [...document.querySelectorAll('#legend button')].map((one) => one.dataset.kind)"
    )
    assert sorted(signs) == sorted(kinds)
    assert browser.get_log("browser") == []


def test_the_profile(tmp_path: Path, browser: Any) -> None:
    def line(name: str, samples: int, *called: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "file": "/a/b.py", "line": samples, "samples": samples, "called": list(called)}

    tree = {
        "samples": 1000,
        "called": [
            line("outer", 750, line(HOSTILE, 500, line("deepest", 250)), line("few", 1)),
            line("other", 250),
        ],
    }
    page = tmp_path / "a.html"
    page.write_text(to_page(Recording("", [], 0, profile=tree)))
    browser.get(page.as_uri())

    def bars() -> list[tuple[str, int, int, int]]:
        """The bars of the profile: their texts, depths, lefts and widths, in percent."""
        found = browser.execute_script(
            "return [...document.querySelectorAll('#lines button')].map((bar) =>"
            " [bar.textContent, bar.dataset.depth, bar.style.left, bar.style.width])"
        )
        return [
            (text, int(depth), *(round(float(size.removesuffix("%"))) for size in sizes))  # type: ignore[misc]
            for text, depth, *sizes in found
        ]

    whole = [
        ("outer (b.py:750)", 0, 0, 75),
        (f"{HOSTILE} (b.py:500)", 1, 0, 50),
        ("deepest (b.py:250)", 2, 0, 25),
        ("other (b.py:250)", 0, 75, 25),
    ]
    assert bars() == whole
    shown = browser.find_elements("css selector", "#lines button")
    assert shown[1].get_attribute("title").endswith("/a/b.py:500\n50 % of the samples (500)")
    # A click on a bar shows it in the whole width, and another click shows all bars.
    shown[1].click()
    assert bars() == [
        ("outer (b.py:750)", 0, 0, 100),
        (f"{HOSTILE} (b.py:500)", 1, 0, 100),
        ("deepest (b.py:250)", 2, 0, 50),
    ]
    browser.find_elements("css selector", "#lines button")[1].click()
    assert bars() == whole
    page.write_text(to_page(Recording("", [], 0, profile={"samples": 0, "called": []})))
    browser.get(page.as_uri())
    assert "no Python function" in browser.find_element("id", "samples").text
    page.write_text(to_page(Recording("", [], 0)))
    browser.get(page.as_uri())
    assert not browser.find_element("id", "profile").is_displayed()
    assert browser.get_log("browser") == []
