"""Serving in words: the verdict on plans, their table, and the page of a report."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import starmap, zip_longest
from math import ceil, floor, inf
from typing import Final

import numpy as np

from profiles.errors import counted, flag_of, flag_value
from profiles.software.runtimes import find_runtime
from sim.explore.legality import OF_PIPELINES, runtimes_of
from sim.outcomes.results import Result
from sim.report.blocks import Answer, Block, Column, Command, Line, Panel, Table, html
from sim.report.page import FROM, Headline, Part, page_text, provenance
from sim.report.results import NO_RUNTIME_TODAY, command_of, memory_words, origin_lines
from sim.report.words import plain, rounded, sample_words
from sim.serving.answers import MISSES_LAST, TOLD, Serving
from sim.serving.fleet import Plan
from sim.serving.serve import Outcome, interval_of_p99
from strategies.policy import Job, Policy

MOST_ROWS, MOST_IMPOSSIBLE, MOST_CLASSES = 10, 3, 6
"""Rows of the table of plans, beside the best of each policy and cluster; lines on what cannot be, and on classes."""
SURE: Final = 3.0
"""Requests without a miss, times the share that may, from which 95 of 100 draws hold: -ln 0.05 (the rule of three)."""


def verdict_of_serving(serving: Serving) -> Answer:
    """Return the verdict on plans: the best, what it gives, why, and how far to trust it.

    Raises:
        InfeasibleError: no plan is known.
    """
    plan, result = serving.best.plan, serving.result
    lines = [] if serving.fewest_bound is None else [_fewest_line(serving)]
    lines.append(("best", plan_words(plan, named=len(serving.questions) > 1)))
    lines.append(("policy", _policy_words(serving.best)))
    lines += [*_quality_lines(serving), *_memory_lines(serving), *_why_lines(serving), *_doubt_lines(serving)]
    if result is None:
        lines.append(("times", f"as measured: {serving.title.partition(',')[0]}"))
    else:
        for word, words in origin_lines(result):
            more = "; slower than said above" * (word == "runs in" and words.startswith("without "))
            nowhere = word == "runs in" and not starts(serving.best)
            lines.append((word, NO_RUNTIME_TODAY if nowhere else words + more))
    return Answer(Panel(serving.title, lines))


def starts(run: Outcome) -> bool:
    """Whether servers of runtimes do what a plan did: no pools, and each request once and whole on one replica."""
    parts = 0 if run.log is None else sum(len(ran.jobs) for ran in run.log.ran) - len(run.log.jobs)
    return not (run.plan.elastic or run.plan.stages or parts)


def _policy_words(best: Outcome) -> str:
    """Return the policy of a plan, and who has it where that is not every server."""
    plan, policy = best.plan, best.plan.policy
    cap = f" of at most {plan.max_batch}" if plan.max_batch > 1 else ""
    in_turn = (type(policy).rank, type(policy).start) == (Policy.rank, Policy.start) and not plan.elastic
    own = "; no server orders so: it takes a dispatcher of your own before the replicas"
    whose = "" if in_turn else own if starts(best) else "; no runtime known here does"
    return f"{plan.rule}{cap}: {policy.summary}{whose}"


def plan_words(plan: Plan, *, named: bool = False) -> str:
    """Return a fleet in words: its replicas, the cluster where that is to be named, and the sampler."""
    replicas = (
        f"{counted(count, 'replica')} of {counted(size, 'GPU')}"
        for size, count in Counter(plan.sizes).items()
    )
    shared = f"{sum(plan.sizes)} GPUs, as many for each request as the policy gives, at most {plan.degree}"
    parts = [shared if plan.elastic else " and ".join(replicas)]
    if plan.stages:
        gpus = {name: counted(number, "GPU") for name, number in plan.stages.items()} | {"denoiser": parts[0]}
        parts = [f"{name} {words}" for name, words in gpus.items()]
    parts += [f"on {plan.cluster}"] * named + [plan.strategy]
    skipped = OF_PIPELINES if plan.parameters.get("pipeline_degree") == 1 else ()
    known = {
        key: value for key, value in plan.parameters.items() if value not in (None, 1) and key not in skipped
    }
    parts += [f"{flag_of(key)[2:]} {flag_value(value)}" for key, value in known.items()]
    return ", ".join(parts)


def _fewest_line(serving: Serving) -> Line:
    """Return the fewest GPUs, of several prices the cheapest, at both ends of the estimate too, and the bound below."""
    best, cheapest = serving.best, len({question.site.price for question in serving.questions}) > 1
    ends = ["more" if end == inf else f"{end:g}" for end in serving.ends.get("gpus", ())]
    price = f", ${best.dollars_per_hour:,.2f} an hour" if cheapest else ""
    band = f" ({' to '.join(ends)} by the error of the step times)" * bool(ends and serving.result)
    whose = f" of {best.plan.cluster}" if len(serving.questions) > 1 else ""
    bound = f"fewer than {serving.fewest_bound}{whose} cannot keep up, whatever the plan"
    return "cheapest" if cheapest else "fewest", f"{counted(best.plan.gpus, 'GPU')}{price}{band}; {bound}"


def share_words(share: float) -> str:
    """Return a share in per cent, rounded down, so that what misses never reads as held; but not down to none."""
    return f"{share:.0%}" if share in (0, 1) else f"{max(0.1, floor(1000 * share + 1e-9) / 10):.1f}%"


def _quality_lines(serving: Serving) -> Iterator[Line]:
    """Yield what requests and their owner get: attainment, percentiles, load, capacity, use and cost."""
    best, options = serving.best, serving.options
    if best.attainment is not None:
        slos = sorted({kind.slo_s for kind in serving.questions[0].kinds if kind.slo_s < inf})
        within = " to ".join(dict.fromkeys(map(figures, (slos[0], slos[-1]))))
        jobs = _counted_jobs(best)
        of_slo = np.array([(job.end_s - job.arrival_s) / (job.deadline_s - job.arrival_s) for job in jobs])
        by_draw = bool(options.slo_share == 0.99 and (interval_of_p99(of_slo) or (0.0, 0.0))[1] > 1)
        late = any(_held(group) < options.slo_share for group in _by_class(jobs).values())
        held, count = best.holds(options.slo_share), len(best.latencies_s)
        but = " and".join([" not by every class"] * late + [" other random draws may miss"] * by_draw)
        holds = f"held{', but' * bool(but)}{but}" if held else "missed"
        words = f"{share_words(best.attainment)} of the requests within {within} s"
        yield "SLO", f"{holds}: {words} ({share_words(options.slo_share)} wanted)"
        least = ceil(SURE / (1 - options.slo_share) - 1e-6) if options.slo_share < 1 else 0
        if held and count < least:
            yield "", f"{count:,} requests are too few to tell: {least:,} without a miss would"
    told = [f"p{p:g} {figures(best.percentile_s(p))} s" for p in sorted({*TOLD, wanted_of(serving)})]
    interval = " to ".join(map(figures, interval_of_p99(best.latencies_s) or ()))
    drawn = f" ({interval} in other random draws)" if interval else ""
    if not _is_steady(serving):
        lasted_s = serving.question.load(best.rate_per_s, best.plan).duration_s
        drawn = f" of what came in {figures(lasted_s)} s: the queue grows, and with it the latency"
    yield "latency", f"{', '.join(told)}{drawn}{f', mean {figures(best.mean_s)} s' * _is_steady(serving)}"
    arrivals = "trace" if options.requests is not None else options.arrivals
    requests = f"{len(best.latencies_s):,} requests counted"
    yield "load", f"{plain(best.rate_per_s, 3)} a second, {arrivals}; {requests}"
    if words := load_warning(serving):
        yield "", words
    if best.capacity_per_s is not None:
        low, high = serving.ends.get("capacity_per_s", (best.capacity_per_s,) * 2)
        by = "by the error of the step times and the draw of requests"
        band = f" ({plain(low, 3)} to {plain(high, 3)} {by})"
        yield "capacity", f"up to {plain(best.capacity_per_s, 3)} a second hold the SLO{band}"
    each_s = best.gpu_s_per_request
    cost = f"{figures(each_s)} paid GPU-seconds each" if each_s < inf else "none complete while they arrive"
    if best.dollars_per_1000 is not None:
        cost += f", ${best.dollars_per_1000:,.2f} per 1,000 {samples_of(serving)}"
    yield "use", f"{counted(best.plan.gpus, 'GPU')} busy {share_words(best.use)} of the time; {cost}"


def _is_steady(serving: Serving, outcome: Outcome | None = None) -> bool:
    """Whether percentiles of a plan, by default the best, mean something: of a trace, or where it keeps up."""
    options, outcome = serving.options, outcome or serving.best
    return outcome.keeps_up or options.requests is not None or bool(options.clients)


def wanted_of(serving: Serving) -> float:
    """Return the percentile of latency that the SLO is about."""
    return round(100 * serving.options.slo_share, 6)


def samples_of(serving: Serving) -> str:
    """Return the plural of what requests ask for."""
    return "requests" if serving.result is None else sample_words(serving.result)[1]


def load_warning(serving: Serving) -> str:
    """Return a warning of a load that the best plan cannot keep up with, or that misses the SLO; else empty."""
    if serving.limit is None:
        return ""
    best, (rate, plan) = serving.best, serving.limit
    holds = "holds the SLO" if best.attainment is not None else "can be kept up with"
    which = f"({plan.replicas} {plan.rule_and_cap})"
    late = [] if rate else serving.question.late_alone(best.plan)
    alone = "".join(f": {kind.shape.words} takes {figures(s)} s alone" for kind, s in late[:1])
    holds = f"up to {plain(rate, 3)}/s {holds} {which}" if rate else f"no rate {holds}{alone}"
    if best.keeps_up and rate >= best.rate_per_s and serving.options.loading:
        return f"requests that come while replicas load the model miss the SLO; once loaded, {holds}"
    if best.keeps_up and rate >= best.rate_per_s:
        return f"the {len(best.latencies_s)} requests counted are too few to tell: of more, {holds}"
    if best.keeps_up:
        return f"{plain(best.rate_per_s, 3)}/s misses the SLO; {holds}"
    completes = f"the {plain(best.ceiling_per_s, 3)}/s that the best plan completes"
    grows = plain(60 * (best.rate_per_s - best.ceiling_per_s), 3)
    return f"{plain(best.rate_per_s, 3)}/s is more than {completes}: its queue grows by {grows} a minute; {holds}"


def figures(value: float) -> str:
    """Return seconds to three figures, or that no request was counted."""
    return "-" if value == inf else rounded(value, 3) if value else "0"


def _memory_lines(serving: Serving) -> Iterator[Line]:
    """Yield what the fullest GPU of the best plan holds; where that may not fit, the next plan that surely does."""
    if (fullest := serving.fullest(serving.best.plan)) is None:
        return
    yield "memory", memory_words(fullest)
    if fullest.nearly_full:
        full = ((run, serving.fullest(run.plan)) for run in serving.outcomes)
        roomy = next((run for run, result in full if result is not None and not result.nearly_full), None)
        words = "none of the plans surely fits"
        if roomy is not None:
            named, p99_s = plan_words(roomy.plan, named=len(serving.questions) > 1), roomy.percentile_s(99)
            words = f"{named}, {roomy.plan.rule_and_cap}: p99 {figures(p99_s)} s"
        yield "with room", words


def _why_lines(serving: Serving) -> Iterator[Line]:
    """Yield what a request's time goes to, and what each class of a mix gets."""
    best, jobs = serving.best, _counted_jobs(serving.best)
    if not jobs or not _is_steady(serving):
        return
    wait_s = float(np.mean([job.start_s - job.arrival_s for job in jobs]))
    site, degree = serving.question.site, best.plan.degree
    alone_s = {shape: site.run_s(degree, shape) for shape in {job.shape for job in jobs}}
    shared_s = max(0.0, best.mean_s - wait_s - float(np.mean([alone_s[job.shape] for job in jobs])))
    word = "batching" if best.plan.max_batch > 1 else "waiting between steps or running on fewer GPUs"
    word = "queueing between pools" if best.plan.stages else word
    parts = {"queueing": wait_s, word: shared_s, "service": best.mean_s - wait_s - shared_s}
    shares = (f"{name} {part / best.mean_s:.0%}" for name, part in parts.items() if part > best.mean_s / 200)
    yield "why", f"of a request's time: {', '.join(shares)}"
    yield from _class_lines(jobs)


