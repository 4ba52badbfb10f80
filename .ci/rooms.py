"""Move the modules of ``strategies`` and ``sim`` into their rooms: files, splits, and every import of them.

    python move.py MOVES.txt

reads lines of these forms and rewrites the working tree (then run ruff):

    OLD moves to NEW
    OLD is folded into NEW
    from OLD to NEW: name, name, ...
"""

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

DOCSTRINGS = {
    "strategies/plans/__init__.py": "The language that engine, exports and validation read: plans, their wiring and traces.",
    "strategies/partitions/__init__.py": "Where a chain of layers is cut; arithmetic alone.",
    "strategies/orders/__init__.py": "In which order passes run; arithmetic alone.",
    "strategies/pipelining/__init__.py": "How a training plan is built.",
    "strategies/patching/__init__.py": "How a sampling plan is built.",
    "strategies/bounds/__init__.py": "What no run can undercut.",
    "strategies/training/__init__.py": "The training strategies, one file each.",
    "strategies/sampling/__init__.py": "The samplers, one file each.",
    "sim/replay/__init__.py": "Replay: when everything in a plan happens, and what it amounts to.",
    "sim/explore/__init__.py": "Explore: the points of a design space and which of them are best.",
    "sim/report/__init__.py": "Report: tables, rankings and plots.",
    "sim/cli/__init__.py": "The command line.",
    "strategies/pipelining/layout.py": "Layouts: where the stages of a pipeline lie, and what follows from it whatever their order.",
    "strategies/pipelining/candidates.py": "Candidates: the shapes of pipelines worth a look.",
    "strategies/pipelining/pair_points.py": "Pair points: the partitions of two backbones at every shape.",
    "strategies/bounds/pipelines.py": "Bounds of pipelines: seconds and bytes that no order of their stages can undercut.",
    "strategies/bounds/two_way.py": "Bounds of pipelines in two directions.",
    "strategies/orders/named.py": "Named orders: GPipe and FIFO-1F1B.",
    "strategies/patching/phases.py": "Phases: the parts of a sampling run that happen alike.",
    "strategies/scenario.py": "The scenario: which model runs on which cluster, with which workload; training and sampling.\n\nIt is what every strategy is asked about; the strategy's own parameters are its fields.\n",
    "strategies/strategy.py": "What a strategy is: a frozen dataclass of its parameters that turns a scenario into plans.\n\nOne that draws images is a sampler.\n",
    "sim/results.py": "Results: what was simulated, and what came out of it.",
    "sim/runs.py": "Runs: one strategy on one scenario, replayed and weighed.",
    "sim/report/rankings.py": "Rankings: the best points of a sweep as rows of a table, training and sampling.",
    "sim/explore/workers.py": None,
}
CREATED = set()
ORDER = ["strategies/scene.py", "strategies/scenario.py", "strategies/sampling.py", "strategies/strategy.py", "strategies/sampler.py", "sim/experiment.py", "sim/sampling.py"]
DROPPED = {  # written twice; the other definition counts
    ("strategies/ordering.py", "Rows"): "strategies.plans.actions",
    ("strategies/pipeline.py", "Rows"): "strategies.plans.actions",
    ("strategies/sampling.py", "T"): "strategies.scenario",
}
PUBLIC = {
    "strategies/worklist.py": {"_UNKNOWN": "UNKNOWN"},
    "strategies/linear.py": {"_network": "pipeline_network", "_reduction": "gradient_reduction_s"},
    "strategies/staged.py": {"_hops_s": "stage_hops_s"},
    "sim/experiment.py": {"_describe": "describe_stage", "_options": "training_options"},
}  # old module -> {private name: public name}, where a split makes another module need it
RENAMED = {
    ("sim/sampling.py", "Replayed"): "ReplayedPhases",
    ("sim/sampling.py", "summarize"): "summarize_sampling",
    ("sim/sampling.py", "_stages"): "_sampling_stages",
}  # (old module, name) -> name in the new module, where two would collide


