"""Lays runs side by side: a table, curves, and the settings that differ.

`bert_jax.report` reads only two files of a run's folder, `metrics.jsonl` and
`config.json`. So the runs may come from other machines, and may still be
running.

In this file, a row is one JSON object of metrics.jsonl: the metrics of some
training steps, or the results of an evaluation.
"""

import base64
import csv
import dataclasses
import glob
import html
import io
import math
import os
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax import files
from bert_jax.messages import UserError, note
from bert_jax.training import logging
from bert_jax.use import arguments
from bert_jax.use.results import Results
from bert_jax.weights.run_config import flatten

# The name of a horizontal axis -> the label of this axis in the pictures.
AXES = {
  "step": "steps",
  "tokens": "million tokens without padding",
  "seconds": "seconds of training",
  "flops": "petaFLOPs",
}
# The name of an axis -> the divisor that gives the unit of the axis's label.
_AXIS_DIVISORS = {"step": 1, "tokens": 1e6, "seconds": 1, "flops": 1e15}
# The totals of training that `_add_totals` adds to a row.
_COST_NAMES = ("seconds", "tokens", "flops")
# Fields of a row that are neither a loss nor a score. Their curves are drawn
# only if the argument `metrics` names them.
_FIELDS_WITHOUT_SCORES = frozenset(
  {
    *("learning_rate", "grad_norm", "padding", "mfu"),
    *("steps_per_second", "tokens_per_second", "flops_per_step"),
    *("data_wait", "checkpoint_wait"),
    *logging.COUNT_NAMES,
  }
)
# The endings of the metrics whose best value is the smallest.
_SMALLER_IS_BETTER_ENDINGS = ("loss", "error")
# Settings that hold a path. They do not explain why the results differ.
_PATH_SETTINGS = ("data.path", "init_from")


@dataclasses.dataclass(frozen=True)
class Run:
  """Holds the settings and the rows of one run.

  Attributes:
    name: the run's name in the report.
    settings: the run's config, flat: "model.hidden" -> 768. It is empty if the
      run has no `config.json`.
    rows: the rows of `metrics.jsonl`. Each also has the `tokens`, `seconds` and
      `flops` that training took from step 0 to the row's step (NaN if they are
      not known). The seconds do not include compiling, evaluating, and the time
      in which the run was stopped.
  """

  name: str
  settings: Mapping[str, Any]
  rows: Sequence[Mapping[str, Any]]

  def evaluations(self) -> list[Mapping[str, Any]]:
    """Returns the rows of evaluations, in the order of their steps."""
    return [row for row in self.rows if row["split"] != "train"]

  def training_rows(self) -> list[Mapping[str, Any]]:
    """Returns the rows of training, in the order of their steps."""
    return [row for row in self.rows if row["split"] == "train"]


@dataclasses.dataclass(frozen=True)
class Curve:
  """Holds one line of a picture.

  Attributes:
    label: the name of the run.
    x_values: the horizontal coordinates of the line's points.
    y_values: the metric at each point.
    is_evaluation: True if the points are evaluations; False if they are rows of
      training.
  """

  label: str
  x_values: Sequence[float]
  y_values: Sequence[float]
  is_evaluation: bool


