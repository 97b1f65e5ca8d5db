"""What a run is asked for on the command line."""

import argparse
import os

import plan
import processes
import stragglers

NAMES = ("ddp", "gloo", "mpi", "mxnet", "slackline")
OUTSIDE = ["ddp", "gloo", "mpi", "mxnet"]
OWN_RATE = ("ddp-gloo", "mxnet-dist_sync", "mxnet-dist_async")
TRAINING_SAMPLES = 60_000
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")


def list_of(kind, what, least, most=float("inf")):
    """A parser of values between commas."""

    def parse(text):
        try:
            values = [kind(part) for part in text.split(",")]
        except ValueError:
            values = []
        if not values or any(not least <= value <= most for value in values):
            until = "" if most == float("inf") else f" and at most {most}"
            raise argparse.ArgumentTypeError(f"{text!r} must be {what}, separated by commas, each at least {least}{until}")
        return values

    return parse


def at_least(kind, least, most=float("inf")):
    """A parser of one value."""

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} must be a number from {least:g} to {most:g}")
        return value

    return parse


def key_value(text):
    """`KEY=VALUE`, as it stands."""
    key, sign, _ = text.partition("=")
    if not key.strip() or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} must be KEY=VALUE")
    return text


def _rates(text):
    """`0.05` for all, or `0.05,mxnet-dist_async=0.02`: a contestant with its own."""
    rates = {}
    for part in text.split(","):
        name, _, value = part.rpartition("=")
        try:
            rates[name] = float(value)
        except ValueError:
            rates[name] = -1.0
        if not 0.0 < rates[name] < float("inf"):
            raise argparse.ArgumentTypeError(f"{part!r} must be RATE or PEER=RATE with a rate above 0")
    unknown = sorted(name for name in rates if name and name not in OWN_RATE and not name.startswith("slackline-"))
    if unknown:
        raise argparse.ArgumentTypeError(f"no peer {unknown[0]}; there are {', '.join(OWN_RATE)} and slackline-VARIANT")
    return rates


def _names(text):
    names = text.split(",")
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no peer {unknown[0]!r}; there are {', '.join(NAMES)}")
    return names


def _parser(about):
    parser = argparse.ArgumentParser(description=about)
    add = parser.add_argument
    add("--out", required=True, help="folder for peers.jsonl, table.txt and the logs; made if missing")
    add("--only", type=_names, default=OUTSIDE, help="of ddp,gloo,mpi,mxnet,slackline; all but the last if not given")
    add("--mode", choices=("train", "allreduce", "pushpull", "both"), default="both", help="both: train and allreduce")
    add("--workers", type=list_of(int, "whole numbers", 1, 64), default=[2], help="several only for pushpull")
    add("--servers", type=list_of(int, "whole numbers", 1, 64), default=[2], help="servers of MXNet and Slackline; several as above")
    add("--seeds", type=list_of(int, "whole numbers", 0), default=[1, 2, 3])
    add("--epochs", type=at_least(int, 1), default=10)
    add("--batch", type=at_least(int, 1, TRAINING_SAMPLES), default=128, help="samples of each worker's batch")
    add("--rate", type=_rates, default={"": 0.05}, help=f"RATE, or RATE,PEER=RATE,... ({', '.join(OWN_RATE)}, slackline-VARIANT)")
    add("--schedule", choices=("constant", "linear"), default="constant", help="how the rate falls over the run")
    add("--final-rate", type=at_least(float, 0.0, 1.0), default=0.0, help="share of the rate that is left at the end (linear)")
    add("--momentum", type=at_least(float, 0.0, 1.0), default=0.9)
    add("--stragglers", default="none", help=stragglers.FORMS)
    add("--target", type=list_of(float, "accuracies", 0.0), default=[0.87], help="test accuracies whose time is reported")
    add("--evaluations", type=at_least(int, 1, 1000), default=1, help="evaluations an epoch")
    add("--order", help="file of sample indices, raw little-endian u32; {seed} stands for the seed")
    add("--delays", help="file of worker,iteration,seconds; {seed} stands for the seed")
    add("--sizes-mib", type=list_of(int, "whole MiB", 1), default=[4, 40])
    add("--ranks", type=list_of(int, "numbers of ranks", 2), default=[2, 4])
    add("--repeats", type=at_least(int, 1), help="of each allreduce (else 60 at 4 MiB, 15 at 40 MiB); turns of each cell of pushpull (else 3)")
    add("--rounds", type=at_least(int, 1), help="pushes and pulls of a turn; else as many as make 400 MiB a worker, 3 to 100")
    add("--deadline", type=at_least(float, 0.1), help="seconds for one measurement; else reckoned from its size")
    add("--data-dir", default="/usr/share/datasets/fashion-mnist")
    add("--python", help="interpreter with torch, numpy and mpi4py; else this one or Debian's")
    add("--mxnet-venv", default=os.path.join(CACHE, "slackline", "mxnet-1.9.1"))
    add("--netns", action="store_true", help="workers and servers each in a namespace that netns.sh has made")
    add("--realtime", action="store_true", help="everything measured at real-time priority (chrt -r 5)")
    ours = parser.add_argument_group("Slackline's own programs (--only slackline,...)").add_argument
    ours("--loopback", help="its bench of push and pull; else target/release/loopback")
    ours("--slackline", help="the program; else target/release/slackline")
    ours("--config", help="what its training begins from; else configs/fashion-mlp.toml")
    ours("--set", type=key_value, action="append", default=[], metavar="KEY=VALUE", help="a key of its configuration; can be repeated")
    ours(
        "--variant",
        nargs="+",
        action="append",
        default=[],
        metavar=("NAME", "KEY=VALUE"),
        help="one more contestant with these keys; else one without, or bsp, ssp2 and asp for training; can be repeated",
    )
    return parser


def _variants(parser, given):
    """(name, settings) of each variant."""
    found = []
    for name, *sets in given:
        if not name.replace("-", "").replace("_", "").isalnum() or name in dict(found):
            parser.error(f"--variant: {name!r} must be a name of letters and digits that no other variant has")
        try:
            found.append((name, [key_value(text) for text in sets]))
        except argparse.ArgumentTypeError as error:
            parser.error(f"--variant {name}: {error}")
    return found


def arguments(about, given=None):
    """The settings of a run."""
    parser = _parser(about)
    settings = parser.parse_args(given)
    settings.variant = _variants(parser, settings.variant)
    if settings.mode in ("train", "both"):
        if len(settings.workers) > 1 or len(settings.servers) > 1:
            parser.error("--workers, --servers: one number of each where training is measured")
        workers = settings.workers[0]
        try:
            stragglers.parse(settings.stragglers, 0, workers)
            plan.clock_count(TRAINING_SAMPLES, settings.epochs, settings.batch, workers)
        except ValueError as error:
            parser.error(str(error))
    for kind in ("order", "delays"):
        pattern = getattr(settings, kind)
        for seed in settings.seeds if pattern else ():
            path = pattern.replace("{seed}", str(seed))
            if not os.path.isfile(path):
                parser.error(f"--{kind}: there is no file {path}")
    if settings.realtime and not processes.may_realtime():
        parser.error("--realtime: chrt is missing or may not be used here (util-linux, and root or CAP_SYS_NICE)")
    return settings