def _counted_jobs(outcome: Outcome) -> list[Job]:
    """Return the requests of a plan after the warm-up, in the order of arrival; none where no log was kept."""
    jobs = (
        [] if outcome.log is None else [job for job in outcome.log.jobs if job.arrival_s >= outcome.warmup_s]
    )
    return sorted(jobs, key=lambda job: job.number)


def _by_class(jobs: Iterable[Job]) -> dict[tuple[str, float], list[Job]]:
    """Return the requests of each shape and SLO in seconds."""
    classes: dict[tuple[str, float], list[Job]] = {}
    for job in jobs:
        classes.setdefault((job.shape.words, round(job.deadline_s - job.arrival_s, 6)), []).append(job)
    return classes


def _held(jobs: Sequence[Job]) -> float:
    """Return the share of requests within their SLO."""
    return sum(not job.missed for job in jobs) / len(jobs)


def _class_lines(jobs: Iterable[Job]) -> Iterator[Line]:
    """Yield what each of several classes of requests gets, those that miss their SLO most first."""
    rows: list[tuple[float, float, str]] = []
    for (words, slo_s), every in _by_class(jobs).items():
        p50_s, p99_s = np.percentile([job.end_s - job.arrival_s for job in every], (50, 99))
        share = _held(every)
        held = f", {share_words(share)} within {figures(slo_s)} s" if slo_s < inf else ""
        rows.append((share, -p99_s, f"{words}: p50 {figures(p50_s)} s, p99 {figures(p99_s)} s{held}"))
    if len(rows) > 1:
        yield from zip(
            ("classes", *[""] * (MOST_CLASSES - 1)), (words for *_, words in sorted(rows)), strict=False
        )