class Report:
  """Compares runs. A notebook shows the report as a page.

  Attributes:
    runs: the runs.
    metrics: the names of the metrics whose curves are drawn.
    axis: what the horizontal axes count: one of the keys of `AXES`.
  """

  def __init__(self, runs: Sequence[Run], metrics: Sequence[str], axis: str):
    """Stores the attributes."""
    self.runs, self.metrics, self.axis = runs, metrics, axis

  def __repr__(self) -> str:
    """Returns a text with the names of the runs and of the metrics."""
    names = ", ".join(run.name for run in self.runs)
    return f"Report({names}; curves of {', '.join(self.metrics)})"

  def _repr_html_(self) -> str:
    """Returns the body of the page, for notebooks."""
    return self._html_body()

  def table(self) -> Results:
    """Returns a dict for each run, for `pandas.DataFrame(report.table())`.

    A dict has these entries. A number that is not known is NaN.

    * `run`, the name of the run, and `step`, its last step.
    * `tokens`, `seconds` and `petaflops` of the training up to this step.
    * `tokens_per_second`, the median over the rows of training.
    * For each metric its last value: the value of the last evaluation that has
      the metric, or else of the last row of training.
    * If the first metric was evaluated more than once: `best_METRIC`, the best
      of its values, and `best_step`, the step of the best value.
    """
    return Results(self._summary_of_run(run) for run in self.runs)

  def _summary_of_run(self, run: Run) -> dict[str, Any]:
    training_rows, evaluations = run.training_rows(), run.evaluations()
    last_row = run.rows[-1]
    speeds = [
      row["tokens_per_second"]
      for row in training_rows
      if math.isfinite(row.get("tokens_per_second", math.nan))
    ]
    cells: dict[str, Any] = {
      "run": run.name,
      "step": last_row["step"],
      "tokens": last_row["tokens"],
      "seconds": last_row["seconds"],
      "petaflops": last_row["flops"] / 1e15,
      "tokens_per_second": statistics.median(speeds) if speeds else math.nan,
    }
    for metric in self.metrics:
      rows = _rows_with(metric, evaluations) or _rows_with(
        metric, training_rows
      )
      cells[metric] = rows[-1][metric] if rows else math.nan
    metric = self.metrics[0]
    rows = _rows_with(metric, evaluations)
    if len(rows) > 1:
      # If larger values are better, look for the smallest negated value.
      factor = 1 if metric.endswith(_SMALLER_IS_BETTER_ENDINGS) else -1
      best_row = min(rows, key=lambda row: factor * row[metric])
      cells |= {
        f"best_{metric}": best_row[metric],
        "best_step": best_row["step"],
      }
    return cells

  def text_lines(self) -> list[str]:
    """Returns a line of text for each run: the known numbers of `table`."""
    header, *lines = _lines_of_cells(self.table())
    return [
      f"{line[0]}: "
      + ", ".join(
        f"{name} {cell}"
        for name, cell in zip(header[1:], line[1:], strict=True)
        if cell != "-"
      )
      for line in lines
    ]

  def curves(self, metric: str) -> list[Curve]:
    """Returns a curve of training and a curve of evaluations for each run.

    A curve is left out if the metric has no finite value in it.
    """
    curves = []
    for run in self.runs:
      for rows, is_evaluation in (
        (run.training_rows(), False),
        (run.evaluations(), True),
      ):
        rows = _rows_with(metric, rows)
        if rows:
          curves.append(
            Curve(
              run.name,
              [row[self.axis] / _AXIS_DIVISORS[self.axis] for row in rows],
              [row[metric] for row in rows],
              is_evaluation,
            )
          )
    return curves

  def differences(self) -> Results:
    """Returns a dict for each setting in which the runs' configs differ.

    A dict has the setting's key under "setting", and the setting's value in
    each run under the name of the run. The value is "" if the run's config
    lacks the key. Runs without a `config.json` are left out.
    """
    runs = [run for run in self.runs if run.settings]
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    different_settings = Results()
    for key in keys:
      value_by_run = {run.name: run.settings.get(key, "") for run in runs}
      is_same_in_all_runs = len(set(map(str, value_by_run.values()))) == 1
      if not is_same_in_all_runs and key not in _PATH_SETTINGS:
        different_settings.append({"setting": key, **value_by_run})
    return different_settings

  def draw(self, metric: str) -> Any:
    """Draws the curves of a metric.

    A line with points shows the evaluations of a run, and a thin line without
    points shows its training. A run has the same colour in all pictures.

    Returns:
      A `matplotlib.figure.Figure`.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    num_colors = 10 if len(self.runs) <= 10 else 20
    colors = colormaps[f"tab{num_colors}"]
    color_by_run = {
      run.name: colors(i % num_colors) for i, run in enumerate(self.runs)
    }
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    labels_in_legend = set()
    # Draw evaluations first: the legend shows the first line of each run, and
    # the lines of training are pale.
    for curve in sorted(self.curves(metric), key=lambda c: not c.is_evaluation):
      label = None if curve.label in labels_in_legend else curve.label
      labels_in_legend.add(curve.label)
      axes.plot(
        curve.x_values,
        curve.y_values,
        "o-" if curve.is_evaluation else "-",
        linewidth=1.5 if curve.is_evaluation else 0.8,
        alpha=1.0 if curve.is_evaluation else 0.4,
        markersize=4,
        color=color_by_run[curve.label],
        label=label,
      )
    axes.set_xlabel(AXES[self.axis])
    is_loss = metric.endswith("loss")
    axes.set_ylabel(f"{metric} (nats)" if is_loss else metric)
    axes.grid(alpha=0.3)
    if axes.lines:
      axes.legend()
    return figure

  def write_csv(self, path: str | os.PathLike[str]) -> None:
    """Writes all rows of all runs to a CSV file.

    The file has a line for each row, and a column for each field of a row. A
    cell is empty if the row has no such field, or NaN.
    """
    column_names = dict.fromkeys(
      name for run in self.runs for row in run.rows for name in row
    )
    csv_text = io.StringIO()
    writer = csv.DictWriter(
      csv_text, ["run", *column_names], lineterminator="\n"
    )
    writer.writeheader()
    for run in self.runs:
      for row in run.rows:
        known_cells = {
          name: cell
          for name, cell in row.items()
          if not (isinstance(cell, float) and math.isnan(cell))
        }
        writer.writerow({"run": run.name, **known_cells})
    files.write_atomically(path, csv_text.getvalue())

  def write(self, output: str | os.PathLike[str]) -> list[str]:
    """Writes the report as a page, and the rows of all runs as a .csv file.

    Args:
      output: the path of the page. A page that ends in .html contains its
        pictures. For a page that ends in .md, the pictures are .png files
        beside the page. The .csv file is also beside the page, and differs from
        it only in the ending of its name.

    Returns:
      The paths of the written files.

    Raises:
      UserError: `output` does not end in .html or .md, or its folder cannot be
        made.
    """
    path = check_output(output)
    try:
      path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
      raise UserError(
        f"{path.parent}: the folder cannot be made ({e.strerror})."
      ) from e
    csv_path = path.with_suffix(".csv")
    self.write_csv(csv_path)
    picture_paths = []
    if path.suffix == ".html":
      page = (
        '<!doctype html><html><head><meta charset="utf-8"><title>Runs</title>'
        f"<style>{_CSS}</style></head><body>{self._html_body()}</body></html>"
      )
    else:
      for metric in self.metrics:
        picture_path = path.with_name(f"{path.stem}_{metric}.png")
        with files.atomic_file(picture_path) as temporary_path:
          self.draw(metric).savefig(temporary_path, dpi=120, format="png")
        picture_paths.append(picture_path)
      page = self._markdown(
        [picture_path.name for picture_path in picture_paths]
      )
    files.write_atomically(path, page)
    return [
      str(written_path) for written_path in (path, csv_path, *picture_paths)
    ]

  def _markdown(self, picture_names: Sequence[str]) -> str:
    parts = ["# Runs", _markdown_table(self.table())]
    parts += [
      f"## {metric}\n\n![{metric}]({name})"
      for metric, name in zip(self.metrics, picture_names, strict=True)
    ]
    differences = self.differences()
    if differences:
      parts.append("## Settings that differ\n\n" + _markdown_table(differences))
    return "\n\n".join(parts) + "\n"

  def _html_body(self) -> str:
    parts = ["<h1>Runs</h1>", _html_table(self.table())]
    for metric in self.metrics:
      png_file = io.BytesIO()
      self.draw(metric).savefig(png_file, dpi=100, format="png")
      image = base64.b64encode(png_file.getvalue()).decode()
      parts.append(
        f"<h2>{html.escape(metric)}</h2>"
        f'<img alt="{html.escape(metric)}" src="data:image/png;base64,{image}">'
      )
    differences = self.differences()
    if differences:
      parts += ["<h2>Settings that differ</h2>", _html_table(differences)]
    return "\n".join(parts)


_CSS = (
  "body{font-family:sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
  "table{border-collapse:collapse}td,th{border:1px solid #ccc;"
  "padding:.3em .6em;text-align:right}"
  "td:first-child,th:first-child{text-align:left}"
  "img{max-width:100%}"
)


def report(
  runs: str
  | os.PathLike[str]
  | Iterable[str | os.PathLike[str]]
  | Mapping[str, Any],
  output: str | os.PathLike[str] | None = None,
  *,
  metrics: str | Sequence[str] | None = None,
  axis: str = "step",
) -> Report:
  """Lays runs side by side: a table, curves, and the settings that differ.

  A run is read from the files `metrics.jsonl` and `config.json` of its folder,
  so it may be of any kind: pre-training, fine-tuning or distillation.

  >>> runs = bert_jax.report({"small": "runs/a", "large": "runs/b"})
  >>> runs.table()[0]["run"]
  'small'

  Args:
    runs: the folders of the runs: a glob, a list of globs or of "NAME=FOLDER",
      or a dict of names and folders. A run for which you give no name has the
      name of its folder. Instead of a folder, you may give its `metrics.jsonl`.
    output: the page to write: a file that ends in .html or .md; see
      `Report.write`. None writes nothing.
    metrics: the names of the metrics whose curves are drawn, such as
      "mlm_loss", in this order. By default, these are all losses and scores of
      the evaluations, or of the training if no run was evaluated.
    axis: what the horizontal axes count: "step", "tokens" without padding,
      "seconds" of training, or "flops".

  Returns:
    The report.

  Raises:
    UserError: a run has no rows, two runs have the same name, no run has a
      metric that `metrics` names, or the rows of a run do not say how many
      tokens, seconds or FLOPs (see `axis`) it took.
  """
  if output is not None:
    check_output(output)
  if axis not in AXES:
    raise UserError(
      f"axis={axis!r}: the axes are {', '.join(map(repr, AXES))}."
    )
  opened_runs = [_read_run(name, path) for name, path in _named_paths(runs)]
  metric_names = _choose_metrics(opened_runs, metrics)
  for run in opened_runs:
    if not all(math.isfinite(row[axis]) for row in run.rows):
      raise UserError(
        f"axis: the rows of run {run.name} do not say how many {axis} it had"
        " spent; choose another axis, for example 'step'."
      )
  result = Report(opened_runs, metric_names, axis)
  if output is not None:
    result.write(output)
  return result


def check_output(output: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the path of a page, which must end in .html or .md."""
  path = pathlib.Path(
    arguments.check_path("output", output, "the file of the report")
  )
  if path.suffix not in (".html", ".md"):
    raise UserError(
      f"output: {output}: the name of a report ends in .html or .md."
    )
  return path


