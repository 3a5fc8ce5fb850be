# SPDX-License-Identifier: MIT
"""The report: what it says, and that it works in a browser."""
import html.parser
import json
import re
import shutil
import subprocess
import tempfile
import unittest

import bench_class
import class_of
import kit
import report
from test_class import LAB, Class, full, recorded

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
VOID = {"meta", "input", "br", "hr", "img", "link"}


class Nesting(html.parser.HTMLParser):
    """Whether every element is closed where it should be; SVG's own empty ones close themselves."""

    def __init__(self):
        super().__init__()
        self.open, self.wrong, self.ids, self.links, self.outside = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name == "href" and value.startswith("#"):
                self.links.append(value[1:])
            elif name in ("href", "src", "action", "data"):
                self.outside.append(value)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append((tag, self.getpos()))


class Report(Class):
    def page(self, *more):
        self.grade(*more)
        code, out, err = kit.grade("report", self.out)
        self.assertEqual((code, err), (0, ""))
        return out

    def test_it_stands_alone_and_is_well_formed(self):
        page = self.page("--roster", self.make_class(12))
        seen = Nesting()
        seen.feed(page)
        self.assertEqual((seen.wrong, seen.open, seen.outside), ([], [], []))
        self.assertEqual(len(seen.ids), len(set(seen.ids)))
        self.assertLessEqual(set(seen.links), set(seen.ids))
        self.assertNotIn("url(", page)
        self.assertNotRegex(page, r"https?://")
        for words in ("العربي", "Smith, Jr.", "=cmd()", "12</b>students", "Most frequent mistakes", "<svg"):
            self.assertIn(words, page)

    def test_what_students_write_is_text(self):
        evil = "<script>alert(1)</script>"
        self.hand_in(evil, f"{LAB}.txt", f"lab 01 nullKernelAsync\nmeasured {evil}\n")
        self.hand_in("a", f"{evil}.pdf", "x")
        self.hand_in("{{script}}{{body}}", f"{LAB}.txt", recorded())
        page = self.page("--labs", "1")
        self.assertNotIn("<script>alert", page)
        self.assertGreaterEqual(page.count("&lt;script&gt;alert"), 3)
        self.assertEqual(page.count("<script>"), 1)

    def test_copies_are_flagged_and_cost_nothing(self):
        good, other = recorded().decode(), recorded("03_eventTiming").decode()
        mine, theirs = class_of.drift(good, 1.01), class_of.drift(other, 0.99)
        for student, data in {"ann": mine, "ben": mine, "cy": good, "flo": class_of.drift(good, 1.07)}.items():
            self.hand_in(student, f"{LAB}.txt", data)
        for student, data in {"dee": theirs, "eve": re.sub(r"(event_batch .*max )\S+\)", r"\g<1>999)", theirs),
                              "gus": re.sub(r"= (\S+) us \(median of (\d+), .*\)",
                                            r"= \1 us (median of \2, min \1, max \1)", other)}.items():
            self.hand_in(student, "03_eventTiming.txt", data)
        self.hand_in("hal", f"{LAB}.txt", recorded(machine="simulated-h200").replace(b"simulated", b"hardware"))
        self.hand_in("ida", f"{LAB}.txt", recorded(machine="simulated-h200"))
        self.hand_in("jo", f"{LAB}.txt", recorded(machine="simulated-h200"))
        page = self.page("--labs", "1,3")
        look = page.split('id="look"')[1].split("<h2")[0]
        flags = [re.sub(r"<[^>]+>", "", li) for li in re.findall(r"<li>(.*?)</li>", look)]
        self.assertEqual([f.split(",")[0] if f.startswith(("gus", "hal")) else f.split(", which")[0] for f in flags], [
            "ann, ben: the same measurements", "cy and the recorded output of nvidia-h200: the same measurements",
            "dee, eve: the same measurements", "gus: no figure has any spread", "hal: no figure has any spread",
            "hal: says hardware"])
        self.assertEqual([self.of(s)[0]["points"] for s in ("ann", "ben", "cy")], [full()] * 3)

    def test_most_of_the_figures_the_same_is_a_copy_too(self):
        sets = {"a": list("pqrstu"), "b": list("pqrstx"), "c": list("12345p"), "d": list("pq")}
        self.assertEqual(report.same_figures(list(sets.items())), [["a", "b"]])

    def test_who_could_not_be_graded_is_no_zero(self):
        self.hand_in("alice", f"{LAB}.cu", "x")
        self.hand_in("bob", f"{LAB}.txt", recorded())
        self.grade("--labs", "1", expect=3, env=kit.clean_environment(CUDA_VISIBLE_DEVICES=""))
        page = kit.grade("report", self.out)[1]
        self.assertIn("could not be graded: no GPU", re.sub(r"<[^>]+>", "", page))
        self.assertIn("100 %</b>median", page)

    def test_a_class_of_300_in_20_seconds_of_cpu_and_200_mb(self):
        rows = bench_class.measure()
        self.assertLess(sum(row[2] for row in rows), 20, rows)
        self.assertLess(max(row[3] for row in rows), 200, rows)