def _doubt_lines(serving: Serving) -> Iterator[Line]:
    """Yield ties, the outcome at both ends of the estimate of step times, and a trace's measured percentiles."""
    if ties := serving.ties():
        named = ", ".join(dict.fromkeys(f"{outcome.plan.replicas} {outcome.plan.rule}" for outcome in ties))
        yield "ties", f"the draws cannot tell the best from {named}"
    if "p99_s" in serving.ends and _is_steady(serving):
        low, high = map(figures, serving.ends["p99_s"])
        shares = " to ".join(map(share_words, dict.fromkeys(serving.ends.get("attainment", ()))))
        held = f", {shares} hold the SLO" if shares else ""
        error = "our step times are too short or too long, within their error"
        yield "if", f"{error}: p99 {low} to {high} s{held}"
    if serving.measured_s:
        pairs = ((p, serving.best.percentile_s(p), np.percentile(serving.measured_s, p)) for p in TOLD)
        words = (f"p{p} {here:.3g} s for {there:.3g} s ({here / there - 1:+.1%})" for p, here, there in pairs)
        yield "measured", f"simulated for measured: {', '.join(words)}"


def serving_blocks(serving: Serving, server: Callable[[Result, str], str] | None = None) -> list[Block]:
    """Return the whole answer: verdict, tables, what was not possible, and how to start the replicas.

    ``server`` gives the command that starts the server of a runtime for a result; else `sim launch` prints it.
    """
    blocks: list[Block] = [verdict_of_serving(serving).panel]
    if serving.curves:
        best = [min(outcomes, key=serving.rank) for outcomes in zip(*serving.curves, strict=True)]
        title = f"best plan by rate, of {counted(len(serving.curves), 'plan')}"
        by_rate = [(f"{outcome.rate_per_s:.3g}", outcome, outcome.plan.rule_and_cap) for outcome in best]
        blocks.append(_table(title, "requests\nper s", by_rate, serving))
    blocks += plan_blocks(serving)
    sites = [question.site for question in serving.questions]
    named = [
        [f"{site.name}: {line}" if len(sites) > 1 else line for line in site.impossible] for site in sites
    ]
    # one of each cluster in turn
    lines = [line for of_each in zip_longest(*named) for line in of_each if line]
    most = max(MOST_IMPOSSIBLE, len(sites))
    more = [f"{len(lines) - most} more"] if len(lines) > most else []
    blocks += [f"not possible: {line}" for line in (*lines[:most], *more)]
    plan, site = serving.best.plan, serving.question.site
    if not (starts(serving.best) and site.fastest):
        return blocks
    servers: dict[int, str] = {}
    for gpus in dict.fromkeys(plan.sizes):
        result = site.fastest[gpus]
        name = site.runtime or next(iter(runtimes_of(result)), "")
        servers[gpus] = find_runtime(name).serves if name else ""
        command = command_of(result, "launch" if name else "run", name)
        command = server(result, name) if server and servers[gpus] else command
        blocks.append(Command(f"a replica of {counted(gpus, 'GPU')}", command))
    in_nodes = max(plan.sizes) <= site.per_node and all(servers.values())
    return [*blocks, *(places(plan.sizes, site.per_node, servers) if in_nodes else ())]


