# SPDX-License-Identifier: MIT
"""grade.py report: a class's grades as one web page, which needs nothing but itself.

Who stands where, which figures the class measured beside what is plausible and what other
machines measured, which mistakes are frequent, each student's checks. What looks copied or
made up is listed for a person to look at; it costs no points.
"""
import base64
import collections
import csv
import hashlib
import math
import re
import sys
from html import escape
from pathlib import Path

import export
import grader
import grades
import ranges
import roster
import runner
import verdict
from graded import grade_data
from grades import COULD_NOT_GRADE, GRADED, MISSING, SKIPPED

HERE = Path(__file__).resolve().parent
RECORDED = runner.KIT / "worksheets" / "recorded"
SHARED, SHARED_LEAST = 0.5, 3  # of a lab's figures that are the same: copied, not measured
FREQUENT = 20                  # mistakes that are listed
BINS, WIDTH, HEIGHT = 84, 560, 34


def text(value):
    return escape(export.xml_text(str(value)))


def name_html(name):
    """A name in its own direction, whatever stands around it."""
    return f"<bdi>{text(name)}</bdi>"


def number(shown):
    """The figure of a verdict's value, as 3.722 of '3.722 us'; None for a word."""
    try:
        value = float(shown.split()[0])
    except (ValueError, IndexError):
        return None
    return value if math.isfinite(value) else None


# ---- what other machines measured ----

class Recorded:
    """Figures of recorded and published machines, by lab and check."""

    def __init__(self, labs, ranges_folder):
        self.figures = collections.defaultdict(dict)  # (lab, check) -> {machine: value}
        self.hashes = {}                              # (machine, lab) -> hashes of figures
        for folder in sorted(RECORDED.glob("*/")):
            for stem in labs:
                try:
                    data = (folder / f"{stem}.txt").read_bytes()
                except OSError:
                    continue
                graded = grade_data(data, f"{stem}.txt", ranges_folder, stem)
                for v in graded.verdicts:
                    value = number(v.shown)
                    if value is not None:
                        self.figures[stem, v.check.name][folder.name] = value
                if graded.output:
                    self.hashes[folder.name, stem] = grader.figures(graded.output)

    def add_published(self, checks):
        """checks: (lab, name) -> Check. Figures that others published, by the metric's name."""
        try:
            with open(RECORDED / "published.csv", newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        except OSError:
            return
        for (lab, name), check in checks.items():
            for row in rows:
                if row["metric"] == name and row["unit"] == check.unit and not check.formula:
                    value = number(row["value"])
                    if value is not None:
                        self.figures[lab, name].setdefault(row["machine"], value)


# ---- what a person should look at ----

def same_figures(members):
    """Groups of those who share most figures of one lab; members: [(name, [hash, ...])]."""
    sets = {}
    for name, hashes in members:
        if len(hashes) >= SHARED_LEAST:
            sets.setdefault(frozenset(hashes), []).append(name)
    groups, root = list(sets.items()), list(range(len(sets)))

    def top(i):
        while root[i] != i:
            i = root[i] = root[root[i]]
        return i
    last = {}
    for place, (hashes, _) in enumerate(groups):
        for one in sorted(hashes):
            other = last.get(one)
            last[one] = place
            if other is not None and top(other) != top(place):
                few = min(len(hashes), len(groups[other][0]))
                if len(hashes & groups[other][0]) >= max(SHARED_LEAST, SHARED * few):
                    root[top(place)] = top(other)
    joined = collections.defaultdict(list)
    for place, (_, names) in enumerate(groups):
        joined[top(place)] += names
    return [sorted(names) for names in joined.values() if len(names) > 1]


def flags(graded, recorded):
    """[(names of students, HTML)]: what is odd, for a person to judge."""
    found = collections.defaultdict(list)  # (students, machines, what) -> labs
    for lab in graded.labs:
        members = [(("student", g["student"]), its["figures"]) for g in graded.grades
                   for its in g["labs"] if its["lab"] == lab and its.get("figures")]
        members += [(("recorded", machine), hashes) for (machine, stem), hashes in
                    recorded.hashes.items() if stem == lab]
        for group in same_figures(members):
            students = tuple(n for kind, n in group if kind == "student")
            machines = ", ".join(n for kind, n in group if kind == "recorded")
            if students:
                found[students, (f" and the recorded output of {machines}" if machines else "")
                      + ": the same measurements, which no two runs print"].append(lab)
    for g in graded.grades:
        for lab in g["labs"]:
            if lab.get("without_spread"):
                found[(g["student"],), ": no figure has any spread, as no real measurement has none"].append(
                    lab["lab"])
            if lab.get("claims"):
                found[(g["student"],), f": the program prints that it ran on {lab['claims']}, and it did "
                      "not"].append(lab["lab"])
            elif lab.get("backend") == "hardware" and "simulated" in (lab.get("device") or "").lower():
                found[(g["student"],), f": says hardware, and its device is {lab['device']}"].append(lab["lab"])
    return [(students, f"{people(students)}{text(what)} ({'labs' if len(labs) > 1 else 'lab'} "
             f"{text(', '.join(s[:2] for s in labs))})")
            for (students, what), labs in found.items()]


def people(names):
    shown = [f'<a href="#{anchor(n)}">{name_html(n)}</a>' for n in names[:8]]
    return ", ".join(shown) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def anchor(name):
    return "s-" + hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:10]