@unittest.skipUnless(CHROMIUM, "no Chromium on this machine")
class Browser(Class):
    def chromium(self, *arguments):
        with tempfile.TemporaryDirectory(prefix="labs-chromium.") as profile:
            run = subprocess.run(
                [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--hide-scrollbars", f"--user-data-dir={profile}", *arguments],
                stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        return run.stdout.decode()

    def test_in_chromium(self):
        roster = self.make_class(12)
        self.grade("--roster", roster)
        path = self.folder / "class.html"
        self.assertEqual(kit.grade("report", self.out, "--file", path)[0], 0)
        page = path.read_text()
        dom = self.chromium("--dump-dom", f"file://{path}")
        self.assertIn('<button type="button">points</button>', dom)  # the page's own script may run
        self.assertNotRegex(dom, r'<input id="find"[^>]*hidden')
        # What a person does, in a copy that lets the test's script run.
        drive = """<script>{
          const log = [], names = () => [...document.querySelectorAll('#class tbody tr')]
            .filter(r => !r.hidden).map(r => r.cells[0].querySelector('a').textContent).join(' ');
          const buttons = [...document.querySelectorAll('#class thead button')];
          const say = what => log.push(what + ': ' + names() + ' ' +
            [...document.querySelectorAll('#class th[aria-sort]')].map(h => h.textContent + h.getAttribute('aria-sort')));
          buttons[1].focus(); log.push('focus: ' + (document.activeElement === buttons[1]));
          buttons[1].click(); say('down'); buttons[1].click(); say('up');
          buttons[0].click(); say('names');
          const find = document.getElementById('find');
          find.value = 'USER00'; find.dispatchEvent(new Event('input')); say('found');
          document.querySelector('#class tbody tr a').click();
          setTimeout(() => { log.push('open: ' + document.querySelectorAll('details[open]').length);
            log.push('fits: ' + (document.documentElement.scrollWidth <= innerWidth));
            document.body.textContent = 'LOG' + JSON.stringify(log); }, 300); }
          </script></body>"""
        driven = self.folder / "driven.html"
        driven.write_text(re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
                          .replace("</body>", drive))
        for width in ("400,800", "1280,800"):
            with self.subTest(width=width):
                dom = self.chromium(f"--window-size={width}", "--virtual-time-budget=3000", "--dump-dom",
                                    f"file://{driven}")
                log = dict(line.split(": ", 1) for line in json.loads(
                    re.search(r"LOG(\[.*\])", dom, re.DOTALL)[1].replace("&gt;", ">")))
                grades = {p.parent.name: json.loads(p.read_text()) for p in self.out.rglob("grade.json")}
                share = {name: g["points"] / g["of"] for name, g in grades.items()}
                down = log["down"].split()
                self.assertEqual([share[n] for n in down[:12]], sorted(share.values(), reverse=True))
                self.assertEqual(down[12], "pointsdescending")
                self.assertEqual([share[n] for n in log["up"].split()[:12]], sorted(share.values()))
                self.assertEqual(log["names"].split()[:12], sorted(share))
                self.assertEqual(log["found"].split()[:9], [f"user00{i}" for i in range(1, 10)])
                self.assertEqual((log["focus"], log["open"], log["fits"]), ("true", "1", "true"))

    def test_screenshots_light_and_dark(self):
        self.grade("--roster", self.make_class(6))
        path = self.folder / "class.html"
        kit.grade("report", self.out, "--file", path)
        pictures = {}
        for name, arguments in {"light": [], "dark": ["--blink-settings=preferredColorScheme=0"]}.items():
            picture = self.folder / f"{name}.png"
            self.chromium("--window-size=1280,900", *arguments, f"--screenshot={picture}", f"file://{path}")
            pictures[name] = picture.read_bytes()
            self.assertGreater(len(pictures[name]), 20000)
        self.assertNotEqual(pictures["light"], pictures["dark"])