def _named_paths(runs: Any) -> list[tuple[str, str]]:
  """Returns the (name, path) of each run."""
  if isinstance(runs, Mapping):
    named_patterns = [
      (str(name), os.fspath(path)) for name, path in runs.items()
    ]
  elif isinstance(runs, str | os.PathLike):
    named_patterns = [("", os.fspath(runs))]
  else:
    named_patterns = [_split_name(os.fspath(run)) for run in runs]
  named_paths = []
  for name, pattern in named_patterns:
    paths = _matching_paths(pattern)
    if not paths:
      raise UserError(f"there is no run {pattern}.")
    if name and len(paths) > 1:
      raise UserError(
        f"{name}={pattern}: these are {len(paths)} runs, but a name is for one."
      )
    for path in paths:
      folder = pathlib.Path(path)
      folder = folder.parent if folder.name == "metrics.jsonl" else folder
      named_paths.append((name, str(folder)))
  if not named_paths:
    raise UserError("there is no run; give the folders of the runs.")
  # Two globs may match the same run. Keep it only once.
  named_paths = list(dict.fromkeys(named_paths))
  short_names = _short_names([path for _, path in named_paths])
  names = [
    name or short_name
    for (name, _), short_name in zip(named_paths, short_names, strict=True)
  ]
  for name in names:
    if names.count(name) > 1:
      raise UserError(f"two runs have the name {name}; name them NAME=RUN.")
  return [
    (name, path) for name, (_, path) in zip(names, named_paths, strict=True)
  ]