# ---- figures ----

def spread(values, check, machines):
    """An SVG of how a class's figures lie against the plausible band and other machines."""
    good = [v for v in values if verdict.inside(check, v)]
    inner = sorted(values)[len(values) // 50: len(values) - len(values) // 50] or [0.0]
    seen = inner + list(machines.values())
    log = min(seen) > 0 and max(seen) / min(seen) > 5 and not (check.min is not None and check.min < 0)
    place = math.log10 if log else float
    lowest, highest = place(min(seen)), place(max(seen))
    room = max((highest - lowest) * 0.12, 0.15 if log else abs(highest) * 0.05, 1e-9)
    for bound in (check.min, check.max):  # a bound that is near is shown, one far away is not
        if bound is not None and (bound > 0 or not log):
            at = place(bound)
            if lowest - 6 * room <= at <= highest + 6 * room:
                lowest, highest = min(lowest, at), max(highest, at)
    lowest, highest = lowest - room, highest + room

    def x(value):
        if log and value <= 0:
            return 0.0
        return min(max((place(value) - lowest) / (highest - lowest), 0), 1) * WIDTH
    low = 0.0 if check.min is None else x(check.min)
    high = float(WIDTH) if check.max is None else x(check.max)
    parts = [f'<rect class="band" x="{low:.1f}" y="0" width="{max(high - low, 0):.1f}" height="{HEIGHT}"/>',
             "".join(f'<path class="mark" d="M{x(value):.1f} 0V{HEIGHT + 5}"/>' for value in machines.values()),
             bars(values, check, x), f'<path class="axis" d="M0 {HEIGHT}.5H{WIDTH}"/>']
    for bound, at in ((check.min, low), (check.max, high)):
        if bound is not None and 0 < at < WIDTH:
            parts.append(f'<path class="axis" d="M{at:.1f} 0V{HEIGHT}"/>')
    parts += ticks(lowest, highest, log, x)
    rows = 0
    taken = []
    for machine, value in sorted(machines.items(), key=lambda m: m[1]):
        at, width = x(value), 6 + 5.6 * len(machine)
        left = min(max(at - width / 2, 0), WIDTH - width)
        row = next((r for r, end in enumerate(taken) if end < left), len(taken))
        taken[row:row + 1] = [left + width]
        rows = max(rows, row + 1)
        y = HEIGHT + 26 + 12 * row
        parts.append(f'<text class="of" x="{left + width / 2:.1f}" y="{y}" text-anchor="middle">{text(machine)}</text>')
    height = HEIGHT + 17 + 12 * rows
    middle = sorted(values)[len(values) // 2] if values else 0
    said = f"{len(good)} of {len(values)} plausible; median {middle:.4g}"
    return (f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{text(said)}">' + "".join(parts)
            + "</svg>")


def bars(values, check, x):
    """A histogram: what is in range, and on top of it what is not."""
    count = {False: [0] * BINS, True: [0] * BINS}
    for value in values:
        count[not verdict.inside(check, value)][min(int(x(value) / WIDTH * BINS), BINS - 1)] += 1
    most = max(map(sum, zip(*count.values())), default=0) or 1
    step, paths = WIDTH / BINS, {False: "", True: ""}
    for i in range(BINS):
        base = HEIGHT
        for out in (False, True):
            if count[out][i]:
                tall = max(2.0, (HEIGHT - 3) * count[out][i] / most)
                paths[out] += f"M{i * step + .5:.1f} {base:.1f}v-{tall:.1f}h{step - 1:.1f}v{tall:.1f}z"
                base -= tall
    return "".join(f'<path class="{name}" d="{paths[out]}"/>' for out, name in ((False, "in"), (True, "out"))
                   if paths[out])


def ticks(lowest, highest, log, x):
    """Round numbers along the axis, at most seven."""
    if log:
        marks = [m * 10.0 ** e for e in range(math.floor(lowest), math.ceil(highest) + 1)
                 for m in ((1, 2, 5) if highest - lowest < 2.2 else (1,))]
        marks = [m for m in marks if lowest <= math.log10(m) <= highest]
    else:
        step = 10 ** math.floor(math.log10((highest - lowest) / 3))
        step *= next((m for m in (1, 2, 5) if (highest - lowest) / (step * m) <= 6), 10)
        marks = [i * step for i in range(math.ceil(lowest / step), math.floor(highest / step) + 1)]
    marks = marks[::max(1, math.ceil(len(marks) / 7))]
    parts = []
    for mark in marks:
        at = x(mark)
        end = "start" if at < 14 else "end" if at > WIDTH - 14 else "middle"
        parts.append(f'<path class="axis" d="M{at:.1f} {HEIGHT}v4"/>'
                     f'<text x="{at:.1f}" y="{HEIGHT + 14}" text-anchor="{end}">{plain_number(mark)}</text>')
    return parts


def plain_number(value):
    value = float(f"{value:.6g}")
    return f"{value:g}" if abs(value) < 1e6 else f"{value:.0e}".replace("e+0", "e")


# ---- the page ----

def lab_class(lab):
    if lab["state"] in (MISSING, SKIPPED, COULD_NOT_GRADE) or lab["practice"]:
        return "none"
    return "full" if lab["credit"] == lab["of"] else "part" if lab["credit"] else "zero"


def lab_word(lab):
    if lab["practice"]:
        return f"practice {lab['points']}/{lab['of']}"
    return {GRADED: "", MISSING: "missing"}.get(lab["state"], lab["state"])


def class_table(graded):
    heads = "".join(f'<th scope="col" class="number" title="{text(lab)}">{text(lab[:2])}</th>'
                    for lab in graded.labs)
    rows = []
    for g in graded.grades:
        points = graded.points(g)
        place = graded.matches.of.get(g["student"])
        known = "" if place is None or graded.students[place]["name"] == g["student"] else (
            f'<span class="known">{name_html(graded.students[place]["name"])}</span>')
        cells = [f'<th scope="row" class="names"><a href="#{anchor(g["student"])}">'
                 f'{name_html(g["student"])}</a>{known}</th>']
        if points is None:
            cells.append('<td class="number none" data-value="-1">?<span class="word">could not grade</span></td>')
        else:
            share = 100 * g["points"] / g["of"] if g["of"] else 0
            cells.append(f'<td class="number" data-value="{share:.3f}">{g["points"]}/{g["of"]}</td>')
        by_lab = {lab["lab"]: lab for lab in g["labs"]}
        for stem in graded.labs:
            lab = by_lab.get(stem)
            if lab is None:
                cells.append('<td class="lab none" data-value="-1">?</td>')
                continue
            word = lab_word(lab)
            cells.append(f'<td class="lab {lab_class(lab)}" data-value="{lab["credit"]}">{lab["credit"]}'
                         + (f'<span class="word">{text(word)}</span>' if word else "") + "</td>")
        rows.append("<tr>" + "".join(cells) + "</tr>")
    return ('<input id="find" type="search" placeholder="find a student" aria-label="find a student" hidden>'
            '<div class="wide" tabindex="0" role="region" aria-label="class table"><table id="class" class="sortable">'
            '<thead><tr><th scope="col">student</th><th scope="col" class="number">points</th>'
            + heads + "</tr></thead><tbody>" + "\n".join(rows) + "</tbody></table></div>")


def mistakes(graded):
    """The checks that most students fail, and what they were told."""
    count, told = collections.Counter(), {}
    for g in graded.grades:
        for lab in g["labs"]:
            if lab["state"] not in (GRADED, MISSING, SKIPPED, COULD_NOT_GRADE):
                count[lab["lab"], "", lab["state"]] += 1
                told.setdefault((lab["lab"], "", lab["state"]), collections.Counter())[lab["reason"]] += 1
            for check in lab["checks"]:
                if check["verdict"] != "pass":
                    key = (lab["lab"], check["check"], check["verdict"])
                    count[key] += 1
                    told.setdefault(key, collections.Counter())[
                        re.sub(r"; recomputed: \S+", "", check.get("message", ""))] += 1
    if not count:
        return "<p>None.</p>"
    rows = []
    for key, many in sorted(count.items(), key=lambda kv: (-kv[1], kv[0]))[:FREQUENT]:
        lab, check, word = key
        rows.append(f'<tr><td class="number">{many}</td><td>{text(lab)}</td><td>{text(check or "")}</td>'
                    f'<td>{text(word)}</td><td class="message">{text(told[key].most_common(1)[0][0])}</td></tr>')
    return ('<div class="wide" tabindex="0" role="region" aria-label="frequent mistakes"><table><thead><tr>'
            '<th class="number">students</th><th>lab</th><th>check</th><th>verdict</th><th>what they were told</th>'
            '</tr></thead><tbody>' + "\n".join(rows) + "</tbody></table></div>")


def all_figures(graded, checks, recorded):
    values = collections.defaultdict(list)
    practice = 0
    for g in graded.grades:
        for lab in g["labs"]:
            for check in lab["checks"]:
                value = number(check["value"])
                if value is not None:
                    values[lab["lab"], check["check"]].append(value)
            practice += bool(lab["practice"])
    parts = []
    for stem in graded.labs:
        figures = []
        for (lab, name), check in checks.items():
            if lab != stem or check.equals or not values[lab, name]:
                continue
            its = values[lab, name]
            ordered = sorted(its)
            unit = f" {check.unit}" if check.unit else ""
            out = sum(not verdict.inside(check, v) for v in its)
            caption = (f'<b>{text(name)}</b> <span class="soft">median {plain_number(ordered[len(its) // 2])}'
                       f'{text(unit)}, {len(its)} students' + (f', <span class="bad">{out} outside</span>' if out
                                                               else "") + "</span>")
            figures.append(f"<figure><figcaption>{caption}</figcaption>"
                           f"{spread(its, check, recorded.figures[lab, name])}</figure>")
        if figures:
            parts.append(f"<h3>{text(stem.replace('_', ' ', 1))}</h3><div class=\"figures\">"
                         + "\n".join(figures) + "</div>")
    if not parts:
        return "<p>None.</p>"
    about = ('<p class="soft">Bars: how many students measured so much; red: outside the plausible range, which '
             'is shaded. Marks: recorded and published machines.'
             + (" Simulated figures are among them." if practice else "") + "</p>")
    return about + "\n".join(parts)


def student_section(graded, g, its_flags):
    points = graded.points(g)
    head = f'{g["points"]} of {g["of"]} points' if points is not None else "could not be graded"
    parts = []
    if g["reason"]:
        parts.append(f"<p>{text(g['reason'])}</p>")
    if g["student"] in graded.matches.of:
        who = graded.students[graded.matches.of[g["student"]]]
        parts.append(f'<p class="soft">{name_html(who["name"])}, {text(", ".join(who["ids"]))}</p>')
    if its_flags:
        parts.append('<ul class="flags">' + "".join(f"<li>{flag}</li>" for flag in its_flags) + "</ul>")
    rows = []
    for lab in g["labs"]:
        facts = [lab.get("source", ""), lab.get("device", "") or "", lab.get("sandbox", "") == "unsafe"
                 and "without a sandbox" or ""]
        if len(lab.get("attempts", ())) > 1:
            facts.append(f"{len(lab['attempts'])} attempts")
        passed = sum(c["verdict"] == "pass" for c in lab["checks"])
        said = lab["reason"] or (f"{passed} of {len(lab['checks'])} checks pass" if lab["checks"] else "")
        rows.append(f'<tr><td>{text(lab["lab"])}</td><td class="{lab_class(lab)}">{lab["credit"]}/{lab["of"]}</td>'
                    f'<td class="{lab_class(lab)}">{text(lab_word(lab) or lab["state"])}</td>'
                    f'<td class="message">{text(said)} <span class="soft">{text(", ".join(filter(None, facts)))}'
                    "</span></td></tr>")
        for c in lab["checks"]:
            if c["verdict"] != "pass":
                rows.append(f'<tr><td>&emsp;{text(c["check"])}</td><td>{c["points"]}/{c["of"]}</td>'
                            f'<td>{text(c["verdict"])}</td><td class="message">{text(c["value"] or "-")}; plausible: '
                            f'{text(c["range"])}. {text(c.get("message", ""))}</td></tr>')
    if rows:
        parts.append('<div class="wide" tabindex="0" role="region" aria-label="checks"><table class="checks"><thead><tr>'
                     '<th>lab, check</th><th>points</th><th>verdict</th><th></th></tr></thead><tbody>'
                     + "".join(rows) + "</tbody></table></div>")
    if g["notes"]:
        parts.append('<p>Not graded:</p><ul class="flags">' + "".join(
            f"<li>{text(note)}</li>" for note in g["notes"]) + "</ul>")
    if g["worksheets"]:
        parts.append(f'<p class="soft">Worksheets handed in: {text(", ".join(g["worksheets"]))}</p>')
    return (f'<details id="{anchor(g["student"])}"><summary>{name_html(g["student"])} '
            f'<span class="soft">{text(head)}</span></summary><div>' + "".join(parts) + "</div></details>")


def page(graded, title):
    folder = Path(graded.meta.get("ranges", ranges.HERE))
    checks = {}
    for stem in graded.labs:
        try:
            checks.update({(stem, c.name): c for c in ranges.load(stem, folder)})
        except ranges.RangeError as error:
            print(f"{error}: the report shows no figures of {stem}", file=sys.stderr)
    recorded = Recorded(graded.labs, folder)
    recorded.add_published(checks)
    odd = flags(graded, recorded)
    could_not = [g for g in graded.grades if g["state"] != GRADED]
    look = [flag for _, flag in odd]
    look += [f"{people([g['student']])} could not be graded: {text(g['reason'])}" for g in could_not]
    look += [text(line) for line in roster.problems(graded.matches)]
    shares = sorted(100 * g["points"] / g["of"] for g in graded.grades if g["state"] == GRADED and g["of"])
    of = collections.defaultdict(list)
    for names, flag in odd:
        for name in names:
            of[name].append(flag)
    facts = [(len(graded.grades), "students"), (len(graded.labs), "labs"),
             (f"{shares[len(shares) // 2]:.0f} %" if shares else "-", "median"),
             (sum(s >= 99.95 for s in shares), "full marks"), (len(could_not), "could not be graded"),
             (len(odd), "to look at")]
    where = graded.meta.get("device") or {"sim": "the simulated device"}.get(
        graded.meta.get("backend"), "outputs handed in")
    body = [f"<h1>{text(title)}</h1>",
            f'<p class="soft">graded {text(graded.meta.get("begun", "").replace("T", " "))} on {text(where)}; '
            f'kit {text(graded.meta.get("kit", ""))}</p>',
            '<nav><a href="#grades">Class</a><a href="#look">To look at</a><a href="#mistakes">Mistakes</a>'
            '<a href="#figures">Figures</a><a href="#students">Students</a></nav>',
            '<ul class="facts">' + "".join(f"<li><b>{text(n)}</b>{text(what)}</li>" for n, what in facts) + "</ul>",
            '<h2 id="grades">Class</h2>', class_table(graded),
            '<h2 id="look">For a person to look at</h2>',
            '<p class="soft">Nothing here has cost anybody points.</p><ul class="flags">' + "".join(
                f"<li>{line}</li>" for line in look) + "</ul>" if look else "<p>Nothing.</p>",
            '<h2 id="mistakes">Most frequent mistakes</h2>', mistakes(graded),
            '<h2 id="figures">Figures</h2>', all_figures(graded, checks, recorded),
            '<h2 id="students">Students</h2>',
            *(student_section(graded, g, of[g["student"]]) for g in graded.grades)]
    script = (HERE / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = (HERE / "report.html").read_text(encoding="utf-8")
    head, rest = template.replace("{{title}}", text(title)).replace("{{hash}}", digest).split("{{body}}")
    return head + "\n".join(body) + rest.replace("{{script}}", script)


def main(options):
    """The exit code of grade.py report."""
    try:
        graded = grades.Class(options.out, options.roster)
        export.write(page(graded, options.title), options.file)
    except (grades.GradesError, roster.RosterError) as error:
        export.say(str(error))
        return export.USAGE
    except OSError as error:
        export.say(f"{error.filename or 'standard output'}: {error.strerror}")
        return export.USAGE
    return export.DONE
