"""From a log to a recommender: prepare, tune baselines, race, refit, test, and write the page."""

import logging
import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, Unpack

import torch

from recsys.automatic.clock import Clock, measure, parse_time_limit
from recsys.automatic.race import Finished, finish, race, train_on, tune_baselines
from recsys.automatic.racer import Context, MeasuredBaseline, Racer, State
from recsys.automatic.rules import (
    BY_DATE,
    TIME_LIMITS,
    Kind,
    LogFacts,
    Plan,
    choose_settings,
    choose_split,
    propose,
)
from recsys.config.data import DataConfig
from recsys.config.experiment import Experiment
from recsys.config.files import dump_experiment, flatten, parse_experiment
from recsys.data.audit import audit
from recsys.data.features import Encoders
from recsys.data.frames import readable_again
from recsys.data.preparation import write_dataset
from recsys.data.prepared import LogWords, PreparedDataset, with_words
from recsys.data.sources import source_name
from recsys.data.tables import TableSource
from recsys.errors import InputError
from recsys.evaluation.held_out import HeldOutParts
from recsys.experiments.baselines import beside, fit_baseline
from recsys.experiments.fit import FinalScorer, evaluate_and_write, final_scorer
from recsys.experiments.results import Run, check_out
from recsys.folders import new_file, sole_use
from recsys.inference.catalogue import Catalogue
from recsys.machine import peak_memory_mib, usable_processors
from recsys.progress import Stage, stage
from recsys.reports import run_page
from recsys.reports.comparison import compare
from recsys.reports.run_page import Choice, RacePoint, RunReport, examples_of, write_run_report
from recsys.serving.recommender import Recommender
from recsys.tracking import artifacts
from recsys.tracking.store import open_store, without_password
from recsys.tracking.tracker import RecordError, track
from recsys.training.checkpoints import CheckpointError
from recsys.training.epochs import MONITOR

logger = logging.getLogger(__name__)

_GAIN = 0.01
"""The share by which a model with counts must be better on validation than the best baseline: less
may be chance, and a baseline takes less time and memory."""
_LIBRARIES = ("recsys-target-attention", "torch", "pytorch-lightning", "polars", "mlflow")


class Answer(NamedTuple):
    """The model or the baseline that was chosen for a log, after its test."""

    context: Context
    run: Run
    sentence: str
    """What was chosen, and why."""
    experiment: Experiment
    """The settings that repeat it."""
    other_runs: list[str]
    """The MLflow runs beside the answer: of the model that it beat, and of baselines."""


def fit_log(
    source: TableSource,
    plan: Plan,
    time_limit: str | float | None = None,
    *,
    items: TableSource | None = None,
    users: TableSource | None = None,
    config: DataConfig | None = None,
    started: float | None = None,
    **words: Unpack[LogWords],
) -> Answer:
    """Make the best recommender for a log that the time allows; see `recsys.fit`.

    Ctrl-C ends the training: the best so far is tested and kept. ``config`` has further settings of
    the data, and the time begins to pass at ``started``, by `time.monotonic`; now if None.

    Raises:
        InputError: the log, a setting or the store is invalid; nothing is held out to choose or to
            test on, or there is nothing to train on.
    """
    if plan.preset not in TIME_LIMITS:
        raise InputError(f"preset {plan.preset!r}: must be one of {', '.join(TIME_LIMITS)}")
    parse_experiment({"name": plan.name, "seed": plan.seed}, (), "the run")  # refuses odd names
    limit = TIME_LIMITS[plan.preset] if time_limit is None else parse_time_limit(time_limit)
    clock = Clock(limit, started=time.monotonic() if started is None else started)
    for folder in (plan.out, plan.beaten):
        check_out(folder)  # before a dataset of that name is replaced
    with sole_use(plan.out, "runs it"), sole_use(plan.beaten, "runs it"):
        with stage(f"{plan.name}: reading"):
            dataset, choices = _prepare(source, plan.name, with_words(config, words), items, users)
            open_store(plan.tracking)  # not to find out in an hour that it is not there
        with stage(plan.name, clock.limit) as line:
            return _run(dataset, plan, clock, choices, line)