def _matching_paths(pattern: str) -> list[str]:
  """Returns the existing paths that match a glob, sorted."""
  pattern = str(pathlib.Path(pattern).expanduser())
  return sorted(glob.glob(pattern))  # noqa: PTH207


def _split_name(text: str) -> tuple[str, str]:
  """Splits "NAME=PATH" into name and path; the name is "" if there is none."""
  name, equals, path = text.partition("=")
  # The "=" may also belong to a path.
  if not equals or os.sep in name or _matching_paths(text):
    return "", text
  return name, path


def _short_names(paths: Sequence[str]) -> list[str]:
  """Returns the last parts of each path, as few as make all names different."""
  parts_by_path = [pathlib.Path(path).absolute().parts for path in paths]
  for num_parts in range(1, max(map(len, parts_by_path)) + 1):
    names = ["/".join(parts[-num_parts:]) for parts in parts_by_path]
    if len(set(names)) == len(names):
      return names
  raise UserError(f"two runs are one folder: {', '.join(paths)}.")


def _read_run(name: str, path: str) -> Run:
  """Reads a run from its folder, or from its `metrics.jsonl`."""
  folder = pathlib.Path(path)
  rows_path = folder / "metrics.jsonl" if folder.is_dir() else folder
  rows = logging.read_rows(rows_path)
  if not rows:
    raise UserError(
      f"run {name}: {rows_path} has no rows. A run writes its first row after"
      " log.every steps."
    )
  config_path = rows_path.with_name("config.json")
  settings = {}
  if config_path.exists():
    settings = flatten(files.read_json_object(config_path))
  else:
    note(
      f"run {name}: there is no {config_path}, so its settings are left out."
    )
  return Run(name, settings, _add_totals(rows))