def places(replicas: Sequence[int], per_node: int, servers: Mapping[int, str]) -> list[str]:
    """Return the GPUs, server and port of each replica, node by node; nodes that hold the same share a line.

    ``replicas`` are the GPUs of each, in powers of two, the largest first.
    """
    nodes: dict[int, list[str]] = {}
    first = 0
    for gpus in replicas:
        node, start = divmod(first + -first % per_node * (first % per_node + gpus > per_node), per_node)
        held = nodes.setdefault(node, [])
        numbers = ",".join(map(str, range(start, start + gpus)))
        held.append(f"CUDA_VISIBLE_DEVICES={numbers} {servers[gpus]} ... --port {8000 + len(held)}")
        first = node * per_node + start + gpus
    alike = Counter("; ".join(held) for held in nodes.values())
    every = ((counted(number, "node"), words) for words, number in alike.items())
    return [f"on {'each of ' * (not nodes.startswith('1 '))}{nodes}: {words}" for nodes, words in every]


def plan_blocks(serving: Serving) -> list[Block]:
    """Return the table of plans with its legend: those with exactly the result of another share its row."""
    groups: dict[object, list[Outcome]] = {}
    for run in serving.outcomes:
        plan = run.plan
        key = plan.replicas, plan.cluster, run.rate_per_s, run.capacity_per_s, run.latencies_s.tobytes()
        groups.setdefault(key, []).append(run)
    ties, known, every = set(map(id, serving.ties())), set[str](), list[tuple[str, Outcome, str]]()
    for number, alike in enumerate(groups.values(), 1):
        first = alike[0]
        names = {first.plan.rule, first.plan.cluster}
        if number <= MOST_ROWS or not names <= known:
            rules = " = ".join(run.plan.rule_and_cap for run in alike)
            every.append((f"{number}{' tie' * (id(first) in ties)}", first, rules))
        known |= names
    marks = {
        "tie: the draws of requests cannot tell it from 1": any("tie" in first for first, *_ in every),
        "not shown: what is worse than the best of its policy and its cluster": len(every) < len(groups),
        "*: the queue grows; over a longer --duration these are more": not all(
            _is_steady(serving, run) for _, run, _ in every
        ),
    }
    by = f"by {serving.ranked_by}{', then by p99' * (serving.ranked_by != 'p99')}"
    judged = serving.ranked_by in MISSES_LAST and serving.best.attainment is not None
    table = _table(f"plans, best first, {by}{'; those that miss the SLO last' * judged}", "#", every, serving)
    return [table, *(words for words, there in marks.items() if there)]