def _run(
    dataset: PreparedDataset, plan: Plan, clock: Clock, choices: list[Choice], line: Stage
) -> Answer:
    """Choose settings for a prepared log, train, test once, and write the page."""
    facts = LogFacts.of(dataset)
    settings = choose_settings(facts)
    kinds = propose(facts, settings, dataset.config, plan)
    protocol = kinds[0].experiment
    for choice in (choices := [*choices, *settings]):
        logger.debug("%s: %s (%s)", *choice)
    encoders = Encoders.fit(protocol.model, dataset)  # all kinds read the same features
    dataset = encoders.read(dataset)
    catalogue = Catalogue.read(dataset.num_items, encoders, dataset.item_table)
    trees = {kind.name: kind.experiment.model_dump(mode="json") for kind in kinds}
    facts_of_run = {"dataset": dataset.fingerprint, "limit": clock.limit} | trees
    state = State.open(plan.out, facts_of_run, fresh=plan.fresh)
    clock.before = state.seconds
    held_out = HeldOutParts.find(dataset, protocol.evaluation.request_time)
    line.say("measuring the speed")
    if state.speed is None:
        cheapest = min(kinds, key=lambda kind: kind.cost)
        known = dataset, catalogue, held_out.valid
        state.speed = measure(cheapest.experiment, cheapest.cost, *known)
    samples = state.speed.sample(held_out, clock.limit, plan.seed)
    averages = plan.preset != "fast" and not facts.features  # no mean reads features
    run = plan, dataset, catalogue, samples, state.speed, clock, state, averages
    context = Context(*run, line)
    finished, reason = train_models(context, kinds)
    context.say("testing")
    if finished is None:
        context.members = ()  # a mean that did not fit into the memory in the end
        answer = answer_with_baseline(context, state.baselines[0], protocol, reason)
    else:
        choices += [finished.averaging] if finished.averaging else []
        answer = answer_with_model(context, finished, protocol)
    with new_file(plan.out / artifacts.SETTINGS) as file:
        file.write_text(dump_experiment(answer.experiment), encoding="utf-8")
    evaluate_baselines(answer, protocol)
    context.say("writing the page")
    write_page(answer, choices)
    state.remove()  # not before: a run that is killed here resumes
    return answer


def train_models(context: Context, kinds: list[Kind]) -> tuple[Finished | None, str]:
    """Tune baselines, race, train on and refit; at Ctrl-C the best so far is the model.

    Returns:
        The model, or why there is none, but baselines.

    Raises:
        InputError: no model can be trained, and there is no baseline; or the disk is full.
        KeyboardInterrupt: Ctrl-C, and there is no baseline either.
    """
    state = context.state
    try:
        tune_baselines(context, kinds[0].experiment)
        racers = [Racer.ready(kind, context) for kind in kinds]
        return finish(context, train_on(context, race(context, racers)[0])), ""
    except KeyboardInterrupt:
        context.clock.stopped = True
    except CheckpointError:  # the disk is full: another answer could not be written either
        raise
    except InputError as error:
        if not state.baselines:
            raise
        logger.warning("no model could be trained: %s", error)
        return None, "no model could be trained"
    logger.warning("Ctrl-C: the best so far is tested; Ctrl-C again ends the run")
    trained = sorted((r for r in context.racers if r.points), key=lambda racer: -racer.quality)
    if trained:
        return finish(context, trained), ""
    if not state.baselines:
        raise KeyboardInterrupt
    return None, "Ctrl-C came before a model was validated"


# --- The log -------------------------------------------------------------------------------------