def _add_totals(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """Returns the rows in the order of their steps, with the totals of training.

  The totals are the seconds, tokens and FLOPs of all steps up to the row's
  step. A training row has the speed of the steps since the training row before.
  If it has no speed, because its only step was compiled, the speed of the next
  training row is used.
  """
  ordered_rows = sorted(rows, key=lambda row: row["step"])
  training_rows = [row for row in ordered_rows if row["split"] == "train"]
  if training_rows:
    # The last evaluation may come after the last training row. The steps
    # between them are taken to cost as much as those before.
    last_step = ordered_rows[-1]["step"]
    training_rows.append({**training_rows[-1], "step": last_step})
  costs = np.array([_costs_of_step(row) for row in training_rows])
  costs = costs.reshape(-1, len(_COST_NAMES))
  for i in reversed(range(len(costs) - 1)):
    costs[i] = np.where(np.isnan(costs[i]), costs[i + 1], costs[i])
  known_steps = np.array([0, *(row["step"] for row in training_rows)])
  known_totals = np.cumsum(np.diff(known_steps)[:, None] * costs, axis=0)
  known_totals = np.concatenate([np.zeros((1, len(_COST_NAMES))), known_totals])
  steps = [row["step"] for row in ordered_rows]
  totals = {
    name: np.interp(steps, known_steps, total, right=math.nan).tolist()
    for name, total in zip(_COST_NAMES, known_totals.T, strict=True)
  }
  return [
    {**row, **{name: total[i] for name, total in totals.items()}}
    for i, row in enumerate(ordered_rows)
  ]


def _costs_of_step(row: Mapping[str, Any]) -> tuple[float, ...]:
  """Returns the seconds, tokens and FLOPs of one step; NaN if not known."""
  steps_per_second = row.get("steps_per_second", math.nan)
  seconds = 1 / steps_per_second if steps_per_second else math.nan
  tokens = row.get("tokens_per_second", math.nan) * seconds
  return seconds, tokens, row.get("flops_per_step", math.nan)


def _choose_metrics(
  runs: Sequence[Run], metrics: str | Sequence[str] | None
) -> list[str]:
  """Returns the names of the metrics whose curves are drawn."""
  evaluations = [row for run in runs for row in run.evaluations()]
  rows = evaluations or [row for run in runs for row in run.rows]
  score_names = [
    name for name in _number_names(rows) if name not in _FIELDS_WITHOUT_SCORES
  ]
  if metrics is None:
    if not score_names:
      raise UserError("no run has a loss or a score.")
    # Leave out "loss", the sum of the losses, if the losses themselves are
    # there.
    loss_names = [name for name in score_names if name.endswith("_loss")]
    return [name for name in score_names if not (name == "loss" and loss_names)]
  all_names = _number_names(row for run in runs for row in run.rows)
  chosen_names = [metrics] if isinstance(metrics, str) else list(metrics)
  for name in chosen_names:
    if name not in all_names:
      raise UserError(
        f"metrics: no run has the number {name!r}; the runs have"
        f" {', '.join(all_names)}."
      )
  if not chosen_names:
    raise UserError("metrics: the list is empty; name a number.")
  return chosen_names


def _number_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
  """Returns the names of the fields that hold numbers, losses first."""
  names = dict.fromkeys(
    name
    for row in rows
    for name, number in row.items()
    if isinstance(number, int | float) and name not in AXES
  )
  return sorted(names, key=lambda name: not name.endswith("loss"))


def _rows_with(
  metric: str, rows: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
  return [row for row in rows if math.isfinite(row.get(metric, math.nan))]


def _cell(content: Any) -> str:
  """Formats a cell of a table: a number in a short form, and NaN as "-"."""
  if isinstance(content, bool) or not isinstance(content, int | float):
    return str(content)
  if isinstance(content, int):
    return f"{content:,}"
  if math.isnan(content):
    return "-"
  if abs(content) >= 1000:
    return f"{content:,.0f}"
  return f"{content:.4g}"


def _lines_of_cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
  """Turns dicts into the cells of a table.

  The first line has the names of the columns. Each further line has the cells
  of one dict; a cell is "-" if the dict has no entry for the column.
  """
  names = list(dict.fromkeys(name for row in rows for name in row))
  lines = [[_cell(row.get(name, math.nan)) for name in names] for row in rows]
  return [names, *lines]


def _markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
  header, *lines = _lines_of_cells(rows)
  cells = [header, ["---"] * len(header), *lines]
  return "\n".join(
    "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
    for line in cells
  )


def _html_table(rows: Sequence[Mapping[str, Any]]) -> str:
  header, *lines = _lines_of_cells(rows)

  def row_of(tag: str, cells: Sequence[str]) -> str:
    return (
      "<tr>"
      + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
      + "</tr>"
    )

  return (
    "<table>"
    + row_of("th", header)
    + "".join(row_of("td", line) for line in lines)
    + "</table>"
  )