def _table(title: str, head: str, every: Sequence[tuple[str, Outcome, str]], serving: Serving) -> Table:
    """Return a table of plans, each after a first cell and before its rule, and of what they give."""
    told, several = {50.0: 7} | {wanted_of(serving): 0}, len({run.plan.cluster for _, run, _ in every}) > 1
    columns = [
        Column(head),
        Column("GPUs", 2),
        Column("replicas", words=True),
        Column("cluster", 1, words=True),
        Column("strategy", 6, words=True),
        Column("policy", words=True, widest=22),
        Column("SLO\nheld"),
        *(Column(f"p{p:g}\ns", rank) for p, rank in told.items()),
        Column("capacity\nper s"),
        Column("use", 5),
        Column(f"paid GPU-s\nper {samples_of(serving)[:-1]}", 4),
        Column("$ per\n1,000"),
    ]
    rows = [
        (
            first,
            str(run.plan.gpus),
            run.plan.replicas,
            run.plan.cluster if several else "",
            run.plan.strategy,
            rule,
            "-" if run.attainment is None else share_words(run.attainment),
            *(f"{figures(run.percentile_s(p))}{'' if _is_steady(serving, run) else '*'}" for p in told),
            *_capacity_cells(run),
        )
        for first, run, rule in every
    ]
    return Table(title, columns, rows)


def _capacity_cells(outcome: Outcome) -> tuple[str, ...]:
    """Return the capacity of a plan, its use, and what requests cost; the last two where it holds some rate."""
    capacity = outcome.capacity_per_s
    words = "-" if capacity is None else plain(capacity, 3) if capacity else "none"
    if not outcome.completed_per_s or capacity == 0:
        return words, "-", "-", "-"
    dollars = "-" if outcome.dollars_per_1000 is None else f"{outcome.dollars_per_1000:,.2f}"
    return words, f"{outcome.use:.0%}", rounded(outcome.gpu_s_per_request, 3), dollars


def serving_page(serving: Serving, asked: str) -> str:
    """Return the page of an answer, with the command line that asked if there is one."""
    from sim.report.plots.serving import pictures_of  # noqa: PLC0415  matplotlib takes long

    result, best, panel = serving.result, serving.best, verdict_of_serving(serving).panel
    number, unit = f"{figures(best.percentile_s(99))} s", "in which 99 of 100 requests are served"
    if serving.fewest_bound is not None:
        number, unit = counted(best.plan.gpus, "GPU"), f"are the {panel.lines[0][0]} that hold the SLO"
    blocks = serving_blocks(serving)[1:]
    headline = Headline(number, unit, [block for block in blocks if isinstance(block, Command)])
    parts = [Part("Plans", html(*(block for block in blocks if not isinstance(block, Command))))]
    parts += starmap(Part, pictures_of(serving))
    source: list[Block] = [Command("this page", asked)] if asked else []
    if result is not None:
        source.insert(0, provenance(result.origin.scenario))
    return page_text(serving.title, headline, panel, [*parts, Part(FROM, html(*source))])