def _prepare(
    source: TableSource,
    name: str,
    settings: DataConfig,
    items: TableSource | None,
    users: TableSource | None,
) -> tuple[PreparedDataset, list[Choice]]:
    """Prepare the log; return it with what was chosen: the split, to drop copies."""
    out, source, choices = _prepared_folder(name, source), readable_again(source), list[Choice]()

    def prepare(settings: DataConfig) -> PreparedDataset:
        choose = None if "split" in settings.model_fields_set else choose_split
        write_dataset(source, settings, out, items, users, choose_split=choose)
        return PreparedDataset.open(out)

    dataset = prepare(settings)
    copies, rows = dataset.copies[0], len(dataset.items)
    if 2 * copies > rows and "duplicates" not in settings.model_fields_set:
        reason = f"{copies:,} of {rows:,} interactions equal another one in user, item and time"
        choices.append(Choice("data.duplicates", "drop_exact", reason))
        dataset = prepare(settings.model_copy(update={"duplicates": "drop_exact"}))
    manifest, split = dataset.manifest, dataset.config.split
    names = ("users", "items", "interactions")
    counts = ", ".join(f"{manifest.counts[counted]:,} {counted}" for counted in names)
    dropped = "".join(f", {n:,} dropped ({why})" for why, n in manifest.dropped.items() if n)
    logger.info("%s: %s in %s%s", name, counts, dataset.path, dropped)
    if split != settings.split:
        choices.append(BY_DATE)
    return dataset, choices


def _prepared_folder(name: str, source: TableSource) -> Path:
    """Return where the prepared log goes, which is not where the log is."""
    folder = Path("data") / name
    if isinstance(source, str | os.PathLike):
        fixed = takewhile(lambda part: not set("*?[") & set(part), Path(source).parts)
        log, prepared = Path(*fixed).resolve(), folder.resolve()
        if log.is_relative_to(prepared):
            return folder.with_name(f"{name}-prepared")
        if prepared.is_relative_to(log):
            return Path(f"{name}-prepared")
    return folder


def name_of(source: TableSource) -> str:
    """Return a name for the run of a source, such as that of its file."""
    if not isinstance(source, str | os.PathLike):
        return "recommender"
    return re.sub(r"[^\w.-]+", "-", source_name(str(source))).strip("-.") or "recommender"


# --- The answer ----------------------------------------------------------------------------------


def answer_with_model(context: Context, finished: Finished, protocol: Experiment) -> Answer:
    """Test and write the model; or the best baseline, where no model is better on validation.

    The model is then tested too, below the baseline, and written to a folder of its own.
    """
    best = next(iter(context.state.baselines), None)
    words = context.dataset, context.held_out, finished.fitted
    final = final_scorer(finished.experiment, *words)
    tables = final.valid, final.valid_alone
    quality, alone = (float(table.values("ndcg_at_10").mean()) for table in tables)
    figures = f"{quality:.4f} of {finished.name} with counts, {alone:.4f} of it alone"
    if best is not None and quality < (1 + _GAIN) * best.ndcg_at_10:
        context.is_beaten = True
        answer = answer_with_baseline(context, best, protocol, figures)
        beaten = _test(context, final, finished, context.plan.beaten, answer.run.run_id)
        answer.other_runs.append(beaten.run_id)
        return answer
    named, counts = finished.name, final.count_ensemble
    if best is not None:
        figures += f", and {best.ndcg_at_10:.4f} of the best baseline, {words_for(best.name)}"
        if alone < best.ndcg_at_10:  # the counts come first
            way = "transitions and repeats" if protocol.evaluation.seen == "allow" else "PCTM"
            only_recent = counts is None or not (counts.weight or counts.repeat_weight)
            named = f"{'recent popularity' if only_recent else way} with {named}"
    run = _test(context, final, finished, context.plan.out, answer=named)
    sentence = f"The answer is {named}: validation NDCG@10 {figures}."
    return Answer(context, run, sentence, finished.experiment, [])


def _test(
    context: Context,
    final: FinalScorer,
    finished: Finished,
    out: Path,
    parent: str | None = None,
    answer: str | None = None,
) -> Run:
    experiment = final.experiment.model_copy(update={"name": out.name})
    final = final._replace(experiment=experiment)
    settings, dataset = flatten(experiment), context.dataset
    with track(experiment, dataset, experiment.family, settings, parent=parent) as tracker:
        if answer is not None:
            tracker.tag(artifacts.ANSWER, answer)
        for number, metrics in enumerate(final.fitted.curve.epochs, 1):
            if MONITOR in metrics:
                tracker.log_metrics(metrics, number)
        words = final, dataset, context.held_out, None, finished.seconds, out, tracker
        return evaluate_and_write(*words)