def module_of(path):
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def parse(text):
    default, picked, folded = {}, defaultdict(dict), set()
    for line in text.splitlines():
        line = line.strip()
        if m := re.fullmatch(r"(\S+) moves to (\S+)", line):
            default[m[1]] = m[2]
        elif m := re.fullmatch(r"(\S+) is folded into (\S+)", line):
            default[m[1]] = m[2]
            folded.add(m[1])
        elif m := re.fullmatch(r"from (\S+) to (\S+): (.*)", line):
            for name in m[3].split(","):
                picked[m[1]][name.strip()] = m[2]
    return default, picked, folded


def names_of(node):
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [t.id for t in node.targets if isinstance(t, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


class Source:
    """A module cut into its docstring, its imports and named chunks of text."""

    def __init__(self, path):
        self.path, self.text = path, Path(path).read_text()
        tree = ast.parse(self.text)
        lines = self.text.splitlines(keepends=True)
        body = list(tree.body)
        self.docstring = None
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            self.docstring = body.pop(0)
        self.imports, self.chunks, self.loose = [], [], []
        end = self.docstring.end_lineno if self.docstring else 0
        for node in body:
            start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            text = "".join(lines[end : node.end_lineno]).strip("\n")
            end = node.end_lineno
            if end < len(lines) + 1 and lines[end - 1 : end] and text:
                pass
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.imports.append(node)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and self.chunks:
                names, before = self.chunks[-1]
                self.chunks[-1] = (names, before + "\n" + text.strip("\n"))
            else:
                self.chunks.append((names_of(node), text))
        rest = "".join(lines[end:]).strip("\n")
        if rest and self.chunks:
            names, before = self.chunks[-1]
            self.chunks[-1] = (names, before + "\n" + rest)
        self.names = [n for names, _ in self.chunks for n in names]


def main():
    default, picked, folded = parse(Path(sys.argv[1]).read_text())
    goals = {*default.values(), *(new for names in picked.values() for new in names.values())}
    olds = [p for p in sorted({*default, *picked, *goals}) if Path(p).exists() and p not in CREATED]
    missing = sorted({*default, *picked} - set(olds))
    print("not there:", missing)
    sources = {p: Source(p) for p in olds}
    target = {}  # (old module, name) -> (new module, new name)
    module_target = {}
    for p in olds:
        module_target[module_of(p)] = module_of(default.get(p, p))
        for name in picked[p]:
            if name not in sources[p].names:
                print(f"{p} has no {name}")
        for name in sources[p].names:
            new = picked[p].get(name, default.get(p, p))
            public = PUBLIC.get(p, {}).get(name) or RENAMED.get((p, name)) or name
            target[module_of(p), name] = (DROPPED.get((p, name)) or module_of(new), public)

    # names that a module hands on lead to where they are defined
    for p in olds:
        for node in sources[p].imports:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (node.module, alias.name) in target and not p.endswith("__init__.py"):
                        target.setdefault((module_of(p), alias.asname or alias.name), target[node.module, alias.name])

    # what each new file is made of
    parts = defaultdict(list)
    for p in sorted(olds, key=lambda p: ORDER.index(p) if p in ORDER else -1):
        for names, text in sources[p].chunks:
            if any((p, name) in DROPPED for name in names):
                continue
            goals = {picked[p].get(n, default.get(p, p)) for n in names} or {default.get(p, p)}
            assert len(goals) == 1, (p, names)
            parts[goals.pop()].append((p, names, text))
    whole = {
        new: items[0][0]
        for new, items in parts.items()
        if {i[0] for i in items} == {items[0][0]} and len(items) == len(sources[items[0][0]].chunks) and not any(i[0] == d[0] for i in items for d in DROPPED)
        and Path(new).exists() is False
    }

    def rewrite_imports(text, own_old, own_new):
        """The text with every import of a moved name led to its new module."""
        tree = ast.parse(text)
        lines = text.splitlines(keepends=True)
        edits = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                out = new_import(node)
                if out is not None:
                    edits.append((node, out))
            elif isinstance(node, ast.Import):
                out = []
                changed = False
                for alias in node.names:
                    if alias.name in module_target and module_target[alias.name] != alias.name:
                        print(f"{own_new}: import {alias.name} as a module: by hand")
                        changed = True
                        out.append(f"import {module_target[alias.name]}" + (f" as {alias.asname}" if alias.asname else ""))
                    else:
                        out.append(f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else ""))
                if changed:
                    edits.append((node, out))
        for node, out in sorted(edits, key=lambda e: -e[0].lineno):
            indent = " " * node.col_offset
            tail = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode().strip()
            new = "".join(f"{indent}{line}{'  ' + tail if tail else ''}\n" for line in out)
            lines[node.lineno - 1 : node.end_lineno] = [new]
        return "".join(lines)

    def new_import(node):
        groups = defaultdict(list)
        changed = False
        for alias in node.names:
            key = (node.module, alias.name)
            as_module = f"{node.module}.{alias.name}"
            if key in target:
                module, name = target[key]
                kept = alias.asname or alias.name
                changed |= module != node.module or name != alias.name
                groups[module].append(name + (f" as {kept}" if kept != name and (alias.asname or not alias.name.startswith("_")) else ""))
            elif as_module in module_target:
                package, _, leaf = module_target[as_module].rpartition(".")
                kept = alias.asname or alias.name
                changed |= (package, leaf) != (node.module, alias.name)
                groups[package].append(leaf + (f" as {kept}" if kept != leaf else ""))
            else:
                if node.module in module_target and module_target[node.module] != node.module:
                    print(f"unknown name {key}")
                    groups[module_target[node.module]].append(alias.name)
                    changed = True
                    continue
                groups[node.module].append(alias.name + (f" as {alias.asname}" if alias.asname else ""))
        if not changed:
            return None
        return [f"from {module} import {', '.join(names)}" for module, names in groups.items()]

    def rename_words(text, names):
        for old, new in names.items():
            text = re.sub(rf"(?<![\w.]){old}\b", new, text)
        return text

    texts = {}
    for new, items in parts.items():
        renames = {}
        for (module, name), (_, public) in target.items():
            if name != public:
                renames.setdefault(module, {})[name] = public
        if new in whole:
            old = whole[new]
            text = rename_words(sources[old].text, renames.get(module_of(old), {}))
            texts[new] = rewrite_imports(text, old, new)
            continue
        imports, bodies, used_old = [], [], []
        for p, names, text in items:
            if p not in used_old:
                used_old.append(p)
            bodies.append(rename_words(text, renames.get(module_of(p), {})))
        for p in used_old:
            for node in sources[p].imports:
                for line in (isinstance(node, ast.ImportFrom) and new_import(node)) or [ast.unparse(node)]:
                    imports.append(line)
            needed = defaultdict(list)  # from the same old module, now elsewhere
            for name in sources[p].names:
                module, public = target[module_of(p), name]
                if module != module_of(new) or (p, name) in DROPPED and module != module_of(new):
                    needed[module].append(public)
            imports += [f"from {module} import {', '.join(names)}" for module, names in needed.items()]
        imports = [line for line in imports if not line.startswith(f"from {module_of(new)} import")]
        first = sources[used_old[0]]
        said = DOCSTRINGS.get(new)
        if said is None:
            home = sources.get(new) or next((sources[p] for p in used_old if default.get(p) == new and p not in folded), first)
            said = ast.get_docstring(ast.parse(home.text)) + ("\n" if "\n" in ast.get_docstring(ast.parse(home.text)) else "")
        seen = [n for _, names, _ in items for n in names]
        for n in sorted({n for n in seen if seen.count(n) > 1}):
            print(f"{new}: {n} defined twice: {[p for p, names, _ in items if n in names]}")
        alls = [b for b in bodies if b.lstrip().startswith("__all__")]
        texts[new] = f'"""{said}"""\n\n' + "\n".join(dict.fromkeys(imports)) + "\n\n\n" + "\n\n\n".join(b.strip("\n") for b in bodies) + "\n"

    for p in olds:
        if p not in texts:
            Path(p).unlink()
    for new, text in texts.items():
        Path(new).parent.mkdir(parents=True, exist_ok=True)
        Path(new).write_text(text)
    for path, said in DOCSTRINGS.items():
        if path.endswith("__init__.py") and not Path(path).exists() and Path(path).parent.exists():
            Path(path).write_text(f'"""{said}"""\n')

    # everybody else
    dotted = {old: new for old, new in module_target.items() if old != new}
    pattern = re.compile(r"(?<![\w.])(" + "|".join(sorted(map(re.escape, dotted), key=len, reverse=True)) + r")(?![\w])(?!\.\w+ import)")
    listed = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True).stdout.split()
    for path in listed:
        if path in texts or not Path(path).exists() or path.startswith(".ci"):
            continue
        text = Path(path).read_text()
        out = rewrite_imports(text, path, path)
        if out != text:
            Path(path).write_text(out)
    for path in subprocess.run(["git", "ls-files", "*.ipynb"], capture_output=True, text=True, check=True).stdout.split():
        book = json.loads(Path(path).read_text())
        before = json.dumps(book)
        for cell in book["cells"]:
            if cell["cell_type"] == "code":
                text = "".join(cell["source"])
                if text.lstrip().startswith("%"):
                    continue
                cell["source"] = rewrite_imports(text, path, path).splitlines(keepends=True)
        if json.dumps(book) != before:
            Path(path).write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n")
    # prose and configuration that name a module
    every = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.py", "*.toml", "*.md", "*.ipynb"], capture_output=True, text=True, check=True).stdout.split()
    said = re.compile(r"(?:``?|\")(?:strategies|sim)\.[a-z_]+")
    for path in every:
        if not Path(path).exists() or path.startswith(".ci"):
            continue
        text = Path(path).read_text()

        def lead(m):
            quote, module, rest = m[1], m[2], m[3]
            name = re.match(r"\.(\w+)", rest)
            if name and (module, name[1]) in target:
                return quote + target[module, name[1]][0] + "." + target[module, name[1]][1] + rest[name.end():]
            return quote + module_target[module] + rest

        out = re.sub(r"(``?|\")((?:" + "|".join(sorted(map(re.escape, dotted), key=len, reverse=True)) + r"))(?=[`\".\s])((?:\.\w+)?)", lead, text)
        if out != text:
            Path(path).write_text(out)
            print("prose:", path)
    configure()


def configure():
    """Lead the configuration to the new rooms."""
    path = Path("pyproject.toml")
    text = path.read_text()
    for old, new in {
        'sim = "sim.cli:main"': 'sim = "sim.cli.main:main"',
        '"sim/{cli,commands,frames,tables}.py" = ["PLC0415"]': '"sim/{api,cli/*,explore/frames,report/tables}.py" = ["PLC0415"]',
        '"sim/engine.py" =': '"sim/replay/engine.py" =',
        '"strategies/linear.py" =': '"strategies/pipelining/layout.py" =',
        '"sim.engine -> simpy"': '"sim.replay.engine -> simpy"',
        '"sim.plots.** -> matplotlib"': '"sim.report.plots.** -> matplotlib"',
        '"strategies.synthesis -> pulp"': '"strategies.orders.synthesis -> pulp"',
        '"sim.engine", "sim.memory", "sim.metrics"': '"sim.replay"',
    }.items():
        text = text.replace(old, new)
    path.write_text(text)
    for path in map(Path, ["tests/test_cli.py", "tests/test_figure4.py", "tests/benchmarks/bench_commands.py"]):
        path.write_text(re.sub(r'"-m", "sim\.cli(\.main)?"', '"-m", "sim"', path.read_text()))


main()