def answer_with_baseline(
    context: Context, best: MeasuredBaseline, protocol: Experiment, reason: str
) -> Answer:
    """Test and write a baseline, the answer for a reason."""
    name = words_for(best.name)
    shared = protocol.model_dump(include={"name", "seed", "data", "evaluation", "tracking"})
    tree = {**shared, "baseline": best.name, "training": {"refit": True}}
    chosen, words = Experiment.model_validate(tree), (context.dataset, context.plan.out)
    test = context.held_out.test
    run = fit_baseline(chosen, *words, tuned=best.tuned, test=test, answer=name)
    quality = f"validation NDCG@10 {best.ndcg_at_10:.4f}"
    sentence = f"The answer is {name}, a baseline: {quality}, and {reason}."
    return Answer(context, run, sentence, chosen, [])


def evaluate_baselines(answer: Answer, protocol: Experiment) -> None:
    """Test the baselines beside the answer, the best first and the others while time is left.

    Ctrl-C leaves out the rest.
    """
    context, clock, test = answer.context, answer.context.clock, answer.context.held_out.test
    others = [b for b in context.state.baselines if b.name != answer.experiment.baseline]
    try:
        for number, baseline in enumerate(others, 1):
            if number > 1 and clock.left < clock.seconds_of_page:
                break
            context.say(f"testing baseline {number} of {len(others)}: {baseline.name}")
            words = beside(protocol, baseline.name), context.dataset, None
            tuned, parent = baseline.tuned, answer.run.run_id
            tested = fit_baseline(*words, tuned=tuned, test=test, parent=parent)
            answer.other_runs.append(tested.run_id)
    except (KeyboardInterrupt, RecordError) as error:
        logger.warning("%s: the other baselines are not tested", str(error) or "Ctrl-C")


def words_for(baseline: str) -> str:
    """Return a baseline's name for people."""
    return "PCTM" if baseline == "pctm" else baseline.replace("_", " ")


# --- The page ------------------------------------------------------------------------------------


def write_page(answer: Answer, choices: Sequence[Choice]) -> None:
    """Write the page of a run; it shows the answer beside other runs, and how to make it again."""
    run, context = answer.run, answer.context
    dataset, out = context.dataset, context.plan.out
    recommender = Recommender.load(run.bundle, dataset)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    report = RunReport(
        name=out.name,
        dataset=dataset,
        findings=audit(dataset, recommender.bundle.experiment.evaluation.seen),
        comparison=compare([run.run_id, *answer.other_runs], run.tracking),
        command=without_password(context.plan.command),
        date=datetime.now(UTC),
        seconds=context.clock.spent,
        choices=choices,
        racers=[*_racers_of(context)],
        examples=examples_of(recommender, dataset, seconds=context.clock.seconds_of_page / 2),
        versions={
            "peak memory": f"{peak_memory_mib()[artifacts.PEAK_MEMORY]:,.0f} MiB",
            "machine": gpu or f"{usable_processors()} processors",
            "Python": platform.python_version(),
            **{name: version(name) for name in _LIBRARIES},
        },
    )
    write_run_report(out / artifacts.REPORT, report)


def _racers_of(context: Context) -> Iterator[run_page.Racer]:
    for racer in context.racers:
        words = racer.name, racer.kind.description, tuple(racer.points)
        yield run_page.Racer(*words, racer.outcome, racer.won)
    for baseline in context.state.baselines:
        settings = "" if baseline.settings == "None" else baseline.settings
        point = RacePoint(baseline.seconds, 0, baseline.ndcg_at_10)
        yield run_page.Racer(baseline.name, settings, (point,), "a baseline, tuned")
